"""What pyproject.toml cannot say: the long description, README.md as it can be read away from the repository."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
RELATIVE = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:|mailto:|#)([^()\s]+)\)")


def long_description(readme: str, repository: str | None) -> str:
    """The page's relative links made absolute; without a repository's address their text alone, and no pictures."""

    def away(found: re.Match[str]) -> str:
        picture, text, path = found.groups()
        if repository is None:
            return "" if picture else text
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return RELATIVE.sub(away, re.sub(r"<!--.*?-->\n?", "", readme, flags=re.DOTALL))


if __name__ == "__main__":
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    setup(
        long_description=long_description(page, urls.get("Repository")), long_description_content_type="text/markdown"
    )

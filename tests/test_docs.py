"""The commands of the README and the docs run, and print what the pages show."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
SH_BLOCK = re.compile(r"(?<=^```sh\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)


def load(path: Path) -> ModuleType:
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refresh = load(ROOT / "scripts" / "refresh_docs.py")
PAGES: list[Path] = refresh.pages()


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def run(command: str, folder: Path) -> tuple[int, str]:
    """The exit code of a command that writes to `folder` in place of /tmp, and what it prints on both streams."""
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('/tmp/', f'{folder}/')}"],
        cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, (done.stdout + done.stderr).replace(f"{folder}/", "/tmp/")


def same(shown: str, real: str) -> bool:
    """Whether two outputs agree line by line; times are masked, and a shown line `...` stands for any lines."""
    pattern = "\n".join(
        r"(?:.*\n)*?.*" if line.strip() == "..." else re.escape(line) for line in text_lines(refresh.mask(shown))
    )
    return re.fullmatch(pattern, "\n".join(text_lines(refresh.mask(real)))) is not None


def text_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def commands_of(page: Path) -> list[tuple[str, str | None]]:
    """Each command of a page with the output shown for it; None in sh blocks, which show none."""
    text = page.read_text(encoding="utf-8")
    found: list[tuple[str, str | None]] = []
    for block in SH_BLOCK.findall(text):
        found += [(line, None) for line in block.splitlines() if line.startswith("moescale ")]
    for block in refresh.BLOCK.findall(text):
        found += refresh.commands(block)
    return found


def test_outputs_are_compared_line_by_line() -> None:
    assert same("a 1\nb", "a 1  \nb\n")
    assert not same("a 1\nb", "a 2\nb")
    assert not same("a", "a\nb")
    assert same("a\n...\nd", "a\nb\nc\nd")
    assert not same("a\n...\nd", "a\nb\nc")
    assert same("fitted in 1.2 s", "fitted in 930 ms")
    assert not same("batch 1.2 s  x", "batch 1.3 s  x")


def test_the_readme_shows_commands() -> None:
    readme = ROOT / "README.md"
    if not readme.read_text(encoding="utf-8").strip():
        pytest.skip("the README is empty")
    ran = [command for command, _ in commands_of(readme)]
    for verb in ("plan", "fit", "predict", "cost"):
        assert any(command.startswith(f"moescale {verb}") for command in ran), verb


@pytest.mark.skipif(os.name == "nt", reason="the pages show a POSIX shell")
@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_commands_print_what_the_page_shows(page: Path, tmp_path: Path) -> None:
    for command, shown in commands_of(page):
        code, real = run(command, tmp_path)
        # A page may show a question that has no answer (exit code 1), with its message. A pipe that `head` closes early
        # is no failure either: the program ends quietly then.
        answerless = code == 1 and "moescale: " in (shown or "")
        assert code == 0 or answerless, f"`{command}` exits with {code}: {real}"
        if shown is not None:
            assert same(shown, real), (
                f"`{command}` prints:\n{real}\n`python scripts/refresh_docs.py` brings {page.name} up to date"
            )


def test_the_readmes_python_runs() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"(?<=^```python\n)(.*?)(?=^```$)", text, re.MULTILINE | re.DOTALL)
    if not blocks:
        pytest.skip("the README shows no Python")
    for block in blocks:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", block],
            cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr

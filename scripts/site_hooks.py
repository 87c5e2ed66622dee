r"""What the site does beyond mkdocs: pages and figures that programs write, formulas as MathML, links out of docs/ as text, and
no request to another host.

The pages of the reference and the figures are made here, from the code; a page places a figure by a comment,
`<!-- figure NAME: caption -->`, which shows nothing where the page is read without the site.

A formula is LaTeX in a ```math block, or in $`..`$ within a line: what hosts of repositories render themselves. Here it
becomes MathML, which browsers draw without a script or a font from elsewhere.
"""

from __future__ import annotations

import html
import importlib
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FIGURE = re.compile(r"^<!-- figure ([\w-]+): (.*?) -->$", re.MULTILINE)
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"\$`([^`\n]+)`\$")
PLACE = "moescaleformula{}end"  # stands for a formula while Markdown is read, which would change its letters
PLACES = re.compile(r"<p>moescaleformula(\d+)end</p>|moescaleformula(\d+)end")
OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# What a browser fetches by itself; a link that a reader follows is not among it.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link)\b(?![^>]*\brel="?(?:canonical|prev|next)\b)[^>]*?\b(?:src|href)="?(?:https?:)?//[^>]*>"""
    r"""|@import\s+[^;]*(?:https?:)?//[^;]*;|url\(["']?(?:https?:)?//[^)]*\)"""
)


def script(name: str) -> Any:
    """A script beside this one, as a module."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.insert(0, str(ROOT / "scripts"))
    return importlib.import_module(name)


def drawn_figures() -> Path:
    """The folder of the figures, which are drawn where they are missing or older than the code."""
    figures = script("draw_figures")
    folder = ROOT / figures.FIGURES
    paths = [folder / f"{name}.svg" for name in figures.NAMES]
    changed = max(path.stat().st_mtime for path in (ROOT / "src").rglob("*.py"))
    if not all(path.exists() and path.stat().st_mtime > changed for path in paths):
        figures.draw_all(folder)
    return folder


def on_files(files: Any, config: Any) -> Any:
    """The figures and the pages of the reference among the files of the site."""
    generated = importlib.import_module("mkdocs.structure.files").File.generated
    for path in sorted(drawn_figures().glob("*.svg")):
        files.append(generated(config, f"figures/{path.name}", abs_src_path=str(path)))
    for name, text in {**script("document_reference").pages(), **script("document_laws").pages()}.items():
        files.append(generated(config, f"reference/{name}", content=text))
    return files


def mathml(latex: str, display: str) -> str:
    """A formula as MathML; the LaTeX stands beside it for those who copy it."""
    convert = importlib.import_module("latex2mathml.converter").convert
    return str(convert(latex.strip(), display=display))


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Figures in their places; formulas out of Markdown's way; links to files that the site does not hold as text."""
    formulas: list[str] = []

    def place(latex: str, display: str) -> str:
        formulas.append(mathml(latex, display))
        return PLACE.format(len(formulas) - 1)

    depth = page.file.src_uri.count("/")

    def outside(match: re.Match[str]) -> str:
        inside_docs = match.group(0).count("../") <= depth
        return match.group(0) if inside_docs else f"{match.group(1)} (`{match.group(2)}` in the repository)"

    markdown = FIGURE.sub(lambda found: f"![{found[2]}]({'../' * depth}figures/{found[1]}.svg)", markdown)
    text = BLOCK.sub(lambda found: f"\n{place(found.group(1), 'block')}\n", markdown)
    parts = CODE.split(text)
    blocks = CODE.findall(text)
    parts = [OUTSIDE.sub(outside, INLINE.sub(lambda found: place(found.group(1), "inline"), part)) for part in parts]
    page.meta["formulas"] = formulas
    return "".join(part + block for part, block in zip(parts, [*blocks, ""], strict=True))


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Formulas back in."""
    formulas: list[str] = page.meta.pop("formulas", [])

    def formula(match: re.Match[str]) -> str:
        block, inline = match.groups()
        return f'<div class="formula">{formulas[int(block)]}</div>' if block else formulas[int(inline)]

    return PLACES.sub(formula, content)


def on_post_build(config: Any) -> None:
    """Stop the build if a page or a style sheet would fetch anything from another host."""
    site = Path(config["site_dir"])
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        found = FETCHED.search(html.unescape(path.read_text(encoding="utf-8")))
        if found is not None:
            raise SystemExit(f"{path.relative_to(site)} would fetch from another host: {found.group(0)[:120]}")

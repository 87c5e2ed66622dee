"""What the site of the docs does beyond mkdocs; `make docs` builds it whole."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from script_modules import load_script


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    return load_script("scripts/site_hooks.py")


@pytest.fixture
def drawn(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """The formulas that are drawn, by a stand-in for the library that draws them."""
    seen: list[tuple[str, str]] = []

    def convert(latex: str, display: str) -> str:
        seen.append((latex, display))
        return f"<math>{len(seen)}</math>"

    monkeypatch.setitem(sys.modules, "latex2mathml.converter", SimpleNamespace(convert=convert))
    return seen


def page_at(path: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path), meta={})


def render(hooks: ModuleType, text: str, path: str = "page.md") -> str:
    """A page through both hooks, with every line a paragraph, as Markdown makes a lone word."""
    page = page_at(path)
    lines = hooks.on_page_markdown(text, page, None, None).splitlines()
    return hooks.on_page_content("\n".join(f"<p>{line}</p>" for line in lines if line), page, None, None)


def test_formulas_are_drawn_in_their_places_and_code_that_looks_like_one_stays_code(
    hooks: ModuleType, drawn: list[tuple[str, str]]
) -> None:
    text = "```sh\necho $`ls`$ [x](../y)\n```"
    assert hooks.on_page_markdown(text, page_at("page.md"), None, None) == text
    assert drawn == []
    html = render(hooks, "Of $`E_1`$ and $`a*b`$:\n\n```math\n\\frac{1}{2}\n```\n")
    assert drawn == [("\\frac{1}{2}", "block"), ("E_1", "inline"), ("a*b", "inline")]
    assert html == '<p>Of <math>2</math> and <math>3</math>:</p>\n<div class="formula"><math>1</math></div>'


@pytest.mark.parametrize(
    ("path", "link", "shown"),
    [
        ("page.md", "[it](../benchmarks/gpu/README.md)", "it (`benchmarks/gpu/README.md` in the repository)"),
        ("howto/page.md", "[it](../serving.md)", "[it](../serving.md)"),
        ("howto/page.md", "[it](../../README.md)", "it (`README.md` in the repository)"),
        ("page.md", "[it](serving.md)", "[it](serving.md)"),
    ],
)
def test_links_out_of_the_docs_become_text(hooks: ModuleType, path: str, link: str, shown: str) -> None:
    assert hooks.on_page_markdown(link, page_at(path), None, None) == shown


@pytest.mark.parametrize(
    "fetching",
    [
        '<script src="https://cdn.example/x.js"></script>',
        '<link rel="stylesheet" href="https://fonts.example/css?family=Roboto">',
        '<img alt="" src="//example.org/badge.svg">',
        "<style>@import url(https://fonts.example/a.css);</style>",
    ],
)
def test_a_page_that_would_fetch_from_elsewhere_stops_the_build(
    hooks: ModuleType, tmp_path: Path, fetching: str
) -> None:
    (tmp_path / "index.html").write_text(f"<html>{fetching}</html>", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"index\.html would fetch from another host"):
        hooks.on_post_build({"site_dir": str(tmp_path)})


def test_links_that_a_reader_follows_do_not_stop_it(hooks: ModuleType, tmp_path: Path) -> None:
    text = '<a href="https://arxiv.org/abs/2404.02852">it</a><link rel="canonical" href="https://example.org/">'
    (tmp_path / "index.html").write_text(f'<html>{text}<script src="assets/x.js"></script></html>', encoding="utf-8")
    hooks.on_post_build({"site_dir": str(tmp_path)})


def test_figures_are_placed_by_comments_at_any_depth_and_every_drawn_one_is_shown(hooks: ModuleType) -> None:
    text = "a\n\n<!-- figure plan: Loss, and cost -->\n"
    assert hooks.on_page_markdown(text, page_at("page.md"), None, None) == "a\n\n![Loss, and cost](figures/plan.svg)\n"
    assert "(../figures/plan.svg)" in hooks.on_page_markdown(text, page_at("howto/page.md"), None, None)
    pages = (Path(hooks.ROOT) / "docs").rglob("*.md")
    shown = {found[1] for page in pages for found in hooks.FIGURE.finditer(page.read_text(encoding="utf-8"))}
    assert shown == set(load_script("scripts/draw_figures.py").NAMES)

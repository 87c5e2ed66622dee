"""Pages to send: complete, closed off from the network, escaped, readable without eyes, and the same for the same answer."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[figures]'")

from command_line import run
from moescale.planning.plan_file import parse_plan
from moescale.serving.accuracy import Accuracy
from moescale.units import format_usd
from moescale.views.html import Origin, plan_report
from moescale.views.tables import answer

EVIL = "<script>alert('x')</script>\"><img src=http://evil.example/x onerror=alert(1)>"
VOID = {"meta", "br", "hr", "img", "link", "input", "source"}
HEADINGS = "Answer|What could make it wrong|Decision|Caveats|Evidence|Assumptions|How to reproduce it"


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and its texts; an element that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        for name in self.open:
            self.texts[name][-1] += data
        if "style" not in self.open:
            self.words += data

    def attributes(self, name: str) -> list[str]:
        return [value or "" for _, attrs in self.elements for key, value in attrs.items() if key == name]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of a command line as a file."""
    path = tmp_path_factory.mktemp("answers")
    answer = run("plan", "--budget", "5.15e21", "--law", "yun2024-recovered", "--experts", "1,4,32", "--latency", "roofline", "--lifetime-tokens", "1T", "--json")  # fmt: skip
    assert answer.code == 0, answer.err
    (path / "plan.json").write_text(answer.out)
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The text of a page."""
    target, again = folder / "plan.html", folder / "again.html"
    for path in (target, again):
        answer = run("report", folder / "plan.json", "-o", path)
        assert (answer.code, answer.out, answer.err) == (0, "", f"wrote {path}\n")
    assert again.read_bytes() == target.read_bytes()
    return target.read_text(encoding="utf-8")


def test_a_page_needs_nothing_else(page: str) -> None:
    parsed = Page(page)
    names = {tag for tag, _ in parsed.elements}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form"}
    assert [value for value in parsed.attributes("src") if not value.startswith("data:")] == []
    # Elements that load what they point to; a link loads nothing until it is followed.
    assert all(tag == "a" for tag, attrs in parsed.elements if (attrs.get("href") or "").startswith("http"))
    assert not re.search(r"url\(|@import", page)
    assert [key for _, attrs in parsed.elements for key in attrs if key.startswith("on")] == []


def test_a_page_says_all_that_a_reader_needs_and_is_accessible(page: str) -> None:
    parsed = Page(page)
    assert len(parsed.texts["h1"]) == 1
    assert "|".join(h for h in parsed.texts["h2"] if h in HEADINGS.split("|")) == HEADINGS
    assert "moescale" in parsed.texts["pre"][0]  # the command
    plain = Page(page[: page.index("<details>")].partition("<main>")[2]).words
    assert not re.search(r"knee|nats|moescale|MFU|TPOT|Mtok|Decided", plain)
    identifiers = parsed.attributes("id")
    assert [name for name, times in Counter(identifiers).items() if times > 1] == []
    assert set(parsed.attributes("aria-labelledby")) <= set(identifiers)
    figures = [attrs for tag, attrs in parsed.elements if tag == "img"]
    assert len(figures) == 1
    assert all(attrs.get("alt") for attrs in figures)
    assert ("html", {"lang": "en"}) in parsed.elements
    heads = [attrs.get("scope") for tag, attrs in parsed.elements if tag == "th"]
    assert set(heads) == {"col", "row"}


def test_the_page_of_a_plan_holds_its_numbers(folder: Path) -> None:
    record = json.loads((folder / "plan.json").read_text())
    plan = parse_plan(record, where="x")
    words = Page(plan_report(plan)).words
    best, base = record["lifetime"]["recommendation"], record["base_as_built"]
    for number in (f"{best['loss']:.4f}", *best["caveats"]):
        assert number in words
    for row in (*record["bounded_loss"]["plans"], *record["loss_optimal"]):
        assert "loss" not in row or f"{row['loss']:.4f}" in words
    assert "8 a100-sxm-40gb" in words
    training = record["training"]
    for text in (f"{training['gpu_days'] / training['train_gpus']:.3g} days", format_usd(training["usd"])):
        assert text in words
    ratios = [row["cost_ratio"] for row in record["bounded_loss"]["plans"] if "cost_ratio" in row]
    assert ratios
    assert all(f"{ratio:.0%}" in words for ratio in ratios)
    for text in (f"life{format_usd(best['total_usd'])}", f"{best['total_usd'] / base['total_usd']:.0%} of it is spent"):
        assert text in words
    error = Accuracy(kind="MoE fp8", n=9, geometric_mean=1.25, spread=1.3, sets=3, gpus=())
    corrected = f"likely {format_usd(1.25 * best['usd_per_mtok'])}; "
    assert corrected in Page(plan_report(replace(plan, accuracy=error))).words


def test_a_page_leads_with_the_benefit_three_figures_and_the_chart(folder: Path) -> None:
    plan = parse_plan(json.loads((folder / "plan.json").read_text()), where="x")
    page = plan_report(plan)
    parsed, first = Page(page), page[: page.index("<h2")]
    told = answer.benefit(plan)
    assert re.fullmatch(r"[0-9.]+x cheaper to train and serve at the same loss or lower \(\d+% likely\)", told)
    assert parsed.texts["h1"][0].startswith(f"{told}: ")
    shown = [figure for figure in answer.figures(plan) if figure.key]
    assert [figure.name for figure in shown] == ["life", "saving", "chance"]
    life, base = plan.decision.model.total_usd, plan.built_base.total_usd
    assert [figure.value for figure in shown[:2]] == [life, base - life]
    assert all(f"<dd>{figure.text}</dd>" in first for figure in shown)
    rows = [attrs for tag, attrs in parsed.elements if tag == "tr" and attrs.get("class") == "chosen"]
    assert len(rows) == 1


def test_a_report_without_matplotlib_leaves_its_figure_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    answer, words = run("report", folder / "plan.json", "-o", folder / "plain.html"), "matplotlib is not installed"
    parsed = Page((folder / "plain.html").read_text(encoding="utf-8"))
    assert (answer.code, parsed.attributes("src")) == (0, [])
    assert words in answer.err
    assert words not in parsed.words


def test_nothing_from_the_answer_becomes_markup(folder: Path) -> None:
    record: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    record |= {"law": EVIL, "gpu": EVIL, "latency_source": EVIL, "warnings": [EVIL], "convention": EVIL}
    record["recommendation"] |= {"why": EVIL, "rule": EVIL, "caveats": [EVIL]}
    record["loss_optimal"][0]["infeasible"] = EVIL
    record["asked"]["experts"] = [EVIL]
    evil = Origin(name=EVIL, sha256=EVIL, made_with={"command": EVIL, "moescale": EVIL, "sha256": {EVIL: EVIL}})
    command = Origin(made_with={"command": "moescale plan"})
    plain = plan_report(parse_plan(json.loads((folder / "plan.json").read_text()), where="x"), command)
    known = {tag for tag, _ in Page(plain).elements}
    parsed = Page(plan_report(parse_plan(record, where="x"), evil))
    assert {tag for tag, _ in parsed.elements} <= known | {"ul", "li"}
    assert [key for _, attrs in parsed.elements for key in attrs if key.startswith("on")] == []
    assert all(value.startswith("data:image/svg+xml;base64,") for value in parsed.attributes("src"))
    assert EVIL in parsed.words
    assert "evil.example" not in "".join(tag for tag, _ in parsed.elements)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("x.json", "{}", "holds nothing to report"), ("x.json", "[]", "holds nothing to report"),
        ("x.json", '{"infeasible": "no"}', "has no answer"), ("x.json", "{", "is not JSON"),
        ("x.toml", "format = 1", "is not JSON"), ("nothing.json", None, "no such file"),
    ],
)  # fmt: skip
def test_refusals(folder: Path, tmp_path: Path, name: str, text: str | None, words: str) -> None:
    path = folder / name
    if text is not None:
        path = tmp_path / name
        path.write_text(text)
    answer = run("report", path, "-o", tmp_path / "out.html")
    assert answer.code == 2
    assert words in answer.err
    assert not (tmp_path / "out.html").exists()

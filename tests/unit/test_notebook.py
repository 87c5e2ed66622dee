"""Answers in a notebook: IPython is told of them by name, and what it gets is closed and escaped."""

from __future__ import annotations

import sys
from dataclasses import replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest

import moescale
from command_line import RUNS
from moescale import Budget, Deployment, Question, Roofline, find_form, find_gpu, find_law, fit, make_plan, read_runs
from moescale.serving.gpu_counts import Cost
from moescale.views.notebook import FORMATTERS, cost_html, fit_html, law_html, load_ipython_extension, plan_html


class Formatter:
    """What IPython's HTML formatter takes."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Any] = {}

    def for_type_by_name(self, module: str, name: str, html: Any) -> None:
        self.known[module, name] = html


class Balanced(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass


COST = Cost(
    gpus=2, n_params_total=1e9, n_params_active=5e8, weight_bytes=2e9, kv_bytes_per_token=1e5, latency_source="roofline",
    usd_per_mtok=0.25, batch=10.0, throughput_tok_s=1e3, limited_by="memory",
)  # fmt: skip


def test_the_formatters_are_for_the_types_that_there_are() -> None:
    formatter = Formatter()
    load_ipython_extension(SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter})))
    assert formatter.known == FORMATTERS
    for kind in (moescale.Plan, moescale.Fit, moescale.Law, moescale.Cost):
        assert (kind.__module__, kind.__qualname__) in FORMATTERS


def test_importing_inside_ipython_registers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = Formatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/html": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    before = {name: module for name, module in sys.modules.items() if name == "moescale"}
    monkeypatch.delitem(sys.modules, "moescale")
    __import__("moescale")
    sys.modules.update(before)
    assert set(formatter.known) == set(FORMATTERS)


def test_a_cost_shows_its_price() -> None:
    text = cost_html(COST)
    Balanced(text)
    assert "$0.25" in text
    assert "2 GPUs" in text
    assert "cannot be served: too &lt;large" in cost_html(
        replace(COST, usd_per_mtok=None, batch=None, infeasible="too <large")
    )


def test_a_law_and_a_fit_show_their_coefficients() -> None:
    law = find_law("hoffmann2022")
    text = law_html(replace(law, name="<b>", source="arXiv 2203.15556"))
    Balanced(text)
    assert "<strong>&lt;b&gt;</strong>" in text
    assert all(f"{value:.6g}" in text for value in law.parameters.values())
    runs = read_runs(RUNS)
    found = fit(find_form("chinchilla"), runs.n_params, runs.tokens, runs.experts, runs.loss, starts=4)
    text = fit_html(found)
    Balanced(text)
    assert f"RMSLE {found.rmsle:.4g}" in text


@pytest.mark.system
def test_a_plan_shows_its_recommendation_and_its_curves() -> None:
    matplotlib = pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[figures]'")
    assert matplotlib
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)
    plan = make_plan(find_law("yun2024-recovered"), Question(budget=Budget(5.15e21)), deployment, Roofline(gpu))
    text = plan_html(plan)
    Balanced(text)
    assert f"{plan.recommendation.model.cost_ratio:.0%}" in text
    assert text.count('<img src="data:image/svg+xml') == 1

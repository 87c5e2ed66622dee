"""Answers in a notebook: IPython is told of them by name, and gets the text of the terminal."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import moescale
from command_line import RUNS
from moescale import Budget, Deployment, Question, Roofline, find_form, find_gpu, find_law, fit, make_plan, read_runs
from moescale.serving.gpu_counts import Cost
from moescale.views.notebook import SHOWN, load_ipython_extension, text_of


class Formatter:
    """What IPython's text formatter takes."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Any] = {}

    def for_type_by_name(self, module: str, name: str, shown: Any) -> None:
        self.known[module, name] = shown


COST = Cost(
    gpus=2, n_params_total=1e9, n_params_active=5e8, weight_bytes=2e9, kv_bytes_per_token=1e5, latency_source="roofline",
    usd_per_mtok=0.25, batch=10.0, throughput_tok_s=1e3, limited_by="memory",
)  # fmt: skip


def test_the_formatters_are_for_the_types_that_there_are() -> None:
    formatter = Formatter()
    load_ipython_extension(SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/plain": formatter})))
    assert formatter.known.keys() == SHOWN
    for kind in (moescale.Plan, moescale.Fit, moescale.Law, moescale.Cost):
        assert (kind.__module__, kind.__qualname__) in SHOWN


def test_importing_inside_ipython_registers_them(monkeypatch: pytest.MonkeyPatch) -> None:
    formatter = Formatter()
    shell = SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/plain": formatter}))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    before = {name: module for name, module in sys.modules.items() if name == "moescale"}
    monkeypatch.delitem(sys.modules, "moescale")
    __import__("moescale")
    sys.modules.update(before)
    assert set(formatter.known) == set(SHOWN)


def test_a_cost_shows_its_price_and_a_law_and_a_fit_their_coefficients() -> None:
    law = find_law("hoffmann2022")
    text = text_of(replace(law, name="<b>", source="arXiv 2203.15556"))
    assert text.startswith("<b>")
    assert all(f"{name} {value:.4g}" in " ".join(text.split()) for name, value in law.parameters.items())
    runs = read_runs(RUNS)
    found = fit(find_form("chinchilla"), runs.n_params, runs.tokens, runs.experts, runs.loss, starts=4)
    assert f"RMSLE {found.rmsle:.4g}" in text_of(found)
    assert "$0.25" in text_of(COST)
    refused = replace(COST, usd_per_mtok=None, batch=None, infeasible="too <large")
    assert "2 GPUs: too <large" in text_of(refused)


@pytest.mark.system
def test_a_plan_shows_its_first_screen() -> None:
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)
    plan = make_plan(find_law("yun2024-recovered"), Question(budget=Budget(5.15e21)), deployment, Roofline(gpu))
    told: list[str] = []
    formatter = Formatter()
    load_ipython_extension(SimpleNamespace(display_formatter=SimpleNamespace(formatters={"text/plain": formatter})))
    formatter.known["moescale.planning.plan", "Plan"](plan, SimpleNamespace(text=told.append), False)
    assert told == [text_of(plan)]
    assert "> recommended" in told[0]

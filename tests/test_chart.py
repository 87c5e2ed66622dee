"""A plan's curves in letters: every expert count is named, nothing is wider than the terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.planning.allocation import Budget
from moescale.planning.plan import Plan, Question, make_plan
from moescale.scaling_laws import find_law
from moescale.serving.deployment import Deployment
from moescale.views.terminal import show_plan
from moescale.views.terminal.chart import show_chart


@pytest.fixture(scope="module")
def plan() -> Plan:
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)
    return make_plan(find_law("yun2024-recovered"), Question(budget=Budget(5.15e21)), deployment, Roofline(gpu))


def drawn(plan: Plan, width: int, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding)
    show_chart(Console(file=stream, width=width, highlight=False), plan)
    stream.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [48, 80, 120, 400])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_every_curve_is_there_and_named(plan: Plan, width: int, encoding: str) -> None:
    text = drawn(plan, width, encoding)
    assert max(map(len, text.splitlines())) <= width
    for name in ("dense", *(f"E = {c.experts:g}" for c in plan.curves if c.experts > 1)):
        assert text.count(name + "\n") == 1
    assert text.count("★" if encoding == "utf-8" else "*") == 2  # in the picture, and in the words above it


def test_a_narrow_terminal_has_no_picture(plan: Plan) -> None:
    assert drawn(plan, 40) == ""


def test_better_models_stand_lower(plan: Plan) -> None:
    names = [line.rsplit("│", 1)[1].split()[-1] for line in drawn(plan, 100).splitlines() if line.endswith(tuple("0123456789e"))
             and "│" in line and ("E = " in line or line.endswith("dense"))]  # fmt: skip
    assert names == ["dense", "4", "8", "16", "32", "64"]


def test_pipes_get_it_on_demand_only(plan: Plan) -> None:
    def shown(chart: bool | None) -> str:
        stream = io.StringIO()
        show_plan(Console(file=stream, width=100, highlight=False), plan, chart=chart)
        return stream.getvalue()

    assert "Loss against $/Mtok" not in shown(None)
    assert "Loss against $/Mtok" in shown(True)

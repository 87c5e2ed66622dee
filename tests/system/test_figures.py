"""Figures: they hold the data that they claim, look the same for the same E, and are written whole or not at all."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import LOWEST, RUNS, answer_of, run, split

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[figures]'")

from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

from moescale.fitting.canonical import RunArrays
from moescale.fitting.fit import Fit, fit
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.planning.allocation import Budget
from moescale.planning.plan import Plan, Question, make_plan
from moescale.planning.plan_file import parse_plan
from moescale.runs.table import read_runs
from moescale.scaling_laws import find_form, find_law
from moescale.serving.deployment import Deployment
from moescale.views.figures import fit_figure, plan_figure, save_figure
from moescale.views.figures.style import CATEGORIES, colour_of, colour_on_dark, marker_of
from moescale.views.tables.answer import cheaper


@pytest.fixture(scope="module")
def runs() -> RunArrays:
    table = read_runs(RUNS)
    return RunArrays(table.n_params, table.tokens, table.experts, table.loss, {})


@pytest.fixture(scope="module")
def found(runs: RunArrays) -> Fit:
    return fit(find_form("yun2024"), runs.n_params, runs.tokens, runs.experts, runs.loss, starts=8)


@pytest.fixture(scope="module")
def plan() -> Plan:
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(
        gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0, max_gpus=8, max_num_seqs=None,
        memory_fraction=0.9, utilization=1.0, weight_bytes_per_param=2.0,
    )  # fmt: skip
    law = find_law("yun2024-recovered")
    return make_plan(law, Question(budget=Budget(5.15e21)), deployment, Roofline(gpu, 2.0, 2.0))


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text()]


def scatter_points(figure: Figure) -> list[int]:
    from matplotlib.collections import PathCollection

    return [
        sum(len(np.asarray(c.get_offsets())) for c in ax.collections if isinstance(c, PathCollection))
        for ax in figure.findobj(Axes)
        if isinstance(ax, Axes)
    ]


def drawn_texts(figure: Figure) -> list[tuple[str, Bbox]]:
    """What a reader sees written, with the box that it covers, in pixels."""
    seen: list[tuple[str, Bbox]] = []
    whole = Text.draw

    def record(self: Text, renderer: RendererBase) -> None:
        if self.get_visible() and self.get_text().strip():
            seen.append((self.get_text(), Text.get_window_extent(self, renderer)))  # an annotation's without its arrow
        whole(self, renderer)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Text, "draw", record)
        figure.canvas.draw()
    return seen


def overlapping(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts that cover each other by more than a hair."""
    hits: list[tuple[str, str]] = []
    boxes = drawn_texts(figure)
    for i, (a, x) in enumerate(boxes):
        for b, y in boxes[i + 1 :]:
            if min(x.x1, y.x1) - max(x.x0, y.x0) > 1.0 and min(x.y1, y.y1) - max(x.y0, y.y0) > 1.0:
                hits.append((a, b))
    return hits


def off_the_page(figure: Figure) -> list[str]:
    """Texts that the edge of the page cuts."""
    page = figure.bbox.padded(0.5)
    return [
        text for text, box in drawn_texts(figure)
        if box.x0 < page.x0 or box.x1 > page.x1 or box.y0 < page.y0 or box.y1 > page.y1
    ]  # fmt: skip


@pytest.fixture(scope="module")
def figures(found: Fit, runs: RunArrays, plan: Plan) -> dict[str, Figure]:
    return {"fit": fit_figure(found, runs), "plan": plan_figure(plan)}


NAMES = ("fit", "plan")


def test_an_expert_count_has_one_colour_and_marker_and_neighbours_differ() -> None:
    counts = [2.0**k for k in range(10)]
    assert len({colour_of(e) for e in counts}) == len({marker_of(e) for e in counts}) == 10
    assert all(re.fullmatch("#[0-9a-f]{6}", colour_of(e)) for e in (1, 3, 6.5, 100, 1e9))
    assert colour_of(0.5) == colour_of(1)
    assert colour_of(4096) == colour_of(512)


def lightness(colour: str) -> float:
    """CIE L* of a colour, 0 to 100."""
    linear = [
        (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
        for v in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    ]
    y = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y


def test_colours_of_a_dark_page_are_light_and_else_the_same() -> None:
    for experts in np.geomspace(1, 512, 40):
        parts = [int(colour_on_dark(experts)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert 0.299 * parts[0] + 0.587 * parts[1] + 0.114 * parts[2] >= 0.495
    assert colour_on_dark(128) == colour_of(128)


def test_colours_rise_in_lightness_so_that_order_survives_grey_print_and_colour_blindness() -> None:
    shades = [lightness(colour_of(e)) for e in np.geomspace(1, 512, 40)]
    assert all(b > a for a, b in itertools.pairwise(shades))
    assert shades[-1] < 90  # paper is 100
    assert len(set(CATEGORIES)) == 8


@pytest.mark.parametrize("name", NAMES)
def test_texts_neither_overlap_nor_leave_the_page(figures: dict[str, Figure], name: str) -> None:
    assert overlapping(figures[name]) == []
    assert off_the_page(figures[name]) == []


def test_fit_figure_shows_every_run_and_residual_in_its_colour(figures: dict[str, Figure], runs: RunArrays) -> None:
    figure = figures["fit"]
    points = scatter_points(figure)
    assert points == [25, 25, 25, 25, 100, 100, 100]  # four sizes, then residuals against D, N and E
    words = texts(figure)
    assert {"training tokens D", "loss (nats per token)", "size N (parameters)", "experts E"} <= set(words)
    assert {"dense", "E = 4", "E = 8", "E = 16", "E = 32"} <= set(words)
    assert "N = 81.4M" in words
    drawn = {to_hex(c) for ax in figure.findobj(Axes) for m in ax.collections for c in m.get_facecolor()}  # type: ignore[union-attr]
    assert {colour_of(e) for e in np.unique(runs.experts)} <= drawn


def test_fit_figure_lines_are_the_law(figures: dict[str, Figure], found: Fit, runs: RunArrays) -> None:
    first = figures["fit"].findobj(Axes)[0]
    assert isinstance(first, Axes)
    from moescale.scaling_laws import make_inputs

    n = float(runs.n_params.min())
    lines = {str(line.get_color()): line for line in first.get_lines()}
    for e in np.unique(runs.experts):
        x, y = (np.asarray(v, dtype=float) for v in lines[colour_of(float(e))].get_data())
        np.testing.assert_allclose(y, np.exp(found.form.log_loss(found.theta, make_inputs(n, x, float(e)))))
        assert (x.min(), x.max()) == pytest.approx((runs.tokens.min(), runs.tokens.max()))


def test_one_run_size_and_no_experts_draw(runs: RunArrays) -> None:
    few = runs.where((runs.n_params == runs.n_params.min()) & (runs.experts == 1))
    alone = fit(find_form("chinchilla"), few.n_params, few.tokens, few.experts, few.loss, starts=4)
    assert scatter_points(fit_figure(alone, few)) == [5, 5, 5, 5]


def test_plan_figure_shows_curves_optima_base_and_recommendation(figures: dict[str, Figure], plan: Plan) -> None:
    (ax,) = figures["plan"].get_axes()
    assert "US$ per million output tokens" in ax.get_xlabel()
    assert "nats per token" in ax.get_ylabel()
    colours = {str(line.get_color()) for line in ax.get_lines()}
    assert {colour_of(c.experts) for c in plan.loss_optimal} <= colours
    words = " ".join(texts(figures["plan"]))
    model = plan.recommendation.model
    assert f"recommended: E = {model.experts:g}, " in words
    assert f"baseline (loss {plan.base_loss:.4f}, " in words
    assert {f"E = {e:g} (excluded)" for e in plan.excluded_experts} <= set(texts(figures["plan"]))
    assert "dense" in words
    assert f"{cheaper(plan.built_base.usd_per_mtok / model.usd_per_mtok)}" in words  # along the arrow from the baseline
    ends = [tuple(t.xyann) + t.xy for t in ax.texts if isinstance(t, Annotation) and not t.get_text()]
    assert ends == [(plan.built_base.usd_per_mtok, plan.built_base.loss, model.usd_per_mtok, model.loss)]
    stars = [line for line in ax.get_lines() if line.get_marker() == "*"]
    assert [tuple(np.ravel(line.get_data())) for line in stars] == [(model.usd_per_mtok, model.loss)]


def test_a_plan_of_a_file_is_drawn_as_it_was_made(plan: Plan) -> None:
    stored = parse_plan(json.loads(json.dumps(plan.to_dict())), where="plan")
    axes = [plan_figure(each).get_axes()[0] for each in (plan, stored)]
    # a file has what is served
    lines = [[np.isfinite(line.get_xdata()).sum() for line in ax.get_lines()] for ax in axes]
    assert lines[0] == lines[1]


@pytest.mark.parametrize("suffix", [".svg", ".png", ".pdf"])
def test_the_same_result_gives_the_same_bytes(tmp_path: Path, plan: Plan, suffix: str) -> None:
    first = save_figure(plan_figure(plan), tmp_path / f"a{suffix}").read_bytes()
    second = save_figure(plan_figure(plan), tmp_path / f"b{suffix}").read_bytes()
    assert first == second
    assert {".svg": b"<?xml", ".png": b"\x89PNG", ".pdf": b"%PDF"}[suffix] == first[: {".svg": 5}.get(suffix, 4)]
    if suffix == ".svg":
        assert b"dc:date" not in first


def test_a_failure_while_drawing_keeps_the_old_file(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.svg").write_text("old")
    figure = plan_figure(plan)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("drawing fails")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(RuntimeError, match="drawing fails"):
        save_figure(figure, tmp_path / "plan.svg")
    assert (tmp_path / "plan.svg").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_drawing_leaves_the_callers_style_alone(plan: Plan) -> None:
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    plan_figure(plan)
    assert dict(mpl.rcParams) == before


def test_names_with_dollar_signs_are_not_formulas(tmp_path: Path, plan: Plan) -> None:
    odd = plan_figure(replace(plan, law=r"a$\bad{$b_"))
    assert save_figure(odd, tmp_path / "a.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    "line",
    ["fit RUNS --law chinchilla --starts 2", shlex.join(LOWEST)],
)
def test_the_command_line_draws(line: str, tmp_path: Path) -> None:
    assert answer_of(*split(line), "--plot", tmp_path / "figure.svg")
    assert (tmp_path / "figure.svg").read_bytes().startswith(b"<?xml")
    for name, words in (("figure.gif", "nearest: figure.svg"), ("missing/figure.svg", "does not exist")):
        found = run(*split(line), "--plot", tmp_path / name, "--json")
        assert (found.code, words in found.err) == (2, True)
    assert [p.name for p in tmp_path.iterdir()] == ["figure.svg"]
    if line.startswith("plan"):  # all tables are made for a figure, and the first screen is the same
        assert run(*split(line), "--plot", tmp_path / "figure.svg") == run(*split(line))


def test_without_matplotlib_the_message_says_how_to_get_it(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from moescale.cli import main\n"
        f"main(['plan', '--budget', '1e21', '--plot', {str(tmp_path / 'a.svg')!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == (
        "moescale: --plot: figures need matplotlib, which is not installed; pip install '.[figures]' in a clone of moescale\n"
    )
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []

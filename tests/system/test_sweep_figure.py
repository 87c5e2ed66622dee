"""The figure of a sweep: it holds every Pareto set that it claims, names them, and is readable."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="figures need matplotlib: pip install '.[figures]'")

from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from test_figures import off_the_page, overlapping
from test_sweep import platform

from families import PAPER
from moescale.cli import main
from moescale.hardware.gpus import find_gpu
from moescale.models.family import architecture
from moescale.models.published import shapes
from moescale.serving.deployment import Deployment
from moescale.serving.operating_points import OperatingPoints, operating_points
from moescale.views.figures import CATEGORIES, save_figure, sweep_figure

PLAIN = Deployment(gpu=find_gpu("h100-sxm"), usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)


def points_on(cards: tuple[str, ...], weights: tuple[str, ...] = ("bf16", "fp8")) -> OperatingPoints:
    kinds = [platform(*names) for names in product(cards, weights, ("bf16", "fp8"))]
    return operating_points(shapes()["mixtral-8x7b"], kinds, PLAIN)


@pytest.fixture(scope="module")
def of_cards() -> OperatingPoints:
    return points_on(("a100-sxm-80gb", "h100-sxm", "l40s"))


@pytest.fixture(scope="module")
def of_formats() -> OperatingPoints:
    return points_on(("h100-sxm",), ("bf16", "fp8", "int4"))


def lines_of(figure: Figure) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """The points of each line of more than one point by its colour."""
    found: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for line in figure.axes[0].lines:
        x, y = (np.asarray(v, dtype=float) for v in line.get_data())
        if x.size > 1:
            found.setdefault(to_hex(line.get_color()).upper(), []).append((x, y))
    return found


def texts(figure: Figure) -> list[str]:
    return [t.get_text() for t in figure.findobj(Text) if isinstance(t, Text) and t.get_text()]


def test_a_line_is_the_pareto_set_of_its_gpu(of_cards: OperatingPoints) -> None:
    figure = sweep_figure(of_cards)
    drawn = lines_of(figure)
    for place, name in enumerate(("a100-sxm-80gb", "h100-sxm", "l40s")):
        mine = np.asarray([of_cards.platforms[i].gpu.name == name for i in of_cards.platform])
        own = of_cards.frontier(mine)
        ((x, y),) = drawn[CATEGORIES[place].upper()]
        np.testing.assert_array_equal(x, 1e3 * of_cards.tpot_s[own])
        np.testing.assert_array_equal(y, of_cards.usd_per_mtok[own])
        assert name in texts(figure)
    ((x, _),) = drawn["#BDBDBD"]
    np.testing.assert_array_equal(x, 1e3 * of_cards.tpot_s[of_cards.pareto])
    dots = sum(len(c.get_offsets()) for c in figure.axes[0].collections)
    assert dots == len(of_cards)


def test_one_gpu_has_a_line_for_each_number_format(of_formats: OperatingPoints) -> None:
    told = texts(sweep_figure(of_formats))
    names = [f"{w} / {c}" for w, c in product(("bf16", "fp8", "int4"), ("bf16", "fp8"))]
    assert [name for name in names if name not in told] == []
    assert any("names: weights / cache" in text for text in told)


def test_dots_carry_the_gpu_count_of_their_point(of_cards: OperatingPoints) -> None:
    ax = sweep_figure(of_cards).axes[0]
    dots = [line for line in ax.lines if line.get_marker() == "o"]
    notes = [t for t in ax.texts if t.get_text().isdigit()]
    assert len(dots) == len(notes) >= 6
    for dot, note in zip(dots, notes, strict=True):
        (x,), (y,) = dot.get_data()
        at = np.flatnonzero((1e3 * of_cards.tpot_s == x) & (of_cards.usd_per_mtok == y))
        assert note.xy == (x, y)
        assert {f"{g:.0f}" for g in of_cards.gpus[at]} == {note.get_text()}


def test_the_upper_axis_is_the_inverse_of_the_lower(of_cards: OperatingPoints) -> None:
    figure = sweep_figure(of_cards)
    figure.draw_without_rendering()
    (upper,) = figure.axes[0].child_axes
    low, high = figure.axes[0].get_xlim()
    assert sorted(upper.get_xlim()) == pytest.approx([1e3 / high, 1e3 / low])
    assert upper.get_xlabel() == "tokens a second for each user"


@pytest.mark.parametrize("which", ["of_cards", "of_formats", "one"])
def test_texts_neither_overlap_nor_leave_the_page(
    which: str, of_cards: OperatingPoints, of_formats: OperatingPoints
) -> None:
    one = operating_points(architecture(PAPER, 1.5e9, 16.0), [platform("l40s", "bf16", "bf16")], PLAIN, batch_caps=[4])
    figure = sweep_figure({"of_cards": of_cards, "of_formats": of_formats, "one": one}[which])
    assert overlapping(figure) == []
    assert off_the_page(figure) == []


def test_the_same_points_give_the_same_bytes(of_formats: OperatingPoints, tmp_path: Path) -> None:
    first = save_figure(sweep_figure(of_formats), tmp_path / "a.svg").read_bytes()
    assert first == save_figure(sweep_figure(of_formats), tmp_path / "b.svg").read_bytes()


def test_many_points_stay_a_small_file(tmp_path: Path) -> None:
    kinds = [platform("h100-sxm", "bf16", "bf16")]
    points = operating_points(architecture(PAPER, 1.5e9, 16.0), kinds, PLAIN, batch_caps=np.arange(1.0, 2000.0))
    assert len(points) > 5000
    assert save_figure(sweep_figure(points), tmp_path / "many.svg").stat().st_size < 2e6


def test_more_lines_than_colours_differ_in_their_dashes() -> None:
    cards = [replace(find_gpu("h100-sxm"), name=f"card {n}") for n in range(9)]
    formats = product(("bf16", "fp8", "int4"), ("bf16", "fp8", "int4"))
    plain = [platform("h100-sxm", weights, cache) for weights, cache in formats]
    kinds = [
        replace(kind, gpu=card, latency=replace(kind.latency, gpu=card))
        for kind, card in zip(plain, cards, strict=True)
    ]
    figure = sweep_figure(operating_points(architecture(PAPER, 1.5e9, 16.0), kinds, PLAIN, gpus=[1, 2]))
    looks = [(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines if len(line.get_xdata()) > 1]
    assert len(set(looks)) == len(looks) == 10


def test_the_command_draws(tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    main(["cost", "--n-params", "1.5B", "--experts", "16", "--latency", "roofline", "--sweep", "--plot", str(path)])
    assert path.read_bytes().startswith(b"<?xml")

"""A reproduction as files: the claims as JSON, every figure of the paper as SVG, PDF, PNG, and its data as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from moescale.errors import InputError, unknown_name
from moescale.io.files import make_folder, write_atomically
from moescale.reproduction import figures, series
from moescale.reproduction.evaluate import Outcome
from moescale.reproduction.series import Row
from moescale.reproduction.world import World
from moescale.views.figures import SUFFIXES, check_plot, save_figure
from moescale.views.figures.style import house_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _bounded(bound: Literal["loss", "cost"]) -> Callable[[World], list[Row]]:
    return lambda world: [row for base in series.BASES for row in series.bounded(world, bound, base)]


# The records of each figure of the paper, and its drawing.
FIGURES: Mapping[str, tuple[Callable[[World], list[Row]], Callable[[Sequence[Row]], Figure]]] = {
    "1": (series.fitted_losses, figures.fitted_figure),
    "2": (series.cost_by_size, figures.cost_figure),
    "3": (series.trade_off, figures.trade_off_figure),
    "4": (series.budget_curves, figures.curves_figure),
    "5": (_bounded("loss"), figures.bounded_figure),
    "6": (_bounded("cost"), figures.bounded_figure),
    "8": (lambda _: series.hidden_layers(), figures.hidden_layers_figure),
}
VERDICT = "verdict"  # a figure of this project's own


def check_figure(name: str) -> None:
    """InputError unless `name` is one of FIGURES or VERDICT."""
    if name == "7":
        raise InputError("figure 7 of the paper shows a layer, not a result", nearest="6, 8")
    if name not in (*FIGURES, VERDICT):
        raise unknown_name("figure", name, (*FIGURES, VERDICT))


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be made, and an install without matplotlib."""
    make_folder(folder)
    check_plot(folder / "figure.svg")


def drawn(
    names: Iterable[str], world: World, outcomes: Sequence[Outcome], beside: Sequence[Outcome]
) -> Iterator[tuple[str, Figure, list[Row]]]:
    """Figures by name, each with its records; `beside` holds the claims on another server."""
    for name in names:
        if name == VERDICT:
            rows, draw = series.verdict(outcomes, beside), figures.verdict_figure
        else:
            of, draw = FIGURES[name]
            rows = of(world)
        with house_style():
            figure = draw(rows)
        yield name if name == VERDICT else f"figure-{name}", figure, rows


def publish(
    folder: Path, made: Iterable[tuple[str, Figure, list[Row]]], outcomes: Sequence[Outcome] | None = None
) -> list[Path]:
    """Write each figure with its data, and the claims where they were evaluated; the files' paths. Raises as `check_folder`."""
    check_folder(folder)
    written: list[Path] = []
    if outcomes is not None:
        claims = json.dumps([o.to_dict() for o in outcomes], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        written.append(write_atomically(folder / "claims.json", claims.encode()))
    for name, figure, rows in made:
        written += [save_figure(figure, folder / f"{name}{suffix}") for suffix in SUFFIXES]
        written.append(write_atomically(folder / f"{name}.csv", csv_text(rows).encode()))
    return written


def csv_text(rows: Sequence[Row]) -> str:
    """Records as CSV with every column that any of them has; numbers to the last digit, NaN as an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: v for k, v in row.items() if not (isinstance(v, float) and math.isnan(v))} for row in rows)
    return out.getvalue()

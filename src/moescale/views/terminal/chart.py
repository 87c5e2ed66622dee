"""Loss against cost as a picture of letters: a curve of braille dots for each expert count, named at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.units import expert_label
from moescale.views.figures.axes import tick_places
from moescale.views.figures.labels import spread_apart
from moescale.views.figures.plan import plan_limits
from moescale.views.figures.style import ACCENT, colour_of, on_any
from moescale.views.terminal.text import encodable, write_line, write_paragraph

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.planning.plan import Plan
    from moescale.typing import FloatArray

ROWS = 18
MARGIN = 8  # of the losses on the left
NAMES = 9  # of the expert counts on the right
DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # of a braille letter, by row and column


def show_chart(console: Console, plan: Plan) -> None:
    """The curves of a plan, its loss-optimal sizes (o) and its recommendation (★); nothing where there is no room."""
    width = min(console.width, 110) - MARGIN - NAMES
    if console.width < 48 or not plan.curves:
        return
    (left, right), (low, high) = plan_limits(plan)
    braille = encodable(console, "⣿") == "⣿"
    dots = np.zeros((ROWS, width), dtype=int)
    cells: dict[tuple[int, int], tuple[str, str]] = {}  # letter and colour by row and column
    ends: list[tuple[float, str, str]] = []

    def places(cost: FloatArray, loss: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Columns and rows in letters, as real numbers."""
        across = np.log(cost / left) / math.log(right / left) * width
        return across, (high - loss) / (high - low) * ROWS

    for curve in plan.curves:
        known = np.isfinite(curve.usd_per_mtok)
        if known.sum() < 2:
            continue
        x, y = places(curve.usd_per_mtok[known], curve.loss[known])
        at = np.linspace(0.0, x.size - 1.0, 40 * width)  # dense enough for steep stretches
        x, y = (np.interp(at, np.arange(x.size), values) for values in (x, y))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < ROWS)
        colour = on_any(colour_of(curve.experts))
        for column, row in zip((2 * x[inside]).astype(int).tolist(), (4 * y[inside]).astype(int).tolist(), strict=True):
            cell = (row // 4, column // 2)
            dots[cell] |= DOTS[row % 4][column % 2]
            cells[cell] = (chr(0x2800 + int(dots[cell])) if braille else ".", colour)
        if inside.any():
            ends.append((float(y[inside][-1]), expert_label(curve.experts), colour))
    model = plan.recommendation.model
    marks = [(c, "o", on_any(colour_of(c.experts))) for c in plan.loss_optimal]
    for c, letter, colour in [*marks, (model, "★" if braille else "*", on_any(ACCENT))]:
        if c.usd_per_mtok is not None:
            across, up = places(np.array(c.usd_per_mtok), np.array(c.loss))
            if 0 <= across < width and 0 <= up < ROWS:
                cells[int(up), int(across)] = (letter, colour)
    _print(console, cells, ends, width, (low, high), braille)
    _costs(console, left, right, width)


def _print(
    console: Console,
    cells: dict[tuple[int, int], tuple[str, str]],
    ends: Sequence[tuple[float, str, str]],
    width: int,
    losses: tuple[float, float],
    braille: bool,
) -> None:
    from rich.text import Text

    low, high = losses
    heights = np.array(spread_apart([row for row, *_ in ends], 1.0)) if ends else np.zeros(0)
    heights -= max(0.0, float(heights.max(initial=0.0)) - ROWS + 1.0)
    names = {math.floor(row): (name, colour) for row, (_, name, colour) in zip(heights, ends, strict=True)}
    star = "★" if braille else "*"
    write_line(console)
    write_paragraph(console, f"{star} recommended, o loss-optimal, left of o: over-trained", lead="Loss against $/Mtok")
    for row in range(ROWS):
        loss = high - (row + 0.5) / ROWS * (high - low)
        line = Text(f"{loss:{MARGIN - 2}.3f} " if row % 4 == 1 else " " * (MARGIN - 1))
        line.append("│" if braille else "|")
        for column in range(width):
            letter, colour = cells.get((row, column), (" ", ""))
            line.append(letter, colour)
        name, colour = names.get(row, ("", ""))
        line.append(f" {name}", colour)
        line.rstrip()
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    rule, corner = ("─", "└") if braille else ("-", "+")
    write_line(console, " " * (MARGIN - 1) + corner + rule * width)


def _costs(console: Console, left: float, right: float, width: int) -> None:
    """Round costs below the axis, as many as have room."""
    line = [" "] * (MARGIN + width + NAMES)
    for usd in tick_places(left, right, max(2, width // 12)):
        text = f"${usd:g}"
        start = MARGIN + int(math.log(usd / left) / math.log(right / left) * width) - len(text) // 2
        if all(letter == " " for letter in line[max(0, start - 1) : start + len(text) + 1]):
            line[start : start + len(text)] = text
    write_line(console, "".join(line))

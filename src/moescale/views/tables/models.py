"""Published models as tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from moescale.units import format_count, format_flops
from moescale.views.tables import MARK, Cell, Column, Table, percentage, reason_lines, table_of
from moescale.views.tables.plan import SERVING, SIZES

if TYPE_CHECKING:
    from moescale.planning.compare_models import ComparedModel
    from moescale.planning.known import KnownRow
    from moescale.planning.plan import Plan


def known_table(plan: Plan) -> Table:
    """The known models that a plan was asked about, against its frontier."""
    cells: tuple[Cell[KnownRow], ...] = (
        (Column("", text=True), lambda c: c.name),
        (Column("active"), lambda c: format_count(c.n_params_active)),
        *SIZES[2:],
        (Column("FLOPs", rank=1), lambda c: format_flops(c.training_flops)),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        *SERVING,
        (Column("loss vs frontier"), lambda c: _more(c.loss_ratio_to_frontier)),
        (Column("cost vs frontier"), lambda c: percentage(c.cost_ratio_to_frontier)),
    )
    unserved = reason_lines((c.name, c.infeasible) for c in plan.known if c.infeasible)
    return table_of("Published models under this law", plan.known, cells, notes=(*beyond_notes(plan.known), *unserved))


def beyond_notes(models: Iterable[KnownRow | ComparedModel]) -> tuple[str, ...]:
    """Of which models a law may not speak, and why, a line for each reason."""
    return tuple(f"{MARK} {line}" for line in reason_lines((c.name, c.beyond_law) for c in models if c.beyond_law))


def _more(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio - 1.0:+.1%}"

"""Published models as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from moescale.units import format_count, format_flops, format_seconds, format_usd
from moescale.views.tables import MARK, Cell, Column, Table, gpus_text, percentage, reason_lines, span_text, table_of
from moescale.views.tables.plan import SERVING, SIZES

if TYPE_CHECKING:
    from moescale.planning.compare_models import ComparedModel
    from moescale.planning.known import KnownRow
    from moescale.planning.plan import Plan

BREAK_EVENS = 3


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


def compared_table(models: Sequence[ComparedModel]) -> Table:
    """Models side by side, a column each; the last go first where there is no room."""
    facts: tuple[Cell[ComparedModel], ...] = (
        (Column("active parameters"), lambda c: format_count(c.n_params_active)),
        (Column("total parameters"), lambda c: format_count(c.n_params_total)),
        (Column("expansion X"), lambda c: f"{c.expansion:.3g}"),
        (Column("training tokens"), lambda c: format_count(c.tokens)),
        (Column("training FLOPs"), lambda c: format_flops(c.training_flops)),
        (Column("GPU days"), lambda c: _or_dash(c.gpu_days, format_count)),
        (Column("training $"), lambda c: _or_dash(c.training_usd, format_usd)),
        (
            Column("  MFU"),
            lambda c: _or_dash(c.mfu, "{:.2f}".format) + (f" {c.mfu_from}" if c.mfu_from == "assumed" else ""),
        ),
        (Column("loss"), lambda c: f"{c.loss:.4f}{MARK if c.beyond_law else ''}"),
        (Column("  90% interval"), lambda c: span_text(c.loss_interval, ".3f")),
        (Column("  vs the first model"), lambda c: _or_dash(c.loss_change, "{:+.1%}".format)),
        (Column("    90% interval"), lambda c: span_text(c.loss_change_interval, "+.1%")),
        (Column("  P(loss <= the first)"), lambda c: _or_dash(c.probability_better, "{:.0%}".format)),
        (Column("$/Mtok"), lambda c: _or_dash(c.usd_per_mtok, format_usd)),
        (Column("GPUs"), lambda c: gpus_text(c.gpus, c.attention_dp)),
        (Column("batch"), lambda c: _or_dash(c.batch, "{:.0f}".format)),
        (Column("TPOT"), lambda c: _or_dash(c.tpot_s, format_seconds)),
        (Column("total $"), lambda c: _or_dash(c.total_usd, format_usd)),
    )
    rows = [[fact.head, *(text(model) for model in models)] for fact, text in facts]
    columns = [Column(c.name, rank=i if i > 1 else 0) for i, c in enumerate(models)]
    unserved = reason_lines((c.name, c.infeasible) for c in models if c.infeasible)
    assumed = [f"{c.name}: MFU {c.mfu:g} assumed, as no split holds it" for c in models if c.mfu_from == "assumed"]
    return Table(
        "",
        (Column("", text=True), *columns),
        [row for row in rows if any(text.strip("-") for text in row[1:])],
        notes=(*beyond_notes(models), *assumed, *unserved),
    )


def break_even_lines(models: Sequence[ComparedModel]) -> tuple[str, ...]:
    """Served tokens after which models that cost more to train break even, the soonest first."""
    told = sorted((tokens, c.name, other) for c in models for other, tokens in (c.break_even_tokens or {}).items())
    more = len(told) - BREAK_EVENS
    return (
        *(
            f"{name} costs more to train and less to serve than {other}: it breaks even after {format_count(tokens)} "
            "output tokens."
            for tokens, name, other in told[:BREAK_EVENS]
        ),
        *([f"{more} more pairs with --json."] if more > 0 else []),
    )


def _or_dash(value: float | None, text: Callable[[float], str]) -> str:
    return "-" if value is None else text(value)


def beyond_notes(models: Iterable[KnownRow | ComparedModel]) -> tuple[str, ...]:
    """Of which models a law may not speak, and why, a line for each reason."""
    return tuple(f"{MARK} {line}" for line in reason_lines((c.name, c.beyond_law) for c in models if c.beyond_law))


def _more(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio - 1.0:+.1%}"

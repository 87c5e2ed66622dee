"""Serving as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.units import format_seconds, format_usd, plural
from moescale.views.tables import Cell, Column, Table, reason_lines, table_of

if TYPE_CHECKING:
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.workload import Answer

LIMITED_BY = {"optimum": "lowest cost", "max_num_batched_tokens": "tokens per pass"}
BROKEN = {"max_ttft": "TTFT limit", "max_tpot": "TPOT limit"}


def cost_table(cost: Cost, *, priced: bool = True) -> Table:
    """Each GPU count that was looked at, in the closed loop where there is one; without dollars where there is no price."""
    looked_at = cost.candidates or (cost,)
    rows: list[tuple[Cost, Cost | Answer, float]] = [
        (c, c.closed_loop or c, c.closed_loop.output_tok_s if c.closed_loop else c.throughput_tok_s or 0.0)
        for c in looked_at
        if (c.closed_loop if cost.closed_loop else c.batch) is not None and c.usd_per_mtok is not None
    ]

    def last(c: Cost) -> str:
        breaks = c.closed_loop is not None and not c.closed_loop.meets_limits
        cheapest = "<- cheapest" if c.gpus == cost.gpus else ""
        return ", ".join(filter(None, (cheapest, "breaks a limit" if breaks else "")))

    limited: Cell[tuple[Cost, Cost | Answer, float]] = (
        Column("batch limited by", text=True),
        lambda r: BROKEN.get(r[0].latency_limit or "", LIMITED_BY.get(r[0].limited_by or "", r[0].limited_by or "")),
    )
    if cost.closed_loop is not None:
        limited = (Column("request time", rank=2), lambda r: format_seconds(getattr(r[1], "e2e_s", 0.0)))
    usd: Cell[tuple[Cost, Cost | Answer, float]] = (Column("$/Mtok"), lambda r: format_usd(r[1].usd_per_mtok or 0.0))
    return table_of(
        "",
        rows,
        (
            (Column("GPUs"), lambda r: f"{r[0].gpus}"),
            *((usd,) if priced else ()),
            (Column("batch"), lambda r: f"{r[1].batch:.0f}"),
            (Column("output tok/s"), lambda r: f"{r[2]:,.0f}"),
            (Column("TTFT"), lambda r: format_seconds(r[1].ttft_s or 0.0)),
            (Column("TPOT"), lambda r: format_seconds(r[1].tpot_s or 0.0)),
            limited,
            (Column("", text=True), lambda r: last(r[0])),
        ),
        notes=reason_lines((plural(c.gpus, "GPU"), c.infeasible) for c in looked_at if c.infeasible),
    )

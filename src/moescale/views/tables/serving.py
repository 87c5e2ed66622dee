"""Serving as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.units import format_seconds, format_usd, plural
from moescale.views.tables import Cell, Column, Table, gpus_text, reason_lines, table_of

if TYPE_CHECKING:
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.operating_points import LeftOut, OperatingPoints, Platform
    from moescale.serving.workload import Answer
    from moescale.typing import FloatArray

SWEEP_ROWS = 16


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
        cheapest = "<- cheapest" if (c.gpus, c.attention_dp) == (cost.gpus, cost.attention_dp) else ""
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
            (Column("GPUs"), lambda r: gpus_text(r[0].gpus, r[0].attention_dp)),
            *((usd,) if priced else ()),
            (Column("batch"), lambda r: f"{r[1].batch:.0f}"),
            (Column("output tok/s"), lambda r: f"{r[2]:,.0f}"),
            (Column("TTFT"), lambda r: format_seconds(r[1].ttft_s or 0.0)),
            (Column("TPOT"), lambda r: format_seconds(r[1].tpot_s or 0.0)),
            limited,
            (Column("", text=True), lambda r: last(r[0])),
        ),
        notes=reason_lines((_server(c), c.infeasible) for c in looked_at if c.infeasible),
    )


def _server(c: Cost) -> str:
    groups = "" if c.attention_dp is None else f" in {plural(c.attention_dp, 'attention group')}"
    return plural(c.gpus, "GPU") + groups


def pareto_table(points: OperatingPoints) -> Table:
    """The ways to serve a model that no other beats in cost and time."""
    p, front = points, points.pareto
    on: list[Platform] = [p.platforms[int(i)] for i in p.platform]
    shown = _evenly_spread(np.log(p.tpot_s[front]), SWEEP_ROWS)
    part = f" ({len(shown)} of {len(front)}; all with --json)" if len(shown) < len(front) else ""
    cells: list[Cell[int]] = [
        (Column("GPUs"), lambda i: f"{p.gpus[i]:.0f}"),
        (Column("EP"), lambda i: f"{p.expert_parallel[i]:.0f}"),
        (Column("weights", text=True), lambda i: on[i].weights.name),
        (Column("cache", text=True), lambda i: on[i].kv_cache.name),
        (Column("batch"), lambda i: f"{p.batch[i]:.0f}"),
        (Column("TPOT"), lambda i: format_seconds(float(p.tpot_s[i]))),
        (Column("tok/s/user"), lambda i: rate_text(float(p.tok_s_per_user[i]))),
        (Column("$/Mtok"), lambda i: format_usd(float(p.usd_per_mtok[i]))),
        (Column("output tok/s", rank=2), lambda i: f"{p.throughput_tok_s[i]:,.0f}"),
        (Column("TTFT", rank=3), lambda i: format_seconds(float(p.ttft_s[i]))),
    ]
    if not np.any(p.expert_parallel > 1):
        del cells[1]
    if len({k.gpu.name for k in p.platforms}) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda i: on[i].gpu.name))
    title = f"Pareto set of {len(p):,} operating points{part}"
    return table_of(title, [int(front[j]) for j in shown], cells)


def platform_table(points: OperatingPoints) -> Table:
    """What each GPU and number format can do alone: its cheapest point and its fastest."""
    p = points
    fronts = [(kind, p.frontier(p.platform == k).tolist()) for k, kind in enumerate(p.platforms)]
    ends = [(kind, front[-1], front[0]) for kind, front in fronts if front]
    cells: list[Cell[tuple[Platform, int, int]]] = [
        (Column("weights", text=True), lambda x: x[0].weights.name),
        (Column("cache", text=True), lambda x: x[0].kv_cache.name),
        (Column("$/Mtok"), lambda x: format_usd(float(p.usd_per_mtok[x[1]]))),
        (Column("GPUs"), lambda x: f"{p.gpus[x[1]]:.0f}"),
        (Column("batch"), lambda x: f"{p.batch[x[1]]:.0f}"),
        (Column("tok/s/user"), lambda x: rate_text(float(p.tok_s_per_user[x[1]]))),
        (Column("fastest", rank=1), lambda x: rate_text(float(p.tok_s_per_user[x[2]]))),
        (Column("GPUs", rank=1), lambda x: f"{p.gpus[x[2]]:.0f}"),
        (Column("$/Mtok", rank=1), lambda x: format_usd(float(p.usd_per_mtok[x[2]]))),
    ]
    if len({k.gpu.name for k in p.platforms}) > 1:
        cells.insert(0, (Column("GPU", text=True), lambda x: x[0].gpu.name))
    return table_of("Cheapest and fastest point of each format", ends, cells)


def left_out_lines(points: OperatingPoints) -> tuple[str, ...]:
    """What has no answer; of several GPU counts with one cause, the reason of the largest."""
    groups: dict[tuple[str, str], list[LeftOut]] = {}
    for entry in sorted(points.left_out, key=lambda e: e.gpu is not None):  # what holds for all first
        formats = f" {entry.weights}/{entry.kv_cache}" if entry.weights and entry.kv_cache else ""
        who = [f"{entry.gpu}{formats}"] if entry.gpu else []
        if entry.expert_parallel is not None:
            who.append(f"expert-parallel {entry.expert_parallel}")
        if entry.max_num_seqs is not None:
            who.append("larger batches")
        groups.setdefault((", ".join(who), entry.cause or entry.reason), []).append(entry)
    told: list[tuple[str, str]] = []
    for (who, _), entries in groups.items():
        counts = list(dict.fromkeys(entry.gpus for entry in entries if entry.gpus is not None))
        on = f"{_few(counts)} GPU{'' if counts == [1] else 's'}" if counts else ""
        told.append((" on ".join(filter(None, (who, on))), entries[-1].reason))
    return reason_lines(told)


def rate_text(value: float) -> str:
    """Tokens a second of one user."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _evenly_spread(values: FloatArray, most: int) -> list[int]:
    """Places of at most `most` ascending values that are spread evenly between the first and the last."""
    if values.size <= most:
        return list(range(values.size))
    wanted = np.linspace(values[0], values[-1], most)
    return sorted({int(np.argmin(np.abs(values - value))) for value in wanted} | {0, values.size - 1})


def _few(counts: Sequence[int]) -> str:
    """Ascending whole numbers in words: 1 to 6, or 3, 5 and 7."""
    if len(counts) > 2 and counts[-1] - counts[0] == len(counts) - 1:
        return f"{counts[0]} to {counts[-1]}"
    return " and ".join(filter(None, (", ".join(map(str, counts[:-1])), str(counts[-1]))))

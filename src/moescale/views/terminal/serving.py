"""What serving costs: one deployment, a sweep of them, a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from moescale.units import format_bytes, format_count, format_seconds, format_usd
from moescale.views.tables import Column, Table, cost_table, reason_lines
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.serving.deployment import Deployment
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.operating_points import LeftOut, OperatingPoints
    from moescale.serving.simulator import Run
    from moescale.typing import FloatArray

SWEEP_ROWS = 16


def show_burst(console: Console, run: Run, host: str, *, priced: bool = True) -> None:
    """A simulated run in three lines; the times are medians and what 99% of the requests stay within."""
    record = run.to_dict()

    def spread(name: str) -> str:
        cuts = record.get(name)
        if not isinstance(cuts, dict):
            return "none"
        return f"{format_seconds(cuts['p50'])} (99% within {format_seconds(cuts['p99'])})"

    write_paragraph(
        console,
        f"Simulated: {len(run.arrival_s)} requests in {format_seconds(run.makespan_s)}, {run.output_tok_s:,.0f} output tokens "
        f"a second{f', {format_usd(run.usd_per_mtok)} per million' if priced else ''}; at most {run.peak_running} at a time; "
        f"host: {host}.",
    )
    write_paragraph(console, f"First token after {spread('ttft_s')}, then {spread('tpot_s')} a token.")
    if run.n_preemptions:
        write_paragraph(console, f"The cache was full {run.n_preemptions} times, and requests were computed again.")


def show_cost(
    console: Console,
    cost: Cost,
    deployment: Deployment,
    traffic: str | None = None,
    *,
    weights: str | None = None,
    priced: bool = True,
) -> None:
    """The cost of one model: the cheapest GPU count first, then each that was looked at.

    `traffic` names a trace, `weights` a format that is not the default. Without a price (`priced` False) all figures but
    the dollars.
    """
    name = deployment.gpu.name
    if cost.usd_per_mtok is not None:
        text = f"{format_usd(cost.usd_per_mtok)} per million output tokens on {cost.gpus} x {name}"
        if not priced:
            text = f"{cost.throughput_tok_s or 0.0:,.0f} output tokens a second on {cost.gpus} x {name}"
        copies = cost.replicas or 1
        shape = f" ({copies} replicas of {cost.tensor_parallel})" if copies > 1 else ""
        write_line(console, text + shape, bold=len(text))
    reserve = f"; reserve {format_bytes(cost.reserve_bytes)} a GPU" if cost.reserve_bytes else ""
    write_paragraph(
        console,
        f"{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
        f"{format_bytes(cost.weight_bytes)}{f' in {weights}' if weights else ''}; KV cache {cost.kv_bytes_per_token / 1024:.1f} KiB a token{reserve}",
    )
    write_paragraph(
        console,
        f"{_traffic(deployment)}{f', {traffic}' if traffic else ''}; "
        f"{f'{format_usd(float(deployment.usd_per_gpu_hour))} a GPU hour; ' if priced else ''}"
        f"utilization {deployment.utilization:g}; latency from {cost.latency_source}",
    )
    write_table(console, cost_table(cost, priced=priced))


def show_sweep(console: Console, points: OperatingPoints, traffic: str | None = None) -> None:
    """The Pareto set of a sweep, what each GPU and number format can do alone, and what has no answer."""
    from moescale.models.parameters import count_parameters

    p, front, d = points, points.pareto.tolist(), points.deployment
    usd, per_s, each_s = p.usd_per_mtok.tolist(), p.tok_s_per_user.tolist(), p.tpot_s.tolist()
    cheap, fast = front[-1], front[0]
    lead = f"{format_usd(usd[cheap])} to {format_usd(usd[fast])} per million output tokens"
    if cheap == fast:
        lead = f"{format_usd(usd[cheap])} per million output tokens"
    rates = " to ".join(_rate(per_s[i]) for i in dict.fromkeys((cheap, fast)))
    write_line(console, f"{lead} at {rates} tok/s for each user", bold=len(lead))
    parameters = count_parameters(p.model)
    write_paragraph(
        console,
        f"{format_count(float(parameters.total))} parameters, {format_count(float(parameters.active))} active; "
        f"{_traffic(d)}{f', {traffic}' if traffic else ''}; utilization {d.utilization:g}; latency from "
        f"{', '.join(dict.fromkeys(k.latency.name for k in p.platforms))}",
    )
    prices = {k.gpu.name: k.usd_per_gpu_hour for k in p.platforms}
    write_paragraph(console, f"GPU hours: {', '.join(f'{name} {format_usd(usd)}' for name, usd in prices.items())}")
    kinds = [p.platforms[i] for i in p.platform.tolist()]
    several = len(prices) > 1
    shown = _spread(np.log(p.tpot_s[front]), SWEEP_ROWS)
    part = f" ({len(shown)} of {len(front)}; all with --json)" if len(shown) < len(front) else ""
    split = bool(np.any(p.expert_parallel > 1))
    write_table(
        console,
        Table(
            f"Pareto set: no other of {len(p):,} points is cheaper and faster{part}",
            (
                *((Column("GPU", text=True),) if several else ()),
                Column("GPUs"),
                *((Column("EP"),) if split else ()),
                Column("weights", text=True),
                Column("cache", text=True),
                Column("batch"),
                Column("per token"),
                Column("tok/s/user"),
                Column("$/Mtok"),
                Column("all tok/s", rank=2),
                Column("first token", rank=3),
            ),
            [
                (
                    *((kinds[i].gpu.name,) if several else ()),
                    f"{p.gpus[i]:.0f}",
                    *((f"{p.expert_parallel[i]:.0f}",) if split else ()),
                    kinds[i].weights.name,
                    kinds[i].kv_cache.name,
                    f"{p.batch[i]:.0f}",
                    format_seconds(each_s[i]),
                    _rate(per_s[i]),
                    format_usd(usd[i]),
                    f"{p.throughput_tok_s[i]:,.0f}",
                    format_seconds(float(p.ttft_s[i])),
                )
                for i in (front[j] for j in shown)
            ],
        ),
    )
    alone = [p.frontier(p.platform == k).tolist() for k in range(len(p.platforms))]
    write_table(
        console,
        Table(
            "Each alone: its cheapest point, and after it its fastest (tok/s/user)",
            (
                *((Column("GPU", text=True),) if several else ()),
                Column("weights", text=True),
                Column("cache", text=True),
                Column("$/Mtok"),
                Column("GPUs"),
                Column("batch"),
                Column("tok/s/user"),
                Column("fastest", rank=1),
                Column("GPUs", rank=1),
                Column("$/Mtok", rank=1),
            ),
            [
                (
                    *((kind.gpu.name,) if several else ()),
                    kind.weights.name,
                    kind.kv_cache.name,
                    format_usd(usd[own[-1]]),
                    f"{p.gpus[own[-1]]:.0f}",
                    f"{p.batch[own[-1]]:.0f}",
                    _rate(per_s[own[-1]]),
                    _rate(per_s[own[0]]),
                    f"{p.gpus[own[0]]:.0f}",
                    format_usd(usd[own[0]]),
                )
                for kind, own in zip(p.platforms, alone, strict=True)
                if own
            ],
        ),
    )
    formats = {(k.weights.name, k.kv_cache.name) for k in p.platforms}
    if len(formats) > 1:
        write_line(console)
        caveat = "Number formats are compared by cost and time; what fewer bits do to quality is not in these figures."
        if any(k.latency.name == "silicon" for k in p.platforms):
            caveat += (
                " Where a format's kernels were not measured (int4: nowhere), they are bf16 ones scaled by rooflines."
            )
        write_paragraph(console, caveat)
    _left_out(console, points)


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _spread(values: FloatArray, most: int) -> list[int]:
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


def _left_out(console: Console, points: OperatingPoints) -> None:
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
    if not groups:
        return
    write_line(console)
    write_line(console, "Left out", bold=8)
    told: list[tuple[str, str]] = []
    for (who, _), entries in groups.items():
        counts = list(dict.fromkeys(entry.gpus for entry in entries if entry.gpus is not None))
        on = f"{_few(counts)} GPU{'' if counts == [1] else 's'}" if counts else ""
        told.append((" on ".join(filter(None, (who, on))), entries[-1].reason))
    for note in reason_lines(told):
        write_paragraph(console, note, indent=2, first="")


def _traffic(deployment: Deployment) -> str:
    return f"{deployment.prompt_tokens:.6g} prompt and {deployment.output_tokens:.6g} output tokens a request"

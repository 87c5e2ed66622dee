"""Serving cost: one deployment, a simulated run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.serving.question import cache_format, weight_format
from moescale.units import format_bytes, format_count, format_seconds, format_usd, plural
from moescale.views.tables import Cell, Column, Table, accuracy_text, gpus_text, reason_lines, table_of, ttft_doubt
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.models.published import Shape
    from moescale.options.missed_limits import Missed
    from moescale.serving.accuracy import Accuracy, Calibrated
    from moescale.serving.deployment import Deployment
    from moescale.serving.disaggregated import Disaggregated, Pool
    from moescale.serving.gpu_counts import Cost
    from moescale.serving.loads import OpenLoop
    from moescale.serving.workload import Answer

LIMITED_BY = {"optimum": "lowest cost", "max_num_batched_tokens": "tokens per pass"}
BROKEN = {"max_ttft": "TTFT limit", "max_tpot": "TPOT limit"}


def show_models(console: Console, models: Sequence[Shape]) -> None:
    """The published models, a paragraph each: what their authors state, and where."""
    for model in models:
        name, total, active = model.architecture.name, model.published_total, model.published_active
        size = f"{format_count(total)} parameters" + ("" if active == total else f", {format_count(active)} active")
        tokens = "" if model.tokens is None else f"; {format_count(model.tokens)} tokens"
        write_line(console, f"{name}  ({size}{tokens}; {model.date})", bold=len(name))
        source = (
            model.source
            if model.tokens_source in ("", model.source)
            else f"{model.source}; tokens: {model.tokens_source}"
        )
        write_paragraph(console, f"{source}.", indent=2)


def show_loads(
    console: Console,
    gpu: str,
    *,
    closed: Answer | None = None,
    opened: OpenLoop | None = None,
    apart: Disaggregated | None = None,
    apart_accuracy: Accuracy | None = None,
    burst: Answer | None = None,
    host: str | None = None,
    priced: bool = True,
) -> None:
    """A paragraph or two for each load of a server that was asked about; `host` is what --host says."""

    def usd(text: str) -> str:
        return f", {text}" if priced else ""

    if closed is not None:
        write_line(console)
        write_paragraph(
            console,
            f"Closed loop of {plural(closed.concurrency or 0, 'client')}: means over ten requests per client, at most "
            f"{closed.peak_running} at once; TTFT "
            f"{format_seconds(closed.plateau_ttft_s or 0.0)} after the first burst, {format_seconds(closed.p99.ttft_s)} at the 99th percentile.",
        )
    if opened is not None:
        times = "mean" if opened.percentile is None else f"for {opened.percentile:g}% of requests"
        most = "" if opened.percentile is None else "<= "
        if closed is None:
            write_line(console)
        write_paragraph(
            console,
            f"{plural(opened.requests_per_s, 'request')} per second: {opened.gpus} x {gpu} "
            f"({plural(opened.replicas, 'replica')} of {opened.tensor_parallel}){usd(f'{format_usd(opened.usd_per_hour)} per hour')}, "
            f"{opened.utilization:.0%} of their maximum rate (the table is of full load); TTFT {most}{format_seconds(opened.ttft_s)}, "
            f"TPOT {most}{format_seconds(opened.tpot_s or 0.0)} ({times}); host: {host or 'in-line (default of --request-rate)'}.",
        )
    if apart is not None:
        prefill, decode = (
            f"{plural(pool.workers, 'worker')} of {plural(pool.gpus_per_worker, 'GPU')}{_groups(pool)}, {pool.busy:.0%} busy"
            for pool in (apart.prefill, apart.decode)
        )
        write_line(console)
        write_paragraph(
            console,
            f"Separate prefill and decode: {apart.prefill.gpus} + {apart.decode.gpus} x {gpu}, {apart.throughput_tok_s:,.0f} output "
            f"tokens/s{usd(f'{format_usd(apart.usd_per_mtok)} per million output tokens')}. Prefill: {prefill}, TTFT "
            f"{format_seconds(apart.ttft_s)} ({format_seconds(apart.transfer_s)} for the transfer of the KV cache). Decode: {decode}, "
            f"batch {apart.decode.batch:,.0f} each, TPOT {format_seconds(apart.tpot_s or 0.0)}. "
            f"Accuracy: {accuracy_text(apart_accuracy, gpu, 'this kind with prefill and decode apart')}.",
        )
    if burst is not None:
        ttft, tpot = (_percentiles(burst, name) for name in ("ttft_s", "tpot_s"))
        write_line(console)
        write_paragraph(
            console,
            f"Simulated: {burst.requests} requests in {format_seconds(burst.makespan_s)}, {burst.output_tok_s:,.0f} output "
            f"tokens/s{usd(f'{format_usd(burst.usd_per_mtok)} per million output tokens')}; at most {burst.peak_running} concurrent "
            f"requests; host: {host or 'in-line'}.",
        )
        write_paragraph(console, f"TTFT {ttft}, TPOT {tpot}.")
        if burst.n_preemptions:
            text = f"The KV cache was full {burst.n_preemptions} times; preempted requests were recomputed."
            write_paragraph(console, text)


def _groups(pool: Pool) -> str:
    return f" in {plural(pool.attention_dp, 'attention group')}" if pool.attention_dp > 1 else ""


def _percentiles(run: Answer, name: str) -> str:
    median, high = getattr(run.p50, name), getattr(run.p99, name)
    if median is None:
        return "none"
    return f"{format_seconds(median)} median, {format_seconds(high)} at the 99th percentile"


def show_warnings(console: Console, warnings: Sequence[str]) -> None:
    """What to know before the answer."""
    for warning in warnings:
        write_paragraph(console, warning, lead="Warning:")


def show_cost(
    console: Console,
    cost: Cost,
    deployment: Deployment,
    traffic: str | None = None,
    *,
    name: str | None = None,
    weights: str | None = None,
    price: str | None = None,
    latency: str | None = None,
    priced: bool = True,
    accuracy: Accuracy | None = None,
    corrected: Calibrated | None = None,
    kind: str = "this kind",
    opened: OpenLoop | None = None,
    missed: Missed | None = None,
) -> None:
    """The cost of one model: the cheapest GPU count first, then each that was looked at.

    `traffic` names a trace, `name` a published model, `weights` their format in words, `price` the terms of the GPU's price, `latency` the kernels. Without
    a price (`priced` False) all figures but the dollars. `accuracy` is what measurements of this `kind` gave.
    """
    gpu = deployment.gpu.name
    loop = cost.closed_loop
    if cost.usd_per_mtok is not None:
        usd, rate = (
            (cost.usd_per_mtok, cost.throughput_tok_s or 0.0)
            if loop is None
            else (loop.usd_per_mtok, loop.output_tok_s)
        )
        text = f"{format_usd(usd)} per million output tokens on {cost.gpus} x {gpu}"
        if not priced:
            text = f"{rate:,.0f} output tokens/s on {cost.gpus} x {gpu}"
        text += "" if loop is None else f" for {plural(loop.concurrency or 0, 'client')}"
        if opened is not None:
            usd, rate = opened.usd_per_mtok, opened.requests_per_s
            text = f"{format_usd(usd)} per million output tokens on {opened.gpus} x {gpu} at {plural(rate, 'request')} a second"
            text = text if priced else f"{opened.gpus} x {gpu} at {plural(rate, 'request')} a second"
        copies = cost.replicas or 1
        parts = [f"{plural(copies, 'replica')} of {cost.gpus_per_replica}"] if copies > 1 else []
        parts += [plural(cost.pipeline_parallel, "pipeline stage")] if cost.pipeline_parallel else []
        parts += [plural(cost.attention_dp, "attention group")] if cost.attention_dp else []
        hourly = (opened or cost).gpus * float(deployment.usd_per_gpu_hour)
        hourly_text = f", {format_usd(hourly)} an hour" if priced else ""
        write_line(console, text + (f" ({', '.join(parts)})" if parts else "") + hourly_text, bold=len(text))
    terms = f" ({price})" if price else ""
    reserve = f"; reserve {format_bytes(cost.reserve_bytes)} per GPU" if cost.reserve_bytes else ""
    write_paragraph(
        console,
        f"{f'{name}: ' if name else ''}{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
        f"{format_bytes(cost.weight_bytes)} in {weights or weight_format(deployment)}; KV cache {cost.kv_bytes_per_token / 1024:.1f} KiB per token in "
        f"{cache_format(deployment)}{reserve}",
    )
    write_paragraph(
        console,
        f"{deployment.prompt_tokens:.6g} prompt and {deployment.output_tokens:.6g} output tokens per request"
        f"{f', {traffic}' if traffic else ''}; "
        f"{f'{format_usd(float(deployment.usd_per_gpu_hour))} per GPU hour{terms}; ' if priced else ''}"
        f"utilization {deployment.utilization:g}; latency from {latency or cost.latency_source}",
    )
    if priced and loop is None and cost.usd_per_input_mtok is not None and cost.usd_per_output_mtok is not None:
        apart = f"{format_usd(cost.usd_per_input_mtok)} per million prompt tokens and {format_usd(cost.usd_per_output_mtok)}"
        write_paragraph(console, f"separate prices: {apart} per million output tokens")
    write_paragraph(
        console, f"Accuracy: {accuracy_text(accuracy, gpu, kind)}{ttft_doubt(accuracy, deployment.max_ttft_s)}"
    )
    if corrected is not None:
        low, high = (format_usd(bound) for bound in corrected.interval)
        text = f"{format_usd(corrected.usd_per_mtok)} per million output tokens; nine of ten servings within {low} to {high}"
        write_paragraph(console, f"Calibrated: {text}")
    write_table(console, cost_table(cost, priced=priced))
    if missed is not None:
        write_paragraph(console, _missed(missed, cost, deployment, opened, priced=priced))
    if cost.attention_dp is not None:
        _attention_groups(console, deployment)


def _missed(missed: Missed, cost: Cost, deployment: Deployment, opened: OpenLoop | None, *, priced: bool) -> str:
    """Which limits the answer misses by the known error of its kind, and the cheapest server found that keeps them."""
    times, kept = " and ".join(f"{name} ({format_seconds(s)})" for name, s in missed.times_s.items()), missed.kept
    text = f"By the error of its kind, {_server(cost, opened)} would miss the limit of {times}"
    if kept is None:
        if opened is not None:
            return f"{text}."
        fp8 = weight_format(deployment) == "bf16" and deployment.gpu.fp8_flops_per_s
        return f"{text}, as would all others{'; --weights fp8 may keep it' if fp8 else ''}."
    stated = " ".join(f"{option} {format_seconds(s).replace(' ', '')}" for option, s in kept.limits_s.items())
    usd = f", {format_usd(kept.usd_per_mtok)}" if priced else ""
    at = f" at {stated}" if stated else ""
    return f"{text}; the cheapest that would keep it: {_server(kept.answer, kept.opened)}{at}{usd}."


def _server(c: Cost, opened: OpenLoop | None = None) -> str:
    if opened is not None:
        return plural(opened.gpus, "GPU")
    groups = "" if c.attention_dp is None else f" in {plural(c.attention_dp, 'attention group')}"
    copies = "" if (c.replicas or 1) == 1 else f" in {plural(c.replicas or 1, 'replica')}"
    return plural(c.gpus, "GPU") + copies + groups


def _gpus(c: Cost, many: bool) -> str:
    """The GPUs of a server, with its replicas where these differ: 6 = 3 x 2."""
    one = gpus_text(c.gpus_per_replica if many else c.gpus, c.attention_dp)
    return f"{c.gpus} = {c.replicas} x {one}" if many and (c.replicas or 1) > 1 else one


def cost_table(cost: Cost, *, priced: bool = True) -> Table:
    """Each GPU count that was looked at, in the closed loop where there is one; without dollars where there is no price."""
    looked_at = cost.candidates or (cost,)
    rows: list[tuple[Cost, Cost | Answer, float]] = [
        (c, c.closed_loop or c, c.closed_loop.output_tok_s if c.closed_loop else c.throughput_tok_s or 0.0)
        for c in looked_at
        if (c.closed_loop if cost.closed_loop else c.batch) is not None and c.usd_per_mtok is not None
    ]

    def layout(c: Cost) -> tuple[int, int | None, int | None]:
        return c.gpus, c.replicas, c.attention_dp

    def last(c: Cost) -> str:
        breaks = c.closed_loop is not None and not c.closed_loop.meets_limits
        cheapest = "<- cheapest" if layout(c) == layout(cost) else ""
        return ", ".join(filter(None, (cheapest, "breaks a limit" if breaks else "")))

    limited: Cell[tuple[Cost, Cost | Answer, float]] = (
        Column("batch limited by", text=True),
        lambda r: BROKEN.get(r[0].latency_limit or "", LIMITED_BY.get(r[0].limited_by or "", r[0].limited_by or "")),
    )
    if cost.closed_loop is not None:
        limited = (Column("request time", rank=2), lambda r: format_seconds(getattr(r[1], "e2e_s", 0.0)))
    many = len({c.replicas for c in looked_at}) > 1
    usd: Cell[tuple[Cost, Cost | Answer, float]] = (Column("$/Mtok"), lambda r: format_usd(r[1].usd_per_mtok or 0.0))
    return table_of(
        "",
        rows,
        (
            (Column("GPUs"), lambda r: _gpus(r[0], many)),
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


def _attention_groups(console: Console, deployment: Deployment) -> None:
    passes = deployment.engine.balance_passes
    rule = (
        "a prompt in one group delays the output tokens of all groups, as in vLLM and SGLang; with --latency "
        "silicon:trtllm, prompts wait for each other"
    )
    if passes:
        rule = (
            f"a prompt waits up to {passes:g} passes for prompts of the other groups, as in TensorRT-LLM; with --latency "
            "silicon:vllm or silicon:sglang, a prompt in one group delays all groups"
        )
    write_line(console)
    write_paragraph(console, f"Attention groups: {rule}.")

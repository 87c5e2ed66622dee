"""Serving cost: one deployment, a simulated run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from moescale.models.published import Shape
from moescale.options.priced import Priced
from moescale.serving.accuracy import uncompared
from moescale.serving.deployment import cache_format, latency_text
from moescale.serving.disaggregated import LOAD, Pool
from moescale.serving.gpu_counts import Cost
from moescale.serving.loads import OpenLoop
from moescale.serving.workload import Answer
from moescale.units import format_bytes, format_count, format_seconds, format_usd, plural
from moescale.views.tables import (
    Cell,
    Column,
    Table,
    accuracy_text,
    gpus_text,
    reason_lines,
    table_of,
    ttft_doubt,
    usd_range,
)
from moescale.views.terminal.text import write_line, write_paragraph, write_table

LIMITED_BY = {"optimum": "lowest cost", "max_num_batched_tokens": "tokens per pass"}
BROKEN = {"max_ttft": "TTFT limit", "max_tpot": "TPOT limit"}


def show_models(console: Console, models: Sequence[Shape]) -> None:
    """The published models, a paragraph each: what their authors state, and where."""
    for model in models:
        name, total, active = model.architecture.name, model.published_total, model.published_active
        size = f"{format_count(total)} parameters" + ("" if active == total else f", {format_count(active)} active")
        size += "" if model.row.get("embeddings_published", True) else " without embeddings"
        tokens = "" if model.tokens is None else f"; {format_count(model.tokens)} tokens"
        write_line(console, f"{name}  ({size}{tokens}; {model.date})", bold=len(name))
        other = "" if model.tokens_source in ("", model.source) else f"; tokens: {model.tokens_source}"
        write_paragraph(console, f"{model.source}{other}.", indent=2)


def show_cost(console: Console, found: Priced) -> None:
    """The cost of one model: the cheapest GPU count first, then each that was looked at, then each load that was asked about."""
    cost, usd_per_hour = found.cost, float(found.deployment.usd_per_gpu_hour)
    for warning in found.warnings():
        write_paragraph(console, warning, lead="Warning:")
    if cost.usd_per_mtok is not None:
        text, layout = _headline(found), _layout(cost)
        hourly = f", {format_usd((found.opened or cost).gpus * usd_per_hour)} an hour"
        write_line(console, text + (f" ({layout})" if layout else "") + hourly, bold=len(text))
    for text in _basis(found):
        write_paragraph(console, text)
    write_table(console, cost_table(cost))
    for load in _loads(found):
        write_line(console)
        for text in load:
            write_paragraph(console, text)
    if found.launch is not None:
        write_line(console)
        print(found.launch)


def _basis(found: Priced) -> Iterator[str]:
    """Paragraphs on limits that are missed, the model, its requests, and what the price is of."""
    cost, deployment = found.cost, found.deployment
    if found.late_s:
        yield _missed(found)
    reserve = f"; reserve {format_bytes(cost.reserve_bytes)} per GPU" if cost.reserve_bytes else ""
    yield (
        f"{f'{found.model.name}: ' if found.published else ''}{format_count(cost.n_params_total)} parameters, "
        f"{format_count(cost.n_params_active)} active; weights {format_bytes(cost.weight_bytes)} in {found.weights_words()}; "
        f"KV cache {cost.kv_bytes_per_token / 1024:.1f} KiB per token in {cache_format(deployment)}{reserve}"
    )
    terms = found.serving.price_terms()
    hourly = f"{format_usd(float(deployment.usd_per_gpu_hour))} per GPU hour{f' ({terms})' if terms else ''}; "
    traffic = "" if found.serving.trace is None else f", {found.serving.traffic().source}"
    yield (
        f"{deployment.prompt_tokens:.6g} prompt and {deployment.output_tokens:.6g} output tokens per request{traffic}; "
        f"{hourly}utilization {deployment.utilization:g}; latency from {latency_text(found.source)}"
    )
    usd_in, usd_out = cost.usd_per_input_mtok, cost.usd_per_output_mtok
    full = cost.closed_loop is None and found.opened is None
    if full and usd_in is not None and usd_out is not None:
        free = "prompt tokens add nothing (the host's time covers their work),"
        each = f"{format_usd(usd_in)} per million prompt tokens and" if usd_in else free
        yield f"separate prices: {each} {format_usd(usd_out)} per million output tokens"
    known = accuracy_text(found.accuracy, deployment.gpu.name, uncompared(found.model, deployment, found.source))
    yield f"Accuracy: {known}{ttft_doubt(found.accuracy, deployment.max_ttft_s)}"
    if found.serving.calibrated and found.opened is None and (fixed := found.calibrated) is not None:
        within = f"nine of ten servings within {usd_range(fixed.interval)}"
        yield f"Calibrated: {format_usd(fixed.usd_per_mtok)} per million output tokens; {within}"


def _headline(found: Priced) -> str:
    """Dollars, and the GPUs of the server."""
    gpu, loop, opened = found.deployment.gpu.name, found.cost.closed_loop, found.opened
    usd = f"{format_usd(found.loaded.usd_per_mtok or 0.0)} per million output tokens on "
    if opened is not None:
        return f"{usd}{opened.gpus} x {gpu} at {plural(opened.requests_per_s, 'request')} a second"
    clients = "" if loop is None else f" for {plural(loop.concurrency or 0, 'client')}"
    return f"{usd}{found.cost.gpus} x {gpu}{clients}"


def _layout(cost: Cost) -> str:
    copies = cost.replicas or 1
    parts = [f"{plural(copies, 'replica')} of {cost.gpus_per_replica}"] if copies > 1 else []
    parts += [plural(cost.pipeline_parallel, "pipeline stage")] if cost.pipeline_parallel else []
    parts += [plural(cost.attention_dp, "attention group")] if cost.attention_dp else []
    return ", ".join(parts)


def _loads(found: Priced) -> Iterator[list[str]]:
    """Paragraphs on each load of a server that was asked about."""
    gpu, host = found.deployment.gpu.name, found.serving.host
    closed, opened, apart, burst = found.cost.closed_loop, found.opened, found.apart, found.burst
    loops = list[str]()

    def usd(value: float, per: str) -> str:
        return f", {format_usd(value)} per {per}"

    if closed is not None:
        later, highest = (format_seconds(seconds or 0.0) for seconds in (closed.plateau_ttft_s, closed.p99.ttft_s))
        running = f"at most {closed.peak_running} at once; TTFT {later}"
        times = f"means over ten requests per client, {running} after the first burst, with it {highest}"
        if closed.percentile is not None:
            over = f"the table's times hold for {closed.percentile:g}% of requests after the first burst"
            times = f"{over}, {running} on average, {highest}"
        clients = plural(closed.concurrency or 0, "client")
        loops.append(f"Closed loop of {clients}: {times} at the 99th percentile.")
    if opened is not None:
        times, most = ("mean", "") if opened.percentile is None else (f"for {opened.percentile:g}% of requests", "<= ")
        loops.append(
            f"{plural(opened.requests_per_s, 'request')} per second: {opened.gpus} x {gpu} "
            f"({plural(opened.replicas, 'replica')} of {opened.tensor_parallel}){usd(opened.usd_per_hour, 'hour')}, "
            f"{opened.utilization:.0%} of the rate that full batches take without limits of latency; TTFT {most}{format_seconds(opened.ttft_s)}, "
            f"TPOT {most}{format_seconds(opened.tpot_s or 0.0)} ({times}); host: {host or 'in-line (default of --request-rate)'}."
        )
    if loops:
        yield loops
    if apart is not None:
        prefill, decode = map(_workers, (apart.prefill, apart.decode))
        most, at = "", f"{LOAD:.0%} of this throughput"
        ttft, tpot = (f", {format_seconds(s or 0.0)} at the 99th" for s in (apart.p99.ttft_s, apart.p99.tpot_s))
        if apart.keeps_rate:
            at = f"{plural(apart.requests_per_s, 'request')} per second"
        if apart.percentile is not None:
            most, ttft, tpot, at = "<= ", "", "", f"{at}, for {apart.percentile:g}% of requests"
        yield [
            f"Separate prefill and decode: {apart.prefill.gpus} + {apart.decode.gpus} x {gpu}, {apart.throughput_tok_s:,.0f} output "
            f"tokens/s{usd(apart.usd_per_mtok, 'million output tokens')}. Prefill: {prefill}, TTFT "
            f"{most}{format_seconds(apart.ttft_s)} ({format_seconds(apart.transfer_s)} for the transfer of the KV cache)"
            f"{ttft and f'{ttft} percentile'}. Decode: {decode}, batch {apart.decode.batch:,.0f} each, "
            f"TPOT {most}{format_seconds(apart.tpot_s or 0.0)}{tpot}; times at {at}. "
            f"Accuracy: {accuracy_text(found.apart_accuracy, gpu, 'this kind with prefill and decode apart')}."
        ]
    if burst is not None:
        ttft, tpot = (_percentiles(burst, name) for name in ("ttft_s", "tpot_s"))
        full = f"The KV cache was full {burst.n_preemptions} times; preempted requests were recomputed."
        yield [
            f"Simulated: {burst.requests} requests in {format_seconds(burst.makespan_s)}, {burst.output_tok_s:,.0f} output "
            f"tokens/s{usd(burst.usd_per_mtok, 'million output tokens')}; at most {burst.peak_running} concurrent "
            f"requests; host: {host or 'in-line'}.",
            f"TTFT {ttft}, TPOT {tpot}.",
            *([full] if burst.n_preemptions else []),
        ]


def _workers(pool: Pool) -> str:
    groups = f" in {plural(pool.attention_dp, 'attention group')}" if pool.attention_dp > 1 else ""
    return f"{plural(pool.workers, 'worker')} of {plural(pool.gpus_per_worker, 'GPU')}{groups}, {pool.busy:.0%} busy"


def _percentiles(run: Answer, name: str) -> str:
    median, high = getattr(run.p50, name), getattr(run.p99, name)
    if median is None:
        return "none"
    return f"{format_seconds(median)} median, {format_seconds(high)} at the 99th percentile"


def _missed(found: Priced) -> str:
    """Which limits the answer misses by the known error of its kind, and how to ask for what keeps them."""
    times = " and ".join(f"{name} ({format_seconds(s)})" for name, s in found.late_s.items())
    text = f"By the error of its kind, {_server(found.cost, found.opened)} would miss the limit of {times}"
    return f"{text}; {found.stricter} asks for what would keep it."


def _server(c: Cost, opened: OpenLoop | None = None) -> str:
    if opened is not None:
        return plural(opened.gpus, "GPU")
    copies = "" if c.replicas is None or c.replicas == 1 else f" in {plural(c.replicas, 'replica')}"
    groups = "" if c.attention_dp is None else f" in {plural(c.attention_dp, 'attention group')}"
    return plural(c.gpus, "GPU") + copies + groups


def cost_table(cost: Cost) -> Table:
    """Each GPU count that was looked at, in the closed loop where there is one."""
    looked_at = cost.candidates or (cost,)
    closed = cost.closed_loop is not None
    rows = [c for c in looked_at if (c.closed_loop if closed else c.batch) is not None and c.usd_per_mtok is not None]
    many = len({c.replicas for c in looked_at}) > 1

    def of(c: Cost) -> Cost | Answer:
        return c.closed_loop or c

    def layout(c: Cost) -> object:
        return c.gpus, c.replicas, c.attention_dp

    def gpus(c: Cost) -> str:  # with replicas where these differ: 6 = 3 x 2
        one = gpus_text(c.gpus_per_replica if many else c.gpus, c.attention_dp)
        return f"{c.gpus} = {c.replicas} x {one}" if many and (c.replicas or 1) > 1 else one

    def limited_by(c: Cost) -> str:
        return BROKEN.get(c.latency_limit or "", LIMITED_BY.get(c.limited_by or "", c.limited_by or ""))

    def last(c: Cost) -> str:
        words = {
            "<- cheapest": layout(c) == layout(cost),
            "breaks a limit": c.closed_loop is not None and not c.closed_loop.meets_limits,
        }
        return ", ".join(word for word, holds in words.items() if holds)

    limited: Cell[Cost] = (Column("batch limited by", text=True), limited_by)
    if closed:
        limited = (Column("request time", rank=2), lambda c: format_seconds(getattr(of(c), "e2e_s", 0.0)))
    cells: tuple[Cell[Cost], ...] = (
        (Column("GPUs"), gpus),
        (Column("$/Mtok"), lambda c: format_usd(of(c).usd_per_mtok or 0.0)),
        (Column("batch"), lambda c: f"{of(c).batch:.0f}"),
        (Column("output tok/s"), lambda c: f"{_tokens_s(c):,.0f}"),
        (Column("TTFT"), lambda c: format_seconds(of(c).ttft_s or 0.0)),
        (Column("TPOT"), lambda c: format_seconds(of(c).tpot_s or 0.0)),
        limited,
        (Column("", text=True), last),
    )
    return table_of("", rows, cells, notes=reason_lines((_server(c), c.infeasible) for c in looked_at if c.infeasible))


def _tokens_s(cost: Cost) -> float:
    return (cost.throughput_tok_s or 0.0) if cost.closed_loop is None else cost.closed_loop.output_tok_s

"""Compute the tables of docs/servings.md: simulated servers beside measured ones, every row, good or bad.

python scripts/document_servings.py

FOLDER/data/vllm_serving holds the two tables of pChitral/vllm-cost-meter (commit 3f308c03, MIT).
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.hardware.gpus import Gpu, find_gpu, measured_reserve_bytes
from moescale.latency import LatencySource
from moescale.latency.roofline import Roofline, constants_of
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
from moescale.models.published import shapes
from moescale.serving.deployment import Deployment
from moescale.serving.host import NO_OVERHEAD, HostOverhead, default_overhead
from moescale.serving.simulator import Arrivals, Run, simulate
from moescale.typing import FloatArray
from pages import filled, table, write

DATA = Path(__file__).parents[1] / "tests" / "data" / "public"

MODELS = {
    "meta-llama/Meta-Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen/Qwen3-30B-A3B-Instruct-2507": "qwen3-30b-a3b",
    "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b",
}
GPUS = {"H100": "h100-sxm", "A100_80GB_PCIe": "a100-pcie-80gb"}
WEIGHT_BYTES = {"float16": 2.0, "fp8": 1.0}  # on an A100 fp8 weights are read at 1 byte and multiplied in bf16

PROMPT_TOKENS, OUTPUT_TOKENS = 512, 256  # the source's workload_protocol
N_REQUESTS = 500  # throughput times slowest request at the highest rates gives 500 to 575
# Second table: 256 output tokens a chat request (tokens over requests); prompts as in the first table, unstated there.
N_CHAT_REQUESTS = 1500  # at least 1,478 by throughput times slowest request


def roofline(gpu: Gpu, model: Architecture, weight_bytes: float) -> LatencySource:
    """Kernels only: the host's time is counted by the simulation."""
    constants = replace(constants_of(gpu, weight_bytes), per_iteration_overhead_s=0.0)
    return Roofline(gpu, weight_bytes_per_param=weight_bytes, constants=constants)


def silicon(gpu: Gpu, model: Architecture, weight_bytes: float) -> LatencySource:
    """Measured kernels alone."""
    return Silicon(gpu, weight_bytes_per_param=weight_bytes, host_s=0.0)


# A further latency source is one line here; it should price kernels alone, as the host's time is counted apart.
SOURCES: dict[str, Callable[[Gpu, Architecture, float], LatencySource]] = {"silicon": silicon, "roofline": roofline}
JUDGED = "silicon"
HOSTS: dict[str, HostOverhead] = {
    "published, in line (default)": default_overhead(),
    "published, asynchronous": replace(default_overhead(), asynchronous=True),
    "none": NO_OVERHEAD,
}
DEFAULT_HOST = next(iter(HOSTS))

TARGET_MEDIAN_LOG2, TARGET_WORST_LOG2 = 0.35, 1.0


@dataclass(frozen=True, slots=True)
class Row:
    """One measured run."""

    config: str
    engine: str
    model: str
    precision: str
    hardware: str
    gpus: int
    requests_per_s: float
    output_tok_s: float
    ttft_s: float
    tpot_s: float
    usd_per_hour: float  # of one GPU
    io_shape: str = "chat"
    burstiness: float = 1.0
    prefix_caching: bool = False
    requests_done_per_s: float = 0.0
    gpu_util_pct: float = math.nan  # share of time in which any kernel ran

    @property
    def usd_per_mtok(self) -> float:
        """Measured dollars per million output tokens."""
        return self.usd_per_hour * self.gpus / (self.output_tok_s * 3600.0) * 1e6


def _row(entry: Mapping[str, str]) -> Row:
    return Row(
        config=entry["config"],
        engine=entry["engine"],
        model=entry["model"],
        precision=entry["precision"],
        hardware=entry.get("hardware", "H100"),  # the second table is of H100 configurations
        gpus=int(entry["gpus"]),
        requests_per_s=float(entry["rps"]),
        output_tok_s=float(entry["tps_output"]),
        ttft_s=float(entry["ttft_p50_ms"]) / 1e3,
        tpot_s=float(entry["tpot_p50_ms"]) / 1e3,
        usd_per_hour=float(entry["gpu_cost_hr"]) / int(entry["gpus"]),
        io_shape=entry.get("io_shape", "chat"),
        burstiness=float(entry.get("burstiness", "1")),
        prefix_caching=entry.get("prefix_caching") == "1",
        requests_done_per_s=float(entry["request_throughput"]),
        gpu_util_pct=float(entry["gpu_util_pct"] or "nan"),
    )


def measured(table: str) -> list[Row]:
    """The runs of one table, sorted by configuration and rate."""
    with (DATA / f"{table}.csv").open(newline="", encoding="utf-8") as file:
        rows = [_row(entry) for entry in csv.DictReader(file)]
    return sorted(rows, key=lambda row: (row.config, row.io_shape, row.requests_per_s, row.burstiness))


def highest(rows: Iterable[Row]) -> list[Row]:
    """The run of each configuration at its highest request rate."""
    return list({row.config: row for row in rows}.values())


@cache
def simulated(
    row: Row,
    source: str = JUDGED,
    host: str = DEFAULT_HOST,
    n_requests: int = N_REQUESTS,
    chunked_prefill: bool = True,
    seed: int = 0,
) -> Run:
    """The same run, predicted: vLLM's defaults for the GPU, 90% of its memory."""
    gpu, model = find_gpu(GPUS[row.hardware]), shapes()[MODELS[row.model]]
    weight_bytes = WEIGHT_BYTES[row.precision]
    deployment = Deployment(
        gpu=gpu,
        usd_per_gpu_hour=row.usd_per_hour,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        max_num_seqs=gpu.default_max_num_seqs,
        weight_bytes_per_param=weight_bytes,
        reserve_bytes=measured_reserve_bytes(),
    )
    arrivals = Arrivals(n_requests=n_requests, requests_per_s=row.requests_per_s, burstiness=row.burstiness, seed=seed)
    latency = SOURCES[source](gpu, model, weight_bytes)
    return simulate(
        model, latency, deployment, row.gpus, arrivals, chunked_prefill=chunked_prefill, overhead=HOSTS[host]
    )


def log2_ratio(row: Row, source: str = JUDGED, host: str = DEFAULT_HOST) -> float:
    """log2 of predicted over measured output tokens a second."""
    return math.log2(simulated(row, source, host).output_tok_s / row.output_tok_s)


# The page.


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values))


def comparison(rows: list[Row], source: str = JUDGED) -> list[str]:
    """A line for each run: throughput, first token and later tokens, measured and predicted."""
    head = ("run", "model", "weights", "GPUs", "tok/s measured", "predicted", "ratio", "log2", "TTFT p50, s: measured")
    head += ("predicted", "TPOT p50, ms: measured", "predicted", "most at once")
    cells: list[list[str]] = []
    for row in rows:
        run = simulated(row, source)
        told = [row.config, MODELS[row.model], row.precision, f"{row.gpus} x {GPUS[row.hardware]}"]
        told += [f"{row.output_tok_s:.0f}", f"{run.output_tok_s:.0f}", f"{run.output_tok_s / row.output_tok_s:.2f}"]
        told += [f"{log2_ratio(row, source):+.2f}", f"{row.ttft_s:.2f}", f"{_median(run.ttft_s):.2f}"]
        told += [f"{row.tpot_s * 1e3:.1f}", f"{_median(run.tpot_s) * 1e3:.1f}", str(run.peak_running)]
        cells.append(told)
    return table(head, cells, numbers=9)


def summary(rows: list[Row]) -> list[str]:
    """Errors over `rows` for every latency source and host overhead."""
    cells: list[list[str]] = []
    for source, host in product(SOURCES, HOSTS):
        errors = np.asarray([log2_ratio(row, source, host) for row in rows])
        worst = int(np.argmax(np.abs(errors)))
        beyond = f"{int(np.sum(np.abs(errors) > 1))} of {len(rows)}"
        told = [
            f"{np.median(np.abs(errors)):.2f}",
            f"{errors[worst]:+.2f}",
            rows[worst].config,
            f"{2 ** np.mean(errors):.2f}",
        ]
        cells.append([source, host, *told, beyond])
    head = ["kernels", "host", "median abs(log2)", "worst log2", "run", "geometric mean ratio", "beyond 2x"]
    lines = table(head, cells)
    return [lines[0], "|---|---|---:|---:|---|---:|---:|", *lines[2:]]


def verdict(rows: list[Row]) -> list[str]:
    """Whether the targets are met, in words, and the finding about two and four A100s."""
    errors = np.abs([log2_ratio(row) for row in rows])
    median, worst = float(np.median(errors)), float(np.max(errors))
    two, four = (next(row for row in rows if row.config == name) for name in ("M1", "M3"))
    cheaper = simulated(two).usd_per_mtok < simulated(four).usd_per_mtok
    return [
        f"- median abs(log2) at most {TARGET_MEDIAN_LOG2}: **{median:.2f}**, {'met' if median <= TARGET_MEDIAN_LOG2 else 'missed'}",
        f"- none beyond a factor of 2: worst **{2**worst:.2f}**, {'met' if worst <= TARGET_WORST_LOG2 else 'missed'}",
        "- Mixtral on A100, dollars per million output tokens on two and on four GPUs: measured "
        f"{two.usd_per_mtok:.2f} and {four.usd_per_mtok:.2f}, predicted {simulated(two).usd_per_mtok:.2f} and "
        f"{simulated(four).usd_per_mtok:.2f}: two are {'cheaper, as measured' if cheaper else 'NOT cheaper, against the measurement'}",
    ]


def low_rates(rows: list[Row], ratio: Callable[[Row], float]) -> list[str]:
    """A ratio of each configuration at each rate."""
    rates = sorted({row.requests_per_s for row in rows})
    by_config: dict[str, list[str]] = {}
    for row in rows:
        by_config.setdefault(row.config, [row.config]).append(f"{ratio(row):.2f}")
    return table(("run", *(f"{rate:g}/s" for rate in rates)), by_config.values(), numbers=len(rates))


def second_table(rows: list[Row]) -> list[str]:
    """Chat runs, whose lengths are known or likely, with a prediction; the others with what is unknown."""
    head = ("run", "traffic", "prefix cache", "burstiness", "requests/s", "output tokens a request", "tok/s measured")
    cells: list[list[str]] = []
    for row in rows:
        output = row.output_tok_s / row.requests_done_per_s
        predicted, ratio = "prompt length unknown", ""
        if row.io_shape == "chat":
            run = simulated(row, n_requests=N_CHAT_REQUESTS)
            predicted, ratio = f"{run.output_tok_s:.0f}", f"{run.output_tok_s / row.output_tok_s:.2f}"
        asked = [row.config, row.io_shape, "on" if row.prefix_caching else "off", f"{row.burstiness:g}"]
        measured = [f"{row.requests_per_s:g}", f"{output:.0f}", f"{row.output_tok_s:.0f}"]
        cells.append([*asked, *measured, predicted, ratio])
    return table((*head, "predicted", "ratio"), cells, numbers=6)


def utilisation(rows: list[Row]) -> str:
    """The measured GPU utilisation of runs, by GPU."""
    kinds = sorted({row.hardware for row in rows}, reverse=True)
    shares = {kind: [row.gpu_util_pct for row in rows if row.hardware == kind] for kind in kinds}
    return " and ".join(f"{min(v):.0f} to {max(v):.0f}% on the {GPUS[kind]} rows" for kind, v in shares.items())


def host_figures() -> list[str]:
    """The published figures of the host with their sources."""
    entries = catalogue.read("servers.toml")["host_overhead"]
    rows = ([f"`{name}`", f"{e['value']:g}", str(e["date"]), e["source"]] for name, e in entries.items())
    lines = table(("figure", "value", "date", "source"), rows)
    return [lines[0], "|---|---:|---|---|", *lines[2:]]


def sensitivity(rows: list[Row]) -> list[str]:
    """How much the predicted throughput of `rows` moves with what is not known about the measurement."""

    def largest(**changes: Any) -> str:
        ratios = [simulated(row, **changes).output_tok_s / simulated(row).output_tok_s for row in rows]
        return f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"

    never_split = "prompts are never split (the source says `chunked_prefill: false`; vLLM 0.19 splits by default)"
    told = {
        never_split: largest(chunked_prefill=False),
        f"{2 * N_REQUESTS} requests came": largest(n_requests=2 * N_REQUESTS),
        "the random arrivals were others": largest(seed=1),
    }
    return table(("if instead", "predicted tok/s change by"), told.items(), numbers=1)


def page() -> str:
    """The page's text."""
    first = measured("vllm_servings")
    vllm = [row for row in first if row.engine == "vllm"]
    judged = highest(vllm)
    others = highest(row for row in first if row.engine != "vllm")
    overhead = default_overhead()
    parts = {
        "judged": comparison(judged),
        "verdict": verdict(judged),
        "per-pass-ms": f"{overhead.per_pass_s * 1e3:g}",
        "per-sequence-us": f"{overhead.per_sequence_s * 1e6:g}",
        "front-end-us": f"{default_overhead(1.0).front_end_s_per_token * 1e6:g}",
        "gap-us": f"{overhead.gap_s * 1e6:g}",
        "utilisation": utilisation(judged),
        "summary": summary(judged),
        "host-figures": host_figures(),
        "judged-roofline": comparison(judged, "roofline"),
        "others": comparison(others),
        "cost-ratios": low_rates(vllm, lambda row: simulated(row).usd_per_mtok / row.usd_per_mtok),
        "tpot-ratios": low_rates(vllm, lambda row: _median(simulated(row).tpot_s) / row.tpot_s),
        "ttft-ratios": low_rates(vllm, lambda row: _median(simulated(row).ttft_s) / row.ttft_s),
        "second": second_table(measured("vllm_servings_shapes")),
        "sensitivity": sensitivity(judged),
    }
    return filled("servings.md", parts)


def main() -> int:
    """Write the page; the exit code."""
    write("servings.md", page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

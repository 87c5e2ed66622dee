"""Compute the part of simulated servers in docs/evidence/serving.md, and every row, good or bad, in its tables
docs/evidence/serving-vllm*.csv.

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

from moescale.hardware.gpus import Gpu, find_gpu, measured_reserve_bytes
from moescale.latency import LatencySource
from moescale.latency.engines import NO_OVERHEAD, HostOverhead, default_overhead
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import constants_of
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
from moescale.models.published import shapes
from moescale.serving.deployment import Deployment
from moescale.serving.engine import simulate
from moescale.serving.workload import Load, Run
from moescale.typing import FloatArray
from pages import csv_text, filled, table, write

PAGE, OWNER = "evidence/serving.md", "simulated"
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
    scheduling: str = "chunked",
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
        scheduling=scheduling,
        host=HOSTS[host],
    )
    load = Load(n_requests=n_requests, requests_per_s=row.requests_per_s, burstiness=row.burstiness, seed=seed)
    return simulate(model, SOURCES[source](gpu, model, weight_bytes), deployment, row.gpus, load)


def log2_ratio(row: Row, source: str = JUDGED, host: str = DEFAULT_HOST) -> float:
    """log2 of predicted over measured output tokens a second."""
    return math.log2(simulated(row, source, host).output_tok_s / row.output_tok_s)


# The page.


def _median(values: FloatArray) -> float:
    return float(np.nanmedian(values))


def _times(predicted: float, measured: float) -> str:
    return f"{predicted / measured:.2f}"


def comparison(rows: list[Row]) -> list[str]:
    """A line for each run: throughput measured and predicted, and the ratios of its latencies."""
    head = ("run", "model", "weights", "GPUs", "tok/s measured", "predicted", "ratio", "TTFT", "TPOT")
    cells: list[list[str]] = []
    for row in rows:
        run = simulated(row)
        told = [row.config, MODELS[row.model], row.precision, f"{row.gpus} x {GPUS[row.hardware]}"]
        told += [f"{row.output_tok_s:.0f}", f"{run.output_tok_s:.0f}", _times(run.output_tok_s, row.output_tok_s)]
        told += [_times(_median(run.ttft_s), row.ttft_s), _times(_median(run.tpot_s), row.tpot_s)]
        cells.append(told)
    return table(head, cells, numbers=5)


RUNS_HEADER = (
    *("run", "engine", "model", "weights", "gpus", "gpu", "requests_per_s", "kernels"),
    *("output_tok_s_measured", "output_tok_s_predicted", "output_tok_s_ratio", "output_tok_s_log2"),
    *("ttft_p50_s_measured", "ttft_p50_s_predicted", "ttft_p50_ratio"),
    *("tpot_p50_ms_measured", "tpot_p50_ms_predicted", "tpot_p50_ratio"),
    *("usd_per_mtok_measured", "usd_per_mtok_predicted", "usd_per_mtok_ratio", "peak_running"),
)


def run_cells(row: Row, source: str = JUDGED) -> list[object]:
    """A run, measured and predicted."""
    run = simulated(row, source)
    ttft, tpot = _median(run.ttft_s), _median(run.tpot_s)
    told: list[object] = [row.config, row.engine, MODELS[row.model], row.precision, row.gpus, GPUS[row.hardware]]
    told += [f"{row.requests_per_s:g}", source, f"{row.output_tok_s:.0f}", f"{run.output_tok_s:.0f}"]
    told += [_times(run.output_tok_s, row.output_tok_s), f"{log2_ratio(row, source):+.2f}"]
    told += [f"{row.ttft_s:.2f}", f"{ttft:.2f}", _times(ttft, row.ttft_s)]
    told += [f"{row.tpot_s * 1e3:.1f}", f"{tpot * 1e3:.1f}", _times(tpot, row.tpot_s)]
    told += [f"{row.usd_per_mtok:.2f}", f"{run.usd_per_mtok:.2f}", _times(run.usd_per_mtok, row.usd_per_mtok)]
    return [*told, run.peak_running]


def summary(rows: list[Row]) -> list[str]:
    """Errors over `rows` for every latency source and host overhead."""
    cells: list[list[str]] = []
    for source, host in product(SOURCES, HOSTS):
        errors = np.asarray([log2_ratio(row, source, host) for row in rows])
        worst = int(np.argmax(np.abs(errors)))
        told = [f"{np.median(np.abs(errors)):.2f}", f"{errors[worst]:+.2f} ({rows[worst].config})"]
        cells.append([source, host, *told, f"{2 ** np.mean(errors):.2f}"])
    return table(["kernels", "host", "median abs(log2)", "worst log2", "geometric mean ratio"], cells, numbers=3)


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


def by_rate(rows: list[Row]) -> list[str]:
    """Predicted over measured at each request rate: the median run, the lowest and the highest."""
    rates = sorted({row.requests_per_s for row in rows})
    ratios: dict[str, Callable[[Row], float]] = {
        "$/Mtok": lambda row: simulated(row).usd_per_mtok / row.usd_per_mtok,
        "TPOT": lambda row: _median(simulated(row).tpot_s) / row.tpot_s,
        "TTFT": lambda row: _median(simulated(row).ttft_s) / row.ttft_s,
    }
    cells: list[list[str]] = []
    for name, ratio in ratios.items():
        at = ([ratio(row) for row in rows if row.requests_per_s == rate] for rate in rates)
        cells.append([name, *(f"{np.median(found):.2f} ({min(found):.2f}-{max(found):.2f})" for found in at)])
    return table(("ratio", *(f"{rate:g}/s" for rate in rates)), cells, numbers=len(rates))


def chat_ratio(row: Row) -> tuple[float, float] | None:
    """Predicted output tokens a second of a run of the second table, and over measured; None where its prompts are unknown."""
    if row.io_shape != "chat":
        return None
    predicted = simulated(row, n_requests=N_CHAT_REQUESTS).output_tok_s
    return predicted, predicted / row.output_tok_s


def second_cells(row: Row) -> list[object]:
    """A run of the second table: chat runs, whose lengths are known or likely, with a prediction."""
    asked: list[object] = [row.config, row.io_shape, "on" if row.prefix_caching else "off", f"{row.burstiness:g}"]
    asked += [f"{row.requests_per_s:g}", f"{row.output_tok_s / row.requests_done_per_s:.0f}", f"{row.output_tok_s:.0f}"]
    found = chat_ratio(row)
    return [*asked, *(("", "") if found is None else (f"{found[0]:.0f}", f"{found[1]:.2f}"))]


def span(values: Iterable[float]) -> str:
    """The least and the largest."""
    found = list(values)
    return f"{min(found):.2f} to {max(found):.2f}"


def utilisation(rows: list[Row]) -> str:
    """The measured GPU utilisation of runs, by GPU."""
    kinds = sorted({row.hardware for row in rows}, reverse=True)
    shares = {kind: [row.gpu_util_pct for row in rows if row.hardware == kind] for kind in kinds}
    return " and ".join(f"{min(v):.0f} to {max(v):.0f}% on the {GPUS[kind]} rows" for kind, v in shares.items())


def sensitivity(rows: list[Row]) -> dict[str, str]:
    """How much the predicted throughput of `rows` moves with what is not known about the measurement."""

    def largest(**changes: Any) -> str:
        ratios = [simulated(row, **changes).output_tok_s / simulated(row).output_tok_s for row in rows]
        return f"{min(ratios) - 1:+.1%} to {max(ratios) - 1:+.1%}"

    return {
        "prompts-first": largest(scheduling="separate"),
        "twice-as-many": largest(n_requests=2 * N_REQUESTS),
        "other-arrivals": largest(seed=1),
    }


@cache
def first_table() -> tuple[list[Row], list[Row], list[Row]]:
    """Of the first table: vLLM's runs, those at the highest rates, and the other engine's at the highest rates."""
    rows = measured("vllm_servings")
    vllm = [row for row in rows if row.engine == "vllm"]
    return vllm, highest(vllm), highest(row for row in rows if row.engine != "vllm")


def csvs() -> dict[str, str]:
    """The tables beside the page, by name."""
    vllm, judged, others = first_table()
    runs = [run_cells(row) for row in (*vllm, *others)] + [run_cells(row, "roofline") for row in judged]
    second = ("run", "traffic", "prefix_cache", "burstiness", "requests_per_s", "output_tokens_per_request")
    second += ("output_tok_s_measured", "output_tok_s_predicted", "ratio")
    return {
        "evidence/serving-vllm.csv": csv_text(RUNS_HEADER, runs),
        "evidence/serving-vllm-lengths.csv": csv_text(second, map(second_cells, measured("vllm_servings_shapes"))),
    }


def page() -> str:
    """The text of docs/evidence/serving.md with its parts of simulated servers."""
    vllm, judged, others = first_table()
    second = measured("vllm_servings_shapes")
    chat = [found[1] for found in map(chat_ratio, second) if found is not None]
    overhead = default_overhead()
    parts = {
        "judged": comparison(judged),
        "verdict": verdict(judged),
        "per-pass-ms": f"{overhead.per_pass_s * 1e3:g}",
        "per-sequence-us": f"{overhead.per_sequence_s * 1e6:g}",
        "gap-us": f"{overhead.gap_s * 1e6:g}",
        "utilisation": utilisation(judged),
        "summary": summary(judged),
        "others": span(simulated(row).output_tok_s / row.output_tok_s for row in others),
        "by-rate": by_rate(vllm),
        "chat": f"{len(chat)}",
        "chat-ratios": span(chat),
        "unknown": f"{len(second) - len(chat)}",
        **sensitivity(judged),
    }
    return filled(PAGE, parts, OWNER)


def main() -> int:
    """Write the page and its tables; the exit code."""
    for name, text in csvs().items():
        write(name, text)
    write(PAGE, page())
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Compute the part of measured kernels in docs/evidence/kernels.md: how composed latencies compare with the package's own engine,
and how left-out attention and experts fare. Every figure is in docs/evidence/kernels-{engine,attention,experts}.csv.

python scripts/document_silicon.py [--stored]   (--stored: the page anew from the tables that are there)
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from left_out_kernels import leave_largest_out, leave_one_shape_out
from moescale.hardware.gpus import Gpu, find_gpu, gpus
from moescale.latency.attention import attention_kinds
from moescale.latency.kernels.moe import LOAD
from moescale.latency.kernels.tables import default_version, engines, find_system, measured_formats, systems
from moescale.latency.silicon import Silicon
from moescale.models.hf_config import from_config
from pages import csv_text, filled, read_csv, table, write

PAGE, OWNER = "evidence/kernels.md", "silicon"
CSVS = tuple(f"evidence/kernels-{name}.csv" for name in ("engine", "attention", "experts"))
CONFIGS = Path("examples/configs")
Rows = Sequence[Mapping[str, str]]
MODELS = ("mixtral-8x7b", "qwen3-30b-a3b", "llama-3.1-8b")
GPUS = ("a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "l40s")
PASSES = ((1, 128), (4, 1024), (16, 512), (64, 512), (256, 600), (512, 300))  # requests, tokens
MEMORY_LEFT = 0.25  # of what attention's largest rows hold: those beyond it are left out and predicted
MOST_TOKENS = 16384  # of one pass: more is no server's setting


def engine_errors(config: Path, gpu: Gpu, count: int, backend: str) -> tuple[list[float], list[float]]:
    """Ours over the engine's, of decoding and prefill passes; empty where the engine refuses."""
    from aiconfigurator_core.sdk.engine import EngineHandle

    content: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    own_links = replace(gpu, silicon_link_system=None)  # as the engine has them, also where a server's are another's
    source, model = Silicon(own_links, backend, host_s=0.0), from_config(content)
    decode: list[float] = []
    prefill: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(content), encoding="utf-8")
        try:
            judge = EngineHandle.compile(
                folder, str(gpu.silicon_system), backend, tp_size=count, moe_tp_size=count, moe_ep_size=1,
                gemm_quant_mode="bfloat16", moe_quant_mode="bfloat16", kvcache_quant_mode="bfloat16",
                fmha_quant_mode="bfloat16",
            )  # fmt: skip
            for batch, tokens in PASSES:
                ours = float(source.decode_s(model, count, batch, tokens + 1))
                decode.append(ours * 1e3 / judge.predict_decode_latency(batch, tokens, 2) - 1)
                if batch * tokens <= MOST_TOKENS:
                    ours = float(source.prefill_s(model, count, batch, tokens))
                    prefill.append(ours * 1e3 / judge.predict_prefill_latency(batch, tokens) - 1)
        except Exception:  # it raises errors of every kind for shapes and formats that its tables lack
            return [], []
    return decode, prefill


def engine_csv() -> str:
    """The comparison with the engine; a row without figures where it refuses."""
    rows: list[list[str]] = []
    for name, gpu, backend in product(MODELS, map(find_gpu, GPUS), ("vllm", "trtllm", "sglang")):
        found = {count: engine_errors(CONFIGS / f"{name}.json", gpu, count, backend) for count in (1, 2, 4, 8)}
        answered = {count: pair for count, pair in found.items() if pair[0]}
        if not answered:
            rows.append([name, gpu.name, backend, "", "", "", ""])
            continue
        worst = [max((error for pair in answered.values() for error in pair[stage]), key=abs) for stage in (0, 1)]
        typical = float(np.median([abs(e) for pair in answered.values() for stage in pair for e in stage]))
        figures = [f"{typical:.4f}", f"{worst[0]:+.4f}", f"{worst[1]:+.4f}"]
        rows.append([name, gpu.name, backend, " ".join(map(str, answered)), *figures])
    return csv_text(("model", "gpu", "engine", "gpu_counts", "median_error", "worst_decode", "worst_prefill"), rows)


def versions() -> list[tuple[str, str, str]]:
    """System, engine and version of every table."""
    return [(system, backend, default_version(system, backend)) for system in systems() for backend in engines(system)]


def experts_csv() -> str:
    """Every left-out shape of each system, engine and number format."""
    rows = [
        [system, backend, version, kind, s.shape, s.rows, f"{s.median_error:.4f}", f"{s.formula_error:.4f}"]
        for (system, backend, version), kind in product(versions(), ("bfloat16", "fp8_block"))
        if kind in measured_formats("moe", system, backend, version)
        and len(shapes := leave_one_shape_out(system, backend, version, kind)) >= 3
        for s in shapes
    ]
    head = ("system", "engine", "version", "format", "shape", "rows", "median_error", "formula_median_error")
    return csv_text(head, rows)


def attention_csv() -> str:
    """The errors of left-out attention of each system, engine and stage, all head dimensions in bf16."""
    rows: list[list[str]] = []
    for system, backend, version in versions():
        for stage, name in (("generation", "decode"), ("context", "prefill")):
            kinds = attention_kinds(system, backend, version, stage, "bfloat16")
            left_out = (
                leave_largest_out(system, backend, version, stage, "bfloat16", head_dim, MEMORY_LEFT)
                for head_dim, window in kinds
                if window == 0.0
            )
            off = np.concatenate(list(left_out))
            figures = [np.median(np.abs(off)), np.quantile(np.abs(off), 0.9), np.mean(off)]
            rows.append([system, backend, version, name, *(f"{figure:.4f}" for figure in figures)])
    head = ("system", "engine", "version", "stage", "median_abs_log", "p90_abs_log", "mean_log")
    return csv_text(head, rows)


def is_scaled(gpu: Gpu) -> bool:
    """Whether a card's kernels are those of another part, whose memory is faster or slower."""
    if gpu.silicon_system is None:
        return False
    measured = find_system(gpu.silicon_system).memory_bandwidth_bytes_per_s
    return abs(measured / gpu.memory_bandwidth_bytes_per_s - 1) > 0.02


def checks(engine: Rows, attention: Rows, experts: Rows) -> list[str]:
    """The checks of the page, a line each: the median of the tables' errors, and the worst."""
    answered = [row for row in engine if row["median_error"]]
    rows: list[list[str]] = []
    for stage in ("decode", "prefill"):
        worst = max(answered, key=lambda row: abs(float(row[f"worst_{stage}"])))
        at = f"{float(worst[f'worst_{stage}']):+.0%} ({worst['model']}, {worst['gpu']}, {worst['engine']})"
        count = f"{len(answered)} servers"
        rows.append(
            [f"sum of kernels against the package's engine, {stage}", count, _median(answered, "median_error"), at]
        )
    for stage in ("decode", "prefill"):
        mine = [row for row in attention if row["stage"] == stage]
        worst = max(mine, key=lambda row: float(row["median_abs_log"]))
        at = f"{float(worst['median_abs_log']):.0%} ({worst['system']}, {worst['engine']})"
        name = f"attention beyond the measured sizes, {stage}"
        rows.append([name, f"{len(mine)} tables", _median(mine, "median_abs_log"), at])
    for kind in ("bfloat16", "fp8_block"):
        mine = [row for row in experts if row["format"] == kind]
        worst = max(mine, key=lambda row: float(row["median_error"]))
        at = f"{float(worst['median_error']):.0%} ({worst['shape']}, {worst['system']}, {worst['engine']})"
        name = f"experts of a shape that was left out, {kind}"
        rows.append([name, f"{len(mine)} shapes", _median(mine, "median_error"), at])
    return table(("check", "cases", "median error", "worst case"), rows, numbers=3)


def _median(rows: Rows, name: str) -> str:
    return f"{np.median([float(row[name]) for row in rows]):.1%}"


def page(tables: Sequence[Rows]) -> str:
    """The text of docs/evidence/kernels.md with its part of measured kernels, from the stored tables."""
    engine, attention, experts = tables
    answered = [float(row["median_error"]) for row in engine if row["median_error"]]
    decoding = [float(row["mean_log"]) for row in attention if row["stage"] == "decode"]
    vllm = [row for row in experts if row["engine"] == "vllm"]
    formula = [float(row["formula_median_error"]) < float(row["median_error"]) for row in experts]
    parts = {
        "scaled": ", ".join(gpu.name for gpu in gpus().values() if is_scaled(gpu)),
        "load": LOAD,
        "passes": ", ".join(f"{b} x {t}" for b, t in PASSES),
        "most-tokens": f"{MOST_TOKENS:,}",
        "memory-left": f"{MEMORY_LEFT:.0%}",
        "checks": checks(engine, attention, experts),
        "refused": f"{len(engine) - len(answered)}",
        "largest-median": f"{max(answered):.1%}",
        "decode-bias": f"{min(decoding):+.0%} to {max(decoding):+.0%}",
        "vllm-experts": _median(vllm, "median_error"),
        "formula-better": f"{np.mean(formula):.0%}",
    }
    return filled(PAGE, parts, OWNER)


if __name__ == "__main__":
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    if "--stored" not in sys.argv:
        for name, text in zip(CSVS, (engine_csv(), attention_csv(), experts_csv()), strict=True):
            write(name, text)
    write(PAGE, page([read_csv(name) for name in CSVS]))

"""Compute the tables of docs/silicon.md: how composed latencies compare with the package's own engine, and how left-out experts fare.

python scripts/document_silicon.py
"""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from moescale.hardware.gpus import Gpu, find_gpu, gpus
from moescale.latency.kernels.attention import attention_kinds, leave_largest_out
from moescale.latency.kernels.moe import leave_one_shape_out, moe_types
from moescale.latency.kernels.tables import default_version, engines, find_system, systems
from moescale.latency.silicon import LOAD, Silicon
from moescale.models.hf_config import from_config
from pages import filled, table, write

CONFIGS = Path("examples/configs")
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


def engine_table() -> list[str]:
    """The comparison with the engine."""
    rows: list[list[str]] = []
    for name, gpu, backend in product(MODELS, map(find_gpu, GPUS), ("vllm", "trtllm", "sglang")):
        found = {count: engine_errors(CONFIGS / f"{name}.json", gpu, count, backend) for count in (1, 2, 4, 8)}
        answered = {count: pair for count, pair in found.items() if pair[0]}
        if not answered:
            rows.append([name, gpu.name, backend, "", "refused", ""])
            continue
        worst = [max((error for pair in answered.values() for error in pair[stage]), key=abs) for stage in (0, 1)]
        typical = float(np.median([abs(e) for pair in answered.values() for stage in pair for e in stage]))
        both = f"{worst[0]:+.1%}, {worst[1]:+.1%}"
        rows.append([name, gpu.name, backend, ", ".join(map(str, answered)), f"{typical:.1%}", both])
    return table(("model", "GPU", "engine", "GPU counts", "median", "worst decoding, prefill"), rows)


def versions() -> list[tuple[str, str, str]]:
    """System, engine and version of every table."""
    return [(system, backend, default_version(system, backend)) for system in systems() for backend in engines(system)]


def left_out_table() -> list[str]:
    """The leave-one-shape-out errors of each system, engine and number format."""
    rows: list[list[str]] = []
    for (system, backend, version), kind in product(versions(), ("bfloat16", "fp8_block")):
        if kind not in moe_types(system, backend, version):
            continue
        shapes = leave_one_shape_out(system, backend, version, kind, LOAD)
        if len(shapes) < 3:
            continue
        best, *_, worst = sorted(shapes, key=lambda shape: shape.median_error)
        middle, alone = (float(np.median([getattr(s, n) for s in shapes])) for n in ("median_error", "formula_error"))
        errors = [
            f"{best.median_error:.1%}",
            f"{middle:.1%}",
            f"{worst.median_error:.1%} ({worst.shape})",
            f"{alone:.1%}",
        ]
        rows.append([system, f"{backend} {version}", kind, str(len(shapes)), *errors])
    head = ("GPU", "engine", "format", "shapes", "best shape", "median shape", "worst shape", "formula")
    return table(head, rows)


def shape_table(system: str) -> list[str]:
    """Every left-out shape of one system's vLLM tables."""
    shapes = leave_one_shape_out(system, "vllm", default_version(system, "vllm"), "bfloat16", LOAD)
    rows = ([str(s.shape), str(s.rows), f"{s.median_error:.1%}", f"{s.formula_error:.1%}"] for s in shapes)
    return table(("shape", "rows", "error", "formula alone"), rows)


def attention_table() -> list[str]:
    """The errors of left-out attention of each system and engine: decoding and prompts, all head dimensions in bf16."""
    rows: list[list[str]] = []
    for system, backend, version in versions():
        cells = [system, f"{backend} {version}"]
        for stage in ("generation", "context"):
            kinds = attention_kinds(system, backend, version, stage, "bfloat16")
            left_out = (
                leave_largest_out(system, backend, version, stage, "bfloat16", head_dim, MEMORY_LEFT)
                for head_dim, window in kinds
                if window == 0.0
            )
            off = np.concatenate(list(left_out))
            cells.append(f"{np.median(np.abs(off)):.1%}, {np.quantile(np.abs(off), 0.9):.0%}, {np.mean(off):+.1%}")
        rows.append(cells)
    return table(("GPU", "engine", "decoding", "prompts"), rows)


def is_scaled(gpu: Gpu) -> bool:
    """Whether a card's kernels are those of another part, whose memory is faster or slower."""
    if gpu.silicon_system is None:
        return False
    measured = find_system(gpu.silicon_system).memory_bandwidth_bytes_per_s
    return abs(measured / gpu.memory_bandwidth_bytes_per_s - 1) > 0.02


def page() -> str:
    """The page's text."""
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    parts = {
        "scaled": ", ".join(gpu.name for gpu in gpus().values() if is_scaled(gpu)),
        "load": LOAD,
        "passes": ", ".join(f"{b} x {t}" for b, t in PASSES),
        "most-tokens": f"{MOST_TOKENS:,}",
        "memory-left": f"{MEMORY_LEFT:.0%}",
        "engine": engine_table(),
        "attention": attention_table(),
        "left-out": left_out_table(),
        **{system: shape_table(system) for system in ("a100_sxm", "h100_sxm")},
    }
    return filled("silicon.md", parts)


if __name__ == "__main__":
    write("silicon.md", page())

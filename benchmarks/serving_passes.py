"""Predicted over measured passes of vLLM 0.20.1, and the floor of its passes with prompts.

`python benchmarks/serving_passes.py [--fit]`

Measured: $MOESCALE_SHARED/data/serving_passes/vllm_passes.csv, 3,938 groups of passes by layout and size on B300 (inferred).
The rule stands in docs/evidence/serving.md: a group of three passes or more goes to `fit` or `check` by the parity of the
last byte of a SHA-256; --fit scans the floors on the passes with prompts of `fit` and prints their errors in `check`.
Predicted: vLLM's kernels with its preset (floors, and a host that works while the GPU runs).
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import serving_rows
from moescale.hardware.gpus import find_gpu
from moescale.latency.engines import engines, find_host
from moescale.latency.silicon import Silicon
from moescale.models.hf_config import from_config
from moescale.serving.deployment import Deployment
from moescale.serving.servers import Servers
from moescale.typing import FloatArray

MODELS = {"Qwen/Qwen3.6-35B-A3B": "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3-32B": "Qwen/Qwen3-32B"}  # alike in shape
LEAST_PASSES = 3
KEY = (
    "run",
    "phase",
    "segment",
    "ctx_tokens",
    "ctx_requests",
    "ctx_kv_tokens_1k",
    "decode_requests_rank0",
    "mean_decode_kv_1k",
)
GRID_S = np.arange(21) * 1e-4
Row = Mapping[str, str]


def rows() -> list[Row]:
    """The measured groups of models that have kernels."""
    path = Path(os.environ["MOESCALE_SHARED"]) / "data/serving_passes/vllm_passes.csv"
    lines = (line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return [r for r in csv.DictReader(lines) if r["model"] in MODELS and int(r["passes"]) >= LEAST_PASSES]


def half(row: Row) -> str:
    """`fit` or `check`."""
    digest = hashlib.sha256("|".join(row[name] for name in KEY).encode()).digest()
    return "check" if digest[-1] % 2 else "fit"


def kernels_s(row: Row) -> tuple[float, float]:
    """Seconds of the kernels of a pass, and its tokens on rank 0."""
    data, tensor = float(row["dp"]), float(row["tp"])
    stated = serving_rows.config(MODELS[row["model"]])
    assert stated is not None
    model, gpu = from_config(stated), find_gpu("b300-sxm")
    decodes, prompts, new = (float(row[name]) for name in ("decode_requests_rank0", "ctx_requests", "ctx_tokens"))
    each = new / prompts if prompts else 1.0
    total = each + float(row["ctx_kv_tokens_1k"]) / prompts if prompts else 1.0
    context = max(float(row["mean_decode_kv_1k"]), 1.0)
    d = Deployment(
        gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=total, output_tokens=1.0, context_tokens=min(context, 1e6),
        longest_request_tokens=1e6, prefix_hit=1.0 - each / total, attention_dp=data, expert_parallel=float(row["ep"]),
        scheduling="chunked",
    )  # fmt: skip
    servers = Servers(model, np.asarray(tensor * data), Silicon(gpu, host_s=0.0), d)
    batch, whole = np.asarray(decodes * data), np.asarray(prompts)
    if not prompts:
        return float(servers.pass_s(batch)), decodes
    if not decodes:
        return float(servers.pass_s(None, whole)), new
    return float(servers.pass_s(batch, whole)), new + decodes


def priced(
    found: Sequence[tuple[Row, float, float]], floors_s: tuple[float, float], graph_tokens: float
) -> Iterator[float]:
    """Seconds of passes whose kernels are known, with floors a layer above and up to `graph_tokens` (0: one floor)."""
    host = find_host("asynchronous")
    for row, kernels, tokens in found:
        layers = 40.0 if "A3B" in row["model"] else 64.0
        floor = floors_s[0] if tokens > graph_tokens else floors_s[1]
        seconds = max(kernels, layers * floor if float(row["ctx_requests"]) else 0.0)
        yield float(host.pass_s(np.asarray(seconds), float(row["decode_requests_rank0"])))


def errors(found: Sequence[tuple[Row, float, float]], seconds: Iterable[float]) -> FloatArray:
    """ln of predicted over measured."""
    return np.log([s / float(row["latency_ms_median"]) * 1e3 for (row, *_), s in zip(found, seconds, strict=True)])


def fit(found: list[tuple[Row, float, float]], graph_tokens: float) -> None:
    """Print the floors that suit `fit` best, by kind of model, and the errors in both halves."""
    for kind, experts in (("experts", True), ("dense", False)):
        mine = [f for f in found if ("A3B" in f[0]["model"]) == experts and float(f[0]["ctx_requests"])]
        sets = {name: [f for f in mine if half(f[0]) == name] for name in ("fit", "check")}

        def error(
            name: str, floors: tuple[float, float], most: float, sets: dict[str, list[tuple[Row, float, float]]] = sets
        ) -> float:
            return float(np.mean(np.abs(errors(sets[name], priced(sets[name], floors, most)))))

        one = min(((h, h) for h in GRID_S), key=lambda hs: error("fit", hs, 0.0))
        two = min(((h, g) for h in GRID_S for g in GRID_S if g <= h), key=lambda hs: error("fit", hs, graph_tokens))
        for label, floors, most in (
            ("none", (0.0, 0.0), 0.0),
            ("one floor", one, 0.0),
            ("two floors", two, graph_tokens),
        ):
            shown = ", ".join(f"{name} {error(name, floors, most):.3f} (n {len(sets[name])})" for name in sets)
            print(f"{kind} {label} {floors[0] * 1e3:.1f} / {floors[1] * 1e3:.1f} ms: mean |ln ratio| {shown}")


def main() -> None:
    """Print ratios by model, layout and phase."""
    parser = argparse.ArgumentParser(description="Predicted over measured passes.")
    parser.add_argument("--fit", action="store_true")
    asked = parser.parse_args()
    preset = engines()["vllm"]
    known = [(row, *kernels_s(row)) for row in rows()]
    found = [f for f in known if np.isfinite(f[1])]
    if asked.fit:
        fit(found, preset.graph_tokens)
    slices: dict[tuple[str, str, str], list[tuple[Row, float, float]]] = defaultdict(list)
    for f in found:
        row = f[0]
        layout = f"tp{row['tp']} dp{row['dp']} ep{row['ep']}"
        slices[row["model"], layout, row["phase"]].append(f)
        slices[row["model"], "all", row["phase"]].append(f)
    for (model, layout, phase), mine in sorted(slices.items()):
        experts = "A3B" in model
        above, within = (
            (preset.hybrid_layer_s, preset.graph_expert_layer_s)
            if experts
            else (preset.dense_layer_s, preset.graph_dense_layer_s)
        )
        before, after = (errors(mine, priced(mine, hs, preset.graph_tokens)) for hs in ((0.0, 0.0), (above, within)))
        cells = (f"{np.exp(np.median(e)):.2f} ({np.mean(np.abs(e) <= np.log(1.25)):.0%})" for e in (before, after))
        print(f"{model} {layout:12s} {phase:8s} n {len(mine):4d}  without floors {next(cells)}  with {next(cells)}")
    print(f"{len(known) - len(found)} groups without an answer", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Write docs/silicon.md: how composed latencies compare with the package's own engine, and how left-out experts fare.

python scripts/document_silicon.py
"""

from __future__ import annotations

import json
import logging
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moescale.hardware.gpus import Gpu, find_gpu, gpus
from moescale.io.files import write_atomically
from moescale.latency.kernels.attention import attention_kinds, leave_largest_out
from moescale.latency.kernels.moe import leave_one_shape_out, moe_types
from moescale.latency.kernels.tables import default_version, engines, find_system, systems
from moescale.latency.silicon import LOAD, Silicon
from moescale.models.hf_config import from_config

PAGE = Path("docs/silicon.md")
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
    """Rows of the comparison with the engine."""
    lines: list[str] = []
    for name in MODELS:
        for gpu in map(find_gpu, GPUS):
            for backend in ("vllm", "trtllm", "sglang"):
                found = {count: engine_errors(CONFIGS / f"{name}.json", gpu, count, backend) for count in (1, 2, 4, 8)}
                answered = {count: pair for count, pair in found.items() if pair[0]}
                if not answered:
                    lines.append(f"| {name} | {gpu.name} | {backend} | | refused | |")
                    continue
                worst = [
                    max((error for pair in answered.values() for error in pair[stage]), key=abs) for stage in (0, 1)
                ]
                typical = float(np.median([abs(e) for pair in answered.values() for stage in pair for e in stage]))
                lines.append(
                    f"| {name} | {gpu.name} | {backend} | {', '.join(map(str, answered))} | {typical:.1%} | "
                    f"{worst[0]:+.1%}, {worst[1]:+.1%} |"
                )
    return lines


def left_out_table() -> list[str]:
    """Rows of the leave-one-shape-out errors, one a system, engine and number format."""
    lines: list[str] = []
    for system in systems():
        for backend in engines(system):
            version = default_version(system, backend)
            for kind in ("bfloat16", "fp8_block"):
                if kind not in moe_types(system, backend, version):
                    continue
                shapes = leave_one_shape_out(system, backend, version, kind, LOAD)
                if len(shapes) < 3:
                    continue
                errors = sorted(shapes, key=lambda shape: shape.median_error)
                middle = float(np.median([shape.median_error for shape in shapes]))
                alone = float(np.median([shape.formula_error for shape in shapes]))
                lines.append(
                    f"| {system} | {backend} {version} | {kind} | {len(shapes)} | {errors[0].median_error:.1%} | {middle:.1%} | "
                    f"{errors[-1].median_error:.1%} ({errors[-1].shape}) | {alone:.1%} |"
                )
    return lines


def shape_table(system: str) -> list[str]:
    """Rows of every left-out shape of one system's vLLM tables."""
    shapes = leave_one_shape_out(system, "vllm", default_version(system, "vllm"), "bfloat16", LOAD)
    return [
        f"| {shape.shape} | {shape.rows} | {shape.median_error:.1%} | {shape.formula_error:.1%} |" for shape in shapes
    ]


def attention_table() -> list[str]:
    """Rows of the errors of left-out attention, one a system and engine: decoding and prompts, all head dimensions in bf16."""
    lines: list[str] = []
    for system in systems():
        for backend in engines(system):
            version, cells = default_version(system, backend), list[str]()
            for stage in ("generation", "context"):
                off = np.concatenate(
                    [
                        leave_largest_out(system, backend, version, stage, "bfloat16", head_dim, MEMORY_LEFT)
                        for head_dim, window in attention_kinds(system, backend, version, stage, "bfloat16")
                        if window == 0.0
                    ]
                )
                cells.append(f"{np.median(np.abs(off)):.1%}, {np.quantile(np.abs(off), 0.9):.0%}, {np.mean(off):+.1%}")
            lines.append(f"| {system} | {backend} {version} | {' | '.join(cells)} |")
    return lines


def page() -> str:
    """The page's text."""
    logging.getLogger("aiconfigurator_core").setLevel(logging.ERROR)
    scaled = ", ".join(
        gpu.name
        for gpu in gpus().values()
        if gpu.silicon_system is not None
        and abs(find_system(gpu.silicon_system).memory_bandwidth_bytes_per_s / gpu.memory_bandwidth_bytes_per_s - 1)
        > 0.02
    )
    lines = [
        "# Latency from measured kernels",
        "",
        "Written by `python scripts/document_silicon.py`; do not edit.",
        "",
        "`--latency silicon` composes every pass of a server from the kernel tables that NVIDIA measured and ships with",
        "aiconfigurator-core (Apache-2.0): matrix products, attention, experts, all-reduces. The tables are read and",
        "interpolated here, linear in the logarithms, so that any shape has an answer and one call answers for arrays of",
        "models, GPU counts and batches. Below are its two checks. Neither was used to adjust anything, but for the four",
        "likeness widths of `latency/kernels/moe.py`, which were chosen by the mean left-out error of two of the tables",
        "(A100 and H100, vLLM, bf16).",
        "",
        f"Cards that are scaled from a measured part of the same cores, kernel by kernel, with the ratio of rooflines: {scaled}.",
        "What no table says and every answer assumes: tokens fall on experts as unevenly as the power law that the package",
        f"takes for MoE models ({LOAD}; `balanced` can be asked for where it was measured); the host needs 1.4 ms a pass, and",
        "works while the GPU does, so that it sets the pace of small models only; kernels run one after the other, inside",
        "CUDA graphs.",
        "",
        "## Against the package's own engine",
        "",
        "The engine answers for the shapes that it tabulates. Ours over the engine's, minus one, in bf16: the median of the",
        f"absolute errors over all passes and GPU counts, and the worst decoding and prefill pass. Passes: "
        f"{', '.join(f'{b} x {t}' for b, t in PASSES)} (requests x tokens; prefill up to {MOST_TOKENS:,} tokens).",
        "",
        "| model | GPU | engine | GPU counts | median | worst decoding, prefill |",
        "|---|---|---|---|---|---|",
        *engine_table(),
        "",
        "## Attention that no memory held",
        "",
        "Rows with more requests and tokens than a GPU's memory holds are missing, and filled from smaller ones (`grid_of` in",
        f"`latency/kernels/log_grid.py` states the rule). Here the rows beyond {MEMORY_LEFT:.0%} of each pair of head counts' largest are left out",
        "as well, and predicted: median and 90% quantile of |log(predicted / measured)|, and the mean of the logarithm.",
        "The rule was chosen among three by such errors.",
        "",
        "| GPU | engine | decoding | prompts |",
        "|---|---|---|---|",
        *attention_table(),
        "",
        "## Experts that no table holds",
        "",
        "Each measured shape (model width x expert width, experts a token meets, experts) is left out in all its tensor- and",
        "expert-parallel cuts, and predicted from the others. The error of a shape is the median of |predicted / measured - 1|",
        "over its rows, 1 to 65,536 tokens and all widths it was cut to. `formula` is the nine-constant formula without the",
        "likenesses, the median over shapes.",
        "",
        "| GPU | engine | format | shapes | best shape | median shape | worst shape | formula |",
        "|---|---|---|---|---|---|---|---|",
        *left_out_table(),
        "",
        *(
            line
            for system in ("a100_sxm", "h100_sxm")
            for line in (
                f"### {system}, vLLM, bf16",
                "",
                "| shape | rows | error | formula alone |",
                "|---|---|---|---|",
                *shape_table(system),
                "",
            )
        ),
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    write_atomically(PAGE, page())

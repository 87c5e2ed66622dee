"""Measure the roofline's constants on aiconfigurator-core's kernel tables (vLLM, bf16, A100-SXM-80GB and H100-SXM).

`python scripts/calibrate_roofline.py` prints the values that src/moescale/catalogue/roofline.toml holds. Each is the
mean over both GPUs of a median over kernels. No measured server enters: servers stay a check of the whole model.
"""

from __future__ import annotations

import importlib.resources
from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from moescale.architecture import FloatArray

# System and vLLM version of the tables; data sheet: memory bytes/s, dense bf16 FLOP/s, NVLink bytes/s one way.
SYSTEMS = (("a100_sxm", "0.14.0", 2.039e12, 312e12, 300e9), ("h100_sxm", "0.24.0", 3.35e12, 989e12, 450e9))
LONG_S = 50e-6  # a kernel this long is not dominated by its launch
TINY_S = 1e-6  # a kernel whose roofline is this short is nothing but its launch
BF16 = 2.0


def columns(path: Path, **equal: str) -> dict[str, FloatArray]:
    """The numeric columns of the rows with these text values; latency in seconds."""
    table = pq.read_table(path, filters=[(name, "=", value) for name, value in equal.items()])
    numeric = [field.name for field in table.schema if str(field.type) in ("int64", "int32", "double")]
    read = {name: np.asarray(table[name].to_numpy(), dtype=np.float64) for name in numeric}
    return {**read, "latency": read["latency"] / 1e3}


def main() -> None:
    root = Path(str(importlib.resources.files("aiconfigurator_core"))) / "systems" / "data"
    found: dict[str, list[float]] = defaultdict(list)
    for system, version, bandwidth, peak, link in SYSTEMS:

        def study(
            kind: str,
            moved: FloatArray,
            flops: FloatArray,
            measured: FloatArray,
            bw: float = bandwidth,
            pk: float = peak,
        ) -> None:
            memory_s, compute_s = moved / bw, flops / pk
            by_memory = (memory_s > 4 * compute_s) & (memory_s > LONG_S)
            by_compute = (compute_s > 4 * memory_s) & (compute_s > LONG_S)
            tiny = np.maximum(memory_s, compute_s) < TINY_S
            for name, values in (
                (f"{kind} memory", (memory_s / measured)[by_memory]),
                (f"{kind} compute", (compute_s / measured)[by_compute]),
                (f"{kind} launch_s", measured[tiny]),
            ):
                if values.size >= 100:
                    # The fastest tenth of tiny kernels is the launch; the rest still does some work.
                    found[name].append(float(np.quantile(values, 0.1 if "launch" in name else 0.5)))

        c = columns(root / system / "gemm/vllm" / version / "gemm_perf.parquet", gemm_dtype="bfloat16")
        m, n, k = c["m"], c["n"], c["k"]
        study("gemm", BF16 * (n * k + m * (n + k)), 2 * m * n * k, c["latency"])

        c = columns(root / system / "moe/vllm" / version / "moe_perf.parquet", moe_dtype="bfloat16")
        c = {name: values[c["moe_ep_size"] == 1] for name, values in c.items()}
        tokens, experts, top_k = c["num_tokens"], c["num_experts"], c["topk"]
        expert_weights = 3 * c["hidden_size"] * c["inter_size"] / c["moe_tp_size"]
        distinct = experts * (1 - (1 - top_k / experts) ** tokens)
        study("moe", BF16 * distinct * expert_weights, 2 * tokens * top_k * expert_weights, c["latency"])

        attention = root / system / "attention/vllm" / version
        kinds = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
        for stage in ("generation", "context"):
            c = columns(attention / f"{stage}_attention_perf.parquet", **kinds)
            full = (c["head_dim"] == 128) & (c.get("window_size", np.zeros_like(c["step"])) == 0)
            c = {name: values[full] for name, values in c.items()}
            requests, heads, kv_heads = c["batch_size"], c["num_heads"], c["num_key_value_heads"]
            if stage == "generation":
                elements, pairs = requests * c["step"] * 2 * kv_heads, requests * c["step"] * heads
            else:  # causal: half of all pairs of tokens
                elements, pairs = requests * c["isl"] * 2 * (heads + kv_heads), requests * c["isl"] ** 2 / 2 * heads
            study(stage, BF16 * 128 * elements, 4 * 128 * pairs, c["latency"])

        c = columns(root / system / "comm/vllm" / version / "custom_allreduce_perf.parquet", backend="vllm_graph")
        moved_s = 2 * (c["num_gpus"] - 1) / c["num_gpus"] * BF16 * c["message_size"] / link  # sizes are elements
        found["allreduce bytes"].append(float(np.median((moved_s / c["latency"])[moved_s > LONG_S])))
        found["allreduce latency_s"].append(float(np.median(c["latency"][moved_s < TINY_S])))

    for name, values in found.items():
        print(f"{name:22}", *(f"{value:.3g}" for value in values))
    mean = {name: float(np.mean(values)) for name, values in found.items()}
    memory = np.mean([mean[f"{kind} memory"] for kind in ("gemm", "moe", "generation")])
    print(f"memory_efficiency {memory:.2f}")
    print(f"gemm_compute_efficiency {mean['gemm compute']:.2f}")
    print(f"moe_compute_efficiency {mean['moe compute']:.2f}")
    print(f"attention_compute_efficiency {mean['context compute']:.2f}")
    print(f"interconnect_efficiency {mean['allreduce bytes']:.2f}")
    print(f"allreduce_latency_s {mean['allreduce latency_s']:.1e}")
    # qkv, output, up with gate, down; one attention; two norms, memory-bound kernels as small as a small GEMM.
    print(f"per_layer_overhead_s {6 * mean['gemm launch_s'] + mean['generation launch_s']:.1e}")


if __name__ == "__main__":
    main()

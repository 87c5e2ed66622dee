"""The project's own latency table: the paper's sizes, dense and MoE, on one NVIDIA GPU with torch and transformers.

    python benchmarks/gpu/profile.py -o h200-torch.parquet --gpu h200-sxm      (again and again, until nothing is missing)
    python benchmarks/gpu/profile.py -o h200-torch.parquet --gpu h200-sxm --check

Each call stops by itself after nine minutes and the next goes on. Beside the table TABLE.parquet it writes TABLE-layer.parquet,
of the MoE layer alone. `--check` measures nothing and states how far silicon is from both. `--tiny --device cpu` is for tests.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.experiments.profiling.grid import (
    VOCABULARY,
    Grid,
    Model,
    config_of,
    model_of_config,
    model_of_size,
)
from moescale.experiments.profiling.run import Engine, Repeats, profile
from moescale.hardware.gpus import load_gpu
from moescale.latency.measurements import OK, Measurement, read_measurements
from moescale.models.architecture import Architecture
from moescale.models.rounding import Buildable

EXPERTS = (1, 2, 4, 8, 16, 32, 64)
PAPER_SHAPES = ((768, 12), (896, 20), (1024, 24), (1536, 24))  # width, depth: arXiv 2404.02852, section 3.1
PAPER_HEAD = 64
LARGER = (1.5e9, 3e9, 7e9)  # N; what of them does not fit becomes rows that say so
BATCHES = tuple(2**i for i in range(10))
LENGTHS = (256, 2048)
LAYER_TOKENS = tuple(2**i for i in range(14))
SECONDS = 540.0
LAYER_ENGINE = Path(__file__).with_name("moe_layer_engine.py")
LAYER = "torch-moe-layer"


def paper_model(width: int, depth: int, experts: int) -> Model:
    """A model of the paper's sweep: FFN of 8/3 the width in multiples of 64, experts in every other layer, top-2."""
    d_ffn = 64 * round(8 / 3 * width / 64)
    shape = Buildable(
        n_layers=depth, d_model=width, n_heads=width // PAPER_HEAD, n_kv_heads=width // PAPER_HEAD, head_dim=PAPER_HEAD,
        d_ffn=d_ffn, n_experts=experts, top_k=min(2, experts), moe_every=2, n_params=0.0, n_params_total=0.0,
    )  # fmt: skip
    return model_of_config(config_of(shape, VOCABULARY), name=f"{width}/{depth} E={experts}")


def grids(gpu: str, *, tiny: bool) -> tuple[Grid, Grid]:
    """The grid of whole models, the smallest first, and that of MoE layers alone."""
    if tiny:
        models = [model_of_size(2e6, experts, vocab_size=512) for experts in (1, 4)]
        whole = Grid(gpu=gpu, models=models, batches=(1, 2, 4), prompt_tokens=(8, 16), dtype="float32")
        layer_tokens: tuple[int, ...] = (1, 8)
    else:
        models = [paper_model(width, depth, experts) for width, depth in PAPER_SHAPES for experts in EXPERTS]
        models += [model_of_size(n_params, experts) for n_params in LARGER for experts in EXPERTS]
        models.sort(key=lambda model: model.columns()["n_params_total"])
        whole = Grid(gpu=gpu, models=models, batches=BATCHES, prompt_tokens=LENGTHS)
        layer_tokens = LAYER_TOKENS
    moe = tuple(model for model in models if model.n_experts > 1)
    # The layer knows no stages: only its number of tokens matters.
    layer = replace(whole, models=moe, engine=LAYER, batches=layer_tokens, prompt_tokens=(1,), context_tokens=())
    return whole, layer


def silicon_errors(rows: Sequence[Measurement], predict: Callable[[Measurement], float]) -> list[str]:
    """Lines of predicted over measured minus one, by stage and expert count: median, and the middle 90% of rows."""
    lines: list[str] = []
    groups = sorted({(row.stage, row.n_experts) for row in rows if row.status == OK})
    for stage, experts in groups:
        mine = [row for row in rows if (row.stage, row.n_experts, row.status) == (stage, experts, OK)]
        errors = np.array([predict(row) / (row.latency_s or np.nan) - 1 for row in mine])
        known = errors[np.isfinite(errors)]
        if known.size:
            low, median, high = np.quantile(known, (0.05, 0.5, 0.95))
            lines.append(f"{stage:8} E={experts:<3} {known.size:5} rows  {median:+.0%}  ({low:+.0%} to {high:+.0%})")
        else:
            lines.append(f"{stage:8} E={experts:<3}  no answer for {errors.size} rows")
    return lines


def shape_of(row: Measurement) -> Architecture:
    """The architecture of a row; both of this script's model classes have norms of queries and keys."""
    names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "n_experts", "top_k")
    numbers: dict[str, Any] = {name: float(getattr(row, name)) for name in (*names, "d_expert", "vocab_size")}
    return Architecture(**numbers, qk_norm=True)


def check(table: Path, layer_table: Path, gpu_name: str) -> list[str]:
    """How far silicon is from the tables. Kernels are vLLM's there and torch's here, so that part of it is the software."""
    from moescale.latency.kernels.moe import Shape, moe_kernels
    from moescale.latency.silicon import Silicon

    source = Silicon(load_gpu(gpu_name))
    kernels = moe_kernels(*source.tables, "bfloat16", source.load)

    def whole(row: Measurement) -> float:
        ask = source.prefill_s if row.stage == "prefill" else source.decode_s
        return float(ask(shape_of(row), float(row.gpus), float(row.batch), float(row.tokens)))

    def layer(row: Measurement) -> float:
        shape = Shape(
            tokens=float(row.batch), d_model=float(row.d_model), width=float(row.d_expert),
            local_experts=float(row.n_experts), top_k=float(row.top_k), expert_parallel=1.0,
        )  # fmt: skip
        return float(kernels.seconds(shape))

    lines = ["silicon over measured, whole models", *silicon_errors(read_measurements(table), whole)]
    if layer_table.exists():
        rows = [replace(row, stage="layer") for row in read_measurements(layer_table)]
        lines += ["silicon over measured, the MoE layer alone", *silicon_errors(rows, layer)]
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="table", type=Path, required=True, help="latency table to write or extend")
    parser.add_argument("--gpu", default="h200-sxm", help="the catalogue's name of the GPU")
    parser.add_argument("--python", type=Path, help="interpreter with torch and transformers; default: this one")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="stop between two points after this time")
    parser.add_argument("--rounds", type=int, default=1, help="visit the grid so often; later calls can add rounds")
    parser.add_argument("--tiny", action="store_true", help="a grid of seconds, to test this script")
    parser.add_argument("--check", action="store_true", help="compare the tables with silicon; measure nothing")
    given = parser.parse_args()
    table: Path = given.table
    layer_table = table.with_name(f"{table.stem}-layer{table.suffix}")
    try:
        if given.check:
            print("\n".join(check(table, layer_table, given.gpu)))
            return 0
        start = time.monotonic()
        whole, layer = grids(given.gpu, tiny=given.tiny)
        missing = 0
        # Layers first: they are few, and no public table holds their expert counts.
        for grid, path, engine in ((layer, layer_table, LAYER_ENGINE), (whole, table, None)):
            done = profile(
                grid,
                path,
                engine=Engine(
                    file=engine, python=given.python, device=given.device, limit_s=240.0, log=path.with_suffix(".log")
                ),
                repeats=Repeats(most=30, seconds=5.0, rounds=given.rounds),
                seconds=max(given.seconds - (time.monotonic() - start), 0.0),
                report=lambda line: print(line, file=sys.stderr, flush=True),
            )
            missing += done.missing
            print(f"{path}: {done.measured} measured, {done.found} there before, of {done.points}")
        print("complete" if not missing else f"{missing} points are missing: run it again")
    except MoescaleError as error:
        print(f"profile.py: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

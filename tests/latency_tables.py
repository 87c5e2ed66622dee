"""A made-up table of measured latencies, for the tests of the table and of all latency sources."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

from model_configs import CONFIGS
from moescale.latency.table import NEEDED
from moescale.models.hf_config import from_config

MODEL = from_config(CONFIGS["MIXTRAL"])
SIZES = (4e10, 5e10)
BATCHES = (1.0, 8.0, 64.0)
LENGTHS = (256.0, 1024.0)

Row = dict[str, object]


def measured(latency_s: Callable[[float, float, float], float]) -> list[Row]:
    """Rows of a table over SIZES, BATCHES and LENGTHS for 8 experts on 2 GPUs."""
    return [
        {
            "gpu": "a100-sxm-80gb", "gpus": 2, "n_params_total": size, "n_experts": 8, "stage": stage, "batch": batch,
            "tokens": tokens, "latency_s": latency_s(size, batch, tokens) * times,
        }
        for (stage, times), size, batch, tokens in product({"prefill": 10, "decode": 1}.items(), SIZES, BATCHES, LENGTHS)
    ]  # fmt: skip


def write(path: Path, rows: Sequence[Row], columns: Sequence[str] = NEEDED) -> Path:
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(rows)), path)
        return path
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, delimiter="\t" if path.suffix == ".tsv" else ",", extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def trilinear(size: float, batch: float, tokens: float) -> float:
    a, b, c = size / 1e10, batch / 10, tokens / 100
    return 1 + 2 * a + 3 * b + 5 * c + 0.5 * a * b + 0.25 * b * c + 0.125 * a * c + 0.0625 * a * b * c

"""A small table of runs in every format, for the tests that read it whole and the tests that damage it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

HEADER = "run_id,n_params_dense,n_experts,tokens,loss,split\n"
ROWS = "a,1e8,1,2e9,3.1,train\nb,2e8,8,4000000000,2.9,train\nc,400000000,4,5e21,2.5,test\n"
CSV = HEADER + ROWS


def write(folder: Path, content: str | bytes, name: str = "runs.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def three_runs() -> dict[str, list[Any]]:
    return {
        "run_id": ["a", "b", "c"], "n_params_dense": [1e8, 2e8, 4e8], "n_experts": [1, 8, 4],
        "tokens": [2e9, 4e9, 5e21], "loss": [3.1, 2.9, 2.5], "split": ["train", "train", "test"],
    }  # fmt: skip


def json_lines(columns: dict[str, list[Any]]) -> str:
    return "".join(json.dumps(dict(zip(columns, r, strict=True))) + "\n" for r in zip(*columns.values(), strict=True))


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()

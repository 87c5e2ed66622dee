"""Writers of the files that experiment trackers leave, from the formats' descriptions."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def block(number: int, content: bytes | str) -> bytes:
    data = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def whole(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def event(step: int, *values: bytes, more: bytes = b"") -> bytes:
    return whole(2, step) + more + block(5, b"".join(block(1, value) for value in values))


def simple(tag: str, value: float) -> bytes:
    return block(1, tag) + varint(2 << 3 | 5) + struct.pack("<f", value)


def double(tag: str, value: float) -> bytes:
    return block(1, tag) + block(8, whole(1, 2) + varint(6 << 3 | 1) + struct.pack("<d", value))


def hparams(**values: float | str | bool) -> bytes:
    def held(value: float | str | bool) -> bytes:
        if isinstance(value, bool):
            return whole(4, value)
        return block(3, value) if isinstance(value, str) else varint(2 << 3 | 1) + struct.pack("<d", value)

    entries = b"".join(block(1, block(1, key) + block(2, held(value))) for key, value in values.items())
    plugin = block(1, "hparams") + block(2, block(3, entries))
    return block(1, "_hparams_/session_start_info") + block(9, block(1, plugin))


def write_events(folder: Path, *events: bytes, name: str = "events.out.tfevents.1") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    records = (struct.pack("<Q", len(e)) + b"\0\0\0\0" + e + b"\0\0\0\0" for e in events)
    (folder / name).write_bytes(b"".join(records))
    return folder / name


def wandb_file(path: Path, *records: bytes) -> Path:
    """A .wandb file: seven bytes of header, then the records in pieces that do not cross blocks of 32 KiB."""
    data = b":W&B\xe1\xbe\0"
    for record in records:
        left, kind = record, 1
        while True:
            room = 32768 - len(data) % 32768
            if room < 7:
                data += b"\0" * room
                continue
            piece, left = left[: room - 7], left[room - 7 :]
            of_type = (1 if not left else 2) if kind == 1 else (4 if not left else 3)
            data += struct.pack("<IHB", 0, len(piece), of_type) + piece
            kind = 2
            if not left:
                break
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def wandb_items(values: Mapping[str, Any]) -> bytes:
    return b"".join(block(1, block(1, key) + block(16, json.dumps(value))) for key, value in values.items())


def wandb_records(config: Mapping[str, Any], history: list[dict[str, Any]], exit_code: int | None = 0) -> list[bytes]:
    run = block(17, block(1, "id1") + block(4, wandb_items(config)) + block(8, "my run"))
    logged = [block(2, wandb_items(entry)) for entry in history]
    return [run, *logged, *([] if exit_code is None else [block(18, whole(1, exit_code))])]


CONFIG = {"model": {"num_experts": 8}, "n_params_total": 2e6, "seq_len": 1024, "global_batch_size": 16}
HISTORY = [{"eval/loss": 5.0 - 0.1 * step, "_step": step, "train/loss": 4.0} for step in range(0, 21, 5)]


def mlflow_base(path: Path, rows: list[dict[str, Any]]) -> Path:
    with sqlite3.connect(path) as base:
        base.executescript(
            "CREATE TABLE runs (run_uuid, name, status, lifecycle_stage, start_time);"
            "CREATE TABLE params (key, value, run_uuid); CREATE TABLE tags (key, value, run_uuid);"
            "CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan);"
        )
        for number, row in enumerate(rows):
            base.execute(
                "INSERT INTO runs VALUES (?, ?, ?, 'active', ?)", (f"u{number}", f"run {number}", row["status"], number)
            )
            base.executemany(
                "INSERT INTO params VALUES (?, ?, ?)", [(k, v, f"u{number}") for k, v in row["params"].items()]
            )
            base.executemany(
                "INSERT INTO metrics VALUES (?, ?, 0, ?, ?, 0)",
                [(key, value, f"u{number}", step) for key, points in row["metrics"].items() for step, value in points],
            )
    base.close()
    return path

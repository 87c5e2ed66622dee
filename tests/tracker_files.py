"""Files of experiment trackers, written with the trackers' own libraries."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

CONFIG = {"model": {"num_experts": 8}, "n_params_total": 2e6, "seq_len": 1024, "global_batch_size": 16}
HISTORY = [{"eval/loss": 5.0 - 0.1 * step, "_step": step, "train/loss": 4.0} for step in range(0, 21, 5)]


def module(name: str) -> Any:
    """A module of a tracker's library; skips the test where it is not installed."""
    return pytest.importorskip(name, reason=f"needs {name.partition('.')[0]} (pip install '.[track]')")


def write_events(folder: Path, events: Sequence[Mapping[str, Any]], *, suffix: str = "") -> Path:
    """An event file of events, each {step, scalars, restart}; returns its path."""
    proto, writer = module("tensorboard.compat.proto.event_pb2"), module("tensorboard.summary.writer.event_file_writer")
    summary = module("tensorboard.compat.proto.summary_pb2").Summary
    log = writer.EventFileWriter(str(folder), filename_suffix=suffix)
    for event in events:
        values = [summary.Value(tag=tag, simple_value=value) for tag, value in event.get("scalars", {}).items()]
        session = proto.SessionLog(status=proto.SessionLog.START) if event.get("restart") else None
        content = {"session_log": session} if session else {"summary": event.get("summary") or summary(value=values)}
        log.add_event(proto.Event(step=event["step"], wall_time=float(event["step"]), **content))
    log.close()
    return max(folder.glob(f"*tfevents*{suffix}"), key=lambda path: path.stat().st_ino)


def hparams(**values: Any) -> dict[str, Any]:
    """An event that states hparams."""
    return {"step": 0, "summary": module("tensorboard.plugins.hparams.summary").session_start_pb(values)}


def wandb_file(path: Path, records: Sequence[Any]) -> Path:
    """A .wandb file: seven bytes of header, then the records in pieces that do not cross blocks of 32 KiB."""
    data = b":W&B\xe1\xbe\0"
    for record in records:
        left, kind = record.SerializeToString(), 1
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


def wandb_records(
    config: Mapping[str, Any], history: Sequence[Mapping[str, Any]], exit_code: int | None = 0
) -> list[Any]:
    proto = module("wandb.proto.wandb_internal_pb2")

    def items(kind: Any, values: Mapping[str, Any]) -> list[Any]:
        return [kind(key=key, value_json=json.dumps(value)) for key, value in values.items()]

    of_config = proto.ConfigRecord(update=items(proto.ConfigItem, config))
    run = proto.Record(run=proto.RunRecord(run_id="id1", display_name="my run", config=of_config))
    logged = [proto.Record(history=proto.HistoryRecord(item=items(proto.HistoryItem, entry))) for entry in history]
    ended = [] if exit_code is None else [proto.Record(exit=proto.RunExitRecord(exit_code=exit_code))]
    return [run, *logged, *ended]


def mlflow_store(uri: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """Runs {params, metrics: {name: [(step, value)]}, status} in a store of MLflow."""
    client = module("mlflow").MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("ladder")
    for number, stated in enumerate(runs):
        run = client.create_run(experiment, run_name=f"run {number}", start_time=number)
        for key, value in stated["params"].items():
            client.log_param(run.info.run_id, key, value)
        for key, points in stated["metrics"].items():
            for step, value in points:
                client.log_metric(run.info.run_id, key, value, timestamp=step, step=step)
        if stated["status"] != "RUNNING":
            client.set_terminated(run.info.run_id, stated["status"])

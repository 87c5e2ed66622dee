"""Files of experiment trackers, written with the trackers' own libraries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest


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

"""Runs of MLflow, read by mlflow-skinny: of a server, of a database (of a copy of it), and of file stores."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from moescale.errors import InputError
from moescale.runs.importers import tracked_run
from moescale.runs.importers.tracked_run import Points, TrackedRun, Wanted, number, scalars


def read_mlflow(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of a tracking URI, a database or a folder, the last value of metrics not `wanted`; no warnings."""
    stated = source.removeprefix("sqlite:///").removeprefix("file://")
    if "://" in stated or source.startswith("databricks"):
        return _runs(source, source, wanted), []
    path = tracked_run.existing(stated)
    if path.is_dir():
        if not any(path.glob("*/meta.yaml")):
            advice = "give a database file (mlflow.db), a folder such as mlruns, or the URI of a server"
            raise InputError("there is no MLflow store in it", where=source, next_step=advice)
        return _runs(path.resolve().as_uri(), source, wanted), []
    with tempfile.TemporaryDirectory() as folder:  # a client would change the tables of what it opens
        for file in (path, *path.parent.glob(f"{path.name}-wal")):
            shutil.copy(file, Path(folder, f"copy{file.name.removeprefix(path.name)}"))
        return _runs(f"sqlite:///{folder}/copy", source, wanted), []


def _runs(uri: str, where: str, wanted: Wanted) -> list[TrackedRun]:
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")  # its own default is to try again for minutes
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # to be read; new ones it makes no more
    mlflow = tracked_run.library("mlflow", "mlflow-skinny", where)
    with tracked_run.read_by("MLflow", where):
        mlflow.set_tracking_uri(uri)
        runs = mlflow.search_runs(search_all_experiments=True, output_format="list")
        client: Any = mlflow.MlflowClient()
        return [_run(client, run, where, wanted) for run in reversed(runs)]  # the oldest first


def _run(client: Any, run: Any, where: str, wanted: Wanted) -> TrackedRun:
    identifier = str(run.info.run_id)
    points: Points = {}
    for key, value in run.data.metrics.items():
        if not key.startswith("system/"):
            history = client.get_metric_history(identifier, key) if wanted(key) else ()
            ordered = sorted(history, key=lambda point: point.timestamp)
            curve = [(number(point.step), number(point.value)) for point in ordered]
            points[key] = curve or [(math.nan, number(value))]
    params = scalars(run.data.params, depth=0)
    name, state = str(run.info.run_name or identifier), str(run.info.status).lower()
    return TrackedRun(name, f"{where}, run {identifier}", params, points, state)

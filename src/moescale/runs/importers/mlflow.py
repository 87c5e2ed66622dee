"""Runs of MLflow: its SQLite and file stores, read directly and never written to; servers through mlflow-skinny."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from moescale.errors import DamagedFileError, InputError, install
from moescale.io.files import read_text
from moescale.runs.importers import tracked_run
from moescale.runs.importers.tracked_run import FINISHED, Points, TrackedRun, Wanted, curves, number, scalar, scalars

ROW_TAG = "moescale.row"
"""The tag in which moescale's own trainer leaves the row of its run table."""

_NAME_TAG = "mlflow.runName"
_SQLITE = b"SQLite format 3\0"
_STATES = {"1": "running", "2": "scheduled", "3": FINISHED, "4": "failed", "5": "killed"}  # service.proto, RunStatus


def read_mlflow(source: str, wanted: Wanted) -> tuple[list[TrackedRun], list[str]]:
    """The runs of a tracking URI, a database file, or all stores under a folder; and warnings about damaged ones.

    Of a server, whose curves take a request each, only `wanted` metrics are read whole, of the others the last value.
    Raises InputError where there is no store, or the server does not answer.
    """
    scheme = urlsplit(source).scheme if "://" in source or source.startswith(("file:", "databricks")) else ""
    if source.startswith("databricks") or scheme not in ("", "file", "sqlite"):
        return _served(source, wanted), []
    path = Path(_local(source, scheme))
    runs: list[TrackedRun] = []
    warnings: list[str] = []
    found = False
    for file in tracked_run.files_under(path):
        with tracked_run.damage_noted(file, path, warnings):
            if _is_sqlite(file):
                stored = _database(file)
                found = found or stored is not None
                runs += stored or []
            elif file.name == "meta.yaml" and any((file.parent / part).is_dir() for part in ("metrics", "params")):
                found = True
                runs += _folder(file.parent)
    if not found and not warnings:
        advice = "give a database file (mlflow.db), a folder such as mlruns, or the URI of a server"
        raise InputError("there is no MLflow store in it", where=source, next_step=advice)
    return runs, warnings


def _local(source: str, scheme: str) -> str:
    if scheme == "sqlite":
        rest = source.removeprefix("sqlite:///")
        if rest == source:
            raise InputError("is not a database's URI", where=source, next_step="write sqlite:///path/to/mlflow.db")
        return unquote(rest)
    return unquote(urlsplit(source).path) if scheme == "file" else source


def _is_sqlite(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_SQLITE)) == _SQLITE
    except OSError:
        return False


@dataclass
class _Stored:
    """What a store holds of one run."""

    identifier: str
    where: str
    name: Any
    state: str
    params: dict[str, Any]
    tags: dict[str, Any]
    points: Points = field(default_factory=lambda: {})

    def run(self) -> TrackedRun:
        params = scalars(self.params, depth=0)
        try:
            row: Any = json.loads(str(self.tags.get(ROW_TAG)))
            params |= scalars(cast("Mapping[str, Any]", row)) if isinstance(row, Mapping) else {}
        except (ValueError, RecursionError):
            pass  # no tag, or someone else's
        name = str(self.name or self.tags.get(_NAME_TAG) or self.identifier)
        metrics = curves({key: logged for key, logged in self.points.items() if not key.startswith("system/")})
        return TrackedRun(name, self.where, params, metrics, self.state)


# SQLite.


def _database(file: Path) -> list[TrackedRun] | None:
    """The runs of a database; None where it is another program's."""
    try:
        # Read only: a client of MLflow would add tables to whatever it is given. Where SQLite keeps a log beside the
        # database and there is none now, even a reader would make one, unless it is told that nobody writes.
        alone = "" if os.path.exists(f"{file}-wal") or os.path.exists(f"{file}-journal") else "&immutable=1"
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro{alone}", uri=True)) as base:
            base.text_factory = partial(str, encoding="utf-8", errors="replace")
            tables = {str(row[0]) for row in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not {"runs", "params", "metrics", "tags"} <= tables:
                return None
            runs = {
                str(run): _Stored(str(run), f"{file}, run {run}", name, str(status or "").lower(), {}, {})
                for run, name, status in base.execute(
                    "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage IS NOT 'deleted' "
                    "ORDER BY start_time, run_uuid"
                )
            }
            for table in ("params", "tags"):
                for run, key, value in base.execute(f"SELECT run_uuid, key, value FROM {table}"):
                    if str(run) in runs:
                        getattr(runs[str(run)], table)[str(key)] = value
            query = "SELECT run_uuid, key, step, value, is_nan FROM metrics ORDER BY timestamp, step, rowid"
            for run, key, step, value, is_nan in base.execute(query):
                if str(run) in runs:
                    of_key = runs[str(run)].points.setdefault(str(key), [])
                    of_key.append((number(step), math.nan if is_nan else number(value)))
    except (sqlite3.Error, UnicodeDecodeError) as error:  # sqlite3 quotes a damaged schema as if it were text
        what = f"cannot be read as an MLflow database: {error}"
        raise DamagedFileError(what, where=str(file), next_step="give a copy that is whole") from error
    return [stored.run() for stored in runs.values()]


# The file store: a folder a run, a file a param, tag or metric.


def _folder(folder: Path) -> list[TrackedRun]:
    meta = _flat_yaml(folder / "meta.yaml")
    if meta.get("lifecycle_stage") == "deleted":
        return []
    status = meta.get("status", "")
    stored = _Stored(
        meta.get("run_id") or meta.get("run_uuid") or folder.name,
        str(folder),
        meta.get("run_name"),
        _STATES.get(status, status.lower()),
        {name: read_text(file).rstrip("\n") for name, file in _entries(folder / "params")},
        {name: read_text(file).rstrip("\n") for name, file in _entries(folder / "tags")},
    )
    for name, file in _entries(folder / "metrics"):
        for line in read_text(file).splitlines():  # time, value and step
            parts = line.split()
            if len(parts) >= 2 and isinstance(value := scalar(parts[1]), float):
                step = scalar(parts[2]) if len(parts) > 2 else math.nan
                stored.points.setdefault(name, []).append((number(step), value))
    return [stored.run()]


def _entries(folder: Path) -> list[tuple[str, Path]]:
    if not folder.is_dir():
        return []
    return [(os.path.relpath(file, folder).replace(os.sep, "/"), file) for file in tracked_run.files_under(folder)]


def _flat_yaml(path: Path) -> dict[str, str]:
    """The `key: value` lines of a file; MLflow writes nothing else that matters here."""
    found: dict[str, str] = {}
    for line in read_text(path).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            found[key.strip()] = value.strip().strip("'\"")
    return found


# A server, or a database of another kind.


def _served(uri: str, wanted: Wanted) -> list[TrackedRun]:
    try:
        mlflow: Any = import_module("mlflow")
    except ImportError as error:
        raise InputError(
            "needs mlflow-skinny, which is not installed", where=uri, next_step=install("track")
        ) from error
    # MLflow's own default is to try again for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    try:
        client: Any = mlflow.MlflowClient(tracking_uri=uri)
        experiments = [str(found.experiment_id) for found in _pages(client.search_experiments)]
        return [
            _served_run(client, run, uri, wanted)
            for experiment in experiments
            for run in _pages(client.search_runs, experiment_ids=[experiment])
        ]
    except Exception as error:  # of MLflow, its HTTP library or a database's driver
        lines = str(error).strip().splitlines() or [type(error).__name__]
        what, advice = f"cannot be read: {lines[0][:200]}", "check the address, and that the server runs"
        raise InputError(what, where=uri, next_step=advice) from error


def _pages(search: Callable[..., Any], **options: Any) -> list[Any]:
    found: list[Any] = []
    token: str | None = None
    while True:
        page = search(page_token=token, **options)
        found += list(page)
        token = page.token
        if not token:
            return found


def _served_run(client: Any, run: Any, uri: str, wanted: Wanted) -> TrackedRun:
    identifier, state = str(run.info.run_id), str(run.info.status).lower()
    where = f"{uri}, run {identifier}"
    stored = _Stored(identifier, where, run.info.run_name, state, run.data.params, run.data.tags)
    for key, value in run.data.metrics.items():
        stored.points[key] = [(math.nan, number(value))]
        if wanted(key):
            history = sorted(client.get_metric_history(identifier, key), key=lambda point: point.timestamp)
            stored.points[key] = [(number(point.step), number(point.value)) for point in history]
    return stored.run()

"""What a training run tells experiment trackers: MLflow, TensorBoard, Weights & Biases, a trainer_state.json, or several.

`moescale.runs.importers` reads back what is written here. Everything a tracker keeps on disk lies in FOLDER/tracking, and
tracking.json there holds the trackers' own identifiers, so that a restarted run goes on as the same tracked run. Over the
libraries themselves, not accelerate's trackers: those begin new runs and keep no row.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from moescale.errors import InputError, install
from moescale.experiments.training.settings import TRACKERS, TrackingSettings
from moescale.io.files import make_folder, read_text, write_atomically

FOLDER = "tracking"  # within that of the run, which holds all that trackers keep on disk
IDENTIFIERS = "tracking.json"
ROW_TAG = "moescale.row"  # of MLflow
SECONDS_BETWEEN_WRITES = 10.0  # of trainer_state.json, which is written whole
TARGETS = TRACKERS


class Tracker(Protocol):
    """One tracked run, in one tracker or in several; used by one process alone."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record metrics of the end of optimiser step `step`."""
        ...

    def finish(self, row: Mapping[str, Any]) -> None:
        """Record the row of the run table and mark the run as finished."""
        ...

    def close(self) -> None:
        """Write what is still to be written; a run that is not finished stays open to be continued."""
        ...


@dataclass(frozen=True)
class Begun:
    """What starts a tracker: the run's settings, name and config, the place on disk, and the tracker's identifier of before."""

    settings: TrackingSettings
    name: str
    config: Mapping[str, Any]
    place: Path
    identifier: str | None


def start(settings: TrackingSettings, name: str, config: Mapping[str, Any], folder: Path) -> Tracker:
    """Begin, or go on with, the tracked run of the training run in `folder`; the config's keys are the run table's.

    Call it in one process of a run only. A tracker that fails later (a server that is gone) is dropped with a warning
    on standard error: the training goes on. Raises InputError for a missing library, or a tracker that cannot be reached now.
    """
    place = folder / FOLDER
    several = _Several()
    targets = tuple(dict.fromkeys(settings.to))
    for target in targets:
        _require(target)
    if targets:
        make_folder(place)
    identifiers = _identifiers(place)
    for target in targets:
        kind, _ = KINDS[target]
        try:
            tracker = kind(Begun(settings, name, _scalars(config), place, identifiers.get(target)))
        except Exception as error:  # each library has its own errors
            several.close()
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"{target} cannot be started: {_first_line(error)}",
                where="[tracking]",
                next_step="correct uri and project, or leave the tracker out of `to`",
            ) from error
        several.targets[target] = tracker
        if identifiers.get(target) != tracker.identifier:
            identifiers[target] = tracker.identifier
            write_atomically(place / IDENTIFIERS, json.dumps(identifiers, indent=1), follow_links=False)
    return several


def _require(target: str) -> None:
    """Raise InputError, with the way to install it, where a library that writes to `target` is not installed."""
    for library in KINDS[target][1]:
        if importlib.util.find_spec(library) is None:
            raise InputError(
                f"the tracker {target} needs {library}, which is not installed",
                where="[tracking]",
                next_step=install("track"),
            )


class _Several:
    """Several trackers as one; each that fails is dropped and named on standard error."""

    def __init__(self) -> None:
        self.targets: dict[str, Tracker] = {}
        self._failed: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {key: float(value) for key, value in metrics.items()}
        self._each(lambda tracker: tracker.log(int(step), values))

    def finish(self, row: Mapping[str, Any]) -> None:
        # Also where logging failed: what failed may be back, and the row is what matters most.
        self._failed.clear()
        scalars = _scalars(row)
        self._each(lambda tracker: tracker.finish(scalars))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self.targets.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in self.targets.items():
            if name in self._failed:
                continue
            try:
                act(tracker)
            except Exception as error:  # a tracker must never end a training run
                self._failed.add(name)
                sys.stderr.write(f"warning: {name} receives no more events: {_first_line(error)}\n")


class _Mlflow:
    """Of the row, numbers are metrics, which MLflow plots and compares; whatever else is scalar is a param."""

    def __init__(self, begun: Begun) -> None:
        mlflow: Any = import_module("mlflow")
        self._entities: Any = import_module("mlflow.entities")
        self._failure: type[Exception] = mlflow.exceptions.MlflowException
        self._step, self._finished = 0, False
        uri = begun.settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
        artifacts = None if uri else (begun.place / "mlartifacts").resolve().as_uri()
        if artifacts:
            uri = f"sqlite:///{(begun.place / 'mlflow.db').resolve()}"
            # The store makes the folder for artifacts of its default experiment at once, in the working directory if
            # nothing else is said.
            os.environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", artifacts)
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        self.identifier = self._resumed(begun.identifier) or self._new(begun, artifacts)
        self._params(begun.config)

    def _resumed(self, identifier: str | None) -> str | None:
        """The run of before, unless the store is another one, or the run was removed there."""
        try:
            if identifier is not None:
                self._client.update_run(identifier, status="RUNNING")
        except self._failure:
            return None
        return identifier

    def _new(self, begun: Begun, artifacts: str | None) -> str:
        project = begun.settings.project
        experiment = self._client.get_experiment_by_name(project)
        if experiment is None:
            with suppress(self._failure):  # another run has just made it
                self._client.create_experiment(project, artifact_location=artifacts)
            experiment = self._client.get_experiment_by_name(project)
        return str(self._client.create_run(str(experiment.experiment_id), run_name=begun.name).info.run_id)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._step = max(self._step, step)
        entries = [self._entities.Metric(key, value, now, step) for key, value in metrics.items()]
        self._client.log_batch(self.identifier, metrics=entries)

    def finish(self, row: Mapping[str, Any]) -> None:
        numbers = {k: float(v) for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        self.log(self._step, numbers)
        self._params({key: value for key, value in row.items() if key not in numbers})
        # Params cannot be changed; the tag has the row as it is, and is what the importer reads.
        self._client.set_tag(self.identifier, ROW_TAG, json.dumps(_finite(row)))
        self._client.set_terminated(self.identifier, "FINISHED")
        self._finished = True

    def close(self) -> None:
        if not self._finished:
            self._client.set_terminated(self.identifier, "KILLED")

    def _params(self, values: Mapping[str, Any]) -> None:
        # A param is written once: what stands there (the config of the first start, or an earlier finish) stays.
        there = self._client.get_run(self.identifier).data.params
        new = [self._entities.Param(key, str(value)) for key, value in values.items() if key not in there]
        self._client.log_batch(self.identifier, params=new)


class _TensorBoard:
    """Curves as scalars (32-bit floats, as all that read event files expect); the row as hparams, which are 64-bit."""

    identifier = "tensorboard"

    def __init__(self, begun: Begun) -> None:
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(str(begun.place / "tensorboard"))
        self._writer, self._config, self._purge = writer, begun.config, begun.identifier is not None
        writer.file_writer.add_summary(self._hparams(begun.config)[1])

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._purge:  # what was logged after the checkpoint that the run went back to is void
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.file_writer.add_event(self._events.Event(step=step, session_log=start))
            self._purge = False
        for key, value in metrics.items():
            self._writer.add_scalar(key, value, step)

    def finish(self, row: Mapping[str, Any]) -> None:
        for summary in self._hparams({**self._config, **row})[1:]:
            self._writer.file_writer.add_summary(summary)

    def close(self) -> None:
        self._writer.close()

    def _hparams(self, values: Mapping[str, Any]) -> Any:
        """Summaries of what there is, of a start and of a good end; the writer's own add_hparams makes a run of them."""
        texts = {key: str(value).lower() for key, value in values.items() if isinstance(value, bool)}
        return import_module("torch.utils.tensorboard.summary").hparams({**values, **texts}, {})


class _Wandb:
    """Curves as history; the row in config (what was set) and summary (what came out), where W&B's tables show it."""

    def __init__(self, begun: Begun) -> None:
        self._library: Any = import_module("wandb")
        self._exit_code = 1
        offline = begun.settings.offline
        mode = os.environ.get("WANDB_MODE") if offline is None else ("offline" if offline else "online")
        mode = mode or ("online" if self._library.api.api_key else "offline")
        if begun.identifier is not None and mode == "offline":
            time.sleep(1.0)  # the folder of each part is named by its second
        self.identifier = begun.identifier or secrets.token_hex(4)  # eight letters and digits, as W&B's own
        self._run = self._library.init(
            project=begun.settings.project,
            name=begun.name,
            id=self.identifier,
            resume="allow" if mode == "online" else None,  # offline, parts of one run are told by its id
            dir=str(begun.place),
            config=begun.config,
            mode=mode,
            reinit="create_new",
            settings=self._library.Settings(
                console="off", silent=True, x_disable_stats=True, x_save_requirements=False
            ),
        )
        # A resumed run goes back to its checkpoint; W&B's own step only rises, so the optimiser's is a metric of its own.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self, row: Mapping[str, Any]) -> None:
        self._run.summary.update(row)
        self._exit_code = 0

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)
        # Offline, finish returns before the file is whole (0.31); the end of the service behind it is waited for.
        self._library.teardown()


class _TrainerState:
    """The state that transformers' Trainer would leave, the row under the key "moescale"; written whole, every few seconds."""

    identifier = "trainer_state.json"
    NAMES: Mapping[str, str] = {"train/loss": "loss", "train/lr": "learning_rate", "validation/loss": "eval_loss"}

    def __init__(self, begun: Begun) -> None:
        self._path = begun.place / self.identifier
        self._state: dict[str, Any] = {"global_step": 0, "max_steps": 0, "num_input_tokens_seen": 0, "log_history": []}
        if self._path.exists():
            self._state.update(json.loads(read_text(self._path)))
        self._state["config"] = _finite(begun.config)
        self._state.pop("moescale", None)
        self._resumed, self._due = True, 0.0
        self._write()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        history: list[dict[str, Any]] = self._state["log_history"]
        if self._resumed:  # what was logged after the checkpoint that the run went back to is void
            history[:] = [entry for entry in history if entry.get("step", 0) < step]
            self._resumed = False
        history.append({**_finite({self.NAMES.get(key, key): value for key, value in metrics.items()}), "step": step})
        self._state["global_step"] = step
        if time.monotonic() >= self._due:
            self._write()

    def finish(self, row: Mapping[str, Any]) -> None:
        self._state["max_steps"] = self._state["global_step"]
        self._state["num_input_tokens_seen"] = row.get("tokens", 0)
        self._state["moescale"] = _finite(row)
        self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._state, indent=1, allow_nan=False) + "\n", follow_links=False)
        self._due = time.monotonic() + SECONDS_BETWEEN_WRITES


# What writes to each tracker, and the libraries that it needs.
KINDS: Mapping[str, tuple[Callable[[Begun], Any], tuple[str, ...]]] = {
    "mlflow": (_Mlflow, ("mlflow", "sqlalchemy", "alembic")),
    "tensorboard": (_TensorBoard, ("tensorboard", "torch")),
    "wandb": (_Wandb, ("wandb",)),
    "trainer": (_TrainerState, ()),
}


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that every tracker can hold: texts that are not empty, truths and numbers; NumPy scalars as Python's."""
    plain = {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
    return {key: v for key, v in plain.items() if isinstance(v, bool | int | float) or (isinstance(v, str) and v)}


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values, or their names where JSON has no number for them: NaN, Infinity, -Infinity."""
    return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def _identifiers(place: Path) -> dict[str, str]:
    """The identifiers of an earlier start; none where the file is missing or damaged."""
    try:
        found: Any = json.loads((place / IDENTIFIERS).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(k): v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownArgumentType]


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__

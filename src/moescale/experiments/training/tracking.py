"""What a training run tells experiment trackers: MLflow, TensorBoard, Weights & Biases, a trainer_state.json, or several.

`moescale.runs.importers` reads back what is written here. Everything a tracker keeps on disk lies in FOLDER/tracking, and
tracking.json there holds the trackers' own identifiers, so that a restarted run goes on as the same tracked run.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from moescale.errors import InputError, unknown_name
from moescale.io.files import make_folder, read_text, write_atomically

FOLDER = "tracking"
"""The folder, within that of the run, which holds all that trackers keep on disk."""

IDENTIFIERS = "tracking.json"
ROW_TAG = "moescale.row"  # of MLflow
SECONDS_BETWEEN_WRITES = 10.0  # of trainer_state.json, which is written whole


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingSettings:
    """The table [tracking] of a RUN.toml."""

    to: tuple[str, ...] = ()
    uri: str | None = None  # MLflow's tracking URI; None: $MLFLOW_TRACKING_URI, else a database in the run's folder
    project: str = "moescale"  # MLflow's experiment, W&B's project
    offline: bool | None = None  # W&B: None is as $WANDB_MODE says, else online where an API key is found

    def to_dict(self) -> dict[str, Any]:
        """The table as TOML holds it: no key for None."""
        return {key: list(v) if key == "to" else v for key, v in asdict(self).items() if v is not None}


class Table(Protocol):
    """What `start` reads of settings; TrackingSettings, or those of a whole run."""

    @property
    def to(self) -> Sequence[str]: ...
    @property
    def uri(self) -> str | None: ...
    @property
    def project(self) -> str: ...
    @property
    def offline(self) -> bool | None: ...


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


def tracking_of(table: Mapping[str, Any], where: str = "[tracking]") -> TrackingSettings:
    """The settings that a TOML table states; raises InputError for an unknown key, target or kind of value."""
    fields = tuple(TrackingSettings.__dataclass_fields__)
    for key in table:
        if key not in fields:
            raise unknown_name("key", str(key), fields, where=where)
    given: dict[str, Any] = dict(table)
    to: Any = given.setdefault("to", [])
    to = [to] if isinstance(to, str) else to
    if not isinstance(to, list | tuple) or not all(isinstance(target, str) for target in to):  # pyright: ignore[reportUnknownVariableType]
        raise InputError("to must be a list of trackers", where=where, next_step=f"known: {', '.join(TARGETS)}")
    targets: tuple[str, ...] = tuple(dict.fromkeys(to))  # pyright: ignore[reportUnknownArgumentType]
    for target in targets:
        if target not in TARGETS:
            raise unknown_name("tracker", target, TARGETS, where=where)
    for key in ("uri", "project"):
        if key in given and (not isinstance(given[key], str) or not given[key]):
            raise InputError(f"{key} must be a text", where=where, next_step='write it in quotes: project = "ladder"')
    if not isinstance(given.get("offline", False), bool):
        raise InputError("offline must be true or false", where=where)
    del given["to"]
    return TrackingSettings(to=targets, **given)


def start(settings: Table, name: str, config: Mapping[str, Any], folder: Path) -> Tracker:
    """Begin, or go on with, the tracked run of the training run in `folder`; the config's keys are the run table's.

    Call it in one process of a run only. A tracker that fails later (a server that is gone) is dropped with a warning
    on standard error: the training goes on. Raises InputError for an unknown target, a missing library, or a tracker
    that cannot be reached now.
    """
    place = folder / FOLDER
    targets: dict[str, Tracker] = {}
    if not settings.to:
        return _Several(targets)
    known = tracking_of({"to": list(settings.to)}).to
    for target in known:
        require(target)
    make_folder(place)
    identifiers = _identifiers(place)
    for target in known:
        begun = _Begun(settings, name, dict(config), place, identifiers.get(target))
        try:
            targets[target], identifier = _STARTERS[target](begun)
        except InputError:
            _Several(targets).close()
            raise
        except Exception as error:  # each library has its own errors
            _Several(targets).close()
            raise InputError(
                f"{target} cannot be started: {_first_line(error)}",
                where="[tracking]",
                next_step="correct uri and project, or leave the tracker out of `to`",
            ) from error
        if identifiers.get(target) != identifier:
            identifiers[target] = identifier
            write_atomically(place / IDENTIFIERS, json.dumps(identifiers, indent=1), follow_links=False)
    return _Several(targets)


def require(target: str) -> None:
    """Raise InputError, with the way to install it, where the library that writes to `target` is not installed."""
    for library in _LIBRARIES[target]:
        if importlib.util.find_spec(library) is None:
            raise InputError(
                f"the tracker {target} needs {library}, which is not installed",
                where="[tracking]",
                next_step="pip install 'moescale[track]'",
            )


@dataclass(frozen=True)
class _Begun:
    """What every starter needs: settings, name and config of the run, the place on disk, and the identifier of before."""

    settings: Table
    name: str
    config: Mapping[str, Any]
    place: Path
    identifier: str | None


class _Several:
    """Several trackers as one; each that fails is dropped and named on standard error."""

    def __init__(self, targets: Mapping[str, Tracker]) -> None:
        self._targets = dict(targets)
        self._failed: set[str] = set()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = {key: float(value) for key, value in metrics.items()}
        self._each(lambda tracker: tracker.log(int(step), values))

    def finish(self, row: Mapping[str, Any]) -> None:
        # Also where logging failed: what failed may be back, and the row is what matters most.
        self._failed.clear()
        self._each(lambda tracker: tracker.finish(row))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())
        self._targets.clear()

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for name, tracker in self._targets.items():
            if name in self._failed:
                continue
            try:
                act(tracker)
            except Exception as error:  # a tracker must never end a training run
                self._failed.add(name)
                sys.stderr.write(f"warning: {name} is not told any more: {_first_line(error)}\n")


# MLflow.


def _start_mlflow(begun: _Begun) -> tuple[Tracker, str]:
    mlflow: Any = import_module("mlflow")
    failure: type[Exception] = mlflow.exceptions.MlflowException
    uri = begun.settings.uri or os.environ.get("MLFLOW_TRACKING_URI")
    local = uri is None
    if uri is None:
        uri = f"sqlite:///{(begun.place / 'mlflow.db').resolve()}"
        # The store makes the folder for artifacts of its default experiment at once, in the working directory if nothing
        # else is said.
        os.environ.setdefault("_MLFLOW_SERVER_ARTIFACT_ROOT", (begun.place / "mlartifacts").resolve().as_uri())
    client: Any = mlflow.MlflowClient(tracking_uri=uri)
    if begun.identifier is not None:
        try:
            client.update_run(begun.identifier, status="RUNNING")
            return _Mlflow(client, begun.identifier, begun.config), begun.identifier
        except failure:
            pass  # the store is another one, or the run was removed there
    experiment = client.get_experiment_by_name(begun.settings.project)
    if experiment is not None:
        experiment_id = str(experiment.experiment_id)
    else:
        root = (begun.place / "mlartifacts").resolve().as_uri() if local else None
        try:
            experiment_id = str(client.create_experiment(begun.settings.project, artifact_location=root))
        except failure:  # another run has just made it
            experiment_id = str(client.get_experiment_by_name(begun.settings.project).experiment_id)
    run_id = str(client.create_run(experiment_id, run_name=begun.name).info.run_id)
    return _Mlflow(client, run_id, begun.config), run_id


class _Mlflow:
    """Of the row, numbers are metrics, which MLflow plots and compares; whatever else is scalar is a param."""

    def __init__(self, client: Any, run_id: str, config: Mapping[str, Any]) -> None:
        self._client = client
        self._run_id = run_id
        self._finished = False
        self._last_step = 0
        self._params(_scalars(config))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        entities: Any = import_module("mlflow.entities")
        now = int(time.time() * 1000)
        self._last_step = max(self._last_step, step)
        self._client.log_batch(
            self._run_id, metrics=[entities.Metric(key, value, now, step) for key, value in metrics.items()]
        )

    def finish(self, row: Mapping[str, Any]) -> None:
        scalars = _scalars(row)
        numbers = {k: float(v) for k, v in scalars.items() if isinstance(v, int | float) and not isinstance(v, bool)}
        self.log(self._last_step, numbers)
        self._params({key: value for key, value in scalars.items() if key not in numbers})
        # Params cannot be changed; the tag has the row as it is, and is what the importer reads.
        self._client.set_tag(self._run_id, ROW_TAG, json.dumps({key: _finite(value) for key, value in scalars.items()}))
        self._client.set_terminated(self._run_id, "FINISHED")
        self._finished = True

    def close(self) -> None:
        if not self._finished:
            self._client.set_terminated(self._run_id, "KILLED")

    def _params(self, values: Mapping[str, Any]) -> None:
        entities: Any = import_module("mlflow.entities")
        # A param is written once: what stands there (the config of the first start, or an earlier finish) stays.
        there = self._client.get_run(self._run_id).data.params
        new = [entities.Param(key, str(value)) for key, value in values.items() if key not in there]
        most = 100  # of one request (MLflow's REST API, log-batch)
        for first in range(0, len(new), most):
            self._client.log_batch(self._run_id, params=new[first : first + most])


# TensorBoard.


def _start_tensorboard(begun: _Begun) -> tuple[Tracker, str]:
    folder = begun.place / "tensorboard"
    return _TensorBoard(str(folder), begun.config, resumed=begun.identifier is not None), "tensorboard"


class _TensorBoard:
    """Curves as scalars (32-bit floats, as all that read event files expect); the row as hparams, which are 64-bit."""

    def __init__(self, folder: str, config: Mapping[str, Any], *, resumed: bool) -> None:
        self._events: Any = import_module("tensorboard.compat.proto.event_pb2")
        self._summaries: Any = import_module("tensorboard.compat.proto.summary_pb2")
        self._plugin: Any = import_module("tensorboard.plugins.hparams.plugin_data_pb2")
        self._writer: Any = import_module("tensorboard.summary.writer.event_file_writer").EventFileWriter(folder)
        self._config = _scalars(config)
        self._purge = resumed
        self._hparams(self._config)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._purge:  # what was logged after the checkpoint that the run went back to is void
            session = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.add_event(self._events.Event(wall_time=time.time(), step=step, session_log=session))
            self._purge = False
        values = [self._summaries.Summary.Value(tag=key, simple_value=value) for key, value in metrics.items()]
        self._writer.add_event(
            self._events.Event(wall_time=time.time(), step=step, summary=self._summaries.Summary(value=values))
        )

    def finish(self, row: Mapping[str, Any]) -> None:
        status: Any = import_module("tensorboard.plugins.hparams.api_pb2")
        self._hparams({**self._config, **_scalars(row)})
        ended = self._plugin.SessionEndInfo(status=status.STATUS_SUCCESS, end_time_secs=time.time())
        self._write("_hparams_/session_end_info", session_end_info=ended)

    def close(self) -> None:
        self._writer.close()

    def _hparams(self, values: Mapping[str, Any]) -> None:
        begun = self._plugin.SessionStartInfo(start_time_secs=time.time())
        for key, value in values.items():
            held = begun.hparams[key]
            if isinstance(value, bool):
                held.bool_value = value
            elif isinstance(value, str):
                held.string_value = value
            else:
                held.number_value = value
        self._write("_hparams_/session_start_info", session_start_info=begun)

    def _write(self, tag: str, **info: Any) -> None:
        """One message of the hparams plugin, under the tag it looks for; its own writer needs TensorFlow."""
        content = self._plugin.HParamsPluginData(version=0, **info).SerializeToString()
        plugin = self._summaries.SummaryMetadata.PluginData(plugin_name="hparams", content=content)
        value = self._summaries.Summary.Value(tag=tag, metadata=self._summaries.SummaryMetadata(plugin_data=plugin))
        self._writer.add_event(
            self._events.Event(wall_time=time.time(), summary=self._summaries.Summary(value=[value]))
        )


# Weights & Biases.


def _start_wandb(begun: _Begun) -> tuple[Tracker, str]:
    library: Any = import_module("wandb")
    mode = (
        {True: "offline", False: "online"}.get(begun.settings.offline) if begun.settings.offline is not None else None
    )
    mode = mode or os.environ.get("WANDB_MODE") or ("online" if _has_wandb_key() else "offline")
    if begun.identifier is not None and mode == "offline":
        time.sleep(1.0)  # the folder of each part is named by its second
    identifier = begun.identifier or secrets.token_hex(4)  # eight letters and digits, as W&B's own
    run = library.init(
        project=begun.settings.project,
        name=begun.name,
        id=identifier,
        resume="allow" if mode == "online" else None,  # offline, parts of one run are told by its id
        dir=str(begun.place),
        config=_scalars(begun.config),
        mode=mode,
        reinit="create_new",
        settings=library.Settings(console="off", silent=True, x_disable_stats=True, x_save_requirements=False),
    )
    # A resumed run goes back to its checkpoint; W&B's own step only rises, so the optimiser's is a metric of its own.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return _Wandb(run), identifier


def _has_wandb_key() -> bool:
    """Whether W&B would find an API key without asking: in the environment, or where `wandb login` leaves it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    import netrc
    from urllib.parse import urlparse

    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


class _Wandb:
    """Curves as history; the row in config (what was set) and summary (what came out), where W&B's tables show it."""

    def __init__(self, run: Any) -> None:
        self._run = run
        self._exit_code = 1

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({"step": step, **metrics})

    def finish(self, row: Mapping[str, Any]) -> None:
        self._run.summary.update(_scalars(row))
        self._exit_code = 0

    def close(self) -> None:
        self._run.finish(exit_code=self._exit_code)
        # Offline, finish returns before the file is whole (0.31); the end of the service behind it is waited for.
        library: Any = import_module("wandb")
        library.teardown()


# Hugging Face's trainer_state.json.

# As transformers' Trainer names them (its `log` method and metric prefixes).
_TRAINER_NAMES = {"train/loss": "loss", "train/lr": "learning_rate", "validation/loss": "eval_loss"}


def _start_trainer(begun: _Begun) -> tuple[Tracker, str]:
    return _TrainerState(begun.place / "trainer_state.json", begun.config), "trainer_state.json"


class _TrainerState:
    """The state that Trainer would leave, the row under the key "moescale"; written whole, every few seconds."""

    def __init__(self, path: Path, config: Mapping[str, Any]) -> None:
        self._path = path
        self._state: dict[str, Any] = {"global_step": 0, "max_steps": 0, "num_input_tokens_seen": 0, "log_history": []}
        if path.exists():
            self._state.update(json.loads(read_text(path)))
        self._state["config"] = {key: _finite(value) for key, value in _scalars(config).items()}
        self._state.pop("moescale", None)
        self._resumed = True
        self._due = 0.0
        self._write()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        history: list[dict[str, Any]] = self._state["log_history"]
        if self._resumed:  # what was logged after the checkpoint that the run went back to is void
            history[:] = [entry for entry in history if entry.get("step", 0) < step]
            self._resumed = False
        named = {_TRAINER_NAMES.get(key, key): _finite(value) for key, value in metrics.items()}
        history.append({**named, "step": step})
        self._state["global_step"] = step
        if time.monotonic() >= self._due:
            self._write()

    def finish(self, row: Mapping[str, Any]) -> None:
        self._state["max_steps"] = self._state["global_step"]
        self._state["num_input_tokens_seen"] = row.get("tokens", 0)
        self._state["moescale"] = {key: _finite(value) for key, value in _scalars(row).items()}
        self._write()

    def close(self) -> None:
        self._write()

    def _write(self) -> None:
        write_atomically(self._path, json.dumps(self._state, indent=1, allow_nan=False) + "\n", follow_links=False)
        self._due = time.monotonic() + SECONDS_BETWEEN_WRITES


_STARTERS: Mapping[str, Callable[[_Begun], tuple[Tracker, str]]] = {
    "mlflow": _start_mlflow,
    "tensorboard": _start_tensorboard,
    "wandb": _start_wandb,
    "trainer": _start_trainer,
}
TARGETS = tuple(_STARTERS)
"""The trackers that [tracking] `to` may name."""

_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "trainer": (),
}


def _scalars(values: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that every tracker can hold: texts that are not empty, truths and numbers; NumPy scalars as Python's."""
    plain = {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}
    return {key: v for key, v in plain.items() if isinstance(v, bool | int | float) or (isinstance(v, str) and v)}


def _finite(value: Any) -> Any:
    """The value, or its name where JSON has no number for it: NaN, Infinity, -Infinity."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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

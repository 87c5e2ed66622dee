"""Latencies of models on the machine at hand, measured by `vllm bench latency` with random weights; one table keeps them.

Prefill is the time of a batch with one output token; decode is what DECODED more tokens take beyond that, a token. The grid
is visited in rounds, each start of vLLM a fresh one: repeats in one stretch agree with each other far better than with the
same measurement minutes later or in another process (Kalibera and Jones 2013, ISMM).
"""

from __future__ import annotations

import datetime
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
from pydantic import model_validator

from moescale.errors import InputError
from moescale.experiments.checked import Listed, Table, Text, checked, within
from moescale.experiments.jobs import DIE_WITH_PARENT, end_group
from moescale.experiments.locks import held, lock_beside
from moescale.export.huggingface import config_of
from moescale.io.files import check_target, opened_to_append, read_text
from moescale.io.records import record
from moescale.io.schema import read_toml
from moescale.io.signals import uninterrupted
from moescale.latency.measurements import (
    FAILED,
    KEY,
    OK,
    OUT_OF_MEMORY,
    Key,
    Measurement,
    check_table,
    key_of,
    read_measurements,
    write_measurements,
)
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.rounding import buildable
from moescale.units import plural

Report = Callable[[str], None]
Point = tuple[str, int, int]  # stage, batch, tokens
# Llama's, which the paper's models take (arXiv 2404.02852, appendix A); embeddings hardly cost time
VOCABULARY = 32_000
DECODED = 16  # tokens of a decode measurement; their mean context is the wanted one
MOST_POINTS, MOST_MODELS = 100_000, 200
LIMIT_S = 3600.0  # for a start and its repeats, which then have failed
KV_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
NO_MEMORY = re.compile(r"out of memory|No available memory|KV cache is needed|MemoryError", re.IGNORECASE)

Lengths = Annotated[tuple[Annotated[int, within(1, 10**7, whole=True)], ...], Listed]
Whole = Annotated[int, within(1, 10**7, whole=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to measure: the Hugging Face config that vLLM builds it from, and its shape."""

    name: str
    config: Mapping[str, Any]
    architecture: Architecture

    def columns(self) -> dict[str, Any]:
        """What every row of the table says about the model."""
        a, count = self.architecture, count_parameters(self.architecture)
        dense = float(a.n_moe_layers) == 0
        names = ("n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "n_moe_layers", "vocab_size")
        return {
            "model": self.name,
            "n_params_total": float(count.total),
            "n_params_non_embedding": float(count.non_embedding_total),
            "n_params": float(dense_equivalent_params(a)),
            "n_experts": 1 if dense else int(float(a.n_experts)),
            **{name: int(float(getattr(a, name))) for name in names},
            "top_k": 1 if dense else int(float(a.top_k)),
            "d_expert": 0 if dense else int(float(a.d_expert)),
        }


class ModelsTable(Table):
    """An entry of [[models]]: sizes and expert counts of a family, or one config.json (a file or its folder)."""

    n_params: Annotated[tuple[Annotated[float, within(1e5, 1e15)], ...], Listed] = ()
    experts: Annotated[tuple[Annotated[int, within(1, 65_536, whole=True)], ...], Listed] = (1,)
    kv_heads: Whole | None = None
    vocab_size: Whole = VOCABULARY
    family: Text = "yun2024"
    config: Text | None = None
    name: str = ""

    @model_validator(mode="after")
    def complete(self) -> Self:
        """One way of stating the model."""
        given = self.model_fields_set - {"name"}
        if self.config is None and not self.n_params:
            raise InputError("has neither n_params nor config", next_step="add one of them")
        if self.config is not None and given != {"config"}:
            raise InputError(f"{', '.join(sorted(given - {'config'}))} does not go with config, which states the shape")
        if len(self.n_params) * len(self.experts) > MOST_MODELS:
            raise InputError(f"states {len(self.n_params) * len(self.experts):,} models", nearest=str(MOST_MODELS))
        return self

    def models(self, folder: Path, splits: int) -> Iterator[Model]:
        """The models; heads of those by size split over every divisor of `splits`."""
        if self.config is not None:
            file = folder / self.config
            shape = from_config(file)  # raises InputError that names the file
            config = json.loads(read_text(file / "config.json" if file.is_dir() else file))
            named = self.name or (shape.name if "_name_or_path" in config else file.stem)
            yield Model(name=named, config=config, architecture=shape)
        for size in self.n_params:
            for experts in self.experts:
                model = model_of_size(
                    size, experts, gpus=splits, kv_heads=self.kv_heads, vocab_size=self.vocab_size, family=self.family
                )
                yield replace(model, name=f"{self.name} {model.name}".strip())


class Grid(Table):
    """What a PROFILE.toml states: every combination is measured, at both stages.

    `prompt_tokens` are measured at prefill, `context_tokens` at decode: without them, the prompt lengths.
    """

    gpu: Text  # the name that rows are filed under
    engine: Literal["vllm"] = "vllm"
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    batch: Lengths = (1, 2, 4, 8, 16, 32, 64)
    prompt_tokens: Lengths = (128, 512)
    context_tokens: Lengths | None = None
    gpus: Annotated[tuple[Annotated[int, within(1, 1024, whole=True)], ...], Listed] = (1,)
    models: Annotated[tuple[ModelsTable, ...], Listed]

    def points(self) -> list[Point]:
        """(stage, batch, tokens) of one model on one GPU count, the cheapest first."""
        stages = (("prefill", self.prompt_tokens), ("decode", self.context_tokens or self.prompt_tokens))
        found = {(stage, b, t) for stage, lengths in stages for t in lengths for b in self.batch}
        return sorted(found, key=lambda point: (point[1] * point[2], point))


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """A grid with its models: (model, GPU count, table columns) of each start of vLLM."""

    grid: Grid
    places: tuple[tuple[Model, int, Mapping[str, Any]], ...]

    @property
    def size(self) -> int:
        """How many rows the whole grid has."""
        return len(self.places) * len(self.grid.points())


def read_grid(path: str | Path) -> Places:
    """The grid that a PROFILE.toml states; docs/serving.md lists its keys. Raises InputError that names file and key."""
    return grid_of(read_toml(path), where=str(path), folder=Path(path).parent)


def grid_of(document: Mapping[str, Any], *, where: str, folder: Path) -> Places:
    """The grid of a mapping; paths of configs are relative to `folder`. Errors as of read_grid."""
    grid = checked(Grid, document, where=where)
    models = [model for table in grid.models for model in table.models(folder, math.lcm(*grid.gpus))]
    for model in models:
        heads = int(float(model.architecture.n_heads))
        if bad := next((count for count in grid.gpus if heads % count), None):
            what, step = (
                f"the {heads} heads of {model.name} do not split over {bad} GPUs",
                "choose a count where they do",
            )
            raise InputError(what, where=where, next_step=step)
    shared = {"gpu": grid.gpu.strip(), "engine": grid.engine, "dtype": grid.dtype}
    places = tuple((model, gpus, {**shared, "gpus": gpus, **model.columns()}) for model in models for gpus in grid.gpus)
    found = Places(grid=grid, places=places)
    if found.size > MOST_POINTS or len(models) > MOST_MODELS:
        what = f"the grid has {found.size:,} points of {len(models)} models"
        raise InputError(what, where=where, nearest=f"{MOST_POINTS:,} points of {MOST_MODELS} models")
    return found


def model_of_size(
    n_params: float, experts: int, *, gpus: int = 1, kv_heads: int | None = None, vocab_size: int = VOCABULARY,
    family: str = "yun2024",
) -> Model:  # fmt: skip
    """The buildable model nearest to `n_params` (dense-equivalent, without embeddings) with so many experts."""
    found = find_family(family)
    found = found if kv_heads is None else replace(found, kv_heads=kv_heads)
    shape = buildable(found, float(n_params), float(experts), gpus=gpus, vocab_size=vocab_size, must_split=True)
    config = config_of(shape, vocab_size)
    return Model(name=f"{shape.n_params / 1e6:.4g}M E={experts}", config=config, architecture=from_config(config))


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a run of `profile` did."""

    table: str
    points: int  # of the grid
    measured: int  # points that this run measured, in one round or more
    found: int  # that had all their rounds already
    missing: int  # that still lack a round
    not_ok: dict[str, int] = field(default_factory=dict[str, int])  # points of the grid by status, if not ok
    seconds: float = 0.0

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return record(self)


def profile(
    grid: Places,
    table: str | Path,
    *,
    vllm: Sequence[str] | None = None,
    repeats: int = 10,
    rounds: int = 3,
    retry: bool = False,
    seconds: float | None = None,
    log: str | Path | None = None,
    report: Report = lambda line: None,
) -> Profiled:
    """Measure the points of `grid` that `table` lacks, and write each as soon as it is known.

    `vllm` is the command of vLLM, here `python -m vllm.entrypoints.cli.main`; `seconds` stops the run, between two points,
    after that time. With `retry` failed rows are measured again. Raises InputError where vLLM cannot be started, where the
    table holds another engine, version or dtype, and where another process is writing it.
    """
    start, command = time.monotonic(), list(vllm or (sys.executable, "-m", "vllm.entrypoints.cli.main"))
    check_table(table)
    if log is not None:
        check_target(log)
    what, step = "is being written by another process", "wait for it, or name another file"
    with held(lock_beside(table), InputError(what, where=str(table), next_step=step)):
        rows, done = _rows(Path(table)), set[Key]()
        again = {key for key, row in rows.items() if retry and row.status == FAILED}
        keys = {(at, p): _key(columns, p) for at, (_, _, columns) in enumerate(grid.places) for p in grid.grid.points()}

        def lacks(key: Key, number: int) -> bool:
            row = rows.get(key)
            return row is None or (len(row.rounds_s) < number if row.status == OK else key in again)

        found = sum(not lacks(key, rounds) for key in keys.values())
        software: dict[str, str] = {}
        for number in range(1, rounds + 1):
            for (at, point), key in keys.items():
                if not lacks(key, number) or (seconds is not None and time.monotonic() - start >= seconds):
                    continue
                model, gpus, columns = grid.places[at]
                software = software or _software(command)
                _check_same_engine(rows, {**columns, **software})
                times, status, reason = _measure(command, grid.grid, model, gpus, point, repeats, log)
                points = [point]
                if status == OUT_OF_MEMORY:  # what needs more will not fit either
                    larger = (
                        p for p in grid.grid.points() if p[0] == point[0] and p[1] >= point[1] and p[2] >= point[2]
                    )
                    points += [p for p in larger if p != point and keys[at, p] not in rows]
                rows = rows | _rows(Path(table))  # somebody may have changed it by hand, unaware of the lock
                for each in points:
                    today = datetime.datetime.now(datetime.UTC).date().isoformat()
                    stated = {**columns, **software, **_columns(each), "date": today}
                    why = reason if each == point else f"batch {point[1]} at {point[2]} tokens did not fit"
                    rows[keys[at, each]] = _with_round(rows.get(keys[at, each]), times, stated, status, why)
                    done.add(keys[at, each])
                write_measurements(table, rows.values())
                row, text = rows[key], f"{status} ({reason})"
                if times:
                    text = f"{1e3 * row.rounds_s[-1]:.4g} ms, spread {row.spread or 0:.1%}"
                where = f"{model.name}, {plural(gpus, 'GPU')}, {point[0]}, batch {point[1]}, {point[2]} tokens"
                report(f"round {number} of {rounds}, {where}: {text}")
            again.clear()
        statuses = [rows[key].status for key in keys.values() if key in rows]
        return Profiled(
            table=str(table), points=len(keys), measured=len(done & set(keys.values())), found=found,
            missing=sum(lacks(key, rounds) for key in keys.values()), seconds=time.monotonic() - start,
            not_ok={status: statuses.count(status) for status in (OUT_OF_MEMORY, FAILED) if status in statuses},
        )  # fmt: skip


def prompt_and_output(stage: str, tokens: int) -> tuple[int, int]:
    """Prompt and output tokens of the requests that measure a stage at `tokens` tokens."""
    if stage == "prefill":
        return tokens, 1
    # Steps 1 to n - 1 after the first token hold p + 1 to p + n - 1 tokens: p + n / 2 on average.
    output = min(DECODED, 2 * max(tokens - 1, 1))
    return max(tokens - output // 2, 1), output


def _measure(
    command: Sequence[str], grid: Grid, model: Model, gpus: int, point: Point, repeats: int, log: str | Path | None
) -> tuple[list[float], str, str]:
    """The repeats of a point in seconds with OK, or none with a status and its reason."""
    stage, batch, tokens = point
    prompt, output = prompt_and_output(stage, tokens)
    found: list[list[float]] = []
    for length in (1,) if stage == "prefill" else (1, output):
        times, status, reason = _bench(command, grid.dtype, model, gpus, batch, prompt, length, repeats, log)
        if not times:
            return [], status, reason
        found.append(times)
    if stage == "prefill":
        return found[0], OK, ""
    first = float(np.median(found[0]))
    steps = [(each - first) / (output - 1) for each in found[1]]
    return (steps, OK, "") if min(steps) > 0 else ([], FAILED, f"{output} tokens took no longer than one")


def _bench(
    command: Sequence[str], dtype: str, model: Model, gpus: int, batch: int, prompt: int, output: int, repeats: int,
    log: str | Path | None,
) -> tuple[list[float], str, str]:  # fmt: skip
    """The repeats of `vllm bench latency`, each with fresh random prompts' tokens; the engine's messages go to the log."""
    with tempfile.TemporaryDirectory(prefix="moescale-") as name, ExitStack() as stack:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(dict(model.config)), encoding="utf-8")
        options = {
            "model": folder, "load-format": "dummy", "dtype": dtype, "tensor-parallel-size": gpus, "input-len": prompt,
            "output-len": output, "batch-size": batch, "num-iters-warmup": 2, "num-iters": repeats, "seed": 0,
            "max-model-len": prompt + output + 1, "max-num-seqs": batch, "output-json": folder / "latency.json",
            "max-num-batched-tokens": max(2048, prompt + output + 1, batch * prompt),
        }  # fmt: skip
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        messages = stack.enter_context((folder / "log.txt").open("w+b"))
        with uninterrupted():
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, *command, "bench", "latency", *given, "--skip-tokenizer-init", "--disable-detokenize"],
                stdin=subprocess.DEVNULL, stdout=messages, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
            stack.callback(end_group, process, 0.0)
        with suppress(subprocess.TimeoutExpired):
            process.wait(LIMIT_S)
        text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        if log is not None:
            with opened_to_append(log) as stream:
                stream.write(text.encode())
        room = [int(found.replace(",", "")) for found in KV_CACHE.findall(text)]
        if room and room[-1] < batch * (prompt + output):  # requests would wait for each other
            return (
                [],
                OUT_OF_MEMORY,
                f"the KV cache holds {room[-1]} tokens, and the batch needs {batch * (prompt + output)}",
            )
        if process.returncode:
            last = (text.strip().splitlines() or [f"vLLM ended with code {process.returncode}"])[-1][:200]
            killed = process.returncode == -9
            return (
                [],
                OUT_OF_MEMORY if killed or NO_MEMORY.search(text) else FAILED,
                "vLLM was killed" if killed else last,
            )
        try:
            times = [float(each) for each in json.loads((folder / "latency.json").read_text())["latencies"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [], FAILED, f"vLLM wrote no latencies: {type(error).__name__}"
        return times, FAILED, "vLLM wrote no latencies"


def _software(command: Sequence[str]) -> dict[str, str]:
    """The version of vLLM and the name of the GPU."""
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            f"cannot be run: {error}", where=command[0], next_step="give vLLM's interpreter: --python"
        ) from error
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["it prints no version"])[-1][:200]
        step = "install vLLM into an environment, and name its interpreter with --python"
        raise InputError(f"vLLM does not start: {last}", where=command[0], next_step=step)
    device = "CPU"
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        listed = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        device = listed[0].strip() if listed else device
    return {"engine_version": done.stdout.strip().splitlines()[-1], "device": device}


def _columns(point: Point) -> dict[str, Any]:
    return dict(zip(("stage", "batch", "tokens"), point, strict=True))


def _key(columns: Mapping[str, Any], point: Point) -> Key:
    return tuple({**columns, **_columns(point)}[name] for name in KEY)


def _rows(table: Path) -> dict[Key, Measurement]:
    return {key_of(row): row for row in read_measurements(table)} if table.exists() else {}


def _with_round(
    row: Measurement | None, seconds: Sequence[float], columns: Mapping[str, Any], status: str, reason: str
) -> Measurement:
    """The row with one more round: the median of the rounds' medians, and how far all that scatters; or the failure, which
    does not undo the rounds that went well."""
    earlier = row if row is not None and row.status == OK else None
    stated = cast("dict[str, Any]", columns)
    if not seconds:
        return earlier or Measurement(**stated, status=status, reason=reason, latency_s=None)
    low, median, high = (float(each) for each in np.quantile(seconds, (0.25, 0.5, 0.75)))
    rounds = (*(earlier.rounds_s if earlier else ()), median)
    latency = float(np.median(rounds))
    scatter = max((earlier.spread or 0.0) if earlier else 0.0, (high - low) / median)
    return Measurement(
        **stated, latency_s=latency, rounds_s=rounds, repeats=len(seconds) + (earlier.repeats if earlier else 0),
        spread=max(scatter, (max(rounds) - min(rounds)) / latency),
    )  # fmt: skip


def _check_same_engine(rows: Mapping[Key, Measurement], columns: Mapping[str, Any]) -> None:
    """Rows of different engines, versions or number formats do not belong in one table."""
    for name in ("engine", "engine_version", "dtype"):
        others = {str(getattr(row, name)) for row in rows.values() if getattr(row, name) and row.gpu == columns["gpu"]}
        if others - {columns[name]}:
            what = f"the table was measured with {name} {', '.join(sorted(others))}, and this is {columns[name]}"
            raise InputError(what, next_step="write to another file")

"""Latencies of models on the machine at hand, measured by `vllm bench latency` with random weights; one table keeps them.

Prefill is the time of a batch with one output token; decode is what DECODED more tokens take beyond that, a token. The grid
of a PROFILE.toml is visited in rounds, each start of vLLM a fresh one: repeats in one stretch agree with each other far better
than with the same measurement minutes later or in another process (Kalibera and Jones 2013, ISMM).
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from moescale.errors import InputError, located
from moescale.experiments.jobs import started
from moescale.export.huggingface import config_of
from moescale.io.files import opened_to_append
from moescale.io.json_text import read_object
from moescale.io.locks import lock_beside, locked
from moescale.io.toml import Experts, Listed, Quantity, Table, Text, Width, checked, read_toml
from moescale.latency import table as latencies
from moescale.latency.table import FAILED, OK, OUT_OF_MEMORY, SHAPE, Key, Measurement, key_of
from moescale.models.architecture import Architecture
from moescale.models.family import find_family
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.rounding import buildable

VLLM = (sys.executable, "-m", "vllm.entrypoints.cli.main")
DECODED = 16  # tokens of a decode measurement; their mean context is the wanted one
LIMIT_S = 3600.0  # for a start and its repeats, which then have failed
VOCABULARY = 32_000  # Llama's, which the paper's models take (arXiv 2404.02852, appendix A)
KV_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
NO_MEMORY = re.compile(r"out of memory|No available memory|KV cache is needed|MemoryError", re.IGNORECASE)

Work = dict[Key, tuple["Model", Measurement]]  # and its row before it is measured
Answer = tuple[list[float], str, str]  # the seconds of each repeat, or none; a status; its reason
Few = Field(max_length=100)
Lengths = Annotated[tuple[Width, ...], Listed, Few]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model to measure: the Hugging Face config that vLLM builds it from, and its shape."""

    name: str
    config: Mapping[str, Any]
    architecture: Architecture

    def columns(self) -> dict[str, Any]:
        """What every row of the table says about the model."""
        a, count = self.architecture, count_parameters(self.architecture)
        return {
            "model": self.name, "n_params_total": float(count.total), "n_params": float(dense_equivalent_params(a)),
            "n_params_non_embedding": float(count.non_embedding_total),
            **{name: int(float(getattr(a, name))) for name in (*SHAPE, "n_experts")},
            **({} if float(a.n_moe_layers) else {"n_experts": 1, "top_k": 1, "d_expert": 0}),
        }  # fmt: skip


class ModelsTable(Table):
    """An entry of [[models]]: sizes and expert counts of the paper's family, or one config.json (a file or its folder)."""

    n_params: Annotated[tuple[Annotated[float, Quantity, Field(ge=1e5, le=1e15)], ...], Listed, Few] = ()
    experts: Annotated[tuple[Experts, ...], Listed, Few] = (1,)
    config: Text | None = None

    def models(self, folder: Path, splits: int) -> Iterator[Model]:
        """The models; heads of those by size split over every divisor of `splits`."""
        if (self.config is None) == (not self.n_params):
            raise InputError("[[models]] needs n_params or config, and not both")
        if self.config is not None:
            file = folder / self.config
            shape = from_config(file)  # raises InputError that names the file
            config = read_object(file / "config.json" if file.is_dir() else file)
            yield Model(name=shape.name if "_name_or_path" in config else file.stem, config=config, architecture=shape)
        family = find_family("yun2024")
        for size, experts in itertools.product(self.n_params, self.experts):
            built = buildable(family, size, experts, gpus=splits, vocab_size=VOCABULARY, must_split=True)
            config, name = config_of(built, VOCABULARY), f"{built.n_params / 1e6:.4g}M E={experts}"
            yield Model(name=name, config=config, architecture=from_config(config))


class Grid(Table):
    """What a PROFILE.toml states: every combination is measured, at both stages."""

    gpu: Text  # the name that rows are filed under
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    batch: Lengths = (1, 2, 4, 8, 16, 32, 64)
    prompt_tokens: Lengths = (128, 512)  # of prefill
    context_tokens: Lengths | None = None  # of decode; None: the prompt lengths
    gpus: Annotated[tuple[Annotated[int, Quantity, Field(ge=1, le=1024)], ...], Listed, Few] = (1,)
    models: Annotated[tuple[ModelsTable, ...], Listed, Few]

    def points(self) -> list[tuple[str, int, int]]:
        """(stage, batch, tokens) of one model on one GPU count, the cheapest first."""
        lengths = (("prefill", self.prompt_tokens), ("decode", self.context_tokens or self.prompt_tokens))
        found = {(stage, batch, tokens) for stage, each in lengths for tokens in each for batch in self.batch}
        return sorted(found, key=lambda point: (point[1] * point[2], point))


def read_grid(path: str | Path) -> tuple[Grid, list[Model]]:
    """The grid that a PROFILE.toml states and its models; paths of configs are relative to it. InputError names file and key."""
    grid = checked(Grid, read_toml(path), where=str(path))
    with located(str(path)):
        return grid, [model for each in grid.models for model in each.models(Path(path).parent, math.lcm(*grid.gpus))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What a run of `profile` did."""

    points: int  # of the grid
    measured: int  # points that this run measured, in one round or more
    not_ok: dict[str, int]  # points of the grid by status, if not ok


def profile(
    grid: Grid,
    models: Sequence[Model],
    table: str | Path,
    *,
    vllm: Sequence[str] = VLLM,
    repeats: int = 10,
    rounds: int = 3,
    log: str | Path | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> Profiled:
    """Measure the points of `grid` and its `models` that `table` lacks, and write each as soon as it is known.

    `vllm` is the command of vLLM. Rows that failed before are measured again. Raises InputError where vLLM cannot be started,
    and where the table is of another version of it or is being written.
    """
    latencies.check_table(table)
    busy = InputError("is being written by another process", where=str(table), next_step="wait for it, or name another")
    with locked(lock_beside(table), busy=busy):
        known = latencies.read_measurements(table) if Path(table).exists() else ()
        rows, done, work = {key_of(row): row for row in known}, set[Key](), _work(grid, models)
        version = ""
        for number, (key, (model, point)) in itertools.product(range(1, rounds + 1), work.items()):
            row = rows.get(key, point)
            wanted = {FAILED: key not in done, OK: len(row.rounds_s) < number}
            if not wanted.get(row.status, False):
                continue
            version = version or _version(vllm)
            others = {row.engine_version for row in rows.values() if row.gpu == point.gpu} - {version}
            if others:  # times of two versions do not belong in one table
                what = f"the table was measured with engine_version {', '.join(others)}, and this is {version}"
                raise InputError(what, where=str(table), next_step="write to another file")
            times, status, reason = _measure(vllm, model, point, repeats, log)
            tried = {key: reason}
            # What needs more memory than what does not fit will not fit either.
            for each, (_, other) in work.items() if status == OUT_OF_MEMORY else ():
                same = replace(other, batch=point.batch, tokens=point.tokens) == point
                if same and each not in rows and other.batch >= point.batch and other.tokens >= point.tokens:
                    tried.setdefault(each, "a smaller point did not fit")
            date = datetime.datetime.now(datetime.UTC).date().isoformat()
            for each, why in tried.items():
                now = replace(work[each][1], engine_version=version, date=date, status=status, reason=why)
                rows[each] = _with_round(rows.get(each), now, times)
            done |= tried.keys()
            latencies.write_measurements(table, rows.values())
            took = f"{1e3 * rows[key].rounds_s[-1]:.4g} ms" if times else f"{status} ({reason})"
            what = f"{point.stage}, {point.gpus} GPU, batch {point.batch}, {point.tokens} tokens"
            report(f"round {number} of {rounds}, {model.name}, {what}: {took}")
        not_ok = Counter(rows[key].status for key in work if key in rows and rows[key].status != OK)
        return Profiled(points=len(work), measured=len(done), not_ok=dict(not_ok))


def _work(grid: Grid, models: Sequence[Model]) -> Work:
    """Every point of the grid by its key, each still without a measurement."""
    found, gpu = Work(), grid.gpu.strip()
    lacking: dict[str, Any] = {"engine_version": "", "date": "", "status": FAILED, "latency_s": None}
    lacking |= {"gpu": gpu, "device": gpu, "engine": "vllm", "dtype": grid.dtype}
    for model, gpus in itertools.product(models, grid.gpus):
        for stage, batch, tokens in grid.points():
            point = Measurement(**lacking, **model.columns(), gpus=gpus, stage=stage, batch=batch, tokens=tokens)
            found[key_of(point)] = (model, point)
    return found


def _measure(command: Sequence[str], model: Model, point: Measurement, repeats: int, log: str | Path | None) -> Answer:
    # Steps 1 to n - 1 after the first of n tokens hold p + 1 to p + n - 1 tokens: p + n / 2 on average.
    tokens, prefill = point.tokens, point.stage == "prefill"
    output = 1 if prefill else min(DECODED, 2 * max(tokens - 1, 1))
    stated: dict[str, Any] = {
        "dtype": point.dtype, "tensor-parallel-size": point.gpus, "num-iters": repeats,
        "batch-size": point.batch, "input-len": max(tokens - output // 2, 1),
    }  # fmt: skip
    first = _bench(command, {**stated, "output-len": 1}, model, log)
    if prefill or not first[0]:
        return first
    whole = _bench(command, {**stated, "output-len": output}, model, log)
    steps = (np.array(whole[0]) - np.median(first[0])) / (output - 1)
    if np.any(steps <= 0):
        return [], FAILED, f"{output} tokens took no longer than one"
    return steps.tolist(), *whole[1:]


def _bench(command: Sequence[str], stated: Mapping[str, Any], model: Model, log: str | Path | None) -> Answer:
    """The repeats of `vllm bench latency`, each with fresh random prompts' tokens; the engine's messages go to the log."""
    batch, length = stated["batch-size"], stated["input-len"] + stated["output-len"]
    with tempfile.TemporaryDirectory(prefix="moescale-") as name:
        folder = Path(name)
        (folder / "config.json").write_text(json.dumps(dict(model.config)), encoding="utf-8")
        options = {
            **stated, "model": folder, "load-format": "dummy", "num-iters-warmup": 2, "seed": 0,
            "max-model-len": length + 1, "max-num-seqs": batch, "output-json": folder / "latency.json",
            "max-num-batched-tokens": max(2048, length + 1, batch * stated["input-len"]),
        }  # fmt: skip
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        line = [*command, "bench", "latency", *given, "--skip-tokenizer-init", "--disable-detokenize"]
        with (
            (folder / "log.txt").open("w+b") as messages,
            started(line, messages, grace_s=0.0) as process,
            suppress(subprocess.TimeoutExpired),
        ):
            process.wait(LIMIT_S)
        text = (folder / "log.txt").read_text(encoding="utf-8", errors="replace")
        if log is not None:
            with opened_to_append(log) as stream:
                stream.write(text.encode())
        room = [int(found.replace(",", "")) for found in KV_CACHE.findall(text)]
        if room and room[-1] < batch * length:  # requests would wait for each other
            return [], OUT_OF_MEMORY, f"the KV cache holds {room[-1]} tokens, and the batch needs {batch * length}"
        if code := process.returncode:
            last = (text.strip().splitlines() or [f"vLLM ended with code {code}"])[-1][:200]
            if code == -signal.SIGKILL:  # by the system, which had no memory left
                return [], OUT_OF_MEMORY, "vLLM was killed"
            return [], OUT_OF_MEMORY if NO_MEMORY.search(text) else FAILED, last
        with suppress(OSError, ValueError, KeyError, TypeError):
            if times := [float(each) for each in json.loads((folder / "latency.json").read_text())["latencies"]]:
                return times, OK, ""
        return [], FAILED, "vLLM wrote no latencies"


def _version(command: Sequence[str]) -> str:
    step = "install vLLM into an environment, and name its interpreter with --python"
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"cannot be run: {error}", where=command[0], next_step=step) from error
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["it prints no version"])[-1][:200]
        raise InputError(f"vLLM does not start: {last}", where=command[0], next_step=step)
    return done.stdout.strip().splitlines()[-1]


def _with_round(row: Measurement | None, now: Measurement, seconds: Sequence[float]) -> Measurement:
    """The row with one more round: the median of medians and their scatter; a failure undoes no round that went well."""
    earlier = row if row is not None and row.status == OK else now  # which has no rounds yet
    if not seconds:
        return earlier
    low, median, high = (float(each) for each in np.quantile(seconds, (0.25, 0.5, 0.75)))
    rounds = (*earlier.rounds_s, median)
    latency = float(np.median(rounds))
    spread = max(earlier.spread or 0.0, (high - low) / median, (max(rounds) - min(rounds)) / latency)
    repeats = earlier.repeats + len(seconds)
    return replace(now, latency_s=latency, rounds_s=rounds, repeats=repeats, spread=spread)

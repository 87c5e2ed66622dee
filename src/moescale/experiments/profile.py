"""Latencies of models on the machine at hand, measured by `vllm bench latency` with random weights; one table keeps them.

Prefill is the time of a batch with one output token; decode is what DECODED more tokens take beyond that, a token. The grid
is visited in rounds, each start of vLLM a fresh one: repeats in one stretch agree with each other far better than with the
same measurement minutes later or in another process (Kalibera and Jones 2013, ISMM).
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from moescale.errors import InputError
from moescale.experiments.jobs import DIE_WITH_PARENT, end_group
from moescale.experiments.profile_grid import Grid, Model, Places, Point
from moescale.io.files import check_target, opened_to_append
from moescale.io.locks import lock_beside, locked
from moescale.io.signals import uninterrupted
from moescale.latency import measurements
from moescale.latency.measurements import FAILED, KEY, OK, OUT_OF_MEMORY, Key, Measurement
from moescale.units import plural

Report = Callable[[str], None]
DECODED = 16  # tokens of a decode measurement; their mean context is the wanted one
LIMIT_S = 3600.0  # for a start and its repeats, which then have failed
KV_CACHE = re.compile(r"KV cache size: ([\d,]+) tokens")
NO_MEMORY = re.compile(r"out of memory|No available memory|KV cache is needed|MemoryError", re.IGNORECASE)


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
    measurements.check_table(table)
    if log is not None:
        check_target(log)
    what, step = "is being written by another process", "wait for it, or name another file"
    with locked(lock_beside(table), busy=InputError(what, where=str(table), next_step=step)):
        rows, done = _rows(Path(table)), set[Key]()
        again = {key for key, row in rows.items() if retry and row.status == FAILED}
        keys: dict[tuple[int, Point], Key] = {
            (at, p): tuple({**columns, **_columns(p)}[name] for name in KEY)
            for at, (_, _, columns) in enumerate(grid.places) for p in grid.grid.points()
        }  # fmt: skip

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
                measurements.write_measurements(table, rows.values())
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


def _rows(table: Path) -> dict[Key, Measurement]:
    return {measurements.key_of(row): row for row in measurements.read_measurements(table)} if table.exists() else {}


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

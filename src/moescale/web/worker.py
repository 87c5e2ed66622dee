"""A fit in a process of its own, so that the page stays quick and a cancelled fit stops at once.

`python -m moescale.web.worker` reads one line of JSON (the task) and then the bytes of a run table from standard input;
it writes {"progress": [step, share]} lines and one last line, {"done": {..}} or {"error": {..}}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, TextIO

from moescale.errors import MoescaleError

MEMORY_LIMIT_BYTES = 8 * 2**30  # of addresses: what an upload unpacks to stays far below, a decompression bomb does not
COLUMNS = ("size_column", "tokens_column", "experts_column", "loss_column")
MOST_DRAWN = 5_000  # runs that the page draws of a larger table


def error_record(error: MoescaleError) -> dict[str, Any]:
    """An error as the page shows it: the command line's message and its parts."""
    return {
        "message": str(error),
        "what": error.what,
        "where": error.where,
        "nearest": error.nearest,
        "next_step": error.next_step,
        "infeasible": error.exit_code == 1,
    }


def fit_table(task: dict[str, Any], data: bytes, progress: Callable[[str, float], None]) -> dict[str, Any]:
    """Read, validate and fit a table as `moescale fit` does: the law as `store.Uploaded`, with its fit and the runs behind it."""
    import numpy as np

    from moescale.fitting.holdout import residuals
    from moescale.fitting.workflow import FitSettings, fit_runs
    from moescale.io.frames import parse_table
    from moescale.runs.table import read_runs
    from moescale.scaling_laws.store import law_text
    from moescale.web.api import read_law

    name, where = str(task["name"]), task.get("where")
    progress("read", 0.0)
    columns: dict[str, Any] = {key: str(task[key]) for key in COLUMNS if task.get(key)}
    table = read_runs(parse_table(data, name), where=where, **columns)
    how = FitSettings(bootstrap=int(task.get("bootstrap") or 0))
    found = fit_runs(table, str(task["law"]), how, progress=progress)
    law = found.named(name.rsplit(".", 1)[0] or "law", where=where or "")
    shown = np.linspace(0, len(table) - 1, min(len(table), MOST_DRAWN)).astype(int)
    drawn = {key: getattr(found.runs, key) for key in ("n_params", "tokens", "experts", "loss")}
    drawn |= {"residual": residuals(found.fit, found.runs), "row": table.row_numbers}
    evidence = {
        "fit": found.to_dict(),
        "n_runs": len(table),
        "runs": {key: values[shown].tolist() for key, values in drawn.items()},
        "further": {key: float(np.median(values)) for key, values in found.runs.extra.items()},
    }
    return asdict(replace(read_law(law_text(law), name), evidence=evidence))


def limit_memory() -> None:
    """Give this process MEMORY_LIMIT_BYTES of addresses at most, where the system has such limits."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def answer_channel() -> TextIO:
    """Standard output for the answers alone: what libraries print goes to standard error from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main() -> None:
    """Answer the one task on standard input."""
    limit_memory()
    answers = answer_channel()

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, allow_nan=False) + "\n")
        answers.flush()

    task = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    try:
        done = fit_table(task, data, lambda step, share: answer({"progress": [step, share]}))
    except MoescaleError as error:
        answer({"error": error_record(error)})
    except MemoryError:
        answer({"error": error_record(MoescaleError("does not fit in memory", where=str(task["name"])))})
    else:
        answer({"done": done})


if __name__ == "__main__":
    main()

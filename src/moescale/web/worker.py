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
    import datetime

    import numpy as np

    from moescale.fitting.fit import family_of, fitted_law
    from moescale.fitting.fit import fit as fit_law
    from moescale.fitting.holdout import RunArrays, residuals
    from moescale.io.frames import parse_table
    from moescale.runs.table import read_runs
    from moescale.scaling_laws import find_form, make_inputs
    from moescale.scaling_laws.covariates import from_columns, further_inputs
    from moescale.scaling_laws.store import law_text
    from moescale.web.api import read_law

    name = str(task["name"])
    form = find_form(str(task["law"]))
    progress("read", 0.0)
    columns = {key: str(task[key]) for key in COLUMNS if task.get(key)}
    table = read_runs(parse_table(data, name), where=task.get("where"), **columns)
    about, remarks = family_of(table)
    extra = further_inputs(form, from_columns(form, table.columns, table.experts, source=name))
    found = fit_law(form, table.n_params, table.tokens, table.experts, table.loss, extra=extra, progress=progress)
    draws = intervals = None
    if replicates := int(task.get("bootstrap") or 0):
        from moescale.fitting.bootstrap import bootstrap, parameter_intervals

        x = make_inputs(table.n_params, table.tokens, table.experts, extra)
        draws = bootstrap(found, x, np.log(table.loss), replicates, 0, progress=progress)
        intervals = parameter_intervals(found, draws)
    found = replace(found, warnings=(*table.warnings, *remarks, *found.warnings))
    law = fitted_law(
        found, about, name=_stem(name), source=f"fitted to {name}", date=datetime.date.today().isoformat(), draws=draws,
        evidence={
            "table": name, "table_sha256": table.sha256 or "", "where": task.get("where") or "", "seed": 0,
            "bootstrap": replicates, **{key: getattr(table, key) for key in COLUMNS},
        },
    )  # fmt: skip
    columns = {key: np.broadcast_to(np.asarray(v, dtype=float), len(table)) for key, v in extra.items()}
    error = residuals(found, RunArrays(table.n_params, table.tokens, table.experts, table.loss, columns))
    shown = np.linspace(0, len(table) - 1, min(len(table), MOST_DRAWN)).astype(int)
    evidence = {
        "fit": found.to_dict(intervals),
        "n_runs": len(table),
        "runs": {
            "n_params": table.n_params[shown].tolist(),
            "tokens": table.tokens[shown].tolist(),
            "experts": table.experts[shown].tolist(),
            "loss": table.loss[shown].tolist(),
            "residual": error[shown].tolist(),
            "row": table.row_numbers[shown].tolist(),
        },
        "further": {key: float(np.median(values)) for key, values in columns.items()},
    }
    return asdict(replace(read_law(law_text(law), name), evidence=evidence))


def _stem(name: str) -> str:
    return name.rsplit(".", 1)[0] or "law"


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

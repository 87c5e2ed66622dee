"""A process that computes for the page's server, which ends it when nobody waits for its answer any more.

`python -m moescale.web.worker` writes one line once it is ready. Then it reads a task as a line of JSON from standard input,
writes a line {"progress": [step, share]} as often as it likes, and last its answer, a line as well: a record of `api`, or
{"error": {..}}. It ends with its standard input, in the middle of a task too.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.web import api, error_record
from moescale.web.state import DEFAULTS, Asked, read_state
from moescale.web.store import PREFIX, Laws, Uploaded

Record = dict[str, Any]
Progress = Callable[[str, float], None]

MEMORY_LIMIT_BYTES = 8 * 2**30  # of addresses: what an upload unpacks to stays far below, a decompression bomb does not
COLUMNS = ("size_column", "tokens_column", "experts_column", "loss_column")
MOST_DRAWN = 5_000  # runs that the page draws of a larger table

ANSWERS: Mapping[str, Callable[[Asked], Record]] = {
    "draft": api.draft,
    "plan": api.plan,
    "bands": api.bands,
    "scales": api.scales,
}


def answer(task: Record, progress: Progress = lambda _step, _share: None) -> Record:
    """The answer to a task: its `name`, its `query`, the uploaded `laws` that it may need, and of a fit the `table`."""
    name, query, laws = task["name"], task["query"], Laws(Uploaded(**law) for law in task["laws"])
    try:
        if name == "fit":
            return fit_table(query, base64.b64decode(task["table"]), progress)
        if name == "read":
            return asdict(api.read_law(query["text"], query["where"]))
        law = query.get("law", DEFAULTS["law"])
        if name == "catalogue":
            return api.catalogue(laws, law)
        if name == "law":
            return {"text": api.law_file(law, laws)}
        # A law from a file may be so steep that its loss overflows: no size is optimal there, which the answer says.
        with np.errstate(over="ignore"):
            asked = read_state(query, laws.find)
            if name == "evidence":
                return api.evidence(asked, laws.uploaded(law).evidence if law.startswith(PREFIX) else {})
            return ANSWERS[name](asked)
    except MoescaleError as error:
        return {"error": error_record(error)}
    except MemoryError:
        return {"error": error_record(MoescaleError("the answer does not fit in memory", next_step="ask for less"))}


def fit_table(query: Mapping[str, Any], table: bytes, progress: Progress) -> Record:
    """Read, validate and fit a table as `moescale fit` does: the law as `store.Uploaded`, with its fit and the runs behind it."""
    from moescale.fitting.holdout import residuals
    from moescale.fitting.workflow import FitSettings, fit_runs
    from moescale.io.frames import parse_table
    from moescale.runs.table import read_runs
    from moescale.scaling_laws.store import law_text

    name, where = query["name"], query.get("where")
    progress("read", 0.0)
    runs = read_runs(parse_table(table, name), where=where, **{key: query[key] for key in COLUMNS if key in query})
    found = fit_runs(runs, query["law"], FitSettings(bootstrap=query["bootstrap"]), progress=progress)
    law = found.named(name.rsplit(".", 1)[0] or "law", where=where or "")
    shown = np.linspace(0, len(runs) - 1, min(len(runs), MOST_DRAWN)).astype(int)
    drawn = {key: getattr(found.runs, key) for key in ("n_params", "tokens", "experts", "loss")}
    drawn |= {"residual": residuals(found.fit, found.runs), "row": runs.row_numbers}
    evidence = {
        "fit": found.to_dict(),
        "n_runs": len(runs),
        "runs": {key: values[shown].tolist() for key, values in drawn.items()},
        "further": {key: float(np.median(values)) for key, values in found.runs.extra.items()},
    }
    return asdict(replace(api.read_law(law_text(law), name), evidence=evidence))


def _limit_memory() -> None:
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def main() -> None:
    """Answer until standard input ends."""
    _limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    tasks: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            tasks.put(line)
        os._exit(0)  # the server has gone: nobody reads the answer that may be under way

    def write(value: Record) -> None:
        answers.write(json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n")
        answers.flush()

    threading.Thread(target=read, daemon=True).start()
    with suppress(BrokenPipeError):
        write({"ready": True})
        while True:
            write(answer(json.loads(tasks.get()), lambda step, share: write({"progress": [step, share]})))


if __name__ == "__main__":
    main()

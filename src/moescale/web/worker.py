"""A process that computes for the page's server, which ends it when nobody waits for its answer any more.

`python -m moescale.web.worker` writes one line once it is ready. Then it reads a task as a line of JSON from standard input and
writes its answer, a line as well: a record of `api`, or {"error": {..}}. It ends with its standard input, in the middle of a task too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.scaling_laws.store import law_text
from moescale.web import api
from moescale.web.state import DEFAULTS, faults, read_state
from moescale.web.store import PREFIX, Laws, Uploaded

Record = dict[str, Any]

MEMORY_LIMIT_BYTES = 8 * 2**30  # of addresses: what an upload unpacks to stays far below, a decompression bomb does not

ANSWERS = {each.__name__: each for each in (api.draft, api.plan, api.bands, api.scales)}
ANSWERS["sketch"] = partial(api.draft, sizes=api.SKETCHED)


def answer(task: Record) -> Record:
    """The answer to a task: its `name`, its `query`, and the uploaded `laws` that it may need."""
    name, query, laws = task["name"], task["query"], Laws(Uploaded(**law) for law in task["laws"])
    try:
        if name == "read":
            return asdict(api.read_law(query["text"], query["where"]))
        if name == "faults":
            return {key: error.to_dict() for key, error in faults(query, laws.find).items()}
        law = query.get("law", DEFAULTS["law"])
        if name == "catalogue":
            return api.catalogue(laws, law)
        if name == "law":
            return {"text": laws.uploaded(law).text if law.startswith(PREFIX) else law_text(laws.find(law))}
        # A law from a file may be so steep that its loss overflows: no size is optimal there, which the answer says.
        with np.errstate(over="ignore"):
            return ANSWERS[name](read_state(query, laws.find))
    except MoescaleError as error:
        return {"error": error.to_dict()}
    except MemoryError:
        return {"error": MoescaleError("the answer does not fit in memory", next_step="ask for less").to_dict()}


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
            write(answer(json.loads(tasks.get())))


if __name__ == "__main__":
    main()

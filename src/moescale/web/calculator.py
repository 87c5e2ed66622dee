"""The page's answers in a process of their own, which the server ends when nobody waits for it any more.

`python -m moescale.web.calculator` reads one line of JSON a question from standard input, and writes one a answer: the
record of `api`, or {"error": {..}}. It ends with its standard input, in the middle of a question too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from queue import SimpleQueue
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.web import api
from moescale.web.state import DEFAULTS
from moescale.web.store import Laws, Uploaded
from moescale.web.worker import answer_channel, error_record, limit_memory

Record = dict[str, Any]

ANSWERS: Mapping[str, Callable[[Mapping[str, str], Laws], Record]] = {
    "draft": api.draft,
    "plan": api.plan,
    "bands": api.bands,
    "scales": api.scales,
    "evidence": api.evidence,
    "catalogue": lambda query, laws: api.catalogue(laws, query.get("law", DEFAULTS["law"])),
    "law": lambda query, laws: {"text": api.law_file(query.get("law", DEFAULTS["law"]), laws)},
    "read": lambda query, _: asdict(api.read_law(query["text"], query["where"])),
}


def answer(task: Record) -> Record:
    """The answer to a task: its `name` in ANSWERS, its `query`, and the uploaded `laws` that it may need."""
    laws = Laws(tuple(Uploaded(**kept) for kept in task["laws"]))
    try:
        # A law from a file may be so steep that its loss overflows: no size is optimal there, which the answer says.
        with np.errstate(over="ignore"):
            return ANSWERS[task["name"]](task["query"], laws)
    except MoescaleError as error:
        return {"error": error_record(error)}
    except MemoryError:
        return {"error": error_record(MoescaleError("the answer does not fit in memory", next_step="ask for less"))}


def main() -> None:
    """Answer until standard input ends."""
    limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process
    answers = answer_channel()
    tasks: SimpleQueue[bytes] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin.buffer:
            tasks.put(line)
        os._exit(0)  # the server has gone: nobody reads the answer that may be under way

    threading.Thread(target=read, daemon=True).start()
    with suppress(BrokenPipeError):
        while True:
            answers.write(json.dumps(answer(json.loads(tasks.get())), separators=(",", ":"), allow_nan=False) + "\n")
            answers.flush()


if __name__ == "__main__":
    main()

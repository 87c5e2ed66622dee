"""What a process of the page's pool does: the answer to a task, a record of `api` or {"error": {..}}."""

from __future__ import annotations

import json
import signal
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.scaling_laws.store import law_text
from moescale.web import api
from moescale.web.state import DEFAULTS, faults, read_state
from moescale.web.store import PREFIX, Laws

Record = dict[str, Any]

MEMORY_LIMIT_BYTES = 8 * 2**30  # of addresses: what an upload unpacks to stays far below, a decompression bomb does not

ANSWERS = {each.__name__: each for each in (api.draft, api.plan, api.bands, api.scales)}
ANSWERS["sketch"] = partial(api.draft, sizes=api.SKETCHED)


def answer(task: Record) -> Record:
    """The answer to a task: its `name`, its `query`, and the uploaded `laws` that it may need."""
    name, query, laws = task["name"], task["query"], Laws(task["laws"])
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


def written(task: Record) -> bytes:
    """The answer as JSON."""
    return json.dumps(answer(task), separators=(",", ":"), allow_nan=False).encode()


@cache
def prepare() -> None:
    """Bound the memory of this process; and Ctrl-C is the server's, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        most = MEMORY_LIMIT_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_LIMIT_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, hard))

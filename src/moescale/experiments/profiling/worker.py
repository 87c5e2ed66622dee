"""The other end of the pipe: runs one engine in an interpreter of its own and answers requests as JSON lines.

`python worker.py ENGINE.py` needs nothing but the standard library here and what the engine imports; moescale need not be
installed in that environment. The first line in is the task (config, gpus, dtype, points ..), each further one a point:
{"stage", "batch", "tokens", "repeats"}. After a first {"hello"} each line out is {"ready": {..}}, {"seconds": [..]} or {"error": kind, "reason"}.
An engine is a module with `start(task)`, which gives (description, measure(stage, batch, tokens, repeats) -> seconds).
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any

# How the libraries word it; the exceptions differ (torch.OutOfMemoryError, RuntimeError, ValueError of vLLM).
OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "no available memory", "kv cache holds")


def classify(error: BaseException) -> tuple[str, str]:
    """What went wrong, as the kind and reason of an answer."""
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0][:300] if lines else ''}".rstrip(": ")
    if isinstance(error, ImportError):
        return "engine", reason
    lowered = str(error).lower()
    memory = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    return ("out of memory" if memory or any(text in lowered for text in OUT_OF_MEMORY) else "failed"), reason


def end_with(parent: int) -> None:
    """Kill this process group, engine's children included, once the process that started it is gone."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    if hasattr(os, "getpgrp") and os.getpgrp() == os.getpid():  # a group of its own, as run.py starts it
        threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    # Libraries print; the answers keep a channel of their own, and prints go to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    def fail(error: BaseException) -> None:
        traceback.print_exc()
        kind, reason = classify(error)
        answer({"error": kind, "reason": reason})

    answer({"hello": sys.version})
    try:
        spec = importlib.util.spec_from_file_location("engine", sys.argv[1])
        if spec is None or spec.loader is None:
            raise ImportError(f"no module at {sys.argv[1]}")
        engine = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(engine)
        description, measure = engine.start(json.loads(sys.stdin.readline()))
    except Exception as error:
        fail(error)
        return
    answer({"ready": description})
    for line in sys.stdin:
        point = json.loads(line)
        try:
            answer({"seconds": measure(point["stage"], point["batch"], point["tokens"], point["repeats"])})
        except Exception as error:
            fail(error)


if __name__ == "__main__":
    main()
    sys.stderr.flush()
    os._exit(0)  # engines leave threads and child processes behind that would hold up an ordinary exit

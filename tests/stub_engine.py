"""An engine without a model, for the tests of `moescale profile`: latencies are a formula, and some points go wrong.

It obeys the task's config: `stub` holds what to do (pause in seconds, batches that do not fit, that fail, that kill it).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any


def latency_s(stage: str, batch: int, tokens: int, gpus: int) -> float:
    return (1e-3 * batch * tokens if stage == "prefill" else 2e-3 + 1e-5 * batch * (1 + tokens)) / gpus


def start(task: dict[str, Any]) -> tuple[dict[str, str], Callable[[str, int, int, int], list[float]]]:
    stub = task["config"].get("stub", {})
    if stub.get("missing"):
        raise ModuleNotFoundError("No module named 'torch'")
    if stub.get("too_large"):
        raise MemoryError("the weights")
    starts = 1
    if stub.get("slower"):
        with open(stub["slower"], "a+") as file:
            file.write("x")
            starts = file.tell()
    print("a library that prints to standard output")

    def measure(stage: str, batch: int, tokens: int, repeats: int) -> list[float]:
        if stub.get("log"):
            with open(stub["log"], "a") as file:
                file.write(f"{stage} {batch} {tokens}\n")
        time.sleep(stub.get("pause", 0.0))
        if batch >= stub.get("does_not_fit", 1e9):
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")
        if batch == stub.get("fails"):
            raise ValueError("an assertion\nof two lines")
        if batch == stub.get("kills"):
            os.kill(os.getpid(), signal.SIGKILL)
        if batch == stub.get("exits"):
            os._exit(7)
        at = latency_s(stage, batch, tokens, task["gpus"]) * starts
        return [at * (1 + stub.get("noise", 0.0) * (-1) ** i) for i in range(repeats)]

    return {"engine_version": stub.get("version", "1"), "device": "stub"}, measure

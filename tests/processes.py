"""What tests that start processes share: the environment, waiting, and what became of a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reference_data import ROOT

PATIENCE_S = 30.0  # after which something that should end counts as hung


def environment(**more: str) -> dict[str, str]:
    """That of these tests, with the package beside them, on one core."""
    one_core = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), **one_core, **more}


def until(true: Callable[[], Any], what: str = "what was waited for") -> Any:
    """What `true` returns once it is anything but false; fails after PATIENCE_S."""
    end = time.monotonic() + PATIENCE_S
    while not (found := true()):
        assert time.monotonic() < end, f"not within {PATIENCE_S:g} s: {what}"
        time.sleep(0.02)
    return found


def lives(pid: int) -> bool:
    """Whether a process runs; one that has ended and that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """The processes that a process started, and theirs."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    found = [int(text) for task in tasks for text in task.read_text().split()]
    return [*found, *(below for child in found for below in children(child))]


@contextmanager
def web_server() -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """`moescale web` in a process of its own, its port and its token."""
    with subprocess.Popen(
        [sys.executable, "-m", "moescale", "web", "--no-open", "--port", "0"],
        env=environment(), stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            assert running.stderr is not None
            line = running.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)", line)
            assert found, line
            yield running, int(found[1]), found[2]
        finally:
            running.kill()

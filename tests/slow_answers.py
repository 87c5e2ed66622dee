"""What stands in for the page's answers where its processes are tested; they import this module."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

_COUNT = itertools.count(1)


def stuck(folder: Path, task: dict[str, Any] | None) -> bytes:
    """Leave the number of the process in a folder, and never answer a question of bands."""
    if task is not None:
        (folder / str(os.getpid())).touch()
        if task["name"] == "bands":
            time.sleep(10000)
    return b"{}"


def counted(seconds: float, task: dict[str, Any] | None) -> bytes:
    """Take a while, and say how many questions this process was asked."""
    if task is None:
        return b""
    time.sleep(seconds)
    return b'{"asked": %d}' % next(_COUNT)

"""Public tables that the repository does not hold: they are read from $MOESCALE_SHARED/data where that is set."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def shared_table(name: str) -> Path:
    """The path of a table, such as joint_moe_runs/runs.csv; skips the test where it is not at hand."""
    shared = os.environ.get("MOESCALE_SHARED")
    if not shared:
        pytest.skip(f"MOESCALE_SHARED names no folder with data/{name}")
    return Path(shared, "data", name)

"""The local page: a small server of JSON that calls the public functions, and the built files of the page."""

from __future__ import annotations

from typing import Any

from moescale.errors import MoescaleError


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

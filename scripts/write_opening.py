"""Compute what `moescale web` opens with: the catalogue and the first curves, into src/moescale/web/opening.json.

python scripts/write_opening.py      (after a change of laws, GPUs, kernels or of the answers themselves; a test says when)
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from moescale.files import write_atomically
from moescale.web import api
from moescale.web.app import kernels_version
from moescale.web.state import DEFAULTS
from moescale.web.store import Laws

OPENING = Path(__file__).parents[1] / "src" / "moescale" / "web" / "opening.json"


def opening() -> dict[str, Any]:
    """The record, as the server would answer."""
    laws, law = Laws(), DEFAULTS["law"]
    return {
        "kernels": kernels_version(),
        "catalogue": api.catalogue(laws, law),
        "draft": api.draft({"law": law}, laws),
    }


if __name__ == "__main__":
    write_atomically(OPENING, json.dumps(opening(), separators=(",", ":"), allow_nan=False) + "\n")

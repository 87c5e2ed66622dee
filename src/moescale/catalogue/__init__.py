"""Facts as dated, sourced TOML files; this reads them."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def read(name: str) -> dict[str, Any]:
    """The parsed TOML file `name` of the catalogue, such as `gpus.toml`; all readers share it, so none changes it."""
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))

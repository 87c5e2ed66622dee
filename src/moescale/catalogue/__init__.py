"""Facts as dated, sourced TOML files; this reads them."""

from __future__ import annotations

import tomllib
from importlib import resources
from typing import Any


def read(name: str) -> dict[str, Any]:
    """The parsed TOML file `name` of the catalogue, such as `gpus.toml`."""
    return tomllib.loads((resources.files(__name__) / name).read_text(encoding="utf-8"))

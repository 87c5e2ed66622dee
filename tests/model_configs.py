"""Configs, most of them published, of tests/data/model_configs.json, without the keys that say nothing of the shape, by name.

A row has what is counted of it: parameters, those of a token, of attention, and bytes of 10,000 tokens of cache in bf16; `transformers`
says that a test holds the parameters to that library's. It has the published total and active parameters where a test holds the config to
them; `tables` says how many of the embedding tables the active ones have in them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "data" / "model_configs.json").read_text())
CONFIGS: dict[str, dict[str, Any]] = {name: row["config"] for name, row in ROWS.items()}

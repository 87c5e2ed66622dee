"""The table of published numbers names every file here, and no other."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_table_lists_every_file() -> None:
    rows = re.findall(r"\| ([./\w]+\.py) \|$", (HERE / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert all((HERE / row).is_file() for row in rows)
    assert {row for row in rows if "/" not in row} == {p.name for p in HERE.glob("test_*.py")} - {Path(__file__).name}

"""docs/laws.md says what the code and the catalogue say."""

from __future__ import annotations

from pathlib import Path

import pytest

from moescale.scaling_laws import FORMS, catalogue_names
from script_modules import load_script

ROOT = Path(__file__).parents[1]


@pytest.mark.system
def test_the_page_of_laws_is_current() -> None:
    script = load_script("scripts/document_laws.py")
    page = (ROOT / "docs" / "laws.md").read_text(encoding="utf-8")
    assert page == script.page(), "run `python scripts/document_laws.py`"
    assert all(f"\n### {name}" in page for name in (*FORMS, *catalogue_names()))

"""Hindcasts of published models: the page says what its script computes, and that stays what it was."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from moescale.models.published import find_shape, published_shapes
from reference_data import ROOT
from script_modules import load_script

script: Any = load_script("scripts/document_hindcasts.py")
STORED: Any = script.Hindcasts(script.stored())
PAGE = (ROOT / "docs" / script.PAGE).read_text(encoding="utf-8")


def test_every_model_with_experts_and_known_tokens_is_on_the_page() -> None:
    sparse = {k for k, s in published_shapes().items() if s.tokens is not None and np.any(s.architecture.n_experts > 1)}
    assert sparse - {"deepseek-v2-lite"} <= set(script.MODELS)  # the small sister of deepseek-v2
    assert STORED.models == script.MODELS
    assert {name for name in script.MODELS if find_shape(name).tokens is None} == set()
    for left_out in ("gpt-oss-20b", "gpt-oss-120b", "mixtral-8x7b", "mixtral-8x22b"):
        assert find_shape(left_out).tokens is None


def test_the_page_holds_what_the_table_says() -> None:
    assert script.page(STORED) == PAGE


def test_shapes_are_of_the_models_kind() -> None:
    shapes = {name: STORED.of(name, "published").shape for name in STORED.models}
    assert [n for n, shape in shapes.items() if shape == "deepseek"] == ["deepseek-v3", "kimi-k2", "deepseek-v2"]
    assert shapes["olmoe-1b-7b"] == shapes["glm-4.5"] == shapes["qwen3-30b-a3b"] == "fine-grained"
    assert shapes["llama-4-maverick"] == shapes["llama-3.1-405b"] == "mixtral"


def test_answers_use_no_more_than_the_budget_and_the_text_and_stay_within_the_range() -> None:
    for row in script.stored():
        if row.asked == "published" or math.isnan(row.active):
            continue
        assert 6.0 * row.active * row.tokens <= 1.001 * row.budget_flops
        assert row.tokens <= 40e12 * 1.001
        assert row.expansion <= 128.0
        assert row.probability >= 0.8 - 1e-9
        assert row.most_sure >= 0.8


def test_a_model_without_a_plan_is_named_as_missed() -> None:
    missing = [row.model for row in script.stored() if math.isnan(row.active)]
    page = (ROOT / "docs" / "evidence" / "decisions.md").read_text(encoding="utf-8")
    assert len(missing) <= 1
    assert all(f"{model} (no plan)" in page for model in missing)


def test_what_the_budget_of_deepseek_v3_was_spent_on() -> None:
    published, alone = STORED.of("deepseek-v3", "published"), STORED.of("deepseek-v3", "budget")
    assert published.active == pytest.approx(35.7e9, rel=0.01)  # 37B with the output table, as published
    assert published.budget_flops == pytest.approx(3.17e24, rel=0.01)
    # Sense: within a factor of two of what the lab trained, inside the law's range.
    assert 0.5 < alone.active / published.active < 2.0
    assert 0.5 < alone.tokens / published.tokens < 2.0
    assert 8.0 < alone.expansion < 128.0


@pytest.mark.system
def test_deepseek_v3_is_still_answered_so() -> None:
    for row in script.hindcast("deepseek-v3"):
        before = STORED.of(row.model, row.asked)
        for name in ("budget_flops", "active", "expansion", "tokens", "usd_per_mtok"):
            assert getattr(row, name) == pytest.approx(getattr(before, name), rel=0.05, nan_ok=True), name
        assert row.most_sure == pytest.approx(before.most_sure, abs=0.03, nan_ok=True)
        assert row.ln_loss_above == pytest.approx(before.ln_loss_above, abs=0.002, nan_ok=True)

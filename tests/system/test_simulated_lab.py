"""benchmarks/simulated_lab.py: what its planners choose, and what a truth says of them, on one question."""

from __future__ import annotations

import csv
from functools import cache
from typing import Any

import pytest

from moescale.planning.plan import make_plan
from moescale.scaling_laws import find_law
from script_modules import load_script

lab = load_script("benchmarks/simulated_lab.py")
ASKED = lab.Asked(5e21, "h100-sxm")
PUBLIC = find_law("public-2026")
MEMBERS = [member.law.name for member in PUBLIC.members]


@cache
def search() -> Any:
    return lab.searched(find_law(lab.POOLED), ASKED)


@cache
def plans() -> dict[tuple[str, float | None], Any]:
    return {**dict(lab.planned(search(), (0.8,))), **dict(lab.compared(search(), PUBLIC))}


def test_the_true_law_does_not_plan() -> None:
    for name in MEMBERS:
        left = lab.ensemble_without(PUBLIC, name)
        assert [member.law.name for member in left.members] == [other for other in MEMBERS if other != name]
        assert [member.weight for member in left.members] == pytest.approx([1 / 3] * 3)
        assert len(left.draws) == 75
    assert lab.ensemble_without(PUBLIC, "zhao2025") is PUBLIC
    assert set(lab.TRUTHS) == {*MEMBERS, *lab.OUTSIDE}


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("truth", "gone"), [("ludziejewski2025", {"joint", "krajewski2024"}), ("zhao2025", {"zhao2025"})]
)
def test_the_pooled_law_does_not_know_the_lab_of_the_true_law(truth: str, gone: set[str]) -> None:
    law, shipped = lab.made.fitted_without(lab.TRUTHS[truth]), find_law(lab.POOLED)
    assert set(law.members[0].law.evidence["sources"]) == set(shipped.members[0].law.evidence["sources"]) - gone
    assert len(law.draws) == 400
    assert law.max_experts == shipped.max_experts


def test_the_pooled_law_plans_as_the_program_does() -> None:
    found, model = search(), plans()[lab.POOLED, 0.8]
    plan = make_plan(find_law(lab.POOLED), found.question, found.costs.deployment, found.costs.latency)
    row = next(c for c in plan.bounded_loss if c.experts == model.experts)
    assert model.n_params == row.n_params
    # The program builds its choice and up to two rivals in whole layers, which moves dollars by up to 12%.
    recommended = next(c for c in plan.bounded_loss if c.experts == plan.recommendation.model.experts)
    assert model.usd <= recommended.usd_per_mtok * (1.0 + 1e-9) or recommended.experts == model.experts
    assert recommended.usd_per_mtok <= 1.12 * model.usd


def test_the_page_shows_the_stored_tables() -> None:
    page = (lab.pages.DOCS / lab.PAGE).read_text(encoding="utf-8")
    assert page == lab.page(*(lab.pages.read_csv(name) for name in (lab.LAB, lab.ONE_QUESTION)))


@pytest.mark.fuzz
def test_the_table_holds_every_planner_under_every_law_and_their_mean() -> None:
    scores = lab.simulated([ASKED], ["ludziejewski2025", "yun2024-joint"], (0.8,))
    rows = list(csv.DictReader(lab.lab_csv(scores).splitlines()))
    mine = {row["true_law"]: float(row["regret"]) for row in rows if row["planner"] == lab.POOLED}
    assert set(mine) == {"ludziejewski2025", "yun2024-joint", lab.ANY}
    assert mine[lab.ANY] == pytest.approx((mine["ludziejewski2025"] + mine["yun2024-joint"]) / 2, abs=1e-4)
    planners = {row["planner"] for row in rows}
    assert planners >= {lab.POOLED + lab.WORD, lab.WITHOUT, "yun2024-joint" + lab.WORD, lab.BASE}


@pytest.mark.fuzz  # ten seconds
def test_the_stored_answer_to_one_question_is_todays() -> None:
    today = list(csv.DictReader(lab.trial_csv(lab.trial()).splitlines()))
    for row, before in zip(today, lab.pages.read_csv(lab.ONE_QUESTION), strict=True):
        assert [row[key] for key in ("choice_of", "experts", "under_law")] == [
            before[key] for key in ("choice_of", "experts", "under_law")
        ]
        for name in ("n_params_active", "cost_over_baseline"):
            assert float(row[name]) == pytest.approx(float(before[name]), rel=0.01)
        assert float(row["regret"]) == pytest.approx(float(before["regret"]), abs=0.005)
        assert float(row["probability"]) == pytest.approx(float(before["probability"]), abs=0.021)

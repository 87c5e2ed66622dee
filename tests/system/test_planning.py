"""Plans: what a recommendation promises holds for every budget, GPU, convention and bound, and is JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from examples import daily
from families import DENSE, HOFFMANN, JOINT, PAPER, YUN, chinchilla_optimum, law_of
from moescale.errors import InfeasibleError, InputError
from moescale.export.huggingface import config_of
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.latency.roofline import Roofline
from moescale.models.family import architecture
from moescale.models.hf_config import from_config
from moescale.planning.allocation import Budget
from moescale.planning.lifetime_plan import LifetimePlan
from moescale.planning.plan import Plan, Question, make_plan
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws import Law, find_law, loss
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import cheapest
from moescale.units import format_count, format_usd
from moescale.views.tables.plan import bounded_loss_table, loss_optimal_table
from moescale.views.terminal.plan import show_plan

LAW = law_of(
    "yun2024", YUN, PAPER, name="recovered", max_experts=32.0,
    fit_range={"n_params": (1e8, 7e8), "tokens": (2.5e9, 2e10), "experts": (1.0, 32.0)},
)  # fmt: skip
THETA = LAW.theta
DENSE_LAW = law_of(
    "chinchilla", HOFFMANN, DENSE, name="hoffmann", fit_range={"n_params": (7e7, 1.6e10), "tokens": (5e9, 5e11)}
)
DRAWN = replace(LAW, draws=THETA * (1 + 0.002 * np.random.default_rng(0).normal(size=(40, THETA.size))))
BUDGET = 5.15e21
MAIN = Question(budget=Budget(BUDGET), match_experts=4.0)


def served_on(gpu: str = "a100-sxm-40gb", **changes: Any) -> Deployment:
    base = Deployment(
        gpu=find_gpu(gpu), usd_per_gpu_hour=price(gpu).usd_per_gpu_hour, prompt_tokens=230, output_tokens=203,
        max_num_seqs=math.inf, reserve_bytes=0.0,
    )  # fmt: skip
    return replace(base, **changes)


def roofline_of(deployment: Deployment) -> Roofline:
    return Roofline(deployment.gpu, float(deployment.weight_bytes_per_param), float(deployment.kv_bytes_per_element))


def ask(question: Question = MAIN, law: Law = LAW, gpu: str = "a100-sxm-40gb", **serving: Any) -> Plan:
    deployment = served_on(gpu, **serving)
    return make_plan(law, question, deployment, roofline_of(deployment))


@cache
def main_plan() -> Plan:
    return ask()


def known(value: float | None) -> float:
    assert value is not None
    return value


def values_of(record: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf of a JSON value with its place."""
    if isinstance(record, dict):
        for key, value in cast("dict[str, object]", record).items():
            yield from values_of(value, f"{path}.{key}")
    elif isinstance(record, list):
        for i, value in enumerate(cast("list[object]", record)):
            yield from values_of(value, f"{path}[{i}]")
    else:
        yield path, record


def assert_kept(plan: Plan, law: Law, deployment: Deployment, kv_heads: float | None = None) -> None:
    """All that a plan promises without further bounds."""
    family = replace(law.family, convention=plan.convention, kv_heads=kv_heads)
    optimum = {c.experts: c for c in plan.loss_optimal}
    recommended, built = plan.recommendation.model, plan.recommendation.architecture
    everything = [*plan.loss_optimal, *plan.bounded_loss, *plan.bounded_cost, *plan.frontier, recommended]

    # Each record agrees with the law, the family and the serving model.
    for c in everything:
        if c.n_params is None:
            assert c.infeasible
            assert c.usd_per_mtok is c.loss is None
            continue
        spent = 6 * known(c.n_params_active) * known(c.tokens)
        assert spent == pytest.approx(plan.budget_flops, rel=1e-9)
        assert c.loss == pytest.approx(float(loss(law, c.n_params, known(c.tokens), c.experts)), rel=1e-12)
        shape = architecture(family, c.n_params, c.experts, vocab_size=built.vocab_size)
        if c.n_params == recommended.n_params:
            shape = from_config(config_of(built, built.vocab_size))
        built_here = c.n_params == recommended.n_params
        served = cheapest(shape, roofline_of(deployment), deployment, every=built_here)
        if math.isfinite(served.usd_per_mtok):
            assert c.infeasible is None
            assert c.usd_per_mtok == pytest.approx(float(served.usd_per_mtok), rel=1e-9)
            assert c.gpus == int(served.gpus) <= deployment.max_gpus
        else:
            assert c.usd_per_mtok is c.gpus is None
            assert f"of {deployment.max_gpus} x {deployment.gpu.name}" in c.infeasible

    # Algorithm 1: the base's loss, and never dearer or larger than that expert count's own optimum.
    assert plan.base_loss == optimum[plan.base_experts].loss
    for c in plan.bounded_loss:
        best = optimum[c.experts]
        if c.n_params is None:
            assert known(best.loss) > plan.base_loss
            continue
        assert c.loss == pytest.approx(plan.base_loss, rel=1e-6)
        assert c.n_params <= known(best.n_params)
        assert c.size_ratio == pytest.approx(c.n_params / known(best.n_params))
        assert c.size_ratio_to_base == pytest.approx(c.n_params / known(optimum[plan.base_experts].n_params))
        if best.usd_per_mtok is not None:
            assert known(c.usd_per_mtok) <= known(best.usd_per_mtok) * (1 + 1e-12)
        if c.usd_per_mtok is not None and plan.base_usd_per_mtok is not None:
            assert c.cost_ratio == pytest.approx(c.usd_per_mtok / plan.base_usd_per_mtok)

    # Algorithm 2: within the base's cost, and no better than that expert count's own optimum.
    if plan.base_usd_per_mtok is None:
        assert plan.bounded_cost == ()
        assert any("cannot be served" in note for note in plan.warnings)
    for c in plan.bounded_cost:
        if c.usd_per_mtok is not None:
            assert c.usd_per_mtok <= known(plan.base_usd_per_mtok)
            assert known(c.loss) >= known(optimum[c.experts].loss) * (1 - 1e-12)

    # The frontier rises in cost and falls in loss; nothing in the plan beats it.
    cost, at = [np.array([known(getattr(c, name)) for c in plan.frontier]) for name in ("usd_per_mtok", "loss")]
    assert np.all(np.diff(cost) > 0)
    assert np.all(np.diff(at) < 0)
    ceiling = law.max_experts or math.inf
    for c in everything:
        if c.usd_per_mtok is not None and c.experts <= ceiling:
            assert np.any((cost <= c.usd_per_mtok) & (at <= known(c.loss)))

    # The recommendation is among those that may be, and can be built.
    assert all(c.experts <= ceiling for c in plan.frontier)
    model = plan.recommendation.model
    assert model.experts <= ceiling
    assert model.usd_per_mtok is not None
    assert model.infeasible is None
    assert built.n_heads % known(model.gpus) == 0
    assert built.n_params == model.n_params
    assert built.n_params_total == pytest.approx(model.n_params_total, rel=1e-9)
    assert f"{model.experts:g} expert" in plan.recommendation.why
    assert plan.recommendation.caveats

    # JSON without nulls, NaN or infinities.
    record = plan.to_dict()
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert [place for place, value in values_of(record) if value is None] == []


@pytest.mark.parametrize(
    ("budget", "gpu"), [(1e20, "h100-sxm"), (5.15e21, "a100-sxm-40gb"), (1e23, "l40s"), (1e23, "h100-sxm")]
)
def test_what_a_plan_promises(budget: float, gpu: str) -> None:
    plan = ask(replace(MAIN, budget=Budget(budget)), gpu=gpu)
    assert_kept(plan, LAW, served_on(gpu))
    assert plan.budget_flops == budget
    assert plan.gpu == gpu
    assert [c.experts for c in plan.loss_optimal] == [1, 4, 8, 16, 32, 64]


@pytest.mark.parametrize(("convention", "match"), [("paper", 1.0), ("exact", 16.0), ("dense", 4.0)])
def test_promises_hold_under_every_convention_and_base(convention: str, match: float) -> None:
    question = replace(MAIN, convention=convention, match_experts=match)
    plan = ask(question)
    assert_kept(plan, LAW, served_on())
    assert plan.convention == convention
    assert plan.base_experts == match
    noted = any("another count of training FLOPs" in note for note in plan.warnings)
    assert noted == (convention != "paper")


FAMILIES = (JOINT, replace(PAPER, moe_every=1, top_k=1), replace(PAPER, vocab_size=32000, embedding_matrices=2))
SHIPPED = ("yun2024-recovered", "yun2024-joint", "moescale2026-joint")  # whose runs stop at 32 experts, too


@pytest.mark.parametrize("law", [*(replace(LAW, family=family) for family in FAMILIES), *map(find_law, SHIPPED)])
def test_promises_hold_for_other_families_and_for_the_laws_that_are_shipped(law: Law) -> None:
    plan = ask(law=law)
    assert_kept(plan, law, served_on())
    assert plan.law == law.name
    assert plan.laws == ()  # it is asked alone
    assert max(c.experts for c in plan.frontier) <= 32


def test_serving_options_reach_the_costs() -> None:
    for serving in (
        {"max_num_seqs": 64.0, "utilization": 0.3},
        {"memory_fraction": 0.6, "weight_bytes_per_param": 1.0},
    ):
        assert_kept(ask(**serving), LAW, served_on(**serving))
    question = replace(MAIN, kv_heads=8)
    assert_kept(ask(question), LAW, served_on(), kv_heads=8)
    grouped, full = ask(question), main_plan()
    assert known(grouped.base_usd_per_mtok) < known(full.base_usd_per_mtok)
    # Less attention leaves more of N to the experts: more parameters in all, and more of them active.
    for c, whole in zip(grouped.loss_optimal[1:], full.loss_optimal[1:], strict=True):
        assert known(c.n_params_total) / known(c.n_params) > known(whole.n_params_total) / known(whole.n_params)
        assert known(c.n_params_active) / known(c.n_params) > known(whole.n_params_active) / known(whole.n_params)
    large = ask(replace(question, budget=Budget(1e24))).recommendation.architecture
    assert large.n_kv_heads == 8
    assert large.n_heads % 8 == 0


def test_one_gpu_that_cannot_hold_the_base() -> None:
    question = replace(MAIN, budget=Budget(1e24), match_experts=16.0, max_loss=2.0)
    for law in (LAW, DRAWN):
        plan = ask(question, law=law, max_gpus=1, gpu="h200-sxm")
        assert plan.base_usd_per_mtok is None
        assert plan.base_loss < 2.0
        assert plan.bounded_cost == ()
        assert "usd_per_mtok" not in cast("dict[str, object]", plan.to_dict()["bounded_cost"])
        assert_kept(plan, LAW, served_on("h200-sxm", max_gpus=1))
        assert all(c.cost_ratio is None for c in plan.bounded_loss)
        assert plan.base_as_built is plan.recommendation.model.cost_ratio is None
        assert known(plan.recommendation.model.loss) <= 2.0 * (1 + 1e-9)
        base = plan.loss_optimal[[c.experts for c in plan.loss_optimal].index(16)]
        assert base.infeasible == "the weights do not fit into GPU memory of 1 x h200-sxm"
    with pytest.raises(InfeasibleError, match=r"can be served.*the weights do not fit into GPU memory of 1 x l40s"):
        ask(replace(MAIN, budget=Budget(1e25)), gpu="l40s", max_gpus=1)


def test_the_base_matches_itself() -> None:
    plan = main_plan()
    at = [c.experts for c in plan.loss_optimal].index(4)
    base, same, within = plan.loss_optimal[at], plan.bounded_loss[at], plan.bounded_cost[at]
    for c in (same, within):
        assert c.n_params == base.n_params
        assert c.usd_per_mtok == base.usd_per_mtok
        assert c.size_ratio == c.size_ratio_to_base == c.cost_ratio == 1.0
    assert plan.base_usd_per_mtok == base.usd_per_mtok


def test_a_bound_on_loss() -> None:
    for limit in (main_plan().base_loss * 1.02, main_plan().base_loss * 0.995):
        plan = ask(replace(MAIN, max_loss=limit))
        model = plan.recommendation.model
        assert known(model.loss) <= limit * (1 + 1e-6)
        assert_kept(plan, LAW, served_on())
        # Nothing on the frontier that meets the bound is cheaper, but for the grid that the frontier is drawn on.
        meeting = [known(c.usd_per_mtok) for c in plan.frontier if known(c.loss) <= limit]
        assert known(model.usd_per_mtok) <= min(meeting) * 1.1  # whole layers and heads hold more cache
        assert any("--max-loss is in the units of recovered" in note for note in plan.recommendation.caveats)


def test_a_bound_on_cost() -> None:
    for factor in (0.3, 2.0):
        limit = known(main_plan().base_usd_per_mtok) * factor
        plan = ask(replace(MAIN, max_usd_per_mtok=limit))
        model = plan.recommendation.model
        assert known(model.usd_per_mtok) <= limit
        assert_kept(plan, LAW, served_on())
        meeting = [known(c.loss) for c in plan.frontier if known(c.usd_per_mtok) <= limit]
        assert known(model.loss) <= min(meeting) * 1.001  # whole layers and heads


def test_both_bounds() -> None:
    target = main_plan().base_loss
    cheap = ask(replace(MAIN, max_loss=target)).recommendation.model
    limit = known(cheap.usd_per_mtok)
    model = ask(replace(MAIN, max_loss=target, max_usd_per_mtok=limit * 1.001)).recommendation.model
    assert known(model.usd_per_mtok) <= limit * 1.001
    assert known(model.loss) <= target * (1 + 1e-6)
    with pytest.raises(InfeasibleError, match=r"the cheapest model that reaches a loss of at most .* costs \$"):
        ask(replace(MAIN, max_loss=target, max_usd_per_mtok=limit * 0.85))  # rounding moves a price by up to 15%


TRAINING = TrainingPrice(gpu=find_gpu("a100-sxm-40gb"), usd_per_gpu_hour=1.45, mfu=0.4)
LIVED = replace(MAIN, lifetime_tokens=1e12, training=TRAINING)


def lived(question: Question = LIVED, law: Law = LAW) -> tuple[Plan, LifetimePlan]:
    plan = ask(question, law)
    assert plan.lifetime is not None
    return plan, plan.lifetime


def _without_dollars(value: Any) -> Any:
    if isinstance(value, dict):
        named = cast("dict[str, Any]", value)
        of_life = ("training_usd", "serving_usd", "total_usd")
        return {name: _without_dollars(part) for name, part in named.items() if name not in of_life}
    return [_without_dollars(part) for part in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def test_a_lifetime_changes_nothing_else() -> None:
    plan, _ = lived()
    before = ask(replace(MAIN, lifetime_tokens=1e12)).to_dict()
    after = plan.to_dict()
    assert "lifetime" not in before
    training = after.pop("training")
    del after["lifetime"], before["training"]
    after, before = map(_without_dollars, (after, before))  # of training and lives, which built models have then
    assert (before.pop("objective"), after.pop("objective")) == ("serve", "lifetime")
    assert (before.pop("decided_by"), after.pop("decided_by")) == ("recommendation", "lifetime.recommendation")
    assert before.pop("apart_usd_per_mtok") > 0.0  # which a life does not state
    assert after == before
    assert {"train_gpu", "mfu", "gpu_days", "usd"} <= cast("dict[str, object]", training).keys()


def test_a_life_is_recommended_that_costs_least_at_the_bases_loss() -> None:
    plan, life = lived()
    assert life.target_loss == plan.base_loss
    model, allowed = life.recommendation.model, [c for c in life.plans if c.experts <= 32 and c.total_usd is not None]
    best = min(allowed, key=lambda c: known(c.total_usd))
    assert model.experts == best.experts
    assert 0.8 <= known(model.n_params) / known(best.n_params) <= 1.25  # built in several sizes, as dollars are flat
    assert known(model.total_usd) <= 1.05 * known(best.total_usd)
    assert known(model.loss) <= plan.base_loss
    for c in allowed:
        assert c.loss == pytest.approx(plan.base_loss, rel=1e-12)
        assert c.training_usd == pytest.approx(TRAINING.usd_per_flop * known(c.training_flops))
        assert c.training_flops == pytest.approx(6 * known(c.n_params_active) * known(c.tokens))
        assert c.serving_usd == pytest.approx(known(c.usd_per_mtok) * 1e6)
        assert c.total_usd == pytest.approx(known(c.training_usd) + known(c.serving_usd))
    # Spending the budget on what is cheapest to serve at the same loss is one of the lives that were compared.
    served = plan.recommendation.model
    assert known(model.total_usd) < TRAINING.usd_per_flop * BUDGET + known(served.usd_per_mtok) * 1e6


def test_a_life_within_dollars_is_the_other_side_of_a_life_at_a_loss() -> None:
    plan, at_loss = lived()
    built = known(at_loss.recommendation.model.total_usd)
    total = min(known(c.total_usd) for c in at_loss.plans if c.total_usd and c.experts <= 32)  # before rounding
    _, within = lived(replace(LIVED, max_total_usd=total))
    assert known(within.recommendation.model.total_usd) <= total * (1 + 1e-6)
    assert min(known(c.loss) for c in within.plans if c.loss and c.experts <= 32) <= plan.base_loss * (1 + 1e-7)
    assert within.target_loss is None
    assert within.least_training is not None  # the base's best life
    assert within.least_training.total_usd <= total * (1 + 1e-6)
    assert all(known(c.total_usd) <= total * (1 + 1e-12) for c in within.plans if c.total_usd is not None)
    both, _ = lived(replace(LIVED, max_loss=plan.base_loss, max_total_usd=1.01 * total))
    assert both.lifetime.recommendation.model.total_usd == pytest.approx(built)
    with pytest.raises(InfeasibleError, match="--max-total-usd: training to a loss of at most"):
        lived(replace(LIVED, max_loss=plan.base_loss, max_total_usd=0.9 * min(built, total)))


def test_a_life_may_train_longer_than_the_budget() -> None:
    lowest = min(known(c.loss) for c in main_plan().loss_optimal)
    plan, life = lived(replace(LIVED, max_loss=lowest - 0.03))
    assert known(life.recommendation.model.training_flops) > BUDGET
    assert life.target_loss == lowest - 0.03
    assert any("except for its lifetime part" in note for note in plan.warnings)
    assert known(plan.recommendation.model.loss) <= plan.base_loss * (1 + 1e-6)


def test_a_budget_is_planned_where_its_life_has_no_answer() -> None:
    """Within a serving price the budget buys its best loss, which is not the base's: that no life reaches at the price."""
    plan = ask(replace(LIVED, max_usd_per_mtok=0.002))
    assert known(plan.recommendation.model.usd_per_mtok) <= 0.002
    record = plan.to_dict()["lifetime"]
    assert isinstance(record, dict)
    assert set(record) == {"infeasible"}
    assert "can be served at $0.00200 per million output tokens or less" in plan.warnings[-1]
    lowest = (
        "no size and no number of tokens reaches a loss of at most 0.5; nearest: with 32 experts, its lowest loss is"
    )
    for change, message in (
        ({"max_loss": 0.5}, lowest),
        ({"max_total_usd": 1e-3}, "do not cover 1T served tokens with any model"),
    ):
        with pytest.raises(InfeasibleError, match=message):
            lived(replace(LIVED, **change))


def test_a_life_is_json_and_carries_intervals() -> None:
    plan, life = lived(law=DRAWN)
    record = plan.to_dict()["lifetime"]
    assert all(value is not None for _, value in values_of(record))
    json.dumps(record, allow_nan=False)
    for c in life.plans:
        if c.total_usd is not None:
            low, high = known(c.intervals and c.intervals["total_usd"])  # type: ignore[arg-type]
            assert 0.99 * low <= c.total_usd <= 1.01 * high
            assert set(known(c.intervals)) >= {"n_params", "tokens", "training_usd", "serving_usd"}  # type: ignore[arg-type]
    _, within = lived(replace(LIVED, max_total_usd=1e5), DRAWN)
    low, high = known(within.recommendation.model.intervals)["loss"]  # type: ignore[index]
    assert low < high


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": (0.0,)}, "question: experts must be a whole number .*at least 1, not 0"),
        ({"experts": (2.5,)}, "experts must be a whole number .*, not 2.5"),
        ({"experts": (math.nan,)}, "experts must be .*, not nan"),
        ({"match_experts": -4.0}, "match_experts must be .*, not -4"),
        ({"max_loss": 0.0}, "max_loss must be at least 1e-12"),
        ({"max_usd_per_mtok": math.inf}, "max_usd_per_mtok must be .*, not inf"),
        ({"lifetime_tokens": -1.0}, "lifetime_tokens must be"),
        ({"max_total_usd": -1.0}, "max_total_usd must be"),
        ({"convention": "papr"}, "unknown convention 'papr'; nearest: paper"),
        ({"kv_heads": 0.0}, "kv_heads"),
    ],
)
def test_impossible_questions_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ask(replace(MAIN, **change))


def test_expert_counts_beyond_the_law_are_shown_but_never_chosen() -> None:
    question = replace(MAIN, experts=(1.0, 4.0, 8.0, 64.0, 256.0))
    low = replace(LAW, max_experts=8.0)
    plan = ask(question, law=low)
    assert_kept(plan, low, served_on())
    assert {c.experts for c in plan.bounded_loss} == {1, 4, 8, 64, 256}
    assert max(c.experts for c in plan.frontier) <= 8
    for change in ({"max_loss": plan.base_loss}, {"max_usd_per_mtok": known(plan.base_usd_per_mtok)}):
        assert ask(replace(question, **change), law=low).recommendation.model.experts <= 8
    (excluded,) = (note for note in plan.recommendation.caveats if note.startswith("Excluded: "))
    assert excluded.startswith("Excluded: 64, 256 experts (X = 21.7, 85.7). ")
    assert excluded.endswith("recovered is trusted up to X = 3 (8 experts of this shape).")
    refused = (
        r"recovered is trusted up to X = 3 \(8 experts of this shape\) and may not recommend 64 experts \(X = 21.7\)"
    )
    for match in (4.0, 64.0):
        with pytest.raises(InfeasibleError, match=rf"{refused}; nearest: 8; .*, or give another --law"):
            ask(replace(question, experts=(64.0, 256.0), match_experts=match), law=low)
    # A base beyond the law sets a loss that the law's own counts may not reach.
    with pytest.raises(InfeasibleError, match="reaches the loss of the loss-optimal"):
        ask(replace(question, match_experts=64.0), law=low)


def test_caveats_state_how_far_the_model_lies_outside_the_fit() -> None:
    for budget, (least, most) in {BUDGET: (1e8, 7e8), 1e24: (7e8, math.inf), 3e18: (0.0, 1e8)}.items():
        advice = ask(replace(MAIN, budget=Budget(budget))).recommendation
        n, d = known(advice.model.n_params), known(advice.model.tokens)
        assert least < n < most
        text = " ".join(advice.caveats)
        size = f"dense-equivalent N ({format_count(n)}; runs to 700M in this shape)"  # the law's, where the plan prints active parameters
        assert (f"{size} {n / 7e8:.3g} times the largest fitted" in text) == (n > 7e8)
        assert (f"{size} {n / 1e8:.3g} times the smallest fitted" in text) == (n < 1e8)
        times = f"{d / 2e10:{',.0f' if d > 2e13 else '.3g'}}"
        assert (f"D {times} times the largest fitted" in text) == (d > 2e10)
    inside = replace(LAW, fit_range={"n_params": (1e6, 1e12), "tokens": (1e6, 1e15), "experts": (1.0, 32.0)})
    assert not any("Extrapolated" in note for note in ask(law=inside).recommendation.caveats)


def test_a_dense_law_plans_dense_models() -> None:
    plan = ask(law=DENSE_LAW)
    assert_kept(plan, DENSE_LAW, served_on())
    assert [c.experts for c in plan.loss_optimal] == [1]
    assert plan.base_experts == 1
    assert any("knows dense models only" in note for note in plan.warnings)
    n, d = chinchilla_optimum(DENSE_LAW.theta, BUDGET)
    assert plan.loss_optimal[0].n_params == pytest.approx(n, rel=1e-8)
    assert plan.loss_optimal[0].tokens == pytest.approx(d, rel=1e-8)


def plan_words(plan: Plan) -> str:
    """The command line's answer in one line."""
    text = io.StringIO()
    show_plan(Console(file=text, width=100), plan)
    return " ".join(text.getvalue().split())


@given(st.floats(20.0, 24.5), st.floats(10.5, 13.5), st.sampled_from([{}, {"max_usd_per_mtok": 0.05}]))
@daily(2)
def test_what_training_takes_is_said(power: float, cap: float, bound: dict[str, float]) -> None:
    question = replace(MAIN, budget=Budget(10.0**power, max_tokens=10.0**cap), training=TRAINING, draws=0, **bound)
    try:
        plan = ask(question, gpu="h200-sxm")
    except InfeasibleError:
        return
    model, use = plan.recommendation.model, plan.training
    for c in (*plan.loss_optimal, *plan.bounded_loss, *plan.frontier, model):
        if c.tokens is not None:
            assert c.training_flops == pytest.approx(6 * known(c.n_params_active) * c.tokens, rel=1e-12)
            assert known(c.training_flops) <= plan.budget_flops * (1 + 1e-9)
    assert use.flops_used == model.training_flops
    assert use.budget_share == pytest.approx(use.flops_used / plan.budget_flops)
    assert use.tokens_per_active_param == pytest.approx(known(model.tokens) / known(model.n_params_active))
    assert use.gpu_days == pytest.approx(TRAINING.usd_per_flop * use.flops_used / TRAINING.usd_per_gpu_hour / 24)
    assert use.usd == pytest.approx(TRAINING.usd_per_flop * use.flops_used)
    if use.budget_share < 0.985:
        assert f"{1.0 - use.budget_share:.0%} of the budget: with --max-tokens " in plan_words(plan)
    else:
        assert "of budget" not in plan_words(plan)
        assert "unused_because" not in cast("dict[str, object]", plan.to_dict()["training"])
    assert cast("dict[str, object]", plan.to_dict()["training"]).keys() >= {"flops_used", "gpu_days", "usd"}
    assert "gpu_days" not in cast("dict[str, object]", main_plan().to_dict()["training"])


def test_intervals_hold_the_middle_of_the_draws() -> None:
    plan = ask(law=DRAWN)
    assert_kept(plan, DRAWN, served_on())
    for c in plan.loss_optimal:
        for name in ("n_params", "tokens", "loss", "usd_per_mtok"):
            low, high = c.intervals[name]
            assert low < high
            assert 0.5 * low < known(getattr(c, name)) < 2 * high
            assert high < 3 * low
    reached = [c for c in plan.bounded_loss if c.infeasible is None and c.experts > 4]
    assert len(reached) >= 3
    for c in reached:
        low, high = c.intervals["cost_ratio"]
        assert low < high
        assert low * 0.8 < known(c.cost_ratio) < high * 1.25
        assert {"n_params", "loss", "size_ratio", "usd_per_mtok"} <= set(c.intervals)
    for c in plan.bounded_cost:
        if 4 < c.experts <= 32:
            low, high = c.intervals["loss_gain"]
            assert 0 < low < high
            assert 0.8 * low < plan.base_loss - known(c.loss) < 1.25 * high
    # The same draws twice give the same intervals as once; none asked for, none given.
    none = ask(replace(MAIN, draws=0), law=DRAWN)
    assert all(c.intervals is None for c in (*none.loss_optimal, *none.bounded_loss, *none.bounded_cost))
    few = ask(replace(MAIN, draws=500), law=DRAWN)
    assert any("has 40 draws, not 500" in note for note in few.warnings)


def test_intervals_are_shown_where_the_base_cannot_be_served() -> None:
    plan = ask(replace(MAIN, budget=Budget(3e24, max_tokens=1.5e13)), law=DRAWN)
    assert plan.base_usd_per_mtok is None
    unserved = [c for c in plan.loss_optimal if c.infeasible is not None]
    assert unserved
    for c in unserved:  # how well it would do is known, what it would cost is not
        assert {"loss", "n_params", "tokens"} <= known(c.intervals).keys()  # type: ignore[arg-type]
        assert "usd_per_mtok" not in (c.intervals or {})
    for table, head in (
        (loss_optimal_table(plan), "loss, 90% interval"),
        (bounded_loss_table(plan), "$/Mtok, 90% interval"),
    ):
        at = [column.head for column in table.columns].index(head)
        assert at in table.filled()
    served = next(c for c in plan.bounded_loss if c.usd_per_mtok is not None)
    low, high = known(served.intervals)["usd_per_mtok"]  # type: ignore[index]
    assert f"{format_usd(low)} to {format_usd(high)}" in {row[-1] for row in bounded_loss_table(plan).rows}

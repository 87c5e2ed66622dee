"""Plans as files: what `plan --json` prints comes back as the same plan, and damage is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.io.json_text import parse_json
from moescale.latency.roofline import Roofline
from moescale.planning.allocation import Budget
from moescale.planning.candidate import Trained, Unreachable
from moescale.planning.plan import Plan, Question, make_plan
from moescale.planning.plan_file import parse_plan, read_plan
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws import find_law
from moescale.serving.deployment import Deployment


@pytest.fixture(scope="module")
def plan() -> Plan:
    gpu = find_gpu("a100-sxm-40gb")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)
    # A GPU that no catalogue knows, as from a file of one's own.
    trainer = replace(find_gpu("h100-sxm"), name="own-card", bf16_flops_per_s=7e14)
    priced = TrainingPrice(gpu=trainer, usd_per_gpu_hour=3.0, mfu=0.35)
    question = Question(budget=Budget(5.15e21), lifetime_tokens=1e12, training=priced, draws=4)
    return make_plan(find_law("public-2026"), question, deployment, Roofline(gpu))


@pytest.fixture(scope="module")
def record(plan: Plan) -> dict[str, Any]:
    return json.loads(json.dumps(plan.to_dict(), allow_nan=False))


@pytest.mark.system
def test_a_plan_comes_back_from_its_json(plan: Plan, record: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(record))
    read = read_plan(str(path))
    assert json.loads(json.dumps(read.to_dict())) == record
    assert read.recommendation == plan.recommendation
    assert read.training == plan.training
    assert read.laws == plan.laws
    assert read.choices == plan.choices
    assert read.lifetime == plan.lifetime
    assert read.bounded_loss == plan.bounded_loss
    assert read.asked["max_gpus"] == 8


def test_rows_without_a_model_or_a_price_come_back_as_what_they_are() -> None:
    gpu = find_gpu("h200-sxm")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0, max_gpus=1)
    question = Question(budget=Budget(1e24), match_experts=16.0, max_loss=2.0)
    plan = make_plan(find_law("yun2024-recovered"), question, deployment, Roofline(gpu))
    rows = [*plan.loss_optimal, *plan.bounded_loss]
    assert {type(row) for row in rows} == {Trained, Unreachable}
    read = parse_plan(json.loads(json.dumps(plan.to_dict())), where="x")
    assert [*read.loss_optimal, *read.bounded_loss] == rows
    assert read == plan


@pytest.mark.parametrize(
    ("missing", "words"), [("usd_per_mtok", None), ("tokens", "no tokens"), ("n_params_total", "no n_params_total")]
)
def test_a_row_is_the_kind_that_its_figures_make_it(record: dict[str, Any], missing: str, words: str | None) -> None:
    row = {k: v for k, v in record["loss_optimal"][0].items() if k not in (missing, "usd_per_mtok")}
    told = changed(record, ("loss_optimal", 0), {**row, "infeasible": "too large"})
    if words is None:
        assert type(parse_plan(told, where="x").loss_optimal[0]) is Trained
    else:
        with pytest.raises(InputError, match=f"damaged plan at loss_optimal.0: {words}"):
            parse_plan(told, where="x")


def test_curves_are_those_of_the_plan_to_six_digits(plan: Plan, record: dict[str, Any]) -> None:
    read = {c.experts: c for c in parse_plan(record, where="x").curves}
    assert set(read) == {c.experts for c in plan.curves}
    for curve in plan.curves:
        served = np.isfinite(curve.usd_per_mtok)
        for name in ("n_params", "tokens", "loss", "usd_per_mtok"):
            np.testing.assert_allclose(getattr(read[curve.experts], name), getattr(curve, name)[served], rtol=1e-5)


def test_a_plan_without_curves_or_conditions_is_read_and_one_without_answer_refused(record: dict[str, Any]) -> None:
    new = ("curves", "asked", "laws", "choices", "lifetime", "warnings", "training")
    old = {k: v for k, v in record.items() if k not in new}
    read = parse_plan(old, where="x")
    assert read.curves == ()
    assert read.training is None
    with pytest.raises(InputError, match="has no answer: too small"):
        parse_plan({"infeasible": "too small"}, where="x")


def changed(record: dict[str, Any], path: tuple[Any, ...], value: object) -> dict[str, Any]:
    copy = json.loads(json.dumps(record))
    place = copy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return copy


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("budget_flops",), -1, "budget_flops"),
        (("loss_optimal", 0, "loss"), "x", "loss_optimal.0.loss"),
        (("recommendation", "why"), 3, "recommendation.why"),
        (("recommendation", "architecture"), None, "recommendation.architecture"),
        (("bounded_loss", "loss"), float("inf"), "bounded_loss.loss"),
        (("frontier",), {"a": 1}, "frontier"),
        (("curves", 0, "loss"), [1.0], "columns of different length"),
        (("lifetime", "training_gpu_hours"), 0, "lifetime"),
        (("lifetime", "train_usd_per_gpu_hour"), 0, "lifetime"),
        (("lifetime", "training_flops"), 0, "lifetime"),
        (("lifetime", "mfu"), 7.0, "lifetime"),
        (("training", "gpu_days"), -1.0, "damaged plan at training"),
        (("training", "flops_used"), "much", "training.flops_used"),
        (("recommendation", "loss"), None, "recommendation: no loss"),
        (("loss_optimal", 0, "tokens"), None, "loss_optimal.0: no tokens"),
        (("base", "gpus"), 10**400, "base: gpus is beyond all numbers"),
        (("bounded_loss", "plans", 1, "usd_per_mtok"), -1.0, "bounded_loss.1: usd_per_mtok"),
        (("frontier", 0, "usd_per_mtok"), None, "frontier.0: no usd_per_mtok"),
        (("loss_optimal", 0, "intervals", "loss"), [2.0, 1.0], "loss_optimal.0: intervals"),
    ],
)
def test_damage_is_named(record: dict[str, Any], path: tuple[Any, ...], value: object, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        parse_plan(changed(record, path, value), where="plan.json")
    assert str(caught.value).startswith("plan.json: ")


@pytest.mark.parametrize("text", ["", "{", "[NaN]", "[" * 100_000, '{"a": 1e999}x'])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not JSON"):
        parse_json(text, where="x", finite=True)


def _parts(kind: Any) -> Iterator[Any]:
    """The types that an annotation is made of."""
    yield kind
    for part in get_args(kind):
        yield from _parts(part)


def test_what_a_record_may_leave_out_has_a_default() -> None:
    """A record has no keys of None, so that a field without a default could not be read again."""
    known, left = set[Any](), [Plan]
    while left:
        kind = left.pop()
        kind = get_origin(kind) or kind
        if not is_dataclass(kind) or kind in known:
            continue
        known.add(kind)
        for field, hint in ((field, get_type_hints(kind)[field.name]) for field in fields(kind)):
            parts = list(_parts(hint))
            left += parts
            may_lack = field.default is MISSING and field.default_factory is MISSING
            assert not (may_lack and type(None) in parts), f"{kind.__name__}.{field.name}"
    assert len(known) > 20

"""Training dollars: one price in plan, compare-models, page and export, that rises with the budget and is never assumed in silence."""

from __future__ import annotations

import json
import math
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from command_line import LOWEST, answer_of, run
from moescale.export.launch import export_model
from moescale.hardware.gpus import find_gpu
from moescale.models.published import find_shape
from moescale.models.recipe import MOST_OFF
from moescale.models.rounding import buildable
from moescale.options.law import LawOptions
from moescale.options.planned import PlanRequest
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions
from moescale.planning.compare_models import compare_models
from moescale.planning.plan import Plan
from moescale.planning.question import KnownModel
from moescale.planning.training_use import TrainingUse
from moescale.scaling_laws import find_law
from moescale.training.choice import Launch, choose_launch
from moescale.training.parallelism import stages_of
from moescale.units import format_usd
from moescale.web.state import read_state

pytestmark = pytest.mark.usefixtures("plans_made_once")
SHAPES = ("paper", "mixtral", "fine-grained", "deepseek")
GPUS = ("a100-sxm-80gb", "h100-sxm", "b200-sxm")
H100 = find_gpu("h100-sxm")
ROOFLINE = ("--latency", "roofline")
SIXTEEN = (
    "plan", "--budget", "1e22", "--gpu", "h100-sxm", "--shape", "mixtral", "--experts", 16, "--bootstrap", 0, *ROOFLINE,
)  # fmt: skip
DEEPSEEK = ("plan", "--gpu", "h100-sxm", "--shape", "deepseek")


def plan_of(shape: str, gpu: str, **bounds: float) -> Plan:
    details, serving = LawOptions(shape=shape), ServingOptions(gpu=gpu, max_gpus=64, latency="roofline")
    law, deployment = details.find_law(), serving.deployment()
    asked = BoundOptions(**bounds)  # pyright: ignore[reportArgumentType]
    source = serving.open_latency(deployment)
    return PlanRequest(bounds=asked, deployment=deployment, latency=source, details=details).plan(law)


def use_of(plan: Plan) -> TrainingUse:
    assert plan.training is not None
    return plan.training


@pytest.mark.parametrize(
    ("shape", "budgets"),
    [
        pytest.param("deepseek", (1e24, 2e24), marks=pytest.mark.fuzz),
        pytest.param("mixtral", (2e24, 2.2e24, 2.4e24), marks=pytest.mark.fuzz),
        pytest.param("fine-grained", (1e22, 1e23, 1e24), marks=pytest.mark.fuzz),
        ("paper", (1e22, 1e24)),
    ],
)
def test_dollars_rise_with_the_budget(shape: str, budgets: tuple[float, ...]) -> None:
    uses = [use_of(plan_of(shape, "h100-sxm", budget=budget)) for budget in budgets]
    dollars = [use.usd or 0.0 for use in uses]
    assert dollars == sorted(dollars)
    assert {use.mfu_from for use in uses} == {"parts"}


@pytest.mark.fuzz
def test_days_buy_each_built_model_the_flops_of_its_own_mfu() -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--train-gpus", 256, "--days", 10, "--shape", "mixtral", *ROOFLINE)
    plan = answer_of(*asked, "--bootstrap", 40)
    usd = 10 * 24 * 256 * plan["training"]["usd"] / (24 * plan["training"]["gpu_days"])
    rows = [plan["recommendation"], *plan["built"], plan["base_as_built"]]
    assert [row["training_usd"] for row in rows] == pytest.approx([usd] * len(rows), rel=1e-4)
    assert len({row["training_flops"] for row in rows}) == len(rows) - 1  # the recommended one is among the built
    assert plan["training"]["budget_share"] == pytest.approx(1.0, abs=1e-4)
    assert plan["budget_flops"] == pytest.approx(plan["recommendation"]["training_flops"], rel=1e-4)
    assert plan["recommendation"]["probability_at_least_base"] >= 0.8 - 1e-6
    surely = answer_of(*asked, "--bootstrap", 40, "--within-chance", 0.9)
    error = surely["training"]["error"]
    slower = error["geometric_mean"] * error["spread"] ** NormalDist().inv_cdf(0.9)
    assert surely["training"]["days"] * slower == pytest.approx(10.0, rel=0.01)
    assert surely["base"]["loss"] == pytest.approx(plan["base_as_built"]["loss"], rel=1e-3)  # that of all ten days
    assert re.search(r"in 10 days 90% \(routing: up to ", " ".join(run(*asked, "--within-chance", 0.9).out.split()))
    refused = run("plan", "--budget", "1e22", "--within-chance", 0.9, *ROOFLINE)
    assert (refused.code, "give --days" in refused.err) == (2, True)
    short = answer_of(*asked, "--bootstrap", 0, "--max-tokens", "500B")  # which more days do not lengthen
    assert short["training"]["days"] < 9.0
    assert short["training"]["unused_because"] == "with --max-tokens 500B"


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("shape", "bounds"),
    [
        ("mixtral", {"max_total_usd": 5e6, "lifetime_tokens": 5e11}),
        (
            "mixtral",
            {"max_total_usd": 2e7, "lifetime_tokens": 5e12, "max_tokens": 5e12},
        ),  # that more dollars buy a larger model
        pytest.param("deepseek", {"max_total_usd": 3e5, "lifetime_tokens": 1e11}, marks=pytest.mark.fuzz),
    ],
)
def test_a_life_spends_its_dollars_as_built(shape: str, bounds: dict[str, float]) -> None:
    life = plan_of(shape, "h100-sxm", **bounds).lifetime
    model, limit = life.recommendation.model, bounds["max_total_usd"]
    run = choose_launch(life.recommendation.architecture.architecture(), model.tokens, H100, Launch())
    training = run.gpu_days * 24.0 * life.train_usd_per_gpu_hour
    serving = model.usd_per_mtok * bounds["lifetime_tokens"] / 1e6
    assert model.total_usd == pytest.approx(training + serving, rel=1e-12)  # summed in another order
    assert model.total_usd <= limit
    # Of all tokens only a larger model costs more, and whole layers are steps.
    capped = model.tokens >= (1.0 - 1e-6) * bounds.get("max_tokens", math.inf)
    assert training + serving >= (0.95 if capped else 0.99) * limit
    assert model.tokens <= bounds.get("max_tokens", math.inf)


@pytest.mark.fuzz
@pytest.mark.parametrize("served", ["1T", "100T"])
def test_a_life_costs_no_more_than_the_plans_own_model_with_what_it_serves(served: str) -> None:
    asked = ("plan", "--budget", "1e22", "--gpu", "h100-sxm", "--shape", "deepseek", "--experts", "64,128", *ROOFLINE)
    asked = (*asked, "--bootstrap", 40)
    plan, life = answer_of(*asked), answer_of(*asked, "--lifetime-tokens", served)["lifetime"]
    tokens = life["lifetime_tokens"] / 1e6
    for own in (plan["recommendation"], *plan["built"], *plan["least_training"]):
        assert life["total_usd"] <= 1.01 * (own["training_usd"] + own["usd_per_mtok"] * tokens)


@pytest.mark.fuzz
def test_rivals_that_stated_gpus_do_not_hold_are_left_out_of_a_life() -> None:
    asked = (
        "plan", "--max-total-usd", "1M", "--lifetime-tokens", "1T", "--gpu", "h100-sxm", "--shape", "mixtral",
        "--experts", "1,8,32,128", *ROOFLINE,
    )  # fmt: skip
    free, held = (answer_of(*asked, "--bootstrap", 0, *more)["lifetime"] for more in ((), ("--train-gpus", 48)))
    left_out = [note for note in held["recommendation"]["caveats"] if note.startswith("Left out: ")]
    assert left_out
    assert all("48 x h100-sxm cannot train this model" in note for note in left_out)
    assert f"Left out: {held['recommendation']['experts']} experts" not in " ".join(left_out)
    assert held["recommendation"]["loss"] >= free["recommendation"]["loss"]
    assert 0.99e6 <= held["total_usd"] <= 1e6
    code, _, error = run(*asked, "--bootstrap", 0, "--train-gpus", 8)  # that hold none near the best
    assert code == 1
    assert "8 x h100-sxm cannot train this model" in error


@pytest.mark.fuzz
def test_a_life_is_planned_where_no_model_of_its_dollars_as_a_budget_is_served() -> None:
    asked = (*DEEPSEEK, "--max-total-usd", "200M", "--lifetime-tokens", "5T")
    found = run(*asked, *ROOFLINE, "--bootstrap", 0, "--json")
    life = json.loads(found.out)["lifetime"]
    assert life["recommendation"]["usd_per_mtok"] * 5e6 == pytest.approx(life["serving_usd"])
    assert life["total_usd"] <= 2e8
    assert life["recommendation"]["tokens"] == pytest.approx(40e12)  # which is all that may be used
    assert "this plan is of the lowest loss" in found.err


@pytest.mark.fuzz
@pytest.mark.parametrize("more", [(), ("--train-gpus", 64), ("--lifetime-tokens", "1T", "--objective", "serve")])
def test_fp8_beside_bf16_is_what_fp8_states(more: tuple[object, ...]) -> None:
    asked = (*SIXTEEN, *more)
    plain, fp8 = answer_of(*asked), answer_of(*asked, "--train-precision", "fp8")
    assert fp8["recommendation"]["n_params"] == plain["recommendation"]["n_params"]
    assert plain["training"]["fp8_usd"] == pytest.approx(fp8["training"]["usd"], rel=1e-9)
    assert plain["training"]["fp8_usd"] < plain["training"]["usd"]
    assert "fp8_usd" not in fp8["training"]
    words = " ".join(run(*asked, "--details").out.split())
    assert f"(fp8 {format_usd(fp8['training']['usd'])})" in words


@pytest.mark.fuzz
@pytest.mark.parametrize("more", [("--train-gpu", "a100-sxm-80gb"), ("--mfu", 0.4)])
def test_no_fp8_where_none_can_be_asked_for(more: tuple[object, ...]) -> None:
    assert "fp8_usd" not in answer_of(*SIXTEEN, *more)["training"]


def test_sixty_one_layers_make_a_pipeline() -> None:
    model = find_shape("deepseek-v3").architecture
    assert stages_of(model, 16) == (4,) * 13 + (3,) * 3
    # periods of two would leave one out
    assert sum(stages_of(replace(model, n_layers=5, n_moe_layers=2), 2) or ()) == 5
    found = choose_launch(model, 14.8e12, H100, Launch(), gpus=2048)
    assert 0.1 < found.mfu < 0.4
    assert found.split.pipeline > 1


def test_a_plan_for_too_few_gpus_is_refused() -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--shape", "mixtral", "--budget", "1e24", "--bootstrap", 0, "--experts", 32)
    code, out, error = run(*asked, "--weights", "fp8", *ROOFLINE, "--train-gpus", 8, "--json")
    assert code == 1
    assert "infeasible" in json.loads(out)
    assert "8 x h100-sxm cannot train this model" in error
    assert "--train-gpus" in error


TINY = """
name = "tiny"
memory_gib = 0.25
bandwidth_gb_per_s = 800
bf16_tflops = 100
link_gb_per_s = 100
source = "none: too small for any model"
date = "2026-01"
"""


def test_an_mfu_that_is_assumed_is_said_beside_the_dollars(tmp_path: Path) -> None:
    small = tmp_path / "tiny.toml"
    small.write_text(TINY, encoding="utf-8")
    trained = ("--train-gpu", small, "--train-usd-per-gpu-hour", 1)
    asked = (*LOWEST, "--gpu", "h100-sxm", *trained)
    training = answer_of(*asked)["training"]
    assert (training["mfu"], training["mfu_from"]) == (0.4, "assumed")
    words = " ".join(run(*asked).out.split())
    assert re.search(
        r"\$\S+, \S+ GPU days of tiny, MFU 0.4 assumed: no split holds this model on any number of tiny", words
    )
    compared = ("compare-models", "llama-3.1-8b", "olmoe-1b-7b", "--gpu", "h100-sxm", *trained, *ROOFLINE)
    assert [(row["mfu"], row["mfu_from"]) for row in answer_of(*compared)] == [(0.4, "assumed")] * 2
    assert "llama-3.1-8b: MFU 0.4 assumed, as no split holds it" in run(*compared).out


def test_a_stated_mfu_prices_every_model_of_a_comparison() -> None:
    asked = ("compare-models", "llama-3.1-8b", "olmoe-1b-7b", "--gpu", "h100-sxm", *ROOFLINE)
    parts, stated = answer_of(*asked), answer_of(*asked, "--mfu", "0.25")
    assert [(row["mfu"], row["mfu_from"]) for row in stated] == [(0.25, "stated")] * 2
    assert parts[0]["mfu"] != parts[1]["mfu"]
    for ours, other in zip(parts, stated, strict=True):
        assert ours["training_usd"] * ours["mfu"] == pytest.approx(other["training_usd"] * 0.25)


def prices(seed: int, folder: Path) -> dict[str, float]:
    """Training dollars of one drawn question by plan, compare-models, page and export."""
    draw = random.Random(seed)
    shape, gpu = draw.choice(SHAPES), draw.choice(GPUS)
    query = {"budget": f"{10 ** draw.uniform(20, 24.5):.4g}", "shape": shape, "gpu": gpu, "max-gpus": "32"}
    query |= {"latency": "roofline", "law": draw.choice(("pooled2026", "yun2024-recovered"))}
    query["weights"] = draw.choice(("bf16", "fp8")) if gpu != "a100-sxm-80gb" else "bf16"
    if draw.random() < 0.5:
        query["train-gpus"] = str(8 * 2 ** draw.randrange(9))
    words = [word for key, value in query.items() for word in (f"--{key}", value)]
    code, out, error = run("plan", *words, "--json")
    assert code == 0, error
    told = json.loads(out)
    asked = read_state(query, find_law)
    plan, price = asked.request.plan(asked.law), asked.question.training
    assert price is not None
    best, gpus = plan.decision, int(query["train-gpus"]) if "train-gpus" in query else None
    model = KnownModel(name="built", architecture=best.architecture.architecture(), tokens=best.model.tokens)
    rows = compare_models(
        (model, replace(model, name="again")), asked.law, asked.request.deployment, asked.request.latency, training=price,
        train_gpus=gpus,
    )  # fmt: skip
    done = export_model(best.architecture, best.model.tokens, "megatron", folder, gpu=price.gpu, gpus=gpus)
    return {
        "plan": told["training"]["usd"], "compare-models": rows[0].training_usd or 0.0,
        "page": use_of(plan).usd or 0.0, "export": done.choice.gpu_days * 24.0 * price.usd_per_gpu_hour,
    }  # fmt: skip


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.fuzz if seed else ()) for seed in range(3)])
def test_plan_comparison_page_and_export_state_the_same_dollars(seed: int, tmp_path: Path) -> None:
    dollars = prices(seed, tmp_path)
    assert dollars == pytest.approx(dict.fromkeys(dollars, dollars["plan"]), rel=1e-9)


@pytest.mark.fuzz
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("shape", SHAPES)
def test_dollars_of_an_expert_count_never_fall_over_forty_budgets(shape: str, gpu: str) -> None:
    """Where another count is recommended they may: fewer, wider experts trained for up to 7.5% less at a higher MFU."""
    plans = [plan_of(shape, gpu, budget=float(budget)) for budget in np.geomspace(1e21, 1e25, 40)]
    for one, other in pairwise(plans):
        model, larger = one.decision.model, other.decision.model
        if model.experts == larger.experts and model.training_flops <= larger.training_flops:
            assert (use_of(one).usd or 0.0) <= (use_of(other).usd or 0.0)


SMALL = ("--max-active-params", "700M", "--bootstrap", 0)
LIVES = {"budget": ("--budget", "1e22"), "loss": ("--max-loss", "2.1"), "total": ("--max-total-usd", "5M")}


@pytest.mark.fuzz
@pytest.mark.parametrize("bound", LIVES)
def test_bounds_on_parameters_hold_for_lives(bound: str) -> None:
    asked = (*DEEPSEEK, "--lifetime-tokens", "100B", "--experts", "1,64,256")
    found = answer_of(*asked, *LIVES[bound], *ROOFLINE, *SMALL)["lifetime"]
    models = [row for row in found["plans"] if "n_params" in row] + [found["recommendation"], found["least_training"]]
    if bound == "loss":  # the baseline is the dense model of that loss, whatever its size
        assert models.pop()["n_params_active"] > 7e8
        assert found["recommendation"]["loss"] <= 2.1
    assert max(model["n_params_active"] for model in models) <= 7e8 * (1.0 + 1e-6)
    if bound == "total":
        words = " ".join(run(*asked, *LIVES[bound], *ROOFLINE, *SMALL).out.split())
        assert re.search(r"Unspent \d+% of the dollars: with --max-tokens 40T and --max-active-params 700M", words)


def test_a_life_out_of_the_bounds_on_parameters_names_its_loss() -> None:
    asked = (*SIXTEEN, "--lifetime-tokens", "1T")
    code, _, error = run(*asked, "--max-active-params", "100M", "--max-loss", "2.0")
    assert code == 1
    assert re.search(r"its lowest loss is|a loss of \d\.\d{4} can be served within --max-active-params 100M", error), (
        error
    )


def test_how_far_the_baseline_of_fixed_dollars_lies_beyond_the_runs_is_said_of_what_these_buy() -> None:
    asked = ("plan", "--shape", "mixtral", "--max-total-usd", "5M", "--lifetime-tokens", "2T", "--gpu", "h100-sxm")
    found = run(*asked, *ROOFLINE, "--bootstrap", 0, "--experts", "1,8", "--json")
    life = json.loads(found.out)["lifetime"]
    (factor,) = re.findall(r"for the baseline N ([\d.]+) times", " ".join(life["recommendation"]["caveats"]))
    largest = LawOptions().find_law().fit_range["n_params"][1]
    assert float(factor) == pytest.approx(life["least_training"]["n_params"] / largest, rel=0.01)


@pytest.mark.fuzz
def test_a_life_near_the_largest_served_size_is_built_beside_cheaper_ones_before_rounding() -> None:
    """Before rounding 512 experts cost 1.75 times as much as 256; as built, with a wider body, they cost less."""
    bought = ("--budget-usd", "5M", "--lifetime-tokens", "2T")
    both, alone = (
        answer_of(*DEEPSEEK, *bought, "--experts", experts)["lifetime"]["recommendation"]
        for experts in ("256,512", "512")
    )
    assert both["experts"] == alone["experts"] == 512
    assert both["total_usd"] == pytest.approx(alone["total_usd"], rel=0.02)


@pytest.mark.parametrize(
    ("shape", "n_params", "experts", "tokens"), [("mixtral", 1.77e10, 64, 3.39e13), ("deepseek", 4e9, 256, 4e12)]
)
def test_a_number_of_gpus_that_is_stated_trains_as_the_same_number_that_is_not(
    shape: str, n_params: float, experts: float, tokens: float
) -> None:
    """In the first case 12,288 GPUs, which no batch of 2^k divides, cost $34M unstated and $26.6M stated."""
    model = buildable(LawOptions(shape=shape).find_law().family, n_params, experts).architecture()
    found = choose_launch(model, tokens, H100, Launch())
    stated = choose_launch(model, tokens, H100, Launch(), gpus=found.split.gpus)
    assert (stated.split, stated.mfu, stated.recipe) == (found.split, found.mfu, found.recipe)
    assert found.recipe.batch_sequences * found.recipe.sequence_tokens <= MOST_OFF * found.recipe.asked_batch_tokens


@pytest.mark.fuzz
def test_where_expert_counts_are_as_good_the_dollars_rise() -> None:
    """Whole counts took turns here, 128, 512 and 128 of fine-grained experts, and $3.75M came before $3.34M."""
    usd = [use_of(plan_of("fine-grained", "h100-sxm", budget=flops)).usd for flops in (3.665e23, 4.642e23, 5.878e23)]
    assert usd == sorted(usd, key=lambda each: each or 0.0)

"""What the first screen of a plan says of lives: the model for a volume, and which is cheapest up to which."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from shlex import split

import numpy as np
import pytest

from command_line import FAST, MIXTRAL, answer_of, run
from moescale.options.law import LawOptions, in_shape
from moescale.scaling_laws import find_law, loss, predict
from moescale.units import format_count, format_usd, parse_count

pytestmark = pytest.mark.usefixtures("plans_made_once")


def assert_cheapest_by_volume(out: str, models: dict[str, dict[str, float]]) -> None:
    """The screen names, up to each volume and from there on, the model that costs the least to train and serve."""
    said = re.search(r"By volume (.*?) Decided ", " ".join(out.split()))
    assert said
    *parts, last = re.sub(r" served\b", "", said[1]).split(", ")
    named = [re.fullmatch(r"(.+) to (\S+)", part) for part in parts]
    volumes = [(parse_count(found[2]), found[1]) for found in named if found]
    names = [*(name for _, name in volumes), last.removeprefix("then ")]
    assert len(volumes) == len(parts) > 0
    for (volume, _), pair in zip(volumes, pairwise(names), strict=True):
        for tokens, name in zip((0.98 * volume, 1.02 * volume), pair, strict=True):
            usd = {key: m["training_usd"] + tokens / 1e6 * m["usd_per_mtok"] for key, m in models.items()}
            assert name.startswith(min(usd, key=lambda key: usd[key]))


@pytest.mark.fuzz
def test_a_plan_says_what_its_restrictions_cost() -> None:
    asked = (*MIXTRAL, *FAST, "--bootstrap", "40")
    free, bound = (answer_of(*asked, "--budget", "1e22", *more) for more in ((), ("--experts", "4")))
    assert bound["unbounded"]["usd_per_mtok"] < bound["recommendation"]["usd_per_mtok"]
    assert {"unbounded", "repeats_loss", "default_law"}.isdisjoint(free)
    least, model = free["least_training"][0], free["recommendation"]
    assert least["training_usd"] < 0.5 * free["training"]["usd"]  # what serves for less is trained longer
    assert least["probability_at_least_base"] >= 0.8 <= model["probability_at_least_base"]
    out = run(*asked, "--budget", "1e22").out
    assert_cheapest_by_volume(out, {"least spend": least, "that for": free["for_volume"], "recommended": model})
    assert re.search(rf"^  least spend .*{re.escape(format_usd(least['training_usd']))}$", out, re.M)
    of_other = ("plan", "--gpu", "h100-sxm", *FAST, "--budget", "1e22", "--law", "ludziejewski2025", "--bootstrap", 0)
    other, law = answer_of(*of_other)["default_law"], in_shape(find_law("ludziejewski2025"), "mixtral")
    assert other["loss"] == pytest.approx(predict(law, other["n_params"], other["tokens"], other["experts"]).loss)


@pytest.mark.parametrize(
    "budget", [("--budget", "1e23"), pytest.param(("--match", "llama-3.1-8b"), marks=pytest.mark.fuzz)]
)
def test_the_model_for_a_volume_is_the_best_life_of_it(budget: tuple[str, str], tmp_path: Path) -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--shape", "deepseek", *FAST, "--bootstrap", 20, *budget)
    plan = answer_of(*asked)
    tokens, model, best = plan["for_volume_tokens"], plan["for_volume"], plan["recommendation"]
    life = answer_of(*asked, "--lifetime-tokens", tokens)["lifetime"]["recommendation"]
    same = ("experts", "n_params", "tokens", "usd_per_mtok", "training_usd", "total_usd")
    # The grids of the two searches differ.
    assert [model[name] for name in same] == pytest.approx([life[name] for name in same], rel=1e-4)
    for other in (plan["least_training"][0], best):
        total = (other.get("training_usd") or plan["training"]["usd"]) + tokens / 1e6 * other["usd_per_mtok"]
        assert model["total_usd"] < total
    (saved := tmp_path / "plan.json").write_text(run(*asked, "--json").out)
    priced = answer_of("cost", f"{saved}:for-volume", "--gpu", "h100-sxm", *FAST)
    assert priced["usd_per_mtok"] == pytest.approx(model["usd_per_mtok"], rel=1e-9)
    out = " ".join(run(*asked, "--details").out.split())
    assert f"for {format_count(tokens)} served {model['experts']} {format_count(model['n_params_active'])}" in out
    assert re.search(rf"By volume [a-z].*? to \S+ served, (then )?that for {format_count(tokens)}", out)


@pytest.mark.fuzz
def test_a_match_without_a_budget_trains_no_longer_than_its_price_asks() -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--shape", "deepseek", *FAST, "--bootstrap", 20, "--match", "llama-3.1-8b")
    least, whole = (answer_of(*asked, *more) for more in ((), ("--budget", "6.28e23")))
    assert least["training"]["usd"] < 0.5 * whole["training"]["usd"]
    price, chance = least["recommendation"]["usd_per_mtok"], least["recommendation"]["probability_at_least_base"]
    assert price <= 1.08 * whole["recommendation"]["usd_per_mtok"]  # 5% before rounding to whole layers
    assert chance >= 0.8 - 1e-6
    model, base = least["recommendation"], least["base"]
    released = {**base, "training_usd": 0.0}  # it is paid
    models = {"least spend": least["least_training"][0], "that for": least["for_volume"], "recommended": model}
    assert_cheapest_by_volume(run(*asked, "--details").out, {"llama-3.1-8b as released": released, **models})
    short = run(*asked, "--lifetime-tokens", "10B").out
    served = re.escape(format_usd(base["usd_per_mtok"] * 1e4))
    assert re.search(rf"^But +serving llama-3.1-8b as it is released costs {served} for these tokens", short, re.M)


@pytest.mark.fuzz
def test_a_life_at_a_loss_needs_no_budget() -> None:
    asked = (*MIXTRAL, *split("--experts 16 --bootstrap 0 --lifetime-tokens 1T"), *FAST)
    life = answer_of(*asked, "--max-loss", "2.1")
    assert life["bounded_loss"]["loss"] == pytest.approx(2.1, rel=1e-4)
    assert life["lifetime"]["total_usd"] < life["lifetime"]["least_training"]["total_usd"]
    same = answer_of(*asked, "--budget", life["budget_flops"])
    assert same["lifetime"]["total_usd"] == pytest.approx(life["lifetime"]["total_usd"], rel=1e-3)
    budgets = answer_of(*asked, "--budget", "1e22", "--objective", "serve")
    assert budgets["training"]["flops_used"] == budgets["recommendation"]["training_flops"]
    assert "--max-loss X" in run(*asked).err


@pytest.mark.fuzz
def test_a_life_has_the_error_and_the_chance_of_its_own_model() -> None:
    """The model of the budget alone is dense here, of which the price's error is known; that of the life is an MoE."""
    plan = answer_of(*MIXTRAL, "--lifetime-tokens", "5T", "--max-total-usd", "20M")
    life, base = plan["lifetime"]["recommendation"], plan["lifetime"]["least_training"]
    assert (plan["decided_by"], "accuracy" in plan) == ("lifetime.recommendation", False)
    assert life["experts"] > 1.0
    law = in_shape(LawOptions().find_law(), "mixtral")
    losses = [
        [float(loss(law, model["n_params"], model["tokens"], model["experts"], theta=theta)) for theta in law.draws]
        for model in (life, base)
    ]
    assert life["probability_at_least_base"] == pytest.approx(np.mean(np.less_equal(*losses)), abs=0.02)
    assert life["loss"] < base["loss"]
    assert {c["experts"] for c in life["rivals"]} <= {8, 16, 32, 64}
    assert "undecided between" in life["undecided"]

"""What the first screen of a plan says of chances and regrets, and of the choices that are still open."""

from __future__ import annotations

import math
import re
from pathlib import Path
from shlex import split
from statistics import NormalDist

import pytest

from command_line import FAST, MIXTRAL, answer_of, run
from moescale.units import format_usd

pytestmark = pytest.mark.usefixtures("plans_made_once")


def test_open_choices_are_as_built_and_the_recommended_has_the_least_regret() -> None:
    best = answer_of(*MIXTRAL, "--budget", "1e23", *FAST)["recommendation"]
    assert best["rivals"]
    assert 0.5 < best["likeliest"] < 0.8  # more likely than not, which no sweep needs to make it
    assert not re.search(r"^Next +moescale design", run(*MIXTRAL, "--budget", "1e23", *FAST).out, re.M)
    assert all(best["regret"]["expected"] <= rival["regret"]["expected"] for rival in best["rivals"])
    assert best["compute_ratio"] > 1.0


@pytest.mark.fuzz
def test_a_sweep_is_next_where_choices_are_open_and_none_is_likelier_than_not() -> None:
    repeated = (*MIXTRAL, "--budget", "1e23", "--unique-tokens", "1T", *FAST)  # far beyond runs that repeat fewer
    named, next_ = answer_of(*repeated)["recommendation"], run(*repeated).out
    assert max(named["over_fitted"].values()) > 4.0
    assert bool(re.search(r"^Next +moescale design", next_, re.M)) == (named["undecided"] and named["likeliest"] < 0.5)


def test_a_limit_has_its_chance_by_the_spread_of_published_runs() -> None:
    asked = (*MIXTRAL, "--train-gpus", 64, "--days", 10, *FAST, "--bootstrap", 0)
    training = answer_of(*asked)["training"]
    error = training["error"]
    width = math.log(error["spread"])
    chance = NormalDist(math.log(error["geometric_mean"]), width).cdf(math.log(10.0 / training["days"]))
    assert f"in 10 days {chance:.0%}" in run(*asked).out


@pytest.mark.fuzz
def test_a_confidence_that_only_the_baseline_keeps_is_lowered_aloud() -> None:
    free = ("plan", "--gpu", "h100-sxm", "--budget", "1.6e25", "--bootstrap", "60", *FAST)
    asked = (*free, "--shape", "deepseek", "--weights", "bf16", "--max-gpus", "8")
    assert run(*asked, "--confidence", "0.8").code == 1
    found = run(*asked)
    assert "80% is out of reach" in found.out
    assert "planned with --confidence" in found.err
    plan = answer_of(*asked)
    assert plan["usual_confidence"] == 0.8 > plan["confidence"] >= 0.5
    assert plan["recommendation"]["experts"] > 1
    assert plan["recommendation"]["probability_at_least_base"] >= plan["confidence"] - 1e-6
    wide = run(*free)  # what serves larger models, of what is not stated
    assert "planned with --weights fp8 --max-gpus 16" in wide.err
    assert re.search(r"^Next .* --weights fp8 --max-gpus 16", wide.out, re.M)
    assert run(*asked[:-4], "--max-gpus", "8").err.count("--weights fp8\n") == 1
    plan = answer_of(*free)
    assert "usual_confidence" not in plan
    assert plan["recommendation"]["probability_at_least_base"] >= plan["confidence"] - 1e-6
    assert plan["wider_options"] == "--weights fp8 --max-gpus 16"
    usd = format_usd(plan["more_sure"]["usd_per_mtok"])
    assert f"80% costs {usd} (--confidence 0.8 --weights fp8 --max-gpus 16)" in " ".join(wide.out.split())
    life = answer_of(*free, "--lifetime-tokens", "5T")
    assert life["lifetime"]["recommendation"]["experts"] > 1
    assert life["wider_options"] == "--weights fp8 --max-gpus 16"
    assert run(*asked, "--objective", "quality").code == 1  # the baseline is not served
    assert "planned with --weights fp8 --max-gpus 16" in run(*free, "--objective", "quality").err


@pytest.mark.fuzz
def test_a_lower_chance_of_less_regret_that_serves_for_far_less_is_planned(tmp_path: Path) -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--budget", "3e24", "--bootstrap", "60", *FAST)
    usual, model = (plan := answer_of(*asked))["more_sure"], plan["recommendation"]
    assert plan["confidence"] in (0.6, 0.7)
    assert model["probability_at_least_base"] >= plan["confidence"] - 1e-6
    assert model["usd_per_mtok"] < 0.5 * usual["usd_per_mtok"]
    assert model["regret"]["expected"] < usual["regret"]["expected"]
    out = " ".join(run(*asked).out.split())
    regrets = [f"{each['regret']['expected']:.0%}" for each in (model, usual)]
    assert f"% in unseen labs (regret {regrets[0]}, of 80% {regrets[1]})" in out
    row = rf"^  80%: --confidence 0.8 +{usual['experts']} .* {re.escape(format_usd(usual['usd_per_mtok']))} "
    assert re.search(row, run(*asked).out, re.M)
    stated = answer_of(*asked, "--confidence", "0.8")
    assert stated["recommendation"]["usd_per_mtok"] == pytest.approx(usual["usd_per_mtok"], rel=1e-9)
    assert "more_sure" not in stated
    saved, report = tmp_path / "plan.json", tmp_path / "plan.html"
    saved.write_text(run(*asked, "--json").out)
    assert run("report", saved, "-o", report).code == 0
    assert f"would serve for {format_usd(usual['usd_per_mtok'])} per million" in report.read_text(encoding="utf-8")


@pytest.mark.fuzz
def test_what_the_choice_keeps_anyway_leaves_no_worse_one() -> None:
    asked = split("plan --budget 2.2e22 --gpu h100-sxm --max-tpot 30ms")
    free, counted = answer_of(*asked)["recommendation"], answer_of(*asked, "--experts", 512)["choices"]["balanced"]
    assert free["probability_at_least_base"] > 0.9
    for bound in (("--confidence", "0.9"), ("--attention-dp", free["attention_dp"])):
        model = answer_of(*asked, *bound)["recommendation"]
        assert model["loss"] <= free["loss"] * (1.0 + 1e-9)
        assert model["usd_per_mtok"] <= 1.01 * free["usd_per_mtok"]
    within = answer_of(*asked, "--experts", 512, "--max-total-params", 1.05 * counted["n_params_total"])
    assert within["recommendation"]["loss"] <= counted["loss"]


def test_a_lower_chance_is_named_where_no_regret_is_known() -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--budget", "1e25", "--bootstrap", "60", *FAST)
    less, price = (
        (plan := answer_of(*asked))["less_sure"],
        plan["recommendation"]["usd_per_mtok"],
    )  # no server holds the baseline
    assert less["usd_per_mtok"] < 0.5 * price
    out = run(*asked).out
    row = rf"^  60%: --confidence 0.6 +{less['experts']} .* {re.escape(format_usd(less['usd_per_mtok']))} "
    assert re.search(row, out, re.M)
    assert "Chance       80% for" in out


@pytest.mark.fuzz
def test_days_beside_a_budget_are_kept_with_a_chance() -> None:
    asked = (*MIXTRAL, *split("--budget 1e23 --train-gpus 8 --max-days 30 --bootstrap 0 --experts 8,32"), *FAST)
    told = " ".join(run(*asked).out.split())
    assert "For 30 days on 8 GPUs and at most 1e23 FLOPs" in told
    assert "90%: --within-chance 0.9" in told
    assert "in 30 days 90%" in " ".join(run(*asked, "--within-chance", 0.9).out.split())
    assert re.search(r"Unspent \d+% of the 1e23 FLOPs: the days or dollars buy no more", told)


def test_every_model_of_the_screen_is_built_and_none_answers_for_less() -> None:
    plan = answer_of(*MIXTRAL, "--budget", "1e23", *FAST)
    chosen, built = plan["recommendation"], plan["built"]
    assert [c["experts"] for c in built] == sorted({c["experts"] for c in built})
    assert chosen["n_params"] in {c["n_params"] for c in built}
    assert all(c["probability_at_least_base"] >= 0.8 - 1e-6 for c in built)
    assert not any(c["usd_per_mtok"] < chosen["usd_per_mtok"] and c["loss"] < chosen["loss"] for c in built)
    assert {c["n_params"] for c in chosen.get("rivals", [])} <= {c["n_params"] for c in built}

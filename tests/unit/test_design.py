"""Designed sweeps: what runs tell of a plan, which are chosen, and the command that writes them."""

from __future__ import annotations

import io
import itertools
import json
import re
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from command_line import run
from moescale.errors import InfeasibleError, InputError
from moescale.experiments.settings import settings_of, stated_columns
from moescale.export.trainers import check_family
from moescale.models.family import n_total, training_flops
from moescale.options.law import SHAPES, family_of_shape
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions
from moescale.planning.gaussian_process import (
    CountDoubt,
    Decision,
    GaussianProcess,
    Runs,
    chosen,
    decision_of,
    least_cost,
    process_of,
    regrets,
)
from moescale.planning.search import Search
from moescale.planning.sweep_design import LargerSweep, Posterior, SweepDesign, decide, design_sweep, in_law_variables
from moescale.planning.sweep_runs import SweepLimits, candidate_runs, paper_sweep, plain_grid
from moescale.runs.table import RunTable
from moescale.scaling_laws import find_law
from moescale.scaling_laws.law import loss
from moescale.views.terminal.runs import show_design

FLOPS = 1e21


@cache
def search() -> Search:
    law, serving = find_law("public-2026"), ServingOptions(gpu="h100-sxm", max_num_seqs="256", latency="roofline")
    deployment = serving.deployment()
    question = BoundOptions(budget=1e24, experts="1,4,8,16,32").question(law, deployment)
    return Search.of(law, question, deployment, serving.open_latency(deployment))


@cache
def decision() -> Decision:
    return decision_of(search())


@cache
def grid_process() -> GaussianProcess:
    return process_of(search(), decision(), plain_grid(search().law.family, (1.0, 4.0, 32.0), FLOPS))


def flops_of(runs: Runs) -> np.ndarray:
    return training_flops(search().law.family, runs.n_params, runs.tokens, runs.experts)


@given(st.floats(1e13, 1e25))
def test_rival_sweeps_take_the_flops_that_are_stated(flops: float) -> None:
    family = search().law.family
    for runs, count in ((plain_grid(family, (1.0, 8.0), flops), 24), (paper_sweep(family, flops), 100)):
        assert len(runs) == count
        assert flops_of(runs).sum() == pytest.approx(flops, rel=1e-9)


def test_the_papers_sweep_keeps_the_papers_proportions() -> None:
    runs = paper_sweep(search().law.family, FLOPS)
    assert runs.n_params.max() / runs.n_params.min() == pytest.approx(679477248 / 81395712)
    assert runs.tokens.max() / runs.tokens.min() == pytest.approx(8.0)
    assert set(runs.experts) == {1.0, 4.0, 8.0, 16.0, 32.0}


@given(st.floats(1e14, 1e24), st.none() | st.floats(1e8, 1e11))
def test_candidates_stay_within_the_limits(flops: float, tokens: float | None) -> None:
    runs = candidate_runs(search().law.family, (1.0, 8.0), SweepLimits(flops=flops, run_tokens=tokens))
    assert (flops_of(runs) <= 0.25 * flops * (1 + 1e-12)).all()
    assert (runs.tokens <= (tokens or np.inf)).all()


def test_a_run_never_widens_what_is_believed_and_doubt_falls_with_every_run() -> None:
    process = grid_process()
    for index in range(process.runs):
        after = process.after(index)
        assert (after.variance <= process.variance + 1e-15).all()
        process = after
    # Learning runs one by one is learning them together.
    process, two = grid_process(), np.array([3, 17])
    together = process.given(two, process.samples[0][two]).covariance
    apart = process.after(3).after(17).covariance
    np.testing.assert_allclose(together, apart, atol=1e-9)


def test_the_doubt_after_runs_is_the_error_of_the_estimate() -> None:
    """Over samples of the process, each true in turn, the mean square error of the estimate is the posterior variance."""
    process = grid_process()
    seen, at = np.arange(process.runs), slice(process.runs, None)
    noise = process.noise * np.random.default_rng(5).standard_normal((len(process.samples), seen.size))
    estimate = process.mean + (process.samples[:, seen] + noise - process.mean[seen]) @ process.gain(seen).T
    error = ((estimate - process.samples)[:, at] ** 2).mean(axis=0)
    left = process.given(seen, process.samples[0][seen]).variance
    assert error.sum() == pytest.approx(left.sum(), rel=0.05)
    assert left.sum() < 0.7 * process.variance.sum()
    # A lab's tokenizer and data: the estimate of the models moves by far less than its doubt.
    truth = process.samples[0][seen]
    plain, moved = process.given(seen, truth), process.given(seen, truth + 0.2)
    assert np.abs((plain.mean - moved.mean)[at]).max() < 0.1 * np.sqrt(plain.variance).max()


def test_regret_is_that_of_the_panel_where_a_draw_is_true() -> None:
    draws, models, base_usd = search().draws, decision().models, search().base.usd_per_mtok or np.nan
    losses = draws.losses(models.n_params, models.experts)
    losses[:, 0] = draws.goal  # the base is its own goal, whatever its budget
    asked = decision().cost < 1.0
    known = search().oracle.regrets(draws, losses[:, asked], decision().cost[asked] * base_usd, base_usd)
    ours = regrets(decision(), np.log(losses / draws.goal[:, None]))[:, asked]
    assert np.abs(ours - known).mean() < 0.01  # both are curves between some sizes
    assert np.abs(ours - known).max() < 0.15
    # No choice is better than that of who knows the truth.
    truth = grid_process().samples[:200, grid_process().runs :]
    lost = regrets(decision(), truth)
    assert (lost >= -1e-12).all()
    known = chosen(decision(), truth, np.zeros(truth.shape[1]))
    assert lost[np.arange(len(lost)), known].mean() < 0.02  # the curves' steps


def test_the_least_cost_lies_between_the_sizes_around_the_loss() -> None:
    cost, truth = (
        np.array([0.2, 0.4, 0.8]),
        np.array([[0.02, -0.02, -0.1], [0.3, 0.1, 0.0], [-0.1, -0.2, -0.3], [0.3, 0.2, 0.1]]),
    )
    np.testing.assert_allclose(least_cost(cost, truth), [np.sqrt(0.08), 0.8, 0.2, np.inf])
    unserved = np.array([0.2, np.inf, 0.8])
    np.testing.assert_allclose(least_cost(unserved, truth), [0.8, 0.8, 0.2, np.inf])


def test_the_safest_count_is_not_the_likeliest_where_that_costs_far_more_when_it_is_wrong() -> None:
    """8 experts are the cheapest in 60 of 100 draws and fail in the others; 64 cost a tenth more in every one."""
    models = Runs(np.ones(3), np.ones(3), np.array([1.0, 8.0, 64.0]))
    doubted = Decision(models, np.array([1.0, 0.5, 0.55]), (slice(1, 2), slice(2, 3)), 0.8)
    mean, covariance = np.array([0.0, -0.2533, -9.0]), np.diag([0.0, 1.0, 0.0])
    draws = mean + np.random.default_rng(0).standard_normal((20_000, mean.size)) * np.sqrt(np.diag(covariance))
    process, none = GaussianProcess(mean, covariance, draws, 0, 0.003), np.zeros(0, dtype=np.intp)
    found = process.count_doubt(doubted, none)
    assert found.certainty == pytest.approx(0.6, abs=0.01)
    assert found.experts == 64
    assert found.dearer == pytest.approx(0.06, abs=0.002)
    assert found.dearer_tenth == pytest.approx(0.1)
    # Counts of one price are the cheapest together.
    found = process.count_doubt(replace(doubted, cost=np.array([1.0, 0.5, 0.5])), none)
    assert (found.certainty, found.experts, found.dearer) == (1.0, 64.0, 0.0)


def test_a_decision_takes_the_size_that_is_needed_and_not_the_next_of_a_grid() -> None:
    """64 experts are the cheaper at the size that they need, half way between two that are a factor of four apart."""
    models = Runs(np.array([1.0, 1.0, 2.0, 4.0, 1.0, 4.0]), np.ones(6), np.array([1.0, 8.0, 8.0, 8.0, 64.0, 64.0]))
    cost, mean = np.array([1.0, 0.2, 0.4, np.inf, 0.15, 0.6]), np.array([0.0, 0.1, -0.01, -0.1, 0.1, -0.1])
    decision = Decision(models, cost, (slice(1, 4), slice(4, 6)), 0.8)
    known, doubted = (
        decide(GaussianProcess(mean, np.diag([0.0, *np.full(5, sd**2)]), mean[None], 0, 0.003), decision)
        for sd in (1e-6, 0.05)
    )
    assert (known.experts, known.n_params) == (64.0, pytest.approx(2.0, rel=0.01))
    assert known.cost_ratio == pytest.approx(0.3, rel=0.01)  # the grid's are 0.4 of 8 experts and 0.6
    assert (doubted.experts, doubted.probability_at_least_base) == (64.0, pytest.approx(0.8, abs=0.01))


@cache
def designed():
    return design_sweep(search(), SweepLimits(flops=FLOPS))


@pytest.mark.system
def test_a_design_stays_within_its_limits_and_beats_a_grid() -> None:
    found = designed()
    assert design_sweep(search(), SweepLimits(flops=FLOPS)) == found  # the same design twice
    assert FLOPS >= found.flops == pytest.approx(sum(r.flops for r in found.runs))
    assert max(r.flops for r in found.runs) <= 0.25 * FLOPS
    assert {r.experts for r in found.runs} <= {1, 4, 8, 16, 32}
    assert len({(r.n_params, r.tokens, r.experts) for r in found.runs}) == len(found.runs) <= 60
    assert found.regret_after < found.grid_regret < found.regret_before
    assert found.count_before.certainty < found.count_after.certainty
    assert found.saved_usd_per_mtok > 0.0
    doubts = [r.doubt_left for r in found.runs]
    assert all(later < earlier for earlier, later in itertools.pairwise(doubts))


def shown(found: SweepDesign, plan: Any = None) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    show_design(console, found, shape="deepseek", plan=plan, details=False, written=None)
    return " ".join(console.export_text().split())


@pytest.mark.system
def test_what_a_design_is_worth_is_its_dollars_over_the_points_that_it_wins() -> None:
    prices = {"training_usd": 3286.0, "base_usd_per_mtok": 0.225}
    found = shown(replace(designed(), regret_before=0.139, regret_after=0.115, regret_error=0.004, **prices))
    assert "they cost at least $3,286" in found
    assert "paid for after 609B tokens" in found  # 3286 / (0.024 x 0.225)
    assert "Write the sweep: -o SWEEP.toml" in found


@pytest.mark.system
def test_a_design_says_its_shape_its_gpu_hours_and_whether_it_decides_the_expert_count() -> None:
    priced = replace(designed(), training_usd=3286.0, training_gpu_hours=842.6)
    doubts = {
        "count_before": CountDoubt(0.38, 512.0, 0.066, 0.086),
        "count_after": CountDoubt(0.404, 512.0, 0.045, 0.061),
    }
    undecided = replace(priced, larger=LargerSweep(flops=1e22, certainty=0.45, decides=False), **doubts)
    open_ = shown(undecided)
    assert open_.startswith("Train 60 runs of shape deepseek ")
    assert "do not decide the expert count (likeliest E 40%); no sweep does up to 1e22 FLOPs (45%). Without a" in open_
    assert (
        "Without a sweep train E = 512: in the mean 6.6% dearer to serve than the best count of each draw, 8.6% or more in one "
        "draw of ten. These runs lower that mean to 4.5%." in open_
    )
    settled = shown(replace(undecided, larger=LargerSweep(flops=3e21, certainty=0.56, decides=True)))
    assert "(likeliest E 40%); the smallest sweep that would takes 3e21 FLOPs (56%)." in settled
    assert "no larger sweep was tried" in shown(replace(undecided, larger=None))
    assert "These runs do not lower that mean." in shown(replace(undecided, count_after=undecided.count_before))
    assert "they cost at least $3,286, 843 GPU hours (at the plan's MFUs)" in open_
    decides = replace(undecided, count_after=CountDoubt(0.62, 8.0, 0.0, 0.0))
    decided = shown(decides)
    assert "With these runs one expert count is more likely the cheapest than not (likeliest E 62%). Without" in decided
    without = shown(replace(decides, count_before=CountDoubt(0.75, 8.0, 0.0, 0.0)))
    assert "One expert count is more likely the cheapest than not by the law alone (likeliest E 75%)." in without
    assert "--shape" not in decided
    models = [
        SimpleNamespace(experts=256.0, usd_per_mtok=0.171, loss=1.8102),
        SimpleNamespace(experts=32.0, usd_per_mtok=0.362, loss=1.8199),
    ]
    choices = [
        SimpleNamespace(shape=name, model=model) for name, model in zip(("deepseek", "mixtral"), models, strict=True)
    ]
    compared = shown(undecided, SimpleNamespace(shapes=choices, decision=SimpleNamespace(model=models[0])))
    assert (
        "Shape `plan` takes deepseek: E=256 $0.171, loss 1.8102; --shape mixtral: E=32 $0.362, loss 1.8199" in compared
    )
    assert (
        "Without a sweep train E = 256, as `plan` chooses; the safest count by the law's draws is 512: in the"
        in compared
    )
    # Known runs, which the plan has not seen, decide in its place.
    now = Posterior(n_params=3e9, experts=128.0, tokens=5e12, cost_ratio=0.36, probability_at_least_base=0.8)
    known = replace(undecided, known_runs=100, decision=now, count_before=CountDoubt(0.6, 128.0, 0.03, 0.1))
    seen = shown(known, SimpleNamespace(shapes=choices, decision=SimpleNamespace(model=models[0])))
    assert "Decision from the known runs E = 128, N = 3B" in seen
    assert (
        "One expert count is more likely the cheapest than not with the known runs (likeliest E 60%). Without a" in seen
    )
    assert "Without a sweep train E = 128: in the mean" in seen
    differs = shown(replace(known, decision=replace(now, experts=64.0)))
    assert "train E = 64, as the known runs decide; the safest count by the law's draws is 128: in the" in differs


@pytest.mark.fuzz
@pytest.mark.system
def test_the_larger_sweep_that_decides_is_the_smallest_step_that_does_so_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = 3e22, 1e23  # the last is a tenth of the plan
    small, large = (design_sweep(search(), SweepLimits(flops=flops)).count_after.certainty for flops in steps)
    assert designed().count_after.certainty < small < large
    assert designed().larger is None  # it decides itself

    def larger(least: float, flops: float = 1e22) -> LargerSweep | None:
        monkeypatch.setattr("moescale.planning.sweep_design.DECIDES", least)
        return design_sweep(search(), SweepLimits(flops=flops)).larger

    assert larger(small) == LargerSweep(flops=3e22, certainty=small, decides=True)
    assert larger(large) == LargerSweep(flops=1e23, certainty=large, decides=True)
    assert larger(0.99) == LargerSweep(flops=1e23, certainty=large, decides=False)
    assert larger(0.99, flops=5e22) is None  # three times as many are more than a tenth of the plan


@pytest.mark.system
def test_known_runs_lower_the_regret_before_and_fewer_are_chosen_after_them() -> None:
    first = designed().runs
    columns = (np.array([getattr(r, key) for r in first], dtype=float) for key in ("n_params", "tokens", "experts"))
    runs = Runs(*columns)
    truth = find_law("yun2024-recovered")
    losses = loss(truth, runs.n_params, runs.tokens, runs.experts)
    more = design_sweep(search(), SweepLimits(flops=FLOPS, runs=4), known=(runs, losses))
    assert more.known_runs == len(first)
    assert len(more.runs) <= 4
    assert more.regret_before < designed().regret_before


def test_runs_of_a_table_come_in_the_letters_of_the_plan() -> None:
    """Runs whose table states the dense N of the paper's family keep it; E of top-1 models is counted anew."""
    n, e = np.array([1e8, 1e8]), np.array([1.0, 8.0])
    table = RunTable(
        n_params=n, tokens=20 * n, experts=e, loss=np.array([3.0, 2.9]), columns={"top_k": np.array([1.0, 2.0])}
    )
    runs, losses = in_law_variables(table, search().law.family)
    np.testing.assert_allclose(runs.n_params, n, rtol=1e-6)
    np.testing.assert_allclose(runs.experts, e, rtol=1e-6)
    assert losses.tolist() == [3.0, 2.9]


@pytest.mark.parametrize("shape", ["deepseek", "fine-grained"])
def test_runs_of_a_named_shape_come_back_in_its_letters(shape: str) -> None:
    """A row of the run table says how narrow the experts are, so that E is the count that was trained."""
    stated = {"shape": shape, "n_params": 64e6, "experts": 64, "top_k": 8, "moe_every": 1}
    trained = settings_of({"name": "r", "model": stated, "data": {"corpus": "c"}, "training": {"tokens": 1e9}})
    row = stated_columns(trained, 50_000)
    numbers = {key: np.array([float(value)]) for key, value in row.items() if isinstance(value, int | float)}
    table = RunTable(
        n_params=numbers["n_params_dense"], tokens=numbers["tokens"], experts=numbers["n_experts"], loss=np.array([3.0]),
        columns=numbers,
    )  # fmt: skip
    runs, _ = in_law_variables(table, family_of_shape(shape))
    np.testing.assert_allclose(runs.experts, 64.0, rtol=1e-6)
    np.testing.assert_allclose(runs.n_params, 64e6, rtol=0.03)


# The command.

PLAN = [
    "--plan-budget", "1e23", "--gpu", "h100-sxm", "--max-num-seqs", "256", "--latency", "roofline", "--experts",
    "1,4,16", "--law", "public-2026",
]  # fmt: skip


@pytest.mark.system
def test_design_answers_with_the_keys_of_the_contract_and_writes_a_sweep(tmp_path) -> None:
    path = tmp_path / "mine.toml"
    found = run("design", "--budget", 1e20, *PLAN, "--max-runs", 12, "-o", path, "--json")
    assert found.code == 0, found.err
    answer = json.loads(found.out)
    assert {"runs", "regret_before", "regret_after", "grid_regret", "flops"} <= set(answer)
    assert {"n_params", "tokens", "experts", "flops"} <= set(answer["runs"][0])
    assert answer["shape"] == "paper"  # the law's own
    assert ("larger" in answer) <= (answer["count_after"]["certainty"] < 0.5)
    assert answer["count_before"]["experts"] in {1, 4, 16}
    assert answer["count_before"]["dearer"] >= answer["count_after"]["dearer"] >= 0.0
    assert answer["training_gpu_hours"] * 3.9 == pytest.approx(answer["training_usd"])  # dollars of an H100 hour
    listed = run("sweep", path, "--dry-run", "--json")
    assert listed.code == 0, listed.err
    assert 0 < len(json.loads(listed.out)["runs"]) == len(answer["runs"]) <= 12


@pytest.mark.system
@pytest.mark.parametrize("shape", ["deepseek", "fine-grained"])
def test_a_sweep_of_narrow_and_shared_experts_is_written_as_it_was_designed(shape: str, tmp_path) -> None:
    path, asked = tmp_path / "mine.toml", [*PLAN[:-4], "--experts", "1,16,256", "--law", "public-2026"]
    found = run("design", "--budget", 1e20, *asked, "--max-runs", 12, "--shape", shape, "-o", path, "--json")
    assert found.code == 0, found.err
    designed = sorted(json.loads(found.out)["runs"], key=lambda r: (r["experts"], r["n_params"], r["tokens"]))
    listed = json.loads(run("sweep", path, "--dry-run", "--json").out)["runs"]
    listed.sort(key=lambda r: (r["n_experts"], r["n_params_dense"], r["tokens"]))
    assert [r["n_experts"] for r in listed] == [r["experts"] for r in designed]
    assert max(r["n_experts"] for r in listed) > 1
    for built, wanted in zip(listed, designed, strict=True):
        assert built["n_params_dense"] == pytest.approx(wanted["n_params"], rel=0.05)
        total = float(n_total(family_of_shape(shape), wanted["n_params"], float(wanted["experts"])))
        assert built["n_params_total"] == pytest.approx(total, rel=0.3)  # experts of small models are a few tiles wide


def test_what_a_sweep_cannot_build_is_refused() -> None:
    for shape in SHAPES:
        check_family(family_of_shape(shape))
    with pytest.raises(InputError, match=r"not mine's.*--details"):
        check_family(replace(family_of_shape("deepseek"), name="mine"))
    assert "no FLOPs for the sweep" in run("design", *PLAN).err


def test_limits_without_a_run_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="no run within these limits"):
        design_sweep(search(), SweepLimits(flops=1e21, run_tokens=10.0))


@pytest.mark.system
@pytest.mark.usefixtures("plans_made_once")
@pytest.mark.parametrize("budget", ["1e22", pytest.param("1e23", marks=pytest.mark.fuzz)])
def test_a_design_is_of_the_model_that_the_plan_recommends_unless_a_shape_is_stated(budget: str) -> None:
    asked = "--gpu", "h100-sxm", "--latency", "roofline", "--bootstrap", 20, "--experts", "1,16,64"
    planned = json.loads(run("plan", "--budget", budget, *asked, "--json").out)
    command = "design", "--budget", 1e20, "--max-runs", 2, "--plan-budget", budget, *asked
    found = json.loads(run(*command, "--json").out)
    assert found["shape"] == planned["shapes"][0]["shape"] != "mixtral"
    assert [(s["shape"], s["model"]["experts"]) for s in found["shapes"]] == [
        (s["shape"], s["model"]["experts"]) for s in planned["shapes"]
    ]
    assert found["base"] == planned["base_name"]
    stated = run(*command, "--shape", "mixtral").out
    assert re.match(
        r"(Train|The expert count is decided without a sweep; this one trains) 2 runs of shape mixtral", stated
    )
    assert "`plan`" not in stated


@pytest.mark.fuzz
@pytest.mark.system
def test_days_are_designed_for_as_they_are_planned() -> None:
    days = ("--days", 160, "--train-gpus", 64, *PLAN[2:-1], "yun2024-recovered", "--bootstrap", 20)
    planned = json.loads(run("plan", *days, "--json").out)["budget_flops"]
    designed = json.loads(run("design", "--budget", 1e20, "--max-runs", 6, *days, "--json").out)
    assert designed["budget_flops"] == pytest.approx(planned, rel=1e-12)

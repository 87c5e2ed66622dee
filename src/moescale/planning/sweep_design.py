"""Which runs to train so that a plan becomes certain: a designed sweep, against a plain grid and the paper's runs.

Candidates are runs of every expert count that the plan may choose, over sizes and tokens that the sweep can pay for. They are
taken greedily, each time the one that lowers the plan's doubt most for the square root of its FLOPs: by the plain gain a few
large runs would take the whole sweep, by the gain per FLOP it would be never spent. Doubt is what an error in the loss of a
model costs: its standard deviation, times the price of loss there, times how probable it is that the plan asks for the model.
`process` says what a run tells of the models; docs/evidence/decisions.md says how the rule was chosen and how it was judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np

from moescale import catalogue
from moescale.bounds import Bound, check_bounds
from moescale.errors import InfeasibleError
from moescale.fitting.canonical import family_of, models_of
from moescale.io.records import record
from moescale.models.coordinates import in_family, same_letters
from moescale.models.family import ModelFamily, training_flops
from moescale.models.recipe import find_rule, recipe_for
from moescale.planning.gaussian_process import (
    RUN_NOISE,
    Decision,
    GaussianProcess,
    Runs,
    chosen,
    decision_of,
    joined,
    process_of,
)
from moescale.planning.search import Search
from moescale.planning.training_price import by_parts
from moescale.runs.table import SIZE_COLUMNS, RunTable
from moescale.typing import BoolArray, FloatArray
from moescale.units import format_count

MOST_RUNS = 60  # as many as the plain grid has
FLOPS_POWER = 0.5  # of a run's FLOPs that its gain is divided by
TOKENS_PER_PARAM = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
SIZE_STEP = math.sqrt(2.0)
SMALLEST_SHARE, LARGEST_SHARE = 1e-5, 0.25  # of the sweep's FLOPs, of one run
LEAST_PARAMS = 1e6  # N: smaller models are far from what any law was fitted on
NEARLY_ALL = 0.9  # of a sweep's FLOPs: one that uses less says why
LEAST_GAIN = 1e-4  # of the doubt that is left: a run that lowers it by less identifies nothing
ANY_COUNT = 0.2  # of the weight of a model is that of each expert count alike, the rest by how often it is the cheapest
DECIDES = 0.5  # certainty from which one expert count is likelier than all others together
STEEPEST = 30.0  # d ln cost / d ln loss at most, where a cost jumps

# A plain grid: sizes over a factor of eight, three tokens a parameter, every expert count.
GRID_SIZES, GRID_SPAN, GRID_TOKENS_PER_PARAM = 4, 8.0, (5.0, 20.0, 80.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """What a sweep may take; raises InputError for numbers that are no sweep."""

    flops: Annotated[float, Bound(0, above=True)]
    runs: Annotated[int, Bound(1)] = MOST_RUNS
    few: bool = False  # whether the number of runs is what is scarce, and not their FLOPs
    run_flops: Annotated[float | None, Bound(0, above=True)] = None  # of one run; None: a quarter of all
    run_tokens: Annotated[float | None, Bound(0, above=True)] = None  # of one run
    least_params: Annotated[float, Bound(1)] = LEAST_PARAMS  # N of a run
    noise: Annotated[float, Bound(0, above=True)] = RUN_NOISE
    sequence_tokens: Annotated[int, Bound(1)] = 2048  # that batches are whole sequences of

    def __post_init__(self) -> None:
        check_bounds(self, where="design")


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignedRun:
    """A run to train; N is the size of the dense model."""

    n_params: float
    tokens: float
    experts: int
    flops: float
    batch_tokens: int
    peak_lr: float
    doubt_left: float  # of the plan, once this run and those before it are in, as a share of that before the sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another sweep of the same FLOPs."""

    name: str
    runs: int
    flops: float
    regret: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """What the law's draws and known runs together decide, without a fit."""

    n_params: float
    experts: float
    tokens: float
    cost_ratio: float  # dollars a token over the base's; 1 for the base itself
    probability_at_least_base: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDesign:
    """Runs to train, and the plan's expected regret (a share of the base's cost a token) before and after them."""

    runs: tuple[DesignedRun, ...]  # in the order in which they were chosen
    flops: float
    regret_before: float
    regret_after: float
    regret_error: float  # standard error of the simulated regrets
    certainty_before: float  # mean probability of the expert count that is the likeliest to be the cheapest
    certainty_after: float
    training_usd: float | None  # of the runs, at the MFUs of the plan's models; None without a price
    training_gpu_hours: float | None  # as the dollars
    base_usd_per_mtok: float
    rivals: tuple[Rival, ...]
    known_runs: int  # that were given
    decision: Posterior  # with the known runs, before any of the sweep
    base: str
    budget_flops: float  # of the plan
    confidence: float
    notes: tuple[str, ...] = ()

    @property
    def grid_regret(self) -> float:
        """Of a plain grid of the same FLOPs."""
        return self.rivals[0].regret

    @property
    def decides_experts(self) -> bool:
        """Whether one expert count is likelier to be the cheapest than all others together, once the runs are in."""
        return self.certainty_after >= DECIDES

    @property
    def saved_usd_per_mtok(self) -> float:
        """Dollars that the runs are expected to save per million served tokens; 0 within the error of the simulation."""
        lowered = self.regret_before - self.regret_after
        return lowered * self.base_usd_per_mtok if lowered > 2.0 * self.regret_error else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        told = {name: getattr(self, name) for name in ("grid_regret", "decides_experts", "saved_usd_per_mtok")}
        return record(self) | told


def in_letters(table: RunTable, family: ModelFamily) -> tuple[Runs, FloatArray]:
    """The runs of a table as a family counts them, and their losses (n,)."""
    own = family_of(table)[0]
    if table.size_column == SIZE_COLUMNS[0] and same_letters(replace(own, kv_heads=family.kv_heads), family):
        return Runs(table.n_params, table.tokens, table.experts), table.loss
    body, x, _ = models_of(table, own)
    n, e = in_family(family, body, x)
    return Runs(n, table.tokens, e), table.loss


def design_sweep(search: Search, limits: SweepLimits, *, known: tuple[Runs, FloatArray] | None = None) -> SweepDesign:
    """The runs that make the plan of a search certain, within limits, beside known runs with their losses (n,).

    Raises InfeasibleError where no run fits the limits, or where the base is not served.
    """
    law = search.law
    if search.base.usd_per_mtok is None:
        what = f"{search.question.base_name} cannot be served on {search.costs.deployment.gpu.name}: {search.base.infeasible}"
        raise InfeasibleError(what, next_step="name a GPU with --gpu, or allow more with --max-gpus")
    counts = {*search.question.experts, search.question.match_experts}  # runs tell of the base, too
    experts = tuple(sorted(float(e) for e in counts if law.allows(e)))
    family = law.family
    decision = decision_of(search)
    offered = candidate_runs(family, experts, limits)
    rivals = {
        "a plain grid": plain_grid(family, experts, limits.flops),
        "the paper's runs, scaled": paper_sweep(family, limits.flops),
    }
    seen, losses = known or (Runs(*(np.zeros(0) for _ in range(3))), np.zeros(0))
    process = process_of(search, decision, joined((offered, *rivals.values(), seen)), noise=limits.noise)
    ends = np.cumsum([len(offered), *(len(runs) for runs in rivals.values())])
    if len(seen):
        process = process.given(np.arange(ends[-1], ends[-1] + len(seen)), np.log(losses))
    flops = training_flops(family, offered.n_params, offered.tokens, offered.experts)
    # A run that is in is not trained again, and few further ones are to tell most, whatever they cost.
    held = _repeated(offered, seen)
    found = _greedy(process, decision, flops, limits, held, power=0.0 if limits.few else FLOPS_POWER)
    if not found:
        raise InfeasibleError(
            "no run within these limits informs the plan", next_step="raise --budget, or relax the limits"
        )
    picked, question = np.array(list(found), dtype=np.intp), search.question
    price = question.training and by_parts(
        question.training, law, question.budget, experts, vocab_size=question.vocab_size
    )
    usd = price and float(flops[picked] @ price.usd_per_flop_at(offered.experts[picked]))
    regret, longest = process.regret(decision, picked), float(offered.tokens[picked].max())
    return SweepDesign(
        runs=_as_runs(offered, flops, found, limits),
        flops=float(flops[picked].sum()),
        regret_before=process.regret(decision, picked[:0]),
        regret_after=regret,
        regret_error=process.regret_error(decision, picked),
        certainty_before=process.count_certainty(decision, picked[:0]),
        certainty_after=process.count_certainty(decision, picked),
        training_usd=usd,
        training_gpu_hours=price and usd and usd / price.usd_per_gpu_hour,
        base_usd_per_mtok=search.base.usd_per_mtok,
        rivals=tuple(
            Rival(
                name=name,
                runs=len(runs),
                flops=float(training_flops(family, runs.n_params, runs.tokens, runs.experts).sum()),
                regret=process.regret(decision, np.arange(start, start + len(runs))),
            )
            for (name, runs), start in zip(rivals.items(), ends, strict=False)
        ),
        known_runs=len(seen),
        decision=decide(process, decision),
        base=search.question.base_name,
        budget_flops=search.question.budget.flops,
        confidence=decision.confidence,
        notes=_notes(search, known is not None, _unspent(limits, len(found), float(flops[picked].sum())), longest),
    )


def decide(process: GaussianProcess, decision: Decision) -> Posterior:
    """The cheapest model that is as good as the base with the plan's confidence, by what is believed now."""
    estimate, doubt = process.mean[process.runs :], np.sqrt(process.variance)
    at = int(chosen(decision, estimate[None], doubt)[0])
    sure = NormalDist().cdf(float(-estimate[at] / doubt[at])) if at else 1.0
    models = decision.models
    return Posterior(
        n_params=float(models.n_params[at]),
        experts=float(models.experts[at]),
        tokens=float(models.tokens[at]),
        cost_ratio=float(decision.cost[at]),
        probability_at_least_base=sure,
    )


def _unspent(limits: SweepLimits, runs: int, flops: float) -> list[str]:
    """Why a sweep does not use its FLOPs, where it leaves more than NEARLY_ALL."""
    if limits.few or flops > NEARLY_ALL * limits.flops:
        return []
    why = f"it has {runs} runs (--max-runs)" if runs == limits.runs else "no further run lowers the regret notably"
    return [f"the sweep uses {flops / limits.flops:.0%} of its FLOPs: {why}"]


def _notes(search: Search, known: bool, unspent: list[str], tokens: float) -> tuple[str, ...]:
    """What the design, whose longest run has so many tokens, leaves aside."""
    question, notes = search.question, [*search.notes, *unspent]
    if tokens < (unique := question.budget.extra.get("unique_tokens", -math.inf)):
        notes.append(
            f"no run repeats a token, as the longest has {format_count(tokens)} of {format_count(unique)} unique ones: the sweep says "
            "nothing of repeats; train some runs on as many epochs of a part of the data as the plan has"
        )
    if question.goal != "serve" or question.max_loss is not None:
        notes.append("the runs are chosen for the cheapest model at the baseline's loss, not for the stated bound")
    if len(search.draws.theta) == 1:
        notes.append(f"{search.law.name} has no draws: the runs reduce only its smooth error")
    if known and search.law.source.startswith("fitted to"):
        notes.append("a law that was fitted to these runs counts them twice: give one of the two")
    return tuple(notes)


def candidate_runs(family: ModelFamily, experts: tuple[float, ...], limits: SweepLimits) -> Runs:
    """Every size (steps of the square root of two), tokens a parameter and expert count that the limits allow."""
    sizes = limits.least_params * SIZE_STEP ** np.arange(2.0 * math.log2(1e13 / limits.least_params))
    n, per_param, e = (axis.ravel() for axis in np.meshgrid(sizes, TOKENS_PER_PARAM, experts, indexing="ij"))
    n, tokens = (np.array([float(f"{value:.3g}") for value in values]) for values in (n, n * per_param))
    flops = training_flops(family, n, tokens, e)
    most = min(LARGEST_SHARE * limits.flops, limits.run_flops or math.inf)
    fits = (flops >= SMALLEST_SHARE * limits.flops) & (flops <= most) & (tokens <= (limits.run_tokens or math.inf))
    return Runs(n[fits], tokens[fits], e[fits])


def _repeated(offered: Runs, seen: Runs) -> BoolArray:
    """Which candidates (c,) are known runs, to a tenth of N and tokens."""
    if not len(seen):
        return np.zeros(len(offered), dtype=np.bool_)
    near = np.ones((len(offered), len(seen)), dtype=np.bool_)
    for key in ("n_params", "tokens"):
        near &= np.abs(np.log(getattr(offered, key)[:, None] / getattr(seen, key))) < 0.1
    return (near & (offered.experts[:, None] == np.round(seen.experts))).any(axis=1)


def plain_grid(family: ModelFamily, experts: tuple[float, ...], flops: float) -> Runs:
    """Four sizes over a factor of eight, 5, 20 and 80 tokens a parameter, every expert count, for so many FLOPs in all."""
    shares = np.geomspace(1.0, GRID_SPAN, GRID_SIZES)
    n, per_param, e = (axis.ravel() for axis in np.meshgrid(shares, GRID_TOKENS_PER_PARAM, experts, indexing="ij"))
    return _scaled(family, Runs(n, n * per_param, e), flops)


def paper_sweep(family: ModelFamily, flops: float) -> Runs:
    """The paper's hundred runs (arXiv 2404.02852, section 3), all sizes and tokens times one factor, for so many FLOPs in all."""
    published = catalogue.read("published_yun2024.toml")["sweep"]
    stated = (np.array(published[key], dtype=float) for key in ("n_params", "tokens", "experts"))
    return _scaled(family, Runs(*(axis.ravel() for axis in np.meshgrid(*stated, indexing="ij"))), flops)


def _scaled(family: ModelFamily, runs: Runs, flops: float) -> Runs:
    """Sizes and tokens times one factor, so that all runs together take so many FLOPs."""
    low, high = -60.0, 60.0  # of the factor's logarithm
    for _ in range(80):
        middle = 0.5 * (low + high)
        factor = math.exp(middle)
        taken = training_flops(family, factor * runs.n_params, factor * runs.tokens, runs.experts).sum()
        low, high = (low, middle) if taken > flops else (middle, high)
    factor = math.exp(low)
    return Runs(factor * runs.n_params, factor * runs.tokens, runs.experts)


def _greedy(
    process: GaussianProcess,
    decision: Decision,
    flops: FloatArray,
    limits: SweepLimits,
    held: BoolArray,
    power: float,
) -> dict[int, float]:
    """The candidates (c,) that are chosen besides those `held`, in order, each with the share of the doubt that it leaves."""
    prices, closed = _prices(process, decision), held.copy()
    first = float(np.sqrt(process.variance) @ prices)
    found, spent = dict[int, float](), 0.0
    while len(found) < limits.runs:
        shared = process.covariance[: flops.size, process.runs :]
        noisy = np.diag(process.covariance)[: flops.size] + process.noise**2
        doubt = float(np.sqrt(process.variance) @ prices)
        left = np.sqrt(np.maximum(process.variance - shared**2 / noisy[:, None], 0.0)) @ prices
        # The first run of a sweep sets the lab's unknown factor, which tells little by itself.
        least = LEAST_GAIN * doubt if found or held.any() else 0.0
        open_ = ~closed & (flops <= limits.flops - spent) & (doubt - left > least)
        if not open_.any():
            break
        best = int(np.where(open_, (doubt - left) / flops**power, -1.0).argmax())
        process, closed[best] = process.after(best), True
        spent += float(flops[best])
        found[best] = float(left[best]) / first
    return found


def _prices(process: GaussianProcess, decision: Decision) -> FloatArray:
    """What an error in ln loss of each model costs, times how probable it is that the plan asks for it, (a,)."""
    truth, mean = process.samples[:, process.runs :], process.mean[process.runs :]
    first = np.array([np.where(truth[:, c] <= 0.0, decision.cost[c], np.inf).min(axis=1) for c in decision.curves])
    wins = np.bincount(first.argmin(axis=0), minlength=len(decision.curves)) / len(truth)
    prices = np.zeros(mean.size)
    for share, curve in zip(wins, decision.curves, strict=True):
        cost = np.where(np.isfinite(decision.cost[curve]), decision.cost[curve], 0.0)
        spread = np.sqrt(np.maximum(process.variance[curve], 1e-8))
        near = np.exp(-0.5 * (mean[curve] / spread) ** 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.abs(np.gradient(np.log(cost), mean[curve]))
        steep = np.where(np.isfinite(slope), np.minimum(slope, STEEPEST), 0.0)
        weight = (1.0 - ANY_COUNT) * share + ANY_COUNT / len(decision.curves)
        prices[curve] = weight * cost * steep * near / max(float(near.sum()), 1e-300)
    return prices


def _as_runs(
    offered: Runs, flops: FloatArray, found: Mapping[int, float], limits: SweepLimits
) -> tuple[DesignedRun, ...]:
    """Chosen candidates, each with the batch and learning rate of its size and tokens.

    Below the FLOPs that the rule was fitted to the rate is that of its smallest run: extrapolated to 1e10 FLOPs, 0.017 trained
    larger models of a small study to worse losses.
    """
    made: list[DesignedRun] = []
    least, _ = find_rule(None).fitted["flops"]
    for at, doubt in found.items():
        n, tokens = float(offered.n_params[at]), float(offered.tokens[at])
        recipe = recipe_for(n, tokens, flops=float(flops[at]), sequence_tokens=limits.sequence_tokens)
        rate = recipe_for(n, tokens, flops=max(least, float(flops[at])))
        made.append(
            DesignedRun(
                n_params=n,
                tokens=tokens,
                experts=int(offered.experts[at]),
                flops=float(flops[at]),
                batch_tokens=recipe.batch_tokens,
                peak_lr=rate.peak_lr,
                doubt_left=doubt,
            )
        )
    return tuple(made)

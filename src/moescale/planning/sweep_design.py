"""Which runs to train so that a plan becomes certain: a designed sweep, against a plain grid and the paper's runs.

Candidates are runs of every expert count that the plan may choose, over sizes and tokens that the sweep can pay for. They are
taken greedily, each time the one that lowers the plan's doubt most for the square root of its FLOPs: by the plain gain a few
large runs would take the whole sweep, by the gain per FLOP it would be never spent. Doubt is what an error in the loss of a
model costs: its standard deviation, times the price of loss there, times how probable it is that the plan asks for the model.
`process` says what a run tells of the models; docs/evidence/decisions.md says how the rule was chosen and how it was judged.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from moescale.errors import InfeasibleError
from moescale.fitting.canonical import family_of, models_of
from moescale.io.records import record
from moescale.models.coordinates import in_family, same_variables
from moescale.models.family import ModelFamily
from moescale.models.recipe import find_rule, recipe_for
from moescale.planning.gaussian_process import (
    CountDoubt,
    Decision,
    GaussianProcess,
    Runs,
    chosen,
    decision_of,
    joined,
    process_of,
    regrets,
)
from moescale.planning.rationale import DECIDES, MOST_SWEEP
from moescale.planning.search import Search
from moescale.planning.sweep_runs import SweepLimits, candidate_runs, flops_of, paper_sweep, plain_grid, repeated
from moescale.planning.training_price import by_parts
from moescale.runs.table import SIZE_COLUMNS, RunTable
from moescale.typing import BoolArray, FloatArray
from moescale.units import format_count

FLOPS_POWER = 0.5  # of a run's FLOPs that its gain is divided by; few runs are to tell most, whatever they cost
NEARLY_ALL = 0.9  # of a sweep's FLOPs: one that uses less says why
LEAST_GAIN = 1e-4  # of the doubt that is left: a run that lowers it by less identifies nothing
ANY_COUNT = 0.2  # of the weight of a model is that of each expert count alike, the rest by how often it is the cheapest
LARGER = (3.0, 10.0)  # steps of a decade, in which a larger sweep is looked for that decides
BETWEEN = 256  # models in each step of size that are decided between: counts differ by less than a whole step
STEEPEST = 30.0  # d ln cost / d ln loss at most, where a cost jumps


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
class LargerSweep:
    """A sweep of more FLOPs, and whether it decides the expert count."""

    flops: float
    certainty: float
    decides: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepDesign:
    """Runs to train, and the plan's expected regret (a share of the base's cost a token) before and after them."""

    runs: tuple[DesignedRun, ...]  # in the order in which they were chosen
    flops: float
    regret_before: float
    regret_after: float
    regret_error: float  # standard error of the simulated regrets
    count_before: CountDoubt  # what to train without the runs, and the price of being wrong
    count_after: CountDoubt  # the same with them
    larger: LargerSweep | None = None  # None where the runs decide, or no larger sweep is within MOST_SWEEP
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
    def saved_usd_per_mtok(self) -> float:
        """Dollars that the runs are expected to save per million served tokens; 0 within the error of the simulation."""
        lowered = self.regret_before - self.regret_after
        return lowered * self.base_usd_per_mtok if lowered > 2.0 * self.regret_error else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self) | {"grid_regret": self.grid_regret, "saved_usd_per_mtok": self.saved_usd_per_mtok}


def in_law_variables(table: RunTable, family: ModelFamily) -> tuple[Runs, FloatArray]:
    """The runs of a table as a family counts them, and their losses (n,)."""
    own = family_of(table)[0]
    if table.size_column == SIZE_COLUMNS[0] and same_variables(replace(own, kv_heads=family.kv_heads), family):
        return Runs(table.n_params, table.tokens, table.experts), table.loss
    body, x, _ = models_of(table, own)
    n, e = in_family(family, body, x)
    return Runs(n, table.tokens, e), table.loss


def design_sweep(search: Search, limits: SweepLimits, *, known: tuple[Runs, FloatArray] | None = None) -> SweepDesign:
    """The runs that make the plan of a search certain, within limits, beside known runs with their losses (n,).

    Raises InfeasibleError where no run fits the limits, or where the base is not served.
    """
    if search.base.usd_per_mtok is None:
        gpu, base = search.costs.deployment.gpu.name, search.question.base_name
        what = f"{base} cannot be served on {gpu}: {search.base.infeasible}"
        raise InfeasibleError(what, next_step="name a GPU with --gpu, or allow more with --max-gpus")
    seen, losses = known or (Runs(*np.zeros((3, 0))), np.zeros(0))
    asked = search, decision_of(search), search.base.usd_per_mtok, seen, losses
    found = _designed(limits, *asked)
    if not found.runs:
        what = "no run within these limits informs the plan"
        raise InfeasibleError(what, next_step="raise --budget, or relax the limits")
    if found.count_after.certainty >= DECIDES:
        return found

    @cache
    def larger(flops: float) -> LargerSweep:  # designed as it would be for itself
        certainty = _designed(replace(limits, flops=flops), *asked).count_after.certainty
        return LargerSweep(flops=flops, certainty=certainty, decides=certainty >= DECIDES)

    most = MOST_SWEEP * search.question.budget.flops / limits.flops * (1.0 + 1e-9)
    steps = np.outer(10.0 ** np.arange(max(math.ceil(math.log10(most)), 0) + 1), LARGER).ravel()
    flops = (limits.flops * steps[steps <= most]).tolist()
    if flops and larger(flops[-1]).decides:  # the largest comes first, as it mostly says that none does
        flops = flops[: bisect_left(flops, True, hi=len(flops) - 1, key=lambda each: larger(each).decides) + 1]
    return replace(found, larger=larger(flops[-1]) if flops else None)


def _designed(
    limits: SweepLimits, search: Search, decision: Decision, base_usd: float, seen: Runs, losses: FloatArray
) -> SweepDesign:
    """The runs that are chosen for a decision within limits, of which there may be none."""
    law, question = search.law, search.question
    counts = {*question.experts, question.match_experts}  # runs tell of the base, too
    experts = tuple(sorted(float(e) for e in counts if law.allows(e)))
    offered = candidate_runs(law.family, experts, limits)
    rivals = {
        "a plain grid": plain_grid(law.family, experts, limits.flops),
        "the paper's runs, scaled": paper_sweep(law.family, limits.flops),
    }
    process = process_of(search, decision, joined((offered, *rivals.values(), seen)), noise=limits.noise)
    ends = np.cumsum([len(offered), *(len(runs) for runs in rivals.values())])
    if len(seen):
        process = process.given(np.arange(ends[-1], ends[-1] + len(seen)), np.log(losses))
    flops = flops_of(law.family, offered)
    found = _greedy(process, decision, flops, limits, repeated(offered, seen))  # a run that is in is not trained again
    picked = np.array(list(found), dtype=np.intp)
    runs, flops = offered.at(picked), flops[picked]
    price = question.training and by_parts(
        question.training, law, question.budget, experts, gpus=None, vocab_size=question.vocab_size
    )
    usd = price and float(flops @ price.usd_per_flop_at(runs.experts))
    table = regrets(decision, process.samples[:, process.runs :])
    before = process.count_doubt(decision, picked[:0])
    regret, error = process.regret(decision, picked, table)
    return SweepDesign(
        runs=tuple(
            _as_run(runs.at(np.array([i])), float(flops[i]), left, limits) for i, left in enumerate(found.values())
        ),
        flops=float(flops.sum()),
        regret_before=process.regret(decision, picked[:0], table)[0],
        regret_after=regret,
        regret_error=error,
        count_before=before,
        count_after=process.count_doubt(decision, picked, before),
        training_usd=usd,
        training_gpu_hours=price and usd and usd / price.usd_per_gpu_hour,
        base_usd_per_mtok=base_usd,
        rivals=tuple(
            Rival(
                name=name,
                runs=len(rival),
                flops=float(flops_of(law.family, rival).sum()),
                regret=process.regret(decision, np.arange(at, at + len(rival)), table)[0],
            )
            for (name, rival), at in zip(rivals.items(), ends, strict=False)
        ),
        known_runs=len(seen),
        decision=decide(process, decision),
        base=question.base_name,
        budget_flops=question.budget.flops,
        confidence=decision.confidence,
        notes=_notes(search, limits, runs, float(flops.sum()), seen),
    )


def decide(process: GaussianProcess, decision: Decision) -> Posterior:
    """The cheapest model of any size that is as good as the base with the plan's confidence, by what is believed now."""
    models, known = decision.models, np.arange(decision.cost.size)
    places = (np.linspace(c.start, c.stop - 1, BETWEEN * (c.stop - 1 - c.start) + 1) for c in decision.curves)
    at = np.concatenate(([0.0], *places))
    estimate, doubt = (np.interp(at, known, y) for y in (process.mean[process.runs :], np.sqrt(process.variance)))
    n, tokens, cost = (np.exp(np.interp(at, known, np.log(y))) for y in (models.n_params, models.tokens, decision.cost))
    cost = np.where(np.isnan(cost), np.inf, cost)  # beside a size that is not served
    best = int(chosen(replace(decision, cost=cost), estimate[None], doubt)[0])
    return Posterior(
        n_params=float(n[best]),
        experts=float(models.experts[int(at[best])]),
        tokens=float(tokens[best]),
        cost_ratio=float(cost[best]),
        probability_at_least_base=NormalDist().cdf(float(-estimate[best] / doubt[best])) if best else 1.0,
    )


def _notes(search: Search, limits: SweepLimits, runs: Runs, flops: float, seen: Runs) -> tuple[str, ...]:
    """What the design leaves aside, and why it does not use its FLOPs, where it leaves more than NEARLY_ALL."""
    question, notes = search.question, [*search.notes]
    if not limits.few and flops <= NEARLY_ALL * limits.flops:
        full = len(runs) == limits.runs
        why = f"it has {len(runs)} runs (--max-runs)" if full else "no further run lowers the regret notably"
        notes.append(f"the sweep uses {flops / limits.flops:.0%} of its FLOPs: {why}")
    if (tokens := float(runs.tokens.max(initial=0.0))) < (
        unique := question.budget.extra.get("unique_tokens", -math.inf)
    ):
        notes.append(
            f"no run repeats a token, as the longest has {format_count(tokens)} of {format_count(unique)} unique ones: the sweep says "
            "nothing of repeats; train some runs on as many epochs of a part of the data as the plan has"
        )
    if question.goal != "serve" or question.max_loss is not None or question.of_life:
        goal = "the lifetime" if question.of_life else "the stated bound or objective"
        notes.append(f"the runs are chosen for the model that serves the baseline's loss for least, not for {goal}")
    if len(search.draws.theta) == 1:
        notes.append(f"{search.law.name} has no draws: the runs reduce only its smooth error")
    if len(seen) and search.law.source.startswith("fitted to"):
        notes.append("a law that was fitted to these runs counts them twice: give one of the two")
    return tuple(notes)


def _greedy(
    process: GaussianProcess, decision: Decision, flops: FloatArray, limits: SweepLimits, held: BoolArray
) -> dict[int, float]:
    """The candidates (c,) that are chosen besides those `held`, in order, each with the share of the doubt that it leaves."""
    prices, closed = _prices(process, decision), held.copy()
    first, power = float(np.sqrt(process.variance) @ prices), 0.0 if limits.few else FLOPS_POWER
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


def _as_run(run: Runs, flops: float, doubt_left: float, limits: SweepLimits) -> DesignedRun:
    """A chosen candidate, with the batch and learning rate of its size and tokens.

    Below the FLOPs that the rule was fitted to the rate is that of its smallest run: extrapolated to 1e10 FLOPs, 0.017 trained
    larger models of a small study to worse losses.
    """
    n, tokens = float(run.n_params[0]), float(run.tokens[0])
    return DesignedRun(
        n_params=n,
        tokens=tokens,
        experts=int(run.experts[0]),
        flops=flops,
        batch_tokens=recipe_for(n, tokens, flops=flops, sequence_tokens=limits.sequence_tokens).batch_tokens,
        peak_lr=recipe_for(n, tokens, flops=max(find_rule(None).fitted["flops"][0], flops)).peak_lr,
        doubt_left=doubt_left,
    )

"""A recommendation in words: why this model, and what could make it wrong."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from moescale.errors import MoescaleError
from moescale.io.records import record
from moescale.models.coordinates import expansion
from moescale.models.family import law_size
from moescale.models.rounding import Buildable
from moescale.planning.allocation import loss_optimal
from moescale.planning.candidate import Candidate, Life, Trained
from moescale.planning.known import varied_expansion
from moescale.planning.search import Search, fitted_up_to
from moescale.scaling_laws.ensemble import measured_on
from moescale.scaling_laws.law import INPUT_NAMES, Law, extrapolation, unknown_ranges
from moescale.serving.deployment import slow_for_use
from moescale.typing import FloatArray
from moescale.units import format_count, format_flops, format_usd, plural

EXTRAPOLATED = "Extrapolated: "  # how the caveat of a model beyond the runs of its law begins
SETTLED = 0.8  # of the draws lie between the expert counts that are called undecided: what a plan promises by default
DECIDES = 0.5  # share of draws, or certainty, from which one expert count is more likely the cheapest than not
MOST_SWEEP = 0.1  # of a plan's FLOPs, of a sweep that is offered for it: our own; a larger one costs what it informs
TINY = 1e-9
MOST_COMPUTE, NEAR_COMPUTE, MOST_STEPS = 1e3, 1e-3, 12  # times a budget, either way; of its logarithm; steps
FLAT = 1.001  # of a loss: as good

Model = TypeVar("Model", bound=Candidate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation(Generic[Model]):
    """The model to train, why, and what could make it wrong."""

    model: Model
    rule: str
    why: str
    caveats: tuple[str, ...]
    architecture: Buildable
    expansion: float | None = None  # FFN weights of all experts over those that a token meets
    undecided: str | None = None  # between which expert counts, and what separates them
    likeliest: float | None = None  # share of the draws under which its expert count is the cheapest, or as cheap
    compute_ratio: float | None = None  # FLOPs with which the baseline's expert count reaches this loss, over its own
    rivals: tuple[Model, ...] = ()  # the models of the other expert counts that are open, as built
    # How many times each input is the largest, or below 1 the smallest, that the law was fitted to; only those beyond.
    over_fitted: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, object]:
        """The model's record with the reasons beside it."""
        return self.model.to_dict() | record(self, without=("model",) if self.rivals else ("model", "rivals"))


def why(search: Search, model: Candidate, rule: str, base: Trained) -> str:
    """The recommendation in words, with its numbers, against a base."""
    optimum = search.optima[search.question.experts.index(model.experts)]
    share = model.n_params / optimum.n_params
    served = f"{format_usd(model.usd_per_mtok)} per million output tokens on {plural(model.gpus, 'GPU')}"
    if base.usd_per_mtok is not None and model.experts != base.experts:
        served += f", {model.usd_per_mtok / base.usd_per_mtok:.0%} of the cost of {search.question.base_name}"
    sizes = f"{format_count(model.n_params_active)} active of {format_count(model.n_params_total)} parameters"
    sizes = f"{format_count(model.n_params_total)} parameters" if model.experts == 1 else sizes
    return (
        f"{rule[0].upper()}{rule[1:]}: {plural(model.experts, 'expert')}, {sizes} (N = {format_count(model.n_params)}, {share:.0%} of the loss-optimal N "
        f"at this expert count), {format_count(model.tokens)} tokens, loss {model.loss:.4f}. Serving costs {served}."
    )


def compute_ratio(search: Search, model: Candidate) -> float | None:
    """How many times the baseline's training FLOPs loss-optimal models of its expert count need for a model's loss.

    None beyond MOST_COMPUTE times the budget, or where more of it lowers the loss no further.
    """
    law, budget, experts = search.law, search.question.base_budget, search.base_model.experts
    own = float(np.max(budget.flops_at(experts)))

    def above(ln_times: float, loss: float) -> float:
        found = loss_optimal(law, replace(budget, flops=own * math.exp(ln_times), by_experts=()), experts)
        return math.log(float(found.loss[0]) / loss)

    def needed(loss: float) -> float:  # the secant method: the logarithm of a loss is smooth in that of FLOPs
        last, missed = 0.0, above(0.0, loss)
        at = math.copysign(0.5, missed)
        missing = above(at, loss)
        for _ in range(MOST_STEPS):
            if missing == missed or abs(at) > math.log(MOST_COMPUTE):
                break
            last, at, missed = at, at - missing * (at - last) / (missing - missed), missing
            if abs(at - last) < NEAR_COMPUTE:
                return at
            missing = above(at, loss)
        return math.inf

    try:
        ln_times = needed(model.loss) - (0.0 if search.question.base is None else needed(search.base.loss))
    except MoescaleError:  # so many FLOPs have no optimum
        return None
    return math.exp(ln_times) if math.isfinite(ln_times) else None


def open_counts(search: Search, shares: FloatArray, chosen: Model, rows: Sequence[Model]) -> list[Model]:
    """The models of other expert counts between which a law of sources leaves the choice: the ends hold SETTLED of the draws.

    `shares` (m,) are those of the draws under which each count is best; `rows` are the models of the counts as built.
    """
    if not search.law.form.of_sources or not shares.any():
        return []
    below, counts = np.cumsum(shares), search.best.experts
    tail = (1.0 - SETTLED) / 2.0
    low, high = (float(counts[int((below >= level - TINY).argmax())]) for level in (tail, 1.0 - tail))
    ends = min(low, chosen.experts), max(high, chosen.experts)
    return [c for c in rows if c.experts != chosen.experts and ends[0] <= c.experts <= ends[1]]


def undecided(search: Search, model: Candidate, rivals: Sequence[Candidate]) -> str | None:
    """Between which expert counts the choice is open, and what separates them as built; None where it is made."""
    if not rivals:
        return None
    first, *_, last = sorted((model, *rivals), key=lambda c: c.experts)
    usd = [
        f"{format_usd(c.total_usd)} in all" if isinstance(c, Life) else f"{format_usd(c.usd_per_mtok)}/Mtok"
        for c in (first, last)
    ]
    counts = search.best.experts
    most = float(counts[search.law.allows(counts)].max())
    return (
        f"undecided between {first.experts:g} and {last.experts:g} ({SETTLED:.0%} of draws): {usd[0]} "
        f"against {usd[1]}, loss {first.loss:.4f} against {last.loss:.4f}"
        f"{f'; {search.law.name} speaks no further' if last.experts == most else ''}"
    )


def caveats(search: Search, model: Candidate, notes: Sequence[str]) -> tuple[str, ...]:
    """What could change the decision, the worst first: a server too slow to be used, `notes`, and how far the law reaches."""
    law, left_out = search.law, ()
    if excluded := [e for e in search.question.experts if not law.allows(e)]:
        listed = ", ".join(f"{e:g}" for e in excluded)
        reached = ", ".join(f"{float(expansion(law.family, e)):.3g}" for e in excluded)
        left_out = (f"Excluded: {listed} experts (X = {reached}). {law.name} {fitted_up_to(law)}.",)
    slow = slow_for_use(search.costs.deployment, model.ttft_s, model.tpot_s)
    return (*slow, *notes, *left_out, *_extrapolated(search, model), *_conditions(search))


def lifetime_why(model: Life, rule: str, hours: str) -> str:
    """The recommendation of a lifetime plan in words."""
    return (
        f"{rule[0].upper()}{rule[1:]}: {plural(model.experts, 'expert')}, N = {format_count(model.n_params)}, "
        f"{format_count(model.tokens)} tokens, loss {model.loss:.4f}. Training: {format_flops(model.training_flops)} "
        f"FLOPs, {hours}, {format_usd(model.training_usd)}. Serving: {format_usd(model.serving_usd)} at "
        f"{format_usd(model.usd_per_mtok)} per million output tokens on {plural(model.gpus, 'GPU')}. "
        f"Total: {format_usd(model.total_usd)}, {model.training_usd / model.total_usd:.0%} for training."
    )


def unknown_range_notes(law: Law) -> list[str]:
    """Inputs of a law whose fitted range is unknown."""
    unknown = [INPUT_NAMES.get(name, name) for name in unknown_ranges(law)]
    if not unknown:
        return []
    listed = " and ".join(filter(None, (", ".join(unknown[:-1]), unknown[-1])))
    return [f"{law.name}: the fitted range of {listed} is unknown, and so is the extrapolation."]


def beyond_runs(caveats: Sequence[str]) -> str:
    """How far a model lies beyond the runs that its law was fitted to, of its caveats; empty inside them."""
    return next((note.removeprefix(EXTRAPOLATED).rstrip(".") for note in caveats if note.startswith(EXTRAPOLATED)), "")


def _extrapolated(search: Search, model: Candidate) -> list[str]:
    law, base = search.law, search.base
    listed, (x, varied) = _factor_words(search, model), varied_expansion(law, model.experts)
    if x > varied:
        listed.insert(0, f"{model.experts:g} experts (X {x:.3g}; labs varied sizes up to X {varied:g})")
    of_base = [each for each in _factor_words(search, base) if each not in listed]
    listed += [f"for the baseline {of_base[0]}", *of_base[1:]] if of_base else []
    least, most = law.fit_range.get("experts", (1.0, 1.0))
    if search.question.base is None and base.experts < least * (1.0 - 1e-6) and least < most:
        listed.append(f"the baseline, of fewer experts than were fitted ({least:g} to {most:g})")
    return ([f"{EXTRAPOLATED}{', '.join(listed)}."] if listed else []) + unknown_range_notes(law)


def over_fitted(search: Search, model: Trained) -> dict[str, float] | None:
    """How many times each input of a model is the largest, or below 1 the smallest, that the law was fitted to; None where none is beyond."""
    law, implied = search.law, search.law.form.implied_inputs
    size = float(law_size(law.family, model.n_params, model.experts))
    further = implied(np.array(model.experts), law.family.top_k) if implied else {}
    further = {**further, **search.question.budget.extra, "training_flops": model.training_flops}
    found = extrapolation(law, size, model.tokens, model.experts, further)
    if law.form.of_sources and "experts" in found:  # which speaks of X
        own, end = (float(expansion(law.family, e)) for e in (model.experts, model.experts / found["experts"]))
        found["experts"] = own / end
    return found or None


def _factor_words(search: Search, model: Trained) -> list[str]:
    law = search.law
    size = float(law_size(law.family, model.n_params, model.experts))
    words = INPUT_NAMES | {name: name.replace("_", " ") for name in law.form.extra_inputs}
    if law.form.of_sources:
        words["experts"] = "X"
    if law.family.n_counts == "dense" and not math.isclose(size, model.n_params_active, rel_tol=1e-3):
        # The plan prints active parameters, and `fit` the sizes of the runs in their own shape.
        most = format_count(law.fit_range["n_params"][1]) if "n_params" in law.fit_range else "?"
        words["n_params"] = f"dense-equivalent N ({format_count(size)}; runs to {most} in this shape)"
    return [
        f"{words[name]} {factor:{',.0f' if factor >= 999.5 else '.3g'}} times the "
        f"{'largest' if factor > 1 else 'smallest'} fitted"
        for name, factor in (over_fitted(search, model) or {}).items()
    ]


def _conditions(search: Search) -> list[str]:
    notes: list[str] = []
    law = search.law
    if law.family.expert_width < 1.0 and "granularity" not in law.form.extra_inputs:
        narrow = "No law was fitted on experts narrower than a dense FFN"
        notes.append(f"{narrow}: such experts are judged by their expansion X alone.")
    if search.question.max_loss is not None:
        data = " and ".join(dict.fromkeys(filter(None, (family.dataset for family in measured_on(law)))))
        notes.append(
            f"--max-loss is in the units of {law.name} ({data or 'its dataset'}, nats per token of its tokenizer): "
            "calibrate the law to your runs before you rely on it."
        )
    if not law.family.embedding_matrices:
        notes.append("Sizes exclude embeddings, as the law does; serving cost includes them.")
    return notes

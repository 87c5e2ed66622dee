"""A recommendation in words: why this model, and what could make it wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np

from moescale.errors import MoescaleError
from moescale.io.records import record
from moescale.models.coordinates import expansion
from moescale.models.family import law_size
from moescale.models.rounding import Buildable
from moescale.planning.allocation import loss_optimal
from moescale.planning.candidate import Candidate, Life, Row, Trained
from moescale.planning.decision import LawView
from moescale.planning.known import varied_expansion
from moescale.planning.search import Search, fitted_up_to
from moescale.scaling_laws.ensemble import measured_on
from moescale.scaling_laws.law import INPUT_NAMES, Law, extrapolation, unknown_ranges
from moescale.serving.deployment import slow_for_use
from moescale.typing import FloatArray
from moescale.units import expert_model, format_count, format_flops, format_usd, plural

EXTRAPOLATED = "Extrapolated: "  # how the caveat of a model beyond the runs of its law begins
NEARLY = 0.05  # of a cost: rivals within it are named
SETTLED = 0.8  # of the draws lie between the expert counts that are called undecided: what a plan promises by default
DECIDES = 0.5  # share of draws, or certainty, from which one expert count is more likely the cheapest than not
MOST_SWEEP = (
    0.1  # of a plan's FLOPs, of a sweep that is offered for it: our own; a larger one would cost what it informs
)
TINY = 1e-9
MOST_COMPUTE, NEAR_COMPUTE, MOST_STEPS = (
    1e3,
    1e-3,
    12,
)  # times a budget, either way; the last step of its logarithm; steps
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
    likeliest: float | None = (
        None  # of the expert counts: share of the draws under which it is the cheapest, or as cheap
    )
    compute_ratio: float | None = (
        None  # FLOPs with which models of the baseline's experts reach this loss, over its own
    )
    rivals: tuple[Model, ...] = ()  # the models of the other expert counts that are open, as built
    # How many times each input is the largest, or below 1 the smallest, that the law was fitted to; only those beyond.
    over_fitted: Mapping[str, float] | None = None

    def to_dict(self) -> dict[str, object]:
        """The model's record with the reasons beside it."""
        told = self.model.to_dict() | record(self, without=("model", "rivals"))
        return told | ({"rivals": [each.to_dict() for each in self.rivals]} if self.rivals else {})


def why(search: Search, model: Candidate, rule: str, base: Trained) -> str:
    """The recommendation in words, with its numbers, against a base."""
    share = model.n_params / search.loss_optimal(model.experts).n_params
    served = f"{format_usd(model.usd_per_mtok)} per million output tokens on {plural(model.gpus, 'GPU')}"
    if base.usd_per_mtok is not None and model.experts != base.experts:
        served += f", {model.usd_per_mtok / base.usd_per_mtok:.0%} of the cost of {search.question.base_name}"
    sizes = f"{format_count(model.n_params_active)} active of {format_count(model.n_params_total)} parameters"
    sizes = f"{format_count(model.n_params_total)} parameters" if model.experts == 1 else sizes
    return (
        f"{_sentence(rule)}: {plural(model.experts, 'expert')}, {sizes} (N = {format_count(model.n_params)}, {share:.0%} of the loss-optimal N "
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
    every = sorted((model, *rivals), key=lambda c: c.experts)
    first, last = every[0], every[-1]
    usd = [
        f"{format_usd(c.total_usd)} in all" if isinstance(c, Life) else f"{format_usd(c.usd_per_mtok)}/Mtok"
        for c in (first, last)
    ]
    text = (
        f"undecided between {first.experts:g} and {last.experts:g} ({SETTLED:.0%} of draws): {usd[0]} "
        f"against {usd[1]}, loss {first.loss:.4f} against {last.loss:.4f}"
    )
    counts = search.best.experts
    most = float(counts[search.law.allows(counts)].max())
    return f"{text}; {search.law.name} speaks no further" if last.experts == most else text


def caveats(search: Search, model: Candidate, rows: Sequence[Row], laws: Sequence[LawView]) -> list[str]:
    """What could change the decision, the worst first; `rows` are the models that it was chosen from, as built where they are."""
    question = search.question
    notes = _unlimited(search, model) + _doubting(model, [view for view in laws if view.weight > 0.0])
    served = [c for c in rows if isinstance(c, Candidate)]
    price: Callable[[Candidate], float] | None = None if question.budget_goal in ("quality", "loss") else _usd_per_mtok
    notes += _rivals(search.law, model, served, "cost", price)
    notes += _excluded(search, model, served, price)
    return notes + _extrapolated(search, model) + _conditions(search)


def slow(search: Search, model: Candidate) -> list[str]:
    """A server whose latencies are of little use, where no limit was stated."""
    return slow_for_use(search.costs.deployment, model.ttft_s, model.tpot_s)


def _usd_per_mtok(model: Candidate) -> float:
    return model.usd_per_mtok


def _unlimited(search: Search, model: Candidate) -> list[str]:
    """A batch that memory alone limits, where a server as it comes would take a smaller one."""
    deployment = search.costs.deployment
    usual = deployment.gpu.default_max_num_seqs
    if float(deployment.batch_cap) < math.inf or model.batch is None or model.batch <= usual:
        return []
    return [
        f"The price assumes {model.batch:,.0f} concurrent requests per replica; vLLM's default on {deployment.gpu.name} is {usual:g}."
    ]


def _doubting(model: Candidate, laws: Sequence[LawView]) -> list[str]:
    """Laws under which the model probably has a higher loss than the baseline."""
    doubting = [view for view in laws if view.probability < 0.5]
    if not doubting:
        return []
    listed = ", ".join(f"{view.law} ({view.probability:.0%})" for view in doubting)
    larger = [
        f"{view.law} would choose {format_count(view.n_params_active)} active"
        for view in doubting
        if view.n_params is not None and view.n_params_active is not None and view.n_params > model.n_params
    ]
    return [f"Loss probably above the baseline's under {listed}{''.join(f'; {part}' for part in larger)}."]


def lifetime_why(search: Search, model: Life, rule: str, hours: str, base: Life | None) -> str:
    """The recommendation of a lifetime plan in words.

    `base` takes the least training for the same loss. Between draws the dollars vary at a target loss, the loss within
    total dollars.
    """
    parts = [
        f"{_sentence(rule)}: {plural(model.experts, 'expert')}, N = {format_count(model.n_params)}, "
        f"{format_count(model.tokens)} tokens, loss {model.loss:.4f}. Training: {format_flops(model.training_flops)} "
        f"FLOPs, {hours}, {format_usd(model.training_usd)}. Serving: {format_usd(model.serving_usd)} at "
        f"{format_usd(model.usd_per_mtok)} per million output tokens on {plural(model.gpus, 'GPU')}. "
        f"Total: {format_usd(model.total_usd)}, {model.training_usd / model.total_usd:.0%} for training."
    ]
    within = search.question.total_limit is not None
    spread = (model.intervals or {}).get("loss" if within else "total_usd")
    if spread and within:
        parts.append(f"90% interval over the law's draws: loss {spread[0]:.4f} to {spread[1]:.4f}.")
    elif spread:
        parts.append(f"90% interval over the law's draws: {format_usd(spread[0])} to {format_usd(spread[1])} in total.")
    if base is not None and base.n_params != model.n_params:
        named = search.question.base
        least = f"the {expert_model(base.experts)} with the least training for the same loss"
        parts.append(
            f"That is {model.total_usd / base.total_usd:.0%} of the total of {least if named is None else named.name} "
            f"(N = {format_count(base.n_params)}, {format_usd(base.total_usd)})."
        )
    return " ".join(parts)


def lifetime_caveats(search: Search, model: Life, rows: Sequence[Row]) -> list[str]:
    """What could make the recommendation of a lifetime plan wrong."""
    notes: list[str] = []
    training = search.question.training
    known = [c for c in rows if isinstance(c, Life)]
    within = search.question.total_limit is not None
    notes += _rivals(search.law, model, known, "dollars", None if within else lambda c: c.total_usd)
    notes += _excluded(search, model, known, None if within else lambda c: c.total_usd)
    if training is not None and training.rate is None:
        assumed = " assumed," if training.timed else ""
        priced = f"Training is priced at MFU {training.mfu:g}{assumed} for every size and expert count"
        notes.append(f"{priced}; MoE runs often reach a lower MFU (--mfu).")
    return notes + _extrapolated(search, model) + _conditions(search)


def no_interval_words(law: Law) -> str:
    """Why a plan has no intervals, and on how many runs its law rests where that is few."""
    runs, count = law.evidence.get("n_runs"), len(law.form.parameters)
    parts = [f"{law.name} carries no draws, so this plan has no intervals"]
    if isinstance(runs, int):
        parts.append(f"its {count} parameters were fitted to {runs} runs only" if runs <= count else "")
        parts.append("for intervals, fit it with --bootstrap")
    return "; ".join(filter(None, parts))


def unknown_range_notes(law: Law) -> list[str]:
    """Inputs of a law whose fitted range is unknown."""
    unknown = [INPUT_NAMES.get(name, name) for name in unknown_ranges(law)]
    if not unknown:
        return []
    listed = " and ".join(filter(None, (", ".join(unknown[:-1]), unknown[-1])))
    return [f"{law.name}: the fitted range of {listed} is unknown, and so is the extrapolation."]


def _sentence(rule: str) -> str:
    return rule[0].upper() + rule[1:]


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
    further = {
        **(implied(np.array(model.experts), law.family.top_k) if implied else {}),
        **search.question.budget.extra,
    }
    further["training_flops"] = model.training_flops
    found = extrapolation(law, size, model.tokens, model.experts, further)
    if law.form.of_sources and "experts" in found:  # which speaks of X
        own, end = (float(expansion(law.family, e)) for e in (model.experts, model.experts / found["experts"]))
        found["experts"] = own / end
    return found or None


def _factor_words(search: Search, model: Trained) -> list[str]:
    law = search.law
    size = float(law_size(law.family, model.n_params, model.experts))
    words = (
        INPUT_NAMES
        | ({"experts": "X"} if law.form.of_sources else {})
        | {name: name.replace("_", " ") for name in law.form.extra_inputs}
    )
    if law.family.n_counts == "dense" and not math.isclose(size, model.n_params_active, rel_tol=1e-3):
        # The plan prints active parameters, and `fit` the sizes of the runs in their own shape.
        most = format_count(law.fit_range["n_params"][1]) if "n_params" in law.fit_range else "?"
        words["n_params"] = f"dense-equivalent N ({format_count(size)}; runs to {most} in this shape)"
    return [
        f"{words[name]} {factor:{',.0f' if factor >= 999.5 else '.3g'}} times the "
        f"{'largest' if factor > 1 else 'smallest'} fitted"
        for name, factor in (over_fitted(search, model) or {}).items()
    ]


def _rivals(
    law: Law, model: Model, rows: Sequence[Model], what: str, cost: Callable[[Model], float] | None
) -> list[str]:
    """Models of other expert counts that cost hardly more or, without a `cost`, whose loss is hardly higher."""
    rivals = [c for c in rows if c.experts != model.experts and law.allows(c.experts)]
    if cost is None:
        close = [f"{c.experts:g} experts (loss {c.loss:.4f})" for c in rivals if c.loss <= FLAT * model.loss]
        return [f"Loss within 0.1% of the recommended model's: {', '.join(close)}."] if close else []
    dearer = {c.experts: cost(c) / cost(model) - 1.0 for c in rivals}
    close = [f"{expert_model(e)} ({more:+.1%})" for e, more in dearer.items() if abs(more) <= NEARLY]
    less = [f"{expert_model(e)} ({more:+.1%})" for e, more in dearer.items() if more < -NEARLY]
    notes = [f"Within {NEARLY:.0%} of the recommended model's {what}: {', '.join(close)}."] if close else []
    return [*notes, *([f"Of lower {what}, but of more expected regret: {', '.join(less)}."] if less else [])]


def _excluded(search: Search, model: Model, rows: Sequence[Model], cost: Callable[[Model], float] | None) -> list[str]:
    """Expert counts beyond the largest that the law allows, and their predicted saving."""
    law = search.law
    beyond = [c for c in rows if not law.allows(c.experts)]
    left_out = [e for e in search.question.experts if not law.allows(e)]
    if not left_out:
        return []
    looks = ""
    if cost is not None and any(cost(c) < cost(model) for c in beyond):
        best = min(beyond, key=cost)
        which = "" if len(left_out) == 1 else f"{best.experts:g} experts "
        looks = f", {which}{1.0 - cost(best) / cost(model):.0%} cheaper by extrapolation"
    listed = ", ".join(f"{e:g}" for e in left_out)
    reached = ", ".join(f"{float(expansion(law.family, e)):.3g}" for e in left_out)
    return [f"Excluded: {listed} experts (X = {reached}){looks}. {law.name} {fitted_up_to(law)}."]


def _conditions(search: Search) -> list[str]:
    notes: list[str] = []
    law, laws = search.law, len(search.law.members)
    if search.confidence is not None and laws > 1 and search.confidence > laws / (laws + 1):
        notes.append(
            f"{laws} laws cannot support a probability of {search.confidence:.0%}: one more law would demand more than all of "
            f"them with probability 1/{laws + 1}. Read it as {laws / (laws + 1):.0%} at most."
        )
    if law.family.expert_width < 1.0 and "granularity" not in law.form.extra_inputs:
        notes.append(
            "No law was fitted on experts narrower than a dense FFN: such experts are judged by their expansion X alone."
        )
    if search.question.max_loss is not None:
        data = " and ".join(dict.fromkeys(filter(None, (family.dataset for family in measured_on(law)))))
        notes.append(
            f"--max-loss is in the units of {law.name} ({data or 'its dataset'}, nats per token of its tokenizer): "
            "calibrate the law to your runs before you rely on it."
        )
    if not law.family.embedding_matrices:
        notes.append("Sizes exclude embeddings, as the law does; serving cost includes them.")
    return notes

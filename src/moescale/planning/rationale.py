"""A recommendation in words: why this model, and what could make it wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

import numpy as np

from moescale.models.family import law_size
from moescale.models.rounding import Buildable
from moescale.planning.allocation import Budget, at_size
from moescale.planning.candidate import Candidate
from moescale.planning.total_cost import NEAR_EQUAL
from moescale.scaling_laws.law import INPUT_NAMES, Law, extrapolation, unknown_ranges
from moescale.units import format_count, format_flops, format_usd

SPENT = 0.99  # of a budget: a plan that uses less says so


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingUse:
    """What training the recommended model takes; dollars and days where the GPU to train on is known."""

    flops_used: float
    tokens_per_active_param: float
    budget_share: float  # of the budget's FLOPs
    unused_because: str | None = None  # what bounds the training, where the budget is not spent
    train_gpu: str | None = None
    mfu: float | None = None
    gpu_days: float | None = None
    usd: float | None = None

    @property
    def spent(self) -> bool:
        """Whether training uses the budget, but for rounding."""
        return self.budget_share >= SPENT

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in record.items() if value is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The model to train, why, and what could make it wrong."""

    model: Candidate
    rule: str
    why: str
    caveats: tuple[str, ...]
    architecture: Buildable

    def to_dict(self) -> dict[str, object]:
        """The model's record with the reasons beside it."""
        return {
            **self.model.to_dict(),
            "rule": self.rule,
            "why": self.why,
            "caveats": list(self.caveats),
            "architecture": self.architecture.to_dict(),
        }


def named(count: float) -> str:
    return "dense model" if count == 1 else f"{count:g}-expert model"


def why(model: Candidate, rule: str, base: Candidate, bounded_cost: list[Candidate], law: Law, own: Candidate) -> str:
    """The recommendation in words, with its numbers."""
    size, tokens = format_count(model.n_params or 0.0), format_count(model.tokens or 0.0)
    share = (model.n_params or 0.0) / (own.n_params or math.inf)
    parts = [
        f"{rule[0].upper()}{rule[1:]}: {model.experts:g} expert{'s' if model.experts != 1 else ''} at {size} "
        f"(dense-equivalent; {share:.0%} of that expert count's own loss-optimal size), trained on {tokens} tokens, "
        f"loss {model.loss:.4f}, {format_usd(model.usd_per_mtok or 0.0)} a million tokens on {model.gpus} GPU"
        f"{'s' if model.gpus != 1 else ''}."
    ]
    if base.usd_per_mtok and model.usd_per_mtok and model.experts != base.experts:
        text = f"That is {model.usd_per_mtok / base.usd_per_mtok:.0%} of what the loss-optimal {named(base.experts)} costs to serve"
        spread = (model.intervals or {}).get("cost_ratio")
        text += f" (90% of the law's draws: {spread[0]:.0%} to {spread[1]:.0%})." if spread else "."
        parts.append(text)
    ceiling = law.max_experts or math.inf
    better = [c for c in bounded_cost if c.loss is not None and c.usd_per_mtok is not None and c.experts <= ceiling]
    if better and base.usd_per_mtok:
        best = min(better, key=lambda c: c.loss or math.inf)
        if best.loss is not None and base.loss is not None and best.loss < base.loss - 1e-9:
            parts.append(
                f"If quality matters more: {best.experts:g} expert{'s' if best.experts != 1 else ''} at {format_count(best.n_params or 0.0)} reach{'es' if best.experts == 1 else ''} "
                f"{best.loss:.4f} at the cost of the loss-optimal {named(base.experts)} ({base.loss:.4f})."
            )
    return " ".join(parts)


def training_words(use: TrainingUse, budget_flops: float) -> str:
    """What training takes: share of the budget, tokens per active parameter, days and dollars, and what is left over."""
    parts = [
        "the whole budget"
        if use.spent
        else f"{format_flops(use.flops_used)} of {format_flops(budget_flops)} FLOPs ({use.budget_share:.0%})",
        f"{format_count(use.tokens_per_active_param)} tokens per active parameter",
    ]
    if use.gpu_days is not None and use.usd is not None:
        parts.append(
            f"{format_count(use.gpu_days)} GPU days of {use.train_gpu} at an MFU of {use.mfu:g}, {format_usd(use.usd)}"
        )
    text = f"Training uses {', '.join(parts)}."
    if use.spent:
        return text
    why_left = f": {use.unused_because}" if use.unused_because else ""
    return f"{text} {1.0 - use.budget_share:.0%} of the budget stays unused{why_left}."


def caveats(
    law: Law,
    budget: Budget,
    model: Candidate,
    records: list[Candidate],
    own: Candidate,
    *,
    loss_bound: bool,
    cost_bound: bool,
    memory_limited: bool,
) -> list[str]:
    """What could make the recommendation wrong."""
    notes = _extrapolated(law, model, budget.extra)
    if own.n_params and own.loss:
        e = np.array([model.experts])
        shares = np.linspace(0.05, 1.0, 400)
        curve = at_size(law, budget, shares * own.n_params, np.repeat(e, shares.size)).loss
        flat = shares[curve <= own.loss * 1.001]
        if flat.size:
            notes.append(
                f"The optimum is flat: from {flat[0]:.0%} of the loss-optimal size on, the loss is within 0.1% of the best."
            )
    ceiling = law.max_experts or math.inf
    rivals = [c for c in records if c.experts != model.experts and c.experts <= ceiling and c.usd_per_mtok and c.loss]
    if cost_bound:
        close = [
            f"{c.experts:g} experts (loss {c.loss:.4f})" for c in rivals if (c.loss or 0) <= 1.001 * (model.loss or 0)
        ]
        notes += [f"As good within 0.1% of the loss: {', '.join(close)}."] if close else []
    else:
        dearer = {c.experts: (c.usd_per_mtok or 0.0) / (model.usd_per_mtok or 1.0) - 1.0 for c in rivals}
        close = [f"{e:g} experts ({more:+.1%})" for e, more in dearer.items() if more <= 0.05]
        notes += [f"As good within 5% of the cost: {', '.join(close)}."] if close else []
    notes += _beyond(law, records, lambda c: c.usd_per_mtok, model)
    return notes + _conditions(law, loss_bound=loss_bound, memory_limited=memory_limited)


def lifetime_why(
    model: Candidate,
    rule: str,
    hours: float,
    training_gpu: str,
    base: Candidate | None,
    share: float | None,
    *,
    at_loss: bool,
) -> str:
    """The recommendation of a lifetime plan in words; `share` of the law's draws in which its expert count is the choice.

    `at_loss` tells a target loss, at which dollars vary between draws, from total dollars, at which the loss does.
    """
    size, tokens = format_count(model.n_params or 0.0), format_count(model.tokens or 0.0)
    training, total = model.training_usd or 0.0, model.total_usd or 0.0
    parts = [
        f"{rule[0].upper()}{rule[1:]}: {model.experts:g} expert{'s' if model.experts != 1 else ''} at {size} on {tokens} "
        f"tokens, loss {model.loss:.4f}. Training takes {format_flops(model.training_flops or 0.0)} FLOPs, "
        f"{format_count(hours)} hours of {training_gpu}, {format_usd(training)}; serving {format_usd(model.serving_usd or 0.0)} "
        f"at {format_usd(model.usd_per_mtok or 0.0)} a million tokens on {model.gpus} GPU{'s' if model.gpus != 1 else ''}: "
        f"{format_usd(total)} in all, {training / total:.0%} of it training."
    ]
    spread = (model.intervals or {}).get("total_usd" if at_loss else "loss")
    if spread and at_loss:
        parts.append(f"90% of the law's draws: {format_usd(spread[0])} to {format_usd(spread[1])} in all.")
    elif spread:
        parts.append(f"90% of the law's draws: loss {spread[0]:.4f} to {spread[1]:.4f}.")
    if base is not None and base.total_usd and base.n_params != model.n_params:
        parts.append(
            f"The {named(base.experts)} that takes the least training for the same loss ({format_count(base.n_params or 0.0)}) "
            f"would cost {format_usd(base.total_usd)}: this one is {total / base.total_usd:.0%} of it."
        )
    if share is not None:
        parts.append(f"{model.experts:g} experts are the best in {share:.0%} of the law's draws.")
    return " ".join(parts)


def lifetime_caveats(
    law: Law,
    model: Candidate,
    records: list[Candidate],
    mfu: float,
    extra: Mapping[str, float],
    *,
    at_loss: bool,
    loss_bound: bool,
    memory_limited: bool,
    dearer: Mapping[float, float],
) -> list[str]:
    """What could make the recommendation of a lifetime plan wrong; `at_loss` tells a target loss from total dollars.

    `dearer` holds the expert counts that are shown at another size than their cheapest, and by what share they cost more.
    """
    notes = _extrapolated(law, model, extra)
    if dearer:
        listed = ", ".join(f"{e:g} experts ({share:+.1%})" for e, share in dearer.items())
        notes.append(
            f"Not at the cheapest size: {listed}. GPU counts come in steps, so sizes apart cost the same within "
            f"{NEAR_EQUAL:.0%}; shown are those whose training tokens change least from one expert count to the next."
        )
    ceiling = law.max_experts or math.inf
    rivals = [c for c in records if c.experts != model.experts and c.experts <= ceiling and c.total_usd]
    if at_loss:
        more = {c.experts: (c.total_usd or 0.0) / (model.total_usd or 1.0) - 1.0 for c in rivals}
        close = [f"{e:g} experts ({share:+.1%})" for e, share in more.items() if share <= 0.05]
        notes += [f"As good within 5% of the dollars: {', '.join(close)}."] if close else []
        notes += _beyond(law, records, lambda c: c.total_usd, model)
    else:
        close = [
            f"{c.experts:g} experts (loss {c.loss:.4f})" for c in rivals if (c.loss or 0) <= 1.001 * (model.loss or 0)
        ]
        notes += [f"As good within 0.1% of the loss: {', '.join(close)}."] if close else []
    notes.append(
        f"Training is priced at an MFU of {mfu:g} for every size and expert count; MoE runs often reach less (--mfu)."
    )
    return notes + _conditions(law, loss_bound=loss_bound, memory_limited=memory_limited)


def _extrapolated(law: Law, model: Candidate, extra: Mapping[str, float]) -> list[str]:
    size = float(law_size(law.family, model.n_params or 1.0, model.experts))
    implied = law.form.implied_inputs
    further = {**(implied(np.array(model.experts), law.family.top_k) if implied else {}), **extra}
    further["training_flops"] = model.training_flops or 1.0
    far = extrapolation(law, size, model.tokens or 1.0, model.experts, further)
    words = INPUT_NAMES | {name: name for name in law.form.extra_inputs}
    listed = ", ".join(
        f"{words[name]} at {factor:{',.0f' if factor >= 999.5 else '.3g'}} times the "
        f"{'largest' if factor > 1 else 'smallest'} fitted"
        for name, factor in far.items()
    )
    return ([f"Extrapolated: {listed}."] if far else []) + unknown_range_notes(law)


def no_interval_words(law: Law) -> str:
    """Why a plan has no intervals, and on how many runs its law rests where that is few."""
    runs, count = law.evidence.get("n_runs"), len(law.form.parameters)
    prior = law.evidence.get("prior")
    parts = [f"{law.name} carries no draws, so this plan has no intervals"]
    if prior:
        parts.append(f"it was calibrated from {prior} on {runs} runs, for {count} parameters")
    elif isinstance(runs, int):
        parts.append(f"it was fitted to {runs} runs for {count} parameters" if runs <= count else "")
        parts.append("fit it with --bootstrap to have them")
    return "; ".join(filter(None, parts))


def unknown_range_notes(law: Law) -> list[str]:
    """What a law leaves unsaid about the range that it was fitted on."""
    unknown = [INPUT_NAMES.get(name, name) for name in unknown_ranges(law)]
    if not unknown:
        return []
    listed = " and ".join((", ".join(unknown[:-1]), unknown[-1])) if len(unknown) > 1 else unknown[0]
    return [f"{law.name} has no known fitted range of {listed}: how far this extrapolates is unknown."]


def _beyond(
    law: Law, records: list[Candidate], cost: Callable[[Candidate], float | None], model: Candidate
) -> list[str]:
    """Expert counts beyond those that the law may speak of, where they look cheaper."""
    ceiling, limit = law.max_experts or math.inf, cost(model) or 0.0
    beyond = [c for c in records if c.experts > ceiling and (cost(c) or math.inf) < limit]
    if not beyond:
        return []
    return [
        f"{', '.join(f'{c.experts:g}' for c in beyond)} experts look cheaper still, but the law was fitted up to "
        f"{law.max_experts:g} experts and is not trusted beyond."
    ]


def _conditions(law: Law, *, loss_bound: bool, memory_limited: bool) -> list[str]:
    notes: list[str] = []
    if loss_bound:
        notes.append(
            f"--max-loss is in the units of {law.name} ({law.family.dataset or 'its dataset'}, nats per token of its own "
            f"tokenizer): calibrate the law to your own runs before you rely on it."
        )
    if not law.family.embedding_matrices:
        notes.append("Sizes leave embeddings out, as the law does; serving counts them.")
    if memory_limited:
        notes.append("The batch is limited by memory alone; a server's own limit (--max-num-seqs) makes tokens dearer.")
    return notes

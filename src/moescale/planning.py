"""The decision: from a law, a budget and a deployment to a recommended model, with its reasons and its caveats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from moescale.allocation import Allocation, Budget, at_size, best_within_cost, loss_optimal, smallest_at_loss
from moescale.architecture import Architecture, FloatArray
from moescale.errors import InfeasibleError, InputError
from moescale.family import ModelFamily, architecture, n_active, n_total, with_convention
from moescale.frontier import pareto
from moescale.latency import LatencySource
from moescale.laws.law import Law, extrapolation, interval
from moescale.serving import REASONS, Deployment, cheapest
from moescale.units import format_count, format_usd

FRONTIER_SIZES = 48  # over-trained sizes of each expert count that the frontier is drawn from
SMALLEST_SHARE = 0.03  # of the loss-optimal size: smaller ones cost almost no less and lose much
CURVE_SIZES = 160  # of the cost curve that intervals are read from


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One model that the budget can train: what it is, its loss, what serving it costs; None where not applicable.

    `size_ratio` is to that expert count's own loss-optimal size, the `_to_base` ratios are to the base model. Intervals
    hold 90% of the law's draws.
    """

    experts: float
    n_params: float | None = None  # dense-equivalent N of the law
    n_params_active: float | None = None  # under the law's convention
    n_params_total: float | None = None
    tokens: float | None = None
    loss: float | None = None
    usd_per_mtok: float | None = None
    gpus: int | None = None
    batch: float | None = None
    size_ratio: float | None = None
    size_ratio_to_base: float | None = None
    active_ratio_to_base: float | None = None
    cost_ratio: float | None = None
    lifetime_usd: float | None = None  # serving the lifetime tokens
    infeasible: str | None = None
    intervals: dict[str, tuple[float, float]] | None = None

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        record = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: _plain(v) for k, v in record.items() if v is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """Whole-number shape nearest to a recommended size: what a configuration file would hold."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int
    n_experts: int
    top_k: int
    moe_every: int
    n_params: float  # dense-equivalent, counted as the law counts it
    n_params_total: float

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondOpinion:
    """What the same question answers under another law."""

    law: str
    experts: float
    n_params: float
    cost_ratio: float
    agrees: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer of `plan`: every allocation that matters for one budget, and a recommendation."""

    budget_flops: float
    law: str
    convention: str
    gpu: str
    latency_source: str
    usd_per_gpu_hour: float
    prompt_tokens: float
    output_tokens: float
    base_experts: float
    base_loss: float
    base_usd_per_mtok: float | None
    loss_optimal: tuple[Candidate, ...]
    bounded_loss: tuple[Candidate, ...]
    bounded_cost: tuple[Candidate, ...]
    frontier: tuple[Candidate, ...]
    recommendation: Recommendation
    second_opinion: SecondOpinion | None = None
    warnings: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        bounded_cost: dict[str, object] = {"base_experts": _plain(self.base_experts)}
        if self.base_usd_per_mtok is not None:
            bounded_cost["usd_per_mtok"] = self.base_usd_per_mtok
        bounded_cost["plans"] = [c.to_dict() for c in self.bounded_cost]
        record: dict[str, object] = {
            "budget_flops": self.budget_flops,
            "law": self.law,
            "convention": self.convention,
            "gpu": self.gpu,
            "latency_source": self.latency_source,
            "usd_per_gpu_hour": self.usd_per_gpu_hour,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "loss_optimal": [c.to_dict() for c in self.loss_optimal],
            "bounded_loss": {
                "base_experts": _plain(self.base_experts),
                "loss": self.base_loss,
                "plans": [c.to_dict() for c in self.bounded_loss],
            },
            "bounded_cost": bounded_cost,
            "frontier": [c.to_dict() for c in self.frontier],
            "recommendation": self.recommendation.to_dict(),
            "warnings": list(self.warnings),
        }
        if self.second_opinion is not None:
            opinion = self.second_opinion
            record["second_opinion"] = {f.name: _plain(getattr(opinion, f.name)) for f in fields(opinion)}
        return record


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a plan is asked: the budget and its bounds, and the models that may be chosen."""

    budget: Budget
    experts: tuple[float, ...] = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)
    match_experts: float = 4.0  # the base: the loss-optimal model of so many experts
    max_loss: float | None = None
    max_usd_per_mtok: float | None = None
    lifetime_tokens: float | None = None
    kv_heads: float | None = None
    draws: int | None = None  # how many of the law's draws intervals use; None: all, 0: no intervals
    convention: str | None = None


def _plain(value: object) -> object:
    """JSON-ready form of a field: whole expert counts as integers, intervals as lists."""
    if isinstance(value, dict):
        return {k: list(v) for k, v in value.items()}  # pyright: ignore[reportUnknownArgumentType]
    if isinstance(value, np.floating | float) and float(value).is_integer() and abs(value) < 1e6:
        return int(value)
    return value


def _check(question: Question, law: Law) -> tuple[Question, list[str]]:
    """Refuse impossible questions; drop what the law cannot speak of, with a note."""
    notes: list[str] = []
    experts = sorted(set(question.experts) | {question.match_experts})
    for e in experts:
        if not (math.isfinite(e) and e >= 1 and float(e).is_integer()):
            raise InputError(f"{e!r} is not a number of experts", where="--experts", next_step="whole numbers from 1 up")
    for name, value in (
        ("--max-loss", question.max_loss),
        ("--max-usd-per-mtok", question.max_usd_per_mtok),
        ("--lifetime-tokens", question.lifetime_tokens),
    ):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise InputError(f"{value!r} is not a positive number", where=name)
    base = question.match_experts
    if not law.form.uses_experts:
        if experts != [1.0]:
            notes.append(f"{law.name} knows dense models only: experts are left out of this plan")
        experts, base = [1.0], 1.0
    return replace(question, experts=tuple(experts), match_experts=base), notes


@dataclass(frozen=True, slots=True)
class _Costs:
    """Serving cost as a function of size and experts, for one law's family and one deployment."""

    family: ModelFamily
    latency: LatencySource
    deployment: Deployment
    kv_heads: float | None

    def of(self, n_params: FloatArray, experts: FloatArray) -> FloatArray:
        """Dollars per million tokens at the cheapest GPU count."""
        return cheapest(self._shapes(n_params, experts), self.latency, self.deployment).usd_per_mtok

    def serving(self, n_params: FloatArray, experts: FloatArray):  # noqa: ANN202
        """All serving figures at the cheapest GPU count."""
        return cheapest(self._shapes(n_params, experts), self.latency, self.deployment)

    def _shapes(self, n_params: FloatArray, experts: FloatArray) -> Architecture:
        return architecture(self.family, n_params, experts, kv_heads=self.kv_heads)


def _candidates(
    allocation: Allocation, costs: _Costs, question: Question, unreachable: str = ""
) -> list[Candidate]:
    """Records of an allocation of shape (m,); `unreachable` says why an entry is NaN."""
    known = np.where(np.isfinite(allocation.n_params), allocation.n_params, 1e9)
    served = costs.serving(known, allocation.experts)
    active = n_active(costs.family, known, allocation.experts)
    total = n_total(costs.family, known, allocation.experts)
    records: list[Candidate] = []
    for i, e in enumerate(allocation.experts):
        if not np.isfinite(allocation.n_params[i]):
            records.append(Candidate(experts=float(e), infeasible=unreachable))
            continue
        record = Candidate(
            experts=float(e),
            n_params=float(known[i]),
            n_params_active=float(active[i]),
            n_params_total=float(total[i]),
            tokens=float(allocation.tokens[i]),
            loss=float(allocation.loss[i]),
        )
        usd = float(served.usd_per_mtok[i])
        if math.isfinite(usd):
            lifetime = None if question.lifetime_tokens is None else usd * question.lifetime_tokens / 1e6
            record = replace(
                record, usd_per_mtok=usd, gpus=int(served.gpus[i]), batch=float(served.batch[i]), lifetime_usd=lifetime
            )
        else:
            reason = REASONS[int(served.infeasible[i])]
            record = replace(
                record, infeasible=f"{reason} of {costs.deployment.max_gpus} x {costs.deployment.gpu.name}"
            )
        records.append(record)
    return records


def _with_ratios(records: list[Candidate], optima: Sequence[Candidate], base: Candidate) -> list[Candidate]:
    """The records with their sizes and costs set against their own optimum and the base model."""

    def ratio(over: float | None, under: float | None) -> float | None:
        return None if over is None or under is None else over / under

    own = {c.experts: c.n_params for c in optima}
    return [
        replace(
            c,
            size_ratio=ratio(c.n_params, own[c.experts]),
            size_ratio_to_base=ratio(c.n_params, base.n_params),
            active_ratio_to_base=ratio(c.n_params_active, base.n_params_active),
            cost_ratio=ratio(c.usd_per_mtok, base.usd_per_mtok),
        )
        for c in records
    ]


def _quantiles(named: dict[str, FloatArray], count: int) -> list[dict[str, tuple[float, float]]]:
    """For each of m models the 90% interval of each named figure, given as (k, m)."""
    limits = {name: interval(values) for name, values in named.items() if np.isfinite(values).any(axis=0).all()}
    return [
        {
            name: (float(low[i]), float(high[i]))
            for name, (low, high) in limits.items()
            if math.isfinite(low[i]) and math.isfinite(high[i])
        }
        for i in range(count)
    ]


def _intervals(
    law: Law, question: Question, costs: _Costs, experts: FloatArray, draws: FloatArray
) -> tuple[list[dict[str, tuple[float, float]]], ...]:
    """Intervals of the loss-optimal, bounded-loss and bounded-cost models over the law's draws."""
    base = int(np.flatnonzero(experts == question.match_experts)[0])
    # Cost does not depend on the law: one curve for each expert count serves all draws.
    ln_n = np.linspace(math.log(1e7), math.log(1e11), CURVE_SIZES)
    usd = costs.of(np.repeat(np.exp(ln_n)[:, None], experts.size, axis=1), np.broadcast_to(experts, (ln_n.size, experts.size)))
    with np.errstate(divide="ignore"):
        curve = np.log(usd)

    def cost_at(n_params: FloatArray) -> FloatArray:
        columns = [
            np.interp(np.log(n_params[:, j]), ln_n[ok], curve[ok, j], right=np.nan)
            for j in range(experts.size)
            for ok in [np.isfinite(curve[:, j])]
        ]
        return np.exp(np.stack(columns, axis=1))

    optimal = loss_optimal(law, question.budget, experts, theta=draws)
    optimal_usd = cost_at(optimal.n_params)
    base_loss, base_usd = optimal.loss[:, base : base + 1], optimal_usd[:, base : base + 1]
    small = smallest_at_loss(law, question.budget, experts, base_loss, theta=draws, optimal=optimal)
    small_usd = cost_at(np.where(np.isfinite(small.n_params), small.n_params, 1e9))
    small_usd = np.where(np.isfinite(small.n_params), small_usd, np.nan)

    largest = np.full(optimal.n_params.shape, np.nan)
    for j in range(experts.size):
        ok = np.isfinite(curve[:, j])
        rising = np.maximum.accumulate(curve[ok, j])
        largest[:, j] = np.exp(np.interp(np.log(base_usd[:, 0]), rising, ln_n[ok], left=np.nan))
    within = at_size(law, question.budget, np.fmin(largest, optimal.n_params), experts, theta=draws)
    m = experts.size
    return (
        _quantiles(
            {
                "n_params": optimal.n_params,
                "tokens": optimal.tokens,
                "loss": optimal.loss,
                "usd_per_mtok": optimal_usd,
            },
            m,
        ),
        _quantiles(
            {
                "n_params": small.n_params,
                "loss": small.loss,
                "usd_per_mtok": small_usd,
                "cost_ratio": small_usd / base_usd,
                "size_ratio": small.n_params / optimal.n_params,
            },
            m,
        ),
        _quantiles({"n_params": within.n_params, "loss": within.loss, "loss_gain": base_loss - within.loss}, m),
    )


def _add_intervals(records: list[Candidate], found: list[dict[str, tuple[float, float]]]) -> list[Candidate]:
    return [replace(c, intervals=f) if f and c.infeasible is None else c for c, f in zip(records, found, strict=True)]


def buildable(family: ModelFamily, model: Candidate, *, gpus: int = 1, kv_heads: float | None = None) -> Buildable:
    """The whole-number shape nearest to a model's N whose heads split over `gpus` GPUs (tensor parallel).

    Depth is a multiple of the MoE spacing, width a multiple of the head dimension, FFN width a multiple of 64.
    """
    if model.n_params is None:
        raise InputError("an infeasible model has no shape")
    wanted = architecture(family, model.n_params, model.experts, kv_heads=kv_heads)
    hd = int(family.head_dim)
    heads, layers = float(wanted.n_heads), float(wanted.n_layers)
    step = math.lcm(gpus, 1)
    best: tuple[float, Buildable] | None = None
    for n_heads in range(step, int(heads * 1.5) + 2 * step, step):
        d = n_heads * hd
        d_ffn = 64 * max(1, round(family.ffn_ratio * d / 64))
        embedding = family.embedding_matrices * family.vocab_size * d
        per_layer = 4.0 * d * d + family.ffn_matrices * d * d_ffn
        for n_layers in range(family.moe_every, int(layers * 2) + 2 * family.moe_every, family.moe_every):
            n = n_layers * per_layer + embedding
            # Off by size counts most; within a percent of it the family's aspect ratio decides.
            off = abs(math.log(n / model.n_params)) + 0.02 * abs(math.log(n_layers / layers))
            if best is not None and off >= best[0]:
                continue
            expert = n_layers / family.moe_every * family.ffn_matrices * d * d_ffn
            kv = n_heads if kv_heads is None else min(n_heads, int(kv_heads))
            best = (
                off,
                Buildable(
                    n_layers=n_layers,
                    d_model=d,
                    n_heads=n_heads,
                    n_kv_heads=kv,
                    head_dim=hd,
                    d_ffn=d_ffn,
                    n_experts=int(model.experts),
                    top_k=int(min(family.top_k, model.experts)),
                    moe_every=family.moe_every,
                    n_params=float(n),
                    n_params_total=float(n + (model.experts - 1) * expert),
                ),
            )
    if best is None:
        raise InputError(f"no whole-number shape near {model.n_params:.3g} parameters", next_step="raise the budget")
    return best[1]


def _choose(
    question: Question,
    law: Law,
    bounded_loss: list[Candidate],
    within_loss: list[Candidate],
    within_cost: list[Candidate],
) -> tuple[Candidate, str]:
    """The recommended model and the rule that chose it; InfeasibleError when no model meets the bounds."""
    ceiling = law.max_experts or math.inf
    allowed = [c for c in (within_loss or within_cost or bounded_loss) if c.experts <= ceiling]
    served = [c for c in allowed if c.usd_per_mtok is not None and c.loss is not None]
    if question.max_loss is not None:
        cap = question.max_usd_per_mtok
        cheap = [c for c in served if cap is None or (c.usd_per_mtok or math.inf) <= cap]
        if not cheap:
            _refuse_bound(question, served, allowed)
        best = min(cheap, key=lambda c: c.usd_per_mtok or math.inf)
        return best, f"cheapest to serve at a loss of at most {question.max_loss:g}"
    if question.max_usd_per_mtok is not None:
        if not served:
            raise InfeasibleError(
                f"no model of this budget serves at {format_usd(question.max_usd_per_mtok)} a million tokens or less",
                next_step="raise --max-usd-per-mtok, or take another GPU",
            )
        best = min(served, key=lambda c: c.loss or math.inf)
        return best, f"lowest loss at {format_usd(question.max_usd_per_mtok)} a million tokens or less"
    if not served:
        reasons = {c.infeasible for c in allowed if c.infeasible}
        raise InfeasibleError(
            f"no model that matches the {question.match_experts:g}-expert optimum can be served: {'; '.join(sorted(reasons))}",
            next_step="allow more GPUs or a GPU with more memory, or lower the budget",
        )
    best = min(served, key=lambda c: c.usd_per_mtok or math.inf)
    return best, f"cheapest to serve at the loss of the loss-optimal {_experts(question.match_experts)}"


def _refuse_bound(question: Question, served: list[Candidate], allowed: list[Candidate]) -> None:
    if served:
        least = min(c.usd_per_mtok or math.inf for c in served)
        raise InfeasibleError(
            f"the cheapest model with a loss of at most {question.max_loss:g} costs {format_usd(least)} a million tokens, "
            f"more than {format_usd(question.max_usd_per_mtok or 0.0)}",
            next_step=f"raise --max-usd-per-mtok to {least:.3g}, or relax --max-loss",
        )
    reasons = "; ".join(sorted({c.infeasible for c in allowed if c.infeasible}))
    raise InfeasibleError(
        f"no model of {question.budget.flops:.3g} FLOPs reaches a loss of {question.max_loss:g} and can be served: {reasons}",
        next_step="raise --budget, relax --max-loss, or allow more memory",
    )


def _experts(count: float) -> str:
    return "dense model" if count == 1 else f"{count:g}-expert model"


def _why(
    model: Candidate, rule: str, base: Candidate, bounded_cost: list[Candidate], law: Law, own: Candidate
) -> str:
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
        text = f"That is {model.usd_per_mtok / base.usd_per_mtok:.0%} of what the loss-optimal {_experts(base.experts)} costs to serve"
        spread = (model.intervals or {}).get("cost_ratio")
        text += f" (90% of the law's draws: {spread[0]:.0%} to {spread[1]:.0%})." if spread else "."
        parts.append(text)
    ceiling = law.max_experts or math.inf
    better = [c for c in bounded_cost if c.loss is not None and c.usd_per_mtok is not None and c.experts <= ceiling]
    if better and base.usd_per_mtok:
        best = min(better, key=lambda c: c.loss or math.inf)
        if best.loss is not None and base.loss is not None and best.loss < base.loss - 1e-9:
            parts.append(
                f"If quality matters more: {best.experts:g} experts at {format_count(best.n_params or 0.0)} reach "
                f"{best.loss:.4f} at the cost of the loss-optimal {_experts(base.experts)} ({base.loss:.4f})."
            )
    return " ".join(parts)


def _caveats(
    law: Law, question: Question, model: Candidate, records: list[Candidate], own: Candidate, costs: _Costs
) -> list[str]:
    """What could make the recommendation wrong."""
    notes: list[str] = []
    far = extrapolation(law, model.n_params or 1.0, model.tokens or 1.0, model.experts)
    if far:
        words = {"n_params": "N", "tokens": "D", "experts": "E"}
        listed = ", ".join(
            f"{words[name]} {factor:.3g} times {'above' if factor > 1 else 'of the smallest, below'} the largest fitted"
            if factor > 1
            else f"{words[name]} at {factor:.2g} of the smallest fitted"
            for name, factor in far.items()
        )
        notes.append(f"Extrapolated: {listed}.")
    if own.n_params and own.loss:
        e = np.array([model.experts])
        shares = np.linspace(0.05, 1.0, 400)
        curve = at_size(law, question.budget, shares * own.n_params, np.repeat(e, shares.size)).loss
        flat = shares[curve <= own.loss * 1.001]
        if flat.size:
            notes.append(
                f"The optimum is flat: from {flat[0]:.0%} of the loss-optimal size on, the loss is within 0.1% of the best."
            )
    close = [
        c
        for c in records
        if c.usd_per_mtok
        and c.experts != model.experts
        and c.experts <= (law.max_experts or math.inf)
        and c.usd_per_mtok <= 1.05 * (model.usd_per_mtok or 0.0)
    ]
    if close:
        listed = ", ".join(f"{c.experts:g} experts (+{(c.usd_per_mtok or 0) / (model.usd_per_mtok or 1) - 1:.1%})" for c in close)
        notes.append(f"As good within 5% of the cost: {listed}.")
    beyond = [
        c
        for c in records
        if law.max_experts
        and c.experts > law.max_experts
        and c.usd_per_mtok
        and c.usd_per_mtok < (model.usd_per_mtok or 0.0)
    ]
    if beyond:
        notes.append(
            f"{', '.join(f'{c.experts:g}' for c in beyond)} experts look cheaper still, but the law was fitted up to "
            f"{law.max_experts:g} experts and is not trusted beyond."
        )
    if question.max_loss is not None and law.source:
        notes.append(
            f"--max-loss is in the units of {law.name} ({law.family.dataset or 'its dataset'}, nats per token of its own "
            f"tokenizer): calibrate the law to your own runs before you rely on it."
        )
    if not law.family.embedding_matrices:
        notes.append("Sizes leave embeddings out, as the law does; serving memory here does too.")
    if costs.deployment.max_num_seqs is None:
        notes.append("The batch is limited by memory alone; a server's own limit (--max-num-seqs) makes tokens dearer.")
    return notes


def make_plan(
    law: Law,
    question: Question,
    deployment: Deployment,
    latency: LatencySource,
    *,
    second_law: Law | None = None,
) -> Plan:
    """The plan of one training budget under a law and a deployment.

    The base is the loss-optimal model with `question.match_experts` experts. Raises InfeasibleError when no model meets
    the bounds or none can be served, InputError for impossible questions.
    """
    if question.convention is not None:
        law = replace(law, family=with_convention(law.family, question.convention))
    question, notes = _check(question, law)
    if question.convention is not None and law.family.top_k > 1 and law.source and question.convention != "paper":
        notes.append(f"{law.name} was obtained with another counting of training FLOPs than `{question.convention}`")
    costs = _Costs(law.family, latency, deployment, question.kv_heads)
    e = np.array(question.experts)
    base_at = question.experts.index(question.match_experts)
    budget = question.budget

    best = loss_optimal(law, budget, e)
    optima = _candidates(best, costs, question)
    base = optima[base_at]
    base_loss = float(best.loss[base_at])

    small = smallest_at_loss(law, budget, e, base_loss, optimal=best)
    small = _pin_base(small, best, base_at)
    missed = f"no size reaches a loss of {base_loss:.6g} with this budget and so many experts"
    bounded_loss = _with_ratios(_candidates(small, costs, question, missed), optima, base)

    bounded_cost: list[Candidate] = []
    if base.usd_per_mtok is not None:
        within = best_within_cost(law, budget, e, base.usd_per_mtok, costs.of, optimal=best)
        too_dear = f"every size costs more than {format_usd(base.usd_per_mtok)} a million tokens"
        bounded_cost = _with_ratios(_candidates(within, costs, question, too_dear), optima, base)
    else:
        notes.append(f"the loss-optimal {_experts(base.experts)} cannot be served: {base.infeasible}")

    draws = law.draws if question.draws is None else law.draws[: question.draws]
    if question.draws is not None and question.draws > len(law.draws):
        notes.append(f"{law.name} carries {len(law.draws)} draws; all of them are used")
    if len(draws):
        of_optima, of_loss, of_cost = _intervals(law, question, costs, e, draws)
        optima, bounded_loss = _add_intervals(optima, of_optima), _add_intervals(bounded_loss, of_loss)
        bounded_cost = _add_intervals(bounded_cost, of_cost) if bounded_cost else bounded_cost

    within_loss = _bounded_by(question.max_loss, lambda limit: _candidates(
        smallest_at_loss(law, budget, e, limit, optimal=best), costs, question,
        f"no size reaches a loss of {limit:g} with this budget",
    ))  # fmt: skip
    within_cost = _bounded_by(
        question.max_usd_per_mtok if question.max_loss is None else None,
        lambda limit: _candidates(
            best_within_cost(law, budget, e, limit, costs.of, optimal=best), costs, question,
            f"every size costs more than {format_usd(limit)} a million tokens",
        ),
    )  # fmt: skip
    within_loss = _with_ratios(within_loss, optima, base)
    within_cost = _with_ratios(within_cost, optima, base)

    frontier = _frontier(law, question, costs, best, [*optima, *bounded_loss, *bounded_cost, *within_loss, *within_cost])
    model, rule = _choose(question, law, bounded_loss, within_loss, within_cost)
    own = optima[question.experts.index(model.experts)]
    records = within_loss or within_cost or bounded_loss
    recommendation = Recommendation(
        model=model,
        rule=rule,
        why=_why(model, rule, base, bounded_cost, law, own),
        caveats=tuple(_caveats(law, question, model, records, own, costs)),
        architecture=buildable(law.family, model, gpus=model.gpus or 1, kv_heads=question.kv_heads),
    )
    plan = Plan(
        budget_flops=budget.flops,
        law=law.name,
        convention=law.family.convention,
        gpu=deployment.gpu.name,
        latency_source=latency.name,
        usd_per_gpu_hour=deployment.usd_per_gpu_hour,
        prompt_tokens=deployment.prompt_tokens,
        output_tokens=deployment.output_tokens,
        base_experts=question.match_experts,
        base_loss=base_loss,
        base_usd_per_mtok=base.usd_per_mtok,
        loss_optimal=tuple(optima),
        bounded_loss=tuple(bounded_loss),
        bounded_cost=tuple(bounded_cost),
        frontier=tuple(frontier),
        recommendation=recommendation,
        warnings=tuple(notes),
    )
    if second_law is None or second_law.name == law.name or question.max_loss is not None:
        return plan
    return replace(plan, second_opinion=_second_opinion(plan, second_law, question, deployment, latency))


def _pin_base(small: Allocation, best: Allocation, base_at: int) -> Allocation:
    """The base matches its own loss at its own size: the root of a flat curve is not searched for."""

    def pinned(values: FloatArray, exact: FloatArray) -> FloatArray:
        values = values.copy()
        values[base_at] = exact[base_at]
        return values

    return Allocation(
        small.experts,
        pinned(small.n_params, best.n_params),
        pinned(small.tokens, best.tokens),
        pinned(small.loss, best.loss),
    )


def _bounded_by(limit: float | None, records_within) -> list[Candidate]:  # noqa: ANN001
    return [] if limit is None else records_within(limit)


def _frontier(
    law: Law, question: Question, costs: _Costs, best: Allocation, known: list[Candidate]
) -> list[Candidate]:
    """The Pareto frontier over all expert counts that the law may speak of and all over-trained sizes."""
    ceiling = law.max_experts or math.inf
    chosen = best.experts <= ceiling
    e = best.experts[chosen]
    shares = np.geomspace(SMALLEST_SHARE, 1.0, FRONTIER_SIZES)
    sizes = (best.n_params[chosen][:, None] * shares).ravel()
    every = _candidates(
        at_size(law, question.budget, sizes, np.repeat(e, FRONTIER_SIZES)), costs, question
    )
    every += [replace(c, intervals=None) for c in known if c.experts <= ceiling and c.loss is not None]
    cost = np.array([math.inf if c.usd_per_mtok is None else c.usd_per_mtok for c in every])
    loss = np.array([math.inf if c.loss is None else c.loss for c in every])
    optimum = {float(x): float(n) for x, n in zip(best.experts, best.n_params, strict=True)}
    front = [every[i] for i in pareto(cost, loss)]
    return [
        replace(
            c,
            size_ratio=(c.n_params or 0.0) / optimum[c.experts],
            size_ratio_to_base=None,
            active_ratio_to_base=None,
            cost_ratio=None,
        )
        for c in front
    ]


def _second_opinion(
    plan: Plan, law: Law, question: Question, deployment: Deployment, latency: LatencySource
) -> SecondOpinion | None:
    """The bounded-loss answer under another law, in a sentence; None where that law has none."""
    asked = replace(question, convention=None, max_usd_per_mtok=None, draws=0)
    asked, _ = _check(asked, law)
    costs = _Costs(law.family, latency, deployment, question.kv_heads)
    e = np.array(asked.experts)
    at = asked.experts.index(asked.match_experts)
    try:
        best = loss_optimal(law, asked.budget, e)
    except InfeasibleError:
        return None
    optima = _candidates(best, costs, asked)
    small = _pin_base(smallest_at_loss(law, asked.budget, e, best.loss[at], optimal=best), best, at)
    records = _with_ratios(_candidates(small, costs, asked, "unreachable"), optima, optima[at])
    ceiling = law.max_experts or math.inf
    served = [c for c in records if c.cost_ratio is not None and c.experts <= ceiling]
    if not served:
        return None
    model = min(served, key=lambda c: c.cost_ratio or math.inf)
    ours = plan.recommendation.model
    more = model.experts > asked.match_experts
    agrees = more == (ours.experts > plan.base_experts)
    sentence = (
        f"{law.name} {'agrees' if agrees else 'disagrees'}: with it {model.experts:g} experts at "
        f"{format_count(model.n_params or 0.0)} match its loss-optimal {_experts(asked.match_experts)} at "
        f"{model.cost_ratio or 0:.0%} of the cost"
        + (f" (here: {ours.experts:g} experts at {ours.cost_ratio:.0%})." if ours.cost_ratio else ".")
    )
    return SecondOpinion(
        law=law.name,
        experts=model.experts,
        n_params=model.n_params or 0.0,
        cost_ratio=model.cost_ratio or 0.0,
        agrees=agrees,
        sentence=sentence,
    )

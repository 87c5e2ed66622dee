"""A law with coefficients: what it predicts, the family of models it is about, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from moescale.io.records import plain, record
from moescale.models.family import ModelFamily
from moescale.scaling_laws.form import LawForm, further_inputs, make_inputs
from moescale.typing import FloatArray, Real

# The noise of a run, normal, as equally likely points: 39 quantiles, 5% and 95% among them, and two ends that make the variance 1.
_INNER = np.array([NormalDist().inv_cdf(k / 40) for k in range(1, 40)])
_END = np.sqrt((41 - (_INNER**2).sum()) / 2)
NOISE_NODES = np.array([-_END, *_INNER, _END])
MOST_DRAWS = 10_000  # they tell a 5% quantile to 0.2%; a plan holds every draw of every candidate, some 500 MB
MOST_DRAWN = 2_000_000  # losses of draws and nodes at once, 16 MB
NOT_IDENTIFIED = "not identified"  # how the note begins that names what runs leave open
OF_ACTIVE = "active parameters"  # in the note on a law whose N a plan would read otherwise
ABOUT = ("name", "source", "date", "notes", "evidence", "run_noise", "drift")  # of every law, an ensemble too
INPUT_NAMES = {"n_params": "N", "tokens": "D", "experts": "E", "training_flops": "training FLOPs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Law:
    """A form, its coefficients, the family its N and E belong to, the ranges it was fitted on, and its uncertainty.

    `draws` (k, p) are coefficients about as good as `theta`, in search coordinates: of a bootstrap, or solutions of an
    under-determined recovery. `run_noise` and `drift` widen what is predicted of a run.
    """

    name: str
    form: LawForm
    theta: FloatArray
    family: ModelFamily
    source: str
    date: str
    fit_range: dict[str, tuple[float, float]]
    draws: FloatArray
    notes: tuple[str, ...] = ()
    max_experts: float | None = None  # largest expert count that a plan may recommend
    evidence: dict[str, object] = field(default_factory=dict[str, object])
    run_noise: float = 0.0  # standard deviation of ln L between runs of the same N, D and E
    drift: float = 0.0  # standard deviation of ln L that every e-fold beyond `fit_range` adds
    members: tuple[Member, ...] = ()  # the laws that an ensemble averages

    def allows(self, experts: Real) -> NDArray[np.bool_]:
        """Whether a plan may recommend so many experts, same shape."""
        return np.asarray(experts) <= (math.inf if self.max_experts is None else self.max_experts)

    @property
    def is_fitted(self) -> bool:
        """Whether a user's table of runs was fitted, and the law is not of the catalogue."""
        return bool(self.evidence.get("table"))

    @property
    def promises_by_draws(self) -> bool:
        """Whether a plan holds the law's draws to a probability unless told otherwise: several laws, or unseen sources."""
        return len(self.members) > 1 or (self.form.of_sources and len(self.draws) > 0)

    def summary(self) -> dict[str, object]:
        """The law in the record of the command line's contract."""
        names = ("name", "source", "date", "parameters", "fit_range", "notes")
        family = {"family": self.family.name, "top_k": self.family.top_k, "convention": self.family.convention}
        about: dict[str, object] = {"law": self.form.name, "equation": self.form.equation, "draws": len(self.draws)}
        return about | {name: plain(getattr(self, name)) for name in names} | family

    @property
    def parameters(self) -> dict[str, float]:
        """Coefficients in public units, by name."""
        return dict(zip(self.form.names, self.form.decode(self.theta).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Member:
    """A law of an ensemble, its share, and ln of what turns its loss into the ensemble's unit."""

    law: Law
    weight: float
    unit: float = 0.0


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted loss, the 90% interval of a run where the law tells one, and how far outside the fitted range it lies."""

    loss: float
    interval: tuple[float, float] | None
    extrapolation: dict[str, float]

    def to_dict(self) -> dict[str, object]:
        """The record of the command line's contract."""
        shown: dict[str, object] = {"loss": self.loss, "interval": None}
        return shown | record(self)


def loss(
    law: Law,
    n_params: Real,
    tokens: Real,
    experts: Real,
    *,
    extra: Mapping[str, Real] | None = None,
    theta: FloatArray | None = None,
) -> FloatArray:
    """Predicted loss in nats per token; arguments broadcast to one shape, which the answer has.

    `extra` holds the form's further inputs. `theta` (k, p) replaces the law's coefficients: the answer gains a leading
    axis of k.
    """
    further = further_inputs(law.form, extra, where=law.name)
    use = law.theta if theta is None else theta
    shape = np.broadcast_shapes(*(np.shape(v) for v in (n_params, tokens, experts, *further.values())))
    x = make_inputs(n_params, tokens, experts, further)
    return np.exp(law.form.log_loss(use, x)).reshape((*use.shape[:-1], *shape))


def extrapolation(
    law: Law, n_params: float, tokens: float, experts: float, extra: Mapping[str, Real] | None = None
) -> dict[str, float]:
    """For each variable outside the fitted range, the factor by which it lies outside: 3.0 above, 1/3 below."""
    factors: dict[str, float] = {}
    for name, given in {"n_params": n_params, "tokens": tokens, "experts": experts, **(extra or {})}.items():
        value = float(np.asarray(given))
        if name in law.fit_range and not np.isinf(value):
            low, high = law.fit_range[name]
            if value > high * (1 + 1e-9) or value < low * (1 - 1e-9):
                factors[name] = value / (high if value > high else low)
    return factors


def unknown_ranges(law: Law) -> tuple[str, ...]:
    """Inputs of the law whose fitted range is not known, so that `extrapolation` says nothing of them."""
    used = {"n_params": True, "tokens": law.form.uses_tokens, "experts": law.form.uses_experts}
    names = [name for name, is_used in used.items() if is_used]
    # Where infinity stands for none, nothing is asked of an input that is not given.
    names += [name for name, default in law.form.extra_inputs.items() if default is None or math.isfinite(default)]
    return tuple(name for name in names if name not in law.fit_range)


def interval(values: FloatArray, level: float = 0.9) -> tuple[FloatArray, FloatArray]:
    """Lower and upper quantiles of draws along the first axis that hold `level` of them."""
    tail = 50.0 * (1.0 - level)
    quantiles = np.nanpercentile if np.isnan(values).any() else np.percentile  # the first takes a loop over columns
    low, high = quantiles(values, [tail, 100.0 - tail], axis=0)
    return low, high


def efolds_beyond(ranges: Mapping[str, tuple[float, float]], n_params: Real, tokens: Real, experts: Real) -> FloatArray:
    """How many e-folds points lie outside the ranges, as of `Law.fit_range`, summed over N, D and E; arguments broadcast."""
    given = {"n_params": n_params, "tokens": tokens, "experts": experts}
    beyond = np.zeros(np.broadcast_shapes(*(np.shape(values) for values in given.values())))
    for name in (name for name in given if name in ranges):
        values, (low, high) = np.log(np.asarray(given[name], dtype=float)), np.log(ranges[name])
        beyond = beyond + np.maximum(values - high, 0.0) + np.maximum(low - values, 0.0)
    return beyond


def predict_many(
    law: Law, n_params: Real, tokens: Real, experts: Real = 1.0, *, extra: Mapping[str, Real] | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Predicted losses and both ends of the 90% interval of a run's loss, NaN where the law has none.

    The interval is of the law's draws, each spread by `run_noise` and, times the e-folds beyond the fitted range,
    `drift`.
    """
    value = loss(law, n_params, tokens, experts, extra=extra)
    if not (len(law.draws) or law.run_noise or law.drift):
        return value, np.full_like(value, np.nan), np.full_like(value, np.nan)
    further = further_inputs(law.form, extra, where=law.name)
    given = {"n": n_params, "d": tokens, "e": experts, **further}
    flat = {name: np.broadcast_to(np.asarray(v, float), value.shape).ravel() for name, v in given.items()}
    draws = law.draws if len(law.draws) else law.theta[None]
    spread = np.hypot(law.run_noise, law.drift * efolds_beyond(law.fit_range, flat["n"], flat["d"], flat["e"]))
    nodes = NOISE_NODES if spread.any() else np.zeros(1)
    rows = max(1, MOST_DRAWN // (len(draws) * len(nodes)))  # at once
    ends = np.empty((2, value.size))
    for start in range(0, value.size, rows):
        part = slice(start, start + rows)
        n, d, e, *others = (values[part] for values in flat.values())
        drawn = loss(law, n, d, e, extra=dict(zip(further, others, strict=True)), theta=draws)
        noisy = drawn * np.exp(nodes[:, None, None] * spread[part])
        ends[:, part] = interval(noisy.reshape(-1, n.size))
    return value, *ends.reshape(2, *value.shape)


def predict(
    law: Law, n_params: float, tokens: float, experts: float = 1.0, *, extra: Mapping[str, float] | None = None
) -> Prediction:
    """Predicted loss of one model with its interval and its distance from the fitted range; `extra` as in `loss`."""
    value, low, high = (float(v) for v in predict_many(law, n_params, tokens, experts, extra=extra))
    beyond = extrapolation(law, n_params, tokens, experts, further_inputs(law.form, extra))
    return Prediction(value, None if math.isnan(low) else (low, high), beyond)

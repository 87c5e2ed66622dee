"""What a law is: a formula with named parameters, its derivatives, a physical box and where to look for the optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from moescale.typing import FloatArray, Real

# An amplitude of 1e-6 is as good as absent at any size; e^60 is beyond that of any term of a measurable loss.
AMPLITUDE = (float(np.log(1e-6)), 60.0)
EXPONENT = (0.0, 3.0)
STEP = 1e-30  # of a complex step, whose error is its square


@dataclass(frozen=True, slots=True)
class Inputs:
    """The variables of a law at n points: natural logarithms of size and tokens, and plain expert counts, shape (n,).

    `experts_distinct` and `experts_index` factor the expert counts, of which there are few, so that a formula in E is
    evaluated once for each distinct value. `extra` holds further variables by name, such as unique_tokens, (n,).
    """

    ln_n: FloatArray
    ln_d: FloatArray
    experts: FloatArray
    experts_distinct: FloatArray
    experts_index: np.typing.NDArray[np.intp]
    extra: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])

    def rows(self, chosen: np.typing.NDArray[np.intp]) -> Inputs:
        """The inputs at the chosen points only."""
        distinct, index = np.unique(self.experts[chosen], return_inverse=True)
        extra = {name: values[chosen] for name, values in self.extra.items()}
        return Inputs(self.ln_n[chosen], self.ln_d[chosen], self.experts[chosen], distinct, index, extra)


def make_inputs(n_params: Real, tokens: Real, experts: Real, extra: Mapping[str, Real] | None = None) -> Inputs:
    """Inputs of a law from sizes, tokens, expert counts and further variables, broadcast and flattened to (n,)."""
    further = dict(extra or {})
    n, d, e, *rest = np.broadcast_arrays(
        *(np.asarray(values, dtype=float) for values in (n_params, tokens, experts, *further.values()))
    )
    distinct, index = np.unique(e.ravel(), return_inverse=True)
    flat = {name: values.ravel() for name, values in zip(further, rest, strict=True)}
    return Inputs(np.log(n.ravel()), np.log(d.ravel()), e.ravel(), distinct, index, flat)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a law: its public name, and whether the search moves its natural logarithm."""

    name: str
    log: bool
    meaning: str


@dataclass(frozen=True, slots=True)
class Observed:
    """What the bounds and the search region of a law may depend on: largest expert count, smallest loss, typical size."""

    experts_max: float
    loss_min: float
    n_params_mid: float = 1e9  # geometric mean of the sizes

    @property
    def irreducible(self) -> tuple[float, float]:
        """The box of the logarithm of an irreducible loss: below the smallest loss."""
        return AMPLITUDE[0], float(np.log(self.loss_min))


# theta has shape (..., p) in search coordinates (logarithms where Parameter.log); answers add an axis of n points.
LogLoss = Callable[[FloatArray, Inputs], FloatArray]
Coordinates = Callable[[FloatArray], FloatArray]
Limits = Callable[[Observed], FloatArray]


def log_coordinates(parameters: tuple[Parameter, ...]) -> tuple[Coordinates, Coordinates]:
    """(encode, decode) for a form whose search moves ln of each parameter with `log` and all others as they are."""
    logs = [column for column, parameter in enumerate(parameters) if parameter.log]

    def encode(public: FloatArray) -> FloatArray:
        theta = np.array(public, dtype=float)
        theta[..., logs] = np.log(theta[..., logs])
        return theta

    def decode(theta: FloatArray) -> FloatArray:
        public = np.array(theta, dtype=float)
        public[..., logs] = np.exp(public[..., logs])
        return public

    return encode, decode


def limits(rows: list[tuple[float, float]]) -> Limits:
    """Bounds or a region, (p, 2), that do not depend on the runs."""
    return lambda _: np.array(rows)


def no_offset(shape: FloatArray, x: Inputs) -> FloatArray:
    """Zeros (..., n): the law is linear without an exponential before it."""
    return np.zeros((*shape.shape[:-1], x.ln_n.size))


@dataclass(frozen=True, slots=True)
class LinearPart:
    """How a law is linear in some parameters once the others are fixed: L = exp(offset) * (basis @ amplitudes).

    `amplitudes` and `shape` are column numbers of theta. `basis(shape values (..., s), inputs)` gives (..., n, k),
    `offset` gives (..., n). `region` is the (s, 2) range of the shape parameters that a search scans.
    """

    amplitudes: tuple[int, ...]
    shape: tuple[int, ...]
    basis: LogLoss
    region: Limits
    offset: LogLoss = no_offset


DERIVED: Any = None  # until the other fields are there


@dataclass(frozen=True, slots=True, kw_only=True)
class LawForm:
    """A scaling law as a formula; coefficients live in `Law`.

    `log_loss(theta, inputs)` is ln L, shape (..., n); `jacobian` its derivatives, (..., n, p); `slopes` those with respect
    to ln N and ln D, each (..., n). `bounds(observed)` is the physical box, (p, 2), in search coordinates. A form without
    derivatives of its own has those of a complex step, exact if slower; its `log_loss` must take complex numbers.
    """

    name: str
    title: str
    equation: str
    source: str
    parameters: tuple[Parameter, ...]
    log_loss: LogLoss
    bounds: Limits
    uses_experts: bool
    uses_tokens: bool = True
    of_sources: bool = False  # draws are coefficients of sources that were not seen: a plan promises by them
    of_models: bool = False  # N is the active body and E the expansion of models.coordinates, whatever the family
    encode: Coordinates = DERIVED  # public units -> search coordinates; default: log_coordinates
    decode: Coordinates = DERIVED  # and back; both of any leading shape
    jacobian: LogLoss = DERIVED
    slopes: Callable[[FloatArray, Inputs], tuple[FloatArray, FloatArray]] = DERIVED
    domain: str = "amplitudes are positive"  # of the public parameters; outside, `encode` is not finite
    linear: LinearPart | None = None  # None: the search scans `region` instead
    region: Limits | None = None  # (p, 2) in search coordinates, where `linear` is None
    # Further variables by name, with their defaults (None: must be given).
    extra_inputs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    # Further inputs (n,) that expert counts (n,) and top_k imply, where a plan may set them by itself.
    implied_inputs: Callable[[FloatArray, Real], Mapping[str, FloatArray]] | None = None
    no_allocation: str | None = None  # why a budget has no loss-optimal size under this form, where it has none
    published_grid: Callable[[Observed], tuple[FloatArray, ...]] | None = None  # one axis of starts a parameter
    # Equation 4 of Yun et al. (its parameters first, then ln N0 if there is one more), which the search of the paper's
    # grid knows how to factorise.
    is_equation4: bool = False

    def __post_init__(self) -> None:
        encode, decode = log_coordinates(self.parameters)
        jacobian, slopes = partial(complex_jacobian, self.log_loss), partial(complex_slopes, self.log_loss)
        for name, default in {"encode": encode, "decode": decode, "jacobian": jacobian, "slopes": slopes}.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)

    @property
    def names(self) -> tuple[str, ...]:
        """Public names of the parameters, in the order of theta."""
        return tuple(parameter.name for parameter in self.parameters)


def complex_jacobian(log_loss: LogLoss, theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, (..., n, p), by a complex step in each."""
    steps = 1j * STEP * np.eye(theta.shape[-1])
    return np.stack([log_loss(theta + step, x).imag / STEP for step in steps], axis=-1)


def complex_slopes(log_loss: LogLoss, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
    """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n), by a complex step."""
    in_n = log_loss(theta, replace(x, ln_n=x.ln_n + 1j * STEP)).imag / STEP
    return in_n, log_loss(theta, replace(x, ln_d=x.ln_d + 1j * STEP)).imag / STEP


def stacked(arrays: Sequence[FloatArray], axis: int = 0) -> FloatArray:
    """Arrays that broadcast, along a new axis; half the time of numpy's own two steps where the arrays are small."""
    shape = np.broadcast(*arrays).shape
    at = axis % (len(shape) + 1)
    out = np.empty((*shape[:at], len(arrays), *shape[at:]), np.result_type(*arrays))  # of complex steps too
    before = (slice(None),) * at
    for k, values in enumerate(arrays):
        out[(*before, k)] = values
    return out


def ln_sum(*ln_terms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of a sum of terms given by their logarithms, shape (..., n), and each term's share of it, (k, ..., n)."""
    z = stacked(ln_terms)
    top = z.max(axis=0)
    shares = np.exp(z - top)
    total = shares.sum(axis=0)
    shares /= total
    return top + np.log(total), shares

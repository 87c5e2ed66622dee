"""What a law is: a formula with named parameters, its derivatives, a physical box and where to look for the optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from moescale.typing import FloatArray, Real


@dataclass(frozen=True, slots=True)
class Inputs:
    """The variables of a law at n points: natural logarithms of size and tokens, and plain expert counts, shape (n,).

    `experts_distinct` and `experts_index` factor the expert counts, of which there are few, so that a formula in E is
    evaluated once for each distinct value.
    """

    ln_n: FloatArray
    ln_d: FloatArray
    experts: FloatArray
    experts_distinct: FloatArray
    experts_index: np.typing.NDArray[np.intp]
    extra: Mapping[str, FloatArray] = field(
        default_factory=dict[str, FloatArray]
    )  # further variables by name, such as unique_tokens, (n,)

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


# theta has shape (..., p) in search coordinates (logarithms where Parameter.log); answers add an axis of n points.
LogLoss = Callable[[FloatArray, Inputs], FloatArray]


@dataclass(frozen=True, slots=True)
class LinearPart:
    """How a law is linear in some parameters once the others are fixed: L = exp(offset) * (basis @ amplitudes).

    `amplitudes` and `shape` are column numbers of theta. `basis(shape values (..., s), inputs)` gives (..., n, k),
    `offset` gives (..., n). `region` is the (s, 2) range of the shape parameters that a search scans.
    """

    amplitudes: tuple[int, ...]
    shape: tuple[int, ...]
    basis: LogLoss
    offset: LogLoss
    region: Callable[[Observed], FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class LawForm:
    """A scaling law as a formula; coefficients live in `Law`.

    `log_loss(theta, inputs)` is ln L, shape (..., n); `jacobian` its derivatives, (..., n, p); `curvature(theta, inputs,
    w)` the weighted sum over points of its second derivatives, (..., p, p); `slopes` the derivatives of ln L with
    respect to ln N and ln D, each (..., n). `bounds(observed)` is the physical box, (p, 2), in search coordinates.
    """

    name: str
    title: str
    equation: str
    source: str
    parameters: tuple[Parameter, ...]
    encode: Callable[[FloatArray], FloatArray]  # public units -> search coordinates, any leading shape
    decode: Callable[[FloatArray], FloatArray]  # and back
    log_loss: LogLoss
    jacobian: LogLoss
    slopes: Callable[[FloatArray, Inputs], tuple[FloatArray, FloatArray]]
    bounds: Callable[[Observed], FloatArray]
    uses_experts: bool
    uses_tokens: bool = True
    domain: str = "amplitudes are positive"  # of the public parameters; outside, `encode` is not finite
    curvature: Callable[[FloatArray, Inputs, FloatArray], FloatArray] | None = None  # None: differences of the jacobian
    linear: LinearPart | None = None  # None: the search scans `region` instead
    region: Callable[[Observed], FloatArray] | None = None  # (p, 2) in search coordinates, where `linear` is None
    # Further variables by name, with their defaults (None: must be given).
    extra_inputs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    # Further inputs (n,) that expert counts (n,) and top_k imply, where a plan may set them by itself.
    implied_inputs: Callable[[FloatArray, Real], Mapping[str, FloatArray]] | None = None
    no_allocation: str | None = None  # why a budget has no loss-optimal size under this form, where it has none
    published_grid: Callable[[Observed], tuple[FloatArray, ...]] | None = None  # one axis of starts a parameter
    loss_optimal: Callable[[FloatArray, float, float], tuple[float, float]] | None = (
        None  # closed form where one exists
    )
    # Equation 4 of Yun et al. (its parameters first, then ln N0 if there is one more), which the search of the paper's
    # grid knows how to factorise, and how theta holds E_start.
    equation4: Literal["ratio", "spread"] | None = None
    free: LawForm | None = None  # the same law in coordinates and limits that admit unphysical values

    @property
    def names(self) -> tuple[str, ...]:
        """Public names of the parameters, in the order of theta."""
        return tuple(parameter.name for parameter in self.parameters)


def ln_sum(*ln_terms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of a sum of terms given by their logarithms, shape (..., n), and each term's share of it, (k, ..., n)."""
    z = np.stack(np.broadcast_arrays(*ln_terms))
    top = z.max(axis=0)
    shares = np.exp(z - top)
    total = shares.sum(axis=0)
    shares /= total
    return top + np.log(total), shares

"""What a law is: a formula with named parameters, its derivatives, a physical box and where to look for the optimum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from moescale.errors import InputError, nearest_names
from moescale.typing import BoolArray, FloatArray, Real

# An amplitude of 1e-6 is as good as absent at any size; e^60 is beyond that of any term of a measurable loss.
AMPLITUDE = (float(np.log(1e-6)), 60.0)
EXPONENT = (0.0, 3.0)
Value = TypeVar("Value")
STEP = 1e-30  # of a complex step, whose error is its square
MOST_TOGETHER = 12_000  # derivatives that are taken side by side: what more of them cost is arithmetic


@dataclass(frozen=True, slots=True)
class Inputs:
    """The variables of a law at n points: ln of size and tokens, expert counts, further ones by name, (n,) each."""

    ln_n: FloatArray
    ln_d: FloatArray
    experts: FloatArray
    extra: Mapping[str, FloatArray] = field(default_factory=dict[str, FloatArray])

    def rows(self, chosen: np.typing.NDArray[np.intp]) -> Inputs:
        """The inputs at the chosen points only."""
        extra = {name: values[chosen] for name, values in self.extra.items()}
        return Inputs(self.ln_n[chosen], self.ln_d[chosen], self.experts[chosen], extra)


def make_inputs(n_params: Real, tokens: Real, experts: Real, extra: Mapping[str, Real] | None = None) -> Inputs:
    """Inputs of a law from sizes, tokens, expert counts and further variables, broadcast and flattened to (n,)."""
    further = dict(extra or {})
    given = (np.asarray(values, dtype=float) for values in (n_params, tokens, experts, *further.values()))
    n, d, e, *rest = (values.ravel() for values in np.broadcast_arrays(*given))
    return Inputs(np.log(n), np.log(d), e, dict(zip(further, rest, strict=True)))


@dataclass(frozen=True, slots=True)
class Observed:
    """What the box and the search of a law may depend on: largest expert count, smallest loss, typical size."""

    experts_max: float
    loss_min: float
    n_params_mid: float = 1e9  # geometric mean of the sizes


# theta has shape (..., p) in search coordinates; answers add an axis of n points.
LogLoss = Callable[[FloatArray, Inputs], FloatArray]
Shape = Sequence[Any]  # shape parameters, each (..., 1)
Parts = Callable[[Shape, Inputs], tuple[Sequence[FloatArray | float], FloatArray | float]]
Columns = Mapping[str, FloatArray]  # parameters by name, all of one shape
Mapped = Callable[[Columns], FloatArray]
Ends = tuple[float, float]
Limits = Ends | Callable[[Observed], Ends]


def below_losses(observed: Observed) -> Ends:
    """The box of the logarithm of an irreducible loss: below the smallest loss."""
    return AMPLITUDE[0], float(np.log(observed.loss_min))


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a law: its public name, and how a search moves it.

    What moves is its logarithm where `log`, else itself, or what `to_search` makes of the public parameters and
    `to_public` turns back. It stays in `box`, by default AMPLITUDE or EXPONENT, and begins in `scan`; an amplitude of
    `parts` has none.
    """

    name: str
    log: bool
    meaning: str
    scan: Limits | None = None
    box: Limits | None = None
    to_search: Mapped | None = None
    to_public: Mapped | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LawForm:
    """A scaling law as a formula; coefficients live in `Law`.

    A form that is linear in its amplitudes states `parts`: ln L = offset + ln sum_k exp(theta_k + ln column_k). Of the
    other parameters, each (..., 1), and the inputs they give ln columns, one array (..., n) or number an amplitude but
    not all of them numbers, and the offset. Another form states `ln_loss`. Both must take complex numbers, whose steps
    give all derivatives.
    """

    name: str
    title: str
    equation: str
    source: str
    parameters: tuple[Parameter, ...]
    uses_experts: bool
    uses_tokens: bool = True
    of_sources: bool = False  # draws are coefficients of sources that were not seen: a plan promises by them
    of_models: bool = False  # N is the active body and E the expansion of models.coordinates, whatever the family
    parts: Parts | None = None
    ln_loss: LogLoss | None = None
    domain: str = "amplitudes are positive"  # of the public parameters; outside, `encode` is not finite
    # Further variables by name, with their defaults (None: must be given).
    extra_inputs: Mapping[str, float | None] = field(default_factory=dict[str, "float | None"])
    # Further inputs (n,) that expert counts (n,) and top_k imply, where a plan may set them by itself.
    implied_inputs: Callable[[FloatArray, Real], Mapping[str, FloatArray]] | None = None
    no_allocation: str | None = None  # why a budget has no loss-optimal size under this form, where it has none
    amplitudes: list[int] = field(init=False)  # columns of theta that the form is linear in
    shape: list[int] = field(init=False)  # all others

    def __post_init__(self) -> None:
        linear = [bool(self.parts) and parameter.scan is None for parameter in self.parameters]
        object.__setattr__(self, "amplitudes", [j for j, is_linear in enumerate(linear) if is_linear])
        object.__setattr__(self, "shape", [j for j, is_linear in enumerate(linear) if not is_linear])

    @property
    def names(self) -> tuple[str, ...]:
        """Public names of the parameters, in the order of theta."""
        return tuple(parameter.name for parameter in self.parameters)

    def bounds(self, observed: Observed) -> FloatArray:
        """The physical box in search coordinates, (p, 2)."""
        boxes = (p.box or (AMPLITUDE if p.log else EXPONENT) for p in self.parameters)
        return np.array([box(observed) if callable(box) else box for box in boxes])

    def region(self, observed: Observed) -> FloatArray:
        """Where a search of the shape begins, (s, 2)."""
        found = self.bounds(observed)
        for j, scan in enumerate(parameter.scan for parameter in self.parameters):
            if scan is not None:
                found[j] = scan(observed) if callable(scan) else scan
        return found[self.shape]

    def encode(self, public: FloatArray) -> FloatArray:
        """Search coordinates from public units, any leading shape (..., p)."""
        with np.errstate(all="ignore"):
            return self._mapped(public, [p.to_search for p in self.parameters], np.log)

    def decode(self, theta: FloatArray) -> FloatArray:
        """Public units from search coordinates, any leading shape (..., p)."""
        return self._mapped(theta, [p.to_public for p in self.parameters], np.exp)

    def _mapped(
        self, values: FloatArray, own: Sequence[Mapped | None], usual: Callable[[FloatArray], FloatArray]
    ) -> FloatArray:
        given = dict(zip(self.names, np.moveaxis(np.asarray(values, dtype=float), -1, 0), strict=True))
        plain = [usual(given[p.name]) if p.log else given[p.name] for p in self.parameters]
        return stacked([values if of is None else of(given) for of, values in zip(own, plain, strict=True)], -1)

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L at each point, shape (..., n)."""
        return self.ln_loss(theta, x) if self.ln_loss else self._terms(theta, x)[1]

    def jacobian(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """Derivatives of ln L in search coordinates, shape (..., n, p)."""
        if not self.parts:
            return complex_jacobian(self.log_loss, theta, x)
        shape, _, shares = self._terms(theta, x)
        out = np.empty((*shares.shape[1:], theta.shape[-1]))
        out[..., self.amplitudes] = np.moveaxis(shares, 0, -1)
        if out.size <= MOST_TOGETHER:  # one call takes as long as a number of them
            ones = np.eye(len(shape)).reshape(len(shape), len(shape), *(1,) * (shares.ndim - 1))
            stepped = [part + 1j * STEP * row for part, row in zip(shape, ones, strict=True)]
            out[..., self.shape] = np.moveaxis(self._derivative(shares[:, None], stepped, x), 0, -1)
            return out
        for j, column in enumerate(self.shape):
            stepped = (*shape[:j], shape[j] + 1j * STEP, *shape[j + 1 :])
            out[..., column] = self._derivative(shares, stepped, x)
        return out

    def slopes(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n), by complex steps."""
        with np.errstate(invalid="ignore"):  # where there is no model its size is NaN
            in_n = self.log_loss(theta, replace(x, ln_n=x.ln_n + 1j * STEP)).imag / STEP
            return in_n, self.log_loss(theta, replace(x, ln_d=x.ln_d + 1j * STEP)).imag / STEP

    def basis(self, shape: FloatArray, x: Inputs) -> FloatArray:
        """What the amplitudes multiply, offset included, (..., n, k), at shape parameters (..., s)."""
        assert self.parts
        columns, offset = self.parts(_apart(shape), x)
        return np.exp(stacked(columns, -1) + np.asarray(offset)[..., None])

    def _terms(self, theta: FloatArray, x: Inputs) -> tuple[Shape, FloatArray, FloatArray]:
        """The shape, ln L, and the share of each term in it, (k, ..., n)."""
        assert self.parts
        shape = _apart(theta[..., self.shape])
        columns, offset = self.parts(shape, x)
        logs = (theta[..., k, None] + column for k, column in zip(self.amplitudes, columns, strict=True))
        total, shares = ln_sum(*logs)
        return shape, total + offset, shares

    def _derivative(self, shares: FloatArray, shape: Shape, x: Inputs) -> FloatArray:
        """That of ln L along a complex step in the shape or the inputs, (..., n)."""
        assert self.parts
        columns, offset = self.parts(shape, x)
        total = np.zeros(np.broadcast_shapes(shares.shape[1:], *map(np.shape, (*columns, offset))))
        for share, column in zip((*shares, 1.0), (*columns, offset), strict=True):
            if isinstance(column, np.ndarray) and column.dtype.kind == "c":
                total += share * column.imag
        return total / STEP


def _apart(values: FloatArray) -> Shape:
    return [values[..., j, None] for j in range(values.shape[-1])]


def complex_jacobian(log_loss: LogLoss, theta: FloatArray, x: Inputs) -> FloatArray:
    """Derivatives of ln L in search coordinates, (..., n, p), by a complex step in each."""
    steps = 1j * STEP * np.eye(theta.shape[-1])
    return np.stack([log_loss(theta + step, x).imag / STEP for step in steps], axis=-1)


def stacked(arrays: Sequence[FloatArray | float], axis: int = 0) -> FloatArray:
    """Arrays that broadcast, along a new axis; half the time of numpy's own two steps where the arrays are small."""
    out = np.empty((len(arrays), *np.broadcast(*arrays).shape), np.result_type(*arrays))  # of complex steps too
    for k, values in enumerate(arrays):
        out[k] = values
    return np.moveaxis(out, 0, axis)


def ln_sum(*ln_terms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """ln of a sum of terms given by their logarithms, shape (..., n), and each term's share of it, (k, ..., n)."""
    z = stacked(ln_terms)
    top = z.max(axis=0)
    shares = np.exp(z - top)
    total = shares.sum(axis=0)
    shares /= total
    return top + np.log(total), shares


def ln_add(a: Any, b: Any) -> FloatArray:
    """ln(e^a + e^b), of complex steps too."""
    less = b - a
    first = np.real(less) < 0.0
    return np.where(first, a, b) + np.log1p(np.exp(np.where(first, less, -less)))


# Variables beyond size, tokens and experts.

RANGES: dict[str, Callable[[FloatArray], BoolArray]] = {
    "above 0": lambda values: values > 0.0,
    "from 0": lambda values: values >= 0.0,
    "from 0 and below 1": lambda values: (values >= 0.0) & (values < 1.0),
    "from 1": lambda values: values >= 1.0,
}


class FurtherInput(NamedTuple):
    """A named variable: what it is, and which of RANGES it lies in."""

    meaning: str
    range_text: str


FURTHER_INPUTS = {
    "unique_tokens": FurtherInput("tokens of distinct data; runs with more tokens repeat it", "above 0"),
    "granularity": FurtherInput("d_ff over the width of one expert", "above 0"),
    "sparsity": FurtherInput("share of weights or of experts that is not used, as the law says", "from 0 and below 1"),
    "activated_experts": FurtherInput("experts that a token meets in a layer, shared ones included", "from 1"),
    "shared_ratio": FurtherInput("shared experts over all that a token meets in a layer", "from 0 and below 1"),
    "shared_ffn": FurtherInput("share of the FFN weights that a token meets which shared experts hold", "from 0"),
    "active_body": FurtherInput("parameters without embeddings that one token meets", "above 0"),
    "expansion": FurtherInput("FFN weights of all experts over those that one token meets", "from 1"),
}


def option(name: str) -> str:
    """The command line's option for a further input."""
    return f"--{name.replace('_', '-')}"


def further_inputs(form: LawForm, given: Mapping[str, Real] | None, *, where: str | None = None) -> dict[str, Real]:
    """Every further input of `form`: as given, else its default; each a number or an array in its range."""
    values = dict(given or {})
    for name in values:
        if name not in form.extra_inputs:
            what, nearest = f"{form.name} has no input {name!r}", nearest_names(name, form.extra_inputs)
            known = f"further inputs of {form.name}: {', '.join(form.extra_inputs) or 'none'}"
            advice = f"leave it out, or take a law that has it ({known})"
            raise InputError(what, where=where, nearest=nearest, next_step=advice)
    filled: dict[str, Real] = {}
    for name, default in form.extra_inputs.items():
        value = values.get(name, default)
        if value is None:
            what = f"{form.name} needs {name} ({FURTHER_INPUTS[name].meaning})"
            advice = f"give {option(name)}, or a column {name!r} in a table of runs"
            raise InputError(what, where=where, next_step=advice)
        array, allowed = np.asarray(value, dtype=float), FURTHER_INPUTS[name].range_text
        if (wrong := ~RANGES[allowed](array)).any():
            what = f"{name} is {array[wrong].flat[0]:g}"
            raise InputError(what, where=where, next_step=f"give a number {allowed}")
        filled[name] = value
    return filled


def known_to(form: LawForm, given: Mapping[str, Value]) -> dict[str, Value]:
    """Those of the given inputs that the form has: what one of several laws takes from a shared table or budget."""
    return {name: value for name, value in given.items() if name in form.extra_inputs}


def check_names(forms: Sequence[LawForm], given: Mapping[str, Real]) -> None:
    """InputError for a given input that none of the forms has."""
    for name in given:
        if not any(name in form.extra_inputs for form in forms):
            what = f"no input {name!r} in {', '.join(form.name for form in forms)}"
            raise InputError(what, where=option(name), next_step="leave it out, or take a law that has it")

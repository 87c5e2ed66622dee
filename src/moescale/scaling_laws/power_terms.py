"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..): all of their calculus follows from a list of terms.

The logarithm of every term is linear in the search coordinates (ln amplitudes and exponents), so ln L is a log-sum-exp of
linear functions: its jacobian is the mean of the terms' slopes, its curvature their variance, both weighted by the terms'
shares of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from moescale.scaling_laws.form import Inputs, LinearPart, Observed, ln_sum
from moescale.typing import FloatArray

Variables = Callable[[Inputs], dict[str, FloatArray]]  # logarithms by name, each (n,); ln N is "n", ln D is "d"


def size_and_data(x: Inputs) -> dict[str, FloatArray]:
    """ln N and ln D under the names of terms."""
    return {"n": x.ln_n, "d": x.ln_d}


@dataclass(frozen=True, slots=True)
class Term:
    """exp(theta[amplitude]) / product of variable^theta[exponent]; `exponents` maps a variable to its column."""

    amplitude: int
    exponents: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class PowerTerms:
    """A sum of terms over p search coordinates. theta has shape (..., p); x holds n points."""

    terms: tuple[Term, ...]
    n_parameters: int
    variables: Variables = size_and_data

    def _shares(self, theta: FloatArray, x: Inputs) -> tuple[dict[str, FloatArray], FloatArray, FloatArray]:
        """The variables, ln L (..., n), and the share of each term in L, (k, ..., n)."""
        values = self.variables(x)
        t = theta[..., None, :]

        def ln_term(term: Term) -> FloatArray:
            powers = (t[..., column] * values[name] for name, column in term.exponents.items())
            return t[..., term.amplitude] - sum(powers, start=np.zeros_like(x.ln_n))

        total, shares = ln_sum(*(ln_term(term) for term in self.terms))
        return values, total, shares

    def _slopes(self, term: Term, values: Mapping[str, FloatArray]) -> tuple[list[int], list[FloatArray]]:
        """The columns that a term depends on and the derivatives of its logarithm in them: independent of theta."""
        one = np.ones_like(values["n"])
        rows = [one, *(-values[name] * one for name in term.exponents)]
        return [term.amplitude, *term.exponents.values()], rows

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L at each point, shape (..., n)."""
        return self._shares(theta, x)[1]

    def jacobian(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """Derivatives of ln L in search coordinates, shape (..., n, p)."""
        values, _, shares = self._shares(theta, x)
        out = np.zeros((*shares.shape[1:], self.n_parameters))
        for share, term in zip(shares, self.terms, strict=True):
            for column, slope in zip(*self._slopes(term, values), strict=True):
                out[..., column] += share * slope
        return out

    def curvature(self, theta: FloatArray, x: Inputs, w: FloatArray) -> FloatArray:
        """Weighted sum over points of the second derivatives of ln L, shape (..., p, p), for weights (..., n)."""
        values, _, shares = self._shares(theta, x)
        mean = self.jacobian(theta, x)
        h = -np.swapaxes(mean * w[..., None], -1, -2) @ mean
        for share, term in zip(shares, self.terms, strict=True):
            columns, rows = self._slopes(term, values)
            v = np.stack(rows, axis=-2)
            h[..., np.array(columns)[:, None], columns] += (v * (w * share)[..., None, :]) @ np.swapaxes(v, -1, -2)
        return h

    def slopes(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
        shares = self._shares(theta, x)[2]

        def along(name: str) -> FloatArray:
            parts = (
                -theta[..., None, term.exponents[name]] * share
                for share, term in zip(shares, self.terms, strict=True)
                if name in term.exponents
            )
            return sum(parts, start=np.zeros(shares.shape[1:]))

        return along("n"), along("d")

    def linear(self, region: Mapping[int, tuple[float, float]]) -> LinearPart:
        """The form as linear in its amplitudes; `region` gives the scanned range of each exponent by its column."""
        amplitudes = tuple(term.amplitude for term in self.terms)
        columns = tuple(region)
        limits = np.array(list(region.values()))

        place = {column: position for position, column in enumerate(columns)}

        def basis(shape: FloatArray, x: Inputs) -> FloatArray:
            values = self.variables(x)
            zero = np.zeros((*shape.shape[:-1], x.ln_n.size))
            logs = [
                sum((-shape[..., place[c], None] * values[name] for name, c in term.exponents.items()), start=zero)
                for term in self.terms
            ]
            return np.exp(np.stack(logs, axis=-1))

        def offset(shape: FloatArray, x: Inputs) -> FloatArray:
            return np.zeros((*shape.shape[:-1], x.ln_n.size))

        def scanned(observed: Observed) -> FloatArray:
            return limits

        return LinearPart(amplitudes, columns, basis, offset, scanned)

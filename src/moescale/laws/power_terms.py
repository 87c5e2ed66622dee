"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..): all of their calculus follows from a list of terms.

The logarithm of every term is linear in the search coordinates (ln amplitudes and exponents), so ln L is a log-sum-exp of
linear functions: its jacobian is the mean of the terms' slopes, its curvature their variance, both weighted by the terms'
shares of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from moescale.architecture import FloatArray
from moescale.laws.form import Inputs, LinearPart, Observed, ln_sum

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

    def _slopes(self, x: Inputs) -> FloatArray:
        """Derivatives of the logarithm of each term in theta, (k, n, p): they do not depend on theta."""
        values = self.variables(x)
        slopes = np.zeros((len(self.terms), x.ln_n.size, self.n_parameters))
        for k, term in enumerate(self.terms):
            slopes[k, :, term.amplitude] = 1.0
            for name, column in term.exponents.items():
                slopes[k, :, column] = -values[name]
        return slopes

    def _shares(self, theta: FloatArray, slopes: FloatArray) -> tuple[FloatArray, FloatArray]:
        return ln_sum(*(theta @ slope.T for slope in slopes))

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L at each point, shape (..., n)."""
        return self._shares(theta, self._slopes(x))[0]

    def jacobian(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """Derivatives of ln L in search coordinates, shape (..., n, p)."""
        slopes = self._slopes(x)
        return _mean(self._shares(theta, slopes)[1], slopes)

    def curvature(self, theta: FloatArray, x: Inputs, w: FloatArray) -> FloatArray:
        """Weighted sum over points of the second derivatives of ln L, shape (..., p, p), for weights (..., n)."""
        slopes = self._slopes(x)
        shares = self._shares(theta, slopes)[1]
        mean = _mean(shares, slopes)
        h = -np.swapaxes(mean * w[..., None], -1, -2) @ mean
        for share, slope in zip(shares, slopes, strict=True):
            h += (slope * (w * share)[..., None]).swapaxes(-1, -2) @ slope
        return h

    def slopes(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
        shares = self._shares(theta, self._slopes(x))[1]

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

        def basis(shape: FloatArray, x: Inputs) -> FloatArray:
            slopes = self._slopes(x)[:, :, list(columns)]
            return np.stack([np.exp(shape @ slope.T) for slope in slopes], axis=-1)

        def offset(shape: FloatArray, x: Inputs) -> FloatArray:
            return np.zeros((*shape.shape[:-1], x.ln_n.size))

        def scanned(observed: Observed) -> FloatArray:
            return limits

        return LinearPart(amplitudes, columns, basis, offset, scanned)


def _mean(shares: FloatArray, slopes: FloatArray) -> FloatArray:
    """Mean of the terms' slopes (k, n, p) under their shares (k, ..., n), shape (..., n, p)."""
    out = np.zeros((*shares.shape[1:], slopes.shape[-1]))
    for share, slope in zip(shares, slopes, strict=True):
        out += share[..., None] * slope
    return out

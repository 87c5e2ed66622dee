"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..): all of their calculus follows from a list of terms.

The logarithm of every term is linear in the search coordinates (ln amplitudes and exponents), so ln L is a log-sum-exp of
linear functions: its jacobian is the mean of the terms' slopes, weighted by their shares of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moescale.scaling_laws import form
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, limits, ln_sum
from moescale.typing import FloatArray

# Logarithms by name, each (n,), beside those of N, D and E, "n", "d" and "e".
Variables = Callable[[Inputs], dict[str, FloatArray]]
Ranges = Mapping[str, tuple[float, float]]  # of parameters by name


@dataclass(frozen=True, slots=True)
class Term:
    """amplitude / product of variable^exponent; `exponents` maps a variable ("n", "d", "e" or one's own) to its exponent's name."""

    amplitude: str
    exponents: Mapping[str, str] = field(default_factory=dict[str, str])


def power_law(
    *,
    parameters: tuple[Parameter, ...],
    terms: tuple[Term, ...],
    scan: Ranges,
    box: Ranges | None = None,
    variables: Variables = lambda _: {},
    **about: Any,
) -> LawForm:
    """The form that is the sum of these terms; `about` are further fields of LawForm.

    `scan` is where a search looks for each exponent. The physical box is AMPLITUDE, EXPONENT and, for a term without
    variables, below the smallest loss, but for what `box` says.
    """
    columns = {parameter.name: column for column, parameter in enumerate(parameters)}
    constants = {term.amplitude for term in terms if not term.exponents}
    own = dict(box or {})

    def bounds(observed: Observed) -> FloatArray:
        usual = {p.name: form.AMPLITUDE if p.log else form.EXPONENT for p in parameters}
        return np.array(list((usual | dict.fromkeys(constants, observed.irreducible) | own).values()))

    numbered = [(columns[t.amplitude], {name: columns[e] for name, e in t.exponents.items()}) for t in terms]
    calculus = PowerTerms(numbered, variables)
    return LawForm(
        parameters=parameters,
        bounds=bounds,
        log_loss=calculus.log_loss,
        jacobian=calculus.jacobian,
        slopes=calculus.slopes,
        linear=calculus.linear({columns[name]: scanned for name, scanned in scan.items()}),
        uses_experts=any("e" in term.exponents for term in terms),
        **about,
    )


@dataclass(frozen=True, slots=True)
class PowerTerms:
    """The calculus of terms (column of the amplitude, columns of the exponents by variable) of theta (..., p)."""

    terms: list[tuple[int, dict[str, int]]]
    variables: Variables

    def _values(self, x: Inputs) -> dict[str, FloatArray]:
        return {"n": x.ln_n, "d": x.ln_d, "e": np.log(x.experts), **self.variables(x)}

    def _shares(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """ln L (..., n), and the share of each term in L, (k, ..., n)."""
        values, t, zero = self._values(x), theta[..., None, :], np.zeros_like(x.ln_n)
        return ln_sum(
            *(
                t[..., amplitude] - sum((t[..., c] * values[name] for name, c in exponents.items()), start=zero)
                for amplitude, exponents in self.terms
            )
        )

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L at each point, shape (..., n)."""
        return self._shares(theta, x)[0]

    def jacobian(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """Derivatives of ln L in search coordinates, shape (..., n, p)."""
        values, shares = self._values(x), self._shares(theta, x)[1]
        out = np.zeros((*shares.shape[1:], theta.shape[-1]))
        for share, (amplitude, exponents) in zip(shares, self.terms, strict=True):
            out[..., amplitude] += share
            for name, column in exponents.items():
                out[..., column] -= share * values[name]
        return out

    def slopes(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
        shares = self._shares(theta, x)[1]
        slope = np.zeros((2, *shares.shape[1:]))
        for share, (_, exponents) in zip(shares, self.terms, strict=True):
            for along, name in enumerate("nd"):
                if name in exponents:
                    slope[along] -= theta[..., None, exponents[name]] * share
        return slope[0], slope[1]

    def linear(self, scan: Mapping[int, tuple[float, float]]) -> LinearPart:
        """The form as linear in its amplitudes; `scan` gives the scanned range of each exponent by its column."""
        place = {column: position for position, column in enumerate(scan)}

        def basis(shape: FloatArray, x: Inputs) -> FloatArray:
            values, zero = self._values(x), np.zeros((*shape.shape[:-1], x.ln_n.size))
            logs = [
                sum((-shape[..., place[c], None] * values[name] for name, c in exponents.items()), start=zero)
                for _, exponents in self.terms
            ]
            return np.exp(np.stack(logs, axis=-1))

        amplitudes = tuple(amplitude for amplitude, _ in self.terms)
        return LinearPart(amplitudes, tuple(scan), basis, limits(list(scan.values())))

"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..): all of their calculus follows from a list of terms."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moescale.scaling_laws import form
from moescale.scaling_laws.form import Inputs, LawForm, LinearPart, Observed, Parameter, Shape, limits
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
    place = {name: position for position, name in enumerate(scan)}
    constants = {term.amplitude for term in terms if not term.exponents}

    def bounds(observed: Observed) -> FloatArray:
        usual = {p.name: form.AMPLITUDE if p.log else form.EXPONENT for p in parameters}
        return np.array(list((usual | dict.fromkeys(constants, observed.irreducible) | dict(box or {})).values()))

    def parts(shape: Shape, x: Inputs) -> tuple[list[FloatArray | float], float]:
        values = {"n": x.ln_n, "d": x.ln_d, "e": np.log(x.experts), **variables(x)}
        return [-sum(shape[place[e]] * values[v] for v, e in term.exponents.items()) for term in terms], 0.0

    amplitudes, shape = (tuple(columns[name] for name in names) for names in ((t.amplitude for t in terms), scan))
    return LawForm(
        parameters=parameters,
        bounds=bounds,
        linear=LinearPart(amplitudes, shape, parts, limits(list(scan.values()))),
        uses_experts=any("e" in term.exponents for term in terms),
        **about,
    )

"""Laws that are a sum of power terms, L = sum_k a_k / (v^p w^q ..); published ones: catalogue/power_laws.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.scaling_laws.form import Columns, Inputs, LawForm, Parameter, Shape, below_losses
from moescale.typing import FloatArray, Real

# Logarithms, (n,) each, of what terms are powers of.
VARIABLES: dict[str, Callable[[Inputs], FloatArray]] = {
    "n": lambda x: x.ln_n,
    "d": lambda x: x.ln_d,
    "e": lambda x: np.log(x.experts),
    "granularity": lambda x: np.log(x.extra["granularity"]),
    "dense_per_kept": lambda x: -np.log1p(-x.extra["sparsity"]),
    "active_share": lambda x: np.log1p(-x.extra["sparsity"]),
}


def power_law(*, parameters: tuple[Parameter, ...], terms: Mapping[str, Mapping[str, str]], **about: Any) -> LawForm:
    """The form that is the sum of `terms`: by amplitude, the exponents of VARIABLES in it."""
    scanned = [parameter.name for parameter in parameters if parameter.scan]
    powers = [terms[parameter.name] for parameter in parameters if not parameter.scan]
    used = {name for of_term in powers for name in of_term}

    def parts(shape: Shape, x: Inputs) -> tuple[list[FloatArray | float], float]:
        exponents = dict(zip(scanned, shape, strict=True))
        values = {name: VARIABLES[name](x) for name in used}
        return [-sum(exponents[e] * values[v] for v, e in of_term.items()) for of_term in powers], 0.0

    return LawForm(parameters=parameters, parts=parts, uses_experts="e" in used, **about)


def sparsity_of(experts: FloatArray, top_k: Real) -> dict[str, FloatArray]:
    """S of models that activate min(top_k, E) of E experts; same shape."""
    return {"sparsity": 1.0 - np.minimum(top_k, experts) / experts}


def _parameter(name: str, row: Mapping[str, Any]) -> Parameter:
    scan, box = (tuple(row[key]) if key in row else None for key in ("scan", "box"))
    found = Parameter(name, scan is None, row["meaning"], scan, below_losses if row.get("irreducible") else box)
    if (power := row.get("power")) is None:
        return found

    # The logarithm of the term's amplitude moves.
    def to_search(given: Columns) -> FloatArray:
        return np.log(given[name]) * given[power]

    def to_public(moved: Columns) -> FloatArray:
        return np.exp(moved[name] / moved[power])

    return replace(found, to_search=to_search, to_public=to_public)


def _published(name: str, row: Mapping[str, Any]) -> LawForm:
    return power_law(
        name=name,
        **{key: row[key] for key in ("title", "equation", "source", "terms")},
        parameters=tuple(_parameter(each, about) for each, about in row["parameters"].items()),
        extra_inputs=dict.fromkeys(row.get("needed", ())) | row.get("inputs", {}),
        implied_inputs=sparsity_of if row.get("implied_sparsity") else None,
    )


POWER_LAWS = {name: _published(name, row) for name, row in catalogue.read("power_laws.toml").items()}

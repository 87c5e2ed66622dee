"""Variables of laws beyond size, tokens and experts: their meaning, valid range, and how the missing ones are filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from moescale.errors import InputError, nearest_names
from moescale.scaling_laws.form import LawForm
from moescale.typing import FloatArray, Real

Column = np.typing.NDArray[Any]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class FurtherInput:
    """A named variable: what it is, and the half-open or open range [low, high) that it lies in."""

    meaning: str
    low: float
    high: float
    includes_low: bool

    def allows(self, values: FloatArray) -> np.typing.NDArray[np.bool_]:
        """Where values are in range, same shape."""
        above = values >= self.low if self.includes_low else values > self.low
        return above & ((values < self.high) | (np.isposinf(values) & np.isposinf(self.high)))

    @property
    def range_text(self) -> str:
        """The range in words."""
        below = "" if np.isinf(self.high) else f" and below {self.high:g}"
        return f"{'from' if self.includes_low else 'above'} {self.low:g}{below}"


FURTHER_INPUTS = {
    name: FurtherInput(meaning, low, high, includes_low)
    for name, low, high, includes_low, meaning in (
        ("unique_tokens", 0.0, np.inf, False, "tokens of distinct data; runs with more tokens repeat it"),
        ("granularity", 0.0, np.inf, False, "d_ff over the width of one expert"),
        ("sparsity", 0.0, 1.0, True, "share of weights or of experts that is not used, as the law says"),
        ("activated_experts", 1.0, np.inf, True, "experts that a token meets in a layer, shared ones included"),
        ("shared_ratio", 0.0, 1.0, True, "shared experts over all that a token meets in a layer"),
        ("shared_ffn", 0.0, np.inf, True, "share of the FFN weights that a token meets which shared experts hold"),
        ("active_body", 0.0, np.inf, False, "parameters without embeddings that one token meets"),
        ("expansion", 1.0, np.inf, True, "FFN weights of all experts over those that one token meets"),
    )
}


def option(name: str) -> str:
    """The command line's option for a further input."""
    return f"--{name.replace('_', '-')}"


def further_inputs(form: LawForm, given: Mapping[str, Real] | None, *, where: str | None = None) -> dict[str, Real]:
    """Every further input of `form`: as given, else its default; each a number or an array.

    Raises InputError for a name that the form does not have, a value out of range, and a missing one without a default.
    """
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
        array = np.asarray(value, dtype=float)
        wrong = ~FURTHER_INPUTS[name].allows(array)
        if wrong.any():
            advice = f"give a number {FURTHER_INPUTS[name].range_text}"
            raise InputError(f"{name} is {array[wrong].flat[0]:g}", where=where, next_step=advice)
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


def from_columns(
    form: LawForm, columns: Mapping[str, Column], experts: FloatArray, *, source: str
) -> dict[str, FloatArray]:
    """The further inputs of the form that a table of runs has as columns, (n,) each.

    What the expert counts (n,) and a column top_k imply is filled in where no column states it. Raises InputError for a
    column that is not numeric or has a gap.
    """
    found: dict[str, FloatArray] = {}
    for name, column in known_to(form, columns).items():
        if column.dtype.kind != "f" or np.isnan(column).any():
            what = f"column {name!r} holds cells that are not numbers, or none at all"
            advice = f"fill them in ({FURTHER_INPUTS[name].meaning}), or leave the rows out with --where"
            raise InputError(what, where=source, next_step=advice)
        found[name] = column.astype(float)
    top_k = columns.get("top_k")
    if form.implied_inputs and top_k is not None and top_k.dtype.kind == "f" and np.isfinite(top_k).all():
        return {**form.implied_inputs(experts, top_k), **found}
    return found

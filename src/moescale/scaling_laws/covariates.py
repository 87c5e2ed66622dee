"""Variables of laws beyond size, tokens and experts: their meaning, valid range, and how the missing ones are filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError, nearest_names
from moescale.scaling_laws.form import LawForm
from moescale.typing import FloatArray, Real

Value = TypeVar("Value")


RANGES: dict[str, Callable[[FloatArray], NDArray[np.bool_]]] = {
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

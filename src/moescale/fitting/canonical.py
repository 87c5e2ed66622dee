"""Runs as a fit sees them: in an order that their numbers alone decide, losses in a unit of their own, sizes as a form's variables.

A sum in another order differs in its last digit, which searches along flat valleys enlarge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError
from moescale.models.coordinates import expansion, in_family, model_of
from moescale.models.family import ModelFamily, match_family, width
from moescale.runs.expansion import LEAST, OF_ROUTED, expert_shape
from moescale.runs.expansion import expansion as stated_expansion
from moescale.runs.table import SIZE_COLUMNS, RunTable
from moescale.scaling_laws.ensemble import MODEL_INPUTS, SHAPE_INPUTS, shape_inputs
from moescale.scaling_laws.form import FURTHER_INPUTS, Inputs, LawForm, further_inputs, known_to, make_inputs, option
from moescale.typing import FloatArray

Rows = NDArray[np.intp]

READ = tuple(sorted({*SIZE_COLUMNS, *LEAST, *FURTHER_INPUTS}))  # what a fit may read beside N, D, E and the loss
DECIMALS = 10  # of ln L: six more than losses are measured to, six fewer than a product keeps


def order(runs: RunTable) -> Rows:
    """The rows by tokens, experts, size, loss and the further columns that a fit reads, (n,)."""
    further = {
        name: runs.columns[name] for name in READ if name in runs.columns and runs.columns[name].dtype.kind == "f"
    }
    return RunArrays(runs.n_params, runs.tokens, runs.experts, runs.loss, further).order()


def without_unit(loss: FloatArray) -> tuple[FloatArray, float]:
    """ln of losses (n,) over their geometric mean, rounded so that the digits are the same in any unit; and ln of that mean."""
    ln_unit = float(np.log(loss).mean())
    return np.round(np.log(loss) - ln_unit, DECIMALS), ln_unit


def in_unit(form: LawForm, theta: FloatArray, ln_unit: float) -> FloatArray:
    """Coefficients (..., p) of a form that is linear in its amplitudes, with the loss multiplied by e^ln_unit."""
    moved = np.array(theta)
    moved[..., form.amplitudes] += ln_unit
    return moved


@dataclass(frozen=True, slots=True)
class RunArrays:
    """The numbers of a table of runs that a fit needs: (n,) float64 arrays, and further inputs by name."""

    n_params: FloatArray
    tokens: FloatArray
    experts: FloatArray
    loss: FloatArray
    extra: Mapping[str, FloatArray]

    def order(self) -> Rows:
        """The order of the runs, (n,), that their numbers alone decide."""
        return np.lexsort((*reversed([*self.extra.values()]), self.loss, self.n_params, self.experts, self.tokens))

    def where(self, keep: NDArray[np.bool_ | np.intp]) -> RunArrays:
        """The runs that a boolean mask keeps, or those of these positions."""
        extra = {name: values[keep] for name, values in self.extra.items()}
        return RunArrays(self.n_params[keep], self.tokens[keep], self.experts[keep], self.loss[keep], extra)


def inputs_of(form: LawForm, runs: RunArrays) -> Inputs:
    """What the form takes of the runs; further inputs that it does not have are left out."""
    return make_inputs(runs.n_params, runs.tokens, runs.experts, further_inputs(form, known_to(form, runs.extra)))


def run_arrays(
    form: LawForm, runs: RunTable, given: Mapping[str, float], family: ModelFamily | None = None
) -> tuple[RunArrays, list[str]]:
    """The runs of a table of a family (by default that of its columns) as a form's variables, and remarks."""
    found: dict[str, Any] = _from_columns(form, runs)
    for name, value in given.items():
        if name in runs.columns:
            what = f"the table has a column {name!r}, too"
            raise InputError(what, where=option(name), next_step="leave the option out")
        found[name] = value
    n, e, notes = runs.n_params, runs.experts, list[str]()
    takes_body = form.of_models or MODEL_INPUTS[0] in form.extra_inputs
    if takes_body:
        body, x, notes = models_of(runs, family or family_of(runs)[0])
        if form.of_models:
            n, e = body, x
        else:
            found |= dict(zip(MODEL_INPUTS, (body, x), strict=True))
    if takes_body and SHAPE_INPUTS[0] in form.extra_inputs:
        # What the table leaves open, an ensemble takes from its own family.
        shape = shape_inputs(family) if form.of_models and family else {}
        found = {**shape, **expert_shape(runs.experts, runs.columns), **found}
    further = further_inputs(form, found)
    extra = {name: np.broadcast_to(np.asarray(v, dtype=float), len(runs)) for name, v in further.items()}
    return RunArrays(n, runs.tokens, e, runs.loss, extra), [f"{form.name}: {note}" for note in notes]


def _from_columns(form: LawForm, runs: RunTable) -> dict[str, FloatArray]:
    """The further inputs that are columns, (n,) each, and those that expert counts and a column top_k imply."""
    found: dict[str, FloatArray] = {}
    for name, column in known_to(form, runs.columns).items():
        if column.dtype.kind != "f" or np.isnan(column).any():
            what = f"column {name!r} holds cells that are not numbers, or none at all"
            advice = f"fill them in ({FURTHER_INPUTS[name].meaning}), or leave the rows out with --where"
            raise InputError(what, where=runs.source, next_step=advice)
        found[name] = column.astype(float)
    top_k = runs.columns.get("top_k")
    if form.implied_inputs and top_k is not None and top_k.dtype.kind == "f" and np.isfinite(top_k).all():
        return {**form.implied_inputs(runs.experts, top_k), **found}
    return found


def models_of(runs: RunTable, family: ModelFamily) -> tuple[FloatArray, FloatArray, list[str]]:
    """Active body and expansion of each run, (n,) each, as the table states them, else as the family has them; remarks."""
    plain, notes = replace(family, embedding_matrices=0), list[str]()
    stated, columns = any(name in runs.columns for name in OF_ROUTED), runs.columns
    if not any(name in columns for name in ("expansion", "moe_every", "routing_frequency")):
        # How many layers have experts is what total parameters tell, which the family was matched to.
        columns = {**columns, "moe_every": np.full(len(runs), family.moe_every, float)}
    x = stated_expansion(runs.experts, columns) if stated else expansion(plain, runs.experts)
    body = runs.active_body
    if body is None:
        # A column of active sizes is expanded already.
        dense = family.n_counts == "dense" and not has_active_column(runs)
        body = model_of(plain, runs.n_params, runs.experts)[0] if dense else runs.n_params
        notes.append(f"the table has no sizes without embeddings (n_params_nonemb): using {runs.size_column}")
    if not stated and (runs.experts > 1.0).any():
        notes.append(f"the table has no column top_k: using the experts of family {family.name}")
    return body, x, notes


def law_family(form: LawForm, family: ModelFamily) -> ModelFamily:
    """The family whose N and E are the variables of a form: of one that speaks of models, the active body and X."""
    if not form.of_models:
        return family
    return replace(family, top_k=1, moe_every=1, embedding_matrices=0, n_counts="dense")


def with_vocabulary_of(family: ModelFamily, runs: RunTable) -> ModelFamily:
    """The family with embedding tables as large as the runs', where these state their bodies."""
    body = runs.active_body
    plain = replace(family, embedding_matrices=0)
    if body is None or family.n_counts == "total":
        return plain
    without = body if has_active_column(runs) else in_family(plain, body, runs.expansion)[0]
    vocab_size = 0.5 * float(np.median((runs.n_params - without) / width(plain, without)))  # of two tables
    if abs(2.0 * vocab_size - family.embedding_matrices * family.vocab_size) < 0.05 * vocab_size:
        return family
    return replace(family, embedding_matrices=2, vocab_size=vocab_size) if vocab_size > 1.0 else plain


def family_of(runs: RunTable) -> tuple[ModelFamily, list[str]]:
    """The family that the columns of a table speak for, with remarks."""
    stated = {name: runs.columns.get(name) for name in ("top_k", "n_params_total")}
    numeric = {name: c if c is not None and c.dtype.kind == "f" else None for name, c in stated.items()}
    family, remarks = match_family(runs.n_params, runs.experts, **numeric)
    if runs.size_column == "n_params_total" and (runs.experts > 1.0).any():
        family = replace(family, n_counts="total")
    return family, remarks


def sizes_in_family(runs: RunTable, family: ModelFamily) -> RunArrays:
    """The runs with N and E as the family counts them, without further inputs."""
    n, e = in_family(family, *models_of(runs, family)[:2]) if has_active_column(runs) else (runs.n_params, runs.experts)
    return RunArrays(n, runs.tokens, e, runs.loss, {})


def states_active_body(runs: RunTable) -> bool:
    """Whether sizes are those of the body that a token meets, not the N of a family: every form takes them as models."""
    return runs.active_body is not None or has_active_column(runs)


def has_active_column(runs: RunTable) -> bool:
    return runs.size_column == "n_params_active"

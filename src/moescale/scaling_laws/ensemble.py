"""Several laws as one: each is asked about the same model as its family counts it, and the logarithms of their losses are averaged.

    ln L = sum_k w_k (ln L_k(N_k, D, E_k) + u_k)

(N_k, E_k) is the model (N, E) as law k's family counts it, or what the inputs `active_body` and `expansion` state;
u_k turns the unit of its loss into the ensemble's. A draw is a draw of one law, of each as many as its weight says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.models.coordinates import body_elasticity, expansion, experts_at, in_family, model_of, same_variables
from moescale.models.family import ModelFamily, elasticity, law_size
from moescale.scaling_laws.form import Ends, Inputs, LawForm, Parameter, known_to, stacked
from moescale.scaling_laws.law import ABOUT, Law, Member
from moescale.typing import FloatArray

DRAWS = 400  # of an ensemble: a law of weight 0.05 still has 20
NAME = "ensemble"
MODEL_INPUTS = ("active_body", "expansion")
SHAPE_INPUTS = ("granularity", "shared_ffn")  # that a family of models has, where they are not stated


def combine(
    members: Sequence[Member],
    *,
    name: str,
    family: ModelFamily,
    draws: int = DRAWS,
    fit_range: Mapping[str, Ends] | None = None,
    **about: Any,
) -> Law:
    """The weighted ensemble of laws as one law whose N and E are those of `family`; `about` are further fields of Law.

    Weights are scaled to sum to 1; `fit_range` is by default that of the members.
    """
    if not members or any(member.weight <= 0.0 for member in members):
        what = "an ensemble needs laws with positive weights"
        raise InputError(what, where=name, next_step="leave out laws without one")
    if family.n_counts != "dense":
        raise InputError(f"{family.name} counts all experts in N", where=name, next_step="take a family that does not")
    total = sum(member.weight for member in members)
    members = tuple(replace(member, weight=member.weight / total) for member in members)
    # The largest E that every member may speak of.
    limits = [(each.law.family, each.law.max_experts) for each in members if each.law.max_experts is not None]
    max_experts = min((float(experts_at(family, expansion(own, most))) for own, most in limits), default=None)
    return Law(
        name=name,
        form=_form(members, family),
        theta=np.concatenate([[member.weight for member in members], *(member.law.theta for member in members)]),
        family=family,
        fit_range=dict(fit_range or _ranges(members, family)),
        draws=_draws(members, draws),
        max_experts=max_experts,
        members=members,
        **about,
    )


def restate(law: Law, family: ModelFamily) -> Law:
    """The same law with N and E as another family counts them; an ensemble's members are restated one by one."""
    if same_variables(law.family, family) and not law.members:
        return replace(law, family=replace(law.family, convention=family.convention))
    if law.family == family:
        return law
    about = {key: getattr(law, key) for key in ABOUT}
    members = law.members or (Member(law, 1.0),)
    return combine(members, family=family, draws=len(law.draws), **about)


def measured_on(law: Law) -> list[ModelFamily]:
    """The families whose data and tokenizer a law's losses are of: of an ensemble, those of the members whose unit it took."""
    return [member.law.family for member in law.members if member.unit == 0.0] if law.members else [law.family]


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A member's place in theta, and how its N and E follow from the ensemble's."""

    law: Law
    unit: float  # u_k
    weight: int  # column of its weight
    columns: slice  # of its own theta
    family: ModelFamily  # of the ensemble
    same: bool  # whether N and E mean the same in both families

    def inputs(self, x: Inputs) -> Inputs:
        """The inputs of the member's law."""
        form, own = self.law.form, self.law.family
        extra = known_to(form, x.extra)
        if form.of_models:
            shape = {name: np.full(x.experts.shape, value) for name, value in shape_inputs(self.family).items()}
            extra |= {name: _stated(x, name, values) for name, values in known_to(form, shape).items()}
        if self.same and not form.implied_inputs:
            return replace(x, extra=extra)
        e = experts_at(own, _stated(x, "expansion", expansion(self.family, x.experts)))
        if form.implied_inputs:
            extra = {**form.implied_inputs(e, own.top_k), **extra}
        return Inputs(self.ln_size(x), x.ln_d, e, extra)

    def ln_size(self, x: Inputs) -> FloatArray:
        """ln N as the member's law counts it."""
        n = np.exp(x.ln_n)
        if self.same:
            return np.log(law_size(self.family, n, x.experts))
        body, ratio = model_of(self.family, n, x.experts)
        body, ratio = _stated(x, "active_body", body), _stated(x, "expansion", ratio)
        return np.log(law_size(self.law.family, *in_family(self.law.family, body, ratio)))

    def elasticity(self, x: Inputs) -> FloatArray | float:
        """d ln N as the member's law counts it / d ln N, of the families' own models, whatever the inputs state of them."""
        if self.same:
            return 1.0
        own, n = self.law.family, np.exp(x.ln_n)
        body, ratio = model_of(self.family, n, x.experts)
        size, experts = in_family(own, body, ratio)
        moved = body_elasticity(self.family, n, x.experts) / body_elasticity(own, size, experts)
        return moved * elasticity(own, size, law_size(own, size, experts)) if own.n_counts == "total" else moved

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L in the ensemble's unit, (1, ..., n)."""
        return (self.unit + self.law.form.log_loss(theta, self.inputs(x)))[None]

    def slopes(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """Derivatives of ln L with respect to the ensemble's ln N and ln D, (2, ..., n)."""
        in_n, in_d = self.law.form.slopes(theta, self.inputs(x))
        return stacked((in_n * self.elasticity(x), in_d))


def _stated(x: Inputs, name: str, otherwise: FloatArray) -> FloatArray:
    """A further input where it is stated, which is where it is finite."""
    return np.where(np.isfinite(x.extra[name]), x.extra[name], otherwise) if name in x.extra else otherwise


def shape_inputs(family: ModelFamily) -> dict[str, float]:
    """Granularity, 8 d_model^2 over the parameters of a routed expert, and the shared experts' share of what a token meets."""
    one = family.ffn_matrices * family.ffn_ratio * family.expert_width
    return {"granularity": 8.0 / one, "shared_ffn": family.shared_experts / (family.top_k + family.shared_experts)}


def _form(members: Sequence[Member], family: ModelFamily) -> LawForm:
    names, forms = [member.law.name for member in members], [member.law.form for member in members]
    parts: list[_Part] = []
    labels = [n if names.count(n) == 1 else f"{n}-{names[: i + 1].count(n)}" for i, n in enumerate(names)]
    parameters = [Parameter(f"{label}.weight", False, f"share of {label} in the average") for label in labels]
    for column, (label, member) in enumerate(zip(labels, members, strict=True)):
        columns = slice(len(parameters), len(parameters) + member.law.theta.size)
        parts.append(_Part(member.law, member.unit, column, columns, family, same_variables(member.law.family, family)))
        parameters += [replace(p, name=f"{label}.{p.name}") for p in member.law.form.parameters]
    needed: dict[str, float | None] = {}
    for form in forms:
        implied = form.implied_inputs(np.ones(1), 1.0) if form.implied_inputs else {}
        needed |= {name: value for name, value in form.extra_inputs.items() if name not in implied}
    if not all(part.same for part in parts):
        needed |= dict.fromkeys(MODEL_INPUTS, np.inf)
    if all(form.of_models for form in forms):
        needed |= {name: np.inf for name in SHAPE_INPUTS if name in needed}
    alone = forms[0] if len(forms) == 1 else None
    return EnsembleForm(
        name=alone.name if alone else NAME,
        title=alone.title if alone else f"average of {len(forms)} laws",
        equation=alone.equation if alone else f"ln L = sum of w_k ln L_k over {', '.join(labels)}",
        source="; ".join(dict.fromkeys(form.source for form in forms)),
        parameters=tuple(parameters),
        members=tuple(parts),
        uses_experts=any(form.uses_experts or form.implied_inputs for form in forms),
        of_sources=alone is not None and alone.of_sources,
        uses_tokens=any(form.uses_tokens for form in forms),
        extra_inputs=needed,
        no_allocation=next((form.no_allocation for form in forms if form.no_allocation), None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleForm(LawForm):
    """The form of an ensemble: the weights, and the parameters of each member; no search fits it."""

    members: tuple[_Part, ...]

    def encode(self, public: FloatArray) -> FloatArray:
        """All members' search coordinates; weights are the same in both."""
        theta = np.array(public, dtype=float)
        for part in self.members:
            theta[..., part.columns] = part.law.form.encode(theta[..., part.columns])
        return theta

    def decode(self, theta: FloatArray) -> FloatArray:
        """All members' public units."""
        public = np.array(theta, dtype=float)
        for part in self.members:
            public[..., part.columns] = part.law.form.decode(public[..., part.columns])
        return public

    def log_loss(self, theta: FloatArray, x: Inputs) -> FloatArray:
        """ln L at each point, shape (..., n)."""
        return self._sums(_Part.log_loss, 1, theta, x)[0]

    def slopes(self, theta: FloatArray, x: Inputs) -> tuple[FloatArray, FloatArray]:
        """Derivatives of ln L with respect to ln N and ln D at each point, each (..., n)."""
        in_n, in_d = self._sums(_Part.slopes, 2, theta, x)
        return in_n, in_d

    def _sums(
        self, values: Callable[[_Part, FloatArray, Inputs], FloatArray], count: int, theta: FloatArray, x: Inputs
    ) -> FloatArray:
        """sum_k w_k value_k, (count, ..., n), without members that have no weight."""
        shape = np.broadcast_shapes((*theta.shape[:-1], 1), x.ln_n.shape, x.ln_d.shape)
        out = np.zeros((count, *shape), theta.dtype)  # of complex steps too
        for part in self.members:
            if (weight := theta[..., part.weight, None]).any():
                out += weight * values(part, theta[..., part.columns], x)
        return out


def _draws(members: Sequence[Member], count: int) -> FloatArray:
    """`count` draws (count, p), of each member as many as its weight says, spread evenly over its own."""
    ends = np.round(np.cumsum([0.0, *(member.weight for member in members)]) * count).astype(int)
    own = np.concatenate([np.zeros(len(members)), *(member.law.theta for member in members)])
    out, at = np.tile(own, (int(ends[-1]), 1)), len(members)
    for k, law in enumerate(member.law for member in members):
        rows, columns = slice(ends[k], ends[k + 1]), slice(at, at + law.theta.size)
        out[rows, k] = 1.0
        if len(law.draws):
            picked = np.linspace(0, len(law.draws) - 1, int(ends[k + 1] - ends[k]))
            out[rows, columns] = law.draws[np.round(picked).astype(int)]
        at = columns.stop
    return out


def _ranges(members: Sequence[Member], family: ModelFamily) -> dict[str, tuple[float, float]]:
    found: dict[str, list[float]] = {}
    for law in (member.law for member in members):
        for key, ends in law.fit_range.items():
            moved = np.array(ends)
            if key == "n_params" and not same_variables(law.family, family):
                moved = in_family(family, *model_of(law.family, moved, 1.0))[0]
            if key == "experts":
                moved = experts_at(family, expansion(law.family, moved))
            found.setdefault(key, []).extend(moved.tolist())
    return {key: (min(ends), max(ends)) for key, ends in found.items()}

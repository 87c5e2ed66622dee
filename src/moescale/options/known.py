"""Models that exist, as users state them: published ones and configs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.bounds import TOKENS
from moescale.errors import InputError, located
from moescale.options.fields import Group, Remark, text, unsaid, within
from moescale.units import format_count

if TYPE_CHECKING:
    from moescale.planning.question import KnownModel

STATED_TOKENS = within(TOKENS)
# Of the published model that a plan shows where none is named: its year, and the ratio of FLOPs.
SINCE, FAR = "2024", 4.0


@dataclass(frozen=True, kw_only=True)
class ComparedModels(Group):
    """Models to set side by side.

    >>> models = ComparedModels(models=["llama-3.1-8b", "olmoe-1b-7b:10T"]).known()
    """

    models: list[str] | None = text(
        "Two or more models; published names, or config.json:15T (with its training tokens).",
        name="MODEL..",
    )

    def known(self, remark: Remark = unsaid) -> tuple[KnownModel, ...]:
        """The models in their order; InputError that names the one that is wrong."""
        return tuple(stated_model(stated, "MODEL..", remark) for stated in self.models or ())


def stated_model(stated: str, option: str, remark: Remark = unsaid) -> KnownModel:
    """The model that a text states: NAME[:TOKENS] or CONFIG.json:TOKENS; InputError that names the option."""
    from moescale.models.hf_config import read_config
    from moescale.planning.question import KnownModel

    path, _, tail = stated.rpartition(":")
    named = path if path and tail[:1].isdigit() else stated
    if not (named.endswith(".json") or Path(named).exists()):
        return published_model(stated, option)
    if named == stated:
        raise InputError("needs its training tokens", where=stated, next_step=f"write {stated}:15T")
    checkpoint = read_config(named)
    for said in checkpoint.remarks:
        remark(said)
    name = f"{_short(named)}:{tail}"
    tokens = STATED_TOKENS.parse(tail, option, remark)
    return KnownModel(name=name, architecture=checkpoint.architecture, tokens=tokens, weights=checkpoint.weights)


def published_model(stated: str, option: str) -> KnownModel:
    """The published model NAME, or NAME:TOKENS where its tokens are stated; InputError that names the option."""
    from moescale.models.published import find_shape
    from moescale.planning.question import KnownModel

    name, _, tail = stated.partition(":")
    with located(option):
        found = find_shape(name)
    tokens = STATED_TOKENS.parse(tail, option) if tail else found.tokens
    if tokens is None:
        raise InputError(
            f"the training tokens of {name} are not published",
            where=option,
            next_step=f"state them, as {name}:15T; `moescale models` lists those that are known",
        )
    own = found.architecture.name
    return KnownModel(
        name=f"{own}:{format_count(tokens)}" if tail else own,
        architecture=found.architecture,
        tokens=tokens,
        weights=found.weights,
    )


def nearest_published(flops: float) -> tuple[KnownModel, ...]:
    """The published model of SINCE and later whose training FLOPs are nearest to these, one with experts if it can; none
    beyond a factor of FAR."""
    from moescale.models.published import published_shapes

    known = [(name, found) for name, found in published_shapes().items() if found.tokens and found.date >= SINCE]
    models = [published_model(name, "--against") for name, _ in known]
    near = [model for model in models if 1.0 / FAR <= model.training_flops / flops <= FAR]
    near.sort(key=lambda m: (m.architecture.n_experts == 1, abs(math.log(m.training_flops / flops))))
    return tuple(near[:1])


def _short(path: str) -> str:
    named = Path(path)
    return named.parent.name or named.name if named.name == "config.json" else named.name

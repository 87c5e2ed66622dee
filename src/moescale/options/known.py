"""Models that exist or are planned, as users state them: published ones, configs, rows of a plan."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from moescale.bounds import TOKENS
from moescale.errors import InputError, located
from moescale.io.files import nearest_file_names
from moescale.models.hf_config import read_config
from moescale.models.published import find_shape, published_shapes
from moescale.options.fields import Remark, ignore, within
from moescale.planning.plan_file import read_plan
from moescale.planning.question import KnownModel
from moescale.units import format_count

STATED_TOKENS = within(TOKENS)
# Of the published model that a plan shows where none is named: its year, and the ratio of FLOPs.
SINCE, FAR = "2024", 4.0
PLAN_ROWS: tuple[str, ...] = (
    *("recommendation", "least-spend", "for-volume", "lower-loss", "knee", "more-sure", "less-sure"),
    *("quality", "balanced", "cheapest"),
)


def stated_model(stated: str, option: str, remark: Remark = ignore) -> KnownModel:
    """The model that a text states: NAME[:TOKENS], CONFIG.json:TOKENS or PLAN.json:ROW; InputError that names the option."""
    path, _, tail = stated.rpartition(":")
    if tail in PLAN_ROWS and path:
        return _of_plan(path, tail)
    named = path if path and tail[:1].isdigit() else stated
    if not (named.endswith(".json") or Path(named).exists() or path.endswith(".json")):
        return published_model(stated, option)
    if named == stated:
        what, nearest = "needs its training tokens, or the row of a plan", None
        next_step = f"write {stated}:15T, or {stated}:recommendation for what `moescale plan --json` printed"
        if path.endswith(".json") and Path(path).exists():
            what, nearest = f"{tail!r} is no row of a plan", f"{path}:recommendation"
            next_step = f"write :15T, its training tokens, or one of {', '.join(PLAN_ROWS)}"
        raise InputError(what, where=stated, nearest=nearest, next_step=next_step)
    checkpoint = read_config(named)
    for said in checkpoint.remarks:
        remark(said)
    name = f"{_short(named)}:{tail}"
    tokens = STATED_TOKENS.parse(tail, option, remark)
    built = checkpoint.architecture
    return KnownModel(name=name, architecture=built, tokens=tokens, weights=checkpoint.weights, released=True)


def published_model(stated: str, option: str) -> KnownModel:
    """The published model NAME, or NAME:TOKENS where its tokens are stated; InputError that names the option."""
    name, _, tail = stated.partition(":")
    with located(option):
        found = find_shape(name)
    tokens = STATED_TOKENS.parse(tail, option) if tail else found.tokens
    if tokens is None:
        next_step = f"state them, as {name}:15T; `moescale models` lists those that are known"
        raise InputError(f"the training tokens of {name} are not published", where=option, next_step=next_step)
    own = found.architecture.name
    return KnownModel(
        name=f"{own}:{format_count(tokens)}" if tail else own,
        architecture=found.architecture,
        tokens=tokens,
        released=found.tokens in (None, tokens),
        weights=found.weights,
        trained_in=found.trained_in,
        trained_in_source=found.trained_in_source,
    )


def published_models(since: str = "") -> list[KnownModel]:
    """The published models whose training tokens are known, from a year on."""
    dated = published_shapes().items()
    return [published_model(name, "--against") for name, found in dated if found.tokens and found.date >= since]


def nearest_published(flops: float) -> tuple[KnownModel, ...]:
    """The published model of SINCE and later whose training FLOPs are nearest to these, one with experts if it can; none
    beyond a factor of FAR."""
    near = [model for model in published_models(SINCE) if 1.0 / FAR <= model.training_flops / flops <= FAR]
    near.sort(key=lambda m: (m.architecture.n_experts == 1, abs(math.log(m.training_flops / flops))))
    return tuple(near[:1])


def _short(path: str) -> str:
    named = Path(path)
    return named.parent.name or named.name if named.name == "config.json" else named.name


def _of_plan(path: str, row: str) -> KnownModel:
    if not Path(path).exists():
        step = f"`moescale plan .. --json > {path}` writes one"
        raise InputError("no such file", where=path, nearest=nearest_file_names(path), next_step=step)
    plan, name = read_plan(path), f"{_short(path)}:{row}"
    trained_in = plan.training and plan.training.precision  # fp8, or None
    own: dict[str, Any] = {"name": name, "planned": True, "trained_in": trained_in, "trained_in_source": "its plan"}
    decided, life, others = plan.decision, plan.lifetime, plan.choices
    spends = life.least_training if plan.of_life and life else next(iter(plan.least_training), None)
    rows = {
        "recommendation": replace(decided.model, architecture=decided.architecture),
        **{"least-spend": spends, "for-volume": plan.for_volume},
        **{"more-sure": plan.more_sure, "less-sure": plan.less_sure},
        **{"lower-loss": others.quality, "quality": others.quality},
        **{"knee": others.balanced, "balanced": others.balanced},
        "cheapest": others.cheapest,
    }
    model = rows[row]
    if model is None:
        listed = ", ".join(name for name, known in rows.items() if known is not None)
        raise InputError(f"the plan has no {row} row", where=path, nearest=listed, next_step="take one of these")
    if model.architecture is None:
        again = "write it again with `moescale plan --json`"
        raise InputError(f"the plan does not say how its {row} row is built", where=path, next_step=again)
    return KnownModel(architecture=model.architecture.architecture(), tokens=model.tokens, **own)

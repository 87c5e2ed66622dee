"""Which names and derivations to try for the columns that a mapping file leaves open."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any

from moescale import catalogue
from moescale.io.filters import quoted_name
from moescale.runs.importers.rules import Rule
from moescale.runs.importers.tracked_run import STEP, TrackedRun
from moescale.runs.table import EXPERTS_COLUMN, SIZE_COLUMNS, TOKENS_COLUMN

LOSS_COLUMN = "loss"


@cache
def _catalogue() -> Mapping[str, Any]:
    return MappingProxyType(catalogue.read("tracked_names.toml"))


def _plain(name: str) -> str:
    return re.sub(r"[/.\-\s:]+", "_", name.lower())


def _usable(run: TrackedRun, name: str) -> bool:
    value = run.params.get(name)
    if value is None:
        return name in run.metrics and len(run.metrics[name].values) > 0
    return isinstance(value, float) and value > 0


def _guess_name(runs: Sequence[TrackedRun], column: str) -> Rule | None:
    """The name of the catalogue that most runs have, of the first tier that any has."""
    plain = {name: _plain(name) for run in runs for name in (*run.params, *run.metrics)}
    for tier in _catalogue()[column]:
        names, endings = tier.get("names", []), tier.get("endings", [])
        ranked: list[tuple[int, int, str]] = []
        for name, text in plain.items():
            ended = next((ending for ending in endings if text.endswith(f"_{ending}")), None)
            pattern = text if text in (*names, *endings) else ended
            count = sum(_usable(run, name) for run in runs) if pattern is not None else 0
            if count:
                ranked.append((-count, [*names, *endings].index(pattern), name))
        if ranked:
            return Rule(name=min(ranked)[2], at=tier.get("at", "last"))
    return None


def guess(runs: Sequence[TrackedRun], column: str) -> list[Rule]:
    """The rules to try in turn for a column that the mapping leaves open."""
    named = _guess_name(runs, column) if column in _catalogue() else None
    if column == LOSS_COLUMN:
        own_row = {EXPERTS_COLUMN, TOKENS_COLUMN, LOSS_COLUMN, "n_params_dense"}  # that moescale's own trainer leaves
        if any(own_row <= set(run.params) for run in runs):
            return [Rule(name=LOSS_COLUMN, of="param")]
        if named is not None and any(named.name in run.metrics for run in runs):
            named = replace(named, of="metric")
        return [named] if named else []  # one for all: a training loss is not comparable with one of validation
    shaped = [Rule(derived="shape")] if column in (*SIZE_COLUMNS, EXPERTS_COLUMN, "top_k") else []
    own = [Rule(name=column, of="param")] if any(column in run.params for run in runs) else []
    rules = [*own, *shaped, *([named] if named and named.name != column else [])]
    if column == TOKENS_COLUMN:
        rules = [named] if named else []
        parts = [_guess_name(runs, part) for part in ("batch_tokens", "batch_sequences", "sequence_tokens")]
        whole, *factors = [quoted_name(part.name) if part and part.name else "" for part in parts]
        if whole or all(factors):
            rules.append(Rule(expression=" * ".join([STEP, *([whole] if whole else factors)])))
        rules.append(Rule(derived="flos"))
    if column == EXPERTS_COLUMN:
        rules.append(Rule(derived="dense"))
    return rules

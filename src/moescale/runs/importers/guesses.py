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
from moescale.runs.importers.tracked_run import STEP, TrackedRun, bare
from moescale.runs.table import EXPERTS_COLUMN, SIZE_COLUMNS, TOKENS_COLUMN

LOSS_COLUMN = "loss"


@cache
def _catalogue() -> Mapping[str, Any]:
    return MappingProxyType(catalogue.read("tracked_names.toml"))


_UNIT = re.compile(r"(.+?)_(?:in_)?(k|m|b|g|t|thousands?|millions?|mn|billions?|bn|trillions?)")
_FACTORS = {"k": "1e3", "m": "1e6", "b": "1e9", "g": "1e9", "t": "1e12"}
_COUNTS = (*SIZE_COLUMNS, TOKENS_COLUMN, "batch_tokens")


def _plain(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", bare(name))
    return re.sub(r"[/.\-\s:()\[\]]+", "_", words.lower()).strip("_")


def _stem(text: str, column: str) -> tuple[str, str]:
    """A plain name without the unit that it ends in, and that unit's factor; without one where it is no count."""
    found = _UNIT.fullmatch(text) if column in _COUNTS else None
    if found is None:
        return text, ""
    factor = "1e3" if found[2].startswith("th") else "1e12" if found[2].startswith("tr") else _FACTORS[found[2][0]]
    return found[1], factor


def _usable(run: TrackedRun, name: str) -> bool:
    value = run.params.get(name)
    if value is None:
        return name in run.metrics and len(run.metrics[name].values) > 0
    return isinstance(value, float) and value > 0


def _guess_name(runs: Sequence[TrackedRun], column: str) -> Rule | None:
    """The name of the catalogue that most runs have, of the first tier that any has."""
    plain = {name: _plain(name) for run in runs for name in (*run.params, *run.metrics)}
    for tier in _catalogue()[column]:
        exact, names, endings = tier.get("exact", []), tier.get("names", []), tier.get("endings", [])
        ranked: list[tuple[int, int, str, str]] = []
        for name, text in plain.items():
            for stem, factor in dict.fromkeys(((text, ""), _stem(text, column))):
                ended = next((ending for ending in endings if stem.endswith(f"_{ending}")), None)
                pattern = name if name in exact else stem if stem in (*names, *endings) else ended
                count = sum(_usable(run, name) for run in runs) if pattern is not None else 0
                if count:
                    ranked.append((-count, [*exact, *names, *endings].index(pattern), name, factor))
                    break
        if ranked:
            _, _, name, factor = min(ranked)
            if factor:
                return Rule(expression=f"{quoted_name(name)} * {factor}")
            of_metric = any(name in run.metrics for run in runs)
            return Rule(name=name, at=tier.get("at", "last") if of_metric else "last")
    return None


def bits(runs: Sequence[TrackedRun]) -> str | None:
    """The name of a loss in bits per byte, where that is the only loss that a guess finds."""
    found = None if guess(runs, LOSS_COLUMN) else _guess_name(runs, "bits_per_byte")
    return None if found is None else found.name


def is_bits(name: str) -> bool:
    """Whether a name says bits per byte."""
    text, tier = _plain(name), _catalogue()["bits_per_byte"][0]
    return any(text == ending or text.endswith(f"_{ending}") for ending in tier["endings"])


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
        whole, *factors = [_as_expression(part) for part in parts]
        if whole or all(factors):
            rules.append(Rule(expression=" * ".join([STEP, *([whole] if whole else factors)])))
        rules.append(Rule(derived="flos"))
    if column == EXPERTS_COLUMN:
        rules.append(Rule(derived="dense"))
    return rules


def _as_expression(rule: Rule | None) -> str:
    if rule is None:
        return ""
    return rule.expression or quoted_name(rule.name or "")

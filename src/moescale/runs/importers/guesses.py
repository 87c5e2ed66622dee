"""Which names and derivations to try for the columns that a mapping file leaves open; for tiers see the head of tracked_names.toml."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from moescale import catalogue
from moescale.errors import InputError
from moescale.io.filters import quoted_name
from moescale.io.frames import COLUMN_LIMIT
from moescale.runs.expansion import BODY_COLUMNS
from moescale.runs.importers.tracked_run import STEP, Logged, Origin, Scalar, TrackedRun, bare
from moescale.runs.table import EXPERTS_COLUMN, SIZE_COLUMNS, TOKENS_COLUMN

LOSS_COLUMN = "loss"
SAME = 1e-6  # relative difference of two columns that state one value, each rounded
SHAPE = "the model's configuration (without embeddings)"
DENSE = "1 where nothing else says it"
FLOS = "total_flos / (6 times the parameters that Trainer counts)"
DERIVED = (SHAPE, DENSE, FLOS)  # texts of origins that are no names


@cache
def _synonyms() -> tuple[re.Pattern[str], Mapping[str, str]]:
    """A pattern of every phrase that stands for another, the longest first, and for which it stands."""
    stands_for = {
        phrase.replace(" ", "_"): word.replace(" ", "_")
        for word, phrases in catalogue.read("tracked_names.toml")["words"].items()
        for phrase in phrases
    }
    longest_first = "|".join(sorted(map(re.escape, stands_for), key=len, reverse=True))
    return re.compile(rf"(?:(?<=_)|^)(?:{longest_first})(?=_|$)"), stands_for


EXPERT_WORDS = re.compile("expert|moe", re.IGNORECASE)  # in a name of a run that is not dense
_UNIT = re.compile(
    r"(?:(.+?)_)?(?:in_)?(k|m|b|g|t|thousands?|millions?|mn|billions?|bn|trillions?|1e\d{1,2}|10_\d{1,2})(_tokens|_params)?"
)
_FACTORS = {"10_": "1e", "1e": "1e", "th": "1e3", "k": "1e3", "m": "1e6", "b": "1e9", "g": "1e9", "t": "1e12"}
_COUNTS = (*SIZE_COLUMNS, TOKENS_COLUMN, "batch_tokens")


@lru_cache(maxsize=COLUMN_LIMIT)
def plain(name: str) -> str:
    """A name as its words in lower case, joined by _, synonyms replaced (see the catalogue's tracked_names.toml)."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", bare(name)).replace("#", " n ")
    pattern, stands_for = _synonyms()
    text = re.sub(r"[\W_]+", "_", words.lower()).strip("_")
    found = [word for word in pattern.sub(lambda m: stands_for[m[0]], text).split("_") if word]
    return "_".join(word for i, word in enumerate(found) if i == 0 or word != found[i - 1])


def _stems(text: str, column: str) -> Iterator[tuple[str, str]]:
    """A plain name, and without the unit that it ends in, that unit's factor beside it; each also without n or count."""
    stems = [(text, "")]
    units = _UNIT.fullmatch(text) if column in _COUNTS else None
    if units is not None and (units[1] or units[3]):
        start, factor = next(pair for pair in _FACTORS.items() if units[2].startswith(pair[0]))
        stem = "_".join(filter(None, (units[1], (units[3] or "")[1:])))
        stems.append((stem, factor + units[2].removeprefix(start) if factor == "1e" else factor))
    for stem, factor in stems:
        yield stem, factor
        yield stem.removeprefix("n_").removesuffix("_count"), factor


@cache
def _tiers(column: str) -> tuple[Mapping[str, Any], ...]:
    """The tiers of a column as the catalogue's tracked_names.toml has them, all patterns plain names but for those that are exact."""
    kinds = dict.fromkeys(("exact", "never", "names", "endings", "all", "without"), ())
    return tuple(
        {k: v if k in ("exact", "never") or k not in kinds else tuple(map(plain, v)) for k, v in (kinds | tier).items()}
        for tier in catalogue.read("tracked_names.toml").get(column, ())
    )


def _met(name: str, column: str, tier: Mapping[str, Any]) -> tuple[int, str] | None:
    """The place of the first pattern of a tier that a name meets, and the factor of its unit; None where it meets none."""
    listed = (*tier["exact"], *tier["names"], *tier["endings"])
    for stem, factor in _stems(plain(name), column) if bare(name) not in tier["never"] else ():
        words = set(stem.split("_"))
        if not words.isdisjoint(tier["without"]):
            continue
        for place, pattern in enumerate(listed):
            text = name if pattern in tier["exact"] else stem
            if text == pattern or (pattern in tier["endings"] and text.endswith(f"_{pattern}")):
                return place, factor
        if tier["all"] and words.issuperset(tier["all"]):
            return len(listed), factor
    return None


def _value(run: TrackedRun, name: str) -> float | None:
    """The positive number that a run states under a name, of a metric its last; None where there is none."""
    value = run.value(name, math.nan)
    return value if isinstance(value, float) and (value > 0 or name not in run.params) else None


def may_be(name: str, column: str) -> bool:
    """Whether a name is one that a column is guessed from."""
    return any(_met(name, column, tier) for tier in _tiers(column))


def stated_wrongly(run: TrackedRun, column: str) -> tuple[str, Scalar] | None:
    """The name of the run that a column would be guessed from, and what stands there in place of a positive number."""
    found = ((name, value) for name, value in run.params.items() if _value(run, name) is None and may_be(name, column))
    return next(found, None)


class _Named(NamedTuple):
    """A name of the runs with the factor of its unit; none where no name fits, or where those that do state different values."""

    name: str = ""
    factor: str = ""
    mean_of: int = 1
    unclear: tuple[str, ...] = ()

    @property
    def expression(self) -> str:
        return quoted_name(self.name) + (f" * {self.factor}" if self.factor else "")


def _guess_name(runs: Sequence[TrackedRun], column: str) -> _Named:
    """The name of the catalogue that most runs have, of the first tier that any has; the column's own name before all."""
    names = dict.fromkeys(name for run in runs for name in (*run.params, *run.metrics) if name not in BODY_COLUMNS)
    for tier in _tiers(column):
        ranked: list[tuple[int, bool, int, int, str, str]] = []
        for name in names:
            count = sum(_value(run, name) is not None for run in runs)
            if count and (met := _met(name, column, tier)) is not None:
                ranked.append((-count, name != column, met[0], len(plain(name)), name, met[1]))
        if not ranked:
            continue
        best, *others = (found[-2:] for found in sorted(ranked))
        differ = [other for other in others if best[0] != column and _differ(runs, best, other)]
        if differ:
            return _Named(unclear=(best[0], *(name for name, _ in differ)))
        return _Named(*best, tier.get("mean_of", 1))
    return _Named()


def _differ(runs: Sequence[TrackedRun], *named: tuple[str, str]) -> bool:
    """Whether two names, each with the factor of its unit, have different values in any run."""
    for run in runs:
        stated = [(_value(run, name), float(factor or "1")) for name, factor in named]
        values = [value * factor for value, factor in stated if value is not None]
        if len(values) == 2 and not math.isclose(*values, rel_tol=SAME) and not all(map(math.isnan, values)):
            return True
    return False


def refuse_other_unit(names: Iterable[str], where: str) -> None:
    """Raise InputError for the first name that states a loss in another unit than nats per token."""
    for name in names:
        for tier in _tiers("other_unit"):
            if _met(name, "other_unit", tier) is not None:
                what = f"{name!r} is {tier['is']}, and a loss of a run table in nats per token"
                raise InputError(what, where=where, next_step=tier["advice"].replace("NAME", quoted_name(name)))


def guess(logged: Logged, column: str) -> tuple[list[Origin], tuple[str, ...]]:
    """The origins to try in turn for a column that nothing states, and the names that may be meant where these differ."""
    runs, found = logged.runs, _guess_name(logged.runs, column)
    if column == LOSS_COLUMN:  # one for all: a training loss is not one of validation
        return ([logged.loss(found.name, found.mean_of)] if found.name else []), found.unclear
    guessed: list[Origin] = []
    if found.name:
        guessed = [logged.computed(found.expression) if found.factor else logged.named(found.name)]
    if column == TOKENS_COLUMN:
        if found.unclear:
            return [], found.unclear
        batch, *sizes = (_guess_name(runs, part) for part in ("batch_tokens", "batch_sequences", "sequence_tokens"))
        factors = [batch] if batch.name else sizes
        unclear = next((each.unclear for each in (batch, *sizes) if each.unclear), ())
        if all(each.name for each in factors) and not unclear:
            guessed.append(logged.computed(" * ".join([STEP, *(each.expression for each in factors)])))
        guessed.append(Origin(FLOS, [run.tokens_of_flos for run in runs]))
        return guessed, () if found.name else unclear
    origins = [logged.named(column)] if any(column in run.params for run in runs) else []
    if column in (*SIZE_COLUMNS, EXPERTS_COLUMN, "top_k"):
        origins.append(Origin(SHAPE, [run.sizes.get(column) for run in runs]))
    origins += [origin for origin in guessed if origin.text != repr(column)]
    if column == EXPERTS_COLUMN and not found.unclear:
        origins.append(
            Origin(
                DENSE, [None if EXPERT_WORDS.search("\n".join((*run.params, *run.metrics))) else 1.0 for run in runs]
            )
        )
    return origins, found.unclear

"""Plans as files: what `plan --json` printed, read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from moescale.errors import DamagedFileError, InputError
from moescale.io.files import read_text
from moescale.io.json_text import parse_json
from moescale.models.rounding import Buildable
from moescale.planning.candidate import CostCurve
from moescale.planning.plan import Plan
from moescale.units import expert_label

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

LEAST, MOST = 1e-12, 1e40  # far beyond any ratio, size, cost or number of tokens
KINDS = ("Candidate", "Trained", "Unreachable", "Life", "model")  # of rows, which are no part of a place in a record
BOUNDS = {  # fields of a plan, and their places in a record
    "base_experts": "bounded_loss.base_experts",
    "base_loss": "bounded_loss.loss",
    "base_usd_per_mtok": "bounded_cost.usd_per_mtok",
}
MAY_BE_ZERO = ("probability_at_least_base", "probability", "expected", "worst", "regret", "weight")
SHARES = ("mfu", "probability_at_least_base", "probability", "weight", "confidence", "usual_confidence")
COLUMNS = ("n_params", "tokens", "loss", "usd_per_mtok")
AGAIN = "write it again with `moescale plan --json`"


def read_plan(path: str) -> Plan:
    """The plan of a file that holds the output of `plan --json`; every defect is an InputError that names the place."""
    return parse_plan(parse_json(read_text(path), where=path, next_step=AGAIN, finite=True), where=path)


def parse_plan(record: object, *, where: str) -> Plan:
    """The plan of a record as Plan.to_dict makes it; keys that it does not know are left alone, `curves` may be absent."""
    from pydantic import ValidationError

    if not isinstance(record, Mapping):
        raise InputError("is not a plan", where=where, next_step=AGAIN)
    if "infeasible" in record and "recommendation" not in record:
        raise InputError(
            f"this question has no answer: {record['infeasible']}", where=where, next_step="relax its bounds"
        )
    try:
        plan = _adapter().validate_python(_nested(cast("Mapping[str, Any]", record), where))
    except ValidationError as error:
        raise _first_fault(error, where) from None
    for place, what in _faults(plan, ()):
        raise _damaged(".".join(place) or "the top", what, where)
    return plan


@cache
def _adapter() -> TypeAdapter[Plan]:
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


def _nested(record: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of a plan from its record, where a model lies beside its reasons and a bound beside its rows."""
    told = dict(record) | {"recommendation": _advice(record.get("recommendation"))}
    for name, place in BOUNDS.items():
        part, key = place.split(".")
        table = record.get(part)
        if isinstance(table, Mapping):
            told |= {part: table.get("plans")} | ({name: table[key]} if key in table else {})
    lifetime = record.get("lifetime")
    if isinstance(lifetime, Mapping) and "infeasible" in lifetime:
        told |= {"lifetime": None, "lifetime_infeasible": lifetime["infeasible"]}
    elif isinstance(lifetime, Mapping):
        told["lifetime"] = {**lifetime, "recommendation": _advice(lifetime.get("recommendation"))}
    curves = record.get("curves", [])
    if not isinstance(curves, list):
        raise _damaged("curves", "not a list", where)
    found = [_curve(curve, f"curves.{i}", where) for i, curve in enumerate(curves)]
    return told | {"curves": [curve for curve in found if curve.n_params.size]}


def _advice(advice: object) -> object:
    return {**advice, "model": advice} if isinstance(advice, Mapping) else advice


def _curve(curve: Any, place: str, where: str) -> CostCurve:
    try:
        known = {name: np.array(curve[name], dtype=np.float64) for name in COLUMNS if name in curve}
        found = CostCurve(float(curve["experts"]), **known)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise _damaged(place, f"no columns of numbers ({error})", where) from None
    if len({values.shape for values in known.values()}) != 1 or found.n_params.ndim != 1:
        raise _damaged(place, f"{expert_label(found.experts)} has columns of different length", where)
    return found


def _damaged(place: str, what: str, where: str) -> DamagedFileError:
    return DamagedFileError(f"damaged plan at {place}: {what}", where=where, next_step=AGAIN)


def _first_fault(error: ValidationError, where: str) -> DamagedFileError:
    """What pydantic says first, of a row what it says of the kind of model that the row is nearest to."""
    found = min(error.errors(), key=lambda e: (e["type"] == "none_required", e["type"] == "missing"))
    path = [str(part) for part in found["loc"] if part not in KINDS]
    path = [*BOUNDS.get(path[0], path[0]).split("."), *path[1:]]
    of_a_row = len(path) < len(found["loc"]) or "".join(path[-2:-1]).isdigit()
    if of_a_row and (found["type"] == "missing" or found["input"] is None):
        return _damaged(".".join(path[:-1]), f"no {path[-1]}", where)
    return _damaged(".".join(path), found["msg"], where)


def _faults(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Numbers of a plan that no model has, with the place of their record; shapes and conditions are left alone."""
    if isinstance(value, Buildable):
        return
    if is_dataclass(value):
        for f in fields(value):
            yield from _faults(getattr(value, f.name), (*path, f.name))
    elif isinstance(value, tuple | np.ndarray):
        for i, part in enumerate(cast("Iterable[Any]", value)):
            yield from _faults(part, (*path, str(i)))
    elif path[-1] == "intervals" and value is not None:
        for name, (low, high) in value.items():
            least = LEAST if name in ("loss", "usd_per_mtok") else -MOST
            if not least <= low <= high <= MOST:
                yield path[:-1], f"intervals of {name}"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        least, most = (0.0 if path[-1] in MAY_BE_ZERO else LEAST), (1.0 if path[-1] in SHARES else MOST)
        if not least <= value <= most:
            yield path[:-1], f"{path[-1]} is {value:g}" if abs(value) < 1e300 else f"{path[-1]} is beyond all numbers"

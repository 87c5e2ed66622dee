"""The answer that a file holds: a plan, a law, or a comparison of laws."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from moescale.errors import InputError, damaged
from moescale.fitting.holdout import HoldOut, RunArrays
from moescale.io.files import decode_utf8, read_bytes
from moescale.planning.plan import Plan
from moescale.planning.plan_file import parse_json, parse_plan
from moescale.scaling_laws import Law
from moescale.scaling_laws.store import parse_law
from moescale.views.html.reports import Origin

MOST_ERROR = 100.0  # of a loss in nats, or of its logarithm: beyond, a record is no comparison
KINDS = "a plan (`plan --json`), a law (`fit -o LAW.toml`), or a comparison (`compare --json`)"


def read_answer(path: str | Path) -> tuple[Plan | Law | tuple[HoldOut, ...], Origin]:
    """The answer in a file and where it comes from; InputError for a file that holds none."""
    where = str(path)
    data = read_bytes(path)
    text = decode_utf8(data, where=where)
    origin = Origin(name=Path(path).name, sha256=hashlib.sha256(data).hexdigest())
    if where.lower().endswith(".toml"):
        law = parse_law(text, where=where)
        made: dict[str, object] = {}
        if isinstance(command := law.evidence.get("command"), str):
            made["command"] = command
        versions, table = law.evidence.get("versions"), law.evidence.get("table")
        if isinstance(versions, str) and versions.startswith("moescale "):
            made["moescale"] = versions.removeprefix("moescale ")
        if isinstance(table, str) and table:
            made["sha256"] = {table: law.evidence.get("table_sha256")}
        return law, replace(origin, made_with=made)
    record = parse_json(text, where=where)
    if isinstance(record, list) and record:
        first: object = record[0]
        made_with = first.get("made_with") if isinstance(first, Mapping) else None
        return parse_comparison(record, where=where), _with_made(origin, made_with)
    if isinstance(record, Mapping) and ("recommendation" in record or "infeasible" in record):
        return parse_plan(record, where=where), _with_made(origin, record.get("made_with"))
    if isinstance(record, Mapping) and {"law", "parameters", "rmsle"} <= set(record):
        raise InputError(
            "is the JSON of a fit, which holds no family and no draws",
            where=where,
            next_step="write the law with `moescale fit -o LAW.toml` and report that",
        )
    raise InputError("holds nothing to report", where=where, next_step=f"give {KINDS}")


def _with_made(origin: Origin, made: object) -> Origin:
    return replace(origin, made_with=dict(made)) if isinstance(made, Mapping) else origin


def parse_comparison(record: object, *, where: str) -> tuple[HoldOut, ...]:
    """The records of `compare --json`; InputError that names the defect. Held-out runs may be absent."""
    from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

    class Runs(BaseModel):
        model_config = ConfigDict(allow_inf_nan=False)
        n_params: list[float]
        tokens: list[float]
        experts: list[float]
        loss: list[float]
        residual: list[float]

    class Record(BaseModel):
        model_config = ConfigDict(allow_inf_nan=False)
        law: str
        n_train: int = Field(ge=1)
        n_holdout: int = Field(ge=1)
        rmsle_train: float = Field(ge=0, le=MOST_ERROR)
        rmsle_holdout: float = Field(ge=0, le=MOST_ERROR)
        bias_holdout: float = Field(ge=-MOST_ERROR, le=MOST_ERROR)
        parameters: int = Field(ge=0)
        held_out: Runs | None = None

    try:
        rows = TypeAdapter(list[Record]).validate_python(record)
    except ValidationError as error:
        raise damaged("comparison", error, where=where, next_step="write it again with `compare --json`") from None
    found: list[HoldOut] = []
    for row in rows:
        shared = (row.n_train, row.n_holdout, row.rmsle_train, row.rmsle_holdout, row.bias_holdout, row.parameters)
        if row.held_out is None:
            found.append(HoldOut(row.law, *shared))
            continue
        n, d, e, loss, residual = (np.array(values, dtype=np.float64) for _, values in row.held_out)
        sane = len({column.size for column in (n, d, e, loss, residual)}) == 1 and n.size > 0
        sane = sane and bool((e >= 1).all() and (loss > 0).all() and (loss < MOST_ERROR).all())
        if not sane or (np.abs(residual) > MOST_ERROR).any():
            raise InputError(
                f"damaged comparison: the held-out runs of {row.law}",
                where=where,
                next_step="write it again with `compare --json`",
            )
        found.append(HoldOut(row.law, *shared, RunArrays(n, d, e, loss, {}), residual))
    return tuple(found)

"""The answer that a file holds: a plan or a law."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from moescale.errors import InputError
from moescale.io.files import decode_utf8, read_bytes
from moescale.planning.plan import Plan
from moescale.planning.plan_file import parse_json, parse_plan
from moescale.scaling_laws import Law
from moescale.scaling_laws.store import parse_law
from moescale.views.html.reports import Origin

KINDS = "a plan (`plan --json`) or a law (`fit -o LAW.toml`)"


def read_answer(path: str | Path) -> tuple[Plan | Law, Origin]:
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

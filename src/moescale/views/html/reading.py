"""The plan that a file holds."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from moescale.errors import InputError
from moescale.io.files import decode_utf8, read_bytes
from moescale.planning.plan import Plan
from moescale.planning.plan_file import parse_json, parse_plan
from moescale.views.html.reports import Origin


def read_plan(path: str | Path) -> tuple[Plan, Origin]:
    """The plan in a file and where it comes from; InputError for a file that holds none."""
    where, data = str(path), read_bytes(path)
    record = parse_json(decode_utf8(data, where=where), where=where)
    if not isinstance(record, Mapping) or not {"recommendation", "infeasible"} & set(record):
        raise InputError("holds nothing to report", where=where, next_step="give a plan (`plan --json`)")
    made = record.get("made_with")
    origin = Origin(
        name=Path(path).name,
        sha256=hashlib.sha256(data).hexdigest(),
        made_with=dict(made) if isinstance(made, Mapping) else {},
    )
    return parse_plan(record, where=where), origin

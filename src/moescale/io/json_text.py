"""JSON texts, and files that hold an object, whose errors name file, line and what was expected."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, cast

from moescale.errors import DamagedFileError, InputError
from moescale.io.files import TEXT_LIMIT_BYTES, read_text

Pairs = Callable[[list[tuple[str, Any]]], Any]


def parse_json(
    text: str, *, where: str, next_step: str | None = None, finite: bool = False, pairs: Pairs | None = None
) -> Any:
    """The value of a JSON text, its objects made by `pairs`; raises InputError for what is none, or, if `finite`, NaN."""

    def refuse(name: str) -> object:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse if finite else None, object_pairs_hook=pairs)
    except InputError:  # of `pairs`
        raise
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DamagedFileError(f"is not JSON: {reason}", where=where, next_step=next_step) from error


def read_object(
    path: str | os.PathLike[str], *, limit_bytes: int = TEXT_LIMIT_BYTES, next_step: str | None = None
) -> dict[str, Any]:
    """The object of a JSON file; raises InputError as `files.read_text`, and for what holds none."""
    where = os.fspath(path)
    found = parse_json(read_text(path, limit_bytes=limit_bytes), where=where, next_step=next_step)
    if not isinstance(found, dict):
        raise DamagedFileError(f"holds a JSON {type(found).__name__}, not an object", where=where, next_step=next_step)
    return cast("dict[str, Any]", found)

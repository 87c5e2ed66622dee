"""Queries of the page's address: their keys, and the one form of equal questions. The server reads them without NumPy."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from moescale.errors import InputError
from moescale.options.fields import Described, FilePath, Quantity, Seconds, described, option_name
from moescale.options.law import LawOptions
from moescale.options.question import BoundOptions
from moescale.options.serving import DEFAULT_TRAFFIC, ServingOptions

VIEW_KEYS = ("theme", "bands", "size", "pins")  # how the page shows it; no part of the question
BUDGETS = ("budget", "days", "budget-usd")  # keys that state the budget
DEFAULT_BUDGET = "5.15e21"  # where none of them is there: that of the default plan
# By key: the options that hold it, its field, and what it is. None opens a file.
OPTIONS: Mapping[str, tuple[type, str, Described]] = {
    option_name(name, kind).removeprefix("--"): (group, name, kind)
    for group in (BoundOptions, LawOptions, ServingOptions)
    for name, kind in described(group).items()
    if not isinstance(kind, FilePath)
}
HELD = {
    "kv-cache": "bf16",
    "prompt": f"{DEFAULT_TRAFFIC[0]:g}",
    "output": f"{DEFAULT_TRAFFIC[1]:g}",
}  # where they are left out
UNITS = {Quantity: {"T": 1e12, "B": 1e9, "M": 1e6}, Seconds: {"s": 1.0, "ms": 1e-3}}


def canonical(query: Mapping[str, str]) -> dict[str, str]:
    """The question of a query as every equal one has it: keys in order, numbers in one form, no defaults, nothing that is only shown.

    What is no valid value stays as it is, to be refused.
    """
    found = {key: _text(key, value) for key, value in sorted(query.items()) if key not in VIEW_KEYS and value.strip()}
    held = {**HELD, "budget": DEFAULT_BUDGET} if not any(key in found for key in BUDGETS[1:]) else HELD
    return {key: text for key, text in found.items() if text != held.get(key, _default(key))}


def _default(key: str) -> str | None:
    group, name, _ = OPTIONS.get(key, (object, "", None))
    value = getattr(group, name, None)
    return None if value is None else _text(key, f"{value}")


def _text(key: str, text: str) -> str:
    """A value in its shortest exact form: 5.15e21, 15T, 50ms; a list without gaps."""
    kind = OPTIONS[key][2] if key in OPTIONS else None
    text = ",".join(part.strip() for part in text.split(","))
    if not isinstance(kind, (Quantity, Seconds)):
        return text
    with suppress(InputError):
        value = kind.parse(text, key)
        plain = f"{value:.15g}".replace("e+", "e")
        forms = [f"{value / size:.15g}{unit}" for unit, size in UNITS[type(kind)].items() if value >= size]
        exact = [form for form in (*forms, plain) if "e+" not in form and kind.parse(form, key) == value]
        return min(exact, key=len, default=text)
    return text

"""Checked access to the values of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from moescale.errors import InputError, nearest_names

LARGEST = 10**9  # no width, depth, vocabulary or number of experts comes near; beyond it products lose digits


def shown(value: Any) -> str:
    """The start of what `value` looks like."""
    try:
        return repr(value)[:60]
    except ValueError:  # Python refuses to print whole numbers of more than a few thousand digits
        return "a number of thousands of digits"
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply to show"


class Settings:
    """Checked access to one config: every answer is in range, every complaint names file and key.

    A key `a.b` is that of an object within; `called` are the config's names of keys. `seen` holds the keys that were asked
    for, or that the reader knows and has no use for.
    """

    def __init__(self, config: Mapping[str, Any], where: str, called: Mapping[str, str] | None = None) -> None:
        self.config = config
        self.where = where
        self.called = called or {}
        self.seen: set[str] = set()

    def get(self, key: str) -> Any:
        """The value as it stands; None where it is absent."""
        outer, _, inner = self.called.get(key, key).partition(".")
        self.seen.add(outer)
        value = self.config.get(outer)
        if not inner or value is None:
            return value
        if not isinstance(value, Mapping):
            raise self.bad(outer, "an object of settings")
        return cast("Mapping[str, Any]", value).get(inner)

    def bad(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.called.get(key, key)} must be {wanted}, not {shown(self.get(key))}", where=self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number under the first of `keys`; all of those present must agree. Null counts as absent."""
        present = {key: value for key in keys if (value := self.get(key)) is not None}
        if not present:
            if default is not None:
                return default
            named = [self.called.get(key, key) for key in keys]
            nearest = nearest_names(named[0], [str(key) for key in self.config])
            what, add = f"{' or '.join(named)} is missing", "add it: without it the model's shape is unknown"
            raise InputError(what, where=self.where, nearest=nearest, next_step=add)
        for key, value in present.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            # Comparisons first: they hold for NaN, infinities and integers of any length; int() does not.
            if not (number and least <= value <= most and int(value) == value):
                raise self.bad(key, f"a whole number from {least} to {most}")
        if len(set(present.values())) > 1:
            raise InputError(f"{' and '.join(present)} disagree ({str([*present.values()])[1:-1]})", where=self.where)
        return int(next(iter(present.values())))

    def boolean(self, key: str, default: bool) -> bool:
        if (value := self.get(key)) is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def flags(self, key: str, n_layers: int, names: Mapping[str, bool]) -> list[bool] | None:
        """What `names` makes of the entries of the list under `key`, one a layer; None where it is absent or empty."""
        value = self.get(key)
        if value is None or value == []:
            return None
        entries: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
        if len(entries) != n_layers:
            raise self.bad(key, f"a list with one entry for each of {n_layers} layers")
        if not all(isinstance(entry, str | int) and str(entry) in names for entry in entries):
            known = [name for name in names if not name.isdigit()] or list(names)
            raise self.bad(key, f"a list of {', '.join(known[:-1])} and {known[-1]}")
        return [names[str(entry)] for entry in entries]

    def layer_numbers(self, key: str, first: int, last: int) -> set[int] | None:
        """The layers that a list names; None where it is absent."""
        if (value := self.get(key)) is None:
            return None
        entries: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [None]
        whole = (isinstance(entry, int) and not isinstance(entry, bool) for entry in entries)
        if not all(whole) or not all(first <= entry <= last for entry in entries):
            raise self.bad(key, f"a list of layer numbers from {first} to {last}")
        return set(entries)

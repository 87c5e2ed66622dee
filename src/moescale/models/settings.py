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

    `seen` holds the keys that were asked for, or that the reader knows and has no use for.
    """

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self.config = config
        self.where = where
        self.seen: set[str] = set()

    def bad(self, key: str, wanted: str) -> InputError:
        return InputError(f"{key} must be {wanted}, not {shown(self.config.get(key))}", where=self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The whole number under the first of `keys`; all of those present must agree. Null counts as absent."""
        self.seen.update(keys)
        present = [key for key in keys if self.config.get(key) is not None]
        if not present:
            if default is not None:
                return default
            nearest = nearest_names(keys[0], [str(key) for key in self.config])
            what, add = f"{' or '.join(keys)} is missing", "add it: without it the model's shape is unknown"
            raise InputError(what, where=self.where, nearest=nearest, next_step=add)
        values = {key: self._integer(key, least) for key in present}
        if len(set(values.values())) > 1:
            stated = ", ".join(map(str, values.values()))
            raise InputError(f"{' and '.join(present)} disagree ({stated})", where=self.where)
        return values[present[0]]

    def _integer(self, key: str, least: int) -> int:
        value = self.config[key]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        # Comparisons first: they hold for NaN, infinities and integers of any length; int() does not.
        if not (number and least <= value <= LARGEST and int(value) == value):
            raise self.bad(key, f"a whole number from {least} to {LARGEST}")
        return int(value)

    def boolean(self, key: str, default: bool) -> bool:
        self.seen.add(key)
        value = self.config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def rank(self, key: str) -> int:
        """The whole number under `key`, which must be there; null, the way to write "not at all", is 0."""
        self.seen.add(key)
        if key in self.config and self.config[key] is None:
            return 0
        return self.integer(key, least=0)

    def entries(self, key: str, n_layers: int) -> list[Any] | None:
        """The list under `key` with one entry a layer; None where it is absent, null or empty."""
        self.seen.add(key)
        value = self.config.get(key)
        if value is None or (isinstance(value, list) and not value):
            return None
        if not isinstance(value, list | tuple) or len(cast("list[Any]", value)) != n_layers:
            raise self.bad(key, f"a list with one entry for each of {n_layers} layers")
        return list(cast("list[Any]", value))

    def inner(self, key: str) -> Settings:
        """The object under `key` with checks of its own; an empty one where it is absent."""
        self.seen.add(key)
        value = self.config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise self.bad(key, "an object of settings")
        return Settings(cast("Mapping[str, Any]", value or {}), f"{self.where}, {key}")

    def kinds(self, key: str, n_layers: int, names: dict[str, str]) -> list[str] | None:
        """What `names` makes of the entries of the list under `key`, one a layer; None where it is absent."""
        entries = self.entries(key, n_layers)
        if entries is None:
            return None
        if not all(isinstance(entry, str | int) and str(entry) in names for entry in entries):
            known = [name for name in names if not name.isdigit()]
            raise self.bad(key, f"a list of {', '.join(known[:-1])} and {known[-1]}")
        return [names[str(entry)] for entry in entries]

    def layer_numbers(self, key: str, n_layers: int) -> set[int]:
        self.seen.add(key)
        value = self.config.get(key)
        if value is None:
            return set()
        entries: list[Any] = list(cast("list[Any]", value)) if isinstance(value, list | tuple) else [None]
        whole = (isinstance(entry, int) and not isinstance(entry, bool) for entry in entries)
        if not all(whole) or not all(0 <= entry < n_layers for entry in entries):
            raise self.bad(key, f"a list of layer numbers from 0 to {n_layers - 1}")
        return set(entries)

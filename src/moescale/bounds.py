"""What a number may be, said once: dataclasses annotate their fields with it and check themselves at construction."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from moescale.errors import BoundError


@dataclass(frozen=True, slots=True)
class Bound:
    """From `least` to `most`, and never NaN."""

    least: float = -math.inf
    most: float = math.inf
    above: bool = False  # without the least itself
    whole: bool = False  # whole numbers only
    unlimited: bool = False  # infinity, too, where `most` is infinite
    unit: str = ""  # of a plain number

    @property
    def words(self) -> str:
        """Such as "at least 1", to be read after "must be"."""
        if self.whole:
            return f"a whole number of at least {self.least:g}"
        below = "" if math.isinf(self.most) else f" and at most {self.most:g}"
        finite = "finite and " if math.isinf(self.most) and not self.unlimited else ""
        if self.above:
            return f"above {self.least:g}{below}" if below else "positive and finite" if finite else "positive"
        low = "not negative" if self.least == 0 and not below else f"at least {self.least:g}"
        return f"{finite}{low}{below}"

    def bad(self, values: Any) -> float | None:
        """The first of the values, one or an array, that is out of bounds; None where all are within."""
        if isinstance(values, (int, float)):  # most are: a hundredth of the time
            within = (values > self.least or (values == self.least and not self.above)) and values <= self.most
            good = within and (values < math.inf or self.unlimited)
            return None if good and not (self.whole and math.isfinite(values) and values % 1) else float(values)
        import numpy as np  # here, so that the command line prints its help without it

        number = np.asarray(values, dtype=np.float64)
        good = (number > self.least) if self.above else (number >= self.least)
        good = good & (number <= self.most) & ((number < math.inf) | self.unlimited)
        if self.whole:
            good = good & ((number == np.floor(number)) | np.isinf(number))
        return None if np.all(good) else float(number[~good].flat[0])


POSITIVE = Bound(0, above=True)
COUNT = Bound(1, 1e6, whole=True)  # experts, heads, GPUs: far beyond what exists, and products stay far from overflow
SHARE = Bound(1e-6, 1)
PARAMETERS = Bound(1, 1e18, unit="parameters")
TOKENS = Bound(1, 1e24, unit="tokens")  # of training, or served in a lifetime
FLOPS = Bound(1e12, 1e32, unit="FLOPs")  # of training a language model
DAYS = Bound(1e-6, 1e5)
LOSS = Bound(1e-12, 1e3)  # nats a token: a model that guesses among a million tokens has 14
USD_PER_MTOK = Bound(1e-12, 1e6)  # up to a dollar a token
TOTAL_USD = Bound(1e-12, 1e15)  # of training and serving: more than the world produces in a year
USD_PER_HOUR = Bound(1e-6, 1e6)  # of a GPU
DRAWS = Bound(0, 10_000, whole=True)  # as many as a law may have
REQUEST_TOKENS = Bound(1, 1e9)
SEQUENCE_TOKENS = Bound(2, 1e9, whole=True)
RESERVED = Bound(0, 1e15, unit="bytes")  # of a GPU's memory
GPUS = Bound(1, 1024, whole=True)  # of one server
SEED = Bound(0, 2**53 - 1, whole=True)  # beyond, a float skips whole numbers


def check_bounds(record: Any, *, where: str) -> None:
    """Raise a BoundError that names the field where one of a dataclass is out of its annotated Bound; None is in all bounds."""
    for name, bound in bounds_of(type(record)).items():
        value = getattr(record, name)
        if value is not None and (bad := bound.bad(value)) is not None:
            raise BoundError(f"{name} must be {bound.words}, not {bad:g}", where=where)


@cache
def bounds_of(record: type) -> dict[str, Bound]:
    """The annotated bounds of a dataclass, by field."""
    hints = get_type_hints(record, include_extras=True)
    found: dict[str, Bound] = {}
    for field in fields(record):
        hint = hints[field.name]
        for part in (hint, *get_args(hint)) if get_origin(hint) is not None else ():
            for extra in getattr(part, "__metadata__", ()):
                if isinstance(extra, Bound):
                    found[field.name] = extra
    return found

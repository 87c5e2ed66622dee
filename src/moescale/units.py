"""Quantities as people write them: parse 5e21, 7B, 2TB, 80GiB; print counts, FLOPs, bytes, dollars, seconds."""

from __future__ import annotations

import math
import re
from numbers import Real as RealNumber
from typing import Any

from moescale.errors import InputError

_COUNT = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9, "T": 1e12}
_DECIMAL_BYTES = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "PB": 1e15}
_BINARY_BYTES = {"KIB": 2.0**10, "MIB": 2.0**20, "GIB": 2.0**30, "TIB": 2.0**40, "PIB": 2.0**50}
_FACTORS = _COUNT | _DECIMAL_BYTES | _BINARY_BYTES

_DIGITS = r"[0-9]+(?:_[0-9]+)*"
_QUANTITY = re.compile(
    rf"\s*\+?(?P<number>(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:[eE][+-]?[0-9]+)?)\s*(?P<suffix>[A-Za-z]*)\s*",
    re.ASCII,
)
_FORMS = "write a number >= 0 such as 5e21, 1_000, 900M, 7B, 1.5T (K, M, B or G, T), 2TB (decimal bytes) or 80GiB"
_SHOWN = 60  # characters of a bad text that a message repeats
_LONGEST = 1000  # characters; longer text is no quantity, and digits beyond this only cost time


def parse_quantity(text: str | float) -> float:
    """The number >= 0 that `text` states: 5e21, 1_000, 7B, 2TB (2e12), 80GiB (80 * 2**30), suffixes in either case."""
    given: Any = text  # callers pass what they read: JSON and TOML values, NumPy scalars
    if isinstance(given, bool):
        raise _not_a_quantity(given)
    if isinstance(given, RealNumber):
        try:
            value = float(given)  # type: ignore[arg-type]  # every real number converts
        except OverflowError:
            value = math.inf
    else:
        matched = _QUANTITY.fullmatch(given) if isinstance(given, str) and len(given) <= _LONGEST else None
        factor = _FACTORS.get(matched["suffix"].upper()) if matched else None
        if matched is None or factor is None:
            raise _not_a_quantity(given)
        value = float(matched["number"].replace("_", "")) * factor
        if value == 0 and re.search("[1-9]", re.split("[eE]", matched["number"])[0]):
            raise _not_a_quantity(given, "too small for a 64-bit float")
    if not 0 <= value < math.inf:
        beyond = "negative" if value < 0 else "not finite, or too large for a 64-bit float"
        raise _not_a_quantity(given, None if math.isnan(value) else beyond)
    return value


def parse_count(text: str | float) -> float:
    """The number of parameters, tokens, FLOPs or the like that `text` states: `parse_quantity` without units of bytes."""
    value = parse_quantity(text)
    given = text.strip() if isinstance(text, str) else ""
    suffix = given.lstrip("+0123456789_.eE-").strip().upper()
    if suffix in _DECIMAL_BYTES | _BINARY_BYTES:
        count = given[:-1] if suffix[:-1] in _COUNT else None
        what = f"{given[:_SHOWN]!r} is a number of bytes, and a count is needed"
        raise InputError(what, nearest=count, next_step="write it as 5e21, 900M, 7B or 1.5T")
    return value


def _not_a_quantity(text: object, reason: str | None = None) -> InputError:
    try:
        shown = repr(text) if not isinstance(text, str) or text.strip() else "an empty text"
    except ValueError:  # an integer of more digits than Python prints
        shown = "an integer of thousands of digits"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}.."
    what = f"{shown} is not a quantity{f' ({reason})' if reason else ''}"
    comma = isinstance(text, str) and re.fullmatch(r"\s*[0-9]+(?:,[0-9]+)+\s*\w*\s*", text, re.ASCII) is not None
    return InputError(what, next_step=f"{'decimals take a point, and thousands _ or nothing: ' * comma}{_FORMS}")


def _significant(value: float) -> str:
    """`value` with three significant digits, no exponent and no trailing zeros."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def _scaled(value: float, steps: list[tuple[float, str]]) -> str:
    """`value` in the largest unit of `steps` (ascending) that it reaches when rounded to three digits."""
    if not math.isfinite(value):
        return f"{value}"
    size, unit = steps[0]
    for candidate, name in steps[1:]:
        if abs(float(f"{value:.2e}")) >= candidate:
            size, unit = candidate, name
    shown = value / size
    if size != steps[0][0] and abs(shown) < 1:  # 59.97 s rounds up to a minute
        shown = math.copysign(1.0, shown)
    return f"{_significant(shown)}{unit}"


def format_count(value: float) -> str:
    """A count to three significant digits: 7.12B, 567M, 1.5T; beyond 1000T or below 0.001 in powers of ten."""
    if math.isfinite(value) and value != 0 and not 1e-3 <= abs(value) < 9.995e14:
        return format_flops(value)
    return _scaled(value, [(1.0, ""), (1e3, "K"), (1e6, "M"), (1e9, "B"), (1e12, "T")])


def format_flops(value: float) -> str:
    """A number of operations in powers of ten to three significant digits: 5.15e21."""
    if not math.isfinite(value):
        return f"{value}"
    if value == 0 or 1 <= abs(value) < 999.5:
        return _significant(value)
    mantissa, exponent = f"{value:.2e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def format_bytes(value: float) -> str:
    """Bytes in binary units to three significant digits: 80 GiB, 128 KiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    return _scaled(value, [(1024.0**power, f" {unit}") for power, unit in enumerate(units)])


def format_usd(value: float) -> str:
    """Dollars with the digits that matter: $29.2K, $1.21M, $1,234 from a hundred up, $12.34 from one up, $0.0512 below."""
    if not math.isfinite(value):
        return f"{value}"
    size, sign, rounded = abs(value), "-" if value < 0 else "", abs(float(f"{value:.2e}"))
    if rounded >= 1e15 or 0 < rounded < 1e-6:
        return f"{sign}${format_flops(size)}"
    if rounded >= 1e4:
        return f"{sign}${format_count(size)}"
    if rounded >= 100:
        return f"{sign}${size:,.0f}"
    decimals = 2 if size == 0 or rounded >= 1 else 2 - math.floor(math.log10(rounded))
    return f"{sign}${size:.{decimals}f}"


def format_seconds(value: float) -> str:
    """A time to three significant digits in ns, µs, ms, s, min (from two on), h or days: 12.3 ms."""
    units = [(1e-9, " ns"), (1e-6, " µs"), (1e-3, " ms"), (1.0, " s"), (60.0, " min"), (3600.0, " h"), (86400.0, " d")]
    if abs(float(f"{value:.2e}")) < 120.0:  # 71.4 s are read sooner than 1.19 min
        units = units[:4]
    return "0 s" if value == 0 else _scaled(value, units)


def plural(count: float, noun: str) -> str:
    """A count with its noun: 1 expert, 4 experts."""
    return f"{count:g} {noun}{'' if count == 1 else 's'}"


def expert_model(experts: float) -> str:
    """A model by its experts, in a sentence: dense model, 4-expert model."""
    return "dense model" if experts == 1 else f"{experts:g}-expert model"


def expert_label(experts: float) -> str:
    """A model by its experts, in a table or figure: dense, E = 4."""
    return "dense" if experts == 1 else f"E = {experts:g}"


def three_digits_down(value: float) -> float:
    """A number to three digits, rounded down, as a limit is stated."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return float(f"{math.floor(value / unit) * unit:.3g}")

"""Quantities: what people write is read, everything else is refused with one message, and printing keeps the value."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.units import (
    format_bytes,
    format_count,
    format_flops,
    format_seconds,
    format_usd,
    parse_count,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e21", 5e21), ("5.15E+21", 5.15e21), ("7B", 7e9), ("7b", 7e9), ("20G", 20e9), ("900M", 900e6),
        ("900m", 900e6), ("1.5T", 1.5e12), ("12k", 12e3), ("2TB", 2e12), ("16 GB", 16e9), ("500MB", 500e6),
        ("80GiB", 80 * 2**30), ("1.5kib", 1536), ("1_000_000", 1e6), (" +.5K ", 500), ("5.", 5), ("0", 0), (42, 42),
        (0.25, 0.25), (np.int64(7), 7), (np.float64(2.5), 2.5),
    ],
)  # fmt: skip
def test_reads_what_people_write(text: str | float, value: float) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "nan", "inf", "-1", "-7B", "7BB", "7 billion", "B", "e5", "1e", "1__0", "_1", "1,000", "0x10",
        "1e999", "1e308T", "1e-400", "٣", "7B 3", pytest.param("9" * 5000, id="long text"), "1\x00", math.nan,
        math.inf, -math.inf, -2, pytest.param(10**5000, id="long integer"), True, None, [7],
    ],
)  # fmt: skip
def test_refuses_everything_else_and_says_what_is_accepted(text: str) -> None:
    with pytest.raises(InputError, match="80GiB") as caught:
        parse_quantity(text)
    if isinstance(text, str) and text.strip() and len(text) < 40:
        assert repr(text) in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("text", "nearest"),
    [("5.15e12GB", "5.15e12G"), ("2TB", "2T"), (" +.5 kb ", "+.5 k"), ("80GiB", None), ("1PB", None), ("1e3PiB", None)],
)
def test_bytes_are_no_count(text: str, nearest: str | None) -> None:
    with pytest.raises(InputError, match="is a number of bytes, and a count is needed") as caught:
        parse_count(text)
    assert caught.value.nearest == nearest
    assert nearest is None or parse_count(nearest) == parse_quantity(text)


@pytest.mark.parametrize("text", ["5.15e21", "7B", "7 b", "20G", "1.5T", "1_000", 42, 0.25])
def test_a_count_is_read_as_any_quantity(text: str | float) -> None:
    assert parse_count(text) == parse_quantity(text)


@given(st.floats(1e-3, 1e300), st.floats(1.0, 1e17))
def test_what_is_printed_reads_back_to_three_digits(value: float, held: float) -> None:
    assert parse_quantity(format_bytes(held).removesuffix(" B")) == pytest.approx(held, rel=5.01e-3)
    assert parse_quantity(format_count(value)) == pytest.approx(value, rel=5.01e-3)
    assert parse_quantity(format_flops(value)) == pytest.approx(value, rel=5.01e-3)


@pytest.mark.parametrize(
    ("printed", "expected"),
    [
        (format_count(7.123e9), "7.12B"), (format_count(567e6), "567M"), (format_count(999.6e6), "1B"),
        (format_count(12), "12"), (format_count(5.15e21), "5.15e21"), (format_count(0), "0"),
        (format_count(math.inf), "inf"), (format_flops(5.154e21), "5.15e21"), (format_flops(9.999e20), "1e21"),
        (format_bytes(80 * 2**30), "80 GiB"), (format_bytes(131072), "128 KiB"), (format_usd(1234.4), "$1,234"),
        (format_usd(9994.9), "$9,995"), (format_usd(9999.0), "$10K"), (format_usd(29212.3), "$29.2K"),
        (format_usd(999_999), "$1M"), (format_usd(14_216_803), "$14.2M"), (format_usd(3.456e9), "$3.46B"),
        (format_usd(-2.5e6), "-$2.5M"), (format_usd(9.996e14), "$1e15"), (format_usd(12.344), "$12.34"),
        (format_usd(0.05123), "$0.0512"), (format_usd(0.9999), "$1.00"), (format_usd(0), "$0.00"),
        (format_usd(math.inf), "inf"), (format_seconds(0.0123), "12.3 ms"), (format_seconds(4.5e-4), "450 µs"),
        (format_seconds(59.97), "60 s"), (format_seconds(71.4), "71.4 s"), (format_seconds(119.97), "2 min"),
        (format_seconds(3599.7), "1 h"), (format_seconds(86400 * 11.57), "11.6 d"), (format_seconds(0), "0 s"),
    ],
)  # fmt: skip
def test_prints_the_digits_that_matter(printed: str, expected: str) -> None:
    assert printed == expected

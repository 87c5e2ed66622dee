"""Messages: what they quote of a file can neither steer a terminal nor fill it."""

from __future__ import annotations

import pytest

from moescale.errors import MOST_COMPARED, MOST_SHOWN, InputError, MoescaleError, nearest_names, unknown_name


@pytest.mark.parametrize("mark", ["\x1b[31m", "\0", "\r", "\x9b", "\u202e", "\ud800"])
def test_control_characters_are_shown_and_not_sent(mark: str) -> None:
    message = str(InputError(f"a{mark}b", where=mark, nearest=mark, next_step=mark))
    assert mark[0] not in message
    assert message.count(ascii(mark[0])[1:-1]) == 4
    message.encode()


def test_ordinary_text_stays_as_it_is() -> None:
    assert str(InputError("é, 日本 µ", where="a b", next_step="do\nthis")) == "a b: é, 日本 µ; do\nthis"


def test_a_message_ends_however_much_it_quotes() -> None:
    assert len(str(MoescaleError("x" * 10**6, where="y" * 10**6))) < 3 * MOST_SHOWN
    assert len(str(unknown_name("column", "a", (f"c{i}" for i in range(100_000))))) < 3 * MOST_SHOWN


def test_the_nearest_name_is_sought_among_a_bounded_number() -> None:
    assert nearest_names("tokns", ["zzz", "tokens"]) == "tokens"
    assert nearest_names("x" * 10**6, ["x" * 10**6]) is None
    assert nearest_names("a", ["a" * 10**6]) is None
    many = [f"c{i}" for i in range(MOST_COMPARED)]
    assert nearest_names("tokens", [*many, "tokens"]) is None
    assert nearest_names("tokens", ["tokens", *many]) == "tokens"

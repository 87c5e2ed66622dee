"""Protocol buffers' wire format, read without a schema library: numbered fields of bytes, integers and floats.

Source: https://protobuf.dev/programming-guides/encoding/ . Event files and W&B's offline files hold such messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | float | bytes


class MalformedError(Exception):
    """The bytes are no message."""


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """The (number, value) pairs of a message: bytes where it has a length, float where it is a double or a float.

    Integers are as unsigned 64-bit numbers. Raises MalformedError.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        kind, number = key & 7, key >> 3
        if kind not in (0, 1, 2, 5):
            raise MalformedError(f"unknown wire type {kind}")
        if kind == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        size, position = _varint(data, position) if kind == 2 else (8 if kind == 1 else 4, position)
        piece = data[position : position + size]
        if number == 0 or len(piece) < size:
            raise MalformedError("a field is cut off")
        position += size
        yield number, piece if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", piece)[0]


class Message:
    """The fields of a message by number; of a field that is not repeated the last counts, and of another kind none."""

    def __init__(self, data: bytes = b"") -> None:
        self._values: dict[int, list[Value]] = {}
        for number, value in fields(data):
            self._values.setdefault(number, []).append(value)

    def pieces(self, number: int) -> list[bytes]:
        """The values that have a length: messages, texts, packed numbers."""
        return [value for value in self._values.get(number, ()) if isinstance(value, bytes)]

    def numbers(self, number: int) -> list[int | float]:
        """The values that have none."""
        return [value for value in self._values.get(number, ()) if not isinstance(value, bytes)]

    def messages(self, number: int) -> Iterator[Message]:
        """The messages of a repeated field, each read when it is asked for: those before a malformed one can be used."""
        return map(Message, self.pieces(number))

    def message(self, number: int) -> Message:
        """The message in a field, empty where there is none."""
        return Message(self.pieces(number)[-1]) if self.pieces(number) else Message()

    def text(self, number: int) -> str:
        """The text in a field, "" where there is none; what is not UTF-8 shows as a replacement character."""
        return self.pieces(number)[-1].decode("utf-8", "replace") if self.pieces(number) else ""

    def whole(self, number: int) -> int | None:
        """The int64 in a field."""
        found = [value for value in self.numbers(number) if isinstance(value, int)]
        return None if not found else found[-1] - 2**64 if found[-1] >= 2**63 else found[-1]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if position >= len(data):
            break
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), position
    raise MalformedError("a number is cut off")

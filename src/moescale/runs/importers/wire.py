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

    Integers are as unsigned 64-bit numbers; `signed` gives their sign. Raises MalformedError.
    """
    position, end = 0, len(data)
    while position < end:
        key, position = _varint(data, position)
        kind, number = key & 7, key >> 3
        if kind == 0:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == 2:
            size, position = _varint(data, position)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise MalformedError(f"unknown wire type {kind}")
        piece = data[position : position + size]
        if number == 0 or len(piece) < size:
            raise MalformedError("a field is cut off")
        position += size
        if kind == 2:
            yield number, piece
        else:
            yield number, struct.unpack("<d" if kind == 1 else "<f", piece)[0]


def signed(value: Value) -> int:
    """An int64 from how the wire has it."""
    whole = int(value) if not isinstance(value, bytes) else 0
    return whole - 2**64 if whole >= 2**63 else whole


def inside(data: bytes, number: int) -> Iterator[bytes]:
    """The values of the field `number` that have a length: messages, texts, packed numbers."""
    for found, value in fields(data):
        if found == number and isinstance(value, bytes):
            yield value


def last(data: bytes, number: int) -> bytes:
    """The last such value, as readers of the format take it of a field that is not repeated; empty where there is none."""
    value = b""
    for found in inside(data, number):
        value = found
    return value


def text(data: bytes) -> str:
    """Bytes as text; what is not UTF-8 shows as a replacement character."""
    return data.decode("utf-8", "replace")


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

"""Damage to files: their bytes, their tokens and lines, and the values of JSON. Each a function of a `random.Random` alone, so
that a seed repeats it."""

from __future__ import annotations

import io
import json
import re
from functools import cache
from random import Random
from typing import Any

LARGEST = 2**20
"""Bytes of an input, at most; what is packed unpacks to more."""

HOSTILE_NUMBERS = (
    "nan", "inf", "-inf", "NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "-0", "-0.0", "0", "-1", "1", "2", "0.5",
    "1e308", "-1e308", "5e-324", "1e15", "1e24", "65536", "2147483647", "2147483648", "4294967296", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "18446744073709551615", "1" + "0" * 400, "-1" + "0" * 400, "9" * 5000,
    "0x10", "1_000", "1__0", "+1", "01", "1.", ".5", "1e", "1,5", "7B", "80GiB", "1e9 GB", "١٢", "½", "７", "true", "null", "",
)  # fmt: skip
HOSTILE_TEXTS = (
    "", " ", "\t", "\0", "a\0b", "\ufeff", "\u202eevil\u202c", "\u200b", "é", "日本", "😀", "e\u0301", "\x1b[31m", "\x07", "\r",
    "\n", "\r\n", "a\nb", "\u2028", "'", '"', "''", '""', "`", "\\", "\\u0000", "a,b", "a\tb", "a;b", "#", "#x", "=1+1", "@x",
    "null", "None", "true", "nan", "{}", "[]", "{", "[", "../../etc/passwd", "/etc/passwd", "/dev/zero", "/dev/stdin", "~", ".",
    "..", "C:\\x", "%s%s%n", "{0}", "${HOME}", "$(touch x)", "; touch x", "<script>alert(1)</script>", "%00", "%2e%2e%2f",
    "__import__('os').system('touch x')", "().__class__.__base__", "9**9**9", "exec", "x" * 300, "x" * 20_000, "é" * 5000,
    "[" * 3000, "[" * 500 + "]" * 500, "{a=" * 300 + "1" + "}" * 300, "[]", "[1, 2]", "2026-13-40", "12:00:00", "0x" + "f" * 4000,
    "'''a\nb'''", '"""a', '"\\ud800"', '"\\x"', "[[x]]", "a.b.c", "x = 1\n", "http://example.invalid/", "file:///etc/passwd", "hf:a/b", "2026-11-21", "1e400", "-1",
)  # fmt: skip
PIECES = (
    b"\0", b"\xff", b"\xfe\xff", b"\xff\xfe", b"\xef\xbb\xbf", b"\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\r", b"\n", b"\r\n",
    b'"', b"'", b"'''", b'"""', b"\\", b"{", b"}", b"[", b"]", b"[[", b",", b":", b"=", b"#", b"\t", b";", b" ", b"-", b".", b"e999",
    b"nan", b"\x1b[2J", b"\x80\x00", b"PAR1", b"PK\x03\x04", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"SQLite format 3\0",
)  # fmt: skip


def damage_bytes(data: bytes, rng: Random) -> bytes:
    """One to four places flipped, cut out, put in, repeated, zeroed, or moved."""
    found = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(found) + 1)
        length = rng.choice((1, 1, 2, 4, 8, 16, 64, 512))
        kind = rng.randrange(8)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del found[at : at + length]
        elif kind == 2:
            found[at:at] = rng.randbytes(length)
        elif kind == 3:
            found[at:at] = bytes(found[at : at + length]) * rng.choice((1, 2, 30, 1000))
        elif kind == 4:
            found[at : at + length] = bytes(len(found[at : at + length]))
        elif kind == 5:
            del found[at:]
        elif kind == 6:
            found[at : at + rng.choice((0, 0, 1, 4))] = rng.choice(PIECES)
        else:
            piece = bytes(found[at : at + length])
            del found[at : at + length]
            to = rng.randrange(len(found) + 1)
            found[to:to] = piece
    return bytes(found[:LARGEST])


_TOKEN = re.compile(rb'"[^"\n]*"|[\w.+-]+|[^\w\s]')


def damage_tokens(data: bytes, rng: Random) -> bytes:
    """One to three words, numbers, quoted texts or signs replaced by a hostile one, by another of the file, or taken out."""
    for _ in range(rng.randint(1, 3)):
        tokens = list(_TOKEN.finditer(data))
        if not tokens:
            return damage_bytes(data, rng)
        found = rng.choice(tokens)
        hostile = rng.choice((*HOSTILE_NUMBERS, *HOSTILE_TEXTS)).encode("utf-8", "surrogatepass")
        other = rng.choice((hostile, hostile, b'"' + hostile + b'"', rng.choice(tokens).group(), b""))
        data = data[: found.start()] + other + data[found.end() :]
    return data[:LARGEST]


def damage_lines(data: bytes, rng: Random) -> bytes:
    """A line taken out, repeated, put elsewhere, cut, or joined with the next."""
    lines = data.split(b"\n")
    at, to = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(5)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines[to:to] = [lines[at]] * rng.choice((1, 2, 1000))
    elif kind == 2:
        lines[at], lines[to] = lines[to], lines[at]
    elif kind == 3:
        lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
    else:
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    return b"\n".join(lines)[:LARGEST]


def damage_json(data: bytes, rng: Random) -> bytes:
    """One value of a JSON text, or of one of its lines, replaced, taken out or renamed."""
    lines = [data] if data.lstrip()[:1] == b"[" or data.count(b"\n{") == 0 else data.split(b"\n")
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return damage_tokens(data, rng)
    holder: Any = {"": value}
    key: Any = ""
    while rng.random() < 0.8 and isinstance(holder[key], dict | list) and holder[key]:
        holder = holder[key]
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    if isinstance(holder, dict) and key and rng.random() < 0.3:
        kept = holder.pop(key)
        if rng.random() < 0.5:
            holder[rng.choice(HOSTILE_TEXTS)] = kept
    else:
        others = (None, True, -1, 0, 10**400, 1e308, float("nan"), [], {}, [[holder[key]]], {"a": holder[key]})
        holder[key] = rng.choice((*others, rng.choice(HOSTILE_TEXTS), rng.choice(HOSTILE_NUMBERS)))
    whole = holder[""] if isinstance(holder, dict) and holder.keys() == {""} else value
    lines[at] = json.dumps(whole).encode()
    return b"\n".join(lines)[:LARGEST]


@cache
def parquet_bombs() -> tuple[bytes, ...]:
    """Small Parquet files that claim or unpack to very much: rows, columns of one value, one long text again and again."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def of(table: Any, **options: Any) -> bytes:
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd", store_schema=False, **options)
        return sink.getvalue()

    rows = 4_000_000
    one = pa.repeat(1.0, rows)
    head = {"n_params_dense": one, "n_experts": one, "tokens": one, "loss": one}
    long = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 20_000), pa.array(["x" * 20_000]))
    return (
        of(pa.table(head)),
        of(pa.table(head | {f"c{i}": one for i in range(40)})),
        of(pa.table({**{k: one.slice(0, 20_000) for k in head}, "note": long, "text": long})),
        of(pa.table({"text": pa.repeat("abc", rows)})),
    )


def damage_parquet(data: bytes, rng: Random) -> bytes:
    """Damaged bytes; a column of other values or another name; or a bomb."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = rng.randrange(20)
    if kind == 0:
        return rng.choice(parquet_bombs())
    if kind < 10:
        return damage_bytes(data, rng)
    table = pq.read_table(io.BytesIO(data))
    at, name = rng.randrange(table.num_columns), rng.choice(("loss", "tokens", "", "a\0b"))
    values: Any = rng.choice(
        (["x"], [None], [b"\xff"], [[1.0]], [{"a": 1}], [2**62], [float("nan")], [-1.0], [True], [1e308], ["1e9"])
    )
    column = pa.array(values * table.num_rows)
    renamed = name if rng.random() < 0.3 else table.column_names[at]
    sink = io.BytesIO()
    pq.write_table(table.set_column(at, renamed, column), sink)
    return sink.getvalue()


def damage(name: str, data: bytes, rng: Random) -> bytes:
    """A file of this name with something wrong, at most LARGEST bytes."""
    if name.endswith((".parquet", ".pq")):
        return damage_parquet(data, rng)
    ways = [damage_bytes, damage_tokens, damage_tokens, damage_lines]
    if name.endswith((".json", ".jsonl", ".ndjson")):
        ways += [damage_json] * 3
    return rng.choice(ways)(data, rng)

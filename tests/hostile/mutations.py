"""Damage to files at three levels: their bytes, their tokens, and the structure of their format. Each a function of a
`random.Random` alone, so that a seed repeats it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import zip_longest
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
SIZES = (0, 1, 2, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)

Mutator = Callable[[bytes, Random], bytes]


# Bytes.


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


def damage_lengths(data: bytes, rng: Random) -> bytes:
    """One or two numbers of a binary file, at any place near its start or its end, as another size."""
    if len(data) < 9:
        return damage_bytes(data, rng)
    found = bytearray(data)
    for _ in range(rng.randint(1, 2)):
        kind = rng.choice(("<H", "<I", "<I", "<Q", "<Q", ">I"))
        width = struct.calcsize(kind)
        span = min(len(found) - width, rng.choice((16, 64, 256, len(found))))
        at = rng.randrange(span + 1)
        if rng.random() < 0.25:
            at = len(found) - width - at
        struct.pack_into(kind, found, at, rng.choice(SIZES) & (2 ** (8 * width) - 1))
    return bytes(found)


# Tokens.

_WORD = re.compile(r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[^\W\d]\w*|\"[^\"\n]*\"|'[^'\n]*'|[\[\](){}=,:]")


def damage_tokens(data: bytes, rng: Random) -> bytes:
    """One to three numbers, names, texts or brackets of a text replaced, left out, doubled or exchanged."""
    text = data[:LARGEST].decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 2, 3))):
        start = rng.randrange(len(text) + 1)
        # A window, so that long files cost no more than short ones.
        found = list(_WORD.finditer(text, start, start + 2000)) or list(_WORD.finditer(text, 0, 2000))
        if not found:
            return damage_bytes(data, rng)
        token = rng.choice(found[:20])
        old = token.group()
        kind = rng.randrange(6)
        if kind <= 2:
            new = rng.choice(HOSTILE_NUMBERS)
            if old[:1] in "\"'" and rng.random() < 0.7:
                new = old[0] + rng.choice((new, rng.choice(HOSTILE_TEXTS))) + old[0]
        elif kind == 3:
            new = "" if rng.random() < 0.5 else old * 2
        elif kind == 4:
            new = rng.choice(found).group()
        else:
            new = rng.choice((*HOSTILE_TEXTS, f'"{rng.choice(HOSTILE_TEXTS)}"'))
        text = text[: token.start()] + new + text[token.end() :]
    return text.encode("utf-8", "surrogatepass" if rng.random() < 0.2 else "replace")[:LARGEST]


# Structure.


def damage_lines(data: bytes, rng: Random) -> bytes:
    """Lines of a text left out, doubled, shuffled, cut, taken a thousandfold, or the text cut in the middle of one."""
    lines = data.split(b"\n")
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind == 0 and len(lines) > 1:
            del lines[at]
        elif kind == 1:
            lines.insert(rng.randrange(len(lines) + 1), lines[at])
        elif kind == 2:
            rng.shuffle(lines)
        elif kind == 3:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        elif kind == 4:
            lines[at:at] = [lines[at]] * min(rng.choice((10, 1000)), LARGEST // 8 // (len(lines[at]) + 1))
        elif kind == 5:
            lines[at] = lines[at] + rng.choice((b",", b"\t", b" #", b"\r", b"\0", b",,,,,,", b'"', b"]", b"=", b" = 1"))
        elif kind == 6:
            lines = lines[: at + 1]
            lines[-1] = lines[-1][: rng.randrange(len(lines[-1]) + 1)]
        else:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
    return b"\n".join(lines)[:LARGEST]


def damage_cells(data: bytes, rng: Random) -> bytes:
    """A CSV or TSV damaged as a list of its rows, or of its columns; one in ten has very many columns."""
    text = data.decode("utf-8", "replace")
    delimiter = "\t" if "\t" in text.split("\n", 1)[0] else ","
    rows: Any = [line.split(delimiter) for line in text.split("\n") if line]
    if rows and rng.random() < 0.1:
        count = rng.choice((300, 300, 300, 300, 10_000, 100_000))
        rows = [[*row, *(f"c{i}" if number == 0 else "1" for i in range(count))] for number, row in enumerate(rows[:3])]
    elif rng.random() < 0.5:
        rows = damaged_value(rows, rng)
    else:
        columns = [_cells_of(column) for column in _cells_of(damaged_value([*map(list, zip_longest(*rows))], rng))]
        rows = [*zip_longest(*columns)]
    lines = (delimiter.join("" if cell is None else str(cell) for cell in _cells_of(row)) for row in _cells_of(rows))
    return "\n".join([*lines, ""]).encode("utf-8", "replace")[:LARGEST]


def _cells_of(row: Any) -> list[Any]:
    return list(row) if isinstance(row, list | tuple) else [row]


class Written(str):
    """JSON as it shall stand in the file, whatever it is."""

    __slots__ = ()


class Pairs(list[Any]):
    """An object whose keys may come twice."""


def written(value: Any) -> str:
    """A value as JSON; `Written` as it is, `Pairs` as an object."""
    if isinstance(value, Written):
        return str(value)
    if isinstance(value, Pairs):
        return "{" + ", ".join(f"{json.dumps(key)}: {written(item)}" for key, item in value) + "}"
    if isinstance(value, Mapping):
        return written(Pairs(value.items()))  # type: ignore[arg-type]
    if isinstance(value, list):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value)


def damage_json(data: bytes, rng: Random) -> bytes:
    """A JSON value, or one line of JSON lines, with keys removed, doubled, renamed and values of another type or depth."""
    text = data.decode("utf-8", "replace")
    try:
        return written(damaged_value(json.loads(text), rng)).encode("utf-8", "surrogatepass")[:LARGEST]
    except ValueError:
        pass
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    try:
        lines[at] = written(damaged_value(json.loads(lines[at]), rng))
    except ValueError:
        return damage_lines(data, rng)
    return "\n".join(lines).encode("utf-8", "surrogatepass")[:LARGEST]


def damaged_value(value: Any, rng: Random) -> Any:
    """The value with one to three damages at any depth."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _damaged(value, rng)
    return value


def _damaged(value: Any, rng: Random) -> Any:
    if isinstance(value, dict):
        value = Pairs(value.items())
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        pairs = isinstance(value, Pairs)
        inner = value[at][1] if pairs else value[at]
        key = value[at][0] if pairs else None
        kind = rng.randrange(10)
        if kind <= 4:  # deeper
            new = _damaged(inner, rng)
        elif kind == 5:
            del value[at]
            return value
        elif kind == 6:
            value.insert(rng.randrange(len(value) + 1), value[at])
            return value
        elif kind == 7 and pairs:
            key, new = rng.choice((str(key) + "x", str(key).upper(), str(key)[:-1], rng.choice(HOSTILE_TEXTS))), inner
        elif kind == 8:
            rng.shuffle(value)
            return value
        else:
            new = _other(inner, rng)
        value[at] = (key, new) if pairs else new
        return value
    return _other(value, rng)


def _other(value: Any, rng: Random) -> Any:
    kind = rng.randrange(8)
    if kind <= 2:
        return Written(rng.choice([n for n in HOSTILE_NUMBERS if n] if rng.random() < 0.7 else ["1e400", "-1", "0"]))
    if kind == 3:
        return rng.choice(HOSTILE_TEXTS)
    if kind == 4:
        return rng.choice((None, True, False, [], {}, 0, -1, "", [None], {"a": 1}, [[]], 1.5))
    if kind == 5:
        depth = rng.choice((3, 50, rng.randint(300, 1000), rng.randint(900, 1000), 5000, 100_000))
        return Written(rng.choice(("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth, "[" * depth)))
    if kind == 6:
        return Written(
            rng.choice((r'"\ud800"', r'"\udc00x"', r'"\u0000"', '"\x00"', '"\n"', "[1,]", "{,}", "tru", "'a'"))
        )
    return [value] * rng.choice((1, 2, 1000)) if rng.random() < 0.5 else str(value)[:5000]


def damage_toml(data: bytes, rng: Random) -> bytes:
    """A TOML text with one to three values of another type or depth, as in JSON."""
    lines = data.decode("utf-8", "replace").split("\n")
    stated = [i for i, line in enumerate(lines) if "=" in line]
    for at in rng.choices(stated, k=rng.randint(1, 3)) if stated else ():
        key, _, value = lines[at].partition("=")
        lines[at] = f"{key}= {written(_other(value, rng))}"
    return "\n".join(lines).encode("utf-8", "replace")[:LARGEST]


def damage_corpus(data: bytes, rng: Random) -> bytes:
    """The description of a corpus with damaged values and, where it still has its parts, the hash that fits them."""
    from moescale.experiments.corpus import SPLITS, Corpus

    found = damage_json(data, rng)
    try:
        content = json.loads(found)
        parts = {field.name: content.get(field.name) for field in fields(Corpus)}
        content["sha256"] = Corpus(**parts).hash_of({split: content["split_sha256"][split] for split in SPLITS})
        return json.dumps(content).encode("utf-8", "surrogatepass")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return found


def damage_parquet(data: bytes, rng: Random) -> bytes:
    """A Parquet file with other columns: left out, doubled, renamed, of other types, nested, missing, very many."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data))
    names, columns = list(table.column_names), list(table.columns)
    at = rng.randrange(len(names))
    n = len(table)
    kind = rng.randrange(9)
    if kind == 0:
        del names[at], columns[at]
    elif kind == 1:
        names.append(names[at])
        columns.append(columns[at])
    elif kind == 2:
        names[at] = rng.choice(HOSTILE_TEXTS)[:500]
    elif kind <= 4:
        columns[at] = _arrow_column(n, rng)
    elif kind == 5:
        order = list(range(n))
        rng.shuffle(order)
        columns[at] = columns[at].take(order)
    elif kind == 6:
        columns = [column.slice(0, 0) for column in columns]
    elif kind == 7:
        for i in range(rng.choice((100, 100, 100, 3000))):
            names.append(f"c{i}")
            columns.append(pa.array([1] * n))
    else:
        columns[at] = pa.array([None] * n, columns[at].type)
    sink = io.BytesIO()
    try:
        made = pa.table(columns, names=names) if names else pa.table({"a": pa.array([1])})
        pq.write_table(made, sink, compression=rng.choice(("none", "snappy", "gzip", "zstd", "brotli", "lz4")))
    except (pa.ArrowException, UnicodeError, ValueError):
        return damage_bytes(data, rng)
    found = sink.getvalue()
    return damage_bytes(found, rng) if rng.random() < 0.1 else found[:LARGEST]


def _arrow_column(n: int, rng: Random) -> Any:
    import datetime as dt
    from decimal import Decimal

    import pyarrow as pa

    if (kind := rng.randrange(3)) == 0:
        return pa.array([rng.choice((HOSTILE_NUMBERS, HOSTILE_TEXTS)[rng.randrange(2)]) for _ in range(n)])
    if kind == 1:
        return pa.array([rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e308, 5e-324)) for _ in range(n)])
    value, of = rng.choice((
        (2**63 - 1, None), (2**64 - 1, pa.uint64()), (1, pa.int8()), (True, None), (b"\xff\x00", None), ([1, 2], None),
        ({"a": 1}, None), (Decimal("1.5"), None), (Decimal(10) ** 60, pa.decimal256(76, 0)), (dt.datetime(2026, 11, 21), None),
        (dt.date(1, 1, 1), None), (dt.timedelta(1), None), (None, None), ([("k", 1)], pa.map_(pa.string(), pa.int64())),
        ("a", pa.dictionary(pa.int8(), pa.string())), ("a", pa.large_string()), (1.5, pa.float16()),
    ))  # fmt: skip
    return pa.array([value] * n, of)


def damage_packed(kind: str, inner: Mutator) -> Mutator:
    """A packed file whose content is damaged; one of a few hundred times a bomb."""

    def damage(data: bytes, rng: Random) -> bytes:
        import pyarrow as pa

        if rng.random() < 0.004:
            return rng.choice(bombs(kind))
        if rng.random() < 0.3:
            return damage_bytes(data, rng)
        plain = (
            gzip.decompress(data) if kind == "gz" else pa.input_stream(pa.BufferReader(data), compression="zstd").read()
        )
        content = inner(bytes(plain), rng)
        return gzip.compress(content, 1, mtime=0) if kind == "gz" else zstandard(content)

    return damage


def zstandard(content: bytes) -> bytes:
    """The content as a Zstandard frame."""
    import pyarrow as pa

    return pa.compress(content, codec="zstd", asbytes=True)


@cache
def bombs(kind: str) -> Sequence[bytes]:
    """Small files that unpack to very much, made by another process, which keeps this one's memory as it is."""
    done = subprocess.run([sys.executable, "-m", "hostile.bombs", kind], stdout=subprocess.PIPE, check=True)
    return pickle.loads(done.stdout)


def bombed(damage: Mutator) -> Mutator:
    """The mutator, and one of a few hundred times a Parquet bomb instead."""
    return lambda data, rng: rng.choice(bombs("parquet")) if rng.random() < 0.004 else damage(data, rng)


STRUCTURE: Mapping[str, tuple[Mutator, ...]] = {
    "corpus.json": (damage_corpus, damage_corpus, damage_corpus),
    ".csv": (damage_cells, damage_lines),
    ".tsv": (damage_cells, damage_lines),
    ".json": (damage_json, damage_json, damage_lines),
    ".jsonl": (damage_json, damage_lines),
    ".toml": (damage_toml, damage_lines),
    ".parquet": (bombed(damage_parquet), damage_lengths),
    ".jsonl.zst": (damage_packed("zst", damage_json),),
    ".txt.gz": (damage_packed("gz", damage_lines),),
    ".json.gz": (damage_packed("gz", damage_json),),
    "": (damage_lines,),
}
BINARY = (".parquet", ".db", ".wandb", ".tokens", ".idx", ".bin", ".zst", ".gz", ".tfevents")


def damage(name: str, data: bytes, rng: Random) -> bytes:
    """The file `name` with damage at one level that its format allows."""
    structure = next((found for suffix, found in STRUCTURE.items() if suffix and name.endswith(suffix)), None)
    if name.endswith(BINARY) or "tfevents" in name:
        levels: tuple[Mutator, ...] = (damage_bytes, *(structure or (damage_lengths,)))
    else:
        levels = (damage_bytes, damage_tokens, damage_tokens, *(structure or STRUCTURE[""]))
    return rng.choice(levels)(data, rng)[:LARGEST]

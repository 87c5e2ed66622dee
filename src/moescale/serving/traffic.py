"""What users send: lengths of prompts and outputs, as mean numbers, a named measurement, or a trace of requests.

In steady state a server holds a request for as many iterations as it has output tokens, so what is held at a time is
weighted by n: requests of p prompt and n output tokens hold E[n (p + n/2)] / E[n] tokens on average. Prompts are
processed one by one, so that their cost is an average over requests, in which attention is quadratic in p; two lengths
that share mean, variance and skewness with all prompts (Gauss quadrature) average every cubic polynomial exactly.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.io.files import read_text
from moescale.typing import FloatArray

CHARACTERS_PER_TOKEN = (
    4.0  # "one token generally corresponds to ~4 characters of text for common English": OpenAI's help
)
TRACE_LIMIT_BYTES = 2 * 2**30
# What the published traces call the two counts: Azure LLM inference traces 2023 and 2024, BurstGPT, vLLM's benchmarks.
PROMPT_COLUMNS = (
    "prompt_tokens", "input_tokens", "contexttokens", "request_tokens", "prompt_len", "input_length", "num_prefill_tokens",
)  # fmt: skip
OUTPUT_COLUMNS = (
    "output_tokens", "completion_tokens", "generatedtokens", "response_tokens", "output_len", "output_length",
    "num_decode_tokens",
)  # fmt: skip
ASKING, ANSWERING = ("human", "user"), ("gpt", "chatgpt", "assistant", "bard", "bing")
SHOWN = 12  # column names that a message repeats


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of requests; raises InputError unless they are finite, prompts not negative, outputs positive.

    Without the last three fields every request has the mean lengths.
    """

    prompt_tokens: float
    output_tokens: float
    source: str = "given by the user"
    context_tokens: float | None = None  # held by a request on average over its time in the batch; None: p + n/2
    longest_request_tokens: float | None = None  # prompt and output together; None: p + n
    prompt_nodes: tuple[tuple[float, float], ...] = ()  # (length, share) that stand for all prompts; (): the mean
    n_requests: int | None = None  # of the trace
    approximate: bool = False  # counted in characters, CHARACTERS_PER_TOKEN to a token

    def __post_init__(self) -> None:
        if not (math.isfinite(self.prompt_tokens) and self.prompt_tokens >= 0):
            raise InputError(f"prompt_tokens must be finite and not negative, not {self.prompt_tokens!r}")
        if not (math.isfinite(self.output_tokens) and self.output_tokens > 0):
            raise InputError(f"output_tokens must be finite and positive, not {self.output_tokens!r}")


@cache
def _read() -> tuple[tuple[str, Traffic], ...]:
    entries = catalogue.read("traffic.toml")["traffic"]
    return tuple(
        (
            name,
            Traffic(
                prompt_tokens=float(entry["prompt_tokens"]),
                output_tokens=float(entry["output_tokens"]),
                source=f"{entry['source']} ({entry['date']})",
            ),
        )
        for name, entry in entries.items()
    )


def traffics() -> dict[str, Traffic]:
    """Every named traffic of the catalogue."""
    return dict(_read())


def find_traffic(name: str) -> Traffic:
    """The traffic called `name`, in either case; raises InputError that names the nearest ones."""
    known = traffics()
    found = known.get(name.strip().lower())
    if found is None:
        raise unknown_name("traffic", name, known)
    return found


def summarise(
    prompt_tokens: FloatArray,
    output_tokens: FloatArray,
    source: str = "given by the user",
    *,
    approximate: bool = False,
) -> Traffic:
    """The traffic of requests with these lengths, shape (requests,) each; see the module for what is kept of them.

    Raises InputError unless there are requests and all lengths are finite and at least 1.
    """
    p, n = (np.asarray(lengths, dtype=np.float64).ravel() for lengths in (prompt_tokens, output_tokens))
    if p.size == 0 or p.size != n.size:
        raise InputError(f"{p.size} prompts and {n.size} outputs are not requests", where=source)
    if not (np.all((p >= 1) & (n >= 1)) and np.all(np.isfinite(p + n))):
        raise InputError("lengths must be finite and at least 1 token", where=source)
    return Traffic(
        prompt_tokens=float(np.mean(p)),
        output_tokens=float(np.mean(n)),
        source=source,
        context_tokens=float(np.sum(n * (p + n / 2)) / np.sum(n)),
        longest_request_tokens=float(np.max(p + n)),
        prompt_nodes=_two_nodes(p),
        n_requests=int(p.size),
        approximate=approximate,
    )


def _two_nodes(values: FloatArray) -> tuple[tuple[float, float], ...]:
    """Two points and their shares with the first four moments (0 to 3) of `values`: Gauss quadrature of two points.

    Both lie within the range of the values.
    """
    mean = float(np.mean(values))
    deviation = values - mean
    sigma = math.sqrt(float(np.mean(deviation**2)))
    if sigma <= 1e-9 * mean:
        return ((mean, 1.0),)
    skewness = float(np.mean((deviation / sigma) ** 3))
    half = math.sqrt(1.0 + skewness**2 / 4.0)
    low_share = 0.5 * (1.0 + skewness / 2.0 / half)
    low = max(mean + sigma * (skewness / 2.0 - half), float(np.min(values)))  # rounding aside it never lies below
    return ((low, low_share), (mean + sigma * (skewness / 2.0 + half), 1.0 - low_share))


def read_trace(path: str | Path) -> Traffic:
    """The traffic in a file of requests; its format is told by its content.

    ShareGPT JSON: a list of conversations, of which every human turn with the answer after it is a request (earlier
    turns are not part of the prompt, as in vLLM's benchmark); text is counted at CHARACTERS_PER_TOKEN, which
    `approximate` then says. CSV, JSON lines or a JSON list of records: one request a row, with the token counts under
    one of PROMPT_COLUMNS and one of OUTPUT_COLUMNS (case, spaces and underscores aside). Requests without a prompt or an
    output are left out; `source` says how many. Raises InputError that names file and row.
    """
    file = Path(path)
    text = read_text(file, limit_bytes=TRACE_LIMIT_BYTES)
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if not start:
        raise InputError("the file is empty", where=str(file), next_step=FORMATS)
    if start == "[":
        records, approximate = _conversations_or_records(_json(text, str(file)), str(file))
    elif start == "{":
        records, approximate = _records(_json_lines(text, str(file)), str(file))
    else:
        records, approximate = _records(_csv(text, str(file)), str(file))
    p, n = records[:, 0], records[:, 1]
    kept = (p >= 1) & (n >= 1)
    if not kept.any():
        raise InputError("holds no request with a prompt and an output", where=str(file), next_step=FORMATS)
    left_out = int(p.size - np.count_nonzero(kept))
    notes = [f"{np.count_nonzero(kept)} requests"]
    if left_out:
        notes.append(f"{left_out} without prompt or output left out")
    if approximate:
        notes.append(f"text counted at {CHARACTERS_PER_TOKEN:g} characters a token")
    return summarise(p[kept], n[kept], f"{file.name} ({'; '.join(notes)})", approximate=approximate)


FORMATS = "give a CSV or JSON lines with a row a request, or ShareGPT's JSON"

Rows = Iterator[tuple[int, Mapping[str, Any]]]


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text.lstrip("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})", where=where, next_step=FORMATS) from error


def _json_lines(text: str, where: str) -> Rows:
    for number, line in enumerate(text.lstrip("\ufeff").splitlines(), start=1):
        if line.strip():
            record = _json(line, f"{where}, line {number}")
            if not isinstance(record, Mapping):
                raise InputError("is not a JSON object", where=f"{where}, line {number}", next_step=FORMATS)
            yield number, cast("Mapping[str, Any]", record)


def _csv(text: str, where: str) -> Rows:
    header = text.lstrip("\ufeff").split("\n", 1)[0]
    reader = csv.DictReader(io.StringIO(text.lstrip("\ufeff")), delimiter="\t" if "\t" in header else ",")
    try:
        for record in reader:
            yield reader.line_num, record
    except csv.Error as error:
        at = f"{where}, row {reader.line_num}"
        raise InputError(f"not a CSV table ({error})", where=at, next_step=FORMATS) from error


def _conversations_or_records(content: Any, where: str) -> tuple[FloatArray, bool]:
    entries: list[Any] = list(content)
    rows = [(i, e) for i, e in enumerate(entries, start=1) if isinstance(e, Mapping)]
    if len(rows) != len(entries):
        raise InputError("holds a list whose entries are not all objects", where=where, next_step=FORMATS)
    talks = [(i, _turns(entry)) for i, entry in rows]
    if any(turns is not None for _, turns in talks) and not any(_column(e, PROMPT_COLUMNS) for _, e in rows[:1]):
        pairs = [pair for i, turns in talks for pair in _pairs(turns or (), f"{where}, entry {i}")]
        if not pairs:
            raise InputError(
                "no conversation in it has a human turn with an answer after it",
                where=where,
                next_step=f"turns are read `from` {', '.join(ASKING)} and `from` {', '.join(ANSWERING)}",
            )
        return np.asarray(pairs, dtype=np.float64) / CHARACTERS_PER_TOKEN, True
    return _records(iter(rows), where)


def _turns(entry: Mapping[str, Any]) -> Sequence[Any] | None:
    for key in ("conversations", "conversation", "messages"):
        turns = entry.get(key)
        if isinstance(turns, list):
            return cast("list[Any]", turns)
    return None


def _pairs(turns: Sequence[Any], where: str) -> Iterator[tuple[int, int]]:
    """Characters of each human turn and of the answer that follows it."""
    asked: int | None = None
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise InputError("a turn is not an object", where=where, next_step=FORMATS)
        said = cast("Mapping[str, Any]", turn)
        speaker = str(said.get("from", said.get("role", ""))).lower()
        text = said.get("value", said.get("content"))
        if not isinstance(text, str):
            raise InputError("a turn has no text under `value` or `content`", where=where, next_step=FORMATS)
        if speaker in ASKING:
            asked = len(text)
        elif speaker in ANSWERING and asked is not None:
            yield asked, len(text)
            asked = None


def _records(rows: Rows, where: str) -> tuple[FloatArray, bool]:
    lengths: list[tuple[float, float]] = []
    prompt = output = None
    for number, record in rows:
        if prompt is None or output is None or prompt not in record or output not in record:
            prompt, output = _column(record, PROMPT_COLUMNS), _column(record, OUTPUT_COLUMNS)
        if prompt is None or output is None:
            missing, known = ("prompt", PROMPT_COLUMNS) if prompt is None else ("output", OUTPUT_COLUMNS)
            present = ", ".join(str(name)[:40] for name in list(record)[:SHOWN])
            raise InputError(
                f"no column of {missing} tokens among {present or 'none'}",
                where=f"{where}, row {number}",
                next_step=f"name it {', '.join(known)}",
            )
        lengths.append((_count(record[prompt], prompt, number, where), _count(record[output], output, number, where)))
    if not lengths:
        raise InputError("holds no requests", where=where, next_step=FORMATS)
    return np.asarray(lengths, dtype=np.float64), False


def _column(record: Mapping[str, Any], known: Sequence[str]) -> str | None:
    """The record's own name of the first known column that it has."""
    plain = {_plain(str(name)): name for name in record}
    return next((plain[_plain(name)] for name in known if _plain(name) in plain), None)


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "").replace(" ", "")


def _count(value: Any, column: str, row: int, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < 1e12:
        raise InputError(
            f"{_shown(value)} is not a count of tokens",
            where=f"{where}, row {row}, column {column}",
            next_step="write a number from 0 to 1e12",
        )
    return number


def _shown(value: Any) -> str:
    try:
        return repr(str(value)[:40])
    except (ValueError, RecursionError):  # an integer of thousands of digits, lists in lists
        return f"a {type(value).__name__}"

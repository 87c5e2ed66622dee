"""What users send: lengths of prompts and outputs, as mean numbers or a trace of requests.

In steady state a server holds a request for as many iterations as it has output tokens, so what is held at a time is
weighted by n: requests of p prompt and n output tokens hold E[n (p + n/2)] / E[n] tokens on average. Prompts are
processed one by one, so that their cost is an average over requests, in which attention is quadratic in p; two lengths
that share mean, variance and skewness with all prompts (Gauss quadrature) average every cubic polynomial exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError
from moescale.io.files import decode_utf8, read_bytes
from moescale.io.frames import as_numbers, mixed_array, parse_table
from moescale.io.json_text import parse_json
from moescale.typing import FloatArray

# "One token generally corresponds to ~4 characters of text for common English": OpenAI's help.
CHARACTERS_PER_TOKEN = 4.0
TRACE_LIMIT_BYTES = 2 * 2**30
# What the published traces call the two counts: Azure LLM inference traces 2023 and 2024, BurstGPT, vLLM's benchmarks.
LENGTH_COLUMNS = {
    "prompt": "prompt_tokens input_tokens contexttokens request_tokens prompt_len input_length num_prefill_tokens",
    "output": "output_tokens completion_tokens generatedtokens response_tokens output_len output_length num_decode_tokens",
}
ASKING, ANSWERING = ("human", "user"), ("gpt", "chatgpt", "assistant", "bard", "bing")
TALKS = ("conversations", "conversation", "messages")
SHOWN = 12  # column names that a message repeats
FORMATS = "give a CSV or JSON lines with a row a request, or ShareGPT's JSON"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of requests; without the fields from `context_tokens` on every request has the mean lengths."""

    prompt_tokens: float
    output_tokens: float
    source: str = "given by the user"
    context_tokens: float | None = None  # held by a request on average over its time in the batch; None: p + n/2
    longest_request_tokens: float | None = None  # prompt and output together; None: p + n
    prompt_nodes: tuple[tuple[float, float], ...] = ()  # (length, share) that stand for all prompts; (): the mean
    approximate: bool = False  # counted in characters, CHARACTERS_PER_TOKEN to a token


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
        approximate=approximate,
    )


def _two_nodes(values: FloatArray) -> tuple[tuple[float, float], ...]:
    """Two points within the range of `values`, and shares, with their moments 0 to 3: Gauss quadrature of two points."""
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
    """The traffic in a file of requests; its format is told by its suffix, else by its content.

    ShareGPT JSON: a list of conversations, of which every human turn with the answer after it is a request (earlier
    turns are not part of the prompt, as in vLLM's benchmark); text is counted at CHARACTERS_PER_TOKEN, which
    `approximate` then says. A table (CSV, TSV, JSON lines, Parquet) or a JSON list of records: one request a row, with the
    token counts under one of each of LENGTH_COLUMNS (case, spaces and underscores aside). Requests without a prompt or an
    output are left out; `source` says how many. Raises InputError that names file and row.
    """
    prompt, output, notes, approximate = _trace(Path(path))
    return summarise(prompt, output, f"{Path(path).name} ({'; '.join(notes)})", approximate=approximate)


def trace_lengths(path: str | Path) -> tuple[FloatArray, FloatArray]:
    """Prompt and output tokens of each request in a file that read_trace reads, in the file's order."""
    return _trace(Path(path))[:2]


def _trace(file: Path) -> tuple[FloatArray, FloatArray, list[str], bool]:
    """Lengths of the requests in a file, notes on them, and whether text was counted in characters."""
    where, talks = str(file), None
    data = read_bytes(file, limit_bytes=TRACE_LIMIT_BYTES)
    if data.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        entries: list[Any] = parse_json(decode_utf8(data, where=where), where=where, next_step=FORMATS)
        if not all(isinstance(entry, Mapping) for entry in entries):
            raise InputError("holds a list whose entries are not all objects", where=where, next_step=FORMATS)
        talks = _talks(entries, where)
        names = dict.fromkeys(name for entry in entries for name in entry) if talks is None else ()
        table: Mapping[str, NDArray[Any]] = {n: mixed_array([entry.get(n) for entry in entries]) for n in names}
    else:
        table = parse_table(data, where).columns
    lengths = _lengths(table, where) if talks is None else np.asarray(talks).T / CHARACTERS_PER_TOKEN
    p, n = lengths
    kept = (p >= 1) & (n >= 1)
    if not kept.any():
        raise InputError("holds no request with a prompt and an output", where=where, next_step=FORMATS)
    notes = [f"{np.count_nonzero(kept)} requests"]
    if not kept.all():
        notes.append(f"{np.count_nonzero(~kept)} without prompt or output left out")
    if talks is not None:
        notes.append(f"text counted at {CHARACTERS_PER_TOKEN:g} characters a token")
    return p[kept], n[kept], notes, talks is not None


def _talks(entries: list[Mapping[str, Any]], where: str) -> list[tuple[int, int]] | None:
    """Characters of each human turn and of the answer that follows it; None where the rows are no conversations."""
    talks = [next((entry[key] for key in TALKS if isinstance(entry.get(key), list)), None) for entry in entries]
    if all(turns is None for turns in talks) or _column(entries[0], "prompt"):
        return None
    pairs = [pair for i, turns in enumerate(talks, start=1) for pair in _pairs(turns or [], f"{where}, entry {i}")]
    if not pairs:
        speakers = f"turns are read `from` {', '.join(ASKING)} and `from` {', '.join(ANSWERING)}"
        what = "no conversation in it has a human turn with an answer after it"
        raise InputError(what, where=where, next_step=speakers)
    return pairs


def _pairs(turns: list[Any], where: str) -> Iterator[tuple[int, int]]:
    question: int | None = None
    for turn in turns:
        if not isinstance(turn, Mapping):
            raise InputError("a turn is not an object", where=where, next_step=FORMATS)
        turn = cast("Mapping[str, Any]", turn)
        speaker, text = str(turn.get("from", turn.get("role", ""))).lower(), turn.get("value", turn.get("content"))
        if not isinstance(text, str):
            raise InputError("a turn has no text under `value` or `content`", where=where, next_step=FORMATS)
        if speaker in ASKING:
            question = len(text)
        elif speaker in ANSWERING and question is not None:
            yield question, len(text)
            question = None


def _lengths(table: Mapping[str, NDArray[Any]], where: str) -> FloatArray:
    """Prompt and output tokens of each row, (2, rows)."""
    if not any(len(column) for column in table.values()):
        raise InputError("holds no requests", where=where, next_step=FORMATS)
    found: list[FloatArray] = []
    for kind, known in LENGTH_COLUMNS.items():
        name = _column(table, kind)
        if name is None:
            present = ", ".join(str(name)[:40] for name in list(table)[:SHOWN])
            what = f"no column of {kind} tokens among {present or 'none'}"
            raise InputError(what, where=where, next_step=f"name it {', '.join(known.split())}")
        numbers, _ = as_numbers(table[name])
        if not np.all(good := (numbers >= 0) & (numbers < 1e12)):
            row = int(np.argmin(good))
            at, shown = f"{where}, row {row + 1}, column {name}", str(table[name][row])[:40]
            what = f"{shown!r} is not a count of tokens"
            raise InputError(what, where=at, next_step="write a number from 0 to 1e12")
        found.append(numbers)
    return np.asarray(found)


def _column(table: Mapping[str, Any], kind: str) -> str | None:
    """The table's own name of the first of LENGTH_COLUMNS that it has."""
    plain = {str(name).strip().lower().replace("_", "").replace(" ", ""): name for name in table}
    known = (name.replace("_", "") for name in LENGTH_COLUMNS[kind].split())
    return next((plain[name] for name in known if name in plain), None)

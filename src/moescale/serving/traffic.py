"""What users send: lengths of prompts and outputs, as mean numbers or a trace of requests.

A server holds a request for as many iterations as it has output tokens: requests of p prompt and n output tokens hold
E[n (p + n/2)] / E[n] tokens on average. The cost of prompts is an average over two lengths that share mean, variance and
skewness with all of them (Gauss quadrature).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moescale.errors import InputError
from moescale.io.frames import as_numbers, read_table
from moescale.typing import FloatArray

# What the published traces call the two counts: Azure LLM inference traces 2023 and 2024, BurstGPT, vLLM's benchmarks.
LENGTH_COLUMNS = {
    "prompt": "prompt_tokens input_tokens contexttokens request_tokens prompt_len input_length num_prefill_tokens",
    "output": "output_tokens completion_tokens generatedtokens response_tokens output_len output_length num_decode_tokens",
}
SHOWN = 12  # column names that a message repeats
FORMATS = "give a CSV or JSON lines with a row a request"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Lengths of requests; without the fields from `context_tokens` on every request has the mean lengths."""

    prompt_tokens: float
    output_tokens: float
    source: str = "given by the user"
    context_tokens: float | None = None  # held by a request on average over its time in the batch; None: p + n/2
    longest_request_tokens: float | None = None  # prompt and output together; None: p + n
    prompt_nodes: tuple[tuple[float, float], ...] = ()  # (length, share) that stand for all prompts; (): the mean


def summarise(prompt_tokens: FloatArray, output_tokens: FloatArray, source: str = "given by the user") -> Traffic:
    """The traffic of requests with these lengths, shape (requests,) each; InputError unless all are finite and at least 1."""
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
    """The traffic in a table of requests (CSV, TSV, JSON lines, a JSON list or Parquet), one a row.

    Token counts stand under one of each of LENGTH_COLUMNS (case, spaces and underscores aside). Requests without a prompt or an
    output are left out; `source` says how many. Raises InputError that names file and row.
    """
    prompt, output, left_out = _lengths(str(path))
    notes = f"; {left_out} without prompt or output left out" if left_out else ""
    return summarise(prompt, output, f"{Path(path).name} ({prompt.size} requests{notes})")


def trace_lengths(path: str | Path) -> tuple[FloatArray, FloatArray]:
    """Prompt and output tokens of each request in a file that read_trace reads, in the file's order."""
    return _lengths(str(path))[:2]


def _lengths(where: str) -> tuple[FloatArray, FloatArray, int]:
    """Prompt and output tokens of each row of a file that has both, and how many rows have not."""
    table = read_table(where).columns
    if not any(len(column) for column in table.values()):
        raise InputError("holds no requests", where=where, next_step=FORMATS)
    plain = {str(name).strip().lower().replace("_", "").replace(" ", ""): name for name in table}
    found: list[FloatArray] = []
    for kind, known in LENGTH_COLUMNS.items():
        name = next((plain[n] for each in known.split() if (n := each.replace("_", "")) in plain), None)
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
    p, n = found
    kept = (p >= 1) & (n >= 1)
    if not kept.any():
        raise InputError("holds no request with a prompt and an output", where=where, next_step=FORMATS)
    return p[kept], n[kept], int(np.count_nonzero(~kept))

"""Predicted over measured servings with prefill and decode on GPUs of their own.

`python benchmarks/disaggregated.py [--held-out]`; scripts/document_accuracy.py --apart HALF stores the scores

Rows, halves, sets, formats, lengths and scores are those of measured_servings.py: the kernel package's silicon_sample.csv,
of which this looks at the rows whose mode is `disagg`. The rule was written, and committed, before any of them was predicted:

- Predicted are rows that state their clients and the number of workers of each kind, with degrees that make a server (the
  conventions of measured_servings.py, for each worker). All others are counted: without the number of workers, neither the
  requests of a decode worker nor the GPUs are known.
- Times are those that `disaggregated` prices by: a prefill worker's pass of m prompts A(m), up to the q that fill a pass;
  a decode worker's pass of b requests D(b); M for the way of the cache. A worker's GPUs, groups and experts are the row's.
- c clients in a closed loop, in equilibrium: b of them decode at W_d workers, c - b have prompts at W_p, both at one rate:
  b / ((n - 1) D(b/W_d)) = X = (c - b) / (A(m) + M), m = (c - b) / W_p prompts a worker, at most q a pass and one at least.
  Beyond q prompts wait: X = W_p q / A(q). TPOT is D, TTFT is (c - b) / X, output tokens/s follow from both as measured.
- Whether a row drafts tokens (multi-token prediction) is not stated; none is assumed.
- The held-out half is scored once, by kind alone, after this file and the development half's scores are committed.
"""

from __future__ import annotations

import argparse
import csv
import importlib.resources
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq

import serving_predictions
import serving_rows
import serving_scores
from serving_predictions import Setting
from serving_rows import APART, DEVELOPMENT, HELD_OUT, Case, Measured
from serving_scores import Scored

UNSTATED = "workers or clients not stated"
FITS_NOTHING = "degrees that make no server"


def rows_of(which: str) -> Iterator[Mapping[str, str]]:
    """The rows of one half with prefill and decode apart."""
    path = importlib.resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["mode"] == "disagg" and serving_rows.half(*serving_rows.set_of(row)) == which:
                yield row


def worker(row: Mapping[str, str], kind: str) -> tuple[int, int, int]:
    """GPUs, GPUs that split whole experts (0 where they fit no server) and attention groups of a prefill or decode worker."""
    return serving_rows.degrees(
        {**row, **{k.removeprefix(f"{kind}_"): v for k, v in row.items() if k.startswith(kind)}}
    )


def predicted(row: Mapping[str, str], case: Case) -> dict[str, float] | str:
    """The three figures of a row, or why there are none."""
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu
    from moescale.hardware.precisions import find_precision
    from moescale.models.hf_config import from_config
    from moescale.models.quantisation import with_usual_shares
    from moescale.serving.disaggregated import _alone, _transfer_s
    from moescale.serving.servers import Servers

    workers = [row["prefill_num_workers"], row["decode_num_workers"]]
    if not all(workers) or case.max_num_seqs is None or not math.isfinite(case.max_num_seqs):
        return UNSTATED
    parts = [worker(row, kind) for kind in ("prefill", "decode")]
    if any(ways == 0 for _, ways, _ in parts):
        return FITS_NOTHING
    stated = serving_rows.config(case.model)
    if stated is None:
        return f"no config.json of {case.model} at hand"
    try:
        model = with_usual_shares(from_config(stated), case.weights)
        if case.per_tensor:
            model = replace(model, quantised=replace(model.quantised, scale_per_tensor=True))
        gpu = find_gpu(case.gpu)
        held = (find_precision("weights", case.weights), find_precision("kv_cache", case.kv_cache))
        weights, cache = (one.bytes_per_element for one in held)
        source, template = serving_predictions.latency_source(gpu, case.engine, weights, cache, Setting(), case.weights)
        lengths = {"prompt_tokens": case.prompt_tokens, "output_tokens": case.output_tokens}
        template = _alone(replace(template, **lengths))
        (p, q) = (
            Servers(model, np.asarray(float(n)), source, replace(template, attention_dp=float(groups), expert_parallel=float(ways if serving_rows.is_moe(case.model) else 1)))
            for n, ways, groups in parts
        )  # fmt: skip
        moved_s = float(_transfer_s(model, template, min(p.count, q.count), (p.count + q.count) / 2.0))
        room = max(template.pass_tokens / case.prompt_tokens, 1.0) * parts[0][2]
        return _equilibrium(case, p, q, [int(float(n)) for n in workers], room, moved_s)
    except MoescaleError as error:
        return serving_predictions.reason_of(error)


def _equilibrium(case: Case, p: Any, q: Any, workers: list[int], room: float, moved_s: float) -> dict[str, float]:
    """TPOT, TTFT and output tokens a second of the case's clients (the docstring's third point)."""
    clients, n, (w_p, w_d) = float(case.max_num_seqs or 0.0), case.output_tokens, workers

    def decode_s(b: float) -> float:
        return float(q.pass_s(np.asarray(max(b / w_d, 1.0))))

    def decoded(b: float) -> float:
        return b / ((n - 1.0) * decode_s(b))

    def started(waiting: float) -> float:
        m = min(max(waiting / w_p, 1.0), room)
        pass_s = float(p.pass_s(None, np.asarray(m)))
        return min(waiting / (pass_s + moved_s), w_p * m / pass_s)

    def surplus(decoding: float) -> float:
        return decoded(decoding) - started(clients - decoding)

    b = float(brentq(surplus, 0.0, clients, xtol=1e-6 * clients))
    rate = decoded(b)
    tpot_s, ttft_s = decode_s(b), (clients - b) / rate
    if not (tpot_s > 0.0 and ttft_s > 0.0):
        return {}
    return {"tpot": tpot_s, "ttft": ttft_s, "output_tok_s": clients * n / (ttft_s + (n - 1.0) * tpot_s)}


def scored(which: str) -> list[Scored]:
    """Every figure of one half beside its prediction."""
    return scored_rows(rows_of(which))


def scored_rows(rows: Iterable[Mapping[str, str]]) -> list[Scored]:
    """Every figure of some rows beside its prediction."""
    found: list[Scored] = []
    for row in rows:
        figures = serving_rows.package_row({**row, "batch_size": ""})
        case = replace(figures[0].case, not_in_words=APART, attention_dp=worker(row, "decode")[2])
        answer = predicted(row, case)
        measured = [Measured(case, one.source, one.metric, one.value) for one in figures]
        found += serving_scores.compare(measured, {case: answer})
    return found


def main() -> int:
    """Print the scores; the exit code."""
    parser = argparse.ArgumentParser(description="Predicted over measured servings with prefill and decode apart.")
    parser.add_argument("--held-out", action="store_true", help="score the half set aside, by kind only")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write every row with its ratio")
    asked = parser.parse_args()
    if asked.held_out and asked.rows is not None:
        raise SystemExit("--held-out is scored by kind only: leave out --rows")
    which = HELD_OUT if asked.held_out else DEVELOPMENT
    found = scored(which)
    results = serving_scores.scores(found, serving_scores.BY_KIND if asked.held_out else tuple(serving_scores.LEVELS))
    refused, facts = serving_scores.refusals(found), serving_scores.about(which, Setting())
    if asked.rows is not None:
        serving_scores.write_rows(asked.rows, found)
    print(", ".join(f"{name} {value}" for name, value in facts.items()), "\n")
    print("\n".join(serving_scores.table(results)))
    print("\nRows without a ratio")
    for (_, name, reason), n in refused.items():
        print(f"{n:5d}  {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Predicted over measured training throughput: how far `training/step_time.py` lies from published runs.

`python benchmarks/training_throughput.py [--held-out] [--rows] [--write] [--page]`

--write stores the scores in benchmarks/results; --page writes docs/evidence/training-time.md again from the stored ones.

Measured: tests/data/public/training_throughputs.csv, tokens a second and GPU with source, date and address. Predicted: the
same of `step_time` for the row's model, GPU, split, batch, sequence, recomputation and precision.

The rule of the split was written, and committed, before any prediction was made. Rows of one source and model are not
independent, so whole sets go to one half: the set's key is `source|model`, as the table spells them; the half is `development`
where the last byte of the SHA-256 of the key (UTF-8) is even, else `held_out`. The model's form and constants look at
`development` alone; `held_out` is scored with --held-out, once, when both are settled. The figures themselves were read when the
table was written.

A score is of sets: each row weighs one over the rows of its set. Geometric mean: exp of the mean ln(predicted / measured);
spread: exp of its standard deviation; within 25%: the share with 0.8 <= ratio <= 1.25; error: the median of |ratio - 1|, rows
weighed likewise. Scores stand by half and kind (dense, moe).

Conventions where a source says less than a prediction needs, written before any score:

- Rows of MLPerf, runs that drop tokens, 4-bit arithmetic, other optimisers than Adam (Kimi K2 with Muon) and models whose shape is
  not published are no rows. Of releases of Megatron-Bridge the latest that states a model, GPU, precision and number of GPUs.
- Selective recomputation (scores of attention, norms, activations) counts as none, all layers' as full.
- What a table assumes is in its `note`; 2.4 TB/s is what torchtitan states of its H100s, whose lower power limit it cannot state.
- llm-foundry's SHARD_GRAD_OP keeps gathered weights: state `optimizer`.
- The gain of fp8 (--fp8): pairs of rows that differ in precision and throughput alone, of the columns in PAIRED; each pair's ratio of
  predicted to measured gains, a set of source and model weighing one, by kind and over both halves: no constant rests on it.
- Context parallelism splits a sequence as `step_time`'s `context` says; the GPUs of a sequence share in splitting the state.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib
import itertools
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from moescale.hardware.gpus import find_gpu
from moescale.models.architecture import Architecture
from moescale.models.published import find_shape
from moescale.training.parallelism import Split, Trainer
from moescale.training.step_time import StepTime, step_time

DEVELOPMENT, HELD_OUT = "development", "held_out"
ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "data" / "public" / "training_throughputs.csv"
RESULTS = ROOT / "benchmarks" / "results"
STORED = RESULTS / "training_throughput.csv"
PAGE = "evidence/training-time.md"
ONE_MFU = 0.4  # what stood in the place of the parts


def half(source: str, model: str) -> str:
    """The half that a row belongs to."""
    digest = hashlib.sha256(f"{source}|{model}".encode()).digest()
    return HELD_OUT if digest[-1] % 2 else DEVELOPMENT


def read_rows(path: Path = TABLE) -> list[dict[str, str]]:
    """The rows of the table as it stands."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def architecture(row: dict[str, str]) -> Architecture:
    """The model of a row: of the catalogue, or by its sizes."""
    if row["shape"]:
        return find_shape(row["shape"]).architecture
    sizes = {f.name: float(row[f.name]) for f in fields(Architecture) if row.get(f.name)}
    whole = {"ffn_matrices": int(row["ffn_matrices"]), "tied_embeddings": row["tied_embeddings"] == "1"}
    return Architecture(**(sizes | whole))  # pyright: ignore[reportArgumentType]


def predict(row: dict[str, str]) -> StepTime:
    """The time of a row's step by parts."""
    n = {name: int(row[name]) for name in ("gpus", "tensor", "pipeline", "expert", "context", "micro_batch")}
    gpu = find_gpu(row["gpu"])
    if row["bandwidth_gb_per_s"]:
        gpu = replace(gpu, memory_bandwidth_bytes_per_s=float(row["bandwidth_gb_per_s"]) * 1e9)
    data, batch = n["gpus"] // (n["tensor"] * n["pipeline"] * n.pop("context")), int(row["batch_sequences"])
    split = Split(
        **n, data=data, accumulation=max(1, batch // (data * n["micro_batch"])), recompute=row["recompute"] == "1"
    )
    full = row["states"] == "full"
    return step_time(
        architecture(row),
        batch_sequences=batch,
        sequence_tokens=int(row["sequence_tokens"]),
        gpu=gpu,
        split=split,
        trainer=Trainer(states="full" if full else "optimizer", pipeline=True, tensor=True),
        precision="fp8" if row["precision"] == "fp8" else "bf16",
        stages_per_gpu=int(row["stages_per_gpu"]),
        context=int(row["context"]),
        exchange_hidden=row["exchange_hidden"] == "1",
    )


@dataclass(frozen=True, slots=True)
class Scored:
    """A row, what was predicted of it, and what one MFU for all would have said."""

    row: dict[str, str]
    step: StepTime

    @property
    def set(self) -> str:
        """Rows of one source and model weigh as one."""
        return f"{self.row['source']}|{self.row['model']}"

    @property
    def measured(self) -> float:
        """Tokens a second and GPU."""
        return float(self.row["tokens_per_s_per_gpu"])

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.step.tokens_per_s_per_gpu / self.measured

    @property
    def one_mfu_ratio(self) -> float:
        """The same of an MFU of 0.4."""
        return ONE_MFU * self.step.peak_flops_per_s / self.step.model_flops_per_token / self.measured


def scored(rows: Iterable[dict[str, str]]) -> list[Scored]:
    """All rows with their predictions."""
    return [Scored(row, predict(row)) for row in rows]


def score(sets: Sequence[str], ratios: Sequence[float]) -> dict[str, float]:
    """Geometric mean, spread, share within 25% and median error of ratios, each set weighing one."""
    rows = Counter(sets)
    weights = [1.0 / rows[name] / len(rows) for name in sets]
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(w * x for w, x in zip(weights, logs, strict=True))
    spread = math.sqrt(sum(w * (x - mean) ** 2 for w, x in zip(weights, logs, strict=True)))
    within = sum(w for w, ratio in zip(weights, ratios, strict=True) if 0.8 <= ratio <= 1.25)
    errors = sorted((abs(ratio - 1.0), w) for ratio, w in zip(ratios, weights, strict=True))
    reached = itertools.accumulate(w for _, w in errors)
    error = next(error for (error, _), so_far in zip(errors, reached, strict=True) if so_far >= 0.5 - 1e-12)
    return {
        "rows": len(ratios),
        "sets": len(rows),
        "geometric_mean": math.exp(mean),
        "spread": math.exp(spread),
        "within_25": within,
        "rows_within_25": sum(0.8 <= ratio <= 1.25 for ratio in ratios) / len(ratios),
        "median_error": error,
    }


def table(found: Sequence[Scored], halves: Sequence[str]) -> list[dict[str, object]]:
    """Scores by half and kind, of the parts and of one MFU."""
    lines: list[dict[str, object]] = []
    for which in halves:
        for kind in ("dense", "moe"):
            of = [s for s in found if s.row["kind"] == kind and half(s.row["source"], s.row["model"]) == which]
            for how, ratios in (
                ("parts", [s.ratio for s in of]),
                (f"MFU {ONE_MFU:g}", [s.one_mfu_ratio for s in of]),
            ):
                lines.append({"half": which, "kind": kind, "from": how, **score([s.set for s in of], ratios)})
    return lines


PAIRED = (
    *("source", "model", "gpu", "gpus", "tensor", "pipeline", "stages_per_gpu", "expert", "context", "states"),
    *("exchange_hidden", "micro_batch", "batch_sequences", "sequence_tokens", "recompute"),
)


def fp8_gains(found: Sequence[Scored]) -> list[tuple[str, str, float, float]]:
    """Kind, set, measured and predicted gain of throughput by fp8, of each pair of rows that is otherwise alike."""
    pairs: dict[tuple[str, ...], dict[str, Scored]] = {}
    for s in found:
        pairs.setdefault(tuple(s.row[name] for name in PAIRED), {})[s.row["precision"]] = s
    return [
        (
            one["fp8"].row["kind"],
            one["fp8"].set,
            one["fp8"].measured / one["bf16"].measured,
            one["fp8"].step.tokens_per_s_per_gpu / one["bf16"].step.tokens_per_s_per_gpu,
        )
        for one in pairs.values()
        if {"bf16", "fp8"} <= one.keys()
    ]


def show_fp8_gains() -> None:
    """Print each pair's gains, and their scores by kind."""
    gains = fp8_gains(scored(read_rows()))
    for kind, name, measured, predicted in sorted(gains):
        print(f"{kind:6} {name:46} measured {measured:.2f}, predicted {predicted:.2f}")
    for kind in ("dense", "moe"):
        of = [(name, predicted / measured) for each, name, measured, predicted in gains if each == kind]
        if of:
            print(kind, score([name for name, _ in of], [ratio for _, ratio in of]))


def page() -> str:
    """The text of docs/evidence/training-time.md, from the stored scores."""
    if (scripts := str(ROOT / "scripts")) not in sys.path:
        sys.path.append(scripts)
    pages: Any = importlib.import_module("pages")
    with STORED.open(newline="", encoding="utf-8") as file:
        found = {(row["half"], row["kind"], row["from"]): row for row in csv.DictReader(file)}
    rows: list[list[str]] = []
    for which, words in ((DEVELOPMENT, "development"), (HELD_OUT, "held out")):
        for kind, name in (("dense", "dense"), ("moe", "MoE")):
            ours, one = found[which, kind, "parts"], found[which, kind, f"MFU {ONE_MFU:g}"]
            of = [f"{float(ours['geometric_mean']):.2f}", f"{float(ours['spread']):.2f}"]
            shares = [
                f"{float(row[key]):.0%}"
                for row, key in ((ours, "within_25"), (ours, "median_error"), (one, "within_25"))
            ]
            rows.append([words, name, f"{ours['rows']} ({ours['sets']})", *of, *shares])
    header = ("half", "models", "runs (sets)", "ratio", "spread", "within 25%", "median error", "within 25% at MFU 0.4")
    alone = {kind: f"{float(found[HELD_OUT, kind, 'parts']['rows_within_25']):.0%}" for kind in ("dense", "moe")}
    runs = sum(int(row["rows"]) for (_, _, how), row in found.items() if how == "parts")
    parts = {"scores": pages.table(header, rows, numbers=6), "runs": f"{runs}", **alone}
    return str(pages.filled(PAGE, parts))


def main() -> None:
    """Print the scores; with --write keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="score the held-out half, too")
    parser.add_argument("--rows", action="store_true", help="print every row of the development half")
    parser.add_argument("--write", action="store_true", help=f"write {RESULTS.name}/training_throughput.csv")
    parser.add_argument(
        "--fp8", action="store_true", help="print what fp8 gains, measured and predicted, and score no more"
    )
    parser.add_argument("--page", action="store_true", help="write the page from the stored scores, and score nothing")
    asked = parser.parse_args()
    if asked.page:
        (ROOT / "docs" / PAGE).write_text(page(), encoding="utf-8")
        return
    if asked.fp8:
        show_fp8_gains()
        return
    halves = (DEVELOPMENT, HELD_OUT) if asked.held_out else (DEVELOPMENT,)
    found = scored(row for row in read_rows() if half(row["source"], row["model"]) in halves)
    if asked.rows:
        for s in sorted(found, key=lambda s: (s.row["kind"], s.set, s.row["gpu"])):
            if half(s.row["source"], s.row["model"]) == DEVELOPMENT:
                r, shares = (
                    s.row,
                    " ".join(f"{name[:4]} {share:.0%}" for name, share in s.step.shares.items() if share > 0.005),
                )
                where = f"{r['gpu']} x{r['gpus']} T{r['sequence_tokens']} b{r['micro_batch']} {r['precision']} r{r['recompute']}"
                print(f"{s.ratio:5.2f} {s.step.mfu:4.0%} {s.set:42} {where:42} {shares}")
    lines = table(found, halves)
    for line in lines:
        print("  ".join(f"{k} {v:.3g}" if isinstance(v, float) else f"{v}" for k, v in line.items()))
    if asked.write:
        with STORED.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({k: f"{v:.4g}" if isinstance(v, float) else v for k, v in line.items()} for line in lines)


if __name__ == "__main__":
    main()

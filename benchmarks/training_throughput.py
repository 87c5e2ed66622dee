"""Predicted over measured training throughput: how far `training/step_time.py` lies from published runs.

`python benchmarks/training_throughput.py [--held-out] [--rows] [--write]`

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
- Context parallelism splits a sequence as `step_time`'s `context` says; the GPUs of a sequence share in splitting the state.
"""

from __future__ import annotations

import csv
import hashlib
from pathlib import Path

DEVELOPMENT, HELD_OUT = "development", "held_out"
ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tests" / "data" / "public" / "training_throughputs.csv"


def half(source: str, model: str) -> str:
    """The half that a row belongs to."""
    digest = hashlib.sha256(f"{source}|{model}".encode()).digest()
    return HELD_OUT if digest[-1] % 2 else DEVELOPMENT


def read_rows(path: Path = TABLE) -> list[dict[str, str]]:
    """The rows of the table as it stands."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))

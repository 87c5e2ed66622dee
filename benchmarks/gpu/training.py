"""Model FLOPs utilisation of training by number of experts, on one NVIDIA GPU.

    python benchmarks/gpu/training.py -o mfu.csv              # again and again, until it says `complete`
    python benchmarks/gpu/training.py -o t.csv --device cpu --tiny

Trains a few steps of three shapes (width, depth) with E experts in every other layer, top-2, bf16, on random tokens,
and writes a row for each: tokens per second of the median step, and MFU, that is the FLOPs of 6 a matmul parameter that a
token meets and of causal attention over the GPU's dense bf16 peak (catalogue/gpus.toml). A call stops after nine minutes,
between two models; the next goes on. What does not fit becomes a row that says so.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import MoescaleError
from moescale.experiments.run import add_rows
from moescale.experiments.settings import RunSettings, estimate, mfu, settings_of

# The paper's first and third (reading of table 1 in docs/evidence/reproduction.md), and a few layers of a wide model.
SHAPES = ((768, 12), (1024, 24), (2048, 8))
EXPERTS = (1, 2, 4, 8, 16, 32, 64)
SEQUENCE, BATCH, MICRO = 2048, 131_072, 16_384  # tokens; a quarter of the paper's batch, for the time's sake
VOCABULARY = 32_000
STEPS, WARM_UPS = 8, 3
SECONDS = 540.0


class Sequences:
    """Random sequences."""

    def __init__(self, length: int, vocab_size: int) -> None:
        self.tokens = np.random.default_rng(0).integers(0, vocab_size, (512, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, position: int) -> Any:
        return self.tokens[position]


class Corpus:
    """What a run asks of its data, without files."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def sequences(self, split: str, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The same for every split."""
        return Sequences(length, self.vocab_size)

    def epochs(self, tokens: int, length: int, max_epochs: float = 1) -> float:
        """Not of interest here."""
        return 1.0


def runs(*, tiny: bool, device: str) -> list[RunSettings]:
    """What is measured, the smallest first."""
    shapes = ((64, 2),) if tiny else SHAPES
    sequence, batch, micro = (32, 256, 128) if tiny else (SEQUENCE, BATCH, MICRO)
    found = [
        settings_of(
            {
                "name": f"{width}/{depth} E={experts}", "output": "none", "data": {"corpus": "none"},
                "model": {"d_model": width, "n_layers": depth, "experts": experts},
                "training": {
                    "tokens": STEPS * batch, "batch_tokens": batch, "sequence_tokens": sequence,
                    "micro_batch_tokens": micro, "dtype": "bfloat16", "checkpoint_every_s": 0,
                },
                "parallel": {"device": device},
            }
        )
        for width, depth in shapes
        for experts in ((1, 4) if tiny else EXPERTS)
    ]  # fmt: skip
    return sorted(found, key=lambda settings: estimate(settings)["n_params_total"])


def measure(settings: RunSettings, vocab_size: int) -> dict[str, Any]:
    """The row of one model."""
    torch: Any = import_module("torch")
    trainer: Any = import_module("moescale.experiments.train")
    device = torch.device(settings.parallel.device)
    chip = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    t = settings.training
    row: dict[str, Any] = {
        "name": settings.name, "n_experts": settings.model.experts, "d_model": settings.model.d_model,
        "n_layers": settings.model.n_layers, **estimate(settings), "batch_tokens": t.batch_tokens,
        "micro_batch_tokens": t.micro_batch_tokens, "sequence_tokens": t.sequence_tokens, "device": chip,
        "torch": str(torch.__version__), "settings_sha256": settings.sha256, "status": "ok",
    }  # fmt: skip
    try:
        run = trainer.Run(settings, Corpus(vocab_size), _silent)
        times: list[float] = []
        for _ in range(STEPS):
            start = time.perf_counter()
            run._step()  # it reads its loss, and so waits for the device
            times.append(time.perf_counter() - start)
        per_s = t.batch_tokens / statistics.median(times[WARM_UPS:])
        row |= {"tokens_per_s": per_s, "mfu": mfu(settings, vocab_size, chip, per_s)}
        if device.type == "cuda":
            row["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)
    except torch.OutOfMemoryError:
        row["status"] = "out of memory"
    finally:
        run = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
    return row


def _silent(_: Any) -> None:
    pass


def main() -> int:
    """Measure what the table lacks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="table", type=Path, required=True, help="table to write or extend: .csv or .tsv")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="start no further model after this time")
    parser.add_argument("--tiny", action="store_true", help="models of seconds, to test this script")
    given = parser.parse_args()
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]  # profile.py here would hide Python's own
    start, missing = time.monotonic(), 0
    try:
        known = given.table.read_text(encoding="utf-8") if given.table.exists() else ""
        for settings in runs(tiny=given.tiny, device=given.device):
            if settings.sha256 in known:
                continue
            if time.monotonic() - start >= given.seconds:
                missing += 1
                continue
            row = measure(settings, 512 if given.tiny else VOCABULARY)
            add_rows(given.table, [row])
            mfu = f", MFU {row['mfu']:.1%}" if row.get("mfu") else ""
            shown = f"{row['tokens_per_s']:,.0f} tokens/s{mfu}" if "tokens_per_s" in row else row["status"]
            print(f"{row['name']}: {shown}", file=sys.stderr, flush=True)
    except MoescaleError as error:
        print(f"training.py: {error}", file=sys.stderr)
        return error.exit_code
    print("complete" if not missing else f"{missing} models are missing: run it again")
    return 0


if __name__ == "__main__":
    sys.exit(main())

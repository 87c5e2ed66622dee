"""Work for tests/faulty_files.py that needs stand-ins: a profile without a model, a sweep without training, small shards."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from moescale.errors import MoescaleError

STUB_ENGINE = Path(__file__).with_name("stub_engine.py")
STUB_TRAINING = Path(__file__).with_name("stub_training.py")
SETTINGS: dict[str, Any] = {
    "data": {"corpus": "corpus"},
    "training": {"sequence_tokens": 64, "batch_tokens": 1024},
    "grid": {"shapes": [[64, 2]], "experts": [1, 4], "tokens": ["1M"]},
    "table": "runs.csv",
    "folder": "sweep",
}


def profile() -> None:
    from moescale.profiling.grid import make_grid, model_of_size
    from moescale.profiling.run import Repeats, profile

    grid = make_grid(
        gpu="h100-sxm", models=[model_of_size(1e6, 1, gpus=1, kv_heads=None)], batches=(1, 2), prompt_tokens=(128,),
        context_tokens=(), gpus=(1,), engine="torch", dtype="bfloat16",
    )  # fmt: skip
    with told():
        profile(grid, "latency.csv", engine_file=STUB_ENGINE, repeats=Repeats(rounds=1, least=1, most=1), log="log.txt")


def sweep() -> None:
    from moescale.training.driver import drive
    from moescale.training.sweep import expand

    with told():
        done = drive(
            expand(SETTINGS), command=lambda file: [sys.executable, "-S", str(STUB_TRAINING), str(file)], poll_s=0.01
        )
        if done.failed or done.left:
            raise MoescaleError(f"failed: {done.failed}")


def rows() -> None:
    from moescale.training.run_table import add_rows

    with told():
        for name in ("b", "c"):
            add_rows("runs.csv", [{"name": name, "settings_sha256": "1", "tokens": 1000, "loss": 2.5}])


def shards() -> None:
    from moescale.training.data import pack

    with told():
        pack(["text.jsonl"], "corpus", tokenizer="bytes", validation=0.2, shard_tokens=2_000)


class told:  # noqa: N801  # a context manager
    """An error as the command line tells it."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, MoescaleError):
            sys.stderr.write(f"moescale: {error}\n")
            sys.exit(error.exit_code)

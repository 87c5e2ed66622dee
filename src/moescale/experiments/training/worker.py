"""One process of a run: what torchrun starts, or what `run.py` calls when a run has one process.

`python -m moescale.experiments.training.worker FOLDER [--no-resume]` reads FOLDER/settings.json; the first process writes one JSON line
an event to standard output, the last of them {"event": "done", "measured": ..} or {"event": "error", ..}.
"""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from moescale.errors import InputError, MoescaleError
from moescale.experiments.data.corpus import Corpus, open_corpus
from moescale.experiments.training import parallel
from moescale.experiments.training.folder import settings_in, stated_columns
from moescale.experiments.training.launch import end_with_parent
from moescale.experiments.training.settings import RunSettings
from moescale.experiments.training.tracking import start
from moescale.experiments.training.trainer import Run
from moescale.io.files import append_line, opened_to_append, write_error

Report = Callable[[Mapping[str, Any]], None]
PROGRESS = "progress.jsonl"
METRICS = {
    "loss": "train/loss",
    "lr": "train/lr",
    "tokens_per_s": "train/tokens_per_s",
    "mfu": "train/mfu",
    "validation_loss": "validation/loss",
    "imbalance": "moe/imbalance",
    "dead_experts": "moe/dead_experts",
}
"""Names of an event's figures in trackers."""


def work(settings: RunSettings, *, resume: bool, report: Report, corpus: Corpus | None = None) -> dict[str, Any]:
    """Train in this process, or in this and the others of torchrun's group; what was measured, with the software's names."""
    import transformers

    torch.set_num_threads(settings.parallel.threads)
    transformers.utils.logging.disable_progress_bar()
    device = parallel.device_of(settings.parallel)
    folder = Path(settings.output)
    try:
        with ExitStack() as stack:
            layout = stack.enter_context(parallel.joined(settings.parallel, device))
            data = corpus or open_corpus(settings.data.corpus)
            told = (
                stack.enter_context(_reporting(settings, folder, report, data.vocab_size))
                if layout.rank == 0
                else _silent
            )
            run = Run(settings, data, layout, told)
            rows = run.rows(resume)
            run.save_model(folder / "model")
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the run does not fit in memory: {str(error).splitlines()[0]}", where=str(device),
            next_step="make micro_batch_tokens smaller, or spread the weights with fsdp, tensor or expert",
        ) from error  # fmt: skip
    except OSError as error:
        raise write_error(os.fsdecode(error.filename or folder), error) from error
    return {
        "rows": rows, "device": parallel.describe(device),
        "torch": str(torch.__version__), "transformers": str(transformers.__version__),
    }  # fmt: skip


@contextmanager
def _reporting(settings: RunSettings, folder: Path, report: Report, vocab_size: int) -> Generator[Report]:
    """Keeps every event as a line of progress.jsonl, sends it on, and logs metrics to the trackers that are asked for."""
    longest = stated_columns(settings, vocab_size, len(settings.training.tokens) - 1)
    config = {key: value for key, value in longest.items() if value is not None}
    tracker = start(settings.tracking, settings.name, config, folder)
    with opened_to_append(folder / PROGRESS, follow_links=False) as stream:

        def tell(event: Mapping[str, Any]) -> None:
            line = {"time": time.time(), **event}
            append_line(stream, json.dumps(line))
            metrics = {
                METRICS[key]: float(value) for key, value in event.items() if key in METRICS and value is not None
            }
            if metrics:
                tracker.log(int(event["step"]), metrics)
            report(line)

        try:
            yield tell
        finally:
            tracker.close()


def _silent(_: Mapping[str, Any]) -> None:
    pass


def main() -> int:
    """The process that torchrun starts."""
    end_with_parent()
    folder, resume = Path(sys.argv[1]), "--no-resume" not in sys.argv
    first = os.environ.get("RANK", "0") == "0"

    def say(event: Mapping[str, Any]) -> None:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()

    try:
        settings = settings_in(folder)
        measured = work(settings, resume=resume, report=say)
    except MoescaleError as error:
        if first:
            say({"event": "error", "what": error.what, "where": error.where, "nearest": error.nearest,
                 "next_step": error.next_step})  # fmt: skip
        return error.exit_code
    if first:
        say({"event": "done", "measured": measured})
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())

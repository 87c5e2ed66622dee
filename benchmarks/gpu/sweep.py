"""The project's own sweep on one NVIDIA GPU: N of 9 to 302 million, E of 1 to 32, 1e17 to 1e19 FLOPs a run, on bytes of source text.

    python benchmarks/gpu/sweep.py -o gpu-sweep --dry-run            (what it would train, and for how long; starts nothing)
    python benchmarks/gpu/sweep.py -o gpu-sweep --budgets 1e17       (again and again, until it prints `complete`)

Each call stops by itself after nine minutes and the next goes on. The folder then holds corpus/, sweep.toml, runs.csv and a folder
for each run. `--tiny --device cpu` is for tests.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from moescale.errors import InputError, MoescaleError
from moescale.experiments.corpus import open_corpus
from moescale.experiments.settings import ModelSettings
from moescale.experiments.sweep import drive
from moescale.experiments.sweep_file import Sweep, expand, read_sweep
from moescale.hardware.gpus import load_gpu
from moescale.io.files import write_atomically
from moescale.models.parameters import count_parameters
from moescale.units import format_count, parse_quantity

SECONDS = 540.0
BUDGETS = (1e17, 3e17, 1e18, 3e18, 1e19)  # 6 N_active D of a run
EXPERTS = (1, 2, 4, 8, 16, 32)  # top-2 in every other layer, as the paper's
# Width and depth with heads of 64: dense N of 9.4, 21, 44, 85, 154 and 302 million.
SHAPES = ((256, 12), (384, 12), (512, 14), (768, 12), (896, 16), (1024, 24))
# D over N: a tenth to ten times of 80 bytes, which are Chinchilla's 20 tokens (arXiv 2203.15556) at 4 bytes a token.
BYTES_A_PARAM = (8.0, 800.0)
# Batch and peak rate at C FLOPs: DeepSeek LLM, arXiv 2401.02954, equation 1, fitted to runs of 1e17 to 2e19. In its tokens; bytes
# are taken for tokens.
BATCH, BATCH_POWER = 0.2920, 0.3271
LR, LR_POWER = 0.3118, -0.1250
MAX_EPOCHS = 4.0  # repeats up to here are about as good as new text: Muennighoff et al., arXiv 2305.16264
SEQUENCE = 1024
GPU, MFU = "h100-sxm", 0.25  # assumed for the estimate of time; the column `mfu` of the table says what it was


def source_files(folder: Path, most: int | None = None) -> list[str]:
    """The Python files below a folder, in the order of their names."""
    return [str(path) for path in sorted(folder.rglob("*.py"))[:most]]


def recipe(flops: float) -> dict[str, float]:
    """Batch, a power of two of sequences, and peak learning rate of a run of so many FLOPs."""
    batch = 2 ** round(math.log2(BATCH * flops**BATCH_POWER))
    return {"batch_tokens": max(SEQUENCE, batch), "peak_lr": float(f"{LR * flops**LR_POWER:.3g}")}


def runs(budgets: Sequence[float] = BUDGETS) -> list[dict[str, Any]]:
    """The entries of [[runs]]: at each budget all sizes whose D over N is in range, D to three digits."""
    found: list[dict[str, Any]] = []
    for budget in budgets:
        for width, depth in SHAPES:
            for experts in EXPERTS:
                model = ModelSettings(d_model=width, n_layers=depth, experts=experts)
                dense = ModelSettings(d_model=width, n_layers=depth)
                tokens = float(f"{budget / (6 * float(count_parameters(model.architecture()).active)):.3g}")
                ratio = tokens / float(count_parameters(dense.architecture()).total)
                if BYTES_A_PARAM[0] <= ratio <= BYTES_A_PARAM[1]:
                    run = {"d_model": width, "n_layers": depth, "experts": experts, "tokens": int(tokens)}
                    found.append(run | recipe(budget))
    return found


def document(
    folder: Path, *, corpus: Path, device: str, tiny: bool, chosen: Sequence[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The SWEEP.toml."""
    training: dict[str, Any] = {
        "sequence_tokens": SEQUENCE, "micro_batch_tokens": 32_768, "validation_tokens": "1M", "dtype": "bfloat16",
        "checkpoint_every_s": 60,
    }  # fmt: skip
    entries = list(runs() if chosen is None else chosen)
    if tiny:
        training |= {"sequence_tokens": 64, "micro_batch_tokens": 512, "validation_tokens": "1K", "dtype": "float32"}
        model = {"d_model": 64, "n_layers": 2, "tokens": "4K", "batch_tokens": 512}
        entries = [{**model, "experts": 1}, {**model, "experts": 2, "peak_lr": 0.01}]
    return {
        "table": str(folder / "runs.csv"),
        "folder": str(folder / "runs"),
        "data": {"corpus": str(corpus), "max_epochs": MAX_EPOCHS},
        "training": training,
        "parallel": {"device": device},
        "runs": entries,
    }


def hours(flops: float, mfu: float) -> float:
    """GPU hours of so many FLOPs at an assumed utilisation of the GPU's dense bf16 peak."""
    return flops / (mfu * load_gpu(GPU).bf16_flops_per_s) / 3600


def outlook(sweep: Sweep, mfu: float) -> list[str]:
    """Lines on what a sweep takes, by budget."""
    by_budget: dict[float, list[tuple[float, int]]] = {}
    for run in sweep.runs:
        budget = min(BUDGETS, key=lambda each: abs(math.log(each / run.training_flops)))
        by_budget.setdefault(budget, []).append((run.training_flops, run.settings.training.tokens))
    lines = [f"{'FLOPs':>6}  {'runs':>4}  {'bytes':>15}  {'hours a run':>11}  {'hours':>6}"]
    for budget, each in sorted(by_budget.items()):
        flops, tokens = zip(*each, strict=True)
        span = f"{format_count(min(tokens))} to {format_count(max(tokens))}"
        took = [hours(f, mfu) for f in flops]
        lines.append(f"{budget:6.0e}  {len(each):4}  {span:>15}  {max(took):11.2f}  {sum(took):6.1f}")
    whole = hours(sum(run.training_flops for run in sweep.runs), mfu)
    lines.append(f"{len(sweep.runs)} runs, {whole:.0f} hours of one {GPU} at an assumed MFU of {mfu:.0%}")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="folder", type=Path, required=True, help="folder of the sweep")
    parser.add_argument("--corpus", type=Path, help="corpus packed with --tokenizer bytes; default: of --sources")
    parser.add_argument(
        "--sources", nargs="+", help="texts to pack; default: the .py files of this Python and its packages"
    )
    parser.add_argument("--budgets", default=",".join(f"{b:g}" for b in BUDGETS), help="FLOPs of a run, by commas")
    parser.add_argument("--mfu", type=float, default=MFU, help="assumed, for the estimate of --dry-run")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once on the one device")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="stop after this time")
    parser.add_argument("--dry-run", action="store_true", help="say what it would take; pack and train nothing")
    parser.add_argument("--tiny", action="store_true", help="a sweep of a minute, to test this script")
    given = parser.parse_args()
    folder: Path = given.folder
    corpus: Path = given.corpus or folder / "corpus"
    start = time.monotonic()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        chosen = [] if given.tiny else runs([parse_quantity(text) for text in given.budgets.split(",")])
        if given.dry_run:
            planned = expand(document(folder, corpus=corpus, device=given.device, tiny=given.tiny, chosen=chosen))
            print("\n".join(outlook(planned, given.mfu)))
            most = max(run.settings.training.tokens for run in planned.runs)
            print(f"For at most {MAX_EPOCHS:g} epochs the corpus needs {format_count(most / MAX_EPOCHS)} bytes.")
            return 0
        folder.mkdir(parents=True, exist_ok=True)
        if given.corpus is None:
            from moescale.experiments.pack import pack

            places = [Path(sysconfig.get_paths()[key]) for key in ("stdlib", "purelib")]
            sources = given.sources or list(dict.fromkeys(file for place in places for file in source_files(place)))
            sources = source_files(places[0], 60) if given.tiny else sources
            # A corpus that is packed already is found again.
            share = 0.1 if given.tiny else 0.02
            pack(sources, corpus, tokenizer="bytes", validation=share, report=say)
        most = MAX_EPOCHS * open_corpus(corpus).n_train
        kept = [run for run in chosen if run["tokens"] <= most]
        if len(kept) < len(chosen):
            say(
                f"{len(chosen) - len(kept)} runs are left out: they need more than {MAX_EPOCHS:g} epochs of this corpus"
            )
        if chosen and not kept:
            raise InputError(
                "no run is left", where=str(corpus), next_step="give more text, --sources, or less --budgets"
            )
        file = folder / "sweep.toml"
        stated = document(folder, corpus=corpus, device=given.device, tiny=given.tiny, chosen=kept)
        write_atomically(file, tomli_w.dumps(stated))
        done = drive(
            read_sweep(file),
            jobs=given.jobs,
            seconds=max(given.seconds - (time.monotonic() - start), 0.0),
            say=say,
        )
    except MoescaleError as error:
        print(f"sweep.py: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{done.table}: {done.finished} finished, {done.found} there before, of {done.runs}")
    for failure in done.failed:
        print(f"{failure.name} failed; {failure.log} ends in:\n{failure.log_end}")
    print("complete" if not done.left and not done.failed else f"{done.left} runs are missing: run it again")
    return 1 if done.failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The project's own sweep on one NVIDIA GPU: sizes x experts x tokens on the sources of Python's standard library.

    python benchmarks/gpu/sweep.py -o gpu-sweep      (again and again, until it prints `complete`)

Each call stops by itself after nine minutes and the next goes on. The folder then holds corpus/, sweep.toml, runs.csv and a folder
for each run. `--tiny --device cpu` is for tests.
"""

from __future__ import annotations

import argparse
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import tomli_w

from moescale.errors import MoescaleError
from moescale.experiments.sweeps.driver import Drive
from moescale.experiments.sweeps.sweep import read_sweep
from moescale.io.files import write_atomically

SECONDS = 540.0
EXPERTS = [1, 2, 4, 8]
# Width and depth with heads of 64: dense N of 0.8, 2.7, 6.3 and 14 million.
SHAPES = [[128, 4], [192, 6], [256, 8], [384, 8]]
TOKENS = ["2M", "4M", "8M"]  # the corpus has some 9M, and no token is seen twice
VOCABULARY = 8192


def source_files(folder: Path, most: int | None = None) -> list[str]:
    """The Python files of the standard library, without what pip has installed, in the order of their names."""
    files = [path for path in sorted(folder.rglob("*.py")) if "site-packages" not in path.parts]
    return [str(path) for path in files[:most]]


def document(folder: Path, *, device: str, tiny: bool) -> dict[str, Any]:
    """The SWEEP.toml."""
    training: dict[str, Any] = {
        "sequence_tokens": 512, "batch_tokens": 16_384, "micro_batch_tokens": 16_384, "validation_tokens": "100K",
        "dtype": "bfloat16", "checkpoint_every_s": 60,
    }  # fmt: skip
    grid: dict[str, Any] = {"shapes": SHAPES, "experts": EXPERTS, "tokens": TOKENS}
    if tiny:
        training |= {"sequence_tokens": 64, "batch_tokens": 512, "micro_batch_tokens": 512, "validation_tokens": "1K"}
        training |= {"dtype": "float32"}
        grid = {"shapes": [[64, 2]], "experts": [1, 2], "tokens": ["4K"]}
    return {
        "table": str(folder / "runs.csv"),
        "folder": str(folder / "runs"),
        "data": {"corpus": str(folder / "corpus")},
        "training": training,
        "parallel": {"device": device},
        "grid": grid,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", dest="folder", type=Path, required=True, help="folder of the sweep")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once on the one device")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="stop after this time")
    parser.add_argument("--tiny", action="store_true", help="a sweep of a minute, to test this script")
    given = parser.parse_args()
    folder: Path = given.folder
    start = time.monotonic()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        from moescale.experiments.data.pack import pack

        folder.mkdir(parents=True, exist_ok=True)
        sources = source_files(Path(sysconfig.get_paths()["stdlib"]), 60 if given.tiny else None)
        # A corpus that is packed already is found again.
        share = 0.1 if given.tiny else 0.02
        pack(sources, folder / "corpus", vocab_size=512 if given.tiny else VOCABULARY, validation=share)
        file = folder / "sweep.toml"
        write_atomically(file, tomli_w.dumps(document(folder, device=given.device, tiny=given.tiny)))
        done = Drive(
            read_sweep(file),
            jobs=given.jobs,
            seconds=max(given.seconds - (time.monotonic() - start), 0.0),
            say=say,
        ).run()
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

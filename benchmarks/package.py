"""Size of the wheel, and how long a cold start takes: `import moescale`, and each command's --help.

    python benchmarks/package.py            best of five fresh interpreters each; building the wheel needs setuptools >= 77

Prints a table; `--json` prints one JSON value.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from import_time import heavy_modules
from moescale.cli import COMMANDS

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta as b; b.build_wheel('dist'); b.build_sdist('dist')"


def best_seconds(command: list[str], repeats: int) -> tuple[float, float]:
    """The shortest wall-clock and CPU times of a command, in seconds; CPU time is steadier where others compute too."""
    wall_s: list[float] = []
    cpu_s: list[float] = []
    for _ in range(repeats):
        start, before = time.perf_counter(), os.times()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        after = os.times()
        wall_s.append(time.perf_counter() - start)
        cpu_s.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(wall_s), min(cpu_s)


def sizes() -> dict[str, int]:
    """Bytes of the wheel, the sdist, and the installed package and its data."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        shutil.copytree(
            ROOT,
            tree,
            ignore=shutil.ignore_patterns(".*", "__pycache__", "tests", "docs", "dist", "build", "runs", "out"),
        )
        subprocess.run([sys.executable, "-c", BUILD], cwd=tree, check=True, capture_output=True)
        (wheel,), (sdist,) = (list((tree / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
        with zipfile.ZipFile(wheel) as archive:
            entries = archive.infolist()
        return {
            "wheel": wheel.stat().st_size,
            "sdist": sdist.stat().st_size,
            "installed": sum(entry.file_size for entry in entries),
            "catalogue, installed": sum(entry.file_size for entry in entries if "/catalogue/" in entry.filename),
        }


def main() -> None:
    """Print what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    options = parser.parse_args()
    os.environ["COLUMNS"] = "80"
    python = sys.executable
    starts = {
        "a bare interpreter": [python, "-c", "pass"],
        "import moescale": [python, "-c", "import moescale"],
        "moescale --help": [python, "-m", "moescale", "--help"],
        **{f"moescale {name} --help": [python, "-m", "moescale", name, "--help"] for name in COMMANDS},
    }
    seconds = {name: best_seconds(command, options.repeats) for name, command in starts.items()}
    size_bytes = sizes()
    if options.json:
        loaded = heavy_modules("moescale")
        print(json.dumps({"wall_and_cpu_seconds": seconds, "bytes": size_bytes, "heavy_modules": loaded}, indent=2))
        return
    print(f"| cold start, best of {options.repeats} | seconds | of CPU |\n| --- | --- | --- |")
    for name, (wall_s, cpu_s) in seconds.items():
        print(f"| {f'`{name}`' if 'moescale' in name else name} | {wall_s:.2f} | {cpu_s:.2f} |")
    print("\n| size | KiB |\n| --- | --- |")
    for name, count in size_bytes.items():
        print(f"| {name} | {count / 1024:,.0f} |")


if __name__ == "__main__":
    main()

"""Every reader of outside input under damaged input: nothing but a refusal that names the file, and nothing done on the way.

`hostile.guard` says what is watched. `make test-fuzz` reads a hundred thousand inputs, the everyday test some hundreds.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reference_data import ROOT

pytest.importorskip("fastapi", reason="the extra test is not installed")

from hostile.__main__ import made
from hostile.readers import READERS

SOURCE = ROOT / "src" / "moescale"
SEED = os.environ.get("MOESCALE_FUZZ_SEED", "0")
SLICE = 5
PATIENCE_S = 1800  # of wall time: CPU time is what is limited, by the guard

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="the guard reads /proc")]

# What opens, parses or maps content; each such module is read by a reader here, or by none for the reason stated.
READS = re.compile(
    r"\bopen\(|\.read_text\(|\.read_bytes\(|\bread_text\(|\bread_bytes\(|json\.loads?\(|tomllib\.|struct\.|np\.(?:load|memmap|fromfile|frombuffer)\("
    r"|ParquetFile\(|read_csv\(|sqlite3\.connect\(|input_stream\(|yaml\.load\(|read_toml\(|read_object\(|parse_json\("
)
FUZZED = """
catalogue/__init__.py cli/decide.py models/hf_config.py io/files.py io/frames.py io/json_text.py io/toml.py hardware/gpus.py
runs/importers/csv.py runs/importers/trainer.py scaling_laws/store.py planning/plan_file.py views/html/__init__.py
experiments/corpus.py experiments/pack.py experiments/profile.py experiments/run.py
experiments/settings.py experiments/sweep.py experiments/sweep_file.py web/app.py
"""
NOT_FROM_OUTSIDE = {
    "cli/__init__.py": "opens the null device",
    "cli/output.py": "hashes files that others have read",
    "experiments/train.py": "its own checkpoints: tests of the engine",
    "latency/kernels/tables.py": "the catalogue and the tables of an installed package",
    "models/family.py": "sizes that it keeps itself",
    "runs/importers/tensorboard.py": "through its library: tests of the engine",
}


def run(*arguments: str) -> dict[str, dict[str, Any]]:
    """The outcome of each reader named; a process that ended otherwise is a failure of the reader it was in."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tests'}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "hostile", *arguments],
        capture_output=True, text=True, env=environment, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return {outcome["reader"]: outcome for outcome in map(json.loads, done.stdout.splitlines())}


@pytest.mark.system
def test_every_reader_refuses_damaged_input_and_does_nothing_else() -> None:
    found = run("--count", str(SLICE), "--seed", "slice")
    assert {name: outcome["failures"] for name, outcome in found.items() if outcome["failures"]} == {}
    assert {name: outcome["accepted"] + outcome["refused"] for name, outcome in found.items()} == dict.fromkeys(
        READERS, SLICE
    )


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_survives_thousands_of_inputs(reader: str) -> None:
    found = run(reader, "--seed", SEED)[reader]
    assert found["failures"] == []
    # Input that is all taken or all refused reaches little of a reader.
    assert min(found["accepted"], found["refused"]) > READERS[reader].inputs / 50
    assert found["accepted"] + found["refused"] == READERS[reader].inputs >= 2_000


@pytest.mark.system
def test_no_module_reads_outside_input_unfuzzed() -> None:
    texts = {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py")}
    assert {name for name, text in texts.items() if READS.search(text)} == {*FUZZED.split(), *NOT_FROM_OUTSIDE}
    assert sum(reader.inputs for reader in READERS.values()) >= 100_000


@pytest.mark.system
def test_an_input_is_made_of_seed_reader_and_number_alone() -> None:
    cases = [{"a.json": b'{"a": [1, 2.5], "b": "text"}', "b.csv": b"a,b\n1,2\n"}]
    first = [made("x", cases, "7", number)[0] for number in range(50)]
    assert first == [made("x", cases, "7", number)[0] for number in range(50)]
    assert len({tuple(files.items()) for files in first}) > 40
    assert first != [made("x", cases, "8", number)[0] for number in range(50)]


def forbidden(folder: Path) -> dict[str, tuple[Callable[[], object], str]]:
    return {
        "hang": (lambda: [None for _ in iter(int, 1)], "CPU time"),
        "slow": (lambda: sum(range(3 * 10**7)), "CPU time"),  # one call, which no signal interrupts
        "grow": (lambda: len(bytearray(os.urandom(1)) * (800 * 2**20)), "MiB of memory"),
        "write": (lambda: (folder / "cache").write_text("x"), "for writing"),
        "remove": ((folder / "a").unlink, "os.remove"),
        "make": ((folder / "cache").mkdir, "os.mkdir"),
        "connect": (lambda: socket.socket().connect(("127.0.0.1", 9)), "socket.connect"),
        "start": (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "subprocess.Popen"),
        "raise": (lambda: {}["x"], "KeyError"),
    }


@pytest.mark.system
def test_what_a_reader_may_not_do_is_caught(tmp_path: Path) -> None:
    code = """
import json, sys, warnings
from pathlib import Path
from random import Random
from hostile import guard
from hostile.__main__ import read_one
from hostile.readers import Reader
from test_hostile_readers import forbidden
warnings.simplefilter("ignore")
folder = Path(sys.argv[1]) / "input"
guard.CPU_LIMIT_S = 0.2
guard.install()
for name, (what, _) in forbidden(folder).items():
    reader = Reader(list, lambda folder, rng, what=what: what() and None, 1)
    print(json.dumps([name, read_one(reader, {"a": b""}, Random(0), folder, shown=False)[1]]))
"""
    places = (ROOT / "src", ROOT / "tests", Path(__file__).parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    found = dict(map(json.loads, done.stdout.splitlines()))
    for name, (_, words) in forbidden(tmp_path).items():
        assert words in " ".join(found[name]), (name, found[name])

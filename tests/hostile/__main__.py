"""Runs readers over damaged input under the guard, in this process; prints a line of JSON for each reader.

    PYTHONPATH=src:tests python -W error -m hostile READER.. [--seed S] [--count N | --only N]
Inputs are made from the seed, the reader's name and their number alone."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from hostile import guard
from hostile.mutations import damage
from hostile.readers import READERS, Files, Reader
from moescale.errors import MoescaleError

LONGEST_MESSAGE = 4000
MOST_FAILURES = 25
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
# A message that states what is valid says what to do.
_RULE = re.compile(
    r"must|need|is not|is no |not an? |neither|not from|not text|missing|twice|times|disagree|does not go"
)


def put(files: Files, folder: Path) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def made(name: str, cases: Sequence[Files], seed: str, number: int) -> tuple[Files, Random]:
    """Input `number`: a case with one of its files damaged (one in twenty: none), and what is random."""
    rng = Random(f"{seed}:{name}:{number}")
    files = dict(rng.choice(cases))
    file = rng.choice(list(files))
    if rng.random() >= 0.05:
        files[file] = damage(file, files[file], rng)
    return files, rng


def read_one(reader: Reader, files: Files, rng: Random, folder: Path, *, shown: bool) -> tuple[str, list[str]]:
    """Whether an input was "accepted" or "refused", and what the reader did that it may not."""
    put(files, folder)
    error: BaseException | None = None
    answer: object = None
    with guard.watched() as faults:
        try:
            answer = reader.read(folder, rng)
        except BaseException as raised:
            error = raised
    if isinstance(error, MoescaleError):
        faults += bad_message(error, files, folder, reader.names_file)
    elif error is not None and not faults:
        where = traceback.extract_tb(error.__traceback__)[-1]
        faults.append(f"{type(error).__name__}: {str(error)[:300]} at {where.filename}:{where.lineno}")
    if shown and error is not None:
        traceback.print_exception(error)
    shutil.rmtree(folder)
    return "accepted" if error is None and answer is not False else "refused", faults


def bad_message(error: MoescaleError, files: Files, folder: Path, names_file: bool) -> list[str]:
    message, faults = str(error), list[str]()
    named = str(folder) in message or any(name.split("/")[-1] in message for name in files)
    if (
        names_file and "expression " not in message and not named
    ):  # a filter that does not fit its table is named itself
        faults.append(f"the message names no file: {message[:300]}")
    if len(message) > LONGEST_MESSAGE or _CONTROL.search(message):
        faults.append(f"a message that is too long or has control characters: {message[:300]!r}")
    if not (error.next_step or error.nearest or _RULE.search(error.what)):
        faults.append(f"the message says not what to do: {message[:300]}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(prog="hostile")
    parser.add_argument("readers", nargs="*")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--count", type=int, help="inputs of each reader; default: its own")
    parser.add_argument("--only", type=int, help="the number of the one input to read, with its traceback")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        home = put({}, Path(name)) / "home"
        home.mkdir()
        os.environ |= {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home)}
        names = given.readers or list(READERS)
        cases = {each: READERS[each].cases() for each in names}
        for each in names:  # libraries are loaded, caches filled
            for number, case in enumerate(cases[each]):
                with suppress(Exception):
                    READERS[each].read(put(case, Path(name) / f"warm-{each}-{number}"), Random(0))
        tempfile.tempdir = str(home)
        os.chdir(home)
        guard.install()
        for each in names:
            outcome = {"reader": each, "accepted": 0, "refused": 0, "failures": list[tuple[int, list[str]]]()}
            only = given.only is not None
            for number in [given.only] if only else range(given.count or READERS[each].inputs):
                files, rng = made(each, cases[each], given.seed, number)
                print(each, number, file=sys.stderr)
                kind, faults = read_one(READERS[each], files, rng, Path(name) / "input", shown=only)
                outcome[kind] += 1
                if faults:
                    outcome["failures"].append((number, faults))
                if len(outcome["failures"]) >= MOST_FAILURES:
                    break
            print(json.dumps(outcome), flush=True)
        os.chdir("/")
    return 0


if __name__ == "__main__":
    sys.exit(main())

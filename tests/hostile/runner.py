"""Runs readers over damaged input under the guard, in this process; prints a line of JSON for each reader.

Every input is made from `seed`, the reader's name and its number alone, so that one can be had again.
"""

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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from hostile import guard
from hostile.broken import BROKEN, CRASHING
from hostile.mutations import damage
from hostile.readers import READERS, Files, Reader

LONGEST_MESSAGE = 4000
MOST_FAILURES = 25
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


_RULE = re.compile(
    r"must|need|is not|is no |not an? |neither|not from|not text|missing|twice|times|disagree|does not go|goes with"
)
"""A message that states what is valid says what to do."""


@dataclass
class Outcome:
    """What a reader did with its inputs."""

    reader: str
    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    slowest_cpu_s: float = 0.0
    slowest: int = -1
    peak_bytes: int = 0
    peak: int = -1
    failures: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])


def main(arguments: Sequence[str] | None = None) -> int:
    """The readers named, each with its count; exit code 1 where one did what it may not."""
    known = {**READERS, **{name: reader for name, (reader, _) in BROKEN.items()}, **CRASHING}
    parser = argparse.ArgumentParser(prog="hostile")
    parser.add_argument("readers", nargs="*", default=list(READERS), help="READER or READER:COUNT or READER:FROM-TO")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--count", type=int, help="inputs of each reader; default: its own")
    parser.add_argument("--only", type=int, help="the number of the one input to read, with its traceback")
    parser.add_argument("--keep", type=Path, help="where to leave that input")
    parser.add_argument("--note", type=Path, help="file that always holds the reader and number under way")
    given = parser.parse_args(arguments)
    bad = False
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        home = Path(name) / "home"
        home.mkdir()
        os.environ |= {"HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home)}
        asked = [_asked(text, given.count, known) for text in given.readers]
        cases = {reader: known[reader].cases() for reader, _, _ in asked}
        for reader in (name for name, _, _ in asked if name in READERS):  # libraries are loaded, caches filled
            for number, case in enumerate(cases[reader]):
                _warm(known[reader], case, Path(name) / f"warm-{reader}-{number}")
        tempfile.tempdir = str(home)
        os.chdir(home)
        guard.install()
        note = os.open(given.note, os.O_WRONLY | os.O_CREAT) if given.note else None
        for reader, first, last in asked:
            numbers = range(first, last) if given.only is None else range(given.only, given.only + 1)
            found = Outcome(reader)
            for number in numbers:
                if note is not None:
                    os.pwrite(note, f"{reader} {number}".ljust(64).encode(), 0)
                _one(
                    known[reader],
                    cases[reader],
                    found,
                    given.seed,
                    number,
                    Path(name),
                    given.keep,
                    given.only is not None,
                )
                if len(found.failures) >= MOST_FAILURES:
                    break
            print(json.dumps(asdict(found)), flush=True)
            bad = bad or bool(found.failures)
        os.chdir("/")
    return int(bad)


def _asked(text: str, count: int | None, known: dict[str, Reader]) -> tuple[str, int, int]:
    name, _, span = text.partition(":")
    first, _, last = span.rpartition("-")
    return name, int(first or 0), int(last) if last else count or known[name].inputs


def _warm(reader: Reader, case: Files, folder: Path) -> None:
    _put(case, folder)
    guard.quietly(lambda: reader.read(folder, Random(0)))
    shutil.rmtree(folder)


def _put(files: Files, folder: Path) -> None:
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def made(reader: str, cases: Sequence[Files], seed: str, number: int) -> tuple[Files, str, Random]:
    """Input `number`: a case with one of its files damaged (one in twenty: none), that file's name, and what is random."""
    rng = Random(f"{seed}:{reader}:{number}")
    files = dict(rng.choice(cases))
    name = rng.choice(list(files))
    if rng.random() >= 0.05:
        files[name] = damage(name, files[name], rng)
    return files, name, rng


def _one(
    reader: Reader,
    cases: Sequence[Files],
    found: Outcome,
    seed: str,
    number: int,
    root: Path,
    keep: Path | None,
    shown: bool,
) -> None:
    files, damaged, rng = made(found.reader, cases, seed, number)
    if keep is not None:
        _put(files, keep)
    folder = root / "input"
    _put(files, folder)
    faults: list[str] = []
    refused = False
    with guard.watched(root) as watch:
        error = guard.quietly(lambda: _passed(reader.read(folder, rng)))
    # Only now, so that what an error keeps alive counts as well.
    from moescale.errors import MoescaleError

    if isinstance(error, MoescaleError | PassedOverError):
        refused = True
        if isinstance(error, MoescaleError):
            faults += _bad_message(error, files, folder, reader.names_file)
            if not (error.next_step or error.nearest or _RULE.search(error.what)):
                faults.append(f"the message says not what to do: {str(error)[:300]}")
    elif error is not None and not isinstance(error, guard.Violation):
        faults.append(f"{type(error).__name__}: {str(error)[:300]} at {_place(error)}")
    elif isinstance(error, guard.Violation) and not watch.violations:
        faults.append(f"{error} at {_place(error)}")
    faults += watch.violations
    shutil.rmtree(folder, ignore_errors=True)
    if shown and error is not None:
        traceback.print_exception(error)
    found.inputs += 1
    found.accepted += error is None
    found.refused += refused
    if watch.cpu_s > found.slowest_cpu_s:
        found.slowest_cpu_s, found.slowest = watch.cpu_s, number
    if watch.peak_bytes > found.peak_bytes:
        found.peak_bytes, found.peak = watch.peak_bytes, number
    if faults:
        found.failures.append((number, f"{damaged} ({len(files[damaged])} bytes): {'; '.join(faults)}"))


class PassedOverError(Exception):
    """The reader passed over its input in silence, as its contract has it."""


def _passed(answer: object) -> None:
    if answer is False:
        raise PassedOverError


def _place(error: BaseException) -> str:
    steps = traceback.extract_tb(error.__traceback__)
    ours = [step for step in steps if "moescale" in step.filename] or steps
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "?"


def _bad_message(error: Exception, files: Files, folder: Path, names_file: bool) -> list[str]:
    message = str(error)
    faults: list[str] = []
    # A filter that does not fit its table is at fault itself, and named.
    if (
        names_file
        and "expression " not in message
        and str(folder) not in message
        and not any(name.split("/")[-1] in message for name in files)
    ):
        faults.append(f"the message names no file: {message[:300]}")
    if len(message) > LONGEST_MESSAGE:
        faults.append(f"a message of {len(message)} characters: {message[:200]}")
    if _CONTROL.search(message):
        faults.append(f"a message with control characters: {message[:300]!r}")
    return faults


if __name__ == "__main__":
    sys.exit(main())

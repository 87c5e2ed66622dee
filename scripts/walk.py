"""Count how a command walks through the package: calls that cross files, and the files and rooms that they enter.

    python scripts/walk.py plan --budget 1e22 --gpu h100-sxm
    python scripts/walk.py fit examples/runs.csv --law yun2024

A hop is a pair of functions in two files of which one calls the other, however often; a call through another library counts
as from the function of the package that called the library.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import moescale

ROOT = str(Path(moescale.__file__).parent)


Place = tuple[str, str]  # file, qualified name of a function


def _short(file: str) -> str:
    return Path(file).relative_to(ROOT).as_posix()


def count(arguments: list[str]) -> tuple[set[tuple[Place, Place]], int]:
    """Hops between (file, function) of one command in process, and how many calls of functions of the package it makes."""
    from moescale.cli import main

    hops: set[tuple[Place, Place]] = set()
    stack: list[Place] = []
    calls = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        file = frame.f_code.co_filename
        if not (
            file.startswith(ROOT) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        ):  # bodies of modules and classes
            return
        if event == "call":
            calls += 1
            place = (file, frame.f_code.co_qualname)
            if stack and stack[-1][0] != file:
                hops.add((stack[-1], place))
            stack.append(place)
        elif event == "return" and stack:
            stack.pop()

    sys.argv = ["moescale", *arguments]
    sys.setprofile(profile)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
    return hops, calls


def show(arguments: list[str]) -> None:
    """Print the totals of a command, and the pairs of files with most hops."""
    hops, calls = count(arguments)
    pairs = Counter((_short(caller[0]), _short(called[0])) for caller, called in hops)
    files = {file for pair in pairs for file in pair}
    rooms = {file.split("/")[0] for file in files if "/" in file}
    print(f"moescale {' '.join(arguments)}")
    print(f"  {len(hops)} hops, {len(files)} files, {len(rooms)} rooms, {calls:,} calls")
    for (caller, called), times in pairs.most_common(6):
        print(f"  {times:4}  {caller} -> {called}")


if __name__ == "__main__":
    show(sys.argv[1:])

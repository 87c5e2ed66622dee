"""Readers that each do one thing a reader may not: what shows that the guard can fail."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

import pyarrow as pa

from hostile.readers import Reader
from moescale.errors import InputError


def _text(folder: Path) -> str:
    return (folder / "input.txt").read_text(encoding="utf-8", errors="replace")


def _raise(folder: Path, rng: Random) -> None:
    raise KeyError(_text(folder))


def _hang(folder: Path, rng: Random) -> None:
    while _text(folder) is not None:
        pass


def _slow(folder: Path, rng: Random) -> None:
    """One long call, which no handler of a signal can interrupt."""
    sum(range(3 * 10**8))


def _grow(folder: Path, rng: Random) -> None:
    assert len(bytearray(os.urandom(1)) * (800 * 2**20))


def _claim(folder: Path, rng: Random) -> None:
    bytearray(2**40)


def _write(folder: Path, rng: Random) -> None:
    (folder / "cache").write_text("x")


def _write_quietly(folder: Path, rng: Random) -> None:
    """A careless reader catches everything; the guard still knows."""
    with suppress(BaseException):
        (folder / "cache").write_text("x")


def _write_unheard(folder: Path, rng: Random) -> None:
    """From C, which raises no event."""
    with pa.OSFile(str(folder / "cache"), "wb") as stream:
        stream.write(b"x")


def _change(folder: Path, rng: Random) -> None:
    with pa.OSFile(str(folder / "input.txt"), "wb") as stream:
        stream.write(b"x")


def _home(folder: Path, rng: Random) -> None:
    with pa.OSFile(str(Path.home() / "cache"), "wb") as stream:
        stream.write(b"x")


def _remove(folder: Path, rng: Random) -> None:
    (folder / "input.txt").unlink()


def _make_folder(folder: Path, rng: Random) -> None:
    (folder / "cache").mkdir()


def _connect(folder: Path, rng: Random) -> None:
    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


def _look_up(folder: Path, rng: Random) -> None:
    socket.getaddrinfo("localhost", 80)


def _start(folder: Path, rng: Random) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def _shell(folder: Path, rng: Random) -> None:
    os.system("true")


def _evaluate(folder: Path, rng: Random) -> None:
    eval("1 + 1")


def _compile(folder: Path, rng: Random) -> None:
    ast.parse(f"f({_text(folder)!r})")


def _unpickle(folder: Path, rng: Random) -> None:
    import pickle

    pickle.loads(b"cos\ngetpid\n(tR.")


def _refuse(folder: Path, rng: Random) -> None:
    raise InputError("no")


def _crash(folder: Path, rng: Random) -> None:
    os.abort()


def _reader(read: Callable[[Path, Random], object]) -> Reader:
    return Reader(lambda: [{"input.txt": b"1 + 1"}], read, 1)


CRASHING: Mapping[str, Reader] = {"crash": _reader(_crash)}
"""What ends the process, and therefore is run alone."""

BROKEN: Mapping[str, tuple[Reader, str]] = {
    "raise": (_reader(_raise), "KeyError"),
    "hang": (_reader(_hang), "CPU time"),
    "slow": (_reader(_slow), "CPU time"),
    "grow": (_reader(_grow), "MiB of memory"),
    "claim": (_reader(_claim), "MemoryError"),
    "write": (_reader(_write), "for writing"),
    "write-quietly": (_reader(_write_quietly), "for writing"),
    "write-unheard": (_reader(_write_unheard), "touched"),
    "change": (_reader(_change), "touched"),
    "home": (_reader(_home), "touched"),
    "remove": (_reader(_remove), "os.remove"),
    "make-folder": (_reader(_make_folder), "os.mkdir"),
    "connect": (_reader(_connect), "socket.connect"),
    "look-up": (_reader(_look_up), "socket.getaddrinfo"),
    "start": (_reader(_start), "subprocess.Popen"),
    "shell": (_reader(_shell), "os.system"),
    "evaluate": (_reader(_evaluate), "does compile"),
    "compile": (_reader(_compile), "does compile"),
    "unpickle": (_reader(_unpickle), "pickle.find_class"),
    "nameless": (_reader(_refuse), "names no file"),
}
"""Each with what the report must say of it."""

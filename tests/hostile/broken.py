"""Readers that each do one thing a reader may not: what shows that the guard can fail."""

from __future__ import annotations

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


def _raise(folder: Path) -> None:
    raise KeyError(folder)


def _hang(folder: Path) -> None:
    while folder:
        pass


def _write_quietly(folder: Path) -> None:
    """A careless reader catches everything; the guard still knows."""
    with suppress(BaseException):
        (folder / "cache").write_text("x")


def _write_unheard(path: Path) -> None:
    """From C, which raises no event."""
    with pa.OSFile(str(path), "wb") as stream:
        stream.write(b"x")


def _connect(folder: Path) -> None:
    with socket.socket() as opened:
        opened.connect(("127.0.0.1", 9))


def _unpickle(folder: Path) -> None:
    import pickle

    pickle.loads(b"cos\ngetpid\n(tR.")


def _refuse(folder: Path) -> None:
    raise InputError("no")


def _reader(read: Callable[[Path], object]) -> Reader:
    def quiet(folder: Path, rng: Random) -> None:
        read(folder)

    return Reader(lambda: [{"input.txt": b"1 + 1"}], quiet, 1)


CRASHING: Mapping[str, Reader] = {"crash": _reader(lambda folder: os.abort())}
"""What ends the process, and therefore is run alone."""

BROKEN: Mapping[str, tuple[Reader, str]] = {
    "raise": (_reader(_raise), "KeyError"),
    "hang": (_reader(_hang), "CPU time"),
    "slow": (_reader(lambda folder: sum(range(3 * 10**8))), "CPU time"),  # one call, which no signal interrupts
    "grow": (_reader(lambda folder: len(bytearray(os.urandom(1)) * (800 * 2**20))), "MiB of memory"),
    "claim": (_reader(lambda folder: bytearray(2**40)), "MemoryError"),
    "write-quietly": (_reader(_write_quietly), "for writing"),
    "write-unheard": (_reader(lambda folder: _write_unheard(folder / "cache")), "touched"),
    "change": (_reader(lambda folder: _write_unheard(folder / "input.txt")), "touched"),
    "home": (_reader(lambda folder: _write_unheard(Path.home() / "cache")), "touched"),
    "remove": (_reader(lambda folder: (folder / "input.txt").unlink()), "os.remove"),
    "make-folder": (_reader(lambda folder: (folder / "cache").mkdir()), "os.mkdir"),
    "connect": (_reader(_connect), "socket.connect"),
    "look-up": (_reader(lambda folder: socket.getaddrinfo("localhost", 80)), "socket.getaddrinfo"),
    "start": (_reader(lambda folder: subprocess.run([sys.executable, "-c", ""], check=True)), "subprocess.Popen"),
    "shell": (_reader(lambda folder: os.system("true")), "os.system"),
    "evaluate": (_reader(lambda folder: eval("1 + 1")), "does compile"),
    "unpickle": (_reader(_unpickle), "pickle.find_class"),
    "nameless": (_reader(_refuse), "names no file"),
}
"""Each with what the report must say of it."""

"""Commands as jobs: processes of this machine.

A job holds the lock of its run for as long as it lives, so that a second driver, or one that was killed and started again,
never starts a run that is still going.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import IO

from moescale.errors import InputError
from moescale.io.files import opened_to_append
from moescale.io.locks import locked
from moescale.io.signals import sigterm_interrupts, uninterrupted

BUSY = 75  # sysexits.h, EX_TEMPFAIL: another process had the run
LOST = -1  # stopped
GRACE_S = 10.0  # from SIGTERM to SIGKILL
POLL_S = 0.05
# Run before the command, in its process: the kernel sends it SIGTERM (15) when its parent ends. PR_SET_PDEATHSIG is 1 in
# linux/prctl.h; elsewhere there is none.
DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def started(command: Sequence[str], output: IO[bytes], *, grace_s: float) -> Generator[subprocess.Popen[bytes]]:
    """A command in a group of its own, which ends with this process, and whole with this context: first kindly."""
    process: subprocess.Popen[bytes] | None = None
    try:
        with uninterrupted():  # what it starts is known to who must end it
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, *command], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        yield process
    finally:
        if process is not None:
            with suppress(OSError):
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
            with suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def execute(command: Sequence[str], log: str, lock: str, stop: Event | None = None) -> int:
    """Run a command here and now, its output added to the file `log`; its exit code, or LOST where `stop` was set.

    BUSY where another process has the lock.
    """
    stop, busy = stop or Event(), InputError("another process has the run", where=lock)
    try:
        with (
            locked(Path(lock), busy=busy),
            sigterm_interrupts(),
            opened_to_append(log) as stream,
            started(command, stream, grace_s=GRACE_S) as process,
        ):
            while (code := process.poll()) is None:
                if stop.wait(POLL_S):
                    return LOST
            return code
    except InputError as error:
        if error is not busy:
            raise
        return BUSY


class Jobs:
    """Starts commands, at most so many at once. Raises InputError where they cannot be started."""

    def __init__(self, most: int) -> None:
        if not hasattr(os, "killpg"):  # which ends a job whole
            step = "start it on Linux, macOS or WSL; --dry-run works here"
            raise InputError("a sweep needs process groups", next_step=step)
        self._stop, self._threads = Event(), ThreadPoolExecutor(most)

    def start(self, command: Sequence[str], log: Path, lock: Path) -> Future[int]:
        """Start `execute`."""
        return self._threads.submit(execute, command, str(log), str(lock), self._stop)

    def end(self) -> None:
        """Stop all that run, and wait until they have ended."""
        self._stop.set()
        self._threads.shutdown()

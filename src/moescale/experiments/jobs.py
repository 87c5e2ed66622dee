"""Commands as jobs: processes of this machine, or jobs of Slurm through submitit.

A job holds the lock of its run for as long as it lives, so that a second driver, or one that was killed and started again,
never starts a run that is still going.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import IO, Any

from moescale.errors import InputError, install
from moescale.io.files import explained, make_folder, opened_to_append, write_error
from moescale.io.locks import locked
from moescale.io.signals import sigterm_interrupts, uninterrupted

BUSY = 75  # sysexits.h, EX_TEMPFAIL: another process had the run
LOST = -1  # stopped, or the cluster says no more than that it ended
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
SHARED = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout")


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

    Where another process has the lock, it is waited for, and BUSY returned: the run may be finished then.
    """
    stop, busy, waited = stop or Event(), InputError("another process has the run", where=lock), False
    while not stop.wait(POLL_S if waited else 0):
        try:
            with locked(Path(lock), busy=busy):
                if waited:
                    return BUSY
                with (
                    sigterm_interrupts(),
                    opened_to_append(log) as out,
                    started(command, out, grace_s=GRACE_S) as process,
                ):
                    while (code := process.poll()) is None and not stop.wait(POLL_S):
                        pass
                    return LOST if code is None else code
        except InputError as error:
            if error is not busy:
                raise
            waited = True
    return LOST


class Jobs:
    """Starts commands here or on Slurm, by `options` of sbatch in submitit's names; InputError where jobs cannot be started."""

    def __init__(self, place: str, options: Mapping[str, Any], folder: Path, most: int) -> None:
        if not hasattr(os, "killpg"):  # which ends a job whole
            step = "start it on Linux, macOS or WSL; --dry-run works here"
            raise InputError("a sweep needs process groups", next_step=step)
        self._folder, self._stop, self._local = folder, Event(), place != "slurm"
        self._executor: Any = ThreadPoolExecutor(most) if self._local else _submitit(options, make_folder(folder))
        errors: Any = None if self._local else importlib.import_module("submitit.core.utils")
        self._lost = () if self._local else (errors.FailedJobError, errors.UncompletedJobError)

    def start(self, command: Sequence[str], log: Path, lock: Path) -> Any:
        """Start `execute`; the job, for `poll`."""
        with explained(write_error, str(self._folder)):
            return self._executor.submit(execute, command, str(log), str(lock), *([self._stop] if self._local else []))

    def poll(self, job: Any) -> int | None:
        """Its exit code, BUSY or LOST, and None until it has ended."""
        if not job.done():
            return None
        try:
            return int(job.result())
        except self._lost:
            return LOST

    def end(self, jobs: Sequence[Any]) -> None:
        """Stop these jobs, all that run, and wait until they have ended or the grace is over."""
        self._stop.set()
        for job in () if self._local else jobs:
            with suppress(OSError, subprocess.CalledProcessError):
                job.cancel()
        limit = time.monotonic() + 2 * GRACE_S
        while not all(job.done() for job in jobs) and time.monotonic() < limit:
            time.sleep(POLL_S)
        if self._local:
            self._executor.shutdown()


def _submitit(options: Mapping[str, Any], folder: Path) -> Any:
    try:
        submitit: Any = importlib.import_module("submitit")
    except ImportError as error:
        raise InputError("Slurm needs submitit", where="[execute]", next_step=install("train")) from error
    named = {key if key in SHARED else f"slurm_{key}": value for key, value in options.items() if key != "cluster"}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=str(options.get("cluster", "slurm")))
        executor.update_parameters(name="moescale", **named)
    except RuntimeError as error:
        step = 'start the sweep where sbatch is, or take on = "local"'
        raise InputError(f"Slurm is not available: {error}", where="[execute]", next_step=step) from error
    except (TypeError, ValueError, NameError) as error:
        raise InputError(f"is rejected by submitit: {error}", where="[execute.slurm]") from error
    return executor

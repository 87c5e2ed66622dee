"""Commands as jobs of submitit: processes of this machine, or jobs of Slurm.

A job holds the lock of its run for as long as it lives, so that a second driver, or one that was killed and started again,
never starts a run that is still going.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from moescale.errors import InputError, install
from moescale.io.files import explained, make_folder, open_plain, opened_to_append, write_error
from moescale.io.signals import sigterm_interrupts, uninterrupted

BUSY = 75  # sysexits.h, EX_TEMPFAIL: another process has the run
LOST = -1  # the place that ran it says no more than that it ended
GRACE_S = 20.0  # from SIGTERM to SIGKILL
RESULT_LAG_S = 10.0  # within which a result shows on a file system of several machines
# Run before the command, in its process: the kernel sends it SIGTERM (15) when its parent ends. PR_SET_PDEATHSIG is 1 in
# linux/prctl.h; elsewhere there is none.
DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execvp(sys.argv[1], sys.argv[1:])
"""
SHARED = ("timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout")


def execute(command: Sequence[str], log: str, lock: str, stop: str) -> int:
    """Run a command here and now; its exit code, BUSY, or LOST where it was stopped. A job is a call of this.

    The command ends with this process. It is stopped as well when the file `stop` appears (a signal is lost on a job that is
    only starting) and when the process that started this one is gone.
    """
    parent = os.getppid()
    if os.path.exists(stop):
        return LOST
    try:
        with (
            sigterm_interrupts(),
            FileLock(lock, timeout=0),
            opened_to_append(log, follow_links=False) as stream,
            started(
                command, stream, grace_s=GRACE_S / 2
            ) as process,  # so that the driver sees the end within the grace
        ):
            while (code := process.poll()) is None:
                if os.getppid() != parent or os.path.exists(stop):
                    return LOST
                time.sleep(0.1)
            return code
    except Timeout:
        return BUSY


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


class Jobs:
    """Starts commands on this machine or on Slurm; `options` are [execute.slurm], options of sbatch by submitit's names.

    Raises InputError where jobs cannot be started.
    """

    def __init__(self, place: str, options: Mapping[str, Any], folder: Path) -> None:
        if not hasattr(os, "killpg"):  # which ends a job whole
            step = "start it on Linux, macOS or WSL; --dry-run works here"
            raise InputError("a sweep needs process groups", next_step=step)
        try:
            submitit: Any = importlib.import_module("submitit")
        except ImportError as error:
            raise InputError("a sweep needs submitit", where="[execute]", next_step=install("train")) from error
        self._folder, given = make_folder(folder), dict(options)
        self._before: list[str] = []
        cluster = str(given.pop("cluster", "slurm")) if place == "slurm" else "local"
        named = {key if key in SHARED else f"slurm_{key}": value for key, value in given.items()}
        if cluster == "local":
            named.setdefault("timeout_min", 60 * 24 * 365)
            if "gpus_per_node" not in given:  # submitit hides all GPUs from a job that names no number of them
                seen = os.environ.get("CUDA_VISIBLE_DEVICES")
                self._before = ["env", "-u", "CUDA_VISIBLE_DEVICES"]
                self._before = self._before if seen is None else ["env", f"CUDA_VISIBLE_DEVICES={seen}"]
        try:
            self._executor: Any = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._executor.update_parameters(name="moescale", **named)
        except RuntimeError as error:
            step = 'start the sweep where sbatch is, or take on = "local"'
            raise InputError(f"Slurm is not available: {error}", where="[execute]", next_step=step) from error
        except (TypeError, ValueError, NameError) as error:
            raise InputError(f"is rejected by submitit: {error}", where="[execute.slurm]") from error

    def start(self, command: Sequence[str], *, log: Path, lock: Path) -> Job:
        """Run a command, which holds `lock` while it lives and whose output is added to the file `log`."""
        stop = self._folder / f"{secrets.token_hex(8)}.stop"
        # What is started here inherits that Ctrl-C is blocked: it is the driver that ends it. One that comes meanwhile stays pending.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with explained(write_error, str(self._folder)):
                job = self._executor.submit(execute, [*self._before, *command], str(log), str(lock), str(stop))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return Job(job, stop)


class Job:
    """A command that was started."""

    def __init__(self, job: Any, stop: Path) -> None:
        self._job, self._stop = job, stop
        self._lost_at = math.inf  # when a job that ended without a result counts as lost

    def poll(self) -> int | None:
        """Its exit code, BUSY or LOST, and None until it has ended."""
        errors: Any = importlib.import_module("submitit.core.utils")
        if not self._job.done():
            return None
        with suppress(OSError):
            self._stop.unlink(missing_ok=True)
        # Where there is no result, submitit waits for one for half a minute.
        if not self._job.paths.result_pickle.exists():
            self._lost_at = min(self._lost_at, time.monotonic() + RESULT_LAG_S)
            return LOST if time.monotonic() >= self._lost_at else None
        try:
            return int(self._job.result())
        except (errors.FailedJobError, errors.UncompletedJobError):
            return LOST

    def terminate(self) -> None:
        """Ask it to end."""
        self._lost_at = -math.inf
        # submitit's way is a signal, which a job that is only starting does not hear; `execute` sees the file.
        with suppress(OSError):
            os.close(open_plain(self._stop, os.O_RDWR | os.O_CREAT))
        with suppress(OSError, subprocess.CalledProcessError):
            self._job.cancel()

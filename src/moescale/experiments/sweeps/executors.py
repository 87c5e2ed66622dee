"""Where the runs of a sweep are executed: processes of this machine, Slurm through submitit, or a Ray cluster.

Each run is one command. Wherever it is started, it holds the lock of its run for as long as it lives, so that a second
driver, or a driver that was killed and started again, never starts a run that is still going.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from moescale.errors import InputError, install, unknown_name
from moescale.io.files import open_plain, opened_to_append
from moescale.io.locks import acquire
from moescale.io.signals import sigterm_interrupts, uninterrupted

BUSY = 75  # sysexits.h, EX_TEMPFAIL: another process has the run
LOST = -1  # the place that ran it says no more than that it ended
# Run before the command, in its process: the kernel sends it SIGTERM (15) when its parent ends. PR_SET_PDEATHSIG is 1 in
# linux/prctl.h; elsewhere there is none. Not preexec_fn, which is unsafe beside threads, and Ray's workers have those.
DIE_WITH_PARENT = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 15)
os.execvp(sys.argv[1], sys.argv[1:])
"""
RESULT_LAG_S = 10.0  # within which a result shows on a file system of several machines
GRACE_S = 20.0  # from SIGTERM to SIGKILL
RAY_KEYS = ("address", "num_cpus", "num_gpus", "resources")
SLURM_SHARED = (
    "timeout_min", "mem_gb", "nodes", "cpus_per_task", "gpus_per_node", "tasks_per_node", "stderr_to_stdout",
)  # fmt: skip


class Job(Protocol):
    """A run that was started: `poll` gives its exit code, BUSY or LOST, and None until it has ended."""

    def poll(self) -> int | None: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


class Executor(Protocol):
    """A place that runs commands; `start` gives None where another process holds the lock of the run."""

    def start(self, command: Sequence[str], *, log: Path, lock: Path) -> Job | None:
        """Run a command, which holds `lock` while it lives and whose output is added to the file `log`."""
        ...

    def close(self) -> None:
        """Let go of the place."""
        ...


def train_command(run_file: Path, *, resume: bool = True) -> list[str]:
    """The command that trains one run."""
    command = [sys.executable, "-m", "moescale", "train", str(run_file), "--json"]
    return command if resume else [*command, "--no-resume"]


class Process:
    """A command in a session of its own, with all that it started; `start` gives one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @classmethod
    def start(cls, command: Sequence[str], *, log: Path, lock: Path, dies_with_us: bool = False) -> Process | None:
        """The command as a process, or None where another process holds the lock.

        Raises InputError where the command or the log cannot be opened.
        """
        descriptor = acquire(lock)
        if descriptor is None:
            return None
        shim = [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT] if dies_with_us else []
        try:
            with opened_to_append(log, follow_links=False) as stream:
                process = subprocess.Popen(
                    [*shim, *command], stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C reaches us alone, and the whole group can be ended
                    # The command inherits the lock and keeps it, also when we are gone.
                    pass_fds=(descriptor,),
                )  # fmt: skip
        except OSError as error:
            raise InputError(f"cannot be started: {error.strerror or error}", where=str(command[0])) from error
        finally:
            os.close(descriptor)
        return cls(process)

    @property
    def pid(self) -> int:
        """The process id of the command."""
        return self._process.pid

    def poll(self) -> int | None:
        """Its exit code, or None while it runs; once it has ended, so has its group (torchrun ends by itself: launch.py)."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._signal(signal.SIGKILL)
        return self._process.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and its group."""
        if self.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Ask it to end, and end it where it has not within the grace."""
        self.terminate()
        end = time.monotonic() + grace_s
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        self.kill()

    def _signal(self, number: int) -> None:
        with suppress(OSError):
            os.killpg(self._process.pid, number)


def execute(command: Sequence[str], log: str, lock: str, stop: str | None = None) -> int:
    """Run a command here and now; its exit code, BUSY, or LOST where it was stopped. A job of a cluster is a call of this.

    The command ends with this process: on SIGTERM and Ctrl-C in good order, else at once. It is stopped as well when the
    file `stop` appears (a signal is lost on a job that is only starting) and when the process that started this one is gone.
    """
    parent = os.getppid()
    with sigterm_interrupts():
        if stop is not None and os.path.exists(stop):
            return LOST
        process: Process | None = None
        try:
            with uninterrupted():
                process = Process.start(command, log=Path(log), lock=Path(lock), dies_with_us=True)
            if process is None:
                return BUSY
            while (code := process.poll()) is None:
                if os.getppid() != parent or (stop is not None and os.path.exists(stop)):
                    return LOST
                time.sleep(0.1)
            return code
        finally:
            if process is not None:
                process.stop(GRACE_S / 2)  # so that who asked for it sees the end within the grace


class Local:
    """Processes of this machine."""

    def start(self, command: Sequence[str], *, log: Path, lock: Path) -> Job | None:
        """See Executor."""
        return Process.start(command, log=log, lock=lock)

    def close(self) -> None:
        """Nothing to let go of."""


class Submitit:
    """Slurm, or with cluster="local" the same API on this machine; `options` are [execute.slurm]."""

    def __init__(self, options: Mapping[str, Any], folder: Path) -> None:
        submitit = _library("submitit", "slurm")
        self._folder = folder
        given = dict(options)
        cluster = str(given.pop("cluster", "slurm"))
        if cluster not in ("slurm", "local"):
            raise unknown_name("cluster", cluster, ("slurm", "local"), where="[execute.slurm]")
        try:
            self._executor = submitit.AutoExecutor(folder=folder, cluster=cluster)
        except RuntimeError as error:
            raise InputError(
                f"Slurm is not available: {error}",
                where="[execute]",
                next_step='start the sweep where sbatch is, or take on = "local"',
            ) from error
        known = submitit.SlurmExecutor._valid_parameters()
        named = {key if key in SLURM_SHARED else f"slurm_{key}": value for key, value in given.items()}
        for key, name in zip(given, named, strict=True):
            if name not in SLURM_SHARED and key not in known:
                raise unknown_name("option", key, sorted({*known, *SLURM_SHARED}), where="[execute.slurm]")
        try:
            self._executor.update_parameters(name="moescale", **named)
        except (TypeError, ValueError, NameError) as error:
            raise InputError(f"is rejected by submitit: {error}", where="[execute.slurm]") from error

    def start(self, command: Sequence[str], *, log: Path, lock: Path) -> Job:
        """See Executor."""
        stop = self._folder / f"{secrets.token_hex(8)}.stop"
        return _SubmititJob(self._executor.submit(execute, list(command), str(log), str(lock), str(stop)), stop)

    def close(self) -> None:
        """Nothing to let go of."""


class Ray:
    """A Ray cluster (`address`), or one of this machine for as long as the sweep lasts; `options` are [execute.ray]."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._ray = ray = _library("ray", "ray")
        for key in options:
            if key not in RAY_KEYS:
                raise unknown_name("option", key, RAY_KEYS, where="[execute.ray]")
        address = options.get("address")
        # Where the cluster is ours, it and what it logs end with us.
        self._ours = not ray.is_initialized()
        if self._ours:
            here: dict[str, Any] = {} if address else {"include_dashboard": False}
            try:
                ray.init(address=address, log_to_driver=False, configure_logging=False, **here)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError(
                    f"no Ray cluster: {error}",
                    where="[execute.ray], address",
                    next_step="`ray status` shows a cluster's",
                ) from error
        per_run = {key: value for key, value in options.items() if key != "address"}
        # max_retries: a command that was killed is the driver's to start again, which counts.
        self._execute = ray.remote(max_retries=0, **{"num_cpus": 1, **per_run})(execute)

    def start(self, command: Sequence[str], *, log: Path, lock: Path) -> Job:
        """See Executor."""
        return _RayJob(self._ray, self._execute.remote(list(command), str(log), str(lock)))

    def close(self) -> None:
        """Disconnect, and end a cluster that was started here."""
        if self._ours:
            self._ray.shutdown()


class _SubmititJob:
    def __init__(self, job: Any, stop: Path) -> None:
        self._job, self._stop = job, stop
        self._lost_at = math.inf  # when a job that ended without a result counts as lost

    def poll(self) -> int | None:
        errors = _library("submitit.core.utils", "slurm")
        if not self._job.done():
            return None
        with suppress(OSError):
            self._stop.unlink(missing_ok=True)
        # Asked for a result that is not there, submitit waits for half a minute.
        if not self._job.paths.result_pickle.exists():
            self._lost_at = min(self._lost_at, time.monotonic() + RESULT_LAG_S)
            return LOST if time.monotonic() >= self._lost_at else None
        try:
            return int(self._job.result())
        except (errors.FailedJobError, errors.UncompletedJobError):
            return LOST

    def terminate(self) -> None:
        self._lost_at = -math.inf
        # submitit's own way is a signal, which a job that is only starting does not hear; `execute` sees the file.
        with suppress(OSError):
            os.close(open_plain(self._stop, os.O_RDWR | os.O_CREAT))
        with suppress(OSError, subprocess.CalledProcessError):
            self._job.cancel()

    def kill(self) -> None:
        self.terminate()


class _RayJob:
    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference

    def poll(self) -> int | None:
        done, _ = self._ray.wait([self._reference], timeout=0)
        if not done:
            return None
        try:
            return int(self._ray.get(self._reference))
        except self._ray.exceptions.RayError:
            return LOST

    def terminate(self) -> None:
        self._ray.cancel(self._reference, force=False)

    def kill(self) -> None:
        self._ray.cancel(self._reference, force=True)


def _library(name: str, where: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(
            f"needs {name}", where=f"[execute.{where}]", next_step=f'{install("cluster")}, or on = "local"'
        ) from error


def check_system() -> None:
    """Raise InputError where runs cannot be told apart and ended: on systems without file locks and process groups."""
    try:
        importlib.import_module("fcntl")
        groups = hasattr(os, "killpg")
    except ImportError:
        groups = False
    if not groups:
        raise InputError(
            f"a sweep needs file locks and process groups, which this system ({sys.platform}) does not have",
            next_step="start it on Linux or macOS, or in WSL; --dry-run works here",
        )

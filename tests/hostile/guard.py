"""What a reader of outside input may not do, watched while it reads: an audit hook, a limit of CPU time, one of memory."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

CPU_LIMIT_S = 2.0
"""CPU time of one input, which unlike wall time does not depend on what else runs."""

KILL_AFTER_S = 20
"""CPU seconds after which the system ends a process that does not come back to Python to be interrupted."""

MEMORY_ALLOWANCE_BYTES = 512 * 2**20
"""Resident memory that one input may add. An input is at most 1 MiB, and a text as Python objects takes up to a hundred times
its size; what is packed may unpack to `frames.UNPACKED_RATIO`. A blow-up has no bound and passes this at once."""

ADDRESS_ALLOWANCE_BYTES = 4 * 2**30
"""Address space on top of what the loaded libraries have: stops an allocation of any claimed size; loose, since threads
and allocators reserve much that they never touch."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = re.compile(
    r"os\.(?:remove|rename|mkdir|rmdir|link|symlink|truncate|chmod|chown|utime|putenv|unsetenv|system|exec|posix_spawn|spawn"
    r"|fork|forkpty|kill|killpg)|shutil\..*|tempfile\..*|subprocess\..*|pty\..*|pickle\..*|ctypes\..*|cpython\.run_.*"
    r"|socket\.(?:connect|bind|sendto|sendmsg|getaddrinfo|gethostbyname|gethostbyaddr)|urllib\..*|http\.client\..*"
)


class Violation(BaseException):
    """A reader did what it may not. Not an Exception, which a reader may catch."""


_armed: list[list[str]] = []
"""The violations of the reading under way."""


def install() -> None:
    """Add the hook and the limits; once a process, after its libraries are loaded."""
    sys.addaudithook(_audit)
    signal.signal(signal.SIGPROF, _too_slow)
    limit = _status("VmSize") + ADDRESS_ALLOWANCE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def watched() -> Iterator[list[str]]:
    """Watch one reading; what it did wrong is in the list afterwards."""
    violations: list[str] = []
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak
    resident, start = _status("VmRSS"), time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(start) + KILL_AFTER_S, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    _armed.append(violations)
    try:
        yield violations
    finally:
        _armed.clear()
        signal.setitimer(signal.ITIMER_PROF, 0)
        if (cpu_s := time.process_time() - start) > CPU_LIMIT_S:
            violations.append(f"took {cpu_s:.1f} s of CPU time")
        if (grown := _status("VmHWM") - resident) > MEMORY_ALLOWANCE_BYTES:
            violations.append(f"took {grown / 2**20:.0f} MiB of memory")


def _too_slow(_: int, frame: FrameType | None) -> None:
    if _armed:
        raise Violation(f"still busy after {CPU_LIMIT_S} s of CPU time")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _armed:
        return
    if event == "open" and not isinstance(arguments[0], int):
        path, mode, flags = arguments
        if any(letter in "wax+" for letter in mode) if isinstance(mode, str) else bool((flags or 0) & WRITING):
            _violate(f"opens {path!r} for writing")
    elif event == "exec" and sys._getframe(1).f_globals.get("__name__", "").startswith("moescale"):
        _violate(f"runs code {arguments[0]!r:.200}")
    elif FORBIDDEN.fullmatch(event):
        _violate(f"does {event} {arguments!r:.200}")


def _violate(what: str) -> None:
    _armed[0].append(what)
    raise Violation(what)


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)

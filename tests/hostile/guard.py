"""What a reader of outside input may not do, watched while it reads: an audit hook, a limit of CPU time, one of memory."""

from __future__ import annotations

import linecache
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

CPU_LIMIT_S = 2.0
"""CPU time of one input, which unlike wall time does not depend on what else runs."""

KILL_AFTER_S = 20
"""CPU seconds after which the system ends a process that does not come back to Python to be interrupted."""

MEMORY_ALLOWANCE_BYTES = 512 * 2**20
"""Resident memory that one input may add. An input is at most 1 MiB, and a text as Python objects takes up to a hundred times its
size; what is packed may unpack to `files.unpacked_limit_bytes` (64 MiB and fifty times its size) and is there up to four times
while it is decoded. A blow-up has no bound and passes this at once."""

ADDRESS_ALLOWANCE_BYTES = 4 * 2**30
"""Address space on top of what the loaded libraries have: stops an allocation of any claimed size before the machine
suffers; loose, since threads and allocators reserve much that they never touch."""

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = re.compile(
    r"os\.(?:remove|rename|mkdir|rmdir|link|symlink|truncate|chmod|lchmod|fchmod|chown|lchown|fchown|utime|setxattr|removexattr"
    r"|chflags|lockf|putenv|unsetenv|system|exec|posix_spawn|spawn|fork|forkpty|kill|killpg|startfile)"
    r"|shutil\..*|tempfile\..*|subprocess\..*|pty\..*"
    r"|socket\.(?:connect|bind|sendto|sendmsg|getaddrinfo|gethostbyname|gethostbyaddr|getnameinfo|sethostname)"
    r"|urllib\..*|http\.client\..*|ftplib\..*|smtplib\..*|webbrowser\..*"
    r"|pickle\..*|marshal\..*|ctypes\..*|cpython\.run_.*|sqlite3\.(?:enable_load_extension|load_extension)|syslog\..*"
)
# Libraries that compile or run text of their own: annotations of classes, methods of named tuples.
OWN_CODE = (
    "importlib",
    "_frozen_importlib",
    "_frozen_importlib_external",
    "zipimport",
    "typing",
    "typing_extensions",
    "dataclasses",
    "collections",
)
OWN_CODE += ("pydantic", "fastapi", "numpy", "pandas", "polars", "enum", "inspect", "re", "annotated_types")


class Violation(BaseException):
    """A reader did what it may not. Not an Exception, which a reader may catch."""


@dataclass
class Watch:
    """What happened while one input was read."""

    armed: bool = False
    violations: list[str] = field(default_factory=list[str])
    cpu_s: float = 0.0
    peak_bytes: int = 0


_watch = Watch()


def install() -> None:
    """Add the hook, the limits and the empty folders to look after; once a process, after its libraries are loaded."""
    sys.addaudithook(_audit)
    signal.signal(signal.SIGPROF, _too_slow)
    limit = _status("VmSize") + ADDRESS_ALLOWANCE_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


@contextmanager
def watched(folder: Path) -> Iterator[Watch]:
    """Watch one reading of what lies in `folder`; what it did wrong is in `violations` afterwards."""
    watch = _watch
    watch.violations, watch.cpu_s, watch.peak_bytes = [], 0.0, 0
    before = _listing(folder)
    _forget_peak()
    resident = _status("VmRSS")
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    start = time.process_time()
    resource.setrlimit(resource.RLIMIT_CPU, (int(start) + KILL_AFTER_S, hard))
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    watch.armed = True
    try:
        yield watch
    finally:
        watch.armed = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        watch.cpu_s = time.process_time() - start
        watch.peak_bytes = max(_status("VmHWM") - resident, 0)
        if watch.cpu_s > CPU_LIMIT_S:
            watch.violations.append(f"took {watch.cpu_s:.1f} s of CPU time")
        if watch.peak_bytes > MEMORY_ALLOWANCE_BYTES:
            watch.violations.append(f"took {watch.peak_bytes / 2**20:.0f} MiB of memory")
        after = _listing(folder)
        if after != before:
            changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
            watch.violations.append(f"touched {', '.join(changed)}")


def _too_slow(_: int, frame: FrameType | None) -> None:
    if _watch.armed:
        raise Violation(f"still busy after {CPU_LIMIT_S} s of CPU time")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watch.armed:
        return
    if event == "open":
        path, mode, flags = arguments
        if isinstance(path, int):  # a descriptor that is open already
            return
        writes = any(letter in "wax+" for letter in mode) if isinstance(mode, str) else bool((flags or 0) & WRITING)
        if writes:
            _violate(f"opens {path!r} for writing")
    elif event in ("exec", "compile", "marshal.loads"):
        _check_code(event, arguments)
    elif FORBIDDEN.fullmatch(event):
        _violate(f"does {event} {arguments!r:.200}")


def _check_code(event: str, arguments: tuple[Any, ...]) -> None:
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "ast":
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__", ""))
    if caller.split(".", maxsplit=1)[0] in OWN_CODE:
        return
    top, line = caller.split(".", maxsplit=1)[0], linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    if isinstance(arguments[0], bytes) and top in sys.stdlib_module_names and _text_of(arguments[0]) in line:
        return  # the interpreter shows the line of an exception that nothing can catch, and parses it for that
    if event == "compile" and caller == "moescale.io.filters":  # to a tree; to run it would be an event `exec`
        return
    _violate(f"does {event} {arguments[0]!r:.200} in {caller}")


def _text_of(source: object) -> str:
    return source.decode("utf-8", "replace") if isinstance(source, bytes) else str(source)


def _violate(what: str) -> None:
    _watch.violations.append(what)
    raise Violation(what)


def _listing(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every file with inode, size and time of change: writing from C raises no event, but shows here."""
    found: dict[str, tuple[int, int, int]] = {}
    todo = [str(folder)]
    while todo:
        for entry in os.scandir(todo.pop()):
            state = entry.stat(follow_symlinks=False)
            found[entry.path] = (state.st_ino, state.st_size, state.st_mtime_ns)
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
    return found


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_bytes().splitlines():
        if line.startswith(name.encode() + b":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(name)


def _forget_peak() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as stream:
        stream.write("5")


def quietly(read: Callable[[], object]) -> BaseException | None:
    """What `read` raises, if anything."""
    try:
        read()
    except BaseException as error:
        return error
    return None

"""Locks between processes: the operating system's, on a file, so that they end with the process however it ends."""

from __future__ import annotations

import errno
import os
import re
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from moescale.errors import DamagedFileError, InputError
from moescale.io.files import open_plain, write_error

LONGEST_NAME_BYTES = 200  # of a file whose lock is named after it: a name may have 255 bytes, on some systems fewer
MARK = b"moescale lock "
# What a lock holds: nothing, the host and process that took it last, as far as a killed process wrote it; or, from before
# version 0.2, host and process alone.
CONTENT = re.compile(rb"moescale lock (\S{0,255}( [0-9]{0,20}\n?)?)?|\S{1,255} [0-9]{1,10}\n")
LONGEST_CONTENT_BYTES = 512
MOST_OPENS = 100  # opens of a lock whose file each holder before us removed: more is no race but a broken file system


def lock_beside(path: str | os.PathLike[str]) -> Path:
    """The lock file of a file: `.NAME.lock` beside it, or beside what a link points to; a long NAME by its hash."""
    target = Path(os.path.realpath(os.fspath(path)))
    name = os.fsencode(target.name)
    if len(name) > LONGEST_NAME_BYTES:
        return target.with_name(f".{sha256(name).hexdigest()}.lock")
    return target.with_name(f".{target.name}.lock")


def acquire(lock: Path, *, wait: bool = False, tell: Callable[[str], None] | None = None) -> int | None:
    """A descriptor that holds the file `lock`, or None where another process does and `wait` is false.

    It is held until the descriptor is closed, in this process and in every one that inherited it. The file names the
    host and the process that took it last. `tell` hears that another process is waited for, and that the file system has
    no locks (nor has Windows), where nothing is checked. Raises InputError where the file cannot be written, is a link or
    a device, or holds what no lock does: such a file is left as it is.
    """
    try:
        for _ in range(MOST_OPENS):
            descriptor = open_plain(lock, os.O_RDWR | os.O_CREAT)
            try:
                _check_is_lock(descriptor, lock)
                taken = _take(descriptor, lock, wait, tell)
            except BaseException:
                os.close(descriptor)
                raise
            if taken and _same_file(descriptor, lock):
                return descriptor
            os.close(descriptor)
            if not taken:
                return None
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    except OSError as error:
        raise write_error(str(lock), error) from error


def is_held(lock: Path) -> bool:
    """Whether a process holds the file `lock`."""
    if not lock.exists():
        return False
    descriptor = acquire(lock)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def locked(lock: Path, *, busy: InputError | None = None, tell: Callable[[str], None] | None = None) -> Generator[None]:
    """Hold the file `lock` within this context, and remove it at the end.

    Where another process holds it, `busy` is raised, or without one that process is waited for. A process that is killed
    holds nothing any more, though the file stays until the next one is done.
    """
    descriptor = acquire(lock, wait=busy is None, tell=tell)
    if descriptor is None:
        assert busy is not None
        raise busy
    try:
        yield
    finally:
        with suppress(OSError):
            # Before it is released: who waits for it sees that this is no longer the file of that name.
            if _same_file(descriptor, lock):
                lock.unlink()
        os.close(descriptor)


def _check_is_lock(descriptor: int, lock: Path) -> None:
    """Raise InputError for a file of this name that somebody else made: it must not be emptied, nor removed."""
    content = os.read(descriptor, LONGEST_CONTENT_BYTES)
    if not (MARK.startswith(content) or CONTENT.fullmatch(content)):
        what = "is not a lock of moescale: it holds something else, and is left as it is"
        advice = "move it away, or choose another name or folder for the result"
        raise DamagedFileError(what, where=str(lock), next_step=advice)


def _take(descriptor: int, lock: Path, wait: bool, tell: Callable[[str], None] | None) -> bool:
    try:
        import fcntl
    except ImportError:
        return True
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
            if tell is not None:
                tell(f"{lock.parent}: another process works on it; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:  # such as the file systems of some clusters
        if tell is not None:
            tell(f"{lock.parent}: this file system has no locks ({error.strerror}); let no two processes write there")
        return True
    with suppress(OSError):
        os.truncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, MARK + f"{socket.gethostname()} {os.getpid()}\n".encode())
    return True


def _same_file(descriptor: int, path: Path) -> bool:
    """Whether a path still names an open file: else its holder removed it between our opening and our locking it."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except FileNotFoundError:
        return False

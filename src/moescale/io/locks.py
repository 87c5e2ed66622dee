"""Locks between processes: the operating system's, on a file, so that they end with the process however it ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from moescale.errors import InputError
from moescale.io.files import open_plain, write_error

LONGEST_NAME_BYTES = 200  # of a file whose lock is named after it: a name may have 255 bytes, on some systems fewer


def lock_beside(path: str | os.PathLike[str]) -> Path:
    """The lock file of a file: `.NAME.lock` beside it, or beside what a link points to; a long NAME by its hash."""
    target = Path(os.path.realpath(os.fspath(path)))
    name = os.fsencode(target.name)
    if len(name) > LONGEST_NAME_BYTES:
        return target.with_name(f".{sha256(name).hexdigest()}.lock")
    return target.with_name(f".{target.name}.lock")


@contextmanager
def locked(lock: Path, *, busy: InputError | None = None, tell: Callable[[str], None] | None = None) -> Generator[None]:
    """Hold the file `lock` within this context, and remove it at the end; a lock file that holds anything stays.

    Where another process holds it, `busy` is raised, or without one that process is waited for, which `tell` hears.
    Raises InputError where the file cannot be written or is a link.
    """
    from filelock import FileLock, SoftFileLock, Timeout

    held = FileLock(lock, is_singleton=False, thread_local=False)
    try:
        if FileLock is not SoftFileLock:  # where the system has no locks, the file's being there is the lock
            os.close(open_plain(lock, os.O_RDWR | os.O_CREAT))
        try:
            held.acquire(blocking=False)
        except Timeout:
            if busy is not None:
                raise busy from None
            if tell is not None:
                tell(f"{lock.parent}: another process works on it; waiting")
            held.acquire()
    except OSError as error:
        raise write_error(str(lock), error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # before it is released: filelock sees that what it waited for is gone
            if lock.lstat().st_size == 0:
                lock.unlink()
        held.release()


def is_held(lock: Path) -> bool:
    """Whether a process holds the file `lock`; an empty one that nobody holds is removed."""
    busy = InputError("is held", where=str(lock))
    try:
        if lock.exists():
            with locked(lock, busy=busy):
                pass
    except InputError as error:
        if error is not busy:
            raise
        return True
    return False

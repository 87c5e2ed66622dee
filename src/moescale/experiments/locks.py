"""Locks between processes, held through filelock."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from moescale.errors import InputError
from moescale.io.files import write_error


def lock_beside(path: str | Path) -> Path:
    """The lock file of a file: `.NAME.lock` beside it, or beside what a link points to."""
    target = Path(os.path.realpath(path))
    return target.with_name(f".{target.name[:200]}.lock")


@contextmanager
def held(lock: Path, busy: InputError | None = None) -> Generator[None]:
    """Hold a lock; where another process does, `busy` is raised, or without it that process is waited for."""
    file = FileLock(lock, timeout=-1 if busy is None else 0)
    try:
        file.acquire()
    except Timeout as error:
        raise busy or error from error
    except OSError as error:
        raise write_error(str(lock), error) from error
    try:
        yield
    finally:
        file.release()


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock."""
    busy = InputError("is held", where=str(lock))
    try:
        if lock.exists():
            with held(lock, busy):
                pass
    except InputError as error:
        if error is not busy:
            raise
        return True
    return False

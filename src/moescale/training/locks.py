"""Locks of files between processes: they end with the process that holds them, however it ends."""

from __future__ import annotations

import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from moescale.errors import InputError


def acquire(path: Path, *, wait: bool = False) -> int | None:
    """A descriptor that holds the lock `path`, or None where another process does and `wait` is false.

    The lock lasts until the descriptor is closed, in this process and in every one that inherited it. The file stays
    where it is, with the host and process that took it last. Raises InputError where it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise InputError(
            f"cannot be locked: {error.strerror or error}", where=str(path), next_step="choose a folder to write to"
        ) from error
    try:
        import fcntl
    except ImportError:  # Windows: nothing is locked
        return descriptor
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        # A file system without locks (some of clusters): as good as on Windows.
        return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    with suppress(OSError):
        os.truncate(descriptor, 0)
        os.write(descriptor, f"{socket.gethostname()} {os.getpid()}\n".encode())
    return descriptor


def is_held(path: Path) -> bool:
    """Whether a process holds the lock `path`."""
    if not path.exists():
        return False
    descriptor = acquire(path)
    if descriptor is None:
        return True
    os.close(descriptor)
    return False


@contextmanager
def locked(path: Path) -> Generator[None]:
    """Holds the lock `path`, after waiting for it."""
    descriptor = acquire(path, wait=True)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)

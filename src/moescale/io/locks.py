"""What processes must not do at once: locks, the operating system's, which end with the process however it ends; whole folders."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from moescale.errors import InputError, UnwrittenError
from moescale.io.files import explained, sync_folder, write_error

LONGEST_NAME_BYTES = 200  # of a lock's name: a name may have 255 bytes, on some systems fewer


def lock_beside(path: str | os.PathLike[str]) -> Path:
    """The lock file of a file: `.NAME.lock` beside it, or beside what a link points to, NAME cut where it is long."""
    target = Path(os.path.realpath(os.fspath(path)))
    return target.with_name(f".{os.fsdecode(os.fsencode(target.name)[:LONGEST_NAME_BYTES])}.lock")


@contextmanager
def locked(lock: Path, *, busy: InputError | None = None) -> Generator[None]:
    """Hold the file `lock` within this context, and remove it at the end; a lock file that holds anything stays.

    Where another process holds it, `busy` is raised, or without one that process is waited for.
    """
    from filelock import FileLock, Timeout

    held = FileLock(lock, is_singleton=False, thread_local=False)
    with explained(write_error, lock):
        os.stat(lock.parent)  # which filelock would make
        if lock.is_symlink():  # the lock of another place, or no lock at all
            what = "is a link where a plain file is needed, and is not followed"
            raise UnwrittenError(what, where=str(lock), next_step="remove it, or choose another folder")
        try:
            held.acquire(blocking=busy is None)
        except Timeout as error:
            raise busy or error from None
    try:
        yield
    finally:
        with suppress(OSError):  # before it is released: filelock sees that what it waited for is gone
            if lock.lstat().st_size == 0:
                lock.unlink()
        held.release()


@contextmanager
def staged_folder(target: Path) -> Generator[Path]:
    """A folder to fill, which takes the place of `target` whole when this context ends, or is removed where it fails.

    To be used under the lock beside `target`. An older folder stays until then; a process that is killed between the
    two renames leaves it aside, and the next call puts it back first.
    """
    lock = lock_beside(target)
    staged, aside = lock.with_suffix(".moescale-new"), lock.with_suffix(".moescale-old")
    before = f"lies whole in {str(aside)!r}, and the next write there puts it back"

    def put_back() -> None:
        with explained(partial(write_error, before=before), target):
            if aside.exists() and not target.exists():
                aside.rename(target)

    put_back()
    for left in (staged, aside):
        shutil.rmtree(left, ignore_errors=True)
    with explained(write_error, target):
        staged.mkdir()
        try:
            yield staged
            if target.exists():
                staged.chmod(stat.S_IMODE(target.stat().st_mode))
                target.rename(aside)
            staged.rename(target)
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            put_back()
            raise
    sync_folder(target.parent)
    shutil.rmtree(aside, ignore_errors=True)

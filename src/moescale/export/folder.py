"""The folder of an export: written whole or not at all, in place of an older export and of nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from moescale.errors import UnwrittenError
from moescale.io.files import (
    TEMPORARY,
    check_folder,
    explained,
    make_folder,
    sync_folder,
    write_atomically,
    write_error,
)
from moescale.io.locks import lock_beside, locked

MOST_NAMED = 5


def check_export_folder(folder: Path, names: Collection[str]) -> None:
    """Raise the UnwrittenError that `write_export` would meet, before the work whose result it shall hold; writes nothing.

    A folder that is there must hold files of an export alone, which bear these `names`, and is replaced as a whole.
    """
    check_folder(folder)
    where, place = os.fspath(folder), Path(os.path.realpath(folder))
    with explained(write_error, where):
        if not place.exists():
            return
        found = sorted(os.scandir(place), key=lambda entry: entry.name)
        foreign = [each.name for each in found if each.name not in names or not each.is_file(follow_symlinks=False)]
        if foreign:
            more = f" and {len(foreign) - MOST_NAMED} more" if len(foreign) > MOST_NAMED else ""
            what = f"holds what is not of an export: {', '.join(foreign[:MOST_NAMED])}{more}"
            raise UnwrittenError(what, where=where, next_step="give a new folder, or move that away")
        if found and os.path.islink(folder):
            what = f"is a link to {str(place)!r}, and nothing is overwritten through a link"
            raise UnwrittenError(what, where=where, next_step="give that folder itself, or a new one")
        if Path.cwd().is_relative_to(place):
            advice = f"give a folder in it, such as {Path(where, 'launch')}"
            what = "cannot be replaced as a whole: it is the current folder"
            raise UnwrittenError(what, where=where, next_step=advice)


def write_export(folder: Path, files: Mapping[str, str], names: Collection[str]) -> None:
    """Write files (text by name) as the folder of an export; an older export there stays whole until they take its place.

    A process that is killed between the two renames leaves no folder but the older export beside it, which the next write
    puts back first. Raises as `check_export_folder`, and UnwrittenError for a full disk or where another process writes it.
    """
    target = Path(os.path.realpath(folder))
    make_folder(target.parent)
    lock = lock_beside(target)
    staged, aside = lock.with_suffix(".moescale-new"), lock.with_suffix(".moescale-old")
    busy = UnwrittenError(
        "another process writes it", where=os.fspath(folder), next_step="wait, or give another folder"
    )
    with locked(lock, busy=busy), explained(write_error, os.fspath(folder)):
        _put_back(aside, target, folder)
        check_export_folder(folder, names)
        for left in (staged, aside):
            _remove(left, names)
        staged.mkdir()
        try:
            for name, text in files.items():
                write_atomically(staged / name, text)
            if target.exists():
                staged.chmod(stat.S_IMODE(target.stat().st_mode))
                target.rename(aside)
            staged.rename(target)
        except BaseException:
            with suppress(OSError):
                _remove(staged, names)
            _put_back(aside, target, folder)
            raise
        sync_folder(target.parent)
        with suppress(OSError):
            _remove(aside, names)


def _put_back(aside: Path, target: Path, folder: Path) -> None:
    """Where a write ended between its two renames, the older export is the folder again."""
    before = partial(write_error, before=f"lies whole in {str(aside)!r}, and the next export there puts it back")
    with explained(before, os.fspath(folder)):
        if aside.exists() and not target.exists():
            aside.rename(target)


def _remove(folder: Path, names: Collection[str]) -> None:
    """Remove a folder of ours, if it is there; one that holds anything else is an OSError, and keeps that."""
    if folder.exists():
        for name in os.listdir(folder):
            if name in names or TEMPORARY.fullmatch(name):
                (folder / name).unlink()
        folder.rmdir()

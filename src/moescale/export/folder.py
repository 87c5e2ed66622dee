"""The folder of an export: written whole or not at all, in place of an older export and of nothing else."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from moescale.errors import UnwrittenError
from moescale.io.files import check_folder, explained, make_folder, write_atomically, write_error
from moescale.io.locks import lock_beside, locked, staged_folder

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

    Raises as `check_export_folder`, and UnwrittenError for a full disk or where another process writes it.
    """
    target = Path(os.path.realpath(folder))
    make_folder(target.parent)
    where = os.fspath(folder)
    busy = UnwrittenError("another process writes it", where=where, next_step="wait, or give another folder")
    with locked(lock_beside(target), busy=busy):
        check_export_folder(folder, names)
        with staged_folder(target) as staged:
            for name, text in files.items():
                write_atomically(staged / name, text)

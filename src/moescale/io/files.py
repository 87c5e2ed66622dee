"""Text and bytes on disk: bounded reading with clear errors, and writing that never leaves half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import IO

from moescale.errors import DamagedFileError, InputError, UnwrittenError, nearest_names

TEXT_LIMIT_BYTES = 64 * 2**20  # configuration, laws and plans are kilobytes; more is a wrong path, not an input
NO_UTF8 = re.compile("[\udc80-\udcff]")  # how Python holds bytes of a file's name that are not UTF-8 (PEP 383)
TEMPORARY = re.compile(r"\.moescale-[0-9a-f]{16}\.tmp")


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write `content` (text as UTF-8) so that a reader sees the old file or the new one, never a part; returns the path.

    A process that is killed leaves `.moescale-*.tmp`, which the next write into that folder removes. A link is followed
    and stays a link, a device or pipe is written to. Raises UnwrittenError.
    """
    with explained(write_error, path) as name:
        try:
            data = content.encode("utf-8") if isinstance(content, str) else content
        except UnicodeEncodeError as error:
            raise InputError(f"character {error.start} cannot be written as UTF-8", where=name) from error
        mode = _mode_of_target(name)
        if mode is not None and not stat.S_ISREG(mode):
            Path(name).write_bytes(data)  # a device or pipe cannot be replaced, only written to
            return Path(name)
        while not _replaced(Path(os.path.realpath(name)), data, mode):
            pass
    return Path(name)


def check_target(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str] | None] = ()) -> None:
    """Raise, before the work, the UnwrittenError that writing `path` would meet, or one for one of `inputs`."""
    with explained(write_error, path) as name:
        mode = _mode_of_target(name)
        if mode is None or stat.S_ISREG(mode):
            _check_writable(os.path.dirname(os.path.realpath(name)))
        for given in inputs if mode is not None and stat.S_ISREG(mode) else ():
            if given is not None and os.path.exists(given) and os.path.samefile(name, given):
                what = f"is what is read ({as_text(os.fspath(given))}), and would be replaced"
                raise UnwrittenError(what, where=name, next_step="give another name for the result")


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise the UnwrittenError that `make_folder` would meet, before the work whose result it shall hold; makes nothing."""
    with explained(write_error, folder) as name:
        place = os.path.realpath(name)
        while (mode := _mode(place)) is None:
            place = os.path.dirname(place)
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "")
        _check_writable(place)


def make_folder(folder: str | os.PathLike[str]) -> Path:
    """Make a folder, with those above it, unless it is there, and see that files can be made in it; returns its path."""
    with explained(write_error, folder) as name:
        Path(name).mkdir(parents=True, exist_ok=True)
        _check_writable(name)
    return Path(name)


def opened_to_append(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file opened to be read and added to, made where there is none; raises UnwrittenError where it cannot be."""
    with explained(write_error, path):
        return Path(path).open("ab+")


def append_line(stream: IO[bytes], line: str) -> None:
    """Add a line to a file opened with "ab+", in one write; a torn line that a killed process left is ended first."""
    stream.seek(max(stream.seek(0, 2) - 1, 0))
    torn = b"" if stream.read(1) in (b"", b"\n") else b"\n"
    stream.write(torn + line.encode("utf-8") + b"\n")
    stream.flush()


def _replaced(target: Path, data: bytes, mode: int | None) -> bool:
    """Whether the file was written; not where another process took our temporary file for one that was left."""
    with contextlib.suppress(OSError):  # such as a folder that may not be listed
        for left in filter(TEMPORARY.fullmatch, os.listdir(target.parent)):
            with contextlib.suppress(OSError), (target.parent / left).open("rb") as stream:
                if _hold(stream.fileno()):
                    os.unlink(target.parent / left)
    # Not tempfile: its files are private (0600), and a new file should have the permissions that the umask grants. The
    # name does not grow with the target's, which may be as long as a name can be.
    temporary = target.with_name(f".moescale-{secrets.token_hex(8)}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else 0o600)
        try:
            _hold(descriptor)
            if not temporary.exists():
                return False
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            os.fsync(descriptor)
            temporary.replace(target)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(target.parent)
    return True


def _hold(descriptor: int) -> bool:
    """Whether this process now holds an open file, until it is closed; false where there are no locks."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # which Windows has not

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def sync_folder(folder: Path) -> None:
    """See that a folder's names are on the disk; where it cannot be synced, the system does it in its own time."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _mode_of_target(name: str) -> int | None:
    """The mode of what bears the name already, None where nothing does; refuses a folder and what may not be written."""
    mode = _mode(name)
    if mode is not None and stat.S_ISDIR(mode):
        raise UnwrittenError("is a folder, not a file", where=name, next_step="give the name of a file inside it")
    if mode is not None:
        _check_writable(name)
    return mode


def _mode(path: str) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_mode
    return None


def _check_writable(place: str) -> None:
    os.stat(place)  # an error of the system where it is not there
    if not os.access(place, os.W_OK):
        raise OSError(errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES, "")


def read_bytes(path: str | os.PathLike[str], *, limit_bytes: int = TEXT_LIMIT_BYTES) -> bytes:
    """The bytes of a file of at most `limit_bytes`; InputError for a larger one, and for one that cannot be read."""
    try:
        with explained(read_error, path) as name, Path(name).open("rb") as stream:
            # Not the limit at once: Python would ask the system for all of it.
            size = os.fstat(stream.fileno()).st_size
            data = stream.read(min(limit_bytes, size) + 1)
            if len(data) > size:  # a pipe or device states no size
                data += stream.read(limit_bytes + 1 - len(data))
    except (MemoryError, OverflowError) as error:
        raise InputError("does not fit in memory", where=os.fspath(path), next_step="give a smaller file") from error
    if len(data) > limit_bytes:
        advice = "check the path, or give a smaller file"
        raise InputError(f"is larger than {limit_bytes:,} bytes", where=name, next_step=advice)
    return data


def read_text(path: str | os.PathLike[str], *, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """The text of a UTF-8 file, less a byte-order mark; raises InputError as `read_bytes` and for other encodings."""
    return decode_utf8(read_bytes(path, limit_bytes=limit_bytes), where=os.fspath(path))


def decode_utf8(data: bytes, *, where: str) -> str:
    """`data` as text without a byte-order mark; raises InputError with the line and byte that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        guess = " (it looks like UTF-16)" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else ""
        what = f"is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}, line {line}{guess}"
        raise DamagedFileError(what, where=where, next_step="save it as UTF-8 (a spreadsheet: as CSV UTF-8)") from error


def as_text(name: str) -> str:
    """A file's name as text that can be written: its bytes that are not UTF-8 become `\\xNN`."""
    return NO_UTF8.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", name)


def nearest_file_names(path: str | os.PathLike[str]) -> str | None:
    """The names in the folder of `path` that are closest to its last part, or None."""
    try:
        return nearest_names(Path(path).name, os.listdir(Path(path).parent))
    except (OSError, ValueError):
        return None


_FREE = "free some space or choose another disk"
_WHY_UNWRITTEN = {  # reason and next step
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), ("it is a file, not a folder, or a part of its path is", "give another name")
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("permission denied", "choose a folder and file you may write to")),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), ("the disk is full or the quota is spent", _FREE)),
    errno.EROFS: ("its file system is read-only", "choose a folder on another"),
    errno.EFBIG: ("the file grew beyond what this system or its limits allow (ulimit -f)", _FREE),
}


@contextlib.contextmanager
def explained(
    explain: Callable[[str, OSError | ValueError], InputError], path: str | os.PathLike[str]
) -> Generator[str]:
    """A context with the path as text, in which errors of the system (for a NUL in a name Python's) become what `explain` says."""
    name = os.fspath(path)
    if not name:
        raise InputError("the file name is empty", next_step="give a path such as out.csv")
    try:
        yield name
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise explain(name, error) from error


def write_error(name: str, error: OSError | ValueError, before: str = "is unchanged") -> UnwrittenError:
    """What an error of the system in writing `name` means; `before` says how what was there before fared."""
    code = getattr(error, "errno", None)
    nearest, (reason, advice) = None, _WHY_UNWRITTEN.get(code or 0, (_reason(error), None))
    if code == errno.ENOENT and not (folder := Path(os.path.realpath(name)).parent).is_dir():
        reason, advice = f"the folder {str(folder)!r} does not exist", "create the folder first"
        nearest = nearest_file_names(folder)
    if advice == _FREE:
        reason += f"; what was there before {before}"
    return UnwrittenError(f"cannot be written: {reason}", where=name, nearest=nearest, next_step=advice)


def read_error(name: str, error: OSError | ValueError) -> InputError:
    """What an error of the system in reading `name` means."""
    if isinstance(error, FileNotFoundError):
        folder = Path(name).parent
        there = os.path.isdir(folder)  # unlike Path.is_dir, never an error
        what = "no such file" if there else f"no such file: the folder {str(folder)!r} does not exist"
        nearest = nearest_file_names(name if there else folder)
        return InputError(what, where=name, nearest=nearest, next_step="check the path")
    if isinstance(error, IsADirectoryError):
        return InputError("is a folder, not a file", where=name, next_step="give a file inside it")
    reason = "permission denied" if isinstance(error, PermissionError) else _reason(error)
    return InputError(f"cannot be read: {reason}", where=repr(name) if "\0" in name else name)


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)

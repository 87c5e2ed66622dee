"""Text and bytes on disk: bounded reading with clear errors, and writing that never leaves half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from pathlib import Path

from moescale.errors import InputError, nearest_names

TEXT_LIMIT_BYTES = 64 * 2**20
"""Configuration, laws and plans are kilobytes; more than this is a wrong path, not an input."""

UNPACKED_BASE_BYTES = 2**26
UNPACKED_RATIO = 50
"""What is packed may unpack to the base and this multiple of its size: text packs to a tenth, logs to a fiftieth; a few
kilobytes that claim gigabytes are a bomb."""


def unpacked_limit_bytes(packed_bytes: int) -> int:
    """The most bytes that a compressed file of this size may become in memory."""
    return UNPACKED_BASE_BYTES + UNPACKED_RATIO * packed_bytes


def write_atomically(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write `content` to `path` so that a reader sees the old file or the new one, never a part; returns the path.

    Text is encoded as UTF-8. The bytes go to a temporary file in the same folder, are flushed to the disk, and then
    take the place of `path`; the temporary file is removed whatever happens. A link is followed, an existing file keeps
    its permissions, and a device or pipe is written to directly. Raises InputError for a missing folder, a folder in
    place of a file, missing permission or a full disk.
    """
    name = os.fspath(path)
    try:
        data = content.encode("utf-8") if isinstance(content, str) else content
    except UnicodeEncodeError as error:
        raise InputError(f"character {error.start} cannot be written as UTF-8", where=name) from error
    if not name:
        raise InputError("the file name to write is empty", next_step="give a path such as out.csv")
    try:
        target = Path(os.path.realpath(name))
        mode = _mode(Path(name))
        if mode is not None and stat.S_ISDIR(mode):
            raise InputError("is a folder, not a file", where=name, next_step="give the name of a file inside it")
        if mode is not None and not stat.S_ISREG(mode):
            Path(name).write_bytes(data)  # a device or pipe cannot be replaced, only written to
            return Path(name)
        if mode is not None and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        _replace(target, data, stat.S_IMODE(mode) if mode is not None else None)
    except (OSError, ValueError) as error:
        raise write_error(name, error) from error
    return Path(name)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise the InputError that writing `path` would meet, before the work whose result it shall hold; writes nothing.

    What only shows in writing (a full disk) is left to `write_atomically`.
    """
    name = os.fspath(path)
    if not name:
        raise InputError("the file name to write is empty", next_step="give a path such as out.csv")
    try:
        mode = _mode(Path(name))
        if mode is not None and stat.S_ISDIR(mode):
            raise InputError("is a folder, not a file", where=name, next_step="give the name of a file inside it")
        target = Path(os.path.realpath(name))
        special = mode is not None and not stat.S_ISREG(mode)
        for place in [target] if special else [target.parent, *([target] if mode is not None else [])]:
            os.stat(place)
            if not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError) as error:
        raise write_error(name, error) from error


def read_bytes(path: str | os.PathLike[str], *, limit_bytes: int = TEXT_LIMIT_BYTES) -> bytes:
    """The bytes of a file of at most `limit_bytes`.

    Raises InputError for a missing file (with the nearest names in that folder), a folder, missing permission, or a
    larger file.
    """
    name = os.fspath(path)
    if not name:
        raise InputError("the file name to read is empty", next_step="give a path")
    try:
        with Path(name).open("rb") as stream:
            data = stream.read(limit_bytes + 1)
    except (OSError, ValueError) as error:
        raise _read_error(name, error) from error
    except (MemoryError, OverflowError) as error:
        raise InputError("does not fit in memory", where=name, next_step="give a smaller file") from error
    if len(data) > limit_bytes:
        raise InputError(
            f"is larger than {limit_bytes:,} bytes", where=name, next_step="check the path, or give a smaller file"
        )
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
        guess = "UTF-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else None
        raise InputError(
            f"is not UTF-8 text: byte 0x{data[error.start]:02x} at offset {error.start}, line {line}"
            + (f" (it looks like {guess})" if guess else ""),
            where=where,
            next_step="save it as UTF-8",
        ) from error


def nearest_file_names(path: str | os.PathLike[str]) -> str | None:
    """The names in the folder of `path` that are closest to its last part, or None."""
    wanted = Path(path)
    try:
        names = [entry.name for entry in os.scandir(wanted.parent)]
    except (OSError, ValueError):
        return None
    return nearest_names(wanted.name, names)


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(target: Path, data: bytes, permissions: int | None) -> None:
    # Not tempfile: its files are private (0600), and a new file should have the permissions that the umask grants.
    temporary = target.with_name(f".moescale-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        if permissions is not None:
            temporary.chmod(permissions)
        temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_error(name: str, error: OSError | ValueError) -> InputError:
    """What an error of the system in writing the file `name` means."""
    code = error.errno if isinstance(error, OSError) else None
    folder = Path(os.path.realpath(name)).parent if "\0" not in name else Path()
    if code == errno.ENOENT and not folder.is_dir():
        return InputError(
            f"cannot be written: the folder {str(folder)!r} does not exist",
            where=name,
            nearest=nearest_file_names(folder),
            next_step="create the folder first",
        )
    if code == errno.ENOTDIR:
        return InputError("cannot be written: a part of its path is a file, not a folder", where=name)
    if code in (errno.EACCES, errno.EPERM, errno.EROFS):
        return InputError(
            "cannot be written: permission denied", where=name, next_step="choose a folder and file you may write to"
        )
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return InputError(
            "cannot be written: the disk is full or the quota is spent; what was there before is unchanged",
            where=name,
            next_step="free some space or choose another disk",
        )
    return InputError(f"cannot be written: {_reason(error)}", where=repr(name))


def _read_error(name: str, error: OSError | ValueError) -> InputError:
    if isinstance(error, FileNotFoundError):
        folder = Path(name).parent
        if not os.path.isdir(folder):  # unlike Path.is_dir, never an error
            return InputError(
                f"no such file: the folder {str(folder)!r} does not exist",
                where=name,
                nearest=nearest_file_names(folder),
                next_step="check the path",
            )
        return InputError("no such file", where=name, nearest=nearest_file_names(name), next_step="check the path")
    if isinstance(error, IsADirectoryError) or os.path.isdir(name):
        return InputError("is a folder, not a file", where=name, next_step="give a file inside it")
    if isinstance(error, PermissionError):
        return InputError("cannot be read: permission denied", where=name)
    return InputError(f"cannot be read: {_reason(error)}", where=repr(name))


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)

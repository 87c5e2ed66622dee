"""Runs a command again and again, each time with a fault at another of its file operations, for tests/system/test_faults.py.

    python faulty_files.py CASE.json

CASE.json: {"arguments": [..] of the command line, or "call": "module:function" beside this file; "folder": what each run starts
from, copied; "work": where it runs; "mode": "killed" (the process ends at the operation; a write is torn) or "full" (nothing more can
be written from there on); "every": one operation in so many; "table": a file whose text is told}. A line out is the record of a run: code,
out, err, files left, "again" (the same of a run without faults in what it left), "operation" (null: the undisturbed run). Runs are forks.
With mode "refused" and "each": [[arguments, allowed], ..] the folder is read-only and each command is run once, as the user nobody
where this is the superuser, and before that, if allowed, where it may write; "load" names modules that are loaded before.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import io
import json
import os
import shutil
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

NOBODY = 65534
KILLED = 137  # as after SIGKILL
MOST = 10_000
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Faults:
    """Counts the operations that change files below `folder`; from the number `at` on they go wrong."""

    def __init__(self, folder: str, mode: str, at: int) -> None:
        self.folder, self.mode, self.at = folder + os.sep, mode, at
        self.count = 0
        self.operation = ""

    def install(self) -> None:
        write, fsync = os.write, os.fsync

        def torn_write(descriptor: int, data: Any) -> int:
            def half() -> None:
                write(descriptor, bytes(data)[: len(data) // 2])

            self.reach("write", path_of(descriptor), half)
            return write(descriptor, data)

        def checked_fsync(descriptor: int) -> None:
            self.reach("fsync", path_of(descriptor))
            fsync(descriptor)

        os.write, os.fsync = torn_write, checked_fsync
        sys.addaudithook(self.heard)

    def heard(self, event: str, values: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(values[0], str | bytes | os.PathLike):
            mode, flags = values[1], values[2]
            if (isinstance(mode, str) and set(mode) & set("wax+")) or (isinstance(flags, int) and flags & WRITING):
                self.reach("open", os.fsdecode(values[0]))
        elif event in ("os.rename", "os.mkdir") or (
            event in ("os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink", "shutil.rmtree")
            and (
                self.mode == "killed" and not isinstance(values[0], int)  # these need no space
            )
        ):
            self.reach(event, os.fsdecode(values[0]))

    def reach(self, what: str, path: str, first: Callable[[], None] | None = None) -> None:
        whole = os.path.join(os.getcwd(), path) + os.sep * (what == "fsync")  # of the folder itself, too
        if path.startswith("pipe:") or not whole.startswith(self.folder):
            return
        self.count += 1
        if self.count < self.at:
            return
        self.operation = self.operation or f"{what} {os.path.basename(path)}"
        if first is not None and self.count == self.at:
            first()
        if self.mode == "killed":
            report(self.operation)
            os._exit(KILLED)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def path_of(descriptor: int) -> str:
    return os.readlink(f"/proc/self/fd/{descriptor}")


def report(operation: str) -> None:
    os.write(REPORT[0], operation.encode())


REPORT: list[int] = []  # where a run says at which operation it failed


def call(case: dict[str, Any]) -> None:
    if "call" in case:
        module, _, function = case["call"].partition(":")
        getattr(importlib.import_module(module), function)()
        return
    from moescale.cli import main

    main(case["arguments"])


def run(case: dict[str, Any], at: int | None, loaded: Path | None = None) -> dict[str, Any]:
    """One run in a fork, and the record of it."""
    work = Path(case["work"])
    out, err = work.with_name(work.name + ".out"), work.with_name(work.name + ".err")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(work)
            for number, path in ((1, out), (2, err)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            REPORT[:] = [writer]
            if case.get("user") and os.geteuid() == 0:
                os.setgid(case["user"])
                os.setuid(case["user"])
            faults = Faults(str(work), case["mode"], at or MOST)
            if at is not None:
                faults.install()
            try:
                call(case)
                code = 0
            except SystemExit as stop:
                code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                faults.at = MOST
                report(faults.operation)
            if loaded is not None:
                loaded.write_text("\n".join(sys.modules))
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        operation = stream.read().decode()
    _, status = os.waitpid(pid, 0)
    return {"code": os.waitstatus_to_exitcode(status), "out": out.read_text(errors="replace"),
            "err": err.read_text(errors="replace"), "files": files(work), "operation": operation or None, "table": table(work, case)}  # fmt: skip


def table(work: Path, case: dict[str, Any]) -> str | None:
    file = work / case.get("table", "")
    return file.read_text(encoding="utf-8") if file.is_file() else None


def files(folder: Path) -> dict[str, str]:
    """The hash of each file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def fresh(case: dict[str, Any]) -> None:
    shutil.rmtree(case["work"], ignore_errors=True)
    shutil.copytree(case["folder"], case["work"])


def refused(case: dict[str, Any]) -> None:
    """Each command in a folder that it may not write to."""
    loaded = Path(case["work"] + ".loaded")
    for name in case["load"]:
        importlib.import_module(name)
    for arguments, allow in case["each"]:
        allowed = None
        if allow:  # first where it may: that shows that nothing else stands in its way
            fresh(case)
            allowed = run({**case, "arguments": arguments, "user": None}, None, loaded)
            load(loaded)
        fresh(case)
        for path in (Path(case["work"]), *Path(case["work"]).rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        say({**run({**case, "arguments": arguments, "user": NOBODY}, None), "allowed": allowed})
        for path in (Path(case["work"]), *Path(case["work"]).rglob("*")):
            path.chmod(0o755)


def load(loaded: Path) -> None:
    for name in loaded.read_text().split():
        with suppress(Exception):  # names of modules that are not to be imported by themselves
            importlib.import_module(name)


def main(case: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    if case["mode"] == "refused":
        refused(case)
        return
    loaded = Path(case["work"] + ".loaded")
    fresh(case)
    say(run(case, None, loaded))
    load(loaded)
    for number in range(1, MOST, case.get("every", 1)):
        fresh(case)
        record = run(case, number)
        if record["operation"] is None:
            return
        say({**record, "again": run(case, None)})


def say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    assert isinstance(sys.stdout, io.TextIOBase)
    main(json.loads(Path(sys.argv[1]).read_text()))

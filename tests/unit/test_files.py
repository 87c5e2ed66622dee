"""Atomic writing and bounded reading: what is on disk afterwards, and what the errors say."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moescale.errors import InputError
from moescale.io.files import read_bytes, read_text, write_atomically
from moescale.io.locks import lock_beside, locked


def test_text_and_bytes_round_trip_and_a_device_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.txt", "loss 2.5 – é\n")
    assert read_text(tmp_path / "a.txt") == "loss 2.5 – é\n"
    assert write_atomically(tmp_path / "a.txt", b"\x00\xff") == tmp_path / "a.txt"
    assert read_bytes(tmp_path / "a.txt") == b"\x00\xff"
    assert os.listdir(tmp_path) == ["a.txt"]
    write_atomically("/dev/null", "gone")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_new_files_follow_the_umask_and_old_ones_keep_their_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "new", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o600)
    write_atomically(tmp_path / "new", "y")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o600


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    left = tmp_path / f".moescale-{'0' * 16}.tmp"
    held, others = tmp_path / f".moescale-{'1' * 16}.tmp", (".moescale-0.tmp", "a.tmp")
    for path in (left, held, *(tmp_path / name for name in others)):
        path.write_text("half")
    with held.open() as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        write_atomically(tmp_path / "plan.json", "new")
        assert sorted(os.listdir(tmp_path)) == sorted([*others, held.name, "plan.json"])
    write_atomically(tmp_path / "plan.json", "new")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "plan.json"])


@pytest.mark.parametrize("step", ["fsync", "replace", "write"])
def test_an_interruption_leaves_the_old_file_and_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """As a full disk does: tests/system/test_faults.py."""
    (tmp_path / "plan.json").write_text("old")

    def fail(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.replace" if step == "replace" else f"os.{step}", fail)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "plan.json", "new")
    assert os.listdir(tmp_path) == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "old"


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "file").write_text("")
    for path, words in {
        tmp_path / "result" / "plan.json": ("does not exist", "nearest: results", "create the folder"),
        tmp_path / "results": ("is a folder",),
        tmp_path / "file" / "plan.json": ("is a file, not a folder",),
        "": ("empty",),
        "a\0b": ("cannot be written",),
        tmp_path / ("n" * 300): ("cannot be written",),
    }.items():
        with pytest.raises(InputError) as caught:
            write_atomically(path, "x")
        assert all(word in str(caught.value) for word in words), str(caught.value)
    with pytest.raises(InputError, match="character 1 cannot be written"):
        write_atomically(tmp_path / "a", "x\ud800")
    assert sorted(os.listdir(tmp_path)) == ["file", "results"]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("x" * 11)
    (tmp_path / "latin.txt").write_bytes("ok\ncafé".encode("latin-1"))
    (tmp_path / "wide.txt").write_bytes("runs".encode("utf-16"))
    for path, words in {
        tmp_path / "run.csv": ("no such file", "nearest: runs.csv"),
        tmp_path / "nowhere" / "run.csv": ("folder", "does not exist"),
        tmp_path: ("is a folder",),
        tmp_path / "runs.csv": ("larger than 10 bytes",),
        tmp_path / "latin.txt": ("not UTF-8", "line 2", "0xe9"),
        tmp_path / "wide.txt": ("UTF-16",),
        "": ("file name is empty",),
        "a\0b": ("cannot be read",),
        "x" * 5000: ("cannot be read: File name too long",),
    }.items():
        with pytest.raises(InputError) as caught:
            read_text(path, limit_bytes=10)
        assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_pipe_is_read_to_its_end_a_small_file_without_its_limits_memory_and_an_endless_one_refused(
    tmp_path: Path,
) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"x" * 5000)
    os.close(writer)
    try:
        assert read_bytes(f"/dev/fd/{reader}", limit_bytes=6000) == b"x" * 5000
    finally:
        os.close(reader)
    (tmp_path / "small").write_text("few bytes")
    assert read_bytes(tmp_path / "small", limit_bytes=2**60) == b"few bytes"
    with pytest.raises(InputError, match="larger than"):
        read_bytes("/dev/zero", limit_bytes=1000)


# Locks.

BUSY = InputError("is busy")


def is_free(lock: Path) -> bool:
    try:
        with locked(lock, busy=BUSY):
            return True
    except InputError:
        return False


def test_a_lock_is_held_by_one_and_released_after_whatever_happens(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, busy=BUSY):
        assert not is_free(lock)
    with pytest.raises(ZeroDivisionError), locked(lock):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
    assert is_free(lock)
    with pytest.raises(InputError, match="does not exist"), locked(tmp_path / "nowhere" / "lock"):
        pass


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = f"import pathlib, time; from moescale.io.locks import locked\nwith locked(pathlib.Path({str(lock)!r})): print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    process.stdout.readline()
    assert not is_free(lock)
    process.kill()
    process.communicate()
    assert lock.exists()
    assert is_free(lock)


def test_those_who_wait_come_one_at_a_time_though_each_removes_the_file(tmp_path: Path) -> None:
    lock, inside, most = tmp_path / "lock", [0], [0]

    def work() -> None:
        for _ in range(20):
            with locked(lock):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(1e-4)  # for another to come in, if it can
                inside[0] -= 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert (most, lock.exists()) == ([1], False)


def test_a_link_and_its_file_have_one_lock_and_a_lock_is_no_link(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "runs.csv")
    lock = lock_beside(tmp_path / "link.csv")
    assert lock == lock_beside(tmp_path / "runs.csv") == tmp_path / ".runs.csv.lock"
    (tmp_path / "precious").write_text("precious")
    lock.symlink_to("precious")
    with pytest.raises(InputError, match="is a link"), locked(lock, busy=BUSY):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
    lock.unlink()
    lock.write_text("notes on the runs\n")  # what holds anything is no lock of ours, and stays
    with locked(lock, busy=BUSY):
        pass
    assert lock.read_text() == "notes on the runs\n"

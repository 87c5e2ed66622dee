"""Locks: held by one process at a time, gone with their holder, and no file left behind."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moescale.errors import InputError
from moescale.io.locks import is_held, lock_beside, locked

BUSY = InputError("is busy")


def test_a_lock_is_held_by_one_and_removed_after(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, busy=BUSY):
        assert is_held(lock)
        with pytest.raises(InputError, match="is busy"), locked(lock, busy=BUSY):
            pass
    assert not is_held(lock)
    assert list(tmp_path.iterdir()) == []


def test_an_error_inside_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        _ = 1 / 0
    with locked(tmp_path / "lock", busy=BUSY):
        assert is_held(tmp_path / "lock")


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = f"import pathlib, time; from moescale.io.locks import locked\nwith locked(pathlib.Path({str(lock)!r})): print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    assert is_held(lock)
    process.kill()
    process.communicate()
    assert lock.exists()
    assert not is_held(lock)


def test_those_who_wait_come_one_at_a_time_though_each_removes_the_file(tmp_path: Path) -> None:
    lock, inside, most, said = tmp_path / "lock", [0], [0], list[str]()

    def work() -> None:
        for _ in range(20):
            with locked(lock, tell=said.append):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(1e-4)  # for another to come in, if it can
                inside[0] -= 1

    workers = [threading.Thread(target=work) for _ in range(4)]
    with locked(lock):
        for worker in workers:
            worker.start()
        while len(said) < len(workers):  # each says that it waits
            assert all(worker.is_alive() for worker in workers)
    for worker in workers:
        worker.join()
    assert most == [1]
    assert all("another process works on it; waiting" in line for line in said)
    assert not lock.exists()


def test_a_link_and_its_file_have_one_lock(tmp_path: Path) -> None:
    (tmp_path / "link.csv").symlink_to(tmp_path / "runs.csv")
    assert lock_beside(tmp_path / "link.csv") == lock_beside(tmp_path / "runs.csv") == tmp_path / ".runs.csv.lock"


def test_a_lock_file_that_holds_something_is_left_as_it_is(tmp_path: Path) -> None:
    lock = lock_beside(tmp_path / "t.csv")
    lock.write_text("notes on the runs\n")
    with locked(lock, busy=BUSY):
        assert is_held(lock)
    assert lock.read_text() == "notes on the runs\n"
    assert not is_held(lock)


@pytest.mark.parametrize("content", ["precious", "", None])
def test_a_link_in_place_of_a_lock_is_not_followed(content: str | None, tmp_path: Path) -> None:
    precious, lock = tmp_path / "precious", lock_beside(tmp_path / "t.csv")
    if content is not None:
        precious.write_text(content)
    lock.symlink_to(precious)
    with pytest.raises(InputError, match="is a link"), locked(lock, busy=BUSY):
        pass
    if content is not None:
        with pytest.raises(InputError, match="is a link"):
            is_held(lock)
    assert lock.is_symlink()
    assert (precious.read_text() if precious.exists() else None) == content


def test_a_file_that_took_the_place_of_a_held_lock_stays(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with locked(lock, busy=BUSY):
        lock.unlink()
        lock.write_text("precious")
    assert lock.read_text() == "precious"


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"), locked(tmp_path / "nowhere" / "lock"):
        pass

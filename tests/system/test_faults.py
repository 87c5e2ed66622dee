"""Every file operation of every command that writes goes wrong once, by a kill and by a full disk.

Nothing is lost or half-written, and there is one message. faulty_files.py makes the faults.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import failing_cases
from failing_starts import (
    FIT,
    PLAN,
    faulty,
    nothing,
    with_facts,
    with_grid,
    with_plan,
    with_runs,
    with_table,
    with_text,
    with_trainer,
)

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="signals, forks and /proc as Linux has them")]


@dataclass(frozen=True)
class Case:
    """A command whose every file operation goes wrong once."""

    name: str
    what: Sequence[str] | str  # arguments, or a function of failing_cases.py
    start: Callable[[Path], None]
    least: int  # so many operations it has at least; fewer would mean that they are no longer seen
    table: str = ""  # a table that grows row by row
    in_order: bool = True  # whether its rows are; those of a sweep stand as its runs end
    between: tuple[str, ...] = ()  # beginnings of names of files that have other contents on the way
    answers: bool = True  # whether the answer is printed all the same when the file cannot be written
    told: str = "\0"  # where the answer begins to speak of the files
    every: int = 1

    def faults(self, mode: str, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, str]]:
        """The undisturbed run, the disturbed ones, and the text of the files that they start from."""
        start = folder / "start"
        start.mkdir()
        self.start(start)
        asked = {"call": f"failing_cases:{self.what}"} if isinstance(self.what, str) else {"arguments": self.what}
        case = {**asked, "folder": str(start), "work": str(folder / "work"), "mode": mode, "table": self.table,
                "every": self.every}  # fmt: skip
        first, *records = faulty(case, folder)
        assert (first["code"], first["operation"]) == (0, None), first["err"]
        assert len(records) >= self.least // self.every
        import faulty_files

        return first, records, faulty_files.files(start)

    def settled(self, files: dict[str, str]) -> dict[str, str]:
        """Files but the table and those of which nothing is promised: locks, what a killed process was writing, logs."""
        return {
            name: content
            for name, content in files.items()
            if name != self.table
            and not name.startswith(self.between or ("\0",))
            and not any(part.startswith(".") for part in Path(name).parts)
        }

    def left(self, run: dict[str, Any]) -> tuple[Any, ...]:
        """What a run left, to be compared: contents, names but those of locks, rows of the table."""
        names = {name for name in run["files"] if not name.startswith(self.between or ("\0",)) and name[-5:] != ".lock"}
        rows = (run["table"] or "").splitlines(keepends=True)
        return self.settled(run["files"]), names, rows if self.in_order else sorted(rows)


QUICK = (
    Case("a law", (*FIT, "-o", "law.toml"), with_runs, 4),
    Case("a run table", "rows", with_table, 12, table="runs.csv", answers=False),
    Case("a corpus", "corpus", with_text, 28, answers=False),
    Case("a latency table", "profile", with_grid, 18, table="latency.csv", between=("log.txt",), answers=False),
)
SLOW = (
    Case("a law and its plot", (*FIT, "-o", "law.toml", "--plot", "fit.svg"), with_runs, 8),
    Case("imported runs", ("import", "trainer", "trainer", "-o", "runs.csv"), with_trainer, 4),
    Case("a report", ("report", "plan.json", "-o", "page.html"), with_plan, 4, answers=False),
    Case("a plan's files", (*PLAN, "--plot", "p.pdf", "--export", "hf", "-o", "x"), nothing, 16, told="Exported to"),
    Case("a sweep", "sweep", with_facts, 28, table="runs.csv", in_order=False, between=("sweep/",), answers=False),
    Case("a reproduction", "published", nothing, 24, answers=False, every=5),
)  # fmt: skip
# Some faults every day where a case has many, and all of them nightly.
DAILY = [case if case.least < 10 else replace(case, every=5 if case.table != "latency.csv" else 17) for case in QUICK]
LAW = pytest.param(QUICK[0], marks=pytest.mark.fuzz, id="a law")  # killed; on a full disk every day
NIGHTLY = [pytest.param(case, marks=pytest.mark.fuzz, id=f"{case.name}, every fault") for case in (*QUICK[1:], *SLOW)]


@pytest.mark.parametrize("case", [*DAILY[1:], LAW, *NIGHTLY], ids=lambda case: case.name)
def test_a_killed_process_leaves_old_or_new_and_the_next_run_ends_alike(case: Case, tmp_path: Path) -> None:
    first, records, before = case.faults("killed", tmp_path)
    after = case.settled(first["files"])
    for record in records:
        at = record["operation"]
        assert record["code"] == 137, at
        if case.table in record["files"]:  # whole, with some of the rows
            assert record["table"].endswith("\n"), at
            assert set(record["table"].splitlines()) <= set(first["table"].splitlines()), at
        for name, content in case.settled(record["files"]).items():
            assert content in (before.get(name), after.get(name)), f"{name} after {at}"
        assert set(before) <= set(record["files"]), at
        again = record["again"]
        assert again["code"] == 0, again["err"]
        assert case.left(again) == case.left(first), at


@pytest.mark.parametrize("case", [*DAILY, *NIGHTLY], ids=lambda case: case.name)
def test_a_full_disk_is_one_message_and_loses_nothing(case: Case, tmp_path: Path) -> None:
    first, records, before = case.faults("full", tmp_path)
    after = case.settled(first["files"])
    for record in records:
        at, err = record["operation"], record["err"]
        if record["code"] == 0:  # the new file was there already, and only its folder could not be synced
            assert at.startswith("fsync"), at
            assert case.left(record) == case.left(first), at
            continue
        assert record["code"] == 2, (at, err)
        assert "Traceback" not in err, at
        assert [line.startswith("moescale: ") for line in err.splitlines()].count(True) == 1, (at, err)
        assert "the disk is full or the quota is spent; what was there before is unchanged" in err, (at, err)
        if case.answers:
            asked, got = (untimed(each["out"]).partition(case.told)[0].rstrip() for each in (first, record))
            assert got == asked, at
        assert not [name for name in record["files"] if name.endswith(".tmp")], at
        for name, content in case.settled(record["files"]).items():
            assert content in (before.get(name), after.get(name)), f"{name} after {at}"
        assert record["again"]["code"] == 0, record["again"]["err"]
        assert case.left(record["again"]) == case.left(first), at


def with_older_export(folder: Path) -> None:
    with contextlib.chdir(folder):
        failing_cases.export("megatron", 1e11)
    (folder / "x").chmod(0o700)


def with_the_rest_of_a_killed_export(folder: Path) -> None:
    with_older_export(folder)
    (folder / "x").rename(folder / ".x.moescale-old")
    (folder / ".x.moescale-new").mkdir()
    (folder / ".x.moescale-new" / "config.json").write_text("{")


EXPORTS = (
    Case("a new export", "export", nothing, 24),
    Case("over an older export", "export", with_older_export, 24),
    Case("after a killed export", "export", with_the_rest_of_a_killed_export, 24),
)
DAILY_EXPORTS = [
    pytest.param(replace(EXPORTS[number], every=7), mode, id=f"{EXPORTS[number].name}, {mode}")
    for number, mode in ((0, "full"), (1, "killed"), (2, "killed"))
]
NIGHTLY_EXPORTS = [
    pytest.param(case, mode, marks=pytest.mark.fuzz, id=f"{case.name}, {mode}, every fault")
    for case in EXPORTS
    for mode in ("killed", "full")
]


def below(files: dict[str, str], folder: str) -> dict[str, str]:
    return {name.partition("/")[2]: content for name, content in files.items() if name.startswith(f"{folder}/")}


@pytest.mark.parametrize(("case", "mode"), [*DAILY_EXPORTS, *NIGHTLY_EXPORTS])
def test_an_export_is_old_or_new_and_never_mixed(case: Case, mode: str, tmp_path: Path) -> None:
    first, records, before = case.faults(mode, tmp_path)
    aside = ".x.moescale-old"
    old, new = below(before, "x") or below(before, aside), below(first["files"], "x")
    assert set(first["files"]) == {f"x/{name}" for name in new}  # nothing beside it is left
    assert len(new) == 4
    assert not old or {"config.json", "run.sh", "megatron.args"} < set(old)
    for record in records:
        at, err = record["operation"], record["err"]
        found, kept = (below(record["files"], name) for name in ("x", aside))
        assert found in (old, new, {}), at
        assert found or kept == old, at  # between the two renames, or not put back yet
        if mode == "full" and record["code"]:
            assert record["code"] == 2, at
            assert err.count("moescale: ") == 1, (at, err)
            assert "the disk is full or the quota is spent;" in err, (at, err)
            if f"{aside}', and the next write there puts it back" in err:
                assert (found, kept) == ({}, old), at
            else:
                assert "what was there before is unchanged" in err, (at, err)
                assert (found or kept) == old, at
            beside = set(record["files"]) - set(before)
            assert not [name for name in beside if name.endswith((".tmp", ".lock")) or "moescale-new" in name], at
        assert record["again"]["code"] == 0, (at, record["again"]["err"])
        assert record["again"]["files"] == first["files"], at  # and nothing of the killed process is left


def untimed(answer: str) -> str:
    return re.sub(r"[\d.]+ m?s\b", "", answer)

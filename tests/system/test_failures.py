"""What goes wrong around the program: a killed process, a full disk, a folder that is only read, two writers, signals.

Nothing is lost or half-written, and there is one message. faulty_files.py makes faults at every file operation of a command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import failing_cases
from command_line import ROOT, RUNS, answer_of, run
from moescale.errors import InputError, UnwrittenError
from moescale.experiments.run import add_rows
from moescale.io.files import append_line, check_folder, check_target, make_folder, opened_to_append, write_atomically
from moescale.io.locks import lock_beside, locked
from processes import children, environment, lives, until
from reference_data import TESTS

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="signals, forks and /proc as Linux has them")]

FAULTS = TESTS / "faulty_files.py"
FIT = ("fit", "runs.csv", "--law", "chinchilla", "--starts", "1", "--where", "n_experts == 1")
COST = ("cost", "--n-params", "1.5B", "--experts", "4", "--latency", "roofline")
PLAN = ("plan", "--budget", "5e21", "--experts", "1,4", "--shape", "mixtral", "--bootstrap", "0",
        "--latency", "roofline")  # fmt: skip
HEAD = "name,settings_sha256,tokens,loss\n"
ENVIRONMENT = environment(PYTHONDONTWRITEBYTECODE="1")  # which would be file operations, too


# What each case starts from.


def with_runs(folder: Path) -> None:
    shutil.copy(RUNS, folder / "runs.csv")
    (folder / "law.toml").write_text("old")


def with_trainer(folder: Path) -> None:
    shutil.copytree(ROOT / "examples" / "trainer", folder / "trainer")


def with_table(folder: Path) -> None:
    (folder / "runs.csv").write_text(HEAD + "a,1,1000,2.50\n")


def with_text(folder: Path) -> None:
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": f"word {n} " * 20}) + "\n" for n in range(60)))


def with_law(folder: Path) -> None:
    shutil.copy(ROOT / "src" / "moescale" / "catalogue" / "laws" / "besiroglu2024.toml", folder / "law.toml")
    (folder / "page.html").write_text("old")


def with_plan(folder: Path) -> None:
    (folder / "plan.json").write_text(json.dumps(answer_of(*PLAN)))
    (folder / "page.html").write_text("old")


def with_facts(folder: Path) -> None:
    from moescale.experiments.sweep_file import expand

    names = ("n_params_dense", "n_params_active", "n_params_total", "training_flops")
    found = {
        each.name: {"sha256": each.settings.sha256, **{name: getattr(each, name) for name in names}}
        for each in expand(failing_cases.SETTINGS).runs
    }
    (folder / "facts.json").write_text(json.dumps(found))


def with_grid(folder: Path) -> None:
    (folder / "profile.toml").write_text(failing_cases.PROFILE)


def nothing(_: Path) -> None:
    pass


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


def faulty(case: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    (folder / "case.json").write_text(json.dumps(case))
    done = subprocess.run(
        [sys.executable, str(FAULTS), str(folder / "case.json")], capture_output=True, text=True, check=False,
        env=ENVIRONMENT, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


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
DAILY = [case if case.least < 10 else replace(case, every=5 if case.table != "latency.csv" else 14) for case in QUICK]
NIGHTLY = [pytest.param(case, marks=pytest.mark.fuzz, id=f"{case.name}, every fault") for case in (*QUICK[1:], *SLOW)]


@pytest.mark.parametrize("case", [*DAILY, *NIGHTLY], ids=lambda case: case.name)
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
    for number, mode in ((0, "full"), (1, "killed"), (1, "full"), (2, "killed"))
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


# Limits of the system, for real.


def test_a_file_that_may_not_grow_is_one_message(tmp_path: Path) -> None:
    with_trainer(tmp_path)
    (tmp_path / "runs.csv").write_text("old")
    code = """
        import resource, sys
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        from moescale.cli import main
        main(["import", "trainer", "trainer", "-o", "runs.csv"])
    """
    done = process(["-c", textwrap.dedent(code)], tmp_path)
    assert done.returncode == 2
    assert done.stdout.splitlines()[0] == "runs.csv: 2 of 2 runs"
    assert "beyond what this system or its limits allow" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["runs.csv", "trainer"]
    assert (tmp_path / "runs.csv").read_text() == "old"


def test_a_pack_on_a_small_disk_goes_on_when_there_is_room(tmp_path: Path) -> None:
    with_text(tmp_path)
    (tmp_path / "disk").mkdir()
    mounted = "mount -t tmpfs -o size=20k tmpfs disk"
    if (
        os.geteuid()
        or subprocess.run(
            ["unshare", "-m", "sh", "-c", mounted], cwd=tmp_path, capture_output=True, check=False
        ).returncode
    ):
        pytest.skip("a file system can be mounted by the superuser only")
    pack = f"{sys.executable} -m moescale pack text.jsonl --tokenizer bytes --validation 0 -o disk/corpus"
    script = f"{mounted} && {pack}; echo $?; find disk -name '*.tmp'; mount -o remount,size=1m disk; {pack}"
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=ENVIRONMENT,
    )  # fmt: skip
    assert done.stdout.splitlines()[0] == "2"
    assert done.stdout.splitlines()[1].startswith("disk/corpus: ")
    assert done.stderr.count("moescale: ") == 1
    assert "the disk is full" in done.stderr


# Standard streams.


def process(arguments: Sequence[object], folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    given: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    command = [sys.executable, *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=folder, text=True, check=False, env=ENVIRONMENT, timeout=120, **given)


def test_what_is_written_does_not_depend_on_who_reads_the_answer(tmp_path: Path) -> None:
    with_runs(tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    with Path("/dev/full").open("wb") as full:
        for stdout, code, said in ((writer, 0, ""), (full, 2, "moescale: standard output cannot be written: No space")):
            (tmp_path / "law.toml").write_text("old")
            done = process(["-m", "moescale", *FIT, "-o", "law.toml"], tmp_path, stdout=stdout)
            assert (done.returncode, "Traceback" in done.stderr) == (code, False)
            assert said in done.stderr
            assert "[parameters]" in (tmp_path / "law.toml").read_text()
    os.close(writer)


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        (">&-", 2, "moescale: standard output cannot be written: Bad file descriptor\n"),
        (">&- 2>&-", 2, ""),
        ("2>&-", 0, ""),
        ("2>/dev/full", 0, ""),
        ("--nope 2>/dev/full", 2, ""),
        (">/dev/full 2>&1", 2, ""),
    ],
)
def test_streams_that_are_closed_or_full_are_no_traceback(
    redirection: str, code: int, said: str, tmp_path: Path
) -> None:
    script = f"{sys.executable} -m moescale predict --n-params 1B --tokens 1e11 {redirection}"
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (code, said)


# Folders that are only read.


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user can reach; those of pytest are its owner's alone."""
    folder = Path(tempfile.mkdtemp(prefix="moescale-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_that_is_only_read_is_found_out_before_the_work(public: Path) -> None:
    start = public / "start"
    start.mkdir()
    for make in (with_runs, with_trainer, with_text, with_facts):
        make(start)
    shared = '[data]\ncorpus = "c"\n[training]\nsequence_tokens = 64\nbatch_tokens = 1024\n'
    (start / "sweep.toml").write_text(f'{shared}[grid]\nshapes = [[64, 2]]\nexperts = [1]\ntokens = ["1M"]\n')
    (start / "run.toml").write_text(
        f'name = "x"\noutput = "run"\n{shared}tokens = "1M"\n[model]\nd_model = 64\nn_layers = 2\n'
    )
    (start / "profile.toml").write_text(failing_cases.PROFILE)
    each = [
        (*FIT, "-o", "law.toml"),
        (*FIT, "-o", "new.toml"),
        (*FIT, "--plot", "fit.svg"),
        (*PLAN, "--plot", "p.svg"),
        (*PLAN, "--export", "hf", "-o", "x"),
        ("import", "trainer", "trainer", "-o", "new.csv"),
        ("pack", "text.jsonl", "--tokenizer", "bytes", "--validation", "0", "-o", "corpus"),
    ]
    started = [
        ("reproduce", "--latency", "roofline", "-o", "x"),
        ("profile", "profile.toml", "-o", "t.csv"),
        ("train", "run.toml"),
        ("train", "run.toml", "-o", "rows.csv"),
        ("sweep", "sweep.toml"),
    ]
    loaded = (
        "moescale.reproduction.figures",
        "moescale.experiments.profile",
        "moescale.experiments.sweep",
        "moescale.latency.roofline",
    )
    case = {"folder": str(start), "work": str(public / "work"), "mode": "refused", "load": loaded,
            "each": [*((arguments, True) for arguments in each), *((arguments, False) for arguments in started)]}  # fmt: skip
    records = faulty(case, public)
    for arguments, record in zip([*each, *started], records, strict=True):
        if record["allowed"] is not None:
            assert record["allowed"]["code"] == 0, (arguments, record["allowed"]["err"])
        err = record["err"]
        assert (record["code"], record["out"]) == (2, ""), (
            arguments,
            err,
        )  # no answer: it was refused before there was one
        assert err.startswith("moescale: "), (arguments, err)
        assert "permission denied" in err, (arguments, err)
        assert "Traceback" not in err, (arguments, err)


# Names.


def test_names_of_every_kind_are_written_or_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    (tmp_path / "to-be-made").symlink_to("made")
    (tmp_path / "chain").symlink_to("to-be-made")
    (tmp_path / "nowhere").symlink_to("missing/made")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "to-folder").symlink_to("folder")
    longest = "n" * 251 + ".csv"
    for name in ("chain", longest, os.fsdecode(b"\xff.csv"), "two\nlines"):
        check_target(tmp_path / name)
        write_atomically(tmp_path / name, "whole")
        assert (tmp_path / name).read_text() == "whole"
    assert (tmp_path / "made").read_text() == "whole"
    assert (tmp_path / "chain").is_symlink()
    with locked(lock_beside(tmp_path / longest)):
        pass
    for name, words in {
        "nowhere": "does not exist",
        "loop": "symbolic link",
        "to-folder": "is a folder",
        "file/x": "is a file",
        "n" * 256: "File name too long",
        "/".join(["d" * 200] * 30): "File name too long",
    }.items():
        for refuse in (check_target, lambda path: write_atomically(path, "x")):
            with pytest.raises(UnwrittenError, match=words):
                refuse(tmp_path / name)
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_folders_are_checked_and_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "here").symlink_to(tmp_path)
    check_folder(tmp_path / "here" / "a" / "b")
    assert not (tmp_path / "a").exists()
    assert make_folder(tmp_path / "here" / "a" / "b").is_dir()
    for name, words in {"file": "is a file", "file/x": "is a file", "n" * 256: "too long", "a\0": "null"}.items():
        for refuse in (check_folder, make_folder):
            with pytest.raises(UnwrittenError, match=words):
                refuse(tmp_path / name)
    with pytest.raises(InputError, match="empty"):
        check_folder("")


def test_no_result_takes_the_place_of_what_it_is_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_runs(tmp_path)
    with_law(tmp_path)
    (tmp_path / "link.toml").symlink_to("runs.csv")
    shutil.copy(ROOT / "examples" / "latency.csv", "latency.csv")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for arguments in (
        (*FIT, "-o", "runs.csv"),
        (*FIT, "-o", "link.toml"),
        (*FIT[:2], "--prior", "law.toml", "-o", "law.toml"),
        ("report", "law.toml", "-o", "law.toml"),
    ):
        found = run(*arguments)
        assert (found.code, found.out) == (2, ""), arguments
        assert "would be replaced" in found.err, (arguments, found.err)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_names_that_are_not_utf8_go_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "trainer", "trainer")
    os.rename("trainer/dense", b"trainer/d\xff")
    table, law, page = (os.fsdecode(b"\xff." + end.encode()) for end in ("csv", "toml", "html"))
    assert run("import", "trainer", "trainer", "-o", table).code == 0
    assert "d\\xff" in Path(table).read_text()
    shutil.copy(RUNS, table)
    found = run("fit", table, *FIT[2:], "-o", law)
    assert found.code == 0, found.err
    assert "\\\\xff" in Path(law).read_text()
    plan = os.fsdecode(b"\xff.json")
    Path(plan).write_text(json.dumps(answer_of(*PLAN)))
    assert run("report", plan, "-o", page).code == 0


# Several at once.


def test_readers_see_one_whole_file_while_others_write(tmp_path: Path) -> None:
    target = tmp_path / "law.toml"
    write_atomically(target, "0" * 400_000)
    code = "import sys; from moescale.io.files import write_atomically\nfor _ in range(30): write_atomically(sys.argv[1], sys.argv[2] * 400_000)"
    writers = [subprocess.Popen([sys.executable, "-c", code, str(target), digit]) for digit in "123"]
    seen: set[str] = set()
    while any(writer.poll() is None for writer in writers):
        text = target.read_text()
        assert text == text[0] * 400_000
        seen.add(text[0])
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert seen - {"0"}
    assert os.listdir(tmp_path) == ["law.toml"]


def test_rows_of_killed_and_living_writers_come_once(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    code = (
        "import sys; from moescale.experiments.run import add_rows\n"
        "for n in range(int(sys.argv[2])):\n"
        " add_rows(sys.argv[1], [{'name': f'{sys.argv[3]}{n}', 'settings_sha256': 1, 'tokens': 1, 'loss': 2.5}])\n"
        " print(n, flush=True)\n"
    )

    def writer(count: int, name: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(table), str(count), name], stdout=subprocess.PIPE, text=True
        )

    mortal, living = writer(10_000, "m"), writer(60, "l")
    assert mortal.stdout is not None
    for _ in range(10):
        told = int(mortal.stdout.readline())
    mortal.kill()
    told = max([told, *(int(line) for line in mortal.communicate()[0].split())])
    assert living.communicate()[0].split()[-1] == "59"
    add_rows(table, [{"name": "last", "settings_sha256": 1, "tokens": 1, "loss": 2.5}])
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    assert len(names) == len(set(names))
    expected = {f"m{n}" for n in range(told + 1)} | {f"l{n}" for n in range(60)} | {"last"}
    assert expected <= set(names) <= expected | {f"m{told + 1}"}  # the last one may have been written and not told


def test_a_torn_last_line_is_ended_before_the_next(tmp_path: Path) -> None:
    log = tmp_path / "progress.jsonl"
    log.write_bytes(b'{"step": 1}\n{"st')
    with opened_to_append(log) as stream:
        append_line(stream, '{"step": 2}')
        append_line(stream, '{"step": 3}')
    assert log.read_text().splitlines() == ['{"step": 1}', '{"st', '{"step": 2}', '{"step": 3}']
    with pytest.raises(InputError, match="Is a directory"):
        opened_to_append(tmp_path)


# Signals.


def interrupted(
    arguments: Sequence[object],
    folder: Path,
    ready: Callable[[], bool],
    number: signal.Signals,
    least_children: int = 0,
) -> tuple[int, str, list[int]]:
    """The exit code and the last line of a command that gets a signal once it is at work, and what it had started."""
    command = [sys.executable, *(str(argument) for argument in arguments)]
    with (
        (folder / "err.txt").open("w") as err_file,
        subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=err_file) as started,
    ):
        try:
            until(lambda: started.poll() is not None or (ready() and len(children(started.pid)) >= least_children))
            assert started.poll() is None, (folder / "err.txt").read_text()
            below = children(started.pid)
            started.send_signal(number)
            started.wait(40)
        finally:
            started.kill()
    err = (folder / "err.txt").read_text()
    assert "Traceback" not in err, err
    return started.returncode, err.splitlines()[-1], below


ENDS = {
    signal.SIGINT: (130, "interrupted"),
    signal.SIGTERM: (143, "ended by SIGTERM"),
    signal.SIGHUP: (129, "ended by SIGHUP"),
}


OTHERS = [pytest.param(number, marks=pytest.mark.fuzz) for number in (signal.SIGTERM, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGHUP, *OTHERS])
def test_a_signal_ends_a_fit_in_one_line(number: signal.Signals, tmp_path: Path) -> None:
    with_runs(tmp_path)
    code = """
        import pathlib, sys, moescale.fitting.workflow
        from moescale.cli import main
        real = moescale.fitting.workflow.bootstrap
        def bootstrap(*given, **named):
            pathlib.Path("busy").touch()
            for _ in range(50):  # long enough for the signal to arrive
                found = real(*given, **named)
            return found
        moescale.fitting.workflow.bootstrap = bootstrap
        main(sys.argv[1:])
    """
    ended = interrupted(
        ["-c", textwrap.dedent(code), *FIT, "--bootstrap", "10000", "-o", "law.toml"], tmp_path,
        (tmp_path / "busy").exists, number,
    )  # fmt: skip
    assert ended == (ENDS[number][0], f"moescale: {ENDS[number][1]}", [])
    assert sorted(os.listdir(tmp_path)) == ["busy", "err.txt", "law.toml", "runs.csv"]
    assert (tmp_path / "law.toml").read_text() == "old"


@pytest.mark.parametrize(
    ("command", "number"),
    [
        ("profile", signal.SIGINT),
        ("sweep", signal.SIGTERM),
        ("pack", signal.SIGINT),
        *(
            pytest.param(*other, marks=pytest.mark.fuzz)
            for other in (("profile", signal.SIGTERM), ("sweep", signal.SIGINT), ("pack", signal.SIGTERM))
        ),
    ],
)
def test_a_signal_ends_what_a_command_started_and_the_command_goes_on(
    command: str, number: signal.Signals, tmp_path: Path
) -> None:
    with_text(tmp_path)
    with_facts(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r}); import failing_cases; failing_cases.slow_{command}()"
    ready = {
        "profile": (tmp_path / "slow").exists,
        "sweep": (tmp_path / "sweep" / "e1-64x2-1m" / "progress.jsonl").exists,
        "pack": (tmp_path / ".corpus.moescale-new" / "train.idx").exists,
    }[command]
    exit_code, line, below = interrupted(["-c", code], tmp_path, ready, number)
    goes_on = "" if command == "pack" else "; run the same command again to continue"
    assert (exit_code, line) == (ENDS[number][0], f"moescale: {ENDS[number][1]}{goes_on}")
    assert below or command == "pack"
    assert not any(lives(pid) for pid in below)
    assert not [path for path in tmp_path.rglob("*.tmp")]
    if command == "pack":  # nothing is left of it, and the next one makes all of it
        assert not list(tmp_path.glob("*corpus*"))
        assert process(["-c", code.replace("slow_pack", "corpus")], tmp_path).returncode == 0
    if command == "profile":
        assert len((tmp_path / "latency.csv").read_text().splitlines()) >= 2


# With torch.

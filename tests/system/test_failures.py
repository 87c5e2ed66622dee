"""What goes wrong around the program: a folder that is only read, closed streams, odd names, two writers, signals.

Nothing is lost or half-written, and there is one message.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import failing_cases
from command_line import ROOT, RUNS, answer_of, run
from failing_starts import ENVIRONMENT, FIT, PLAN, faulty, with_facts, with_law, with_runs, with_text, with_trainer
from moescale.errors import InputError, UnwrittenError
from moescale.experiments.run import add_rows
from moescale.io.files import append_line, check_folder, check_target, make_folder, opened_to_append, write_atomically
from moescale.io.locks import lock_beside, locked
from processes import children, lives, until
from reference_data import TESTS

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="signals, forks and /proc as Linux has them")]

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


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that another user can reach; those of pytest are its owner's alone."""
    folder = Path(tempfile.mkdtemp(prefix="moescale-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.fuzz
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
        ("reproduce", "--latency", "roofline", "-o", "x"), ("profile", "profile.toml", "-o", "t.csv"),
        ("train", "run.toml"), ("train", "run.toml", "-o", "rows.csv"), ("sweep", "sweep.toml"),
    ]  # fmt: skip
    loaded = (
        "moescale.reproduction.figures", "moescale.experiments.profile", "moescale.experiments.sweep",
        "moescale.latency.roofline",
    )  # fmt: skip
    case = {"folder": str(start), "work": str(public / "work"), "mode": "refused", "load": loaded,
            "each": [*((arguments, True) for arguments in each), *((arguments, False) for arguments in started)]}  # fmt: skip
    records = faulty(case, public)
    for arguments, record in zip([*each, *started], records, strict=True):
        if record["allowed"] is not None:
            assert record["allowed"]["code"] == 0, (arguments, record["allowed"]["err"])
        err = record["err"]
        assert (record["code"], record["out"]) == (2, ""), (arguments, err)  # refused before there was an answer
        assert err.startswith("moescale: "), (arguments, err)
        assert "permission denied" in err, (arguments, err)
        assert "Traceback" not in err, (arguments, err)


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


def interrupted(
    arguments: Sequence[object], folder: Path, ready: Callable[[], bool], number: signal.Signals
) -> tuple[int, str, list[int]]:
    """The exit code and the last line of a command that gets a signal once it is at work, and what it had started."""
    command = [sys.executable, *(str(argument) for argument in arguments)]
    with (
        (folder / "err.txt").open("w") as err_file,
        subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=err_file) as started,
    ):
        try:
            until(lambda: started.poll() is not None or ready())
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

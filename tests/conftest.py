"""Settings of all tests, and the files that several of them read."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy: as many processes as cores leave its threads none

import pytest
from hypothesis import settings

from command_line import LLAMA, RUNS, run
from examples import LONG, USUAL
from moescale.errors import InfeasibleError
from moescale.options.planned import PlanRequest
from moescale.planning.plan import Plan
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import Law, law_text
from reference_data import JOINT_MOE_RUNS, TESTS

FOLDERS = ("system", "engine", "fuzz")

# Examples share two cores with other processes; how long one takes is no property of the code.
settings.register_profile("explore", deadline=None, max_examples=USUAL)
settings.register_profile("long", deadline=None, max_examples=LONG)  # of `make test-fuzz`
# The same examples on every run: continuous integration judges the change, and exploring is left to `make test`.
settings.register_profile("same", deadline=None, max_examples=USUAL, derandomize=True, print_blob=True)
settings.load_profile("same" if os.environ.get("CI") else "explore")

# Signals that are ignored where the tests were started (`nohup`, a job in the background) would be by every command that a
# test sends one to; a handler of our own is not passed on.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test without a marker of its own has that of its folder: system, engine or fuzz."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in FOLDERS and not any(map(item.get_closest_marker, FOLDERS)):
            item.add_marker(folder)


@pytest.fixture(scope="session")
def saved_law(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A law file that `fit` wrote, with bootstrap draws."""
    path = tmp_path_factory.mktemp("law") / "mine.toml"
    found = run("fit", RUNS, "--law", "chinchilla", "--where", "n_experts == 1", "--bootstrap", 8, "-o", path)
    assert found.code == 0, found.err
    return path


_MADE: dict[tuple[str, ...], Plan | InfeasibleError] = {}


@pytest.fixture
def plans_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a question that was asked in this session the plan that was made then, for tests of what is said of plans.
    It is made with all tables, which change no first screen: `test_the_command_line_draws`."""
    make = PlanRequest.plan

    def made(asked: PlanRequest, law: Law, *_: Any) -> Plan:
        asked = replace(asked, explained=True)
        key = (law_text(law), repr(law.family), repr(asked))
        if key not in _MADE:
            try:
                _MADE[key] = make(asked, law)
            except InfeasibleError as error:
                _MADE[key] = error
        if isinstance(found := _MADE[key], InfeasibleError):
            raise found.with_traceback(None)
        return found

    monkeypatch.setattr(PlanRequest, "plan", made)


@pytest.fixture(scope="session")
def joint_runs() -> RunTable:
    """The public MoE runs of arXiv 2502.05172."""
    return read_runs(JOINT_MOE_RUNS, size_column="n_params_active")


@pytest.fixture(scope="session")
def bad_files(tmp_path_factory: pytest.TempPathFactory, saved_law: Path) -> Path:
    """A folder of tables, laws and configs, each with one defect; every test of a refusal runs in it."""
    folder = tmp_path_factory.mktemp("bad")
    head = "n_params_dense,n_experts,tokens,loss\n"
    law = saved_law.read_text(encoding="utf-8")
    deep = "[" * 100_000
    for name, content in {
        "EMPTY.csv": "",
        "HEAD.csv": head,
        "TEXT.csv": head + "1e9,1,abc,2.0\n",
        "NAN.csv": head + "1e9,1,nan,2.0\n",
        "NEGATIVE.csv": head + "1e9,1,1e9,-2.0\n",
        "TYPO.csv": head.replace("tokens", "token") + "1e9,1,1e9,2.0\n",
        "ONE.csv": head + "1e9,1,1e9,2.0\n",
        "EMPTY.toml": "",
        "CUT.toml": law[: law.index("[family]")],
        "NEWER.toml": law.replace("format = 1", "format = 99"),
        "FORM.toml": law.replace('law = "chinchilla"', 'law = "nope"'),
        "AMPLITUDE.toml": changed(law, "A", "-5.0"),
        "NAN.toml": changed(law, "A", "nan"),
        "STEEP.toml": changed(law, "alpha", "-1e3"),
        "FLAT.toml": changed(law, "alpha", "1e-300"),
        "MINE.toml": law,
        "EMPTY.json": "",
        "CUT.json": "{",
        "DEEP.json": deep,
        "LIST.json": "[1]",
        "GPT2.json": '{"model_type": "gpt2"}',
        "SHORT.json": '{"model_type": "llama"}',
        "LLAMA.json": json.dumps(LLAMA),
        "TEXT.json": json.dumps({**LLAMA, "hidden_size": "wide"}),
        "HUGE.json": json.dumps({**LLAMA, "num_hidden_layers": 10**400}),
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
    for suffix in ("csv", "parquet", "toml", "json"):
        (folder / f"BINARY.{suffix}").write_bytes(bytes([0xFF, 0xFE, 0x00, 0xB0, 0x0A]) * 400)
    for name in ("FOLDER", "FOLDER.toml"):
        (folder / name).mkdir()
    return folder


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A client of the page's server; the tests skip without the extras that it needs."""
    from web_client import serving

    with serving() as served:
        yield served


@pytest.fixture(scope="module")
def port(client: Any) -> int:
    return client.base_url.port or 0


def changed(law: str, name: str, value: str) -> str:
    """The text of a law file with another value of one parameter."""
    before, mark, after = law.partition(f"\n{name} = ")
    assert mark
    return f"{before}{mark}{value}\n{after.partition(chr(10))[2]}"

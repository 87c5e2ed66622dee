"""The answers to the questions of tests/data/snapshot_questions.toml are the stored ones; see scripts/snapshot.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from script_modules import load_script

snapshot = load_script("scripts/snapshot.py")
QUESTIONS = snapshot.read_questions()
STORED = snapshot.read_stored()
LONG = ("plan-own-moe-law-kernels",)  # ten seconds
SHOWN = 10  # differences of one question that a failure lists


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with snapshot.workplace(tmp_path_factory.mktemp("snapshot"), QUESTIONS):
        yield


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.fuzz if name in LONG else ()) for name in QUESTIONS.asked]
)
@pytest.mark.usefixtures("workplace")
def test_an_answer_is_the_stored_one(name: str) -> None:
    question = QUESTIONS.asked[name]
    installed = snapshot.kernels_version()
    if question.get("kernels") and installed != STORED["kernels"]:
        pytest.skip(f"{snapshot.KERNELS} is {installed or 'not installed'}; the answer is of {STORED['kernels']}")
    if "page" in question:
        pytest.importorskip("fastapi", reason="the extra web is not installed")
    assert name in STORED["answers"], f"`python scripts/snapshot.py --write {name}` stores its answer"
    found = list(snapshot.differences(STORED["answers"][name], snapshot.ask(question), snapshot.tolerance(question)))
    if found:
        shown = "\n".join(found[:SHOWN])
        meant = f"`python scripts/snapshot.py --write {name}` stores the new answer, if it is meant"
        pytest.fail(f"{name}: {len(found)} differences\n{shown}\n{meant}", pytrace=False)


def test_answers_are_stored_for_these_questions_alone() -> None:
    assert set(STORED["answers"]) == set(QUESTIONS.asked)
    assert snapshot.packed(STORED) == snapshot.STORED.read_bytes()


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ({"a": 1.0, "b": [2, "x"]}, {"a": 1.0 + 5e-8, "b": [2.0, "x"]}, []),
        ({"a": 1.0}, {"a": 1.0 + 2e-7}, ["a: 1.0 -> 1.0000002"]),
        ({"a": 1e-13}, {"a": -1e-14}, []),
        ({"a": 1e-7}, {"a": 1.001e-7}, ["a: 1e-07 -> 1.001e-07"]),
        ({"a": {"b": 1}}, {"a": {"c": 1}}, ["a.b: 1 -> absent", "a.c: absent -> 1"]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": 3}], ["[1].a: 2 -> 3"]),
        ([1, 2], [1], ["answer: [1, 2] -> [1]"]),
        ({"a": 1}, {"a": True}, ["a: 1 -> true"]),
        ({"a": 0}, {"a": None}, ["a: 0 -> null"]),
        ({"a": "1"}, {"a": 1}, ['a: "1" -> 1']),
    ],
)
def test_differences_are_named_by_their_path(old: Any, new: Any, said: list[str]) -> None:
    assert list(snapshot.differences(old, new)) == said


def test_what_is_stored_does_not_depend_on_when_or_with_what() -> None:
    answer = {
        "b": 1 / 3, "a": [1e30, 7, "x", None, True], "seconds": 1.5, "inner": {"date": "today", "made_with": "0.1"},
    }  # fmt: skip
    stable = snapshot.stable(answer)
    assert stable == {"a": [1e30, 7, "x", None, True], "b": 0.333333333, "inner": {}}
    assert snapshot.packed(stable) == snapshot.packed(dict(reversed(stable.items())))


def test_an_optimum_may_differ_as_much_as_between_processors() -> None:
    relative = snapshot.tolerance({"command": "fit runs.csv", "fit": True})
    assert list(snapshot.differences({"a": 1.0}, {"a": 1.00001}, relative)) == []
    assert list(snapshot.differences({"a": 1.0}, {"a": 1.00003}, relative)) == ["a: 1.0 -> 1.00003"]

"""The help of every command: it fits a screen, names every option, and its examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import ONE_LAW, ROOT, options_of, run, split
from moescale.cli import COMMANDS

pytestmark = pytest.mark.usefixtures("plans_made_once")


def test_no_arguments_print_the_help_which_begins_with_the_decision_and_groups_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = re.findall(r"^│ ([a-z][a-z-]*) ", run("--help").out, re.MULTILINE)
    assert words == list(COMMANDS)
    assert words[0] == "plan"
    for command in ("plan", "cost"):
        head, *panels = re.split(r"^╭─ ", run(command, "--help-all").out, flags=re.MULTILINE)[1:]
        assert len(re.findall(r"--[a-z]", head)) < 25, "what a first question needs stands alone at the top"
        assert {panel.split(" ─")[0] for panel in panels} >= {"Server", "Price"}
    found = run()
    assert (found.code, found.err) == (0, "")
    assert "Usage: moescale" in found.out
    assert all(command in found.out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_names_every_option(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = run(command, "--help"), run(command, "--help-all")
    assert (short.code, short.err) == (whole.code, whole.err) == (0, "")
    assert len(short.out.splitlines()) <= 46
    assert max(len(line) for text in (short, whole) for line in text.out.splitlines()) <= 80
    assert all(len(word) < 40 for word in whole.out.partition("Examples:")[2].split())

    def options(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("Example")[0]))

    everything = {name for name in options_of(command) if name.startswith("--")}
    assert everything <= options(whole.out)
    assert everything <= options(short.out)
    assert f"moescale {command} --" in short.out or len(whole.out.splitlines()) < 46


# In an example of the help: files and environments of the reader's own, or a tokenizer to be trained.
OF_THE_READER = (
    *("mixtral/", " runs.csv", " run.toml", " sweep.toml", " profile.toml", "envs/", "--show corpus"),
    *("--vocab-size", "plan.json:", "tokenizer.json", "web_text_document"),
)


# One law and the roofline in place of 400 draws and the measured kernels, one form in place of all.
QUICK = {
    "plan": ONE_LAW[3:], "fit": ("--law", "chinchilla"), "cost": ("--latency", "roofline"),
    "design": ("--law", "public-2026", "--latency", "roofline"),
}  # fmt: skip
LONG = ("plan", "cost")  # whose examples take half a minute


@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=pytest.mark.fuzz if name in LONG else ()) for name in COMMANDS]
)
def test_help_has_examples_that_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    examples = [line.strip() for line in run(command, "--help-all").out.partition("Examples:")[2].splitlines()]
    assert f"moescale {command}" in " ".join(examples)
    monkeypatch.chdir(ROOT)
    for example in filter(None, examples):
        if command == "report" or any(name in example for name in OF_THE_READER):
            continue
        if command in ("web", "reproduce"):  # test_page.py starts the one, test_snapshot.py asks the other
            continue
        arguments = [
            str(tmp_path / part) if part in ("law.toml", "corpus", "launch") else part for part in split(example)[1:]
        ]
        assert run(*arguments, *QUICK.get(command, ())).code == 0, example

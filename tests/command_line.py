"""The command line in this process, for the tests of several files."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from functools import cache
from typing import Any, NamedTuple

import typer

from moescale.cli import COMMANDS, app, load, main
from reference_data import ROOT

RUNS = str(ROOT / "examples" / "runs.csv")
BUDGET = ("plan", "--budget", "5.15e21")
# Cheaper questions, for tests of what does not depend on the numbers: of one law, beside which the usual one is asked too,
# and of the lowest loss, a fifth of the time.
ONE_LAW = (*BUDGET, "--law", "yun2024-recovered", "--latency", "roofline", "--bootstrap", "0")
LOWEST = (*BUDGET, "--shape", "mixtral", "--objective", "loss", "--latency", "roofline", "--bootstrap", "0")
FAST = ("--latency", "roofline")
MIXTRAL = ("plan", "--gpu", "h100-sxm", "--shape", "mixtral")
MODEL = ("cost", "--n-params", "1.5B", "--experts", "16")
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
}  # fmt: skip


COMMAND = re.compile(r"(?:(`|\$ ?)moescale|(`)|moescale) ?([a-z][a-z-]*)((?: [^`\n|]*)?)")
NO_INDEX = re.compile(r"(?:pip install|uvx|uv tool install|pipx \w+) ['\"]?moescale|moescale\[")
"""Commands that need the package's name on an index, where it is not."""


@cache
def options_of(command: str) -> frozenset[str]:
    """Every option of a command, as it is typed."""
    load(*COMMANDS)
    group: Any = typer.main.get_command(app)
    parameters = group.commands[command].params
    return frozenset({"--help", *(name for each in parameters for name in (*each.opts, *each.secondary_opts))})


def commands_that_fail(text: str) -> list[str]:
    """The commands that a text tells to run and that cannot work as they stand: no such command or option, or no package."""
    found = [match[0] for match in NO_INDEX.finditer(text)]
    for match in COMMAND.finditer(text.replace("\\\n", " ")):
        told, short, verb, rest = match.groups()
        if verb in COMMANDS:
            named = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest.partition(" && ")[0])
            found += [match[0]] if set(named) - options_of(verb) else []
        elif told and not short:
            found.append(match[0])
    return found


def split(line: str) -> list[str]:
    """The arguments of a command line, in which RUNS stands for the example runs."""
    return [RUNS if part == "RUNS" else part for part in shlex.split(line)]


class Answer(NamedTuple):
    """What a command did: its exit code and what it wrote."""

    code: int
    out: str
    err: str


def run(*arguments: object) -> Answer:
    """The command line in this process; any exception but its own exit is a failure of the test."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code or 0
    return Answer(code, out.getvalue(), err.getvalue())


def answer_of(*arguments: object) -> Any:
    """The JSON answer; strict, with nothing beside it on standard output and no null where null is not listed."""
    found = run(*arguments, "--json")
    assert (found.code, [line for line in found.err.splitlines() if not line.startswith("warning: ")]) == (0, [])

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(found.out, parse_constant=refuse)

"""Every block of the README and the docs runs and prints what the page shows, or says why it does not run.

Commands of moescale and Python code run in this process, which takes less time; the README's first command, and commands that start
processes, go to a shell as they stand.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import command_line
import moescale
from moescale import catalogue, find_law
from moescale.cli import COMMANDS
from moescale.hardware.prices import owned_defaults
from moescale.models.family import n_active, n_total, training_flops
from moescale.scaling_laws import FORMS, catalogue_names
from moescale.serving.workload import REQUEST_S
from processes import environment
from reference_data import ROOT
from script_modules import load_script

pytestmark = pytest.mark.usefixtures("plans_made_once")
refresh = load_script("scripts/refresh_docs.py")
PAGES: list[Path] = refresh.pages()
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]
ENGINE_PAGES = [page for page in PAGES if any(b.engine for b in refresh.blocks(page.read_text(encoding="utf-8")))]
RUN = ("console", "sh", "python")
# `moescale` is the package beside these tests, also in an environment that has no such script.
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
SHELL = f'set -o pipefail; moescale() {{ "{sys.executable}" -m moescale "$@"; }}; '
HERE = {*COMMANDS} - {"profile", "train", "sweep", "web"}  # commands that start no process
BUILT = {"reference/cli.md", "reference/api.md", "reference/laws.md"}  # by scripts/site_hooks.py, from the code
LANGUAGES = (*RUN, "toml", "json", "math", "text", "")
# A plan of a life, in all shapes, within a TTFT or beside published models takes ten seconds to half a minute. The README is run whole.
SLOW = re.compile(
    r"--lifetime-tokens|--max-tokens (?!.*--export)|--shape all|--against|--max-ttft|--max-loss|--plan-budget 1e24"
)
# Pages of many plans and fits, which `make test-fuzz` runs.
LONG = {f"docs/{name}.md" for name in ("plan", "fit", "tutorial", "sweep", "launch", "evidence/decisions")}
# Each other page without its slow commands, and by `make test-fuzz` those that have some with them.
EVERY = [pytest.param(page, False, id=name) for page, name in zip(PAGES, NAMES, strict=True) if name not in LONG]
EVERY += [
    pytest.param(page, True, id=f"{name}, all of it", marks=pytest.mark.fuzz)
    for page, name in zip(PAGES, NAMES, strict=True)
    if name in LONG or SLOW.search(page.read_text(encoding="utf-8"))
]
assert set(NAMES) >= LONG


def top_level() -> set[str]:
    """What lies in the repository's root, caches apart."""
    return {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}


def words_of(command: str) -> list[str] | None:
    """The words of a command that a shell would do nothing to but split; None where it would do more."""
    text = command.replace("\\\n", " ")
    if re.search(r"[$`*?~\n]", text):
        return None
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        words = list(lexer)
    except ValueError:  # a quotation that does not end
        return None
    words = words[: words.index("#")] if "#" in words else words
    return None if any(set(word) <= set("();<>|&") for word in words) else words


def in_shell(command: str, given: str = "") -> tuple[int, str, str]:
    """The exit code of a command that a shell runs, and what it prints; `given` is its standard input."""
    done = subprocess.run(
        ["bash", "-c", f"{SHELL}{command}"],
        cwd=ROOT, env=environment(PATH=PATH), input=given, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


run_once = cache(command_line.run)
"""A command that writes and reads nothing of a page's own; several pages may show it."""


def run(command: str, folder: Path, *, shell: bool = False) -> tuple[int, str]:
    """The exit code of a command that writes to `folder` in place of /tmp, and what it prints on both streams.

    The shell runs what is not ours: the rest of a pipe, and everything where `shell` is set.
    """
    command = command.replace("/tmp/", f"{folder}/")
    ours, pipe, rest = command.partition(" | ")
    plain = ours.removesuffix(" 2>/dev/null")
    into = re.fullmatch(r"(.*) > ([^\s\"']+)", plain)
    words = None if shell else words_of(into[1] if into else plain)
    if words is not None and words[0] == "moescale" and words[1] in HERE:
        with contextlib.chdir(ROOT):
            code, out, err = (command_line.run if str(folder) in command else run_once)(*words[1:])
        err = err if plain == ours else ""
        if into and not code:
            Path(into[2]).write_text(out, encoding="utf-8")
            out = ""
        if pipe and not code:
            code, out, more = in_shell(rest, out)
            err += more
    else:
        code, out, err = in_shell(command)
    return code, (out + err).replace(f"{folder}/", "/tmp/")


def same(shown: str, real: str) -> bool:
    """Whether two outputs agree line by line; times are masked, and a shown line `...` stands for any lines.

    A number of three digits or more may differ by one in its last: other versions of NumPy and SciPy round otherwise.
    """
    expected, found = (text_lines(refresh.mask(text)) for text in (shown, real))
    pattern = "\n".join(r"(?:.*\n)*?.*" if line.strip() == "..." else re.escape(line) for line in expected)
    if re.fullmatch(pattern, "\n".join(found)) is not None:
        return True
    words = [[line.split() for line in lines] for lines in (expected, found)]
    if [len(line) for line in words[0]] != [len(line) for line in words[1]]:
        return False
    return all(alike(a, b) for line, other in zip(*words, strict=True) for a, b in zip(line, other, strict=True))


def alike(shown: str, real: str) -> bool:
    """Whether two words are the same, or numbers that differ by one in the last of three digits or more."""
    if shown == real:
        return True
    if NUMBER.sub("#", shown) != NUMBER.sub("#", real):
        return False
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(real), strict=True)
    return all(a == b or (len(a) == len(b) > 3 and abs(last_digits(a) - last_digits(b)) == 1) for a, b in pairs)


NUMBER = re.compile(r"\d[\d,]*\.\d+")  # whole numbers are counts, and exact


def last_digits(number: str) -> int:
    return int(number.replace(",", "").replace(".", ""))


def text_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


def commands_of(page: Path) -> list[str]:
    """The commands of a page's console and sh blocks, those with a reason not to run included."""
    found: list[str] = []
    for block in refresh.blocks(page.read_text(encoding="utf-8")):
        if block.language == "console":
            found += [command for command, _ in refresh.commands(block.text)]
        elif block.language == "sh":
            found += shell_lines(block.text)
    return found


# Of the README.
FIRST = "moescale plan --train-gpus 64 --days 10 --gpu h100-sxm --prompt 1155 --output 211 --max-tpot 30ms"


def shell_lines(text: str) -> list[str]:
    """The commands of an sh block: comments apart, a line each unless it ends with a backslash."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def fault(block: Any) -> str:
    """What is wrong with a block before it runs; an empty text where nothing is."""
    if block.kind not in ("", "not run", "engine"):
        return f"a comment '{block.kind}:' before it means nothing"
    if block.language not in LANGUAGES:
        return f"language {block.language!r} is none of {', '.join(LANGUAGES)}"
    if block.language in RUN:
        return ""
    if block.kind:
        return "text that does not run needs no reason"
    if re.search(r"^\$ |^moescale ", block.text, re.MULTILINE):
        return "commands in a block that does not run; make it console or sh"
    return ""


def check_command(command: str, shown: str | None, folder: Path, page: Path) -> None:
    """Run a command; it must succeed, and print what the page shows where it shows anything."""
    code, real = run(command, folder, shell=command == FIRST)
    # A page may show a question that has no answer (exit code 1), with its message. A pipe that `head` closes early
    # is no failure either: the program ends quietly then.
    answerless = code == 1 and "moescale: " in (shown or "")
    assert code == 0 or answerless, f"`{command}` exits with {code}: {real}"
    if shown is not None:
        assert same(shown, real), (
            f"`{command}` prints:\n{real}\n`python scripts/refresh_docs.py {page.relative_to(ROOT)}` brings it up to date"
        )


def check_python(text: str, folder: Path) -> None:
    """Run Python code as a program; warnings are errors."""
    code = compile(text.replace("/tmp/", f"{folder}/"), "<block>", "exec")
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(code, {"__name__": "__main__"})


def check_python_apart(text: str, folder: Path) -> None:
    """Run Python code in an interpreter of its own; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text.replace("/tmp/", f"{folder}/")],
        cwd=ROOT, env=environment(PATH=PATH), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, f"{text}\n{done.stderr}"


def check_block(block: Any, folder: Path, page: Path, *, slow: bool = True) -> None:
    """Run a block, with its slow commands or without, or read it where it is data."""
    match block.language:
        case "console":
            for command, shown in refresh.commands(block.text):
                if slow or not SLOW.search(command):
                    check_command(command, shown, folder, page)
        case "sh":
            for command in shell_lines(block.text):
                check_command(command, None, folder, page)
        case "python":
            # An engine changes the process that it starts in: threads, signals, the environment.
            (check_python_apart if block.engine else check_python)(block.text, folder)
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case _:
            pass


def test_outputs_are_compared_line_by_line() -> None:
    assert same("a 1\nb", "a 1  \nb\n")
    assert not same("a 1\nb", "a 2\nb")
    assert not same("a", "a\nb")
    assert same("a\n...\nd", "a\nb\nc\nd")
    assert not same("a\n...\nd", "a\nb\nc")
    assert same("E_max 16 to 64.65  x", "E_max 16 to 64.64 x")
    for other in ("16 to 64.63", "17 to 64.65", "16 to 6.465", "16 to 64.6", "16 to 64.65 x"):
        assert not same("16 to 64.65", other)
    assert same("fitted in 1.2 s", "fitted in 930 ms")
    assert not same("batch 1.2 s  x", "batch 1.3 s  x")


def test_the_readme_shows_commands() -> None:
    readme = ROOT / "README.md"
    if not readme.read_text(encoding="utf-8").strip():
        pytest.skip("the README is empty")
    ran = commands_of(readme)
    assert FIRST in ran
    for verb in ("plan", "fit", "predict", "cost"):
        assert any(command.startswith(f"moescale {verb}") for command in ran), verb


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_block_runs_or_says_why_not(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    blocks = refresh.blocks(text)
    faults = [f"{page.name}, line {block.line}: {wrong}" for block in blocks if (wrong := fault(block))]
    assert not faults
    fences = len(re.findall(r"^ *```", text, re.MULTILINE))
    assert fences == 2 * len(blocks), "a fence that does not close"
    unfenced = refresh.FENCE.sub("", text)
    assert not re.search(r"^ {4,}(\$|moescale|python|make|pip) ", unfenced, re.MULTILINE), "commands outside of a fence"


@pytest.mark.skipif(os.name == "nt", reason="the pages show a POSIX shell")
@pytest.mark.parametrize(("page", "slow"), EVERY)
def test_blocks_do_what_the_page_shows(page: Path, slow: bool, tmp_path: Path) -> None:
    before = top_level()
    for block in refresh.blocks(page.read_text(encoding="utf-8")):
        if not block.not_run and not block.engine:
            check_block(block, tmp_path, page, slow=slow)
    assert top_level() == before, "the page's commands write into the repository; let them write to /tmp/"


@pytest.mark.engine
@pytest.mark.skipif(os.name == "nt", reason="the pages show a POSIX shell")
@pytest.mark.parametrize("page", ENGINE_PAGES, ids=[name for name in NAMES if ROOT.joinpath(name) in ENGINE_PAGES])
def test_blocks_that_need_an_engine(page: Path, tmp_path: Path) -> None:
    for block in refresh.blocks(page.read_text(encoding="utf-8")):
        for library in block.engine:
            pytest.importorskip(library, reason=f"{page.name}, line {block.line} needs {library}")
        if not block.not_run:
            check_block(block, tmp_path, page)


TOLD = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "benchmarks/gpu/README.md", "examples/study.sh"))]


@pytest.mark.parametrize("page", TOLD, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_command_of_a_page_fails_as_it_stands(page: Path) -> None:
    assert command_line.commands_that_fail(page.read_text(encoding="utf-8")) == []


def test_the_readme_begins_with_what_works_in_a_clone() -> None:
    first = refresh.blocks((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert [line.partition("#")[0].strip() for line in first.text.splitlines()] == [
        "make plan", "make test", "source .venv/bin/activate", "moescale reproduce",
    ]  # fmt: skip
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in ("plan", "test"))
    assert "VENV := .venv\n" in makefile


def test_every_command_is_shown_in_the_docs() -> None:
    shown = [command for page in PAGES for command in commands_of(page)]
    unshown = [name for name in COMMANDS if not any(re.search(rf"\bmoescale {name}\b", command) for command in shown)]
    assert unshown == [], "show it in a console or sh block"


def test_the_reference_has_every_command_and_every_public_name() -> None:
    pages = load_script("scripts/document_reference.py").pages()
    assert all(f"## {name}\n" in pages["cli.md"] for name in COMMANDS)
    assert all(f"### {name}\n" in pages["api.md"] for name in moescale.__all__ if name != "__version__")


def test_every_page_has_a_place_in_the_site() -> None:
    navigation = re.findall(r":\s+([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    there = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert there | BUILT == set(navigation)
    assert len(navigation) == len(set(navigation))


def flat(path: str) -> str:
    """A file of the repository as one line."""
    return " ".join((ROOT / path).read_text(encoding="utf-8").split())


def test_claims_are_counted_as_the_reproduction_counts_them() -> None:
    counts = re.search(
        r"Of (\d+) claims, (\d+) holds? and (\d+) fail; for (\d+) of those .*? (\d+) were used to fit .*? 1 states .*? (\d+) cannot",
        flat("docs/evidence/reproduction.md"),
    )
    assert counts is not None
    claims, hold, fail, in_size, inputs, unknown = counts.groups()
    rows = csv.DictReader((ROOT / "docs/evidence/reproduction-claims.csv").read_text(encoding="utf-8").splitlines())
    own = [row for row in rows if row["law"] == "yun2024-recovered"]
    held = [row["holds"] for row in own]
    judged_by_trend = [row for row in own if row["holds"] == "NO" and row["trend_holds"] == "yes"]
    assert [len(held), *map(held.count, ("yes", "NO", "input", "-", "same"))] == [
        *map(int, (claims, hold, fail, inputs, unknown)),
        1,
    ]
    assert len(judged_by_trend) == int(in_size)
    said = (
        rf"\b{claims}\b.*?\b{hold} hold\b.*?\b{fail} fail\b.*?\b{in_size} of them\b.*?\b{inputs}\b.*?\b{unknown} cannot"
    )
    assert re.search(said, flat("README.md"))
    assert re.search(said, flat("docs/evidence/index.md"))
    assert f"[{fail} of {claims}]" in flat("docs/reference/peers.md")


def test_every_figure_of_the_evidence_is_in_its_chapter() -> None:
    """The results of the index, number by number."""
    folder = ROOT / "docs" / "evidence"
    rows = re.findall(
        r"^\| .+? \| (.+?) \| \[.+?\]\(([\w.-]+)(?:#[\w-]+)?\) \|$", (folder / "index.md").read_text("utf-8"), re.M
    )
    assert len(rows) > 15
    for result, chapter in rows:
        text = re.sub(r"<!-- .*? -->", "", flat(f"docs/evidence/{chapter}"))
        for number in re.findall(r"(?<![\w.,-])\d+(?:[.,]\d+)*(?:e\d+)?%?(?![\w-])", result):
            assert re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d])", text), f"{chapter} has no {number}: {result}"


def test_the_serving_page_states_the_figures_of_the_catalogue() -> None:
    page = " ".join((ROOT / "docs" / "serving.md").read_text(encoding="utf-8").split())
    formats = catalogue.read("precisions.toml")["weights"]
    assert all(f"`{name}` ({8 * found['bytes']:.3g}" in page for name, found in formats.items())
    reserve = catalogue.read("reserve.toml")
    text_logs = [log for log in reserve["log"] if not log["vision"]]
    logs = sorted(log.get("both_gib") or log["non_torch_gib"] + log["activation_gib"] for log in text_logs)
    assert len(logs) == 8
    assert f"{reserve['default']['per_gpu_gib']:g} GiB: the median of eight" in page
    assert f"range from {logs[0]:.2f} to {logs[-1]:.2f} GiB" in page
    for name, value in owned_defaults().items():
        assert f"| `--{name.replace('_', '-')}` | {value:g} |" in page
    assert f"{REQUEST_S * 1e3:g} ms between client and scheduler" in page


def test_the_concepts_page_counts_parameters_as_laws_do() -> None:
    page = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| E = (\d+) \| ([\d /]+) N \| ([\d /]+) N \|$", page, re.MULTILINE)
    assert [int(row[0]) for row in rows] == [4, 32]
    family = find_law("public-2026").family
    for experts, *shown in rows:
        counted = [float(count(family, 1e9, float(experts))) / 1e9 for count in (n_active, n_total)]
        assert [float(sum(map(Fraction, text.split()))) for text in shown] == pytest.approx(counted, rel=1e-9)
    example = re.search(r"6 x 4/3 x (\d+)M x (\d+)B = ([\d.e]+) FLOPs", page)
    assert example is not None
    assert f"--n-params {example[1]}M --experts 32 --tokens {example[2]}B" in page
    flops = float(training_flops(family, float(example[1]) * 1e6, float(example[2]) * 1e9, 32.0))
    assert flops == pytest.approx(float(example[3]), rel=2e-3)


def test_the_readme_trusts_the_program_as_far_as_the_evidence_goes() -> None:
    readme, serving, decisions = (
        flat(name) for name in ("README.md", "docs/evidence/serving.md", "docs/evidence/decisions.md")
    )
    every = re.search(r"\| all \| \d+ \| (\d+) \| [\d.]+ \| (\d+%) \| [\d.]+ \| \d+% \| [\d.]+ \| (\d+%) \|", serving)
    moe_fp8 = re.search(r"\| MoE fp8 \| \d+ \| \d+ \| [*\d.]+ \| \**(\d+%)", serving)
    kept = re.search(r"\| pooled2026, 80% \| (\d+%) \|", decisions)
    assert every is not None
    assert moe_fp8 is not None
    assert kept is not None
    rows, throughput, ttft = every.groups()
    assert f"{throughput} of {int(rows):,} held-out throughputs are within 25%, of fp8 MoE {moe_fp8[1]}" in readme
    assert f"TTFT is within a factor of two for {ttft}" in readme
    assert f"in {kept[1]} of a" in readme


def test_the_tutorial_decides_by_its_own_answer() -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    at = re.search(r"^Train (\d+) experts: ([\d.]+[BM]) active of \S+ parameters, ([\d.]+T) tokens", page, re.MULTILINE)
    assert at is not None
    experts, active, tokens = at.groups()
    assert f"**The decision: {experts} experts, {active} active parameters, {tokens} tokens.**" in page
    worst = re.search(r"over the draws of pooled2026, (\d+)% in one draw of 20", " ".join(page.split()))
    assert worst is not None
    assert f"more than {worst[1]}% of that cost" in " ".join(page.split())


def test_coverage_in_prose_is_that_of_the_benchmark() -> None:
    with open(ROOT / "benchmarks/results/laws.csv", newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if not re.match("1/|public", row["held_out"])]

    def covered(law: str) -> float:
        shares: list[float] = []
        for source in sorted({row["source"] for row in rows}):
            mine = [row for row in rows if row["source"] == source and row["law"] == law]
            counts = [int(row["n_held_out"]) for row in mine]
            shares.append(float(np.average([float(row["coverage"]) for row in mine], weights=counts)))
        return 100.0 * float(np.mean(shares))

    assert len({row["source"] for row in rows}) == 7
    prose = " ".join((ROOT / "docs/fit.md").read_text(encoding="utf-8").replace("\n> ", " ").split())
    said = f"On seven public tables the nominal 90% intervals of `fit` held {covered('auto'):.0f}% of the held-out runs"
    single = f"those of a single form held {covered('chinchilla'):.0f}% to {covered('moescale2026'):.0f}%"
    assert f"{said}; {single}" in prose


def test_designed_sweeps_in_prose_are_those_of_the_benchmark() -> None:
    with open(ROOT / "benchmarks/results/designed_sweeps.csv", newline="", encoding="utf-8") as file:
        studies = list(csv.DictReader(file))

    def cells(sweep: str, planner: str) -> list[str]:
        mine = [row for row in studies if row["sweep"] == sweep and row["planner"] == planner]
        truths = sorted({row["truth"] for row in mine})
        regret = np.mean([np.mean([float(row["regret"]) for row in mine if row["truth"] == truth]) for truth in truths])
        assert len(truths) == 13
        return [f"{100.0 * regret:.0f}%", f"{100.0 * np.mean([float(row['kept']) for row in mine]):.0f}%"]

    page = (ROOT / "docs/sweep.md").read_text(encoding="utf-8")
    for label, sweep in {
        "designed, 60 runs | a third": "designed, a third of the FLOPs",
        "plain grid, 60 runs | all": "plain grid",
        "the paper's 100 runs | all": "the paper's 100 runs",
    }.items():
        shown = " | ".join(cells(sweep, "fit and plan") + cells(sweep, "ensemble and runs"))
        assert f"| {label} | {shown} |" in page
    alone = " | ".join(cells("no sweep: the ensemble's plan", "fit and plan"))  # planned without runs
    assert f"| no runs: the ensemble's plan | - | - | - | {alone} |" in page
    assert sum(s["sweep"] == "designed" and s["planner"] == "fit and plan" for s in studies) == 52


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = page.parent / target.partition("#")[0]
        built = {(ROOT / "docs" / name).resolve() for name in BUILT}
        if not re.match(r"https?:|mailto:|#", target) and path.resolve() not in built:
            assert path.exists(), target


# The catalogue of laws on the site, and what the evidence states of laws: what the code and the stored scores say.

EVIDENCE = ROOT / "docs" / "evidence"


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def test_the_page_of_laws_has_every_form_and_every_coefficient_set() -> None:
    page = load_script("scripts/document_laws.py").pages()["laws.md"]
    assert all(f"\n### {name}" in page for name in (*FORMS, *catalogue_names()))


def test_the_table_of_coefficients_is_current() -> None:
    script = load_script("scripts/document_laws.py")
    path = EVIDENCE / "own-law-coefficients.csv"
    assert script.csv_text(script.COEFFICIENTS, script.coefficients()) == path.read_text(encoding="utf-8")


@pytest.mark.fuzz  # ten seconds
def test_what_laws_say_of_many_experts_is_current() -> None:
    texts = load_script("scripts/document_laws.py").evidence()
    assert len(texts) == 4
    for path, text in texts.items():
        assert (ROOT / "docs" / path).read_text(encoding="utf-8") == text, "run `python scripts/document_laws.py`"


@pytest.fixture(scope="module")
def benchmark() -> Any:
    return load_script("benchmarks/laws.py")


@pytest.fixture(scope="module")
def scores() -> list[Any]:
    """The stored scores of every split, as far as tables of errors need them."""

    def score(law: str, rmsle: str, source: str, table: str, held_out: str, **_: str) -> Any:
        split = SimpleNamespace(source=source, table=table, name=held_out, reach=held_out.startswith("1/"))
        return SimpleNamespace(law=law, rmsle=float(rmsle), split=split)

    return [score(**row) for row in rows_of(ROOT / "benchmarks" / "results" / "laws.csv")]


def test_errors_on_public_tables_are_those_of_the_stored_scores(benchmark: Any, scores: list[Any]) -> None:
    stored = [list(row.values()) for row in rows_of(EVIDENCE / "own-law-errors.csv")]
    assert stored == benchmark.error_rows(scores)


def test_the_page_states_the_stored_errors_and_coverage(benchmark: Any, scores: list[Any]) -> None:
    coverage = [list(row.values()) for row in rows_of(EVIDENCE / "own-law-coverage.csv")]
    parts = benchmark.page_parts(scores, coverage)
    pages = load_script("scripts/pages.py")
    assert pages.filled("evidence/own-law.md", parts, "laws") == (EVIDENCE / "own-law.md").read_text(encoding="utf-8")

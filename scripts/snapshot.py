"""Ask every question of tests/data/snapshot_questions.toml and store the answers, or say where they differ from the stored.

    python scripts/snapshot.py --diff [NAME ..]     prints what has changed; exits 1 if anything has
    python scripts/snapshot.py --write [NAME ..]    stores the answers of all questions, or of these

A refactoring leaves every answer as it is; `tests/system/test_snapshot.py` holds it to that. The answers are one file,
tests/data/snapshot.json.xz, which holds the same bytes whenever it holds the same answers.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import lzma
import math
import os
import shlex
import shutil
import sys
import tempfile
import time
import tomllib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from moescale.cli import main as moescale
from moescale.io.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
QUESTIONS = ROOT / "tests" / "data" / "snapshot_questions.toml"
STORED = ROOT / "tests" / "data" / "snapshot.json.xz"
KERNELS = "aiconfigurator-core"  # the package of the kernel tables

# What says when, with what or how fast an answer was made, and not what it is.
VOLATILE = frozenset({"seconds", "made_with", "date", "moescale_version", "versions"})
DIGITS = 9  # significant digits that are stored
# Far above what sums differ by between processors and builds of NumPy's libraries, which differ in the order of their terms,
# and far below what any change of a formula or constant does.
RELATIVE = 1e-7
# Optima of fits lie in flat valleys: up to 4.5e-6 between five kinds of processor (OPENBLAS_CORETYPE), of figures that are partly
# rounded to six digits.
OF_FITS = 2e-5
NOTHING = 1e-12  # two numbers below it are the same: what is left where terms cancel is rounding


@dataclass(frozen=True)
class Questions:
    """The content of QUESTIONS."""

    prepare: list[str]  # commands that write the files which questions read
    files: dict[str, str]  # further files, by name
    asked: dict[str, dict[str, Any]]  # by name


def read_questions() -> Questions:
    """The questions, and what is there before they are asked."""
    content = tomllib.loads(QUESTIONS.read_text(encoding="utf-8"))
    return Questions(content.pop("prepare"), content.pop("files"), content)


def read_stored() -> dict[str, Any]:
    """The stored file: "kernels", the version of the kernel tables, and "answers" by name."""
    if not STORED.exists():
        return {"kernels": "", "answers": {}}
    return json.loads(lzma.decompress(STORED.read_bytes()))


def kernels_version() -> str:
    """The installed version of the kernel tables, or an empty text."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(KERNELS)
    return ""


@contextlib.contextmanager
def workplace(folder: Path, questions: Questions) -> Generator[None]:
    """Work in `folder` on a copy of examples/ and the files of the questions, so that no answer names a machine's paths."""
    shutil.copytree(ROOT / "examples", folder / "examples", dirs_exist_ok=True)
    for name, text in questions.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    with contextlib.chdir(folder):
        for command in questions.prepare:
            done = run(shlex.split(command))
            if done["code"]:
                raise SystemExit(f"`moescale {command}`: {done['messages']}")
        yield


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """The command line in this process: its exit code, its answer and what it said beside it."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            moescale(list(arguments))
        except SystemExit as stop:
            code = stop.code or 0
    said = out.getvalue()
    answer = json.loads(said) if "--json" in arguments and said else None
    return {"code": code, "answer": answer, "messages": err.getvalue().splitlines()}


def ask(question: Mapping[str, Any]) -> Any:
    """The answer to a question, as it is stored; run it within `workplace`."""
    if "page" in question:
        from moescale.web.api import answer as page_answer

        return stable(page_answer({"name": question["page"], "query": question["query"], "laws": []}))
    if "file" in question:
        return stable(tomllib.loads(Path(question["file"]).read_text(encoding="utf-8")))
    return stable(run([*shlex.split(question["command"]), "--json"]))


def stable(value: Any) -> Any:
    """A value without what is volatile, floats to DIGITS significant digits."""
    if isinstance(value, Mapping):
        items: Mapping[str, Any] = value
        return {key: stable(items[key]) for key in sorted(items) if key not in VOLATILE}
    if isinstance(value, list | tuple):
        return [stable(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return value if isinstance(value, str | int | None) else str(value)  # a date of TOML


def tolerance(question: Mapping[str, Any]) -> float:
    """The relative difference of numbers that says nothing about a question's answer: more where it holds a fit's optimum."""
    return OF_FITS if question.get("fit") else RELATIVE


def differences(old: Any, new: Any, relative: float = RELATIVE, path: str = "") -> Iterator[str]:
    """The paths at which two stable values differ by more than `relative`, each with the old and the new value."""
    if isinstance(old, dict) and isinstance(new, dict):
        a: dict[str, Any] = old
        b: dict[str, Any] = new
        for key in sorted((a.keys() | b.keys()) - VOLATILE):
            at = f"{path}.{key}" if path else key
            if key not in b:
                yield f"{at}: {brief(a[key])} -> absent"
            elif key not in a:
                yield f"{at}: absent -> {brief(b[key])}"
            else:
                yield from differences(a[key], b[key], relative, at)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):  # pyright: ignore[reportUnknownArgumentType]
        for index, (one, other) in enumerate(zip(old, new, strict=True)):  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
            yield from differences(one, other, relative, f"{path}[{index}]")
    elif not same(old, new, relative):
        yield f"{path or 'answer'}: {brief(old)} -> {brief(new)}"


def same(old: Any, new: Any, relative: float) -> bool:
    """Whether two values that hold no others are equal, numbers within `relative`; true is no number."""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (old, new)]
    if all(numbers):
        return math.isclose(old, new, rel_tol=relative, abs_tol=NOTHING)
    return type(old) is type(new) and old == new


def brief(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else f"{text[:150]} .. ({len(text)} characters)"


def packed(content: Mapping[str, Any]) -> bytes:
    """The stored file's bytes: the same for the same content, on any day."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return lzma.compress(text.encode(), preset=9)


def main() -> int:
    """Ask, compare, and store where that is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--write", action="store_true", help="store the answers")
    how.add_argument("--diff", action="store_true", help="print what differs from the stored answers")
    parser.add_argument("names", nargs="*", metavar="NAME", help="questions; default: all")
    options = parser.parse_args()
    content = read_questions()
    questions = content.asked
    if unknown := sorted(set(options.names) - set(questions)):
        parser.error(f"no question is called {', '.join(unknown)}; there are {', '.join(questions)}")
    stored, version = read_stored(), kernels_version()
    answers: dict[str, Any] = stored["answers"]
    changed = 0
    os.environ["COLUMNS"] = "100"
    with tempfile.TemporaryDirectory() as folder, workplace(Path(folder), content):
        for name in options.names or questions:
            if questions[name].get("kernels") and version != stored["kernels"] and not (options.write and version):
                print(f"{name}: not asked; {KERNELS} is {version or 'not installed'}, {stored['kernels']} is stored")
                continue
            begun = time.process_time()
            new = ask(questions[name])
            spent = time.process_time() - begun
            found = (
                [*differences(answers[name], new, tolerance(questions[name]))]
                if name in answers
                else ["no stored answer"]
            )
            changed += bool(found)
            print(f"{name}: {len(found)} differences, {spent:.2f} s", file=sys.stderr)
            for line in found:
                print(f"  {name}: {line}")
            answers[name] = new
    if options.write:
        kept = {name: answer for name, answer in answers.items() if name in questions}
        write_atomically(STORED, packed({"kernels": version, "answers": kept}))
    return 1 if options.diff and changed else 0


if __name__ == "__main__":
    sys.exit(main())

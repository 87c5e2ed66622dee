"""Run every ```console block of the README and the docs again and write its real output back.

    python scripts/refresh_docs.py [--check] [PAGE ..]    --check writes nothing and exits 1 if an output has changed

A block holds commands, each on a line that starts with "$ ", followed by what it prints. Commands run in the repository's
root through a shell. Timings differ between runs: `mask` hides them before outputs are compared. A comment on the line
before a block says what keeps it from running everywhere:

    <!-- engine: torch, transformers -->    only where these libraries are (`make test-engines`)
    <!-- not run: needs a GPU -->           nowhere, and why
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"^(?:<!-- (?P<kind>[a-z ]+): (?P<said>[^\n]+?) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TIMING = re.compile(r"(?<=fitted in )\d+(\.\d+)? (ms|s|min)$")  # latencies are predictions, the same in every run


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page: its language, its text, the line it starts on, and what keeps it from running."""

    language: str
    text: str
    line: int
    not_run: str = ""  # the reason
    engine: tuple[str, ...] = ()  # libraries that it needs
    kind: str = ""  # of the comment before it, as written


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    return [
        Block(
            language=found["language"].strip(),
            text=found["text"],
            line=page.count("\n", 0, found.start("text")),
            not_run=found["said"] if found["kind"] == "not run" else "",
            engine=tuple(re.split(r",\s*", found["said"])) if found["kind"] == "engine" else (),
            kind=found["kind"] or "",
        )
        for found in FENCE.finditer(page)
    ]


def commands(block: str) -> list[tuple[str, str]]:
    """The commands of a block with the output that it shows for each."""
    found: list[tuple[str, str]] = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command += "\n" + more
        found.append((command, shown))
    return found


def run(command: str) -> str:
    """What a command prints on both streams, without blanks at line ends."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "120",
    }
    done = subprocess.run(command, shell=True, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"`{command}` exits with {done.returncode}: {done.stderr}")
    lines = (done.stdout + done.stderr).splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def mask(text: str) -> str:
    """The text with timings hidden."""
    return "\n".join(TIMING.sub("<time>", line) for line in text.splitlines())


def refreshed(page: str) -> tuple[str, list[str]]:
    """The page with real outputs, and the commands whose output had changed."""
    changed: list[str] = []

    def replace(match: re.Match[str]) -> str:
        if match["language"] != "console" or match["kind"]:
            return match.group(0)
        parts: list[str] = []
        for command, shown in commands(match["text"]):
            real = run(command)
            if mask(real) != mask(shown):
                changed.append(command)
            else:
                real = shown
            parts.append(f"$ {command}\n{real}")
        return match.group(0).replace(match["text"], "".join(parts))

    return FENCE.sub(replace, page), changed


def main() -> int:
    """Refresh or check every page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("pages", nargs="*", type=Path)
    options = parser.parse_args()
    stale = 0
    for path in [page.resolve() for page in options.pages] or pages():
        text, changed = refreshed(path.read_text(encoding="utf-8"))
        for command in changed:
            print(f"{path.relative_to(ROOT)}: {command}")
        stale += len(changed)
        if changed and not options.check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

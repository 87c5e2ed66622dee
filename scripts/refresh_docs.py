"""Run every ```console block of the README and the docs again and write its real output back.

    python scripts/refresh_docs.py [--check]        --check writes nothing and exits 1 if an output has changed

A block holds commands, each on a line that starts with "$ ", followed by what it prints. Commands run in the repository's
root through a shell. Timings differ between runs: `mask` hides them before outputs are compared.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?<=^```console\n)(.*?)(?=^```$)", re.MULTILINE | re.DOTALL)
TIMING = re.compile(r"(?<=fitted in )\d+(\.\d+)? (ms|s|min)$")  # latencies are predictions, the same in every run


def pages() -> list[Path]:
    """The README and every page of the docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


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
        parts: list[str] = []
        for command, shown in commands(match.group(1)):
            real = run(command)
            if mask(real) != mask(shown):
                changed.append(command)
            else:
                real = shown
            parts.append(f"$ {command}\n{real}")
        return "".join(parts)

    return BLOCK.sub(replace, page), changed


def main() -> int:
    """Refresh or check every page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = 0
    for path in pages():
        text, changed = refreshed(path.read_text(encoding="utf-8"))
        for command in changed:
            print(f"{path.relative_to(ROOT)}: {command}")
        stale += len(changed)
        if changed and not options.check:
            path.write_text(text, encoding="utf-8")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())

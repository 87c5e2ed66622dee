"""Draw docs/figures/: a fit to examples/runs.csv and the default plan.

python scripts/draw_figures.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from moescale.cli import main as moescale

FIGURES = Path("docs/figures")


def main() -> None:
    """Draw the figures through the command line, so that what it says is what a reader can type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=FIGURES)
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in (
        ["fit", "examples/runs.csv", "--plot", str(folder / "fit.svg")],
        ["plan", "--budget", "5.15e21", "--plot", str(folder / "plan.svg")],
    ):
        moescale(arguments)


if __name__ == "__main__":
    main()

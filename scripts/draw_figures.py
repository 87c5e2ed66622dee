"""Draw the figures of the docs: fits to examples/*.csv, the default plan, a sweep of servers, the hindcasts.

`make docs` calls it; python scripts/draw_figures.py [-o FOLDER]. `--readme` draws the README's picture, which is tracked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import re
import tempfile
from pathlib import Path

from document_hindcasts import figure as hindcast_figure
from document_hindcasts import stored as hindcasts
from moescale.cli import main as moescale
from moescale.views.figures import save_figure

ROOT = Path(__file__).resolve().parents[1]
FIGURES = Path("build/figures")
# Where there is a command it draws the figure, so that it is what a reader can type.
COMMANDS = {
    "fit": "fit examples/runs.csv",
    "stdlib": "fit examples/stdlib-runs.csv",
    "plan": "plan --budget 5.15e21",
}
NAMES = (*COMMANDS, "hindcasts")


def draw_all(folder: Path) -> None:
    """Every figure of NAMES as SVG in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, command in COMMANDS.items():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            moescale([*command.split(), "--plot", str(folder / f"{name}.svg")])
    save_figure(hindcast_figure(hindcasts()), folder / "hindcasts.svg")


def draw_readme() -> None:
    """The plan of the README's first command as docs/assets/plan.webp: a site that shows the README draws nothing itself."""
    from PIL import Image

    found = re.search(r"^\$ moescale (plan .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        drawn = Path(folder) / "plan.png"
        moescale([*found[1].split(" | ")[0].split(), "--plot", str(drawn)])
        picture = Image.open(drawn).convert("RGB").quantize(64).convert("RGB")
    picture.save(ROOT / "docs" / "assets" / "plan.webp", lossless=True, quality=100, method=6)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=FIGURES)
    parser.add_argument("--readme", action="store_true")
    options = parser.parse_args()
    if options.readme:
        draw_readme()
    else:
        draw_all(options.output)

"""The application, and what its commands share: options, and checks of the files that they name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from moescale.cli.flat import typer_option
from moescale.options.fields import FilePath, at_option

TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling laws, serving cost, model choice.",
    epilog="First step: `moescale plan --budget 5.15e21`. Then: `moescale plan --help`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)

Json = Annotated[bool, Option("--json", help="Print one JSON value and nothing else.")]
Plot = Annotated[Path | None, typer_option(FilePath("Draw the answer to this SVG, PDF or PNG file."), "--plot")]


def examples(*commands: str) -> str:
    """The end of a command's help: an example a paragraph, as typer keeps no single line breaks."""
    return "\n\n".join(("Examples:", *(f"`{command}`" for command in commands)))


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.views.figures import check_plot

        with at_option("--plot"):
            check_plot(path)

"""The application, and what its commands share: options, and checks of the files that they name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from typer import Option

from moescale.cli.flat import ShortHelp, flat, typer_option
from moescale.options.fields import FilePath, at_option

T = TypeVar("T")
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


def command(
    *examples: str, name: str | None = None, top: str = "", then: str = ""
) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add a function to the application, with `examples` at the end of its help; `top` and `then` as in `flat`."""
    epilog = "\n\n".join(("Examples:", *(f"`{example}`" for example in examples)))  # typer keeps no single line breaks

    def add(function: Callable[..., T]) -> Callable[..., T]:
        return app.command(name, cls=ShortHelp, epilog=epilog)(flat(function, top, then))

    return add


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.views.figures import check_plot

        with at_option("--plot"):
            check_plot(path)

"""The application, and what its commands share: options, and checks of the files that they name."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from moescale.cli.flat import typer_option
from moescale.cli.output import HeldBack, made_with, print_json, show_progress, warn
from moescale.errors import InputError
from moescale.options.fields import (
    LEAST,
    MOST,
    MOST_PARAMETERS,
    MOST_REPLICATES,
    MOST_SECONDS,
    MOST_TOKENS,
    FilePath,
    Quantity,
    Seconds,
    Text,
    described,
    option_name,
)
from moescale.options.law import DEFAULT_LAW, LawOptions

if TYPE_CHECKING:
    from moescale.runs.table import RunTable
    from moescale.scaling_laws import Law, LawForm
    from moescale.typing import FloatArray

# Those that other commands import from here as well.
__all__ = [
    "DEFAULT_LAW", "LEAST", "MOST_PARAMETERS", "MOST_REPLICATES", "MOST_SECONDS", "MOST_SEED", "MOST_TOKENS", "Granularity",
    "HeldBack", "Json", "LawName", "Plot", "Sparsity", "UniqueTokens", "app", "at_option", "check_plot", "check_table",
    "checked_quantity", "examples", "file_option", "given_inputs", "made_with", "named_law", "number_option", "one_option",
    "print_json", "run_inputs", "seconds_option", "show_progress", "text_option", "warn",
]  # fmt: skip

MOST_SEED = 2**53 - 1  # beyond, a float skips whole numbers
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet")

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, the model to train.",
    epilog="First steps: `moescale plan --budget 5.15e21`, then `moescale plan --help`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def examples(*commands: str) -> str:
    """The end of a command's help: an example a paragraph, as typer keeps no single line breaks."""
    return "\n\n".join(("Examples:", *(f"`{command}`" for command in commands)))


def number_option(
    option: str, help: str, least: float = 1.0, most: float = MOST, *, whole: bool = False, unit: str = ""
) -> Any:
    """An option that takes a quantity within bounds; with `whole` it arrives as an int, with `unit` small ones are warned of."""
    return typer_option(Quantity(help, least, most, whole=whole, unit=unit), option)


def seconds_option(option: str, help: str, longest_s: float = MOST_SECONDS) -> Any:
    """An option that takes a time: 0.2, 0.2s, 200ms, 9m or 2h; `longest_s` without a unit or more is warned of."""
    return typer_option(Seconds(help, longest_s=longest_s), option)


def file_option(option: str, help: str) -> Any:
    """An option, or where it is in capitals an argument, that takes the path of a file."""
    return typer_option(FilePath(help), option)


def text_option(option: str, help: str, metavar: str = "NAME") -> Any:
    """An option that takes a text as it is."""
    return typer_option(Text(help, metavar=metavar), option)


def one_option(group: type, field: str) -> Any:
    """One of the options of a group, for a command of few options, without headings."""
    kind = replace(described(group)[field], panel="")
    return typer_option(kind, option_name(field, kind))


Json = Annotated[bool, Option("--json", help="Print one JSON value on standard output and nothing else.")]
Plot = Annotated[Path | None, file_option("--plot", "Draw the answer to this SVG, PDF or PNG file.")]
LawName = Annotated[str, one_option(LawOptions, "law")]
UniqueTokens = Annotated[float | None, one_option(LawOptions, "unique_tokens")]
Granularity = Annotated[float | None, one_option(LawOptions, "granularity")]
Sparsity = Annotated[float | None, one_option(LawOptions, "sparsity")]


def checked_quantity(
    option: str, text: str | float, least: float, most: float, *, whole: bool = False, unit: str = ""
) -> float:
    """The number that an option states, within its bounds; InputError that names the option otherwise."""
    return Quantity("", least, most, whole=whole, unit=unit).parse(text, option)


@contextmanager
def at_option(option: str) -> Generator[None]:
    """Names the option in bad input that names no place, or only a place within its text."""
    try:
        yield
    except InputError as error:
        within = (error.where or "").startswith("expression ")
        if error.where is not None and not within:
            raise
        where = f"{option}, {error.where}" if within else option
        raise type(error)(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def named_law(name: str) -> Law:
    """The law that --law names."""
    return LawOptions(law=name).find_law()


def given_inputs(**options: float | None) -> dict[str, float]:
    """The further inputs of a law that the command line names."""
    return {name: value for name, value in options.items() if value is not None}


def run_inputs(form: LawForm, table: RunTable, given: Mapping[str, float]) -> dict[str, FloatArray]:
    """The form's further inputs at each run: a column of the table, or else the option's value for all of them."""
    import numpy as np

    from moescale.scaling_laws.covariates import from_columns, option

    found = from_columns(form, table.columns, table.experts, source=table.source)
    for name, value in given.items():
        if name in table.columns:
            raise InputError(
                f"the table has a column {name!r} of its own", where=option(name), next_step="leave the option out"
            )
        found[name] = np.full(len(table), value)
    return found


def check_plot(path: Path | None) -> None:
    """Refuse a figure that could not be written before the work that it would show."""
    if path is not None:
        from moescale.views.figures import check_plot

        with at_option("--plot"):
            check_plot(path)


def check_table(path: Path | None, inputs: Sequence[str | Path | None]) -> None:
    """Refuse a table that could not be written before the work that it would hold."""
    if path is None:
        return
    from moescale.io.files import check_target

    with at_option("--output-table"):
        if path.suffix.lower() not in TABLE_SUFFIXES:
            raise InputError(
                f"{path.suffix!r} is not a kind of table" if path.suffix else "the table's name has no suffix",
                where=f"--output-table {path}",
                nearest=f"{path.stem}.csv",
                next_step=f"end the name in {', '.join(TABLE_SUFFIXES)}",
            )
        check_target(path, inputs)

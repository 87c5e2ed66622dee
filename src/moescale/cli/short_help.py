"""Help on one screen: the main options in a line each, of the others the names; --help-all describes all of them."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand

WIDEST = 100  # columns
GAP = 2  # columns between an option and its description
EXAMPLES = 2
FULL = f"{__name__}.full"


def show_all(context: typer.Context, wanted: bool) -> None:
    """The callback of --help-all."""
    if wanted:
        context.meta[FULL] = True
        print(context.get_help(), end="")
        raise typer.Exit


class Command(TyperCommand):
    """A command whose --help is short where some of its options stand under headings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the short help, or the whole one where that is asked for or there is no heading."""
        if ctx.meta.get(FULL) or not any(_heading(parameter) for parameter in self.params):
            super().format_help(ctx, formatter)
            return
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        print("\n".join(_lines(self, ctx, width)), end="")


def _lines(command: Command, context: Any, width: int) -> Iterator[str]:
    def wrapped(text: str, first: str = "", indent: int = 0) -> Iterator[str]:
        yield from textwrap.wrap(
            text,
            width - 1,
            initial_indent=first,
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )

    yield from wrapped(command.get_usage(context))
    yield ""
    yield from wrapped(command.help or "")
    yield ""
    groups: dict[str, list[Any]] = {}
    for parameter in command.get_params(context):
        groups.setdefault(_heading(parameter), []).append(parameter)
    main = [(_name(parameter), _summary(parameter)) for parameter in groups.pop("")]
    column = 2 + GAP + max(len(name) for name, _ in main)
    for name, summary in main:
        yield from wrapped(summary, first=f"  {name}".ljust(column), indent=column)
    yield ""
    for heading, parameters in groups.items():
        yield from wrapped(f"{heading}: {', '.join(parameter.opts[0] for parameter in parameters)}", indent=2)
    yield ""
    found = re.findall(r"^`(.+)`$", command.epilog or "", flags=re.MULTILINE)
    short = [example for example in found if len(example) < width - 10]
    for example in (short or found)[:EXAMPLES]:
        yield from wrapped(example, first="Example: ", indent=4)
    yield f"{context.command_path} --help-all describes every option, with all examples."
    yield ""


def _heading(parameter: Any) -> str:
    return getattr(parameter, "rich_help_panel", None) or ""


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.metavar)
    name = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        name += f"/{', '.join(parameter.secondary_opts)}"
    return name if parameter.is_flag or not parameter.metavar else f"{name} {parameter.metavar}"


def _summary(parameter: Any) -> str:
    first, *others = (parameter.help or "").rstrip(".").split("; ")
    stated = [part for part in others if part.startswith("default")]
    if not stated and isinstance(parameter.default, int | float | str) and not isinstance(parameter.default, bool):
        value = parameter.default
        stated = [f"default {value:g}" if isinstance(value, float) else f"default {value}"]
    return f"{first} ({stated[0].replace('default: ', 'default ')})" if stated else first

"""Option dataclasses in a command's signature as the options that typer knows, and their help.

`--help` fits one screen: the main options in a line each, of the others the names; `--help-all` describes all of them.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from moescale.cli.output import warn
from moescale.options.fields import Described, described, option_name

WIDEST = 100  # columns
GAP = 2  # columns between an option and its description
EXAMPLES = 2
FULL = f"{__name__}.full"
T = TypeVar("T")


def show_all(context: typer.Context, wanted: bool) -> None:
    """The callback of --help-all."""
    if wanted:
        context.meta[FULL] = True
        print(context.get_help(), end="")
        raise typer.Exit


HelpAll = Annotated[bool, Option("--help-all", is_eager=True, callback=show_all, help="Describe every option.")]


def flat(command: Callable[..., T], top: str = "", then: str = "") -> Callable[..., T]:
    """Make each field of a command's option dataclasses, and what is annotated as one, an option of the command.

    Those of `top`, names with spaces, stand above all headings of its help, and those of `then` before the others, which
    follow in the order of the signature and of the fields. The last option is --help-all.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: dict[str, Parameter] = {}
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters[name] = parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
            continue
        types = get_type_hints(groups[name])
        for field in fields(groups[name]):
            kind = described(groups[name])[field.name]
            if field.name in top.split():
                kind = replace(kind, panel="")
            hint = Annotated[types[field.name], typer_option(kind, option_name(field.name, kind))]
            default = Parameter.empty if field.default is MISSING else field.default
            parameters[field.name] = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
    ordered = [parameters[name] for name in dict.fromkeys([*top.split(), *then.split(), *parameters])]
    ordered.append(Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll))

    @wraps(command)
    def call(help_all: bool = False, **given: Any) -> T:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return command(**given)

    call.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return call


def typer_option(kind: Described, name: str) -> Any:
    """An option of the command line, or where `name` is in capitals an argument, that is described so."""

    def parse(text: Any) -> Any:
        return kind.parse(text, name, warn)

    how: dict[str, Any] = {"parser": None if type(kind) is Described else parse, "help": kind.help}
    if name.isupper():
        return Argument(metavar=name, **how)
    return Option(name, metavar=kind.metavar or None, rich_help_panel=kind.panel or None, **how)


class ShortHelp(TyperCommand):
    """A command whose --help is short where some of its options stand under headings."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the short help, or the whole one where that is asked for or there is no heading."""
        if ctx.meta.get(FULL) or not any(_heading(parameter) for parameter in self.params):
            super().format_help(ctx, formatter)
            return
        width = min(shutil.get_terminal_size((80, 24)).columns, WIDEST)
        print("\n".join(_lines(self, ctx, width)), end="")


def _lines(command: ShortHelp, context: Any, width: int) -> Iterator[str]:
    def wrapped(text: str, first: str = "", indent: int = 0) -> list[str]:
        how: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
        return textwrap.wrap(text, width - 1, initial_indent=first, subsequent_indent=" " * indent, **how)

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

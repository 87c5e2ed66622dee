"""The application and the options of its commands, with their help.

`--help` fits one screen: the main options in a line each, of the others the names; `--help-all` describes all of them.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from moescale.cli.output import warn
from moescale.options.fields import Described, described, flag, option_name, path

# The headings of `moescale --help`, and under each the module of its commands, in the order of the help.
PANELS = {
    "Decide": ("decide", ("plan", "compare-models", "cost", "models", "web", "report")),
    "Scaling laws": ("laws", ("fit", "compare", "isoflop", "predict", "laws")),
    "Runs and measurements": ("runs", ("design", "import", "pack", "train", "sweep", "profile")),
    "Check": ("laws", ("reproduce",)),
}
HOMES = {name: (panel, module) for panel, (module, names) in PANELS.items() for name in names}
COMMANDS = tuple(HOMES)
WIDEST = 100  # columns
GAP = 2  # columns between an option and its description
EXAMPLES = 2
FULL = f"{__name__}.full"
T = TypeVar("T")

app = typer.Typer(
    name="moescale",
    help="Plan the pre-training of Mixture-of-Experts language models: scaling laws, serving cost, model choice.",
    epilog="First step: `moescale plan --budget 5.15e21`. Then: `moescale plan --help`.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": WIDEST},
)

JSON = flag("Print one JSON value and nothing else.")
PLOT = path("Draw the answer to this SVG, PDF or PNG file.")


def command(*examples: str, top: str = "") -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Add a function to the application, with `examples` at the end of its help.

    Options are the fields of its parameters that are dataclasses, and the parameters whose defaults describe one, as fields do. Those
    of `top`, names with spaces, stand above all headings; the others follow as the signature and the fields have them.
    """
    epilog = "\n\n".join(("Examples:", *(f"`{example}`" for example in examples)))  # typer keeps no single line breaks

    def add(function: Callable[..., T]) -> Callable[..., T]:
        name = function.__name__.rstrip("_").replace("_", "-")
        panel = HOMES[name][0]
        return app.command(name, cls=ShortHelp, epilog=epilog, rich_help_panel=panel)(_flat(function, top))

    return add


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[FULL] = True
        print(context.get_help(), end="")
        raise typer.Exit


HelpAll = Annotated[bool, Option("--help-all", is_eager=True, callback=_show_all, help="Describe every option.")]


def _flat(function: Callable[..., T], top: str) -> Callable[..., T]:
    """The function of a command with a parameter for each of its options, as typer reads them; the last is --help-all."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: dict[str, Parameter] = {}

    def add(name: str, kind: Described, default: Any, hint: Any) -> None:
        kind = replace(kind, panel="") if name in top.split() else kind
        hint = Annotated[hint, _typer_option(kind, option_name(name, kind))]
        default = Parameter.empty if default is MISSING else default
        parameters[name] = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)

    for name, parameter in signature(function).parameters.items():
        if name in groups:
            types, kinds = get_type_hints(groups[name]), described(groups[name])
            for field in fields(groups[name]):
                add(field.name, kinds[field.name], field.default, types[field.name])
        elif isinstance(own := parameter.default, Field):
            add(name, own.metadata["option"], own.default, hints[name])
        else:  # typer's context
            parameters[name] = parameter.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)
    ordered = [parameters[name] for name in dict.fromkeys([*top.split(), *parameters])]
    ordered.append(Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll))

    @wraps(function)
    def call(help_all: bool = False, **given: Any) -> T:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        return function(**given)

    call.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return call


def _typer_option(kind: Described, name: str) -> Any:
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
        groups: dict[str, list[Any]] = {}
        for parameter in self.get_params(ctx):
            groups.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(parameter)
        main = [(_name(parameter), _summary(parameter)) for parameter in groups.pop("")]
        if ctx.meta.get(FULL) or not groups:
            super().format_help(ctx, formatter)
            return
        width, column = min(shutil.get_terminal_size((80, 24)).columns, WIDEST), 2 + GAP + max(len(n) for n, _ in main)

        def write(text: str, first: str = "", indent: int = 0) -> None:
            how: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}
            print(textwrap.fill(text, width - 1, initial_indent=first, subsequent_indent=" " * indent, **how))

        for text in (self.get_usage(ctx), self.help or ""):
            write(text)
            print()
        for name, summary in main:
            write(summary, f"  {name}".ljust(column), column)
        print()
        for heading, parameters in groups.items():
            write(f"{heading}: {', '.join(parameter.opts[0] for parameter in parameters)}", indent=2)
        print()
        found = re.findall(r"^`(.+)`$", self.epilog or "", flags=re.MULTILINE)
        short = [example for example in found if len(example) < width - 10]
        for example in (short or found)[:EXAMPLES]:
            write(example, "Example: ", 4)
        print(f"{ctx.command_path} --help-all describes every option, with all examples.")


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

"""Option dataclasses in a command's signature, as the options that typer knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Argument, Option

from moescale.cli.output import warn
from moescale.cli.short_help import show_all
from moescale.options.fields import Described, Flag, Text, described, option_name

T = TypeVar("T")
HelpAll = Annotated[bool, Option("--help-all", is_eager=True, callback=show_all, help="Describe every option.")]


def flat(*top: str, then: tuple[str, ...] = ()) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Make each field of a command's option dataclasses, and what is annotated as one, an option of the command.

    Those at the `top` of its help stand above all headings, and those of `then` before the others, which follow in the
    order of the signature and of the fields. The last option is --help-all.
    """

    def flatten(command: Callable[..., T]) -> Callable[..., T]:
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
                if field.name in top:
                    kind = replace(kind, panel="")
                hint = Annotated[types[field.name], typer_option(kind, option_name(field.name, kind))]
                default = Parameter.empty if field.default is MISSING else field.default
                parameters[field.name] = Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        ordered = [parameters[name] for name in dict.fromkeys([*top, *then, *parameters])]
        ordered.append(Parameter("help_all", Parameter.KEYWORD_ONLY, default=False, annotation=HelpAll))

        @wraps(command)
        def call(help_all: bool = False, **given: Any) -> T:
            built = {
                name: group(**{field.name: given.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            return command(**given, **built)

        call.__signature__ = Signature(ordered)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        return call

    return flatten


def typer_option(kind: Described, name: str) -> Any:
    """An option of the command line, or where `name` is in capitals an argument, that is described so."""
    if isinstance(kind, Flag):
        return Option(name, help=kind.help, rich_help_panel=kind.panel or None)

    def parse(text: Any) -> Any:
        return kind.parse(text, name, warn)

    parser = None if isinstance(kind, Text) else parse
    if name.isupper():
        return Argument(parser=parser, metavar=name, help=kind.help)
    return Option(name, parser=parser, metavar=kind.metavar, help=kind.help, rich_help_panel=kind.panel or None)

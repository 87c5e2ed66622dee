"""The pages reference/cli.md and reference/api.md of the site: every command and every public name, from the code.

scripts/site_hooks.py builds them into the site.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import typer

import moescale
from moescale.cli import COMMANDS, load
from moescale.cli.options import app

load(*COMMANDS)

DOCS = Path(__file__).resolve().parents[1] / "docs"
# A default that is no text of its own, such as <factory>, differs between versions of Python; a long one hides the rest.
LONGEST_DEFAULT = 60

PAGES_OF_COMMANDS = {
    "fit": "fit.md",
    "laws": "reference/laws.md",
    "predict": "fit.md",
    "compare": "fit.md",
    "isoflop": "fit.md",
    "cost": "serving.md",
    "models": "serving.md",
    "plan": "plan.md",
    "compare-models": "plan.md",
    "profile": "serving.md",
    "pack": "sweep.md",
    "import": "fit.md",
    "train": "sweep.md",
    "sweep": "sweep.md",
    "design": "sweep.md",
    "report": "plan.md",
    "reproduce": "evidence/reproduction.md",
    "web": "plan.md",
}


def cell(text: object) -> str:
    """Text as it may stand in a cell of a table."""
    return " ".join(str(text).replace("|", " or ").split())


def default_of(parameter: Any) -> str:
    """What an option is when it is left out, as its help says it."""
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or callable(value):
        return ""
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def option_row(parameter: Any) -> str:
    """A row of the table of a command's options and arguments."""
    name = parameter.metavar if parameter.param_type_name == "argument" else ", ".join(parameter.opts)
    flag = bool(getattr(parameter, "is_flag", False))
    if parameter.secondary_opts:
        name += f" / {', '.join(parameter.secondary_opts)}"
    takes = "" if flag or parameter.param_type_name == "argument" or not parameter.metavar else f" {parameter.metavar}"
    several = " (repeatable)" if getattr(parameter, "multiple", False) or getattr(parameter, "nargs", 1) == -1 else ""
    return f"| `{cell(name + takes)}` | {cell(parameter.help or '')}{several} | {cell(default_of(parameter))} |"


def command_section(name: str, command: Any) -> list[str]:
    """A command: what it does, examples, options."""
    examples = re.findall(r"^`(.+)`$", command.epilog or "", flags=re.MULTILINE)
    words = [p.metavar for p in command.params if p.param_type_name == "argument"]
    page = DOCS / PAGES_OF_COMMANDS.get(name, "")
    more = f" More: [{page.stem}](../{PAGES_OF_COMMANDS[name]})." if page.is_file() else ""
    panels: dict[str, list[str]] = {}  # headings of the help, in their order; options without one stand first
    for parameter in (each for each in command.params if each.name != "help_all"):
        panels.setdefault(getattr(parameter, "rich_help_panel", None) or "", []).append(option_row(parameter))
    rows = panels.pop("", [])
    for panel, options in panels.items():
        rows += [f"| **{cell(panel)}** | | |", *options]
    return [
        f"## {name}",
        "",
        f"`{' '.join(['moescale', name, *words])} [OPTIONS]`",
        "",
        f"{(command.help or '').strip()}{more}",
        "",
        *(f"- `{example}`" for example in examples),
        "",
        "| option | meaning | default |",
        "|---|---|---|",
        *rows,
        "",
    ]


def cli_page() -> str:
    """docs/reference/cli.md."""
    commands: Mapping[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - typer's group is untyped
    lines = [
        "# Command line",
        "",
        "`moescale` and `python -m moescale` are the same; `moescale COMMAND --help-all` prints this page's tables. Answers go to",
        "standard output, progress and warnings to standard error; with `--json` standard output is one JSON value.",
        "Quantities are written 5e21, 7B, 900M, 80GiB; times 200ms, 9m, 2h.",
        "",
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | no answer: an infeasible bound, no GPU count that holds the model, failed runs |",
        "| 2 | bad input: one message with the fault, its place, the nearest valid choice and the next step |",
        "| 130 | interrupted |",
        "",
    ]
    for name in COMMANDS:  # in the order of the help
        lines += command_section(name, commands[name])
    return "\n".join(lines).rstrip() + "\n"


def plain(annotation: object) -> str:
    """A type as the source spells it."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def parameter_text(parameter: inspect.Parameter) -> str:
    """A parameter with its type and its default, where that is short and always the same."""
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    text = stars + parameter.name
    if parameter.annotation is not inspect.Parameter.empty:
        text += f": {plain(parameter.annotation)}"
    if parameter.default is not inspect.Parameter.empty:
        value = repr(parameter.default)
        text += " = " + (value if not value.startswith("<") and len(value) <= LONGEST_DEFAULT else "..")
    return text


def signature(name: str, of: Callable[..., object]) -> list[str]:
    """A call as source code, a parameter a line where it does not fit on one."""
    try:
        found = inspect.signature(of)
    except ValueError:  # built in C
        return [f"{name}(..)"]
    parameters = [p for p in found.parameters.values() if p.name != "self"]
    written: list[str] = []
    for index, parameter in enumerate(parameters):
        before = parameters[index - 1] if index else None
        if parameter.kind is parameter.KEYWORD_ONLY and (before is None or before.kind is not before.KEYWORD_ONLY):
            written.append("*")
        written.append(parameter_text(parameter))
    returns = found.return_annotation
    after = "" if returns is inspect.Signature.empty or inspect.isclass(of) else f" -> {plain(returns)}"
    line = f"{name}({', '.join(written)}){after}"
    return [line] if len(line) <= 100 else [f"{name}(", *(f"    {text}," for text in written), f"){after}"]


def fields_of(name: str, of: Any) -> list[str]:
    """The fields of a dataclass as the sources of it and its bases have them, because the comments hold units and shapes."""
    shown: dict[str, list[str]] = {}
    bases: tuple[type, ...] = of.__mro__
    for part in (part for part in reversed(bases) if "__dataclass_fields__" in vars(part)):
        source = textwrap.dedent(inspect.getsource(part))
        lines = source.splitlines()
        body = next(node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
        for node in body:
            if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
                shown[ast.unparse(node.target)] = lines[node.lineno - 1 : node.end_lineno]
    return [f"class {name}:", *(line for lines in shown.values() for line in lines)]


def doc_of(thing: object) -> str:
    """A docstring of one's own: neither an inherited one nor the one that dataclass writes."""
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    return "" if inspect.isclass(thing) and text.startswith(f"{thing.__name__}(") else text


def members(of: type) -> list[tuple[str, str]]:
    """The public methods and properties that a class defines, each with the first sentence about it."""
    found: list[tuple[str, str]] = []
    parts = [part for part in reversed(of.__mro__) if part is of or dataclasses.is_dataclass(part)]
    for name, member in {name: member for part in parts for name, member in vars(part).items()}.items():
        inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(inner):
            continue
        call = f"{name}" if isinstance(member, property) else "".join(signature(name, inner)).replace("    ", " ")
        found.append((call, doc_of(inner).split("\n\n")[0]))
    return found


def name_section(name: str, home: str) -> list[str]:
    """A public name: where it lives, how it is called, what it says of itself."""
    thing = getattr(moescale, name)
    lines = [f"### {name}", "", f"`from moescale import {name}`; defined in `moescale.{home}`.", ""]
    shown = signature(name, thing)
    if dataclasses.is_dataclass(thing):
        shown = fields_of(name, thing)
    elif inspect.isclass(thing) and issubclass(thing, Exception):
        shown = [f"class {name}({thing.__base__.__name__ if thing.__base__ else 'object'})"]
    lines += ["```text", *shown, "```", "", doc_of(thing), ""]
    if inspect.isclass(thing):
        rows = members(thing)
        lines += [f"- `{cell(call)}`" + (f": {cell(said)}" if said else "") for call, said in rows]
        lines += [""] if rows else []
    return lines


def api_page() -> str:
    """docs/reference/api.md."""
    homes = {name: module.removeprefix("moescale.") for name, module in moescale._HOME.items()}
    lines = [
        "# Python",
        "",
        "The names that `import moescale` offers, by the module that defines them. All of them load on first use. Arguments of",
        "type `Real` are numbers or NumPy arrays, which broadcast; answers are frozen dataclasses with `to_dict()` where they",
        "have a JSON form. Bad input raises `InputError`, a question without an answer `InfeasibleError`; both are",
        "`MoescaleError`.",
        "",
    ]
    for module in sorted(set(homes.values())):
        about = inspect.cleandoc(importlib.import_module(f"moescale.{module}").__doc__ or "").split("\n\n")[0]
        lines += [f"## moescale.{module}", "", about, ""]
        for name in sorted(n for n, home in homes.items() if home == module):
            lines += name_section(name, module)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def pages() -> dict[str, str]:
    """The generated pages by file name."""
    return {"cli.md": cli_page(), "api.md": api_page()}

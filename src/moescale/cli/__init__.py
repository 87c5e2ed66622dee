"""The command line: each command calls one public function and prints its answer. Names are fixed; scripts use them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Annotated

import typer
from typer import Option

from moescale.cli.cost import cost
from moescale.cli.importing import import_
from moescale.cli.laws import compare, fit, laws, predict
from moescale.cli.options import INTERRUPTED, CommandLine, app, print_json
from moescale.cli.pack import pack
from moescale.cli.plan import plan
from moescale.cli.profile import profile
from moescale.cli.report import report
from moescale.cli.reproduce import reproduce
from moescale.cli.sweep import sweep
from moescale.cli.train import train
from moescale.cli.web import web
from moescale.errors import InfeasibleError, MoescaleError

# Every command, in the order and under the headings of `moescale --help`.
PANELS: dict[str, tuple[Callable[..., object], ...]] = {
    "Decide": (plan, cost, web, report),
    "Scaling laws": (fit, compare, predict, laws),
    "Runs and measurements": (import_, pack, train, sweep, profile),
    "Check": (reproduce,),
}
COMMANDS = tuple(command.__name__.rstrip("_") for commands in PANELS.values() for command in commands)  # of `import_`


def _arrange() -> None:
    """Put the commands into the order of `PANELS`, in place of that in which their modules happened to load."""
    registered = {command.callback: command for command in app.registered_commands}
    for panel, commands in PANELS.items():
        for command in commands:
            registered[command].rich_help_panel = panel
    app.registered_commands[:] = [registered[command] for commands in PANELS.values() for command in commands]


_arrange()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context, version: Annotated[bool, Option("--version", help="Print the version and stop.")] = False
) -> None:
    if version:
        from moescale import __version__

        print(__version__)
    elif context.invoked_subcommand is None:
        print(context.get_help(), end="")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; one message and an exit code for every error (0 done, 1 no answer, 2 bad input)."""
    asked = list(sys.argv[1:] if arguments is None else arguments)
    with suppress(AttributeError):  # a stream that someone has put in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a law's source may hold any letter
    try:
        code = app(args=asked, prog_name="moescale", standalone_mode=False, obj=CommandLine(tuple(asked)))
        sys.stdout.flush()
    except InfeasibleError as error:
        if "--json" in asked:
            print_json({"infeasible": str(error)})
        _fail(str(error), error.exit_code)
    except MoescaleError as error:
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # unknown commands and options, missing ones, too many arguments
        command = next((f" {name}" for name in asked[:1] if name in COMMANDS), "")
        _fail(f"{error.format_message().rstrip('.')}; `moescale{command} --help` lists what there is", 2)
    except SystemExit as stop:
        # The reader of our output has closed it (`| head`), which typer turns into an exit: nothing is wrong.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _drop_output()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:
        _drop_output()
        _fail(f"standard output cannot be written: {error.strerror or error}", 2)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    else:
        if code:
            sys.exit(code)


def _drop_output() -> None:
    """Send what is still to be written nowhere, so that the interpreter does not complain when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"moescale: {message}\n")
    sys.exit(code)

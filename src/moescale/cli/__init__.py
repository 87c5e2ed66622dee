"""The command line: each command calls one public function and prints its answer. Names are fixed; scripts use them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated, NoReturn

import typer
from typer import Option

from moescale.cli.options import COMMANDS, HOMES, app
from moescale.cli.output import print_json
from moescale.errors import InfeasibleError, MoescaleError
from moescale.io.signals import Terminated, sigterm_interrupts

INTERRUPTED = 130  # what shells report for Ctrl-C
RESUMABLE = ("profile", "train", "sweep")


def load(*commands: str) -> None:
    """Bring commands into the application, in the order of the help: each takes some milliseconds to load."""
    for command in commands:
        import_module(f"moescale.cli.{HOMES[command][1]}")
    app.registered_commands.sort(key=lambda registered: COMMANDS.index(registered.name or ""))


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
    """Run the command line; one message and an exit code for every error (0 done, 1 no answer, 2 bad input).

    Ctrl-C ends it with 130 and SIGTERM with 143, in one line; all that was complete stays, nothing half-written does.
    """
    asked = list(sys.argv[1:] if arguments is None else arguments)
    command = asked[0] if asked and asked[0] in COMMANDS else ""
    to_resume = "; run the same command again to continue" if command in RESUMABLE else ""
    _open_closed_streams()
    load(*([command] if command else COMMANDS))
    with suppress(AttributeError):  # a stream that someone has put in its place
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a law's source may hold any letter
    try:
        with sigterm_interrupts():
            code = app(args=asked, prog_name="moescale", standalone_mode=False, obj=asked)
            sys.stdout.flush()
        if code == INTERRUPTED:  # what typer makes of Ctrl-C
            raise KeyboardInterrupt
    except MoescaleError as error:
        if isinstance(error, InfeasibleError) and "--json" in asked:
            print_json({"infeasible": str(error)})
        _fail(str(error), error.exit_code)
    except typer.TyperException as error:  # unknown commands and options, missing ones, too many arguments
        if (own := _of_a_parser(error)) is not None:
            _fail(str(own), own.exit_code)
        _fail(f"{error.format_message().rstrip('.')}; see `{' '.join(filter(None, ('moescale', command)))} --help`", 2)
    except Terminated as stop:
        _fail(f"ended by {stop.name}{to_resume}", stop.code)
    except SystemExit as stop:
        # The reader of our output has closed it (`| head`), which typer turns into an exit: nothing is wrong.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        _drop_output()
    except BrokenPipeError:
        _drop_output()
    except OSError as error:  # that no function has explained: of a file that it names, or else of standard output
        place = "standard output" if error.filename is None else f"{os.fsdecode(error.filename)}:"
        what = "cannot be written" if error.filename is None else "cannot be used"
        _fail(f"{place} {what}: {error.strerror or error}", 2)
    except MemoryError as error:
        reason = f" ({error})" if str(error) else ""
        _fail(f"out of memory{reason}; reduce the request, or use a machine with more memory", 2)
    except KeyboardInterrupt:
        _fail(f"interrupted{to_resume}", INTERRUPTED)
    else:
        if code:
            sys.exit(code)


def _of_a_parser(error: typer.TyperException) -> MoescaleError | None:
    """Our error that the parser of an option raised: as a ValueError, typer lets pydantic word it anew."""
    from pydantic import ValidationError

    faults = error.__cause__.errors() if isinstance(error.__cause__, ValidationError) else []
    raised = (fault.get("ctx", {}).get("error") for fault in faults)
    return next((own for own in raised if isinstance(own, MoescaleError)), None)


def _open_closed_streams() -> None:
    """Stand-ins for standard streams that were closed (`>&-`): else a file that we open would take their place."""
    # Standard output is opened for reading: what is written fails, as to any closed stream.
    for name, access, mode in (("stdin", os.O_RDONLY, "r"), ("stdout", os.O_RDONLY, "w"), ("stderr", os.O_WRONLY, "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, access), mode, encoding="utf-8"))


def _drop_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fail(message: str, code: object) -> NoReturn:
    with suppress(OSError, ValueError):  # nobody can be told
        sys.stderr.write(f"moescale: {message}\n")
    _drop_output()
    sys.exit(code)  # pyright: ignore[reportArgumentType]

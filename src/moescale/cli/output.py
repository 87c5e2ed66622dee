"""How a command says something: its answer as JSON, warnings, progress, and files that could not be written."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from moescale.errors import InputError

if TYPE_CHECKING:
    import typer
    from rich.console import Console

    from moescale.typing import Progress

P = ParamSpec("P")
PRESENTED = {"--details": 0, "--plot": 1, "--export": 1, "-o": 1}  # options of how an answer is shown: their values


def print_json(value: object) -> None:
    """Print the one JSON value of `--json`."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def answer(
    json_: bool, record: object, show: Callable[Concatenate[Console, P], None], *of: P.args, **how: P.kwargs
) -> None:
    """Print an answer: its record under --json, else as `show` writes it to the terminal."""
    if json_:
        print_json(record)
        return
    from moescale.views.terminal.text import terminal

    show(terminal(), *of, **how)


def answer_in_lines(json_: bool, record: object, lines: Iterable[str]) -> None:
    """Print an answer of a few lines: its record under --json, else the lines."""
    if json_:
        print_json(record)
    else:
        print("\n".join(lines))


def warn(messages: str | Iterable[str]) -> None:
    """Print a warning, or several, on standard error."""
    for message in [messages] if isinstance(messages, str) else messages:
        sys.stderr.write(f"warning: {message}\n")


def say(line: str) -> None:
    """Print a line of progress on standard error, whole: other processes may write there, too."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def show_progress(enabled: bool) -> Generator[Progress]:
    """A callback that shows what is being done on standard error, where that is a terminal."""
    if not (enabled and sys.stderr.isatty()):
        yield lambda step, share: None
        return
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    from moescale.views.terminal.text import terminal

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=terminal(error=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda step, share: bar.update(task, description=step, completed=share)


@contextmanager
def held_back(errors: list[InputError], kind: type[InputError] = InputError) -> Generator[None]:
    """Holds back the error of a file that cannot be written, to `tell` it once the answer is printed.

    Files are written before, so that none is lost to a reader that closes our output early.
    """
    try:
        yield
    except kind as error:
        errors.append(error)


def tell(errors: Sequence[InputError]) -> None:
    """Raise the first of the errors that were held back, after a warning for each of the others."""
    if errors:
        sys.stdout.flush()
        warn(str(error) for error in errors[1:])
        raise errors[0]


def made_with(context: typer.Context, read: Sequence[str | Path | None] = ()) -> dict[str, object]:
    """How an answer came to be: version, command line, and the SHA-256 of what was read that is a file."""
    from hashlib import sha256

    from moescale import __version__
    from moescale.io.files import read_bytes

    # Typer's context holds the arguments as they were typed.
    record: dict[str, object] = {"moescale": __version__, "command": shlex.join(("moescale", *context.obj))}
    if files := [path for path in map(Path, filter(None, read)) if path.is_file()]:
        record["sha256"] = {path.name: sha256(read_bytes(path)).hexdigest() for path in files}
    return record


def typed(context: typer.Context) -> str:
    """The options of the command line as they were typed, but for those of PRESENTED."""
    kept: list[str] = []
    left = 0
    for argument in context.obj[1:]:
        if left:
            left -= 1
        elif argument.split("=")[0] in PRESENTED:
            left = 0 if "=" in argument else PRESENTED[argument]
        else:
            kept.append(argument)
    return shlex.join(kept)

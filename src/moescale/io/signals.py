"""Signals that ask a program to end, as exceptions: what is open is closed, and half-written files are removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

ENDING = ("SIGTERM", "SIGHUP")  # a scheduler's or a container's stop, and a terminal that is closed


class Terminated(SystemExit):
    """One of ENDING came; where nobody catches it the program ends quietly, with the exit code that shells report."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


def sigterm_interrupts() -> AbstractContextManager[None]:
    """SIGTERM and SIGHUP raise Terminated in this context, where this is the main thread and they are not ignored."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        raise Terminated(number)

    return _handled(ENDING, interrupt)


@contextmanager
def uninterrupted() -> Generator[None]:
    """Ctrl-C and ENDING wait until this context ends: what it starts is known to who must end it. For short steps only."""
    came: list[int] = []
    try:
        with _handled(("SIGINT", *ENDING), lambda number, _: came.append(number)):
            yield
    finally:
        for number in dict.fromkeys(came):
            signal.raise_signal(number)


@contextmanager
def _handled(names: tuple[str, ...], handler: Callable[[int, FrameType | None], Any]) -> Generator[None]:
    before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
    if threading.current_thread() is threading.main_thread():
        for name in names:
            number = getattr(signal, name, None)  # Windows has no SIGHUP
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            # None: a handler that was not set from Python, which cannot be put back.
            signal.signal(number, signal.SIG_DFL if old is None else old)

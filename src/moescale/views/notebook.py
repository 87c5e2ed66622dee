"""Answers in notebooks and in IPython: the text that the terminal shows of a plan, a fit, a law and a cost.

Formatters are registered by name, so that nothing is loaded before an answer is shown: by `import moescale` inside IPython,
and by `%load_ext moescale`.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def _plan(console: Console, plan: Any) -> None:
    from moescale.views.terminal.plan import show_plan

    show_plan(console, plan)


def _fit(console: Console, found: Any) -> None:
    from moescale.views.terminal.fits import show_fit

    show_fit(console, found, None)


def _law(console: Console, law: Any) -> None:
    from moescale.views.terminal.fits import show_laws

    show_laws(console, [law])


def _cost(console: Console, cost: Any) -> None:
    from moescale.views.terminal.serving import cost_table
    from moescale.views.terminal.text import write_table

    write_table(console, cost_table(cost))


SHOWN: dict[tuple[str, str], Callable[[Console, Any], None]] = {
    ("moescale.planning.plan", "Plan"): _plan,
    ("moescale.fitting.fit", "Fit"): _fit,
    ("moescale.scaling_laws.law", "Law"): _law,
    ("moescale.serving.gpu_counts", "Cost"): _cost,
}


def text_of(answer: Any) -> str:
    """An answer of one of the types of SHOWN as the terminal shows it."""
    from moescale.views.terminal.text import terminal

    stream = io.StringIO()
    SHOWN[type(answer).__module__, type(answer).__qualname__](terminal(file=stream), answer)
    return stream.getvalue().strip("\n")


def load_ipython_extension(ipython: Any) -> None:
    """Teach an IPython shell how to show the answers; what `%load_ext moescale` calls."""

    def write(answer: Any, printer: Any, _cycle: bool) -> None:
        printer.text(text_of(answer))

    for module, name in SHOWN:
        ipython.display_formatter.formatters["text/plain"].for_type_by_name(module, name, write)

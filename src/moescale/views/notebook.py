"""Answers in notebooks and in IPython: the text that the terminal shows of a plan, a fit, a law and a cost.

Formatters are registered by name, so that nothing is loaded before an answer is shown: by `import moescale` inside IPython,
and by `%load_ext moescale`.
"""

from __future__ import annotations

import io
from typing import Any

SHOWN = {  # modules and names of types
    ("moescale.planning.plan", "Plan"),
    ("moescale.fitting.fit", "Fit"),
    ("moescale.scaling_laws.law", "Law"),
    ("moescale.serving.gpu_counts", "Cost"),
}


def text_of(answer: Any) -> str:
    """An answer of one of the types of SHOWN as the terminal shows it."""
    from moescale.views.terminal import fits, plan, serving
    from moescale.views.terminal.text import terminal, write_table

    stream = io.StringIO()
    console = terminal(file=stream)
    match type(answer).__qualname__:
        case "Plan":
            plan.show_plan(console, answer)
        case "Fit":
            fits.show_fit(console, answer, None)
        case "Law":
            fits.show_laws(console, [answer])
        case _:
            write_table(console, serving.cost_table(answer))
    return stream.getvalue().strip("\n")


def load_ipython_extension(ipython: Any) -> None:
    """Teach an IPython shell how to show the answers; what `%load_ext moescale` calls."""

    def write(answer: Any, printer: Any, _cycle: bool) -> None:
        printer.text(text_of(answer))

    for module, name in SHOWN:
        ipython.display_formatter.formatters["text/plain"].for_type_by_name(module, name, write)

"""The command `isoflop`: how the loss-optimal size and tokens grow with compute, without a law."""

from __future__ import annotations

from moescale.cli.flat import flat
from moescale.cli.options import Json, Plot, app, check_plot, examples
from moescale.cli.output import HeldBack, print_json, warn
from moescale.options.fields import at_option
from moescale.options.runs import IsoflopOptions


@app.command(
    epilog=examples("moescale isoflop runs.csv", "moescale isoflop runs.csv --tolerance 0.1 --plot isoflop.svg")
)
@flat("runs", "where", "tolerance")
def isoflop(runs: IsoflopOptions, plot: Plot = None, json_: Json = False) -> None:
    """Fit the exponents of loss-optimal N and D in FLOPs to runs at equal FLOPs."""
    from moescale.fitting.isoflop import isoflop as fit_parabolas
    from moescale.views.figures import isoflop_figure
    from moescale.views.terminal.fits import show_isoflop
    from moescale.views.terminal.text import terminal

    check_plot(plot)
    table = runs.read()
    with at_option(table.source):
        found = fit_parabolas(table, tolerance=runs.tolerance)
    held_back = HeldBack()
    held_back.draw(plot, isoflop_figure, found)
    if json_:
        print_json(found.to_dict())
    else:
        show_isoflop(terminal(), found)
    warn([*table.warnings, *found.warnings])
    held_back.tell()

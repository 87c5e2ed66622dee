"""The command `isoflop`: how the loss-optimal size and tokens grow with compute, without a law."""

from __future__ import annotations

from typing import Annotated

from moescale.cli.laws import ExpertsColumn, LossColumn, Runs, SizeColumn, TokensColumn, Where, read_table
from moescale.cli.options import (
    HeldBack,
    Json,
    Plot,
    app,
    at_option,
    check_plot,
    examples,
    number_option,
    print_json,
    warn,
)


@app.command(
    epilog=examples("moescale isoflop runs.csv", "moescale isoflop runs.csv --tolerance 0.1 --plot isoflop.svg")
)
def isoflop(
    runs: Runs,
    where: Where = None,
    tolerance: Annotated[
        float, number_option("--tolerance", "Share by which the FLOPs, 6 N D, of one budget may differ.", 0, 0.99)
    ] = 0.05,
    size_column: SizeColumn = None,
    tokens_column: TokensColumn = "tokens",
    experts_column: ExpertsColumn = "n_experts",
    loss_column: LossColumn = "loss",
    plot: Plot = None,
    json_: Json = False,
) -> None:
    """Find how the best size and tokens grow with compute, from runs at equal FLOPs."""
    from moescale.fitting.isoflop import isoflop as fit_parabolas

    check_plot(plot)
    table = read_table(
        runs, where, size_column=size_column, tokens_column=tokens_column, experts_column=experts_column,
        loss_column=loss_column,
    )  # fmt: skip
    with at_option(str(runs)):
        found = fit_parabolas(table, tolerance=tolerance)
    held_back = HeldBack()
    if plot is not None:
        from moescale.views.figures import isoflop_figure, save_figure

        with held_back:
            save_figure(isoflop_figure(found), plot)
    if json_:
        print_json(found.to_dict())
    else:
        from moescale.views.terminal import show_isoflop, terminal

        show_isoflop(terminal(), found)
    warn([*table.warnings, *found.warnings])
    held_back.tell()

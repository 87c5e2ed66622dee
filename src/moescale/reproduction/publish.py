"""Everything of a reproduction as files: the report as Markdown and JSON, every figure as SVG, PDF, PNG, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from moescale.io.files import make_folder, write_atomically
from moescale.latency import LatencySource
from moescale.planning.candidate import Costs, largest_models, serving_curves
from moescale.reproduction import figures, series
from moescale.reproduction.claims import sweep_experts
from moescale.reproduction.evaluate import Outcome, host_times
from moescale.reproduction.page import report
from moescale.reproduction.series import Row
from moescale.reproduction.world import as_in_the_paper, of_the_papers_models
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from moescale.views.figures import SUFFIXES, check_plot, cost_figure, largest_figure, save_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be made, and an install without matplotlib."""
    make_folder(folder)
    check_plot(folder / "claims.svg")


def draw(
    law: Law, costs: Costs, *, budgets_flops: FloatArray = series.BUDGETS, trained: FloatArray = series.TRAINED
) -> dict[str, tuple[Figure, list[Row]]]:
    """Every figure of the paper with its data, by file name; `trained` holds the budgets of the trade-off."""
    world, experts = series.world_of(law, costs), np.array(sweep_experts())
    served = serving_curves(costs, experts, np.geomspace(1e8, 1e11, 400))
    within = largest_models(costs, experts, np.geomspace(0.02, 3.0, 200))
    fitted, trade = series.fitted_losses(law), series.trade_off(world, budgets_flops=trained)
    curves = [series.budget_curves(world, budget) for budget in series.CURVE_BUDGETS]
    at_loss = [series.bounded(world, "loss", base, budgets_flops=budgets_flops) for base in series.BASES]
    at_cost = [series.bounded(world, "cost", base, budgets_flops=budgets_flops) for base in series.BASES]
    layers = series.hidden_layers()
    return {
        "fitted_losses": (figures.fitted_figure(fitted), fitted.rows()),
        "cost_by_size": (cost_figure(served), series.serving_rows(served)),
        "largest_within_cost": (largest_figure(within), series.serving_rows(within)),
        "trade_off": (figures.trade_off_figure(trade), trade.rows()),
        "loss_cost_curves": (figures.curves_figure(curves), [row for c in curves for row in c.rows()]),
        "bounded_loss": (figures.bounded_loss_figure(at_loss), [row for b in at_loss for row in b.rows()]),
        "bounded_cost": (figures.bounded_cost_figure(at_cost), [row for b in at_cost for row in b.rows()]),
        "hidden_layers": (figures.hidden_layers_figure(layers), layers.rows()),
    }


def publish(
    folder: Path,
    law: Law,
    deployment: Deployment,
    latency: LatencySource,
    outcomes: Sequence[Outcome],
    *,
    budgets_flops: FloatArray = series.BUDGETS,
    trained: FloatArray = series.TRAINED,
) -> list[Path]:
    """Write claims.json, report.md, and each figure with its data; the files' paths. Raises as `check_folder`."""
    check_folder(folder)
    law = of_the_papers_models(law)
    costs = Costs(law.family, latency, as_in_the_paper(deployment), None)
    hosts = host_times(law, deployment, latency)
    claims = json.dumps([o.to_dict() for o in outcomes], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    written = [
        write_atomically(folder / "claims.json", claims.encode()),
        write_atomically(folder / "report.md", report(law, outcomes, hosts).encode()),
    ]
    for name, (figure, rows) in draw(law, costs, budgets_flops=budgets_flops, trained=trained).items():
        written += [save_figure(figure, folder / f"{name}{suffix}") for suffix in SUFFIXES]
        written.append(write_atomically(folder / f"{name}.csv", csv_text(rows).encode()))
    return written


def csv_text(rows: Sequence[Row]) -> str:
    """Records as CSV with every column that any of them has; numbers to the last digit, NaN as an empty cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[_cell(row.get(name, "")) for name in names] for row in rows])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float | np.floating):
        return repr(float(value)) if math.isfinite(value) else ""
    return value

"""Do nominal 90% intervals of the loss-optimal loss and size cover the truth? A simulation.

    python benchmarks/interval_coverage.py [--studies 200] [--replicates 100] [--write]

Each study draws the paper's sweep (4 sizes x 5 token counts x E = 1, 4, 8, 16, 32) from the catalogue's recovered law with
0.3% noise, fits it, bootstraps it, and predicts L* and N* at a budget 10 times the largest run's, and at 5.15e21 FLOPs (38 times
it). The row says how often the 5% to 95% interval holds the true value. --write: docs/evidence/own-law-interval-coverage.csv.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

import numpy as np

from moescale import Budget, find_family, find_form, find_law, loss, loss_optimal
from moescale.fitting.fit import bootstrap, fit
from moescale.fitting.workflow import fitted_law
from moescale.models.family import training_flops
from moescale.scaling_laws import make_inputs
from moescale.typing import FloatArray

NOISE, STARTS = 0.003, 32
COLUMNS = ("quantity", "training_flops", "experts", "held_percent")
EXPERTS = np.array([1.0, 8.0, 32.0])


def main() -> None:
    """Simulate and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--studies", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    truth, form, family = find_law("yun2024-recovered"), find_form("yun2024"), find_family("yun2024")
    sweep = tomllib.loads((resources.files("moescale.catalogue") / "published_yun2024.toml").read_text("utf-8"))[
        "sweep"
    ]
    n, d, e = (
        g.ravel().astype(float)
        for g in np.meshgrid(sweep["n_params"], sweep["tokens"], [1, 4, 8, 16, 32], indexing="ij")
    )
    budgets = (10.0 * float(training_flops(family, n, d, e).max()), 5.15e21)
    exact = [loss_optimal(truth, Budget(b), EXPERTS) for b in budgets]
    hits = np.zeros((2, len(budgets), EXPERTS.size))
    width = np.zeros_like(hits)
    began = time.perf_counter()
    for study in range(options.studies):
        noise = np.random.default_rng((1, study)).normal(0.0, NOISE, n.size)
        measured: FloatArray = loss(truth, n, d, e) * np.exp(noise)
        found = fit(form, n, d, e, measured, starts=STARTS)
        draws = bootstrap(found, make_inputs(n, d, e), np.log(measured), options.replicates, study)
        law = fitted_law(found, family, name="study", source="", date="", draws=draws)
        for i, budget in enumerate(budgets):
            spread = loss_optimal(law, Budget(budget), EXPERTS, theta=draws)
            for j, (values, true) in enumerate(((spread.loss, exact[i].loss), (spread.n_params, exact[i].n_params))):
                low, high = np.percentile(values, [5, 95], axis=0)
                hits[j, i] += (low <= true) & (true <= high)
                width[j, i] += np.log(high / low)
    print(f"{options.studies} studies, {options.replicates} replicates, {time.perf_counter() - began:.0f} s")
    print(f"{'':<22}" + "".join(f"{f'E = {x:g}':>22}" for x in EXPERTS))
    for i, budget in enumerate(budgets):
        for j, what in enumerate(("L*", "N*")):
            cells = "".join(
                f"{f'{h / options.studies:.1%} (width {w / options.studies:.1%})':>22}"
                for h, w in zip(hits[j, i], width[j, i], strict=True)
            )
            print(f"{f'{what} at {budget:.3g}':<22}{cells}")
    if options.write:
        write(budgets, 100.0 * hits / options.studies)


def write(budgets: Sequence[float], percent: FloatArray) -> None:
    """The table beside docs/evidence/own-law.md; percent (2, budgets, E)."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
    pages = importlib.import_module("pages")
    rows = [
        [what, f"{budget:.3g}", f"{experts:g}", f"{percent[j, i, k]:.1f}"]
        for i, budget in enumerate(budgets)
        for j, what in enumerate(("loss_optimal_loss", "loss_optimal_n_params"))
        for k, experts in enumerate(EXPERTS)
    ]
    pages.write_csv("evidence/own-law-interval-coverage.csv", COLUMNS, rows)


if __name__ == "__main__":
    main()

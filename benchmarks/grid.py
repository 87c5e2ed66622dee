"""Does the default search find what the whole published grid finds, and how fast is the grid?

    python benchmarks/grid.py                  all sets
    python benchmarks/grid.py --sets 2 --json  the first two only, as JSON
    python benchmarks/grid.py --write          writes docs/evidence/own-law-search.csv

For each set of runs: the objective of `starts="auto"` and of all 810,000 starts of the paper's appendix, how many starts
reached the optimum (a lower bound, see moescale.fitting.fit.fit), seconds, and how many times less a start costs than with
scipy.optimize.minimize(method="L-BFGS-B") and numeric gradients, timed on a sample of the same starts in the same run.
Of the 810,000 starts the box makes many equal (all d above 1): those are searched from once, and count as they are given.
Exits 1 if the two searches differ by more than 1e-6 anywhere or a time limit is missed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from moescale.fitting.fit import Fit, fit
from moescale.fitting.multistart import published_axes, starts_at
from moescale.fitting.search import HUBER_DELTA, huber
from moescale.runs.table import read_runs
from moescale.scaling_laws import find_form, find_law, loss, make_inputs
from moescale.scaling_laws.form import Observed
from moescale.typing import FloatArray

NOISE = 3e-3
SCIPY_STARTS = 6
SAME = 1e-6
LIMIT_S = {100: 60.0, 270: 180.0}  # up to so many runs, on two cores
SPEED_UP = 500.0
AUTO_LIMIT_S = 2.0
COLUMNS = ("set", "runs", "auto_excess", "auto_s", "grid_s", "speed_up_over_scipy")

Runs = tuple[FloatArray, FloatArray, FloatArray, FloatArray]

# Coefficients, sizes, tokens, experts, seed. The third law has strong saturation, the fourth a strong interaction.
STEEP = {"A": 400.0, "alpha": 0.34, "B": 1.2, "beta": 0.9, "C": 900.0, "gamma": 0.33, "F": 1.4, "d": -0.003, "E_start": 1.5, "E_max": 40.0}  # fmt: skip
MIXED = {"A": 60.0, "alpha": 0.25, "B": 3.0, "beta": 0.25, "C": 300.0, "gamma": 0.28, "F": 0.8, "d": 0.012, "E_start": 2.5, "E_max": 300.0}  # fmt: skip
RUNS = Path(__file__).parents[1] / "tests" / "data" / "public" / "joint_moe_runs.csv"
SYNTHETIC = (
    ("recovered, paper's sweep", "yun2024-recovered", (1e8, 2e8, 4e8, 7.3e8), (2.5e9, 5e9, 1e10, 1.5e10, 2e10), (1, 4, 8, 16, 32), 1),
    ("recovered, another seed", "yun2024-recovered", (1e8, 2e8, 4e8, 7.3e8), (2.5e9, 5e9, 1e10, 1.5e10, 2e10), (1, 4, 8, 16, 32), 2),
    ("recovered, wide", "yun2024-recovered", (3e7, 1e8, 3e8, 1e9, 3e9), (1e9, 5e9, 2e10, 1e11), (1, 2, 8, 32, 64), 3),
    ("joint, wide", "yun2024-joint", (5e7, 1e8, 3e8, 6e8, 1.2e9), (2e9, 6e9, 2e10, 6e10), (1, 2, 4, 8, 16), 4),
    ("joint, few experts", "yun2024-joint", (1e8, 2e8, 4e8, 8e8, 1.6e9), (2e9, 4e9, 8e9, 1.6e10, 3.2e10), (1, 4, 8, 16), 5),
    ("steep, saturating", STEEP, (5e7, 1e8, 3e8, 1e9, 2e9), (1e9, 4e9, 1.6e10, 6.4e10), (1, 4, 8, 16, 64), 6),
    ("steep, many experts", STEEP, (1e8, 3e8, 1e9, 3e9), (2e9, 8e9, 3.2e10, 1e11, 3e11), (1, 8, 32, 128, 256), 7),
    ("mixed, interaction", MIXED, (5e7, 2e8, 6e8, 2e9, 6e9), (2e9, 1e10, 5e10, 2e11), (1, 2, 8, 16, 32), 8),
    ("mixed, small", MIXED, (1e8, 3e8, 1e9), (2e9, 1e10, 5e10), (1, 4, 16, 64), 9),
)  # fmt: skip
REAL = (
    ("public runs, D/N >= 2", "tokens / n_params_active >= 2"),
    ("public runs, middle", "n_params_active >= 1e8 and n_params_active <= 7.3e8 and tokens >= 2.4e9 and tokens <= 2.1e10"),
    ("public runs, all", None),
)  # fmt: skip


def synthetic(law: str | dict[str, float], sizes: tuple[float, ...], tokens: tuple[float, ...], experts: tuple[float, ...], seed: int) -> Runs:  # fmt: skip
    """Runs on a full grid of N, D and E: the law's losses with log-normal noise."""
    n, d, e = (v.ravel() for v in np.meshgrid(sizes, tokens, np.asarray(experts, dtype=float), indexing="ij"))
    if isinstance(law, str):
        clean = loss(find_law(law), n, d, e)
    else:
        form = find_form("yun2024")
        clean = np.exp(form.log_loss(form.encode(np.array([law[name] for name in form.names])), make_inputs(n, d, e)))
    return n, d, e, clean * np.exp(NOISE * np.random.default_rng(seed).normal(size=n.size))


def all_sets() -> Iterator[tuple[str, Runs]]:
    """Every set of runs with its name; the public ones too."""
    for name, law, sizes, tokens, experts, seed in SYNTHETIC:
        yield name, synthetic(law, sizes, tokens, experts, seed)
    for name, where in REAL:
        runs = read_runs(RUNS, size_column="n_params_active", where=where)
        yield name, (runs.n_params, runs.tokens, runs.experts, runs.loss)


def scipy_seconds_per_start(runs: Runs) -> float:
    """Seconds a start takes with scipy's L-BFGS-B, numeric gradients, the same objective and box; tolerance 1e-12."""
    from scipy.optimize import minimize

    form = find_form("yun2024")
    observed = Observed(experts_max=float(runs[2].max()), loss_min=float(runs[3].min()))
    axes, box = published_axes(form, observed), form.bounds(observed)
    x, ln_loss = make_inputs(*runs[:3]), np.log(runs[3])

    def summed_huber(theta: FloatArray) -> float:
        return float(huber(form.log_loss(theta, x) - ln_loss, HUBER_DELTA).sum())

    total = int(np.prod([axis.size for axis in axes]))
    numbers = np.random.default_rng(0).integers(0, total, SCIPY_STARTS)
    began = time.perf_counter()
    for start in starts_at(axes, numbers):
        minimize(
            summed_huber, np.clip(start, box[:, 0], box[:, 1]), method="L-BFGS-B", bounds=box,
            options={"gtol": 1e-12, "ftol": 1e-12, "maxiter": 2000, "maxfun": 100_000},
        )  # fmt: skip
    return (time.perf_counter() - began) / SCIPY_STARTS


def measure(name: str, runs: Runs) -> dict[str, float | str | bool]:
    """One row of the table."""
    form = find_form("yun2024")

    def timed(starts: str) -> tuple[Fit, float]:
        began = time.perf_counter()
        found = fit(form, *runs, starts=starts)
        return found, time.perf_counter() - began

    auto, auto_s = timed("auto")
    grid, grid_s = timed("paper")
    count = runs[3].size
    speed_up = scipy_seconds_per_start(runs) / (grid_s / grid.starts)
    limit = next((seconds for most, seconds in LIMIT_S.items() if count <= most), None)
    return {
        "set": name,
        "runs": count,
        "objective_auto": auto.objective,
        "objective_grid": grid.objective,
        "auto_excess": auto.objective / grid.objective - 1.0,
        "starts_at_optimum": grid.starts_at_optimum,
        "starts": grid.starts,
        "auto_s": auto_s,
        "grid_s": grid_s,
        "speed_up_over_scipy": speed_up,
        "same_optimum": auto.objective <= grid.objective * (1.0 + SAME),
        "in_time": (limit is None or grid_s <= limit) and auto_s <= AUTO_LIMIT_S and speed_up >= SPEED_UP,
    }


def write(rows: Sequence[dict[str, float | str | bool]]) -> None:
    """The table beside docs/evidence/own-law.md."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
    pages = importlib.import_module("pages")
    formats = {"auto_excess": ".0e", "auto_s": ".2f", "grid_s": ".1f", "speed_up_over_scipy": ".0f"}
    cells = ([format(row[name], formats.get(name, "")) for name in COLUMNS] for row in rows)
    pages.write_csv("evidence/own-law-search.csv", COLUMNS, cells)


def main() -> int:
    """Measure, print, and say by the exit code whether the searches agree within their limits."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sets", type=int, help="only the first so many sets")
    parser.add_argument("--only", help="only sets whose name contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON value")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    sets = [s for s in all_sets() if options.only is None or options.only in s[0]][: options.sets]
    if not options.json:
        load = os.getloadavg()[0]
        print(f"{os.cpu_count()} cores, load {load:.1f} before the start")
        print(
            f"{'set':<26} {'runs':>4} {'auto':>12} {'grid':>12} {'auto/grid-1':>11} {'at optimum':>10} {'auto s':>7} {'grid s':>7} {'x scipy':>8} {'load':>5}"
        )
    rows: list[dict[str, float | str | bool]] = []
    for name, runs in sets:
        row = measure(name, runs)
        rows.append(row)
        if not options.json:
            print(
                f"{row['set']:<26} {row['runs']:>4} {row['objective_auto']:>12.6e} {row['objective_grid']:>12.6e} "
                f"{row['auto_excess']:>11.1e} {row['starts_at_optimum']:>10} {row['auto_s']:>7.2f} {row['grid_s']:>7.1f} "
                f"{row['speed_up_over_scipy']:>8.0f} {os.getloadavg()[0]:>5.1f}"
                + ("" if row["same_optimum"] else "  auto missed the optimum")
                + ("" if row["in_time"] else "  over a time limit"),
                flush=True,
            )
    if options.json:
        print(json.dumps(rows, indent=2))
    if options.write:
        write(rows)
    return 0 if all(row["same_optimum"] and row["in_time"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

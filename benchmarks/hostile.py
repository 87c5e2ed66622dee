"""Hostile run tables: does the fit answer with the right warnings, or refuse clearly?

    python benchmarks/hostile.py

Each row: what is wrong with the table, what the program said, and how far a prediction in the middle of the sweep is from the
truth. The runs are the paper's sweep drawn from the catalogue's recovered law with 0.3% noise.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from moescale import InputError, find_form, find_law, fit, loss
from moescale.fitting.canonical import RunArrays
from moescale.fitting.fit import far_off, residuals
from moescale.scaling_laws import make_inputs
from moescale.typing import FloatArray

LAW, FORM = find_law("yun2024-recovered"), find_form("yun2024")
SIZES, TOKENS, EXPERTS = [81e6, 185e6, 289e6, 679e6], [2.5e9, 5e9, 7.5e9, 1e10, 2e10], [1.0, 4.0, 8.0, 16.0, 32.0]
Columns = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def sweep(repeat: int = 1) -> Columns:
    """N, D, E and loss of the sweep, `repeat` times over with fresh noise."""
    n, d, e = (np.tile(g.ravel(), repeat) for g in np.meshgrid(SIZES, TOKENS, EXPERTS, indexing="ij"))
    return n, d, e, loss(LAW, n, d, e) * np.exp(np.random.default_rng(0).normal(0.0, 0.003, n.size))


def with_outliers(count: int) -> Columns:
    """`count` runs whose loss is 30% too high: diverged."""
    n, d, e, measured = sweep()
    measured[np.random.default_rng(1).choice(measured.size, count, replace=False)] *= 1.3
    return n, d, e, measured


def kept(rows: Callable[[Columns], np.typing.NDArray[np.bool_]]) -> Columns:
    """The rows of the sweep that a rule keeps."""
    columns = sweep()
    keep = rows(columns)
    return columns[0][keep], columns[1][keep], columns[2][keep], columns[3][keep]


CASES: dict[str, Callable[[], Columns]] = {
    "clean": sweep,
    "one outlier of 30%": lambda: with_outliers(1),
    "ten outliers of 30%": lambda: with_outliers(10),
    "constant E": lambda: kept(lambda c: c[2] == 8),
    "one size only": lambda: kept(lambda c: c[0] == 289e6),
    "two runs": lambda: kept(lambda c: np.arange(c[0].size) < 2),
    "five runs": lambda: kept(lambda c: np.arange(c[0].size) % 20 == 7),
    "losses below the irreducible (half of all)": lambda: (*sweep()[:3], sweep()[3] * 0.5),
    "a million rows": lambda: sweep(10_000),
}


def main() -> None:
    """Fit every table and print what came of it."""
    middle = np.array([3e8]), np.array([1e10]), np.array([8.0])
    for name, table in CASES.items():
        n, d, e, measured = table()
        began = time.perf_counter()
        try:
            found = fit(FORM, n, d, e, measured)
        except InputError as error:
            print(f"{name}: refused: {error}")
            continue
        seconds = time.perf_counter() - began
        ours = np.exp(FORM.log_loss(found.theta, make_inputs(*middle)))
        truth = loss(LAW, *middle) * (0.5 if "half" in name else 1.0)
        print(
            f"{name}: {n.size} runs, RMSLE {found.rmsle:.2e}, {seconds:.1f} s, loss in the middle off by {float(ours[0] / truth[0] - 1):+.2%}"
        )
        if n.size < 1000:
            far, _ = far_off(residuals(found, RunArrays(n, d, e, measured, {})))
            print(f"    runs that look broken: {int(far.sum())}")
        for warning in found.warnings:
            print(f"    {warning}")


if __name__ == "__main__":
    main()

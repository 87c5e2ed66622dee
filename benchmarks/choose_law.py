# pyright: basic
# A research script: many small formulas as lambdas.
"""How moescale2026 was chosen: cross-validation of candidate forms on the runs of arXiv 2502.05172.

    python benchmarks/choose_law.py RUNS.csv [--forms NAME ..] [--starts 12] [--folds 10]

A name is dense:data:experts:size:effective. dense: how size and data combine; data: what a token counts; experts: where Ehat
enters; size: all parameters, or without embeddings; effective: which parameters of Clark's Ehat are free.

Rows with tokens / n_params_active >= 2 are used. The choice is the lowest mean RMSLE of five extrapolations within the rows
with D < 12e9, E <= 8 and N < 6e8, which every outer training set contains. The outer errors are a check and choose nothing.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

Complex = np.ndarray  # complex steps give the derivatives, so everything here takes complex numbers
LN_N, LN_D = np.log(3e8), np.log(6e9)  # units of the search
OMEGA = 2 * 50257 * (64 / 13) ** (1 / 3)  # N = N_b + OMEGA N_b^(1/3): both tables of models 64 wide a block
SCANNED, HUBER_DELTA = 1500, 1e-3


def ln_sum(*terms: Complex) -> Complex:
    """ln of a sum of terms given by their logarithms."""
    return np.log(sum(np.exp(term) for term in terms))


def norm(kappa: Complex | float, *terms: Complex) -> Complex:
    """ln of (sum of term^(1/kappa))^kappa."""
    return kappa * ln_sum(*(term / kappa for term in terms))


@dataclass(frozen=True)
class Part:
    """One choice of a form: a function of its own parameters, and the range of each that is scanned."""

    function: Callable[..., Complex | tuple[Complex, ...]]
    ranges: tuple[tuple[float, float], ...] = ()
    limits: tuple[tuple[float, float], ...] = ()  # hard ones; by default twice the range beyond either end


LEVEL, EXPONENT, FLOOR, SOFT = (-2.0, 1.5), (0.05, 0.8), (-2.0, 1.0), (0.2, 2.0)
HARD = {LEVEL: (-9.0, 9.0), EXPONENT: (0.0, 3.0), FLOOR: (-14.0, 1.0), SOFT: (0.02, 8.0)}


def dense(function: Callable[..., Complex], *ranges: tuple[float, float]) -> Part:
    """A way to combine size and data; function(p, n, d), n and d logarithms in units of the search."""
    return Part(function, ranges, tuple(HARD[r] for r in ranges))


def size(p: Complex, n: Complex) -> Complex:
    return p[0] - p[1] * n


def data(p: Complex, d: Complex) -> Complex:
    return p[2] - p[3] * d


# The irreducible loss multiplies with the experts' gain as all else does: it is the loss of this family, not of text.
DENSE = {
    "norm": dense(lambda p, n, d: norm(p[4], size(p, n), data(p, d)), LEVEL, EXPONENT, LEVEL, EXPONENT, SOFT),
    "norm-tied": dense(lambda p, n, d: norm(p[3], size(p, n), p[2] - p[1] * d), LEVEL, EXPONENT, LEVEL, SOFT),
    "norm-1/4": dense(lambda p, n, d: norm(0.25, size(p, n), data(p, d)), LEVEL, EXPONENT, LEVEL, EXPONENT),
    "kaplan": dense(lambda p, n, d: norm(p[3], size(p, n), data(p, d)), LEVEL, EXPONENT, LEVEL, EXPONENT),
    "norm+F": dense(
        lambda p, n, d: ln_sum(norm(p[5], size(p, n), data(p, d)), p[4] + 0 * n),
        LEVEL, EXPONENT, LEVEL, EXPONENT, FLOOR, SOFT,
    ),
    "norm(data+F)": dense(
        lambda p, n, d: norm(p[5], size(p, n), ln_sum(data(p, d), p[4] + 0 * n)),
        LEVEL, EXPONENT, LEVEL, EXPONENT, FLOOR, SOFT,
    ),
    "kaplan(data+F)": dense(
        lambda p, n, d: norm(p[3], size(p, n), ln_sum(data(p, d), p[4] + 0 * n)),
        LEVEL, EXPONENT, LEVEL, EXPONENT, FLOOR,
    ),
    "kaplan+F": dense(
        lambda p, n, d: ln_sum(norm(p[3], size(p, n), data(p, d)), p[4] + 0 * n),
        LEVEL, EXPONENT, LEVEL, EXPONENT, FLOOR,
    ),
    "sum": dense(lambda p, n, d: ln_sum(size(p, n), data(p, d)), LEVEL, EXPONENT, LEVEL, EXPONENT),
    "sum+F": dense(
        lambda p, n, d: ln_sum(size(p, n), data(p, d), p[4] + 0 * n), LEVEL, EXPONENT, LEVEL, EXPONENT, FLOOR
    ),
}  # fmt: skip

SPENT = (-6.0, -1.0)
DATA = {
    "D": Part(lambda p, n, d: d),
    "D_0": Part(lambda p, n, d: d - np.log(1 + np.exp(p[0] - d)), (SPENT,)),
    "D_0~N": Part(lambda p, n, d: d - np.log(1 + np.exp(p[0] + n - d)), (SPENT,)),
}


def ripe(p: Complex, n: Complex, d: Complex) -> Complex:
    return 1 / (1 + np.exp(p[1] + n - d))


# (added to ln N, exponent of Ehat on the loss): each multiplied by ln Ehat.
EXPERTS = {
    "const": Part(lambda p, n, d: (0 * n, p[0] + 0 * n), ((0.0, 0.3),)),
    "log": Part(lambda p, n, d: (0 * n, p[0] + p[1] * (d - n)), ((0.0, 0.5), (-0.1, 0.2))),
    "two": Part(lambda p, n, d: (0 * n, p[0] + p[1] * n + p[2] * d), ((0.0, 0.5), (-0.1, 0.05), (-0.1, 0.05))),
    "ripe": Part(lambda p, n, d: (0 * n, p[0] * ripe(p, n, d)), ((0.0, 0.6), (-4.0, 2.0))),
    "size": Part(lambda p, n, d: (p[0] + 0 * n, 0 * n), ((0.0, 1.0),)),
    "size-ripe": Part(lambda p, n, d: (p[0] * ripe(p, n, d), 0 * n), ((0.0, 1.5), (-4.0, 2.0))),
}


def without_embeddings(n: Complex) -> Complex:
    z = np.exp(n + LN_N + np.log(1.5) + 0.5 * np.log(3.0) - 1.5 * np.log(OMEGA))
    root = 2 * np.sqrt(OMEGA / 3) * np.sinh(np.log(z + np.sqrt(z * z + 1)) / 3)
    return 3 * np.log(root) - LN_N


SIZE = {"N": lambda n: n, "N_b": without_embeddings}


def ln_gain(ln_start: Complex | float, ln_max: Complex | float, experts: np.ndarray) -> Complex:
    """ln(Ehat / E_start)."""
    gap = np.exp(-ln_start) - np.exp(-ln_max)
    return -np.log(gap / ((experts - 1) * gap + 1) + np.exp(-ln_max)) - ln_start


CEILING = (1.4, np.log(1e4))
EFFECTIVE = {
    "both": Part(lambda p, e: ln_gain(p[0] * p[1], p[1], e), ((0.0, 0.95), CEILING), ((0.0, 0.999), CEILING)),
    "max": Part(lambda p, e: ln_gain(0.0, p[0], e), (CEILING,), (CEILING,)),
    "start": Part(lambda p, e: ln_gain(p[0], np.log(1e4), e), ((0.0, 3.0),), ((0.0, 5.0),)),
}

MAIN = [
    "norm-tied:D_0:ripe:N_b:max",
    "norm:D_0:ripe:N_b:max",
    "norm-1/4:D_0:ripe:N_b:max",
    "norm:D_0:log:N_b:max",
    "norm:D_0:two:N_b:max",
    "norm:D_0:const:N_b:max",
    "norm:D_0:ripe:N_b:both",
    "norm:D_0:ripe:N_b:start",
    "norm:D_0:ripe:N:max",
    "norm:D:ripe:N_b:max",
    "norm:D_0~N:ripe:N_b:max",
    "norm:D_0:size-ripe:N_b:max",
    "norm+F:D_0:ripe:N_b:max",
    "norm+F:D:ripe:N_b:max",
    "norm+F:D:log:N:both",
    "norm(data+F):D_0:ripe:N_b:max",
    "norm(data+F):D:log:N:both",
    "kaplan(data+F):D:ripe:N_b:max",
    "kaplan:D_0:ripe:N_b:max",
    "kaplan+F:D:ripe:N_b:max",
    "sum:D_0:ripe:N_b:max",
    "sum+F:D_0:ripe:N_b:max",
    "sum+F:D:ripe:N:max",
    "sum+F:D:two:N:both",
]


class Form:
    """A named combination of parts, with the box that a fit to runs with at most `experts` experts may use."""

    def __init__(self, name: str) -> None:
        dense_name, data_name, experts_name, size_name, effective_name = name.split(":")
        self.parts = (DENSE[dense_name], EFFECTIVE[effective_name], DATA[data_name], EXPERTS[experts_name])
        self.size = SIZE[size_name]
        self.effective = effective_name
        counts = [len(part.ranges) for part in self.parts]
        self.ends = np.cumsum([0, *counts])
        self.ranges = np.array([r for part in self.parts for r in part.ranges])

    def log_loss(self, p: Complex, n: np.ndarray, d: np.ndarray, experts: np.ndarray) -> Complex:
        """ln L of each run."""
        own = [p[a:b] for a, b in zip(self.ends, self.ends[1:], strict=False)]
        dense_part, effective, data_part, gain = self.parts
        e = effective.function(own[1], experts)
        added, exponent = gain.function(own[3], n, d)
        clock = data_part.function(own[2], n, d)
        return dense_part.function(own[0], self.size(n) + added * e, clock) - exponent * e

    def box(self, experts: float) -> np.ndarray:
        """Hard limits, (p, 2); E_max at least half of the largest count seen, and at least 4."""
        limits: list[tuple[float, float]] = []
        for part in self.parts:
            wide = [(2 * low - high, 2 * high - low) for low, high in part.ranges]
            limits += part.limits or [(a - (b - a) / 3, b + (b - a) / 3) for a, b in wide]
        out = np.array(limits)
        if self.effective in ("both", "max"):
            out[self.ends[2] - 1, 0] = np.log(max(4.0, experts / 2))
        return out


@dataclass(frozen=True)
class Runs:
    """ln N, ln D in units of the search, E, and ln L."""

    n: np.ndarray
    d: np.ndarray
    experts: np.ndarray
    ln_loss: np.ndarray

    def where(self, keep: np.ndarray) -> Runs:
        return Runs(self.n[keep], self.d[keep], self.experts[keep], self.ln_loss[keep])


def fit(form: Form, runs: Runs, starts: int) -> np.ndarray:
    """Least squares of the Huber objective from the best of a random scan."""
    box = form.box(float(runs.experts.max()))
    low, high = box.T
    points = np.random.default_rng(0).uniform(*form.ranges.T, size=(SCANNED, len(low)))
    points = np.clip(points, low + 1e-9, high - 1e-9)

    def residual(p: Complex) -> Complex:
        return form.log_loss(p, runs.n, runs.d, runs.experts) - runs.ln_loss

    def slope(p: np.ndarray) -> np.ndarray:
        steps = 1e-30j * np.eye(p.size)
        return np.stack([np.imag(residual(p + step)) / 1e-30 for step in steps], axis=1)

    with np.errstate(all="ignore"):
        values = np.array([np.nan_to_num(np.abs(residual(p)), nan=9.0).sum() for p in points])
        found = [
            least_squares(residual, points[i], jac=slope, bounds=(low, high), loss="huber", f_scale=HUBER_DELTA,  # pyright: ignore[reportArgumentType]
                          x_scale="jac", max_nfev=150)
            for i in np.argsort(values)[:starts]
        ]  # fmt: skip
    return min(found, key=lambda one: one.cost).x


def rmsle(form: Form, p: np.ndarray, runs: Runs) -> float:
    """In thousandths."""
    return 1e3 * float(np.sqrt(np.mean((form.log_loss(p, runs.n, runs.d, runs.experts) - runs.ln_loss) ** 2)))


def main() -> None:
    """Print the table, best first by the choice's own criterion."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--forms", nargs="+", default=MAIN)
    parser.add_argument("--starts", type=int, default=12)
    parser.add_argument("--folds", type=int, default=0, help="also k-fold cross-validation, which chooses nothing")
    options = parser.parse_args()
    with options.runs.open(newline="") as file:
        rows = list(csv.DictReader(file))
    n, d, e, loss = (
        np.array([float(row[k]) for row in rows]) for k in ("n_params_active", "tokens", "n_experts", "loss")
    )
    keep = d / n >= 2
    n, d, e, loss = n[keep], d[keep], e[keep], loss[keep]
    runs = Runs(np.log(n) - LN_N, np.log(d) - LN_D, e, np.log(loss))
    shared = (d < 12e9) & (e <= 8) & (n < 6e8)
    inner = [shared & part for part in (d < 5e9, d < 8e9, e <= 4, n < 2e8, n < 3e8)]
    outer = [d < 12e9, e <= 8, n < 6e8]
    fold = np.random.default_rng(0).permutation(int(shared.sum())) % max(1, options.folds)
    lines: list[tuple[float, str]] = []
    began = time.perf_counter()
    for name in options.forms:
        form = Form(name)
        within = [rmsle(form, fit(form, runs.where(t), options.starts), runs.where(shared & ~t)) for t in inner]
        squares: list[np.ndarray] = []
        for k in range(options.folds):
            left = np.zeros_like(shared)
            left[np.flatnonzero(shared)[fold == k]] = True
            p = fit(form, runs.where(shared & ~left), min(options.starts, 4))
            squares.append(np.full(int(left.sum()), rmsle(form, p, runs.where(left)) ** 2))
        k_fold = float(np.sqrt(np.concatenate(squares).mean())) if squares else np.nan
        beyond = [rmsle(form, fit(form, runs.where(t), options.starts), runs.where(~t)) for t in outer]
        everything = rmsle(form, fit(form, runs, options.starts), runs)
        mean = float(np.mean(within))
        cells = [f"{v:.2f}" for v in (mean, *within, k_fold, *beyond, everything)]
        lines.append((mean, f"| {name} | {len(form.ranges)} | " + " | ".join(cells) + " |"))
    print(f"{len(runs.n)} runs, {int(shared.sum())} shared; RMSLE in 1e-3; {time.perf_counter() - began:.0f} s\n")
    print("| form | p | mean | D>=5e9 | D>=8e9 | E=8 | N>=2e8 | N>=3e8 | k-fold | D out | E out | N out | all |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for _, line in sorted(lines):
        print(line)


if __name__ == "__main__":
    main()

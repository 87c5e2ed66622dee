# pyright: basic
# A research script: many small formulas as lambdas.
"""How moescale2026 was chosen: hold-outs across public tables that leave the scored source out.

    python benchmarks/choose_law.py dense                      the dense part, on four sources of dense runs
    python benchmarks/choose_law.py experts --dense NAME ..    the gain of experts, on two sources of routed runs
    python benchmarks/choose_law.py repeated --dense NAME      repeated data, on datablations

    L = (F + S norm) m,   norm = ((e^s)^(1/kappa) + (e^t)^(1/kappa))^kappa,  s = -alpha ln N,  t = ln q - beta ln D_eff

in units of 1e9 body parameters and 1e10 tokens. A dense candidate is norm:data, a candidate for experts gain:ceiling; a gain
adds to s or t, or multiplies the norm or the loss by Xhat^-g. THE RULE (docs/evidence/own-law.md says what came of it):

Rows with tokens / n_params_dense >= 2. Dense sources: gadre, porian, gemstones, olmo (its two targets left out). Outer splits
of each table: strictly above the 75% quantile of N, D, N D, D / N; inner splits: the same inside each outer training set.
Routed sources: joint (outer: D >= 12e9, E > 8, N >= 6e8) and routing (outer: strictly above the 75% quantile of N, of E);
inner splits use only rows that every outer training set of the source contains, two cuts in each variable that varies.
A candidate's score on a source is the geometric mean of its inner held-out RMSLE, over sources the geometric mean of those.
Among the candidates within 5% of the best score the one of fewest parameters is chosen, among equals the best. A source is
scored with the choice made on the other sources; what ships is the choice on all. A gain is admissible if, fitted to all
rows of the sources that decide, the loss nowhere rises with N, D or X on N 1e7 to 1e11, D / N 2 to 2000, X 1 to 512.

Repeated data: outer split of datablations: unique_tokens >= 6e11 or N >= 4.2465e9 held out, every row of it scored. A candidate
is a way to count repeated tokens, what overfitting adds to the loss, and which rows are fitted. Inner splits: N >= 1.5e9 and
N >= 2.8e9 held out of the training rows, every row of them scored by the root mean square error of the loss; the choice as above.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

Complex = np.ndarray  # complex steps give the derivatives, so everything here takes complex numbers
PUBLIC = Path(__file__).parents[1] / "tests/data/public"
LN_N, LN_D = np.log(1e9), np.log(1e10)  # units of the search
SCANNED, POLISHED, HUBER_DELTA, TIE = 3000, 4, 1e-3, 1.05
Range = tuple[float, float]


@dataclass(frozen=True)
class Part:
    """One choice of a form: the ranges of its parameters that are scanned, their hard limits, and its function."""

    function: Callable[..., object]
    ranges: tuple[Range, ...] = ()
    limits: tuple[Range, ...] = ()


def part(function: Callable[..., object], *pairs: tuple[Range, Range]) -> Part:
    """A part from (scanned range, hard limits) of each parameter."""
    return Part(function, tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


def logs(*numbers: float) -> Range:
    low, high = np.log(numbers)
    return float(low), float(high)


ALPHA = (0.05, 0.9), (0.0, 3.0)
RATIO = (-2.0, 2.0), (-12.0, 12.0)
SOFT = logs(0.1, 1.0), logs(0.02, 1.0)
WALL = logs(0.2, 0.8), logs(0.2, 0.8)

# (alpha, ln q, beta, kappa) from the parameters.
DENSE = {
    "sum": part(lambda p: (p[0], p[1], p[2], 1.0), ALPHA, RATIO, ALPHA),
    "sum-tied": part(lambda p: (p[0], p[1], p[0], 1.0), ALPHA, RATIO),
    "half": part(lambda p: (p[0], p[1], p[2], 0.5), ALPHA, RATIO, ALPHA),
    "half-tied": part(lambda p: (p[0], p[1], p[0], 0.5), ALPHA, RATIO),
    "third": part(lambda p: (p[0], p[1], p[2], 1 / 3), ALPHA, RATIO, ALPHA),
    "third-tied": part(lambda p: (p[0], p[1], p[0], 1 / 3), ALPHA, RATIO),
    "quarter": part(lambda p: (p[0], p[1], p[2], 0.25), ALPHA, RATIO, ALPHA),
    "quarter-tied": part(lambda p: (p[0], p[1], p[0], 0.25), ALPHA, RATIO),
    "fifth": part(lambda p: (p[0], p[1], p[2], 0.2), ALPHA, RATIO, ALPHA),
    "fifth-tied": part(lambda p: (p[0], p[1], p[0], 0.2), ALPHA, RATIO),
    "norm": part(lambda p: (p[0], p[1], p[2], np.exp(p[3])), ALPHA, RATIO, ALPHA, SOFT),
    "norm-tied": part(lambda p: (p[0], p[1], p[0], np.exp(p[2])), ALPHA, RATIO, SOFT),
}
DENSE |= {
    "wall": part(DENSE["norm"].function, ALPHA, RATIO, ALPHA, WALL),
    "wall-tied": part(DENSE["norm-tied"].function, ALPHA, RATIO, WALL),
}
SPENT = logs(1e-4, 0.2), logs(1e-6, 1e2)
DATA = {
    "D": part(lambda p, d: d),
    "D_0": part(lambda p, d: d - np.log(1 + np.exp(p[0] - d)), SPENT),
}


def ripe(p: Complex, n: Complex, d: Complex) -> Complex:
    """r / (r + R), r tokens per parameter: 0 without tokens, 1 with many."""
    return 1 / (1 + np.exp(p - (d - n + LN_D - LN_N)))


def soft(p: Complex, n: Complex, d: Complex) -> Complex:
    """The same half as steep."""
    return 1 / (1 + np.exp(0.5 * (p - (d - n + LN_D - LN_N))))


def fade(p: Complex, n: Complex) -> Complex:
    """1 / (1 + N / N_h)."""
    return 1 / (1 + np.exp(n - p))


LOSS = (0.0, 0.3), (0.0, 1.0)
REDUCIBLE = (0.0, 0.8), (0.0, 3.0)
SIZE = (0.0, 1.2), (0.0, 3.0)
DATUM = (0.0, 0.6), (0.0, 3.0)
R = logs(1.0, 3000.0), logs(1e-3, 1e5)
N_H = (-3.0, 6.0), (-12.0, 12.0)
TURN = (-0.1, 0.1), (-1.0, 1.0)

# What multiplies ln Xhat: (added to ln N, added to ln D, exponent on the reducible part, exponent on the loss).
GAINS = {
    "loss": part(lambda p, n, d: (0, 0, 0, p[0]), LOSS),
    "reducible": part(lambda p, n, d: (0, 0, p[0], 0), REDUCIBLE),
    "size": part(lambda p, n, d: (p[0], 0, 0, 0), SIZE),
    "size+data": part(lambda p, n, d: (p[0], p[1], 0, 0), SIZE, DATUM),
    "ripe-loss": part(lambda p, n, d: (0, 0, 0, p[0] * ripe(p[1], n, d)), LOSS, R),
    "ripe-reducible": part(lambda p, n, d: (0, 0, p[0] * ripe(p[1], n, d), 0), REDUCIBLE, R),
    "ripe-size": part(lambda p, n, d: (p[0] * ripe(p[1], n, d), 0, 0, 0), SIZE, R),
    "soft-loss": part(lambda p, n, d: (0, 0, 0, p[0] * soft(p[1], n, d)), LOSS, R),
    "soft-reducible": part(lambda p, n, d: (0, 0, p[0] * soft(p[1], n, d), 0), REDUCIBLE, R),
    "soft-size": part(lambda p, n, d: (p[0] * soft(p[1], n, d), 0, 0, 0), SIZE, R),
    "fade-loss": part(lambda p, n, d: (0, 0, 0, p[0] * fade(p[1], n)), LOSS, N_H),
    "fade-reducible": part(lambda p, n, d: (0, 0, p[0] * fade(p[1], n), 0), REDUCIBLE, N_H),
    "fade-size": part(lambda p, n, d: (p[0] * fade(p[1], n), 0, 0, 0), SIZE, N_H),
    "centred-loss": part(lambda p, n, d: (0, 0, 0, p[0] - p[1] * n), LOSS, TURN),
    "centred-reducible": part(lambda p, n, d: (0, 0, p[0] - p[1] * n, 0), REDUCIBLE, TURN),
    "centred-size": part(lambda p, n, d: (p[0] - p[1] * n, 0, 0, 0), SIZE, TURN),
    "ratio-loss": part(lambda p, n, d: (0, 0, 0, p[0] + p[1] * (d - n)), LOSS, TURN),
    "ratio-size": part(lambda p, n, d: (p[0] + p[1] * (d - n), 0, 0, 0), SIZE, TURN),
    # ludziejewski's, in the exponents of the two terms: A Xhat^-u0 N^(-alpha + u1 ln Xhat), and so the data.
    "shift": part(lambda p, n, d: (p[0] - p[1] * n, p[2] - p[3] * d, 0, 0), SIZE, TURN, DATUM, TURN),
}


def ln_gain(ln_start: Complex | float, ln_max: Complex | float, x: np.ndarray) -> Complex:
    """ln(Xhat / Xhat(1)) of Clark et al."""
    gap = np.exp(-ln_start) - np.exp(-ln_max)
    return -np.log(gap / ((x - 1) * gap + 1) + np.exp(-ln_max)) - ln_start


CEILING = logs(4.0, 1e4), logs(4.0, 1e4)  # the lower limit is raised to half of the largest X of the runs
CEILINGS = {
    "none": part(lambda p, x: np.log(x)),
    "max": part(lambda p, x: ln_gain(0.0, p[0], x), CEILING),
    "both": part(lambda p, x: ln_gain(p[1] * p[0], p[0], x), CEILING, ((0.0, 0.95), (0.0, 0.999))),
}


@dataclass(frozen=True)
class Runs:
    """ln N, ln D in units of the search, X, ln L, and D / n_params_dense."""

    n: np.ndarray
    d: np.ndarray
    x: np.ndarray
    ln_loss: np.ndarray

    def where(self, keep: np.ndarray) -> Runs:
        return Runs(self.n[keep], self.d[keep], self.x[keep], self.ln_loss[keep])


@dataclass(frozen=True)
class Repeats(Runs):
    """Runs with ln of their unique tokens, in units of the search."""

    u: np.ndarray

    def where(self, keep: np.ndarray) -> Repeats:
        return Repeats(self.n[keep], self.d[keep], self.x[keep], self.ln_loss[keep], self.u[keep])


def saturated(p: Complex, runs: Repeats) -> Complex:
    """ln of U + U R_D (1 - exp(-(D/U - 1) / R_D))."""
    r = np.exp(p[0])
    return runs.u + np.log(1 + r * -(np.exp(-np.maximum(np.expm1(runs.d - runs.u), 0.0) / r) - 1))


COUNTED = {
    "D": part(lambda p, runs: runs.d),
    "R_D": part(saturated, (logs(2.0, 100.0), logs(0.01, 1e4))),
}


def ln_excess(p: Complex, runs: Repeats) -> Complex:
    """ln of e^c0 (N/U)^c1 (epochs - 1)^c2, which needs c2 > 0."""
    return p[0] + p[1] * (runs.n - runs.u) + p[2] * np.log(np.maximum(np.expm1(runs.d - runs.u), 1e-6))


LEVEL, POWER = ((-12.0, 2.0), (-40.0, 10.0)), ((0.2, 2.0), (0.0, 4.0))
TOP = (4.0, 10.0), (0.5, 40.0)
# What overfitting adds to the loss.
OVER = {
    "none": part(lambda p, runs: 0.0),
    "NU": part(lambda p, runs: np.exp(ln_excess(p, runs)), LEVEL, POWER, POWER),
    "NU-top": part(lambda p, runs: p[3] / (1 + np.exp(-ln_excess(p, runs))), LEVEL, POWER, POWER, TOP),
    "NUD": part(lambda p, runs: np.exp(ln_excess(p, runs) - p[3] * runs.u), LEVEL, POWER, POWER, TURN),
    "NUD-top": part(
        lambda p, runs: p[3] / (1 + np.exp(-ln_excess(p, runs) + p[4] * runs.u)), LEVEL, POWER, POWER, TOP, TURN
    ),
}


class Form:
    """A named combination of parts: ln F, ln S, then the parameters of dense, data, gain and ceiling."""

    def __init__(self, name: str) -> None:
        self.name = name
        dense, data, gain, ceiling = (*name.split(":"), "loss", "none")[:4]
        self.routed = name.count(":") == 3
        self.parts = [DENSE[dense], DATA[data]] + ([GAINS[gain], CEILINGS[ceiling]] if self.routed else [])
        self.ends = np.cumsum([2, *(len(one.ranges) for one in self.parts)])
        self.ranges = np.array([r for one in self.parts for r in one.ranges])
        self.size = int(self.ends[-1])
        self.has_ceiling = self.routed and ceiling != "none"

    def terms(self, p: Complex, runs: Runs) -> tuple[Complex, Complex]:
        """ln of the norm and ln of what multiplies the whole loss, for parameters (p, ..., 1)."""
        own = [p[a:b] for a, b in itertools.pairwise(self.ends)]
        alpha, ratio, beta, kappa = self.parts[0].function(own[0])  # pyright: ignore
        e: Any = 0.0
        n: Any = runs.n
        d: Any = self.parts[1].function(own[1], runs.d)
        more_n: Any = 0.0
        more_d: Any = 0.0
        reducible: Any = 0.0
        whole: Any = 0.0
        if self.routed:
            e = self.parts[3].function(own[3], runs.x)
            more_n, more_d, reducible, whole = self.parts[2].function(own[2], runs.n, runs.d)  # pyright: ignore
        s, t = -alpha * (n + more_n * e), ratio - beta * (d + more_d * e)
        return kappa * _ln_sum(s / kappa, t / kappa) - reducible * e, -whole * e

    def added(self, p: Complex, runs: Runs) -> Complex:
        """What is added to F and the norm."""
        return np.zeros(1)

    def log_loss(self, p: Complex, runs: Runs) -> Complex:
        """ln L of each run."""
        norm, whole = self.terms(p, runs)
        return np.log(np.exp(p[0]) + np.exp(p[1] + norm) + self.added(p, runs)) + whole

    def box(self, runs: Runs) -> np.ndarray:
        """Hard limits, (p, 2)."""
        limits: list[Range] = [(np.log(1e-6), float(runs.ln_loss.min())), (-14.0, 60.0)]
        limits += [r for one in self.parts for r in one.limits]
        out = np.array(limits)
        if self.has_ceiling:
            out[self.ends[3], 0] = np.log(max(4.0, float(runs.x.max()) / 2))
        return out


class RepeatedForm(Form):
    """dense:data:counted:over, for runs with repeated data."""

    def __init__(self, name: str) -> None:
        dense, data, counted, over = name.split(":")
        super().__init__(f"{dense}:{data}")
        self.name, self.parts = name, [*self.parts, COUNTED[counted], OVER[over]]
        self.ends = np.cumsum([2, *(len(one.ranges) for one in self.parts)])
        self.ranges = np.array([r for one in self.parts for r in one.ranges])
        self.size = int(self.ends[-1])

    def terms(self, p: Complex, runs: Runs) -> tuple[Complex, Complex]:
        """The dense norm of the tokens as they count."""
        counted = self.parts[2].function(p[self.ends[2] : self.ends[3]], runs)
        return super().terms(p, Runs(runs.n, counted, runs.x, runs.ln_loss))  # pyright: ignore

    def added(self, p: Complex, runs: Runs) -> Complex:
        """What overfitting adds."""
        return self.parts[3].function(p[self.ends[3] :], runs)  # pyright: ignore


def _ln_sum(a: Any, b: Any) -> Complex:
    top = np.maximum(a.real, b.real)
    return top + np.log(np.exp(a - top) + np.exp(b - top))


def scan(form: Form, runs: Runs, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The best points of a random scan of the shape, F and S by least squares of the relative error, (POLISHED, p)."""
    shape = np.random.default_rng(0).uniform(*form.ranges.T, size=(SCANNED, len(form.ranges)))
    p = np.vstack((np.zeros((2, SCANNED)), np.clip(shape, low[2:] + 1e-9, high[2:] - 1e-9).T))[..., None]
    norm, whole = form.terms(p + 0j, runs)
    one = np.broadcast_to(np.exp(np.real(whole) - runs.ln_loss), (SCANNED, runs.n.size))
    two = one * np.exp(np.real(norm))
    more = np.real(form.added(p + 0j, runs)) * one
    aa, ab, bb = (one**2).sum(1), (one * two).sum(1), (two**2).sum(1)
    a, b = (one * (1 - more)).sum(1), (two * (1 - more)).sum(1)
    floor = np.clip((a * bb - b * ab) / (aa * bb - ab**2 + 1e-300), 0.0, np.exp(high[0]) * (1 - 1e-6))
    scale = np.maximum((b - floor * ab) / bb, 1e-6)
    p[0, :, 0], p[1, :, 0] = np.log(np.maximum(floor, 2e-6)), np.log(scale)
    error = np.abs(np.log(np.maximum(floor[:, None] * one + scale[:, None] * two + more, 1e-300))).sum(1)
    return p[:, np.argsort(error)[:POLISHED], 0].T


def fit(form: Form, runs: Runs) -> np.ndarray:
    """Least squares of the Huber objective from the best points of a scan."""
    low, high = form.box(runs).T

    def residual(p: Complex) -> np.ndarray:
        return np.real(form.log_loss(p[:, None] + 0j, runs) - runs.ln_loss)

    def slope(p: np.ndarray) -> np.ndarray:
        steps = p[:, None] + 1e-30j * np.eye(p.size)
        return np.imag(np.broadcast_to(form.log_loss(steps[..., None], runs), (p.size, runs.n.size))).T / 1e-30

    with np.errstate(all="ignore"):
        found = [
            least_squares(residual, np.clip(start, low + 1e-9, high - 1e-9), jac=slope, bounds=(low, high),  # pyright: ignore
                          loss="huber", f_scale=HUBER_DELTA, x_scale="jac", max_nfev=120)
            for start in scan(form, runs, low, high)
        ]  # fmt: skip
    return min(found, key=lambda one: one.cost).x


def rmsle(form: Form, p: np.ndarray, runs: Runs) -> float:
    """In thousandths."""
    return 1e3 * float(np.sqrt(np.mean(np.real(form.log_loss(p[:, None] + 0j, runs) - runs.ln_loss) ** 2)))


def held_out(form: Form, runs: Runs, train: np.ndarray, test: np.ndarray) -> float:
    """RMSLE of one split."""
    return rmsle(form, fit(form, runs.where(train)), runs.where(test))


def is_physical(form: Form, p: np.ndarray) -> bool:
    """Whether the loss nowhere rises with N, D or X on the grid of the rule."""
    n, r, x = np.meshgrid(np.geomspace(1e7, 1e11, 25), np.geomspace(2, 2000, 19), np.geomspace(1, 512, 19))
    ok = True
    for up in ((1.02, 1.0, 1.0), (1.0, 1.02, 1.0), (1.0, 1.0, 1.02)):
        here, there = (
            np.real(form.log_loss(p[:, None] + 0j, Runs(np.log(n * a).ravel() - LN_N, np.log(n * r * b).ravel() - LN_D,
                                                        (x * c).ravel(), np.zeros(n.size))))
            for a, b, c in ((1.0, 1.0, 1.0), up)
        )  # fmt: skip
        ok &= bool((there <= here + 1e-9).all())
    return ok


def read(name: str, **columns: str) -> dict[str, np.ndarray]:
    """Columns of a public table, with D / n_params_dense >= 2 and without OLMo's targets."""
    with (PUBLIC / f"{name}.csv").open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    rows = [r for r in rows if float(r["tokens"]) / float(r["n_params_dense"]) >= 2]
    rows = [r for r in rows if not (name == "olmo_ladder" and r["run_id"].startswith(("7B", "13B")))]
    return {key: np.array([float(r[column]) for r in rows]) for key, column in columns.items()}


def as_runs(n: np.ndarray, d: np.ndarray, x: np.ndarray, loss: np.ndarray) -> Runs:
    return Runs(np.log(n) - LN_N, np.log(d) - LN_D, x, np.log(loss))


Split = tuple[np.ndarray, np.ndarray]  # rows to fit to, rows to predict
DENSE_SOURCES = {
    "gadre": ("gadre_c4", "gadre_rpj", "gadre_rw"),
    "porian": ("porian_rw_chin", "porian_owt_chin"),
    "gemstones": ("gemstones_cool",),
    "olmo": ("olmo_ladder",),
}


def above(runs: Runs, among: np.ndarray) -> Iterable[Split]:
    """Splits of the rows `among`: strictly above the 75% quantile of N, D, N D and D / N."""
    for v in (runs.n, runs.d, runs.n + runs.d, runs.d - runs.n):
        high = v > np.quantile(v[among], 0.75) + 1e-9
        if (among & high).any():
            yield among & ~high, among & high


def dense_splits(runs: Runs) -> tuple[list[Split], list[Split]]:
    """Inner and outer splits of a dense table."""
    outer = list(above(runs, np.ones(runs.n.size, bool)))
    return [split for train, _ in outer for split in above(runs, train)], outer


def joint() -> tuple[Runs, list[Split], list[Split]]:
    """The runs of arXiv 2502.05172 with their inner and outer splits."""
    t = read("joint_moe_runs", n="n_params_active", b="n_params_active_nonemb", d="tokens", e="n_experts", loss="loss")
    n, d, e = t["n"], t["d"], t["e"]
    shared = (d < 12e9) & (e <= 8) & (n < 6e8)
    inner = [(shared & train, shared & ~train) for train in (d < 5e9, d < 8e9, e <= 4, e <= 2, n < 2e8, n < 3e8)]
    return as_runs(t["b"], d, e, t["loss"]), inner, [(train, ~train) for train in (d < 12e9, e <= 8, n < 6e8)]


def routing() -> tuple[Runs, list[Split], list[Split]]:
    """S-Base of arXiv 2202.01169: every other layer is routed, X = (1 + E) / 2."""
    t = read("routing_S-Base", b="n_params_nonemb", d="tokens", e="n_experts", loss="loss")
    few = [v <= np.quantile(v, 0.75) for v in (t["b"], t["e"])]
    shared = few[0] & few[1]
    cuts = [v < np.unique(v[shared])[-k] for v in (t["b"], t["e"]) for k in (1, 2)]
    runs = as_runs(t["b"], t["d"], 0.5 * t["e"] + 0.5, t["loss"])
    return runs, [(shared & cut, shared & ~cut) for cut in cuts], [(one, ~one) for one in few]


def mean(values: Iterable[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(list(values)))))


def choose(scores: Mapping[str, Mapping[str, float]], sources: list[str], ok: Callable[[str], bool]) -> str:
    """The rule: within 5% of the best over these sources the fewest parameters, among equals the best."""
    total = {name: mean(by[s] for s in sources) for name, by in scores.items() if ok(name)}
    near = [name for name, value in total.items() if value <= TIE * min(total.values())]
    return min(near, key=lambda name: (Form(name).size, total[name]))


def report(names: list[str], sources: dict[str, list[tuple[Runs, list[Split], list[Split]]]], physical: bool) -> None:
    """Score every candidate, apply the rule, print."""
    began = time.perf_counter()
    inner: dict[str, dict[str, float]] = {}
    outer: dict[str, dict[str, list[float]]] = {}
    sound: dict[str, dict[str, bool]] = {}
    for name in names:
        form = Form(name)
        inner[name], outer[name], sound[name] = {}, {}, {}
        for source, tables in sources.items():
            inner[name][source] = mean(held_out(form, runs, *s) for runs, splits, _ in tables for s in splits)
            outer[name][source] = [held_out(form, runs, *s) for runs, _, splits in tables for s in splits]
            sound[name][source] = not physical or all(is_physical(form, fit(form, runs)) for runs, *_ in tables)
        cells = [f"{inner[name][s]:.2f}{'' if sound[name][s] else ' (rises)'}" for s in sources]
        total = mean(inner[name].values())
        beyond = [
            " ".join(f"{v:.2f}" for v in (outer[name][s] if physical else [mean(outer[name][s])])) for s in sources
        ]
        print(f"| {name} | {form.size} | {total:.2f} | " + " | ".join(cells + beyond) + " |", flush=True)
    everyone = list(sources)
    for left in [None, *sources]:
        deciding = [s for s in everyone if s != left]
        chosen = choose(inner, deciding, lambda name: all(sound[name][s] for s in deciding))  # noqa: B023
        values = f"outer {outer[chosen][left]}, mean {mean(outer[chosen][left]):.2f}" if left else "ships"
        print(f"without {left}: {chosen}; {values}")
    print(f"{time.perf_counter() - began:.0f} s; RMSLE in 1e-3")


def repeated(dense: str) -> None:
    """Score every candidate for repeated data, apply the rule, print."""
    with (PUBLIC / "datablations.csv").open(newline="") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    n, d, u, loss = (
        np.array([float(r[k]) for r in rows]) for k in ("n_params_dense", "tokens", "unique_tokens", "loss")
    )
    runs = Repeats(np.log(n) - LN_N, np.log(d) - LN_D, np.ones(n.size), np.log(loss), np.log(u) - LN_D)
    test = (u >= 6e11) | (n >= 4.2465e9)
    # Overfitted or diverged: 1% above a run of the same unique tokens with less of size or tokens and no more of the other.
    less = (u[:, None] == u) & (n <= n[:, None]) & (d <= d[:, None])
    clean = ~(less & (loss * 1.01 < loss[:, None])).any(1)
    which = {"all": np.ones(n.size, bool), "clean": clean, "D/N": d / n >= 2, "clean, D/N": clean & (d / n >= 2)}
    inner = [n >= 2.8e9, n >= 1.5e9]
    scores: dict[tuple[str, str], tuple[float, int]] = {}

    def error(form: Form, train: np.ndarray) -> np.ndarray:
        p = fit(form, runs.where(train))
        return np.exp(np.real(form.log_loss(p[:, None] + 0j, runs))) - loss

    print("| form | rows | p | inner | N >= 2.8e9 | N >= 1.5e9 | R2 | R2 of clean rows | bias |")
    for (counted, over), rows_name in itertools.product(itertools.product(COUNTED, OVER), which):
        form, kept = RepeatedForm(f"{dense}:{counted}:{over}"), which[rows_name]
        within = [float(np.sqrt(np.mean(error(form, kept & ~test & ~cut)[~test & cut] ** 2))) for cut in inner]
        scores[form.name, rows_name] = mean(within), form.size
        off = error(form, kept & ~test)
        r2, r2_clean = (1 - (off[t] ** 2).sum() / ((loss[t] - loss[t].mean()) ** 2).sum() for t in (test, test & clean))
        bias = float(np.mean(off[test] / loss[test]))
        cells = [f"{v:.3f}" for v in (scores[form.name, rows_name][0], *within, r2, r2_clean, bias)]
        print(f"| {form.name} | {rows_name} | {form.size} | " + " | ".join(cells) + " |", flush=True)
    near = [key for key, (value, _) in scores.items() if value <= TIE * min(v for v, _ in scores.values())]
    print("chosen:", min(near, key=lambda key: (scores[key][1], scores[key][0])))
    print(f"{int(test.sum())} rows held out, {int((~test & ~clean).sum())} of {int((~test).sum())} others not clean")


def main() -> None:
    """Print candidates with inner scores and outer errors by source, then what the rule chooses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stage", choices=("dense", "experts", "repeated"))
    parser.add_argument("--gains", nargs="+", default=list(GAINS), help="the gains of the second stage")
    parser.add_argument("--ceilings", nargs="+", default=list(CEILINGS), help="the ceilings of the second stage")
    parser.add_argument(
        "--dense",
        nargs="+",
        default=[],
        help="dense parts: of the first stage without D or D_0, of the later ones with it",
    )
    options = parser.parse_args()
    if options.stage == "repeated":
        repeated(options.dense[0])
    elif options.stage == "dense":
        tables = {
            source: [
                as_runs(t["b"], t["d"], np.ones(t["d"].size), t["loss"])
                for t in (read(name, b="n_params_nonemb", d="tokens", loss="loss") for name in names)
            ]
            for source, names in DENSE_SOURCES.items()
        }
        split = {source: [(runs, *dense_splits(runs)) for runs in some] for source, some in tables.items()}
        report([f"{a}:{b}" for a, b in itertools.product(options.dense or DENSE, DATA)], split, physical=False)
    else:
        names = [
            f"{dense}:{a}:{b}" for dense, a, b in itertools.product(options.dense, options.gains, options.ceilings)
        ]
        report(names, {"joint": [joint()], "routing": [routing()]}, physical=True)


if __name__ == "__main__":
    main()

"""Loss-optimal size and tokens without a law: IsoFLOP parabolas and their power laws N_opt = k C^a, D_opt = k' C^b.

Approach 2 of Hoffmann et al. 2022 (arXiv 2203.15556, section 3.2); a fitted law whose form holds has none of its bias.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.io.records import Record, record
from moescale.runs.table import RunTable
from moescale.typing import FloatArray, Real
from moescale.units import format_count, format_flops, plural

MIN_SIZES = 4  # of a budget: three points fix a parabola and leave nothing to judge it by
TOLERANCE = 0.05  # relative spread in FLOPs of the runs that count as one budget
# tests/unit/test_isoflop.py measures both: sizes 4 times either side of the optimum displace it by 0.4 to 7%, and one list of
# sizes for budgets over four decades bends the exponent by -0.07 of 0.51.
WIDE = 16.0  # factor between the smallest and the largest size of a budget
DRIFT = 4.0  # factor by which the place of the sizes around the minimum changes between budgets

IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = coefficient * FLOPs^exponent, by least squares on logarithms; `scatter` is the rms of ln y about the line.

    `standard_error` and the 90% `interval` are the exponent's, by that scatter and Student's t; None for two points.
    """

    coefficient: float
    exponent: float
    standard_error: float | None
    interval: tuple[float, float] | None
    scatter: float
    n_points: int

    def at(self, flops: Real) -> Real:
        """y at budgets of any shape."""
        return self.coefficient * flops**self.exponent


@dataclass(frozen=True, slots=True)
class Trend:
    """How the loss-optimal size and tokens of one expert count grow with training FLOPs, and over which FLOPs that is known."""

    experts: float
    n_params: PowerLaw
    tokens: PowerLaw
    flops_range: tuple[float, float]

    def optimum(self, flops: float) -> dict[str, float]:
        """Experts, size and tokens of the loss-optimal model of a budget, and how many times it lies beyond the known range."""
        low, high = self.flops_range
        sizes = {"n_params": float(self.n_params.at(flops)), "tokens": float(self.tokens.at(flops))}
        return {"experts": self.experts, "flops": flops, **sizes, "extrapolation": max(flops / high, low / flops, 1.0)}


@dataclass(frozen=True, slots=True)
class Minimum:
    """The loss-optimal model of a budget."""

    n_params: float
    tokens: float
    loss: float


@dataclass(frozen=True, slots=True)
class Parabola:
    """The runs of one budget and expert count; `flops` is the geometric mean of theirs.

    `unusable` says why no `minimum` is taken from their parabola: too few sizes, or a minimum that the sizes do not
    enclose.
    """

    flops: float
    experts: float
    sizes: FloatArray  # (n,) of the runs
    minimum: Minimum | None
    unusable: str | None

    @property
    def label(self) -> str:
        """Budget and expert count, for messages."""
        return f"{format_flops(self.flops)} FLOPs, {plural(self.experts, 'expert')}"

    @property
    def centre(self) -> float:
        """The geometric mean of the sizes."""
        return _mean(self.sizes)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        shown = record(self, without=("sizes",))
        return {**shown, "n_runs": int(self.sizes.size), "n_sizes": int(np.unique(self.sizes).size)}


@dataclass(frozen=True, slots=True)
class IsoFlop(Record):
    """What approach 2 finds: a parabola for each budget, a trend for each expert count, and what was left out."""

    budgets: tuple[Parabola, ...]
    trends: tuple[Trend, ...]
    n_unused: int  # runs of no budget
    warnings: tuple[str, ...]


def isoflop(runs: RunTable, *, tolerance: float = TOLERANCE) -> IsoFlop:
    """Loss-optimal exponents by a parabola of loss in ln N at each budget (approach 2 of Hoffmann et al. 2022).

    Runs that span at most `tolerance` in 6 N D are one budget. InputError without two budgets of MIN_SIZES sizes whose
    minimum lies between them. Known bias (Czech et al. 2026, arXiv 2603.22339): the loss is a sum of two exponentials
    in ln N, so sizes far from the optimum displace the minimum, and sizes whose place around it drifts with the budget
    bias the exponent; no interval knows of it.
    """
    if not all((np.isfinite(v) & (v > 0)).all() for v in (runs.n_params, runs.tokens, runs.loss)):
        what = "a size, token count, loss or FLOPs is missing or not positive"
        raise InputError(what, next_step="give one number a run")
    flops = 6.0 * runs.n_params * runs.tokens
    budgets: list[Parabola] = []
    trends: list[Trend] = []
    warnings: list[str] = []
    for count in np.unique(runs.experts):
        mine = np.flatnonzero(runs.experts == count)
        groups = [mine[group] for group in _groups(flops[mine], tolerance)]
        found = [_parabola(runs, flops, rows) for rows in groups if np.unique(runs.n_params[rows]).size >= MIN_SIZES]
        budgets += found
        name = plural(float(count), "expert")
        warnings += [f"{p.label}: left out, {p.unusable}" for p in found if p.unusable]
        usable = [p for p in found if p.minimum is not None]
        if len(usable) >= 2:
            trend, notes = _trend(usable)
            trends.append(trend)
            warnings += [f"{name}: {note}" for note in notes]
        elif found:
            warnings.append(f"{name}: {len(usable)} usable budgets, so no power law (2 are needed)")
    if not trends:
        what = f"no expert count has two budgets of {MIN_SIZES} sizes (runs within {tolerance:.0%}) with a minimum between its sizes"
        seen = "; ".join(f"{p.label}: {p.unusable or 'usable'}" for p in budgets[:6])
        what = f"{what} ({seen})" if seen else f"these {len(runs)} runs have no IsoFLOP structure: {what}"
        advice = "train sizes on both sides of the minimum at two budgets or more, widen the tolerance, or fit a law"
        raise InputError(what, next_step=f"{advice}, which accepts any grid of N and D")
    n_unused = len(runs) - sum(p.sizes.size for p in budgets)
    if n_unused:
        warnings.append(f"{n_unused} of {len(runs)} runs belong to no budget of at least {MIN_SIZES} sizes")
    return IsoFlop(tuple(budgets), tuple(trends), n_unused, tuple(warnings))


def _groups(flops: FloatArray, tolerance: float) -> Iterator[IntArray]:
    """Runs in groups that span at most a factor 1 + tolerance in FLOPs, by rising FLOPs."""
    order = np.argsort(flops, kind="stable")
    ordered = flops[order]
    first = 0
    while first < order.size:
        last = int(np.searchsorted(ordered, ordered[first] * (1.0 + tolerance) * (1.0 + 1e-12), side="right"))
        yield order[first:last]
        first = last


def _parabola(runs: RunTable, flops: FloatArray, rows: IntArray) -> Parabola:
    n, y = runs.n_params[rows], runs.loss[rows]
    centre = _mean(n)
    coefficients = np.polyfit(np.log(n / centre), y, 2)  # of the loss in u = ln(N / centre)
    c2, c1, _ = coefficients
    best = centre * float(np.exp(-0.5 * c1 / c2)) if c2 > 0 else math.nan
    sizes = np.unique(n)
    lowest = int(np.argmin([y[n == size].mean() for size in sizes]))
    end = f"{'largest' if lowest else 'smallest'} size ({format_count(float(sizes[lowest]))})"
    faults = {
        "the loss does not curve upwards": not c2 > 0,
        f"the {end} has the lowest loss: the minimum lies beyond the sizes": lowest in (0, sizes.size - 1),
        "the parabola's minimum lies outside the sizes": not sizes[0] < best < sizes[-1],
    }
    why = next((why for why, applies in faults.items() if applies), None)
    # Tokens of the budget are a power law of the size, exact where C is proportional to N D.
    slope, level = np.polyfit(np.log(n), np.log(runs.tokens[rows]), 1)
    tokens = float(np.exp(level + slope * np.log(best)))
    minimum = Minimum(best, tokens, float(np.polyval(coefficients, np.log(best / centre))))
    return Parabola(_mean(flops[rows]), float(runs.experts[rows[0]]), n, None if why else minimum, why)


def _mean(values: FloatArray) -> float:
    """The geometric mean."""
    return float(np.exp(np.log(values).mean()))


def _trend(usable: list[Parabola]) -> tuple[Trend, list[str]]:
    minima = [p.minimum for p in usable if p.minimum is not None]
    flops = np.array([p.flops for p in usable])
    n_params, tokens = (np.array([getattr(m, name) for m in minima]) for name in ("n_params", "tokens"))
    ends = (float(flops.min()), float(flops.max()))
    trend = Trend(usable[0].experts, _power_law(flops, n_params), _power_law(flops, tokens), ends)
    width = max(float(p.sizes.max() / p.sizes.min()) for p in usable)
    places = np.array([p.centre for p in usable]) / n_params
    drift = float(places.max() / places.min())
    notes = {
        "only two usable budgets: the power law cannot be checked": len(usable) == 2,
        f"the sizes of a budget span a factor of {width:.3g}: the parabola then shifts the minimum by some percent, which the "
        "intervals do not include": width > WIDE,
        f"the sizes are at different multiples of the minimum at each budget (by a factor of {drift:.3g}): this biases "
        "the exponents beyond their intervals; scale the sizes with the budget, or fit a law": drift > DRIFT,
    }
    return trend, [note for note, applies in notes.items() if applies]


def _power_law(flops: FloatArray, y: FloatArray) -> PowerLaw:
    from scipy.special import stdtrit  # here: it takes as long to load as NumPy

    ln_c, ln_y = np.log(flops), np.log(y)
    exponent, level = np.polyfit(ln_c, ln_y, 1)
    squares, spare = float(((ln_y - level - exponent * ln_c) ** 2).sum()), ln_y.size - 2
    error, bounds = None, None
    if spare:
        error = float(np.sqrt(squares / spare / ((ln_c - ln_c.mean()) ** 2).sum()))
        reach = error * float(stdtrit(spare, 0.95))
        bounds = (float(exponent - reach), float(exponent + reach))
    scatter = float(np.sqrt(squares / ln_y.size))
    return PowerLaw(float(np.exp(level)), float(exponent), error, bounds, scatter, ln_y.size)

"""Loss-optimal size and tokens without a parametric law: IsoFLOP parabolas and the envelope of training curves.

These are approaches 2 and 1 of Hoffmann et al. 2022 (arXiv 2203.15556, sections 3.2 and 3.1). Both end in power laws
N_opt = k C^a and D_opt = k' C^b. Both are biased in known ways, which their functions state; a fitted law
(approach 3, `moescale.fitting.fit`) has neither bias if its form holds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.typing import FloatArray
from moescale.units import format_count, format_flops

MIN_SIZES = 4  # of a budget: three points fix a parabola and leave nothing to judge it by
TOLERANCE = 0.05  # relative spread in FLOPs of the runs that count as one budget
MAX_GAP = 4.0  # factor in FLOPs between neighbouring points of a training curve that are joined
PER_DECADE = 50  # FLOP values of the envelope
LEVEL = 0.9  # of the intervals
CHUNK_ELEMENTS = 4_000_000  # of a bootstrap's arrays: 32 MB

IntArray = npt.NDArray[np.intp]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """y = coefficient * FLOPs^exponent, by least squares on logarithms.

    `standard_error` and the 90% `interval` are the exponent's, from a bootstrap; None where the data leave nothing to judge
    them by. `scatter` is the root mean square of ln y about the line.
    """

    coefficient: float
    exponent: float
    standard_error: float | None
    interval: tuple[float, float] | None
    scatter: float
    n_points: int

    def at(self, flops: FloatArray) -> FloatArray:
        """y at budgets of any shape."""
        return self.coefficient * np.asarray(flops, dtype=float) ** self.exponent

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        return _present(
            coefficient=self.coefficient,
            exponent=self.exponent,
            standard_error=self.standard_error,
            interval=list(self.interval) if self.interval else None,
            scatter=self.scatter,
            n_points=self.n_points,
        )


@dataclass(frozen=True, slots=True)
class Trend:
    """How the loss-optimal size and tokens of one expert count grow with training FLOPs, and over which FLOPs that is known."""

    experts: float
    n_params: PowerLaw
    tokens: PowerLaw
    flops_range: tuple[float, float]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "experts": self.experts,
            "n_params": self.n_params.to_dict(),
            "tokens": self.tokens.to_dict(),
            "flops_range": list(self.flops_range),
        }


@dataclass(frozen=True, slots=True)
class Parabola:
    """The runs of one budget and expert count, and the parabola loss = c0 + c1 u + c2 u^2, u = ln(N / centre).

    `flops` is the geometric mean of the runs' FLOPs. `unusable` says why no minimum is taken from it (too few sizes, or a
    minimum that the sizes do not enclose); the minimum's figures are then NaN. `rows` are positions in the table.
    """

    flops: float
    experts: float
    rows: IntArray
    sizes: FloatArray  # (n,) of the runs
    losses: FloatArray  # (n,)
    centre: float
    coefficients: FloatArray  # (3,), NaN with fewer than three sizes
    n_params_optimal: float
    tokens_optimal: float
    loss_optimal: float
    rmse: float  # of the loss about the parabola
    unusable: str | None

    @property
    def n_sizes(self) -> int:
        """How many different sizes the budget holds."""
        return int(np.unique(self.sizes).size)

    def loss(self, n_params: FloatArray) -> FloatArray:
        """The parabola at sizes of any shape."""
        u = np.log(np.asarray(n_params, dtype=float) / self.centre)
        c0, c1, c2 = self.coefficients
        return c0 + c1 * u + c2 * u**2

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; keys that do not apply are absent."""
        return _present(
            flops=self.flops,
            experts=self.experts,
            n_runs=int(self.sizes.size),
            n_sizes=self.n_sizes,
            n_params_optimal=self.n_params_optimal,
            tokens_optimal=self.tokens_optimal,
            loss_optimal=self.loss_optimal,
            rmse=self.rmse,
            unusable=self.unusable,
        )


@dataclass(frozen=True, slots=True)
class IsoFlop:
    """What approach 2 finds: a parabola for each budget, a trend for each expert count, and what was left out."""

    parabolas: tuple[Parabola, ...]
    trends: tuple[Trend, ...]
    unused: tuple[int, ...]  # runs of no budget
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "method": "isoflop",
            "budgets": [p.to_dict() for p in self.parabolas],
            "trends": [t.to_dict() for t in self.trends],
            "unused": list(self.unused),
            "warnings": list(self.warnings),
        }


@dataclass(frozen=True, slots=True)
class EnvelopePoint:
    """The run with the lowest loss at a number of FLOPs; `bracketed` if a smaller and a larger size were there to lose."""

    flops: float
    experts: float
    n_params: float
    tokens: float
    loss: float
    bracketed: bool

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Envelope:
    """What approach 1 finds: the lower envelope of the training curves and a trend for each expert count."""

    points: tuple[EnvelopePoint, ...]
    trends: tuple[Trend, ...]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return {
            "method": "envelope",
            "points": [p.to_dict() for p in self.points],
            "trends": [t.to_dict() for t in self.trends],
            "warnings": list(self.warnings),
        }


def isoflop(
    n_params: FloatArray,
    tokens: FloatArray,
    loss: FloatArray,
    flops: FloatArray,
    experts: FloatArray | None = None,
    *,
    budgets: Sequence[float] | None = None,
    tolerance: float = TOLERANCE,
    min_sizes: int = MIN_SIZES,
    replicates: int = 1000,
    seed: int = 0,
) -> IsoFlop:
    """Loss-optimal exponents by a parabola of loss in ln N at each budget (approach 2 of Hoffmann et al. 2022).

    Arrays of shape (n,): runs of a budget are those within `tolerance` of one of `budgets`, or, without `budgets`, groups
    that span at most `tolerance` in FLOPs. Each expert count has its own budgets and its own trend. Standard errors are of a
    bootstrap of the parabolas' residuals. Nothing is interpolated between budgets: a table without at least two budgets of
    `min_sizes` sizes whose minimum lies between the sizes raises InputError, and so does a given budget with too few sizes.

    Known bias (Czech et al. 2026, arXiv 2603.22339): at fixed FLOPs the loss is a sum of two exponentials in ln N, not a
    parabola, so the minimum is displaced unless both exponents are equal or all sizes are close to the optimum. For
    L = E + A/N^alpha + B/D^beta the displacement is the same factor at every budget as long as the sizes stand at the same
    multiples of the optimum: then the coefficient is wrong and the exponent right. Sizes whose place around the optimum
    drifts with the budget, such as one list of sizes for all budgets, bias the exponent too: by -0.07 over four decades in
    tests/test_isoflop.py, which measures each case. The standard error knows nothing of it.
    """
    n, d, y, c, e = _columns(n_params, tokens, loss, flops, experts)
    _check_options(tolerance, min_sizes, replicates)
    warnings: list[str] = []
    parabolas: list[Parabola] = []
    trends: list[Trend] = []
    used = np.zeros(n.size, dtype=bool)
    rng = np.random.default_rng(seed)
    for count in np.unique(e):
        mine = np.flatnonzero(e == count)
        groups = _groups(c[mine], tolerance) if budgets is None else _assigned(c[mine], budgets, tolerance)
        found: list[Parabola] = []
        for group in groups:
            rows = mine[group]
            if rows.size == 0 or (budgets is None and np.unique(n[rows]).size < min_sizes):
                continue  # stray runs of no budget
            used[rows] = True
            found.append(_parabola(n[rows], d[rows], y[rows], c[rows], float(count), rows, min_sizes))
        parabolas.extend(found)
        for p in found:
            if p.unusable and budgets is not None and p.n_sizes < min_sizes:
                raise InputError(
                    f"the budget of {format_flops(p.flops)} FLOPs ({_experts(p.experts)}) is not usable: {p.unusable}",
                    next_step=f"train at least {min_sizes} sizes at it, or leave it out of the budgets",
                )
            if p.unusable:
                warnings.append(f"{format_flops(p.flops)} FLOPs, {_experts(p.experts)}: left out, {p.unusable}")
        usable = [p for p in found if p.unusable is None]
        if len(usable) == 2:
            warnings.append(
                f"{_experts(float(count))}: two usable budgets, so nothing checks that the minima follow a power law"
            )
        if len(usable) >= 2:
            trends.append(_isoflop_trend(usable, d, c, replicates, rng, warnings))
        elif found:
            warnings.append(f"{_experts(float(count))}: {len(usable)} usable budgets, so no power law (2 are needed)")
    if not trends:
        raise _no_structure(n, c, e, parabolas, tolerance, min_sizes)
    unused = np.flatnonzero(~used)
    if unused.size:
        warnings.append(f"{unused.size} of {n.size} runs belong to no budget of at least {min_sizes} sizes")
    return IsoFlop(tuple(parabolas), tuple(trends), tuple(int(i) for i in unused), tuple(warnings))


def envelope(
    n_params: FloatArray,
    tokens: FloatArray,
    loss: FloatArray,
    flops: FloatArray,
    experts: FloatArray | None = None,
    *,
    runs: npt.NDArray[np.generic] | None = None,
    per_decade: int = PER_DECADE,
    max_gap: float = MAX_GAP,
    replicates: int = 1000,
    seed: int = 0,
) -> Envelope:
    """Loss-optimal exponents by the lower envelope of loss over FLOPs (approach 1 of Hoffmann et al. 2022).

    Arrays of shape (n,) hold points of training curves; `runs` names each point's curve (default: one curve for each size
    and expert count). As in the publication a curve is read at `per_decade` FLOP values a decade, linearly in ln L and ln FLOPs
    between neighbouring points, at most a factor `max_gap` apart, and never beyond its ends. At each FLOP value the size
    with the lowest loss counts, but only where a smaller and a larger one are there to lose; elsewhere it is flagged and not
    used. Standard errors come from a bootstrap of whole curves, which thins the sizes and so rather overstates them. Raises
    InputError where fewer than three sizes win in this way for every expert count.

    Known bias: sizes are discrete, so N_opt is a staircase in FLOPs, and a line through K equal steps is too flat by the
    factor 1 - 1/K^2. A point before the end of its run has the loss of an undecayed learning rate, higher than that of a
    run made for just so many tokens, which displaces the envelope (Hoffmann et al. 2022, section 2 and appendix B; Porian et
    al. 2024, arXiv 2406.19146, find the same exponent at constant rates once warm-up and batch are tuned, so how much
    depends on the set-up). tests/test_isoflop.py measures both.
    """
    n, d, y, c, e = _columns(n_params, tokens, loss, flops, experts)
    if not (per_decade >= 1 and max_gap > 1.0):
        raise InputError(f"per_decade {per_decade}, max_gap {max_gap}", next_step="at least 1 and above 1")
    _check_options(TOLERANCE, MIN_SIZES, replicates)
    names = _curve_names(n, e) if runs is None else np.unique(np.asarray(runs), return_inverse=True)[1]
    if names.shape != n.shape:
        raise InputError(f"runs has shape {names.shape}, the points {n.shape}", where="envelope")
    warnings: list[str] = []
    points: list[EnvelopePoint] = []
    trends: list[Trend] = []
    rng = np.random.default_rng(seed)
    for count in np.unique(e):
        mine = np.flatnonzero(e == count)
        ln_c = _flops_grid(c[mine], per_decade)
        curves = _curves(n[mine], d[mine], y[mine], c[mine], names[mine], ln_c, max_gap)
        if not np.isfinite(curves.ln_loss).any():
            warnings.append(f"{_experts(float(count))}: no curve has two points within a factor {max_gap:g} in FLOPs")
            continue
        winner, bracketed = _winners(curves, np.ones((1, curves.ln_n.size), dtype=bool))
        known = np.flatnonzero(winner[0] >= 0)
        for i in known:
            r = winner[0, i]
            points.append(
                EnvelopePoint(
                    float(np.exp(ln_c[i])),
                    float(count),
                    float(np.exp(curves.ln_n[r])),
                    float(np.exp(curves.ln_d[r, i])),
                    float(np.exp(curves.ln_loss[r, i])),
                    bool(bracketed[0, i]),
                )
            )
        sizes = np.unique(curves.ln_n[winner[0, bracketed[0]]])
        left_out = int((~bracketed[0, known]).sum())
        if left_out:
            warnings.append(
                f"{_experts(float(count))}: at {left_out} of {known.size} FLOP values the smallest or largest size on offer wins; "
                "they are left out"
            )
        if sizes.size < 3:
            warnings.append(f"{_experts(float(count))}: {sizes.size} sizes win between others, 3 are needed")
            continue
        trends.append(_envelope_trend(curves, ln_c, float(count), replicates, rng))
    if not trends:
        raise InputError(
            f"no envelope to read an exponent from: {'; '.join(warnings)}",
            next_step="give the loss along training (several tokens for each size) of at least 5 sizes whose curves cross, or fit a law",
        )
    return Envelope(tuple(points), tuple(trends), tuple(warnings))


# -- IsoFLOP ------------------------------------------------------------------------------------------------------------


def _parabola(
    n: FloatArray, d: FloatArray, y: FloatArray, c: FloatArray, experts: float, rows: IntArray, min_sizes: int
) -> Parabola:
    ln_n = np.log(n)
    centre = float(ln_n.mean())
    u = ln_n - centre
    sizes = np.unique(n)
    nothing = float("nan")
    coefficients: FloatArray = np.full(3, nothing)
    vertex, rmse = nothing, nothing
    why: str | None = None
    if sizes.size < min_sizes:
        why = f"{sizes.size} sizes where {min_sizes} are needed"
    if sizes.size >= 3:
        design = _design(u)
        coefficients = np.linalg.pinv(design) @ y
        rmse = float(np.sqrt(np.mean((design @ coefficients - y) ** 2)))
        if coefficients[2] > 0:
            vertex = float(-0.5 * coefficients[1] / coefficients[2])
        mean_loss = np.array([y[n == size].mean() for size in sizes])
        lowest = int(np.argmin(mean_loss))
        if why is None and not (coefficients[2] > 0):
            why = "the loss does not curve upwards"
        elif why is None and lowest in (0, sizes.size - 1):
            end = "smallest" if lowest == 0 else "largest"
            why = f"the {end} size ({format_count(float(sizes[lowest]))}) has the lowest loss: the minimum lies beyond the sizes"
        elif why is None and not u.min() < vertex < u.max():
            why = "the parabola's minimum lies outside the sizes"
    tokens = nothing
    if why is None:
        slope, level = np.polyfit(u, np.log(d), 1)  # exact where C is proportional to N D
        tokens = float(np.exp(level + slope * vertex))
    usable = why is None
    return Parabola(
        flops=float(np.exp(np.log(c).mean())),
        experts=experts,
        rows=rows,
        sizes=n,
        losses=y,
        centre=float(np.exp(centre)),
        coefficients=coefficients,
        n_params_optimal=float(np.exp(centre + vertex)) if usable else nothing,
        tokens_optimal=tokens,
        loss_optimal=float(coefficients[0] - 0.25 * coefficients[1] ** 2 / coefficients[2]) if usable else nothing,
        rmse=rmse,
        unusable=why,
    )


def _design(u: FloatArray) -> FloatArray:
    return np.stack((np.ones_like(u), u, u**2), axis=-1)


def _isoflop_trend(
    usable: list[Parabola],
    tokens: FloatArray,
    flops: FloatArray,
    replicates: int,
    rng: np.random.Generator,
    warnings: list[str],
) -> Trend:
    """Power laws through the minima; the bootstrap adds resampled residuals to every parabola and finds its minimum again."""
    ln_c = np.log([p.flops for p in usable])
    ln_n = np.log([p.n_params_optimal for p in usable])
    ln_d = np.log([p.tokens_optimal for p in usable])
    pool: list[FloatArray] = []
    for p in usable:
        design = _design(np.log(p.sizes / p.centre))
        free = 1.0 - np.einsum("ij,ji->i", design, np.linalg.pinv(design))  # 1 - leverage
        kept = free > 1e-6
        pool.append((p.losses - p.loss(p.sizes))[kept] / np.sqrt(free[kept]))
    noise = np.concatenate(pool)
    if noise.size < 2:
        warnings.append(f"{_experts(usable[0].experts)}: three sizes a budget leave nothing to judge the error by")
        drawn_n, drawn_d = (np.empty((0, ln_c.size)) for _ in range(2))
    else:
        noise = noise - noise.mean()
        drawn_n, drawn_d = (np.full((replicates, ln_c.size), np.nan) for _ in range(2))
        for j, p in enumerate(usable):
            u = np.log(p.sizes / p.centre)
            to_coefficients = np.linalg.pinv(_design(u)).T  # (n, 3)
            draws = p.loss(p.sizes) + noise[rng.integers(noise.size, size=(replicates, u.size))]
            _, c1, c2 = (draws @ to_coefficients).T
            with np.errstate(divide="ignore", invalid="ignore"):
                vertex = -0.5 * c1 / c2
            inside = (c2 > 0) & (vertex > u.min()) & (vertex < u.max())
            slope, level = np.polyfit(u, np.log(tokens[p.rows]), 1)
            drawn_n[inside, j] = np.log(p.centre) + vertex[inside]
            drawn_d[inside, j] = level + slope * vertex[inside]
        lost = float(np.isnan(drawn_n).mean()) if replicates else 0.0
        if lost > 0.1:
            warnings.append(
                f"{_experts(usable[0].experts)}: {lost:.0%} of the bootstrap's minima fall outside the sizes and are left out: "
                "the standard errors are too small"
            )
    return Trend(
        usable[0].experts,
        _power_law(ln_c, ln_n, drawn_n, np.isfinite(drawn_n)),
        _power_law(ln_c, ln_d, drawn_d, np.isfinite(drawn_d)),
        (float(np.exp(ln_c.min())), float(np.exp(ln_c.max()))),
    )


def _groups(flops: FloatArray, tolerance: float) -> Iterator[IntArray]:
    """Runs in groups that span at most a factor 1 + tolerance in FLOPs, by rising FLOPs."""
    order = np.argsort(flops, kind="stable")
    ordered = flops[order]
    first = 0
    while first < order.size:
        last = int(np.searchsorted(ordered, ordered[first] * (1.0 + tolerance) * (1.0 + 1e-12), side="right"))
        yield order[first:last]
        first = last


def _assigned(flops: FloatArray, budgets: Sequence[float], tolerance: float) -> Iterator[IntArray]:
    """Runs within the tolerance of each budget; a run within reach of two goes to the nearer."""
    levels = np.unique(np.asarray(budgets, dtype=float))
    if levels.size == 0 or not np.all(np.isfinite(levels) & (levels > 0)):
        raise InputError(f"budgets {list(budgets)!r} are not positive FLOPs", next_step="such as [1e19, 1e20]")
    distance = np.abs(np.log(flops[:, None] / levels))
    nearest = distance.argmin(axis=1)
    close = distance.min(axis=1) <= math.log1p(tolerance) + 1e-12
    for j in range(levels.size):
        yield np.flatnonzero(close & (nearest == j))


def _no_structure(
    n: FloatArray, c: FloatArray, e: FloatArray, parabolas: list[Parabola], tolerance: float, min_sizes: int
) -> InputError:
    if parabolas:
        listed = "; ".join(
            f"{format_flops(p.flops)} FLOPs, {_experts(p.experts)}: {p.unusable or 'usable'}" for p in parabolas[:6]
        )
        return InputError(
            f"no expert count has two budgets with a minimum between its sizes ({listed})",
            next_step="train sizes on both sides of the minimum at two budgets or more, or fit a law, which needs no minimum",
        )
    fullest, at, who = 0, 0.0, 1.0
    for count in np.unique(e):
        mine = np.flatnonzero(e == count)
        for group in _groups(c[mine], tolerance):
            sizes = np.unique(n[mine[group]]).size
            if sizes > fullest:
                fullest, at, who = sizes, float(c[mine[group]].mean()), float(count)
    return InputError(
        f"these {n.size} runs have no IsoFLOP structure: the fullest budget ({format_flops(at)} FLOPs, {_experts(who)}, runs within "
        f"{tolerance:.0%}) holds {fullest} size{'s' if fullest != 1 else ''}, and two budgets of {min_sizes} sizes are needed",
        next_step="train several sizes at the same FLOPs, widen the tolerance, or fit a law, which takes any grid of N and D",
    )


# -- envelope -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Curves:
    """r training curves read at g FLOP values: ln N (r,), ln L and ln D (r, g), NaN where a curve is not known."""

    ln_n: FloatArray
    ln_d: FloatArray
    ln_loss: FloatArray


def _curve_names(n: FloatArray, e: FloatArray) -> IntArray:
    return np.unique(np.stack((n, e)), axis=1, return_inverse=True)[1].ravel()


def _flops_grid(flops: FloatArray, per_decade: int) -> FloatArray:
    low, high = math.log(flops.min()), math.log(flops.max())
    return np.linspace(low, high, max(2, math.ceil((high - low) / math.log(10.0) * per_decade) + 1))


def _curves(
    n: FloatArray, d: FloatArray, y: FloatArray, c: FloatArray, names: IntArray, ln_c: FloatArray, max_gap: float
) -> _Curves:
    distinct = np.unique(names)
    ln_n = np.empty(distinct.size)
    ln_d, ln_loss = (np.full((distinct.size, ln_c.size), np.nan) for _ in range(2))
    for r, name in enumerate(distinct):
        rows = np.flatnonzero(names == name)
        if np.unique(n[rows]).size > 1:
            raise InputError(
                f"a training curve holds {np.unique(n[rows]).size} sizes",
                next_step="name each run's points apart in `runs`",
            )
        ln_n[r] = math.log(n[rows[0]])
        at, index = np.unique(np.log(c[rows]), return_inverse=True)
        if at.size < 2:
            continue
        weight = np.bincount(index)
        tokens = np.bincount(index, np.log(d[rows])) / weight  # repeats count by their mean
        loss = np.bincount(index, np.log(y[rows])) / weight
        slot = np.clip(np.searchsorted(at, ln_c, side="right") - 1, 0, at.size - 2)
        inside = (ln_c >= at[0]) & (ln_c <= at[-1]) & (np.diff(at)[slot] <= math.log(max_gap) + 1e-12)
        ln_loss[r, inside] = np.interp(ln_c[inside], at, loss)
        ln_d[r, inside] = np.interp(ln_c[inside], at, tokens)
    return _Curves(ln_n, ln_d, ln_loss)


def _winners(curves: _Curves, kept: BoolArray) -> tuple[IntArray, BoolArray]:
    """The curve with the lowest loss among the kept ones (b, r) at each FLOP value, -1 where there is none, and whether a
    smaller and a larger size were there; both (b, g).
    """
    there = kept[:, :, None] & np.isfinite(curves.ln_loss)
    loss = np.where(there, curves.ln_loss, np.inf)
    winner = loss.argmin(axis=1)
    some = there.any(axis=1)
    won = curves.ln_n[winner]
    ln_n = curves.ln_n[:, None]
    smallest = np.where(there, ln_n, np.inf).min(axis=1)
    largest = np.where(there, ln_n, -np.inf).max(axis=1)
    return np.where(some, winner, -1), some & (smallest < won) & (won < largest)


def _envelope_trend(
    curves: _Curves, ln_c: FloatArray, experts: float, replicates: int, rng: np.random.Generator
) -> Trend:
    count = curves.ln_n.size
    whole, bracketed = _winners(curves, np.ones((1, count), dtype=bool))
    columns = np.arange(ln_c.size)
    used = bracketed[0]
    draws_n, draws_d = (np.empty((replicates, ln_c.size)) for _ in range(2))
    inside = np.zeros((replicates, ln_c.size), dtype=bool)
    chunk = max(1, CHUNK_ELEMENTS // curves.ln_loss.size)
    for first in range(0, replicates, chunk):
        part = slice(first, min(first + chunk, replicates))
        kept = rng.multinomial(count, np.full(count, 1.0 / count), size=part.stop - first) > 0
        winner, inside[part] = _winners(curves, kept)
        draws_n[part], draws_d[part] = curves.ln_n[winner], curves.ln_d[winner, columns]
    # A replicate in which one size wins everywhere has no exponent.
    top = np.where(inside, draws_n, -np.inf).max(axis=1)
    several = top > np.where(inside, draws_n, np.inf).min(axis=1)
    inside = inside & several[:, None]
    at = ln_c[used]
    return Trend(
        experts,
        _power_law(at, curves.ln_n[whole[0, used]], draws_n, inside, ln_c),
        _power_law(at, curves.ln_d[whole[0, used], columns[used]], draws_d, inside, ln_c),
        (float(np.exp(at.min())), float(np.exp(at.max()))),
    )


# -- shared -------------------------------------------------------------------------------------------------------------


def _power_law(
    ln_c: FloatArray, ln_y: FloatArray, draws: FloatArray, known: BoolArray, draws_ln_c: FloatArray | None = None
) -> PowerLaw:
    """The line through (ln_c, ln_y), and its slope's error from draws (b, g) at `draws_ln_c` (g,) where `known`."""
    exponent, level = _lines(ln_c, ln_y[None], np.ones((1, ln_y.size), dtype=bool))
    slopes, _ = _lines(ln_c if draws_ln_c is None else draws_ln_c, draws, known)
    slopes = slopes[np.isfinite(slopes)]
    error, interval = None, None
    if slopes.size >= 10:
        error = float(slopes.std(ddof=1))
        low, high = np.percentile(slopes, [50.0 * (1.0 - LEVEL), 50.0 * (1.0 + LEVEL)])
        interval = (float(low), float(high))
    rest = ln_y - level[0] - exponent[0] * ln_c
    return PowerLaw(
        float(np.exp(level[0])), float(exponent[0]), error, interval, float(np.sqrt(np.mean(rest**2))), int(ln_y.size)
    )


def _lines(x: FloatArray, y: FloatArray, known: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Slope and level (b,) of least-squares lines through y (b, g) at x (g,) where `known`; NaN with fewer than two x."""
    weight = known.astype(float)
    total = weight.sum(axis=1)
    value = np.where(known, y, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean_x, mean_y = (weight @ x) / total, value.sum(axis=1) / total
        spread = weight * (x - mean_x[:, None])
        square = (spread * (x - mean_x[:, None])).sum(axis=1)
        slope = np.where(square > 1e-12, (spread * value).sum(axis=1) / square, np.nan)
    return slope, mean_y - slope * mean_x


def _columns(
    n_params: FloatArray, tokens: FloatArray, loss: FloatArray, flops: FloatArray, experts: FloatArray | None
) -> tuple[FloatArray, ...]:
    count = np.ones_like(np.asarray(n_params, dtype=float)) if experts is None else experts
    named = {"n_params": n_params, "tokens": tokens, "loss": loss, "flops": flops, "experts": count}
    arrays = {name: np.asarray(values, dtype=float) for name, values in named.items()}
    shape = arrays["n_params"].shape
    for name, values in arrays.items():
        if values.ndim != 1 or values.shape != shape or values.size == 0:
            raise InputError(
                f"{name} has shape {values.shape}", next_step="give 1-D columns of one length, at least one run"
            )
        if not np.all(np.isfinite(values) & (values > 0)):
            bad = int(np.flatnonzero(~(np.isfinite(values) & (values > 0)))[0])
            raise InputError(f"{name} of row {bad + 1} is {values[bad]:g}", next_step="give positive numbers")
    return tuple(arrays.values())


def _check_options(tolerance: float, min_sizes: int, replicates: int) -> None:
    if not 0 <= tolerance < 1:
        raise InputError(f"a tolerance of {tolerance!r}", nearest="0 to 1", next_step=f"for example {TOLERANCE}")
    if min_sizes < 3:
        raise InputError(f"{min_sizes} sizes do not fix a parabola", nearest="3", next_step=f"default: {MIN_SIZES}")
    if not 0 <= replicates <= 100_000:
        raise InputError(f"{replicates} bootstrap replicates", nearest="0 to 100000", next_step="for example 1000")


def _experts(count: float) -> str:
    return f"{count:g} expert{'s' if count != 1 else ''}"


def _present(**values: object) -> dict[str, object]:
    return {k: v for k, v in values.items() if v is not None and not (isinstance(v, float) and math.isnan(v))}

"""What the published laws say that many small experts save, beside each other: docs/evidence/own-law.md and the tables beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq

from equal_loss import leverage
from leverage import efficiency_leverage, tian2025
from moescale.models.coordinates import experts_at
from moescale.models.family import law_size, with_convention
from moescale.planning.allocation import Allocation, Budget
from moescale.scaling_laws import Law, find_law
from moescale.scaling_laws.form import further_inputs, known_to
from moescale.scaling_laws.law import extrapolation
from moescale.typing import Real
from pages import csv_text

SPARSITIES = (8.0, 16.0, 32.0, 64.0)  # X: FFN weights over those that a token meets
GRANULARITIES = (1.0, 4.0, 8.0)  # 4 d_model over an expert's width
BUDGETS = (1e20, 1e21, 1e22)
KIMI = {16.0: 1.69 / 1.39, 32.0: 1.69 / 1.15, 48.0: 1.69}  # arXiv 2507.20534, section 2.3: 48 over 16, 32 and 8


@dataclass(frozen=True)
class Column:
    """A law as the tables ask it: its experts at X, its further inputs at a granularity, its dense model."""

    law: Law
    inputs_at: Callable[[float], Mapping[str, float]] = field(default=lambda _: {})
    granularities: tuple[float, ...] = (1.0,)
    sparsities: tuple[float, ...] = (*SPARSITIES, 48.0)
    dense: Law | None = None
    has_dense: bool = True


@dataclass(frozen=True)
class Answer:
    """A ratio of FLOPs at equal loss (NaN: there is none up to 1e5), and whether the law extrapolates."""

    ratio: float
    outside: bool

    def __str__(self) -> str:
        if np.isnan(self.ratio):
            return "none"
        return f"{self.ratio:.2f}" if self.ratio < 10 else f"{self.ratio:.0f}"


def columns() -> dict[str, Column]:
    """Every law of the tables by name."""
    paper = find_law("yun2024-recovered")
    return {
        "krajewski2024": Column(
            find_law("krajewski2024"),
            inputs_at=lambda grain: {"granularity": grain},
            granularities=GRANULARITIES,
            sparsities=(64.0,),  # of all its runs
            dense=find_law("krajewski2024-dense"),
        ),
        # As many activated experts as fit in one FFN, one of them shared.
        "zhao2025": Column(
            find_law("zhao2025"),
            inputs_at=lambda grain: {"activated_experts": grain, "shared_ratio": 1.0 / grain if grain > 1.0 else 0.0},
            granularities=GRANULARITIES,
            has_dense=False,
        ),
        "abnar2025": Column(find_law("abnar2025")),
        "ludziejewski2025": Column(find_law("ludziejewski2025")),
        "moescale2026-joint": Column(find_law("moescale2026-joint")),
        # FLOPs counted exactly, as the others.
        "yun2024-recovered": Column(replace(paper, family=with_convention(paper.family, "exact"))),
    }


def is_within_runs(activation_ratio: Real, granularity: Real, flops: Real) -> np.typing.NDArray[np.bool_]:
    """Where the formula interpolates the runs that it was fitted on; arguments broadcast."""
    values = {
        "activation_ratio": np.asarray(activation_ratio, float),
        "granularity": np.asarray(granularity, float),
        "flops": np.asarray(flops, float),
        "leverage": efficiency_leverage(activation_ratio, granularity, flops),
    }
    inside = [(low <= values[name]) & (values[name] <= high) for name, (low, high) in tian2025()["range"].items()]
    return np.logical_and.reduce(np.broadcast_arrays(*inside))


def is_outside(law: Law, models: Allocation, inputs: Mapping[str, float], flops: float) -> bool:
    """Whether the first of these models lies outside the law's fitted range, as far as that is known."""
    experts, tokens = models.experts[:1], float(models.tokens[0])
    implied = law.form.implied_inputs(experts, law.family.top_k) if law.form.implied_inputs else {}
    extra = further_inputs(
        law.form, {**{name: float(v[0]) for name, v in implied.items()}, **known_to(law.form, inputs)}
    )
    size = float(law_size(law.family, models.n_params[0], experts[0]))
    low, high = law.fit_range.get("training_flops", (0.0, np.inf))
    return bool(extrapolation(law, size, tokens, float(experts[0]), extra)) or not low <= flops <= high


def cell(column: Column, x: float, grain: float, flops: float, over: float | None = None) -> Answer:
    """The leverage of a law over its dense model, or over its model at `over` times the weights."""
    inputs, experts = column.inputs_at(grain), float(experts_at(column.law.family, x))
    reference, other = (1.0, column.dense) if over is None else (float(experts_at(column.law.family, over)), None)
    budget = Budget(flops, extra=inputs)
    found = leverage(column.law, budget, experts, reference=other, reference_experts=reference)
    ratio = float(found.ratio[0])
    outside = (over is None and not column.has_dense) or is_outside(column.law, found.models, inputs, flops)
    outside = outside or is_outside(other or column.law, found.references, inputs, ratio * flops)
    return Answer(ratio, outside)


def formula_cell(x: float, grain: float, flops: float) -> Answer:
    """Tian et al.'s formula, whose granularity has half the unit."""
    value = float(efficiency_leverage(1.0 / x, grain / 2.0, flops))
    return Answer(value, not is_within_runs(1.0 / x, grain / 2.0, flops))


def formula_over(x: float, over: float, grain: float, flops: float) -> Answer:
    """FLOPs at sparsity `over` for the loss at `x`, over those at `x`, by the same formula."""
    dense = flops * efficiency_leverage(1.0 / x, grain / 2.0, flops)

    def short(ln_ratio: float) -> float:
        at = flops * np.exp(ln_ratio)
        return float(np.log(at * efficiency_leverage(1.0 / over, grain / 2.0, at) / dense))

    ratio = float(np.exp(brentq(short, -5.0, 5.0)))
    inside = is_within_runs(1.0 / x, grain / 2.0, flops) & is_within_runs(1.0 / over, grain / 2.0, ratio * flops)
    return Answer(ratio, not inside)


Answers = dict[tuple[str, float, float], list[Answer]]  # by law, X and granularity: one a budget


def against_dense() -> Answers:
    """The leverage over dense models at each of the budgets."""
    found: Answers = {}
    for x in SPARSITIES:
        for grain in GRANULARITIES:
            found["tian2025", x, grain] = [formula_cell(x, grain, flops) for flops in BUDGETS]
            for name, column in columns().items():
                if grain in column.granularities and x in column.sparsities:
                    found[name, x, grain] = [cell(column, x, grain, flops) for flops in BUDGETS]
    return found


def dense_rows(found: Answers) -> list[list[str]]:
    """Rows of LEVERAGE: the leverage over dense models by law, active share, granularity and budget."""
    return [
        [name, f"1/{x:g}", f"{grain:g}", f"{flops:.0e}", str(answer), "yes" if answer.outside else "no"]
        for (name, x, grain), answers in found.items()
        for flops, answer in zip(BUDGETS, answers, strict=True)
    ]


def spread(found: Answers, budget: int, *, without: tuple[str, ...] = ()) -> str:
    """How far apart the laws are at each active share: those that interpolate at 1e20, all with ordinary experts beyond."""
    texts: list[str] = []
    for x in SPARSITIES[:3]:
        asked = [
            (name, a[budget]) for (name, at, grain), a in found.items() if at == x and (budget == 0 or grain == 1.0)
        ]
        ratios = {name: a.ratio for name, a in asked if name not in without and not (budget == 0 and a.outside)}
        if len(ratios) > 1:
            low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
            ends = [f"{Answer(ratios[name], False)} by {name}" for name in (low, high)]
            texts.append(f"{Answer(ratios[high] / ratios[low], False)} at 1/{x:g} ({' to '.join(ends)})")
    return ", ".join(texts)


def against_eighth() -> list[list[str]]:
    """Rows of SPARSER: the compute that an eighth active needs over sparser models of equal loss, as Kimi K2's report asks."""

    def rows(name: str, answer: Callable[[float, float], Answer]) -> list[list[str]]:
        found = [(x, flops, answer(x, flops)) for x in KIMI for flops in BUDGETS[:2]]
        return [[name, f"1/{x:g}", f"{flops:.0e}", str(a), "yes" if a.outside else "no"] for x, flops, a in found]

    told = [["Kimi K2, as printed", f"1/{x:g}", "", f"{value:.2f}", ""] for x, value in KIMI.items()]
    told += rows("tian2025", lambda x, flops: formula_over(x, 8.0, 8.0, flops))
    for name, column in columns().items():
        if 8.0 in column.sparsities:
            grain = max(column.granularities)
            told += rows(name, lambda x, flops, c=column, g=grain: cell(c, x, g, flops, over=8.0))
    return told


def sparser(rows: Sequence[Sequence[str]]) -> str:
    """The range over the laws of what 1/8 takes over 1/48 at 1e21 FLOPs, beside the printed number."""
    printed, *others = (row for row in rows if row[1] == "1/48" and row[2] in ("", "1e+21"))
    low, high = (pick(others, key=lambda row: float(row[3])) for pick in (min, max))
    return f"{printed[3]} as printed, and {low[3]} ({low[0]}) to {high[3]} ({high[0]}) by the laws"


LEVERAGE = ("law", "active_share", "granularity", "training_flops", "leverage_over_dense", "outside_fitted_range")
SPARSER = ("law", "active_share", "training_flops", "flops_of_1/8_over_these", "outside_fitted_range")


def computed() -> tuple[dict[str, str], dict[str, str]]:
    """What the page shows, by the names of its marks; the tables beside it, by file name."""
    found, eighth = against_dense(), against_eighth()
    parts = {
        "inside": spread(found, 0),
        "all": spread(found, 2, without=("zhao2025",)),
        "most": spread(found, 2, without=("zhao2025", "yun2024-recovered")),
        "sparser": sparser(eighth),
    }
    tables = {
        "own-law-many-experts.csv": csv_text(LEVERAGE, dense_rows(found)),
        "own-law-sparser.csv": csv_text(SPARSER, eighth),
    }
    return parts, tables

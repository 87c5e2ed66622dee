"""What the paper's figures show, computed for any law and any serving: one frozen result a figure, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from moescale import catalogue
from moescale.models.family import n_active
from moescale.models.parameters import dense_equivalent_params
from moescale.models.published import hl_coefficient, shapes_of_hl
from moescale.planning.allocation import Budget, at_size
from moescale.planning.candidate import CostCurve, Costs, LargestModels, ServingCurves
from moescale.reproduction.claims import sweep_experts
from moescale.reproduction.quantities import loss_at_base_cost, published_sweep
from moescale.reproduction.world import ExactPricing, World, as_in_the_paper
from moescale.scaling_laws.law import Law, loss
from moescale.typing import FloatArray

Row = Mapping[str, object]
Bound = Literal["loss", "cost"]

FITTED_TOKENS = (5.0e9, 7.5e9, 10.0e9, 20.0e9)  # the panels of the paper's figure fitted_val_loss
CURVE_BUDGETS = (1e21, 8e21)  # those of its figure cost_vs_loss_1e21
BASES = (1.0, 4.0)  # of its figures bound_loss and bound_infer
BUDGETS: FloatArray = np.geomspace(1e21, 1e22, 25)  # around all that it names
TRAINED: FloatArray = np.geomspace(1e20, 3e22, 41)  # the trade-off needs room on either side
SMALLEST, LARGEST = 0.03, 4.0  # sizes of a loss-cost curve over the loss-optimal one
CURVE_SIZES = 96
EXPERT_GRID: FloatArray = np.exp2(np.linspace(0.0, 5.0, 41))


@dataclass(frozen=True, slots=True)
class FittedLosses:
    """A law's losses over experts (e,), at token counts (t,) and sizes (s,); `points` are losses known otherwise."""

    law: str
    experts: FloatArray
    tokens: FloatArray
    n_params: FloatArray
    loss: FloatArray  # (t, s, e)
    low: FloatArray | None  # of 90% of the law's draws
    high: FloatArray | None
    points: tuple[tuple[float, float, float, float], ...]  # tokens, size, experts, loss

    def rows(self) -> list[Row]:
        """One record a loss, those of `points` last."""
        found: list[Row] = []
        for t, s, e in np.ndindex(self.loss.shape):
            record: dict[str, object] = {
                "tokens": self.tokens[t],
                "n_params": self.n_params[s],
                "experts": self.experts[e],
                "loss": self.loss[t, s, e],
            }
            if self.low is not None and self.high is not None:
                record |= {"loss_low": self.low[t, s, e], "loss_high": self.high[t, s, e]}
            found.append(record | {"kind": "law"})
        for tokens, n, e, value in self.points:
            found.append({"tokens": tokens, "n_params": n, "experts": e, "loss": value, "kind": "published surface"})
        return found


@dataclass(frozen=True, slots=True)
class TradeOff:
    """Loss-optimal models of expert counts (m,) over budgets (b,): loss and cost (m, b); cost is NaN where nothing serves."""

    law: str
    experts: FloatArray
    budgets_flops: FloatArray
    n_params: FloatArray
    loss: FloatArray
    usd_per_mtok: FloatArray

    def rows(self) -> list[Row]:
        """One record a model."""
        return [
            {
                "experts": self.experts[i],
                "budget_flops": self.budgets_flops[j],
                "n_params": self.n_params[i, j],
                "loss": self.loss[i, j],
                "usd_per_mtok": self.usd_per_mtok[i, j],
            }
            for i, j in np.ndindex(self.loss.shape)
        ]


@dataclass(frozen=True, slots=True)
class BudgetCurves:
    """Loss and cost of over- and under-trained models that spend one budget, a curve for each expert count."""

    law: str
    budget_flops: float
    curves: tuple[CostCurve, ...]
    optimal: tuple[int, ...]  # where on each curve the loss-optimal size stands

    def rows(self) -> list[Row]:
        """One record a model."""
        return [
            {
                "budget_flops": self.budget_flops,
                "experts": c.experts,
                "n_params": c.n_params[i],
                "tokens": c.tokens[i],
                "loss": c.loss[i],
                "usd_per_mtok": c.usd_per_mtok[i],
                "loss_optimal": i == best,
            }
            for c, best in zip(self.curves, self.optimal, strict=True)
            for i in range(c.n_params.size)
        ]


@dataclass(frozen=True, slots=True)
class Bounded:
    """Models of expert counts (m,) at the loss, or the cost, of a base's optimum, over budgets (b,): all else is (m, b)."""

    law: str
    bound: Bound
    base_experts: float
    experts: FloatArray
    budgets_flops: FloatArray
    base_loss: FloatArray  # (b,)
    base_usd_per_mtok: FloatArray  # (b,)
    n_params: FloatArray
    loss: FloatArray
    cost_ratio: FloatArray  # over the base's
    active_ratio: FloatArray  # activated size over the base's
    own_ratio: FloatArray  # size over that expert count's own optimum

    def rows(self) -> list[Row]:
        """One record a model."""
        names = ("n_params", "loss", "cost_ratio", "active_ratio", "own_ratio")
        return [
            {
                "bound": self.bound,
                "base_experts": self.base_experts,
                "experts": self.experts[i],
                "budget_flops": self.budgets_flops[j],
                "base_loss": self.base_loss[j],
                "base_usd_per_mtok": self.base_usd_per_mtok[j],
            }
            | {name: getattr(self, name)[i, j] for name in names}
            for i, j in np.ndindex(self.n_params.shape)
        ]


@dataclass(frozen=True, slots=True)
class HiddenLayers:
    """Width times depth of models (n,) against their parameters, and mu of h l = mu N^(2/3)."""

    names: tuple[str, ...]
    n_params: FloatArray
    hidden_times_layers: FloatArray
    mu: float

    def rows(self) -> list[Row]:
        """One record a model."""
        fitted = self.mu * self.n_params ** (2.0 / 3.0)
        return [
            {"name": n, "n_params": p, "hidden_times_layers": v, "fitted": f}
            for n, p, v, f in zip(self.names, self.n_params, self.hidden_times_layers, fitted, strict=True)
        ]


def fitted_losses(
    law: Law,
    *,
    tokens: Sequence[float] = FITTED_TOKENS,
    n_params: FloatArray | None = None,
    points: Iterable[tuple[float, float, float, float]] | None = None,
) -> FittedLosses:
    """A law's losses on a sweep, by default the paper's; `points` (tokens, size, experts, loss), by default its surfaces."""
    sizes = np.unique(published_sweep()[0]) if n_params is None else n_params
    t, s, e = np.meshgrid(np.asarray(tokens, float), sizes, EXPERT_GRID, indexing="ij")
    low = high = None
    if len(law.draws):
        spread = loss(law, s, t, e, theta=law.draws)
        low, high = np.percentile(spread, [5.0, 95.0], axis=0)
    shown = published_points(tokens) if points is None else tuple(points)
    return FittedLosses(law.name, EXPERT_GRID, np.asarray(tokens, float), sizes, loss(law, s, t, e), low, high, shown)


def published_points(tokens: Sequence[float]) -> tuple[tuple[float, float, float, float], ...]:
    """Losses on the paper's two dense-equivalent surfaces at its sweep's sizes: all that it prints of its losses."""
    sizes = np.unique(published_sweep()[0]).tolist()
    return tuple(
        (d, n, float(s["experts"]), s["F"] + s["A"] / n ** s["alpha"] + s["B"] / d ** s["beta"])
        for s in catalogue.read("published_yun2024.toml")["surface"]
        for d in tokens
        for n in sizes
    )


def world_of(law: Law, costs: Costs) -> World:
    """The law's own coefficients with every model priced exactly, as in the paper."""
    costs = replace(costs, deployment=as_in_the_paper(costs.deployment))
    return World(law, law.theta[None], ExactPricing(costs), costs)


def trade_off(world: World, *, budgets_flops: FloatArray = TRAINED, experts: Sequence[float] | None = None) -> TradeOff:
    """Loss-optimal models over budgets."""
    counts = sweep_experts() if experts is None else tuple(experts)
    found = [[world.optimum(float(b), e) for b in budgets_flops] for e in counts]
    n = np.array([[a.n_params[0, 0] for a in row] for row in found])
    losses = np.array([[a.loss[0, 0] for a in row] for row in found])
    usd = world.pricing.usd_per_mtok(n.T, np.array(counts)).T
    return TradeOff(world.law.name, np.array(counts), budgets_flops, n, losses, usd)


def budget_curves(world: World, budget_flops: float, *, experts: Sequence[float] | None = None) -> BudgetCurves:
    """Loss against cost over sizes around each expert count's loss-optimal one."""
    counts = sweep_experts() if experts is None else tuple(experts)
    shares = np.unique(np.append(np.geomspace(SMALLEST, LARGEST, CURVE_SIZES), 1.0))
    best = int(np.searchsorted(shares, 1.0))
    curves: list[CostCurve] = []
    for e in counts:
        n = world.optimum(budget_flops, e).n_params[0, 0] * shares
        models = at_size(world.law, Budget(budget_flops), n[:, None], np.array([e]))
        usd = world.pricing.usd_per_mtok(n[:, None], np.array([e]))[:, 0]
        curves.append(CostCurve(e, n, models.tokens[:, 0], models.loss[:, 0], usd))
    return BudgetCurves(world.law.name, budget_flops, tuple(curves), (best,) * len(counts))


def bounded(
    world: World,
    bound: Bound,
    base_experts: float,
    *,
    budgets_flops: FloatArray = BUDGETS,
    experts: Sequence[float] | None = None,
) -> Bounded:
    """Algorithm 1 (bound "loss") or 2 ("cost") over budgets, for expert counts above the base's by default.

    At the base's cost sizes may lie beyond their own optimum, as in the paper; the loss is the lowest within the cost.
    """
    counts = tuple(e for e in sweep_experts() if e > base_experts) if experts is None else tuple(experts)
    budgets = [float(b) for b in budgets_flops]
    base = [world.optimum(b, base_experts) for b in budgets]
    base_n = np.array([a.n_params[0, 0] for a in base])
    base_usd = world.usd(base_n[:, None], base_experts)[:, 0]
    own = np.array([[world.optimum(b, e).n_params[0, 0] for b in budgets] for e in counts])
    if bound == "loss":
        models = [[world.at_base_loss(b, e, base_experts) for b in budgets] for e in counts]
        n = np.array([[a.n_params[0, 0] for a in row] for row in models])
        losses = np.array([[a.loss[0, 0] for a in row] for row in models])
    else:
        n = np.stack([world.pricing.size_within(base_usd, np.array([e]))[:, 0] for e in counts])
        losses = np.array([[loss_at_base_cost(world, b, e, base_experts)[0] for b in budgets] for e in counts])
    usd = world.pricing.usd_per_mtok(n.T, np.array(counts)).T
    family = world.law.family
    active = n_active(family, n, np.array(counts)[:, None]) / n_active(family, base_n, base_experts)
    return Bounded(
        world.law.name, bound, base_experts, np.array(counts), np.array(budgets),
        np.array([a.loss[0, 0] for a in base]), base_usd, n, losses, usd / base_usd, active, n / own,
    )  # fmt: skip


def hidden_layers() -> HiddenLayers:
    """The published dense models that the catalogue's mu was fitted to; N leaves embeddings out."""
    shapes = shapes_of_hl()
    mu, _ = hl_coefficient(shapes.values())
    n = np.array([float(dense_equivalent_params(s)) for s in shapes.values()])
    hl = np.array([float(np.asarray(s.d_model) * np.asarray(s.n_layers)) for s in shapes.values()])
    return HiddenLayers(tuple(shapes), n, hl, mu)


def serving_rows(found: ServingCurves | LargestModels) -> list[Row]:
    """One record a model of the figures of serving cost."""
    if isinstance(found, ServingCurves):
        return [
            {"experts": e, "n_params": n, "usd_per_mtok": found.usd_per_mtok[i, j], "gpus": found.gpus[i, j]}
            for i, e in enumerate(found.experts)
            for j, n in enumerate(found.n_params)
        ]
    return [
        {"experts": e, "usd_per_mtok": usd, "n_params": found.n_params[i, j], "gpus": found.gpus[i, j]}
        for i, e in enumerate(found.experts)
        for j, usd in enumerate(found.usd_per_mtok)
    ]

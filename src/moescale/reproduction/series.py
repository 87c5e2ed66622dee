"""What the paper's figures show, computed for any law and any serving: one frozen result a figure, and its rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
Point = tuple[float, float, float, float]  # tokens, size, experts, loss

FITTED_TOKENS = (5.0e9, 7.5e9, 10.0e9, 20.0e9)  # the panels of the paper's figure fitted_val_loss
CURVE_BUDGETS = (1e21, 8e21)  # those of its figure cost_vs_loss_1e21
BASES = (1.0, 4.0)  # of its figures bound_loss and bound_infer
BUDGETS: FloatArray = np.geomspace(1e21, 1e22, 25)  # around all that it names
TRAINED: FloatArray = np.geomspace(1e20, 3e22, 41)  # the trade-off needs room on either side
EXPERT_GRID: FloatArray = np.exp2(np.linspace(0.0, 5.0, 41))


def records(**columns: object) -> list[Row]:
    """One record for each place of arrays that broadcast against each other."""
    arrays = np.broadcast_arrays(*(np.asarray(values) for values in columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*(a.ravel().tolist() for a in arrays), strict=True)]


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
    points: tuple[Point, ...]

    def rows(self) -> list[Row]:
        """One record a loss, those of `points` last."""
        law: dict[str, object] = {
            "tokens": self.tokens[:, None, None],
            "n_params": self.n_params[:, None],
            "experts": self.experts,
            "loss": self.loss,
        }
        if self.low is not None and self.high is not None:
            law |= {"loss_low": self.low, "loss_high": self.high}
        tokens, n_params, experts, loss = np.reshape(self.points, (-1, 4)).T
        published = {"tokens": tokens, "n_params": n_params, "experts": experts, "loss": loss}
        return records(**law, kind="law") + records(**published, kind="published surface")


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
        values = {name: getattr(self, name) for name in ("n_params", "loss", "usd_per_mtok")}
        return records(experts=self.experts[:, None], budget_flops=self.budgets_flops, **values)


@dataclass(frozen=True, slots=True)
class BudgetCurves:
    """Loss and cost of over- and under-trained models that spend one budget, a curve for each expert count."""

    law: str
    budget_flops: float
    curves: tuple[CostCurve, ...]
    optimal: tuple[int, ...]  # where on each curve the loss-optimal size stands

    def rows(self) -> list[Row]:
        """One record a model."""
        names = ("experts", "n_params", "tokens", "loss", "usd_per_mtok")
        return [
            row
            for c, best in zip(self.curves, self.optimal, strict=True)
            for row in records(
                budget_flops=self.budget_flops,
                **{name: getattr(c, name) for name in names},
                loss_optimal=np.arange(c.n_params.size) == best,
            )
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
        names = ("base_loss", "base_usd_per_mtok", "n_params", "loss", "cost_ratio", "active_ratio", "own_ratio")
        return records(
            bound=self.bound,
            base_experts=self.base_experts,
            experts=self.experts[:, None],
            budget_flops=self.budgets_flops,
            **{name: getattr(self, name) for name in names},
        )


@dataclass(frozen=True, slots=True)
class HiddenLayers:
    """Width times depth of models (n,) against their parameters, and mu of h l = mu N^(2/3)."""

    names: tuple[str, ...]
    n_params: FloatArray
    hidden_times_layers: FloatArray
    mu: float

    def rows(self) -> list[Row]:
        """One record a model."""
        hl, fitted = self.hidden_times_layers, self.mu * self.n_params ** (2.0 / 3.0)
        return records(name=self.names, n_params=self.n_params, hidden_times_layers=hl, fitted=fitted)


def fitted_losses(law: Law, *, points: Iterable[Point] | None = None) -> FittedLosses:
    """A law's losses on the paper's sweep; `points` (tokens, size, experts, loss) are by default those of its surfaces."""
    tokens, sizes = np.array(FITTED_TOKENS), np.unique(published_sweep()[0])
    t, s, e = np.meshgrid(tokens, sizes, EXPERT_GRID, indexing="ij")
    low = high = None
    if len(law.draws):
        low, high = np.percentile(loss(law, s, t, e, theta=law.draws), [5.0, 95.0], axis=0)
    shown = published_points() if points is None else tuple(points)
    return FittedLosses(law.name, EXPERT_GRID, tokens, sizes, loss(law, s, t, e), low, high, shown)


def published_points() -> tuple[Point, ...]:
    """Losses on the paper's two dense-equivalent surfaces at its sweep's sizes: all that it prints of its losses."""
    sizes = np.unique(published_sweep()[0]).tolist()
    return tuple(
        (d, n, float(s["experts"]), s["F"] + s["A"] / n ** s["alpha"] + s["B"] / d ** s["beta"])
        for s in catalogue.read("published_yun2024.toml")["surface"]
        for d in FITTED_TOKENS
        for n in sizes
    )


def world_of(law: Law, costs: Costs) -> World:
    """The law's own coefficients with every model priced exactly, as in the paper."""
    costs = replace(costs, deployment=as_in_the_paper(costs.deployment))
    return World(law, law.theta[None], ExactPricing(costs), costs)


def trade_off(world: World, *, budgets_flops: FloatArray = TRAINED) -> TradeOff:
    """Loss-optimal models over budgets."""
    counts = sweep_experts()
    found = [[world.optimum(float(b), e) for b in budgets_flops] for e in counts]
    n = np.array([[a.n_params[0, 0] for a in row] for row in found])
    losses = np.array([[a.loss[0, 0] for a in row] for row in found])
    usd = world.pricing.usd_per_mtok(n.T, np.array(counts)).T
    return TradeOff(world.law.name, np.array(counts), budgets_flops, n, losses, usd)


def budget_curves(world: World, budget_flops: float) -> BudgetCurves:
    """Loss against cost over sizes around each expert count's loss-optimal one."""
    counts = sweep_experts()
    shares = np.unique(np.append(np.geomspace(0.03, 4.0, 96), 1.0))
    best = int(np.searchsorted(shares, 1.0))
    curves: list[CostCurve] = []
    for e in counts:
        n = world.optimum(budget_flops, e).n_params[0, 0] * shares
        models = at_size(world.law, Budget(budget_flops), n[:, None], np.array([e]))
        usd = world.pricing.usd_per_mtok(n[:, None], np.array([e]))[:, 0]
        curves.append(CostCurve(e, n, models.tokens[:, 0], models.loss[:, 0], usd))
    return BudgetCurves(world.law.name, budget_flops, tuple(curves), (best,) * len(counts))


def bounded(world: World, bound: Bound, base_experts: float, *, budgets_flops: FloatArray = BUDGETS) -> Bounded:
    """Algorithm 1 (bound "loss") or 2 ("cost") over budgets, for expert counts above the base's.

    At the base's cost sizes may lie beyond their own optimum, as in the paper; the loss is the lowest within the cost.
    """
    counts = tuple(e for e in sweep_experts() if e > base_experts)
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
    family, e = world.law.family, np.array(counts)
    return Bounded(
        law=world.law.name,
        bound=bound,
        base_experts=base_experts,
        experts=e,
        budgets_flops=np.array(budgets),
        base_loss=np.array([a.loss[0, 0] for a in base]),
        base_usd_per_mtok=base_usd,
        n_params=n,
        loss=losses,
        cost_ratio=usd / base_usd,
        active_ratio=n_active(family, n, e[:, None]) / n_active(family, base_n, base_experts),
        own_ratio=n / own,
    )


def hidden_layers() -> HiddenLayers:
    """The published dense models that the catalogue's mu was fitted to; N leaves embeddings out."""
    shapes = shapes_of_hl()
    mu, _ = hl_coefficient(shapes.values())
    n = np.array([float(dense_equivalent_params(s)) for s in shapes.values()])
    hl = np.array([float(np.asarray(s.d_model) * np.asarray(s.n_layers)) for s in shapes.values()])
    return HiddenLayers(tuple(shapes), n, hl, mu)


def serving_rows(found: ServingCurves | LargestModels) -> list[Row]:
    """One record a model of the figures of serving cost."""
    experts = found.experts[:, None]
    if isinstance(found, ServingCurves):
        return records(experts=experts, n_params=found.n_params, usd_per_mtok=found.usd_per_mtok, gpus=found.gpus)
    return records(experts=experts, usd_per_mtok=found.usd_per_mtok, n_params=found.n_params, gpus=found.gpus)

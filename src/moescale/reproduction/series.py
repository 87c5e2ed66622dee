"""What the paper's figures show, computed for any law and any serving: records, one a point of a curve."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from moescale import catalogue
from moescale.models.family import n_active
from moescale.models.parameters import dense_equivalent_params
from moescale.models.published import hl_coefficient, shapes_of_hl
from moescale.planning.allocation import Budget, at_size
from moescale.reproduction.claims import sweep_experts
from moescale.reproduction.evaluate import Outcome
from moescale.reproduction.quantities import loss_at_base_cost, published_sweep
from moescale.reproduction.world import World
from moescale.scaling_laws.law import loss
from moescale.typing import FloatArray

Row = Mapping[str, Any]
Bound = Literal["loss", "cost"]

FITTED_TOKENS = (5.0e9, 7.5e9, 10.0e9, 20.0e9)  # the panels of the paper's figure 1
CURVE_BUDGETS = (1e21, 8e21)  # those of its figure 4
BASES = (1.0, 4.0)  # of its figures 5 and 6
BUDGETS: FloatArray = np.geomspace(1e21, 1e22, 25)  # around all that it names
TRAINED: FloatArray = np.geomspace(1e20, 3e22, 41)  # figure 3 needs room on either side
EXPERT_GRID: FloatArray = np.exp2(np.linspace(0.0, 5.0, 41))
SIZES: FloatArray = np.geomspace(2e8, 4e10, 160)


def records(**columns: object) -> list[Row]:
    """One record for each place of arrays that broadcast against each other."""
    arrays = np.broadcast_arrays(*(np.asarray(values) for values in columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*(a.ravel().tolist() for a in arrays), strict=True)]


def fitted_losses(world: World) -> list[Row]:
    """Figure 1: a law's losses on the paper's sweep with 90% of its draws, and the two surfaces that the paper prints."""
    tokens, sizes = np.array(FITTED_TOKENS), np.unique(published_sweep()[0])
    t, s, e = np.meshgrid(tokens, sizes, EXPERT_GRID, indexing="ij")
    bands: dict[str, FloatArray] = {}
    if len(world.law.draws):
        low, high = np.percentile(loss(world.law, s, t, e, theta=world.law.draws), [5.0, 95.0], axis=0)
        bands = {"loss_low": low, "loss_high": high}
    found = records(kind="law", tokens=t, n_params=s, experts=e, loss=loss(world.law, s, t, e), **bands)
    for p in catalogue.read("published_yun2024.toml")["surface"]:
        printed = p["F"] + p["A"] / sizes ** p["alpha"] + p["B"] / tokens[:, None] ** p["beta"]
        found += records(kind="printed", tokens=tokens[:, None], n_params=sizes, experts=p["experts"], loss=printed)
    return found


def cost_by_size(world: World, *, n_params: FloatArray = SIZES) -> list[Row]:
    """Figure 2: serving cost of sizes, and so also the largest size within a cost."""
    experts = np.array(sweep_experts())
    n = np.broadcast_to(n_params[:, None], (n_params.size, experts.size))
    served = world.costs.serving(n, np.broadcast_to(experts, n.shape))
    usd = np.where(np.isfinite(served.usd_per_mtok), served.usd_per_mtok, np.nan)
    return records(n_params=n.T, experts=experts[:, None], usd_per_mtok=usd.T, gpus=served.gpus.T)


def trade_off(world: World, *, budgets_flops: FloatArray = TRAINED) -> list[Row]:
    """Figure 3: loss-optimal models over budgets."""
    experts = np.array(sweep_experts())
    models = [[world.optimum(float(b), e) for b in budgets_flops] for e in sweep_experts()]
    n, losses = (_each(models, lambda a, name=name: getattr(a, name)[0, 0]) for name in ("n_params", "loss"))
    usd = world.pricing.usd_per_mtok(n.T, experts).T
    return records(experts=experts[:, None], budget_flops=budgets_flops, n_params=n, loss=losses, usd_per_mtok=usd)


def budget_curves(world: World, *, budgets_flops: Sequence[float] = CURVE_BUDGETS) -> list[Row]:
    """Figure 4: loss against cost over sizes around each expert count's loss-optimal one (share 1)."""
    shares = np.unique(np.append(np.geomspace(0.03, 4.0, 96), 1.0))
    found: list[Row] = []
    for budget in budgets_flops:
        for e in sweep_experts():
            n = world.optimum(budget, e).n_params[0, 0] * shares
            models = at_size(world.law, Budget(budget), n[:, None], np.array([e]))
            usd = world.pricing.usd_per_mtok(n[:, None], np.array([e]))[:, 0]
            columns = {"tokens": models.tokens[:, 0], "loss": models.loss[:, 0], "usd_per_mtok": usd}
            found += records(budget_flops=budget, experts=e, share=shares, n_params=n, **columns)
    return found


def bounded(world: World, bound: Bound, base_experts: float, *, budgets_flops: FloatArray = BUDGETS) -> list[Row]:
    """Figures 5 (bound "loss", algorithm 1) and 6 ("cost", algorithm 2): models of more experts than the base's over budgets.

    At the base's cost sizes may lie beyond their own optimum, as in the paper; the loss is the lowest within the cost.
    """
    counts = tuple(e for e in sweep_experts() if e > base_experts)
    budgets, experts = [float(b) for b in budgets_flops], np.array(counts)[:, None]
    base = [world.optimum(b, base_experts) for b in budgets]
    base_n, base_loss = np.array([a.n_params[0, 0] for a in base]), np.array([a.loss[0, 0] for a in base])
    base_usd = world.usd(base_n[:, None], base_experts)[:, 0]
    if bound == "loss":
        models = [[world.at_base_loss(b, e, base_experts) for b in budgets] for e in counts]
        n, losses = (_each(models, lambda a, name=name: getattr(a, name)[0, 0]) for name in ("n_params", "loss"))
    else:
        n = np.stack([world.pricing.size_within(base_usd, np.array([e]))[:, 0] for e in counts])
        losses = np.array([[loss_at_base_cost(world, b, e, base_experts)[0] for b in budgets] for e in counts])
    own = _each([[world.optimum(b, e) for b in budgets] for e in counts], lambda a: a.n_params[0, 0])
    usd = world.pricing.usd_per_mtok(n.T, np.array(counts)).T
    family = world.law.family
    return records(
        bound=bound,
        base_experts=base_experts,
        experts=experts,
        budget_flops=np.array(budgets),
        base_loss=base_loss,
        base_usd_per_mtok=base_usd,
        n_params=n,
        loss=losses,
        cost_ratio=usd / base_usd,
        active_ratio=n_active(family, n, experts) / n_active(family, base_n, base_experts),
        own_ratio=n / own,
    )


def hidden_layers() -> list[Row]:
    """Figure 8: width times depth of the published dense models that the catalogue's mu was fitted to."""
    shapes = shapes_of_hl()
    mu, _ = hl_coefficient(shapes.values())
    n = np.array([float(dense_equivalent_params(s)) for s in shapes.values()])
    hl = np.array([float(np.asarray(s.d_model) * np.asarray(s.n_layers)) for s in shapes.values()])
    return records(name=tuple(shapes), n_params=n, hidden_times_layers=hl, fitted=mu * n ** (2.0 / 3.0))


def verdict(outcomes: Sequence[Outcome], beside: Sequence[Outcome] = ()) -> list[Row]:
    """Every printed number that is judged: ours over it, with 90% of the law's draws, and ours on another server."""
    other = {o.claim.id: o for o in beside}
    return [
        {
            "number": f"{o.claim.id}, {part.label}",
            "paper": part.paper,
            "ours": part.ours,
            "low": part.interval[0] if part.interval else part.ours,
            "high": part.interval[1] if part.interval else part.ours,
            "beside": other[o.claim.id].parts[i].ours if other else None,
        }
        for o in outcomes
        if o.counts
        for i, part in enumerate(o.parts)
        if part.judged and part.paper is not None and part.ours is not None
    ]


def _each(models: Sequence[Sequence[Any]], of: Callable[[Any], float]) -> FloatArray:
    return np.array([[of(model) for model in row] for row in models])

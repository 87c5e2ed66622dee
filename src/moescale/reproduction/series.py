"""What the paper's figures show, computed for any law and any serving: records, one a point of a curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

import numpy as np

from moescale.models.family import n_active
from moescale.models.parameters import dense_equivalent_params
from moescale.models.published import hl_coefficient, shapes_of_hl
from moescale.planning.allocation import Allocation, Budget, at_size
from moescale.reproduction.claims import sweep_experts
from moescale.reproduction.evaluate import Outcome
from moescale.reproduction.quantities import loss_at_base_cost, printed_losses, published_sweep
from moescale.reproduction.world import World
from moescale.scaling_laws.law import loss
from moescale.typing import FloatArray

Row = Mapping[str, Any]

FITTED_TOKENS = (5.0e9, 7.5e9, 10.0e9, 20.0e9)  # the panels of the paper's figure 1
PRINTED_EXPERTS = (8, 16)  # with surfaces that it prints
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
    for experts in PRINTED_EXPERTS:
        t, s = np.meshgrid(tokens, sizes, indexing="ij")
        printed = printed_losses(experts, s, t)
        found += records(kind="printed", tokens=t, n_params=s, experts=experts, loss=printed)
    return found


def cost_by_size(world: World) -> list[Row]:
    """Figure 2: serving cost of sizes, and so also the largest size within a cost."""
    e, n = np.meshgrid(np.array(sweep_experts()), SIZES, indexing="ij")
    served = world.costs.serving(n, e)
    usd = np.where(np.isfinite(served.usd_per_mtok), served.usd_per_mtok, np.nan)
    return records(n_params=n, experts=e, usd_per_mtok=usd, gpus=served.gpus)


def trade_off(world: World, *, budgets_flops: FloatArray = TRAINED) -> list[Row]:
    """Figure 3: loss-optimal models over budgets."""
    found: list[Row] = []
    for e in sweep_experts():
        n, losses = _optima(world, budgets_flops, e)
        usd = world.usd(n[:, None], e)[:, 0]
        found += records(experts=e, budget_flops=budgets_flops, n_params=n, loss=losses, usd_per_mtok=usd)
    return found


def _optima(world: World, budgets_flops: FloatArray, experts: float) -> tuple[FloatArray, FloatArray]:
    return _first([world.optimum(budget, experts) for budget in budgets_flops.tolist()])


def _first(found: list[Allocation]) -> tuple[FloatArray, FloatArray]:
    return np.array([a.n_params[0, 0] for a in found]), np.array([a.loss[0, 0] for a in found])


def budget_curves(world: World) -> list[Row]:
    """Figure 4: loss against cost over sizes around each expert count's loss-optimal one (share 1)."""
    shares = np.unique(np.append(np.geomspace(0.03, 4.0, 96), 1.0))
    found: list[Row] = []
    for budget, e in product(CURVE_BUDGETS, sweep_experts()):
        n = world.optimum(budget, e).n_params * shares[:, None]
        models = at_size(world.law, Budget(budget), n, np.array([e]))
        figures = {"tokens": models.tokens, "loss": models.loss, "usd_per_mtok": world.usd(n, e)}
        found += records(budget_flops=budget, experts=e, share=shares[:, None], n_params=n, **figures)
    return found


def bounded(world: World, bound: Literal["loss", "cost"]) -> list[Row]:
    """Figures 5 (bound "loss", algorithm 1) and 6 ("cost", algorithm 2): models of more experts than the base's over budgets.

    At the base's cost sizes may lie beyond their own optimum, as in the paper; the loss is the lowest within the cost.
    """
    family, found = world.law.family, list[Row]()
    for base, e in ((base, e) for base in BASES for e in sweep_experts() if e > base):
        base_n, base_loss = _optima(world, BUDGETS, base)
        base_usd = world.usd(base_n[:, None], base)[:, 0]
        if bound == "loss":
            n, losses = _first([world.at_base_loss(b, e, base) for b in BUDGETS.tolist()])
        else:
            n = world.size_within(base_usd, e)[:, 0]
            losses = np.array([loss_at_base_cost(world, b, e, base)[0] for b in BUDGETS.tolist()])
        figures = {
            "base_loss": base_loss,
            "base_usd_per_mtok": base_usd,
            "n_params": n,
            "loss": losses,
            "cost_ratio": world.usd(n[:, None], e)[:, 0] / base_usd,
            "active_ratio": n_active(family, n, e) / n_active(family, base_n, base),
            "own_ratio": n / _optima(world, BUDGETS, e)[0],
        }
        found += records(bound=bound, base_experts=base, experts=e, budget_flops=BUDGETS, **figures)
    return found


def hidden_layers() -> list[Row]:
    """Figure 8: width times depth of the published dense models that the catalogue's mu was fitted to."""
    shapes = shapes_of_hl()
    n = np.array([float(dense_equivalent_params(s)) for s in shapes.values()])
    hl = np.array([float(np.asarray(s.d_model) * np.asarray(s.n_layers)) for s in shapes.values()])
    fitted = hl_coefficient(shapes.values())[0] * n ** (2.0 / 3.0)
    return records(name=tuple(shapes), n_params=n, hidden_times_layers=hl, fitted=fitted)


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

"""The quantities that claims are about, by name: each takes a World and a Part and answers one number a coefficient set, (k,).

NaN where there is none: a loss that no size reaches, a model that no GPU count serves. Sizes are dense-equivalent N;
"active" sizes follow the convention of the law's family. "At the base's loss" is the smallest model with the loss of the
base's loss-optimal model on the same budget (Algorithm 1), "at the base's cost" the largest that costs no more
(Algorithm 2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from moescale import catalogue
from moescale.models.family import architecture, n_active, training_flops
from moescale.planning.allocation import Allocation, Budget, loss_on_budget
from moescale.planning.total_cost import flops_optimal, tokens_at_loss
from moescale.reproduction.claims import Part, find_claim, sweep_experts
from moescale.reproduction.world import World
from moescale.scaling_laws.law import loss
from moescale.typing import FloatArray

Quantity = Callable[[World, Part], FloatArray]


def published_sweep() -> tuple[FloatArray, FloatArray]:
    """Sizes and tokens of the paper's grid, one entry a cell."""
    table = catalogue.read("published_yun2024.toml")["sweep"]
    n, d = np.meshgrid(np.array(table["n_params"], float), np.array(table["tokens"], float), indexing="ij")
    return n.ravel(), d.ravel()


def printed_losses(experts: float, n_params: FloatArray, tokens: FloatArray) -> FloatArray:
    """The dense-equivalent surface that the paper prints for an expert count."""
    (s,) = (s for s in catalogue.read("published_yun2024.toml")["surface"] if s["experts"] == experts)
    return s["F"] + s["A"] / n_params ** s["alpha"] + s["B"] / tokens ** s["beta"]


# Of the part's expert count: sizes, active sizes, costs and losses, (k,).


def _optimum(w: World, p: Part) -> FloatArray:
    return w.optimum(p.budget_flops, p.experts).n_params[:, 0]


def _base(w: World, p: Part) -> FloatArray:
    return w.optimum(p.budget_flops, p.base_experts).n_params[:, 0]


def _at_loss(w: World, p: Part) -> FloatArray:
    return w.at_base_loss(p.budget_flops, p.experts, p.base_experts).n_params[:, 0]


def _at_cost(w: World, p: Part) -> FloatArray:
    return w.size_at_base_cost(p.budget_flops, p.experts, p.base_experts)[:, 0]


def _active_ratio(w: World, p: Part, n_params: FloatArray) -> FloatArray:
    return n_active(w.law.family, n_params, p.experts) / n_active(w.law.family, _base(w, p), p.base_experts)


def _flops(w: World, found: Allocation) -> FloatArray:
    return training_flops(w.law.family, found.n_params, found.tokens, found.experts)[:, 0]


def _usd_at_loss(w: World, p: Part, experts: float) -> FloatArray:
    return w.usd(_at_loss(w, replace(p, experts=experts)), experts)


def loss_at_base_cost(world: World, budget_flops: float, experts: float, base_experts: float) -> FloatArray:
    """The lowest loss of E within the base's cost."""
    own = world.optimum(budget_flops, experts).n_params
    size = np.minimum(world.size_at_base_cost(budget_flops, experts, base_experts), own)
    known = np.where(np.isnan(size), 1e9, size)
    found = loss_on_budget(world.law, Budget(budget_flops), known, np.array([experts]), theta=world.theta)
    return np.where(np.isnan(size), np.nan, found)[:, 0]


def _losses_at_cost(w: World, p: Part, *counts: float) -> list[FloatArray]:
    return [loss_at_base_cost(w, p.budget_flops, e, p.base_experts) for e in counts]


# Of several expert counts.


def _least(values: list[FloatArray]) -> FloatArray:
    """The least of what is known; NaN where nothing is."""
    least = np.min(np.nan_to_num(np.stack(values), nan=np.inf), axis=0)
    return np.where(np.isfinite(least), least, np.nan)


def _over_next(values: list[FloatArray]) -> FloatArray:
    """Each of values (k,) over the one before it, (counts - 1, k)."""
    found = np.stack(values)
    return found[1:] / found[:-1]


def _second_gain(values: list[FloatArray]) -> FloatArray:
    first, middle, last = values
    return (middle - last) / (first - middle)


def _costs_of_sizes(w: World) -> FloatArray:
    """Serving cost of sizes from 0.25B to 8B, each twice the one before, at the sweep's expert counts, (sizes, counts)."""
    experts = np.array(sweep_experts())
    return w.usd(np.tile(0.25e9 * np.exp2(np.arange(6.0))[:, None], experts.size), experts)


def _sweep_losses(w: World, *counts: float) -> list[FloatArray]:
    n, d = published_sweep()
    return [loss(w.law, n, d, e, theta=w.theta) for e in counts]


# Further quantities that take more than a line.


def _few_over_others(w: World, p: Part) -> FloatArray:
    sizes = {e: w.optimal_at_base_loss(p.budget_flops, e, p.base_experts).n_params for e in sweep_experts()}
    usd = {e: w.usd(n, e)[:, 0] for e, n in sizes.items()}
    return _least([usd[4.0], usd[8.0]]) / _least([each for e, each in usd.items() if e not in (4.0, 8.0)])


def _gain_change_with_tokens(w: World, _: Part) -> FloatArray:
    n, d = published_sweep()
    tokens = np.array([d.min(), d.max()])
    few, many = (loss(w.law, n.max(), tokens, e, theta=w.theta) for e in (4.0, 32.0))
    (rmsle,) = find_claim("fit.rmsle").parts
    assert rmsle.paper is not None
    return np.abs(np.diff(few - many, axis=1)[:, 0]) / few[:, 1] / rmsle.paper


def _mfu_range(w: World, p: Part) -> FloatArray:
    n, costs, d = _optimum(w, p), w.costs, w.costs.deployment
    experts = np.full(n.shape, p.experts)
    served, shape = costs.serving(n, experts), architecture(costs.family, n, experts, kv_heads=costs.kv_heads)
    context = d.prompt_tokens + d.output_tokens / 2
    one_s, all_s = (costs.latency.decode_s(shape, served.gpus, b, context) for b in (1.0, served.batch))
    return served.batch * one_s / all_s  # FLOPs a token, GPUs and peak cancel


def _flops_to_match(w: World, p: Part) -> FloatArray:
    (target,) = _losses_at_cost(w, p, p.experts)
    known = np.isfinite(target)
    target = np.where(known, target, w.optimum(p.budget_flops, p.base_experts).loss[:, 0])
    needed = flops_optimal(w.law, p.base_experts, target[:, None], 0.0, theta=w.theta).training_flops
    return np.where(known, needed[:, 0], np.nan) / p.budget_flops


def _budget_share(w: World, p: Part) -> FloatArray:
    limit = w.size_at_base_cost(p.budget_flops, p.experts, p.base_experts)
    size = np.fmin(limit, w.optimal_at_base_loss(p.budget_flops, p.experts, p.base_experts).n_params)
    target = w.optimum(p.budget_flops, p.base_experts).loss
    tokens = tokens_at_loss(w.law, size, np.array([p.experts]), target, theta=w.theta)
    spent = 6.0 * n_active(w.law.family, size, np.array([p.experts])) * tokens
    return np.where(np.isnan(limit), np.nan, spent)[:, 0] / p.budget_flops


OF_LAW: dict[str, Quantity] = {
    "loss_optimal_size": _optimum,
    "size_at_base_loss": _at_loss,
    "size_ratio_at_base_loss": lambda w, p: _at_loss(w, p) / _base(w, p),
    "own_ratio_at_base_loss": lambda w, p: _at_loss(w, p) / _optimum(w, p),
    "active_ratio_at_base_loss": lambda w, p: _active_ratio(w, p, _at_loss(w, p)),
    # The model at the loss of the dense optimum, over the base's optimum.
    "active_ratio_dense_loss_to_base_optimum": lambda w, p: _active_ratio(
        w, p, _at_loss(w, replace(p, base_experts=1.0))
    ),
    # FLOPs with which E experts reach the loss of the base's optimum, over its budget.
    "flops_ratio_at_equal_loss": lambda w, p: (
        _flops(w, w.optimal_at_base_loss(p.budget_flops, p.experts, p.base_experts)) / p.budget_flops
    ),
    # The budget of E's optimum over the FLOPs with which the base's experts reach its loss.
    "flops_ratio_of_fewer": lambda w, p: (
        p.budget_flops / _flops(w, w.optimal_at_base_loss(p.budget_flops, p.base_experts, p.experts))
    ),
    # Loss-optimal loss over that of the next lower expert count: the largest over the sweep.
    "loss_over_next_fewer": lambda w, p: _over_next(
        [w.optimum(p.budget_flops, e).loss[:, 0] for e in sweep_experts()]
    ).max(axis=0),
    # Gain in loss from 16 to 32 experts over that from 8 to 16: the largest over the sweep's sizes and tokens.
    "gain_ratio_on_sweep": lambda w, _: np.max(_second_gain(_sweep_losses(w, 8.0, 16.0, 32.0)), axis=-1),
    # Change over the sweep's tokens, at its largest size, of the gain from 4 to 32 experts over the loss at E = 4, in RMSLEs.
    "gain_change_with_tokens": _gain_change_with_tokens,
    # RMS of ln(law / printed dense-equivalent surface) over the sweep's grid.
    "surface_rms": lambda w, p: np.sqrt(
        np.mean(np.log(_sweep_losses(w, p.experts)[0] / printed_losses(p.experts, *published_sweep())) ** 2, axis=-1)
    ),
}

OF_COSTS: dict[str, Quantity] = {
    "own_ratio_at_base_cost": lambda w, p: _at_cost(w, p) / _optimum(w, p),  # also beyond E's own optimum
    "active_ratio_at_base_cost": lambda w, p: _active_ratio(w, p, _at_cost(w, p)),
    # The lowest cost of 4 and 8 experts over the lowest of the others, loss-optimal models of equal loss.
    "few_over_others_cost": _few_over_others,
    # Serving cost at the base's loss over the base's, over the dearer of 8 and 16 experts, over the lowest of other counts.
    "cost_ratio_at_base_loss": lambda w, p: _usd_at_loss(w, p, p.experts) / w.usd(_base(w, p), p.base_experts),
    "many_over_few_cost": lambda w, p: (
        _usd_at_loss(w, p, p.experts) / np.maximum(_usd_at_loss(w, p, 8.0), _usd_at_loss(w, p, 16.0))
    ),
    "cost_over_others_at_base_loss": lambda w, p: (
        _usd_at_loss(w, p, p.experts) / _least([_usd_at_loss(w, p, e) for e in p.other_experts])
    ),
    # Serving cost of the loss-optimal model over that of the next lower expert count: the least over the sweep.
    "cost_over_next_fewer": lambda w, p: _over_next(
        [w.usd(_optimum(w, replace(p, experts=e)), e) for e in sweep_experts()]
    ).min(axis=0),
    # The lowest loss within the base's cost over that of the next lower expert count, from the base up: the largest.
    "loss_over_next_fewer_at_base_cost": lambda w, p: _over_next(
        [
            w.optimum(p.budget_flops, p.base_experts).loss[:, 0],
            *_losses_at_cost(w, p, *(e for e in sweep_experts() if e > p.base_experts)),
        ]
    ).max(axis=0),
    # Gain from 16 to 32 experts over that from 8 to 16, each the lowest loss within the base's cost.
    "gain_ratio_at_base_cost": lambda w, p: _second_gain(_losses_at_cost(w, p, 8.0, 16.0, 32.0)),
    # Serving cost of a size over that of half the size: the least over sizes and expert counts.
    "least_growth_of_cost": lambda w, _: np.full(len(w.theta), _over_next(list(_costs_of_sizes(w))).min()),
    # The exponent of serving cost in size, the mean over the sweep's expert counts.
    "cost_exponent": lambda w, _: np.full(len(w.theta), np.diff(np.log2(_costs_of_sizes(w)), axis=0).mean()),
    # Model FLOPs utilisation of decoding with the largest batch over that with a batch of 1, cheapest GPU count.
    "mfu_range": _mfu_range,
    # FLOPs with which the base's expert count reaches the loss of E at the base's cost, over the budget.
    "flops_to_match_at_base_cost": _flops_to_match,
    # The fewest FLOPs of E with the loss and at most the cost of the base's optimum, over the base's budget.
    "budget_share_at_base_cost": _budget_share,
}
QUANTITIES = OF_LAW | OF_COSTS


def value_of(part: Part, world: World) -> FloatArray:
    """The number that a part is about, one a coefficient set, (k,); NaN where there is none."""
    if part.quantity is None:
        return np.full(len(world.theta), np.nan)
    of = QUANTITIES[part.quantity]
    with np.errstate(invalid="ignore", divide="ignore"):
        if part.take is None:
            return of(world, part)
        places = [replace(part, experts=e) for e in part.other_experts]
        places = places or [replace(part, budgets_flops=(budget,)) for budget in part.budgets_flops]
        values = np.stack([of(world, place) for place in places])
        least, most = values.min(axis=0), values.max(axis=0)
        return {"least": least, "most": most, "change": most / least}[part.take]

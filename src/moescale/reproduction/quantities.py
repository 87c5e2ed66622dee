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
QUANTITIES: dict[str, Quantity] = {}
NEEDS_COSTS: set[str] = set()  # the quantities that involve serving costs


def quantity(function: Quantity) -> Quantity:
    """A quantity of the law alone, under the function's name."""
    QUANTITIES[function.__name__] = function
    return function


def cost_quantity(function: Quantity) -> Quantity:
    """A quantity that involves serving costs, under the function's name."""
    NEEDS_COSTS.add(function.__name__)
    return quantity(function)


def published_sweep() -> tuple[FloatArray, FloatArray]:
    """Sizes and tokens of the paper's grid, one entry a cell."""
    table = catalogue.read("published_yun2024.toml")["sweep"]
    n, d = np.meshgrid(np.array(table["n_params"], float), np.array(table["tokens"], float), indexing="ij")
    return n.ravel(), d.ravel()


def _active(world: World, n_params: FloatArray, experts: float) -> FloatArray:
    return n_active(world.law.family, n_params, np.array([experts]))


def _training_flops(world: World, found: Allocation) -> FloatArray:
    return training_flops(world.law.family, found.n_params, found.tokens, found.experts)


TAKE: dict[str, Callable[[FloatArray], FloatArray]] = {
    "least": lambda values: values.min(axis=0),
    "most": lambda values: values.max(axis=0),
    "change": lambda values: values.max(axis=0) / values.min(axis=0),
}


def value_of(part: Part, world: World) -> FloatArray:
    """The number that a part is about, one a coefficient set, (k,); NaN where there is none."""
    if part.quantity is None:
        return np.full(len(world.theta), np.nan)
    of = QUANTITIES[part.quantity]
    with np.errstate(invalid="ignore", divide="ignore"):
        if part.take is None:
            return np.asarray(of(world, part), float)
        places = [replace(part, experts=e) for e in part.other_experts]
        places = places or [replace(part, budgets_flops=(budget,)) for budget in part.budgets_flops]
        return TAKE[part.take](np.stack([of(world, place) for place in places]))


# Sizes (k, 1) of the part's expert count, by name: its optimum, and what the base's optimum bounds.
SIZES: dict[str, Callable[[World, Part], FloatArray]] = {
    "optimum": lambda w, p: w.optimum(p.budget_flops, p.experts).n_params,
    "dense loss": lambda w, p: w.at_base_loss(p.budget_flops, p.experts, 1.0).n_params,
    "base loss": lambda w, p: w.at_base_loss(p.budget_flops, p.experts, p.base_experts).n_params,
    "base cost": lambda w, p: w.size_at_base_cost(
        p.budget_flops, p.experts, p.base_experts
    ),  # also beyond E's own optimum
}


def _size_quantity(name: str, at: str, over: str = "") -> None:
    """A quantity of the size named `at`: itself, or over E's own optimum, the base's N or (activated) the base's active size."""

    def answer(world: World, part: Part) -> FloatArray:
        size = SIZES[at](world, part)
        base = world.optimum(part.budget_flops, part.base_experts).n_params
        if over == "own optimum":
            size = size / SIZES["optimum"](world, part)
        elif over == "base":
            size = size / base
        elif over == "active base":
            size = _active(world, size, part.experts) / _active(world, base, part.base_experts)
        return size[:, 0]

    QUANTITIES[name] = answer
    if at == "base cost":
        NEEDS_COSTS.add(name)


_size_quantity("loss_optimal_size", "optimum")
_size_quantity("size_at_base_loss", "base loss")
_size_quantity("size_ratio_at_base_loss", "base loss", "base")
_size_quantity("own_ratio_at_base_loss", "base loss", "own optimum")
_size_quantity("own_ratio_at_base_cost", "base cost", "own optimum")
_size_quantity("active_ratio_at_base_loss", "base loss", "active base")
_size_quantity("active_ratio_at_base_cost", "base cost", "active base")
_size_quantity("active_ratio_dense_loss_to_base_optimum", "dense loss", "active base")


@quantity
def flops_ratio_at_equal_loss(world: World, part: Part) -> FloatArray:
    """FLOPs with which E experts reach the loss of the base's optimum, over its budget."""
    found = world.optimal_at_base_loss(part.budget_flops, part.experts, part.base_experts)
    return _training_flops(world, found)[:, 0] / part.budget_flops


@quantity
def flops_ratio_of_fewer(world: World, part: Part) -> FloatArray:
    """The budget of E's optimum over the FLOPs with which the base's experts reach its loss."""
    found = world.optimal_at_base_loss(part.budget_flops, part.base_experts, part.experts)
    return part.budget_flops / _training_flops(world, found)[:, 0]


@cost_quantity
def few_over_others_cost(world: World, part: Part) -> FloatArray:
    """The lowest cost of 4 and 8 experts over the lowest of the others, loss-optimal models of equal loss."""
    budget, base = part.budget_flops, part.base_experts
    usd = {e: world.usd(world.optimal_at_base_loss(budget, e, base).n_params, e)[:, 0] for e in sweep_experts()}
    few = (4.0, 8.0)  # that the paper calls so
    return _least([usd[e] for e in few]) / _least([values for e, values in usd.items() if e not in few])


def _least(values: list[FloatArray]) -> FloatArray:
    """The least of what is known; NaN where nothing is."""
    least = np.min(np.nan_to_num(np.stack(values), nan=np.inf), axis=0)
    return np.where(np.isfinite(least), least, np.nan)


def cost_at_base_loss(world: World, budget_flops: float, experts: float, base_experts: float) -> FloatArray:
    """Serving cost at the base's loss."""
    small = world.at_base_loss(budget_flops, experts, base_experts).n_params
    return world.usd(small, experts)[:, 0]


@cost_quantity
def cost_ratio_at_base_loss(world: World, part: Part) -> FloatArray:
    """Serving cost at the base's loss over the base's."""
    budget = part.budget_flops
    base = world.usd(world.optimum(budget, part.base_experts).n_params, part.base_experts)[:, 0]
    return cost_at_base_loss(world, budget, part.experts, part.base_experts) / base


@cost_quantity
def many_over_few_cost(world: World, part: Part) -> FloatArray:
    """Serving cost of E at the base's loss over the dearer of 8 and 16 experts there."""
    budget, base = part.budget_flops, part.base_experts
    many, eight, sixteen = (cost_at_base_loss(world, budget, e, base) for e in (part.experts, 8.0, 16.0))
    return many / np.maximum(eight, sixteen)


def _over_next(values: list[FloatArray]) -> FloatArray:
    """Each of values (k,) over the one before it, (counts - 1, k)."""
    found = np.stack(values)
    return found[1:] / found[:-1]


@quantity
def loss_over_next_fewer(world: World, part: Part) -> FloatArray:
    """Loss-optimal loss over that of the next lower expert count: the largest over the sweep."""
    return _over_next([world.optimum(part.budget_flops, e).loss[:, 0] for e in sweep_experts()]).max(axis=0)


def _optima_usd(world: World, budget_flops: float) -> list[FloatArray]:
    return [world.usd(world.optimum(budget_flops, e).n_params, e)[:, 0] for e in sweep_experts()]


@cost_quantity
def cost_over_next_fewer(world: World, part: Part) -> FloatArray:
    """Serving cost of the loss-optimal model over that of the next lower expert count: the least over the sweep."""
    return _over_next(_optima_usd(world, part.budget_flops)).min(axis=0)


@cost_quantity
def cost_over_others_at_base_loss(world: World, part: Part) -> FloatArray:
    """Serving cost of E at the base's loss over the lowest of the part's other expert counts there."""
    own, *others = (
        cost_at_base_loss(world, part.budget_flops, e, part.base_experts) for e in (part.experts, *part.other_experts)
    )
    return own / _least(others)


@cost_quantity
def loss_over_next_fewer_at_base_cost(world: World, part: Part) -> FloatArray:
    """The lowest loss within the base's cost over that of the next lower expert count, from the base up: the largest."""
    budget, base = part.budget_flops, part.base_experts
    above = [loss_at_base_cost(world, budget, e, base) for e in sweep_experts() if e > base]
    return _over_next([world.optimum(budget, base).loss[:, 0], *above]).max(axis=0)


def _costs_of_sizes(world: World) -> FloatArray:
    """Serving cost of sizes from 0.25B to 8B, each twice the one before, at the sweep's expert counts, (sizes, counts)."""
    experts = np.array(sweep_experts())
    n = np.broadcast_to(0.25e9 * np.exp2(np.arange(6.0))[:, None], (6, experts.size))
    return world.pricing.usd_per_mtok(n, experts)


@cost_quantity
def least_growth_of_cost(world: World, _: Part) -> FloatArray:
    """Serving cost of a size over that of half the size: the least over sizes and expert counts."""
    usd = _costs_of_sizes(world)
    return np.full(len(world.theta), np.min(usd[1:] / usd[:-1]))


@cost_quantity
def cost_exponent(world: World, _: Part) -> FloatArray:
    """The exponent of serving cost in size, the mean over the sweep's expert counts."""
    usd = _costs_of_sizes(world)
    return np.full(len(world.theta), np.mean(np.log2(usd[-1] / usd[0])) / (len(usd) - 1))


@quantity
def gain_ratio_on_sweep(world: World, _: Part) -> FloatArray:
    """Gain in loss from 16 to 32 experts over that from 8 to 16: the largest over the sweep's sizes and tokens."""
    n, d = published_sweep()
    l8, l16, l32 = (loss(world.law, n, d, e, theta=world.theta) for e in (8.0, 16.0, 32.0))
    return np.max((l16 - l32) / (l8 - l16), axis=-1)


def loss_at_base_cost(world: World, budget_flops: float, experts: float, base_experts: float) -> FloatArray:
    """The lowest loss of E within the base's cost."""
    own = world.optimum(budget_flops, experts).n_params
    size = np.minimum(world.size_at_base_cost(budget_flops, experts, base_experts), own)
    known = np.where(np.isnan(size), 1e9, size)
    found = loss_on_budget(world.law, Budget(budget_flops), known, np.array([experts]), theta=world.theta)
    return np.where(np.isnan(size), np.nan, found)[:, 0]


@cost_quantity
def gain_ratio_at_base_cost(world: World, part: Part) -> FloatArray:
    """Gain from 16 to 32 experts over that from 8 to 16, each the lowest loss within the base's cost."""
    budget, base = part.budget_flops, part.base_experts
    l8, l16, l32 = (loss_at_base_cost(world, budget, e, base) for e in (8.0, 16.0, 32.0))
    return (l16 - l32) / (l8 - l16)


@quantity
def gain_change_with_tokens(world: World, _: Part) -> FloatArray:
    """Change over the sweep's tokens, at its largest size, of the gain from 4 to 32 experts, over the loss at E = 4, in RMSLEs."""
    n, d = published_sweep()
    tokens = np.array([d.min(), d.max()])
    few, many = (loss(world.law, n.max(), tokens, e, theta=world.theta) for e in (4.0, 32.0))
    (rmsle,) = find_claim("fit.rmsle").parts
    assert rmsle.paper is not None
    return np.abs(np.diff(few - many, axis=1)[:, 0]) / few[:, 1] / rmsle.paper


@cost_quantity
def mfu_range(world: World, part: Part) -> FloatArray:
    """Model FLOPs utilisation of decoding with the largest batch over that with a batch of 1, cheapest GPU count."""
    n = world.optimum(part.budget_flops, part.experts).n_params[:, 0]
    costs, experts = world.costs, np.full(n.shape, part.experts)
    served, shape = costs.serving(n, experts), architecture(costs.family, n, experts, kv_heads=costs.kv_heads)
    d = costs.deployment
    context = d.prompt_tokens + d.output_tokens / 2
    one_s, all_s = (costs.latency.decode_s(shape, served.gpus, b, context) for b in (1.0, served.batch))
    return served.batch * one_s / all_s  # FLOPs a token, GPUs and peak cancel


@cost_quantity
def flops_to_match_at_base_cost(world: World, part: Part) -> FloatArray:
    """FLOPs with which the base's expert count reaches the loss of E at the base's cost, over the budget."""
    budget, base = part.budget_flops, part.base_experts
    target = loss_at_base_cost(world, budget, part.experts, base)[:, None]
    known = np.isfinite(target)
    target = np.where(known, target, world.optimum(budget, base).loss)
    needed = flops_optimal(world.law, base, target, 0.0, theta=world.theta).training_flops
    return np.where(known, needed, np.nan)[:, 0] / budget


@cost_quantity
def budget_share_at_base_cost(world: World, part: Part) -> FloatArray:
    """The fewest FLOPs of E with the loss and at most the cost of the base's optimum, over the base's budget."""
    asked = (part.budget_flops, part.experts, part.base_experts)
    limit = world.size_at_base_cost(*asked)
    size = np.fmin(limit, world.optimal_at_base_loss(*asked).n_params)
    target = world.optimum(part.budget_flops, part.base_experts).loss
    tokens = tokens_at_loss(world.law, size, np.array([part.experts]), target, theta=world.theta)
    spent = 6.0 * _active(world, size, part.experts) * tokens
    return np.where(np.isnan(limit), np.nan, spent)[:, 0] / part.budget_flops


@quantity
def surface_rms(world: World, part: Part) -> FloatArray:
    """RMS of ln(law / printed dense-equivalent surface) over the sweep's grid."""
    (printed,) = (s for s in catalogue.read("published_yun2024.toml")["surface"] if s["experts"] == part.experts)
    n, d = published_sweep()
    surface = printed["F"] + printed["A"] / n ** printed["alpha"] + printed["B"] / d ** printed["beta"]
    return np.sqrt(np.mean(np.log(loss(world.law, n, d, part.experts, theta=world.theta) / surface) ** 2, axis=-1))

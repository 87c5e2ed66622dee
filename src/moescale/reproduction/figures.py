"""The paper's figures, computed for any law and serving and drawn by matplotlib, and a reproduction as files.

Crosses are numbers that the paper prints; it publishes no data of its figures.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.io.files import make_folder, write_atomically
from moescale.io.frames import delimited, mixed_array
from moescale.models.family import n_active
from moescale.models.parameters import dense_equivalent_params
from moescale.models.published import hl_coefficient, shapes_of_hl
from moescale.planning.allocation import Allocation, Budget, at_size
from moescale.reproduction.claims import claims, sweep_experts
from moescale.reproduction.evaluate import Outcome
from moescale.reproduction.quantities import loss_at_base_cost, printed_losses, published_sweep
from moescale.reproduction.world import World
from moescale.scaling_laws.law import loss
from moescale.typing import FloatArray
from moescale.units import expert_label, format_count, format_flops
from moescale.views.figures import SUFFIXES, check_plot, save_figure, style
from moescale.views.figures.style import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (5, 1.2, 1, 1.2)))  # by rising size, a second cue
DOTTED: Look = {"color": style.FAINT, "linewidth": 1.0, "linestyle": (0, (1, 1.6))}
Row = Mapping[str, Any]
Drawn = tuple["Figure", list[Row]]  # a figure, and its data: a record for each point of a curve
FITTED_TOKENS = (5.0e9, 7.5e9, 10.0e9, 20.0e9)  # the panels of the paper's figure 1
PRINTED_EXPERTS = (8, 16)  # with surfaces that it prints
CURVE_BUDGETS = (1e21, 8e21)  # those of its figure 4
BASES = (1.0, 4.0)  # of its figures 5 and 6
BUDGETS: FloatArray = np.geomspace(1e21, 1e22, 25)  # around all that it names
TRAINED: FloatArray = np.geomspace(1e20, 3e22, 41)  # figure 3 needs room on either side
EXPERT_GRID: FloatArray = np.exp2(np.linspace(0.0, 5.0, 41))
SIZES: FloatArray = np.geomspace(2e8, 4e10, 160)
NEAR = 1.05  # budgets of a printed number and of a curve are the same within this factor


@dataclass(frozen=True)
class Axis:
    """A column of the records as an axis; a logarithmic one says how its ticks are written."""

    column: str
    label: str
    tick: Callable[[float], str] | None = None

    def of(self, rows: Sequence[Row]) -> FloatArray:
        """The values of the column."""
        return np.array([row[self.column] for row in rows], float)

    def put(self, ax: Axes, which: str, values: FloatArray, most: int = 6) -> None:
        """Label an axis of a panel, with at most so many ticks around the values."""
        if self.tick is not None:
            if not np.isfinite(values).any():
                raise InputError("none of these models can be served", next_step="take more GPUs, or smaller budgets")
            style.log_ticks(ax, which, self.tick, values, most=most)
        (ax.set_xlabel if which == "x" else ax.set_ylabel)(self.label)


USD = Axis("usd_per_mtok", "cost (US$ per million output tokens)", lambda usd: f"${usd:,g}")
FLOPS = Axis("budget_flops", "training FLOPs", format_flops)
SIZE = Axis("n_params", "size N (dense-equivalent parameters)", format_count)
LOSS = Axis("loss", "loss (nats per token)")
COST_RATIO = Axis("cost_ratio", "cost over the baseline's")
ACTIVE_RATIO = Axis("active_ratio", "activated size over the baseline's")


def curves(rows: Sequence[Row], by: str) -> Iterator[tuple[Any, list[Row]]]:
    """The records of each value of one column, in the order of first appearance."""
    for value in dict.fromkeys(row[by] for row in rows):
        yield value, [row for row in rows if row[by] == value]


def records(**columns: object) -> list[Row]:
    """One record for each place of arrays that broadcast against each other."""
    arrays = np.broadcast_arrays(*(np.asarray(values) for values in columns.values()))
    return [dict(zip(columns, row, strict=True)) for row in zip(*(a.ravel().tolist() for a in arrays), strict=True)]


def _optima(world: World, budgets_flops: FloatArray, experts: float) -> tuple[FloatArray, FloatArray]:
    return _first([world.optimum(budget, experts) for budget in budgets_flops.tolist()])


def _first(found: list[Allocation]) -> tuple[FloatArray, FloatArray]:
    return np.array([a.n_params[0, 0] for a in found]), np.array([a.loss[0, 0] for a in found])


def _lines(ax: Axes, rows: Sequence[Row], x: Axis, y: Axis, every: int | None) -> None:
    for e, mine in curves(rows, "experts"):
        look: Look = {"color": style.colour_of(e)}
        look |= {} if every is None else {"marker": style.marker_of(e), "markevery": every, "markersize": 2.8}
        ax.plot(x.of(mine), y.of(mine), **look)


def fitted_figure(world: World) -> Drawn:
    """Figure 1: a law's losses on the paper's sweep, bands of 90% of its draws, and the two surfaces that the paper prints."""
    sizes = np.unique(published_sweep()[0])
    t, s = np.array(FITTED_TOKENS)[:, None, None], sizes[:, None]
    losses = {"loss": loss(world.law, s, t, EXPERT_GRID)}
    if len(world.law.draws):
        of_draws = loss(world.law, s, t, EXPERT_GRID, theta=world.law.draws)
        losses["loss_low"], losses["loss_high"] = np.percentile(of_draws, [5.0, 95.0], axis=0)
    rows = records(kind="law", tokens=t, n_params=s, experts=EXPERT_GRID, **losses)
    for experts in PRINTED_EXPERTS:
        rows += records(kind="printed", tokens=t, n_params=s, experts=experts, loss=printed_losses(experts, s, t))

    figure = style.new_figure(style.PAGE_WIDTH, 2.6)
    panels = list(curves(rows, "tokens"))
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (of_panel, panel) in zip(axes, panels, strict=True):
        law, printed = (mine for _, mine in curves(panel, "kind"))
        for (_, mine), dashes in zip(curves(law, "n_params"), DASHES, strict=True):
            e, values = Axis("experts", "").of(mine), LOSS.of(mine)
            ax.plot(e, values, color=style.INK, linewidth=1.0, linestyle=dashes)
            if "loss_low" in losses:
                low, high = (Axis(name, "").of(mine) for name in ("loss_low", "loss_high"))
                ax.fill_between(e, low, high, color=style.FAINT, alpha=0.25, linewidth=0)
        for row in printed:
            style.point(ax, row["experts"], row["loss"], "x", style.ACCENT, 4.5, markeredgewidth=1.1, zorder=4)
        ax.set_title(f"D = {format_count(of_panel)}")
        style.log_ticks(ax, "x", "{:g}".format, np.array(sweep_experts()))
        ax.set_xticks(sweep_experts(), [f"{e:g}" for e in sweep_experts()])
        ax.set_xlabel("experts E")
    axes[0].set_ylabel(LOSS.label)
    looks: list[Look] = [{"color": style.INK, "linewidth": 1.0, "linestyle": dashes} for dashes in DASHES]
    style.key(figure, dict(zip(map(format_count, sizes.tolist()), looks, strict=True)), title="N", handlelength=2.4)
    told = "; bands: 90% of the law's draws" if len(world.law.draws) else ""
    below = f"crosses: surfaces that the paper prints for E = 8 and 16{told}"
    style.headline(figure, f"Fitted losses, a line for each dense-equivalent size N\n{below}", 8.0)
    return figure, rows


def cost_figure(world: World) -> Drawn:
    """Figure 2: serving cost against size, and the largest size against serving cost."""
    e, n = np.meshgrid(np.array(sweep_experts()), SIZES, indexing="ij")
    served = world.costs.serving(n, e)
    usd = np.where(np.isfinite(served.usd_per_mtok), served.usd_per_mtok, np.nan)
    rows = records(n_params=n, experts=e, usd_per_mtok=usd, gpus=served.gpus)
    figure = style.new_figure(style.PAGE_WIDTH, 2.9)
    top = np.nanquantile(usd, 0.97) if np.isfinite(usd).any() else np.nan
    left, right = figure.subplots(1, 2)
    for ax, x, y in ((left, SIZE, USD), (right, USD, SIZE)):
        _lines(ax, rows, x, y, None)
        for which, axis in (("x", x), ("y", y)):
            axis.put(ax, which, usd[usd <= top] if axis is USD else SIZE.of(rows))
    style.key(figure, style.expert_looks(sweep_experts()))
    style.headline(figure, "Serving cost by size, and the size that a cost allows\nsteps: one GPU more is needed", 8.0)
    return figure, rows


def trade_off_figure(world: World, budgets_flops: FloatArray = TRAINED) -> Drawn:
    """Figure 3: loss-optimal models over budgets: loss against cost, loss against training FLOPs, cost against training FLOPs."""
    rows: list[Row] = []
    for e in sweep_experts():
        n, losses = _optima(world, budgets_flops, e)
        usd = world.usd(n, e)
        rows += records(experts=e, budget_flops=budgets_flops, n_params=n, loss=losses, usd_per_mtok=usd)

    figure = style.new_figure(style.PAGE_WIDTH, 2.9)
    axes = figure.subplots(1, 3)
    panels = (("quality and cost", USD, LOSS), ("quality and training", FLOPS, LOSS), ("cost and training", FLOPS, USD))
    for ax, (title, x, y) in zip(axes, panels, strict=True):
        _lines(ax, rows, x, y, 5)
        x.put(ax, "x", x.of(rows), most=4)
        y.put(ax, "y", y.of(rows))
        ax.set_title(title)
    style.key(figure, style.expert_looks(sweep_experts()))
    style.headline(figure, "Loss-optimal models", 8.0)
    return figure, rows


def curves_figure(world: World) -> Drawn:
    """Figure 4: loss against cost over sizes around each expert count's loss-optimal one (markers, share 1), a panel a budget."""
    shares = np.unique(np.append(np.geomspace(0.03, 4.0, 96), 1.0))
    rows: list[Row] = []
    for budget, e in product(CURVE_BUDGETS, sweep_experts()):
        n = world.optimum(budget, e).n_params * shares[:, None]
        models = at_size(world.law, Budget(budget), n, np.array([e]))
        figures = {"tokens": models.tokens, "loss": models.loss, "usd_per_mtok": world.usd(n, e)}
        rows += records(budget_flops=budget, experts=e, share=shares[:, None], n_params=n, **figures)

    figure = style.new_figure(style.PAGE_WIDTH, 3.2)
    panels = list(curves(rows, "budget_flops"))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (budget, panel) in zip(axes, panels, strict=True):
        best = [row for row in panel if row["share"] == 1.0]
        for (e, mine), own in zip(curves(panel, "experts"), best, strict=True):
            at, usd, losses = mine.index(own), USD.of(mine), LOSS.of(mine)
            ax.plot(usd[: at + 1], losses[: at + 1], color=style.colour_of(e))
            ax.plot(usd[at:], losses[at:], color=style.colour_of(e), linewidth=0.8, linestyle=(0, (3, 2)))
            style.optimum(ax, usd[at], losses[at], e, 5.0)
        low, high = (bound(row["loss"] for row in best) for bound in (min, max))
        ax.set_ylim(low - 0.12 * (high - low), high + 0.9 * (high - low))
        USD.put(ax, "x", USD.of(best)[:, None] * np.array([1.0 / 6.0, 1.6]))
        ax.set_title(f"{format_flops(budget)} training FLOPs")
    axes[0].set_ylabel(LOSS.label)
    style.key(figure, style.expert_looks(sweep_experts()))
    below = "markers: loss-optimal sizes; solid: smaller, more tokens; dashed: larger"
    style.headline(figure, f"Models that spend a whole budget\n{below}", 8.0)
    return figure, rows


def bounded_figure(world: World, bound: Literal["loss", "cost"]) -> Drawn:
    """Figures 5 (bound "loss", algorithm 1) and 6 ("cost", algorithm 2): models of more experts than the base's over budgets.

    Cost or loss above, activated size below. At the base's cost sizes may lie beyond their own optimum, as in the paper; the loss
    is the lowest within the cost.
    """
    family, rows = world.law.family, list[Row]()
    for base, e in ((base, e) for base in BASES for e in sweep_experts() if e > base):
        base_n, base_loss = _optima(world, BUDGETS, base)
        base_usd = world.usd(base_n, base)
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
            "cost_ratio": world.usd(n, e) / base_usd,
            "active_ratio": n_active(family, n, e) / n_active(family, base_n, base),
            "own_ratio": n / _optima(world, BUDGETS, e)[0],
        }
        rows += records(bound=bound, base_experts=base, experts=e, budget_flops=BUDGETS, **figures)

    upper = COST_RATIO if bound == "loss" else LOSS
    bases = list(curves(rows, "base_experts"))
    figure = style.new_figure(style.PAGE_WIDTH, 4.6)
    axes = figure.subplots(2, len(bases), sharex=True, sharey="row", squeeze=False)
    for (above, below), (base, whole) in zip(axes.T, bases, strict=True):
        above.set_title(f"baseline: loss-optimal {expert_label(base)}")
        for ax, axis in ((above, upper), (below, ACTIVE_RATIO)):
            _lines(ax, whole, FLOPS, axis, 6)
            _printed_numbers(ax, base, whole, f"{axis.column}_at_base_{bound}")
            FLOPS.put(ax, "x", FLOPS.of(whole))
            if axis is not LOSS:
                ax.set_ylim(bottom=0.0)
        above.set_xlabel("")
        if bound == "cost":
            _, one = next(curves(whole, "experts"))
            above.plot(FLOPS.of(one), [row["base_loss"] for row in one], **DOTTED)
            below.axhline(1.0, zorder=1, **DOTTED)
    axes[0, 0].set_ylabel(upper.label)
    axes[1, 0].set_ylabel(ACTIVE_RATIO.label)
    looks = style.expert_looks(dict.fromkeys(row["experts"] for row in rows))
    style.key(figure, looks | {"paper": {"color": style.INK, "marker": "x", "linestyle": "none"}})
    crosses = "crosses: printed in the paper, black ones for the least and the most of other expert counts"
    below = f"dotted: the baseline; {crosses}" if bound == "cost" else "crosses: printed in the paper"
    style.headline(figure, f"Models with the {bound} of the baseline's optimum\n{below}", 8.0)
    return figure, rows


def _printed_numbers(ax: Axes, base: float, shown: Sequence[Row], quantity: str) -> None:
    budgets, counts = FLOPS.of(shown), {row["experts"] for row in shown}
    for part in (part for claim in claims() for part in claim.parts):
        if part.quantity != quantity or part.base_experts != base or part.paper is None:
            continue
        several = bool(part.other_experts)  # then it is the least or the most of them
        drawn = several or part.experts in counts
        if drawn and budgets.min() / NEAR <= part.budget_flops <= budgets.max() * NEAR:
            colour = style.INK if several else style.colour_of(part.experts)
            style.point(ax, part.budget_flops, part.paper, "x", colour, 5.5, markeredgewidth=1.4, zorder=5)


def hidden_layers_figure() -> Drawn:
    """Figure 8: width times depth of the published dense models that the catalogue's mu was fitted to, against N^(2/3)."""
    shapes = shapes_of_hl()
    n = np.array([float(dense_equivalent_params(s)) for s in shapes.values()])
    hl = np.array([float(np.asarray(s.d_model) * np.asarray(s.n_layers)) for s in shapes.values()])
    mu, x = hl_coefficient(shapes.values())[0], n ** (2.0 / 3.0)
    fitted = mu * x
    rows = records(name=tuple(shapes), n_params=n, hidden_times_layers=hl, fitted=fitted)
    figure = style.new_figure(0.6 * style.PAGE_WIDTH, 2.9)
    ax = figure.subplots()
    line = np.geomspace(x.min() / 1.3, x.max() * 1.3, 16)
    ax.plot(line, mu * line, color=style.FAINT, linewidth=1.0)
    ax.plot(x, hl, marker="o", markersize=3.6, color=style.ACCENT, linestyle="none")
    style.log_ticks(ax, "x", format_count, line, most=6)
    style.log_ticks(ax, "y", format_count, hl, most=6)
    ax.set_xlabel("$N^{2/3}$ (N: parameters without embeddings)", parse_math=True)
    ax.set_ylabel("width times depth, h l")
    off = f"mean error {np.abs(fitted / hl - 1.0).mean():.1%}"
    ax.set_title(f"{len(rows)} published dense models; line: h l = {mu:.4f} N^(2/3), {off}", fontsize=7)
    return figure, rows


def verdict_figure(outcomes: Sequence[Outcome], others: Sequence[Outcome] = ()) -> Drawn:
    """Every printed number that is judged: ours over it, with 90% of the law's draws, and beside it ours on another server."""
    other = {o.claim.id: o for o in others}
    rows: list[Row] = [
        {
            "number": f"{o.claim.id}, {part.label}",
            "paper": part.paper,
            "ours": part.ours,
            **dict(zip(("low", "high"), part.interval or (part.ours, part.ours), strict=True)),
            "beside": other[o.claim.id].parts[i].ours if other else None,
        }
        for o in outcomes
        for i, part in enumerate(o.parts)
        if o.counts and part.judged and part.paper is not None and part.ours is not None
    ]
    figure = style.new_figure(style.PAGE_WIDTH, 0.9 + 0.165 * len(rows))
    ax = figure.subplots()
    for share, alpha in ((0.25, 0.35), (0.15, 0.6)):
        ax.axvspan(1.0 - share, 1.0 + share, color=style.RULE, alpha=alpha, linewidth=0)
    ax.axvline(1.0, color=style.FAINT, linewidth=0.8)
    ours, low, high, beside = (
        Axis(name, "").of(rows) / Axis("paper", "").of(rows) for name in ("ours", "low", "high", "beside")
    )
    places = np.arange(len(rows))
    ax.hlines(places, low, high, color=style.INK, linewidth=1.0)
    ax.plot(beside, places, "o", color=style.ACCENT, markersize=4.0, markerfacecolor="none", zorder=3)
    ax.plot(ours, places, "o", color=style.INK, markersize=4.0, zorder=4)
    ax.set_yticks(places, [f"{row['number']}: {row['paper']:g}" for row in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    style.log_ticks(ax, "x", "{:g}".format, np.concatenate([low, high, beside]), most=8)
    ax.set_xlabel("ours / printed")
    below = "filled: this server, lines 90% of the law's draws; open: fused experts and today's lengths"
    style.headline(figure, f"The paper's printed numbers, computed again; shaded: within 15% and 25%\n{below}", 8.0)
    return figure, rows


FIGURES: Mapping[str, Callable[[World], Drawn]] = {
    "1": fitted_figure,
    "2": cost_figure,
    "3": trade_off_figure,
    "4": curves_figure,
    "5": lambda world: bounded_figure(world, "loss"),
    "6": lambda world: bounded_figure(world, "cost"),
    "8": lambda _: hidden_layers_figure(),
}
VERDICT = "verdict"  # a figure of this project's own


def check_figure(name: str) -> None:
    """InputError unless `name` is one of FIGURES or VERDICT."""
    if name == "7":
        raise InputError("figure 7 of the paper shows a layer, not a result", nearest="6, 8")
    if name not in (*FIGURES, VERDICT):
        raise unknown_name("figure", name, (*FIGURES, VERDICT))


def check_folder(folder: Path) -> None:
    """Refuse, before any work is done, a folder that cannot be made, and an install without matplotlib."""
    make_folder(folder)
    check_plot(folder / "figure.svg")


def drawn(
    names: Iterable[str], world: World, outcomes: Sequence[Outcome], beside: Sequence[Outcome]
) -> Iterator[tuple[str, Figure, list[Row]]]:
    """Figures by name, each with its records; `beside` holds the claims on another server."""
    for name in names:
        with style.house_style():
            figure, rows = verdict_figure(outcomes, beside) if name == VERDICT else FIGURES[name](world)
        yield name if name == VERDICT else f"figure-{name}", figure, rows


def publish(
    folder: Path, made: Iterable[tuple[str, Figure, list[Row]]], outcomes: Sequence[Outcome] | None = None
) -> list[Path]:
    """Write each figure with its data, and the claims where they were evaluated; the files' paths. Raises as `check_folder`."""
    check_folder(folder)
    written: list[Path] = []
    if outcomes is not None:
        claims = json.dumps([o.to_dict() for o in outcomes], indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        written.append(write_atomically(folder / "claims.json", claims.encode()))
    for name, figure, rows in made:
        written += [save_figure(figure, folder / f"{name}{suffix}") for suffix in SUFFIXES]
        written.append(write_atomically(folder / f"{name}.csv", csv_text(rows).encode()))
    return written


def csv_text(rows: Sequence[Row]) -> str:
    """Records as CSV with every column that any of them has; numbers to the last digit, NaN as an empty cell."""
    names = dict.fromkeys(name for row in rows for name in row)
    return delimited({name: mixed_array([row.get(name) for row in rows]) for name in names}, ",")

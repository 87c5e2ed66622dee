"""Compute docs/evidence/hindcasts.csv and its part of docs/evidence/decisions.md: plans on the budgets of published models, beside
those models.

The budget is 6 FLOPs for each active parameter of the body and token of the published model, the shape that of its kind
(`shape_of`), the expert counts those at EXPANSIONS. Two questions: the budget alone (the base: the default, X = 2), and with
the published model as the base. The ensemble answers as `plan` does, a law alone by its own curve. Each is asked within its
range, and beyond: as if it went on to the end of EXPANSIONS. Distances from the frontier are by the ensemble's mean, or a
law's own curve.

python scripts/document_hindcasts.py [--stored]   (--stored: the page anew from the table that is there)
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InfeasibleError
from moescale.io.files import write_atomically
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.models.coordinates import expansion, experts_at, of_architecture
from moescale.models.family import find_family
from moescale.models.published import find_shape
from moescale.models.recipe import text_ceiling
from moescale.options.law import DEFAULT_LAW, SHAPES
from moescale.options.serving import ServingOptions
from moescale.planning.allocation import Budget, smallest_at_loss
from moescale.planning.candidate import Candidate
from moescale.planning.question import CONFIDENCE, KnownModel, Question
from moescale.planning.search import Search, choose
from moescale.scaling_laws import find_law
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.units import format_count
from moescale.views.figures.axes import headline, new_figure, point
from moescale.views.figures.style import ACCENT, CATEGORIES, INK, PAGE_WIDTH, house_style
from pages import DOCS, filled, table, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = (
    *("deepseek-v3", "kimi-k2", "deepseek-v2", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-coder-480b-a35b", "glm-4.5"),
    *("olmoe-1b-7b", "llama-4-scout", "llama-4-maverick"),
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b"),
)
LAWS = tuple(member.law.name for member in find_law(DEFAULT_LAW).members)
# X; the fifth is where the default law's range ends, the last the sparsest of the published models.
EXPANSIONS = (1.0, 2.0, 4.0, 8.0, 11.0, 16.0, 24.0, 32.0, 42.0)
RANGE = EXPANSIONS[4]
NARROW = 0.5  # of a dense FFN's width: experts below are fine-grained
SERVING = ServingOptions(gpu="h200-sxm", weights="fp8", prompt=1155, output=211, max_num_seqs="256")
STORED = DOCS / "evidence/hindcasts.csv"
PAGE, OWNER = "evidence/decisions.md", "hindcasts"
MISSING = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published model, or what a law answers on its budget: what a token meets, X, tokens, dollars; NaN where there is none.

    The distances are of the published model from the frontier of loss against serving cost: of ln loss at its cost, and of
    ln dollars at its loss; NaN where nothing on the frontier is as cheap, or as good.
    """

    model: str
    shape: str
    budget_flops: float
    asked: str  # published; budget: the budget alone; model: the published model is the base
    law: str = ""
    beyond: bool = False  # as if the law went on to the end of EXPANSIONS
    active: float = math.nan
    expansion: float = math.nan
    tokens: float = math.nan
    usd_per_mtok: float = math.nan
    probability: float = math.nan  # that it is at least as good as the base
    most_sure: float = math.nan  # of any model of the budget
    ln_loss_above: float = math.nan
    ln_usd_above: float = math.nan


def shape_of(model: Architecture) -> str:
    """What `--shape` calls the family of a model's kind."""
    if np.any(np.asarray(model.kv_lora_rank) > 0):
        return "deepseek"
    expert, dense = float(np.asarray(model.d_expert)), float(np.asarray(model.d_ffn))
    return "fine-grained" if 0.0 < expert < NARROW * dense else "mixtral"


@cache
def served() -> tuple[Deployment, LatencySource]:
    """How all models are served."""
    deployment = SERVING.deployment()
    return deployment, SERVING.open_latency(deployment)


def hindcast(name: str, ranges: Sequence[bool] = (False, True)) -> list[Row]:
    """The published model and all answers on its budget."""
    known = find_shape(name)
    assert known.tokens is not None
    base = KnownModel(name=name, architecture=known.architecture, tokens=known.tokens)
    active, x = (float(value) for value in of_architecture(known.architecture))
    shape = shape_of(known.architecture)
    family = find_family(SHAPES[shape])
    counts = tuple(float(np.floor(experts_at(family, at) + 1e-9)) for at in EXPANSIONS)
    budget = Budget(base.training_flops, text_ceiling().largest_trained_tokens)
    as_good = Question(budget=budget, experts=counts, base=base)
    alone = Question(budget=budget, experts=counts, match_experts=family.base_experts)
    ensemble = find_law(DEFAULT_LAW)
    laws = [restate(law, family) for law in (ensemble, *(member.law for member in ensemble.members))]
    usd = Search.of(laws[1], replace(as_good, draws=0), *served()).base.usd_per_mtok
    start = Row(model=name, shape=shape, budget_flops=budget.flops, asked="published")
    rows = [replace(start, active=active, expansion=x, tokens=known.tokens, usd_per_mtok=usd or math.nan)]
    for beyond in ranges:
        asked = [replace(law, max_experts=counts[-1]) if beyond else law for law in laws]
        rows.append(replace(start, asked="budget", law=ensemble.name, beyond=beyond, **answer(asked[0], alone)))
        rows += [
            replace(
                start, asked="model", law=law.name, beyond=beyond, **answer(law, as_good), **distances(law, as_good)
            )
            for law in asked
        ]
    return rows


def answer(law: Law, question: Question) -> dict[str, float]:
    """What an ensemble, or a law alone by its own curve, would train."""
    search = Search.of(law, question if law.members[1:] else replace(question, draws=0), *served())
    allowed = law.allows(search.best.experts)
    sure = {"most_sure": float(np.nanmax(search.panel.most_sure(search.largest, allowed)))}
    try:
        model, _ = choose(search, search.at_loss())
    except InfeasibleError:
        return sure
    probability = model.probability_at_least_base
    return sure | {
        "active": model.n_params_active,
        "expansion": float(expansion(law.family, model.experts)),
        "tokens": model.tokens,
        "usd_per_mtok": model.usd_per_mtok,
        "probability": 1.0 if probability is None else probability,
    }


def distances(law: Law, question: Question) -> dict[str, float]:
    """How far the base lies above the frontier: of ln loss at its serving cost, and of ln dollars at its loss."""
    search = Search.of(law, replace(question, draws=0), *served())
    base, e = search.base, search.best.experts[law.allows(search.best.experts)]
    assert base.usd_per_mtok is not None
    losses = [
        c.loss for c in search.within_cost(base.usd_per_mtok) if isinstance(c, Candidate) and law.allows(c.experts)
    ]
    sizes = smallest_at_loss(law, question.budget, e, base.loss).n_params
    reached = np.isfinite(sizes)
    least = (
        float(search.costs.usd_per_mtok(sizes[reached], e[reached]).min(initial=np.inf)) if reached.any() else np.inf
    )
    return {
        "ln_loss_above": math.log(base.loss / min(losses)) if losses else math.nan,
        "ln_usd_above": math.log(base.usd_per_mtok / least) if math.isfinite(least) else math.nan,
    }


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as a table; figures with five digits, empty where there is none."""

    def cell(value: Any) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        return value if isinstance(value, str) else "" if math.isnan(value) else f"{value:.5g}"

    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    writer.writerows([cell(getattr(row, name)) for name in names] for row in rows)
    return out.getvalue()


def stored() -> list[Row]:
    """The rows of docs/evidence/hindcasts.csv."""
    rows: list[Row] = []
    for record in csv.DictReader(STORED.read_text(encoding="utf-8").splitlines()):
        values: dict[str, Any] = {
            name: float(text) if text else math.nan for name, text in record.items() if name not in TEXT
        }
        values |= {name: record[name] for name in TEXT} | {"beyond": record["beyond"] == "yes"}
        rows.append(Row(**values))
    return rows


TEXT = ("model", "shape", "asked", "law", "beyond")


class Hindcasts:
    """Rows by what they answer."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row.model, row.asked, row.law, row.beyond): row for row in rows}
        self.models = tuple(dict.fromkeys(row.model for row in rows))

    def published(self, model: str) -> Row:
        return self.rows[model, "published", "", False]

    def of(self, model: str, asked: str = "model", law: str = DEFAULT_LAW, *, beyond: bool = False) -> Row:
        return self.rows[model, asked, law, beyond]


def page(found: Hindcasts) -> str:
    """The page's text."""
    above = [found.of(m, beyond=True) for m in found.models]
    near = found.of("deepseek-v3", "budget")
    v3, as_good = found.published("deepseek-v3"), found.of("deepseek-v3", beyond=True)
    spreads = [spread(found, model, "active") for model in found.models]
    parts = {
        "answers": _answers(found),
        "by-law": _by_law(found),
        "v3-active": f"{near.active / v3.active:.2f}",
        "v3-tokens": f"{near.tokens / v3.tokens:.2f}",
        "v3-like": f"{as_good.active / v3.active:.2f}",
        "v3-x": f"{as_good.expansion:.0f}",
        "none-within": f"{sum(math.isnan(found.of(m).active) for m in found.models)}",
        "models": f"{len(found.models)}",
        "beaten": f"{sum(found.of(m).ln_loss_above < 0.0 for m in found.models)}",
        "least-spread": f"{min(spreads):.2f}",
        "median-spread": f"{np.median(spreads):.1f}",
        "largest-spread": f"{max(spreads):.1f}",
        "sparse-above": _span([row.ln_loss_above for row in above if found.published(row.model).expansion > 1.0]),
        "dense-above": _span([row.ln_loss_above for row in above if found.published(row.model).expansion <= 1.0]),
    }  # fmt: skip
    return filled(PAGE, parts, OWNER)


def _span(values: Sequence[float]) -> str:
    return f"{100 * min(values):.1f}% to {100 * max(values):.1f}%"


def spread(found: Hindcasts, model: str, figure: str, *, beyond: bool = True) -> float:
    """The geometric standard deviation of what the laws answer, those that do."""
    values = np.log([getattr(found.of(model, law=law, beyond=beyond), figure) for law in LAWS])
    return math.exp(float(np.nanstd(values)))


def _times(value: float, over: float) -> str:
    return MISSING if math.isnan(value) else f"{value / over:.2f}"


def _answers(found: Hindcasts) -> list[str]:
    """Each model, and the ensemble's answers as ratios to it: the budget alone, as good as the model within the range, beyond."""

    def cells(row: Row, at: Row) -> list[str]:
        if math.isnan(row.active):
            return [f"none ({row.most_sure:.0%})" if row.most_sure < CONFIDENCE else "none fits", ""]
        return [_times(getattr(row, name), getattr(at, name)) for name in ("active", "usd_per_mtok")]

    rows: list[list[str]] = []
    for model in found.models:
        at, beyond = found.published(model), found.of(model, beyond=True)
        told = [model, format_count(at.active), f"{at.expansion:.3g}", *cells(found.of(model, "budget"), at)]
        rows.append([*told, *cells(found.of(model), at), *cells(beyond, at), f"{beyond.expansion:.3g}"])
    names = [f"{head} {mark}" for mark in ("(a)", "(b)", "(c)") for head in ("active", "$/Mtok")]
    return table(("model", "active", "X", *names, "X (c)"), rows, numbers=9)


def _by_law(found: Hindcasts) -> list[str]:
    """Each law alone, beyond its range: active parameters over the published model's, the median model and the range."""
    rows: list[list[str]] = []
    for law in LAWS:
        at = [(found.of(m, law=law, beyond=True), found.published(m)) for m in found.models]
        active = [row.active / model.active for row, model in at if not math.isnan(row.active)]
        above = [100 * row.ln_loss_above for row, _ in at if not math.isnan(row.ln_loss_above)]
        median_x = np.median([row.expansion for row, _ in at if not math.isnan(row.active)])
        spans = [f"{min(active):.2f}-{max(active):.2f}", f"{median_x:.2g}", f"{min(above):+.1f}% to {max(above):+.1f}%"]
        rows.append([law, f"{np.median(active):.2f}", *spans])
    return table(("law", "active, median", "range", "X, median", "loss above its frontier"), rows, numbers=4)


def figure(rows: Sequence[Row]) -> Figure:
    """A panel a model: the published model, and what the ensemble and each law would train as good as it, active against X."""
    found = Hindcasts(rows)
    columns = 5
    with house_style():
        drawn = new_figure(PAGE_WIDTH, 6.0)
        axes: Any = drawn.subplots(math.ceil((len(found.models) + 1) / columns), columns, sharex=True, sharey=True)
        flat: list[Axes] = list(axes.ravel())
        for ax, model in zip(flat, found.models, strict=False):
            _panel(ax, found, model)
        _key(flat[len(found.models)])
        drawn.supxlabel("active parameters without embeddings", fontsize=8)
        drawn.supylabel("expansion X: FFN weights held over those that a token meets", fontsize=8)
        headline(
            drawn,
            "What a plan on each model's budget would train to be as good, cheapest to serve, beside the model itself",
        )
    return drawn


def _panel(ax: Axes, found: Hindcasts, model: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    def place(row: Row) -> tuple[float, float]:
        return row.active, row.expansion

    lab, blind = found.published(model), found.of(model, "budget")
    chosen = found.of(model, beyond=True)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(1.6e8, 8e11)
    ax.set_ylim(0.8, 60.0)
    ax.axhspan(RANGE * 1.03, 60.0, color="#f0f0f0", linewidth=0, zorder=0)
    for law, colour in zip(LAWS, CATEGORIES[2:], strict=False):
        row = found.of(model, law=law, beyond=True)
        point(ax, *place(row), "D", colour, 3.2, zorder=3)
        ax.plot(*zip(place(lab), place(row), strict=True), color=colour, linewidth=0.5, alpha=0.7)
    ax.plot(*zip(place(lab), place(chosen), strict=True), color=ACCENT, linewidth=1.4)
    for row, size, inside in ((found.of(model), 6.4, "white"), (chosen, 4.4, ACCENT)):
        if not math.isnan(row.active):
            point(ax, *place(row), "s", ACCENT, size, zorder=5, markerfacecolor=inside)
    point(ax, *place(blind), "x", CATEGORIES[0], 4.6, zorder=4)
    point(ax, *place(lab), "o", INK, 5.0, zorder=6)
    ax.set_title(f"{model}\n{format_count(lab.tokens)} tokens", fontsize=7)
    for axis, places, text in (
        (ax.xaxis, (1e9, 1e10, 1e11), format_count),
        (ax.yaxis, (1, 3, 11, 42), "{:g}".format),
    ):
        axis.set_major_locator(FixedLocator(places))
        axis.set_major_formatter(FuncFormatter(_written(text)))
        axis.set_minor_locator(NullLocator())


def _written(text: Callable[[float], str]) -> Callable[[float, int | None], str]:
    return lambda value, _: text(value)


def _key(ax: Axes) -> None:
    from matplotlib.lines import Line2D

    ax.axis("off")
    entries = [
        ("o", INK, INK, "the model"), ("s", ACCENT, "white", "the plan, X to 11"), ("s", ACCENT, ACCENT, "as if laws went on"),
        ("x", CATEGORIES[0], INK, "budget alone"),
        *(("D", colour, colour, law) for law, colour in zip(LAWS, CATEGORIES[2:], strict=False)),
    ]  # fmt: skip
    handles = [
        Line2D([], [], linestyle="none", marker=marker, color=colour, markerfacecolor=face, markersize=4, label=label)
        for marker, colour, face, label in entries
    ]
    ax.legend(handles=handles, loc="center left", frameon=False, fontsize=6.5, borderpad=0, handletextpad=0.3)


if __name__ == "__main__":
    if "--stored" not in sys.argv:
        write_atomically(STORED, to_csv([row for name in MODELS for row in hindcast(name)]))
    write(PAGE, page(Hindcasts(stored())))

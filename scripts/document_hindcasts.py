"""Compute docs/evidence/hindcasts.csv and its part of docs/evidence/decisions.md: plans on the budgets of published models, beside
those models.

The budget is 6 FLOPs for each active parameter of the body and token of the published model, the shape that of its kind
(`shape_of`), the law and the expert counts those of `plan`. Two questions: the budget alone (the base: the best dense model), and
with the published model as the base. The distance from the frontier is by the law's mean coefficients.

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
from moescale.models.coordinates import expansion, of_architecture
from moescale.models.family import find_family
from moescale.models.published import find_shape
from moescale.models.recipe import most_trained_tokens
from moescale.options.law import DEFAULT_LAW, SHAPES
from moescale.options.serving import ServingOptions
from moescale.planning.allocation import Budget
from moescale.planning.candidate import Candidate
from moescale.planning.question import CONFIDENCE, KnownModel, Question, ladder
from moescale.planning.recommend import choose
from moescale.planning.search import Search
from moescale.scaling_laws import find_law
from moescale.scaling_laws.ensemble import restate
from moescale.serving.deployment import Deployment
from moescale.units import format_count
from moescale.views.figures.style import ACCENT, CATEGORIES, INK, PAGE_WIDTH, headline, house_style, new_figure, point
from pages import DOCS, filled, table, write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MODELS = (
    *("deepseek-v3", "kimi-k2", "deepseek-v2", "qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-coder-480b-a35b", "glm-4.5"),
    *("olmoe-1b-7b", "llama-4-scout", "llama-4-maverick"),
    *("llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "qwen3-32b"),
)
NEAR = 1.5  # times: as close in active size and in tokens counts as a hit
NARROW = 0.5  # of a dense FFN's width: experts below are fine-grained
SERVING = ServingOptions(gpu="h200-sxm", weights="fp8", prompt=1155, output=211, max_num_seqs="256")
STORED = DOCS / "evidence/hindcasts.csv"
PAGE, OWNER = "evidence/decisions.md", "hindcasts"
MISSING = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published model, or the answer on its budget: what a token meets, X, tokens, dollars; NaN where there is none.

    `ln_loss_above` is how far the published model lies above the least loss at its serving cost; NaN where nothing is as cheap.
    """

    model: str
    shape: str
    budget_flops: float
    asked: str  # published; budget: the budget alone; model: the published model is the base
    active: float = math.nan
    expansion: float = math.nan
    tokens: float = math.nan
    usd_per_mtok: float = math.nan
    probability: float = math.nan  # that it is at least as good as the base
    most_sure: float = math.nan  # of any model of the budget
    ln_loss_above: float = math.nan


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


def hindcast(name: str) -> list[Row]:
    """The published model and both answers on its budget."""
    known = find_shape(name)
    assert known.tokens is not None
    base = KnownModel(name=name, architecture=known.architecture, tokens=known.tokens)
    active, x = (float(value) for value in of_architecture(known.architecture))
    shape = shape_of(known.architecture)
    family = find_family(SHAPES[shape])
    law = restate(find_law(DEFAULT_LAW), family)
    question = Question(
        budget=Budget(base.training_flops, most_trained_tokens()),
        experts=ladder(law),
        match_experts=family.base_experts,
    )
    alone, as_good = (Search.of(law, replace(question, base=known_base), *served()) for known_base in (None, base))
    start = Row(model=name, shape=shape, budget_flops=question.budget.flops, asked="published")
    usd = as_good.base.usd_per_mtok
    assert usd is not None
    return [
        replace(start, active=active, expansion=x, tokens=known.tokens, usd_per_mtok=usd, ln_loss_above=above(as_good)),
        replace(start, asked="budget", **answer(alone)),
        replace(start, asked="model", **answer(as_good)),
    ]


def answer(search: Search) -> dict[str, float]:
    """What `plan` would train."""
    allowed = search.law.allows(search.best.experts)
    sure = {"most_sure": float(np.nanmax(search.draws.most_sure(search.largest, allowed)))}
    try:
        model, _ = choose(search, search.at_loss())
    except InfeasibleError:
        return sure
    assert model.probability_at_least_base is not None
    return sure | {
        "active": model.n_params_active,
        "expansion": float(expansion(search.law.family, model.experts)),
        "tokens": model.tokens,
        "usd_per_mtok": model.usd_per_mtok,
        "probability": model.probability_at_least_base,
    }


def above(search: Search) -> float:
    """ln of the base's loss over the least loss at its serving cost."""
    assert search.base.usd_per_mtok is not None
    rows = search.within_cost(search.base.usd_per_mtok)
    losses = [c.loss for c in rows if isinstance(c, Candidate) and search.law.allows(c.experts)]
    return math.log(search.base.loss / min(losses)) if losses else math.nan


def to_csv(rows: Sequence[Row]) -> str:
    """The rows as a table; figures with five digits, empty where there is none."""

    def cell(value: Any) -> str:
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
        values |= {name: record[name] for name in TEXT}
        rows.append(Row(**values))
    return rows


TEXT = ("model", "shape", "asked")


class Hindcasts:
    """Rows by what they answer."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {(row.model, row.asked): row for row in rows}
        self.models = tuple(dict.fromkeys(row.model for row in rows))

    @property
    def sparse(self) -> list[str]:
        """The models with experts."""
        return [model for model in self.models if self.of(model, "published").expansion > 1.0]

    def of(self, model: str, asked: str) -> Row:
        return self.rows[model, asked]

    def ratios(self, model: str, asked: str) -> tuple[float, float]:
        """Active size and tokens of an answer over the published model's."""
        row, at = self.of(model, asked), self.of(model, "published")
        return row.active / at.active, row.tokens / at.tokens

    def near(self, model: str, asked: str) -> bool:
        """Whether both are within NEAR times."""
        return all(abs(math.log(ratio)) <= math.log(NEAR) for ratio in self.ratios(model, asked))


def page(found: Hindcasts) -> str:
    """The page's text."""
    parts: dict[str, str | list[str]] = {
        "answers": _answers(found),
        "models": f"{len(found.models)}",
        "sparse": f"{len(found.sparse)}",
    }
    for asked in ("budget", "model"):
        parts[f"missed-{asked}"] = (
            ", ".join(_missed(found, m, asked) for m in found.sparse if not found.near(m, asked)) or "none"
        )
        parts[f"near-{asked}"] = f"{sum(found.near(m, asked) for m in found.sparse)}"
    for kind, dense in (("sparse", False), ("dense", True)):
        rows = [found.of(m, "published") for m in found.models if (m not in found.sparse) is dense]
        parts[f"{kind}-above"] = _span([row.ln_loss_above for row in rows])
    return filled(PAGE, parts, OWNER)


def _missed(found: Hindcasts, model: str, asked: str) -> str:
    active, tokens = found.ratios(model, asked)
    return f"{model} (no plan)" if math.isnan(active) else f"{model} ({active:.2f}, {tokens:.2f})"


def _span(values: Sequence[float]) -> str:
    return f"{100 * min(values):+.1f}% to {100 * max(values):+.1f}%"


def _answers(found: Hindcasts) -> list[str]:
    """Each model, and the answers as ratios to it: the budget alone, and as good as the model."""

    def cells(model: str, asked: str) -> list[str]:
        row = found.of(model, asked)
        if math.isnan(row.active):
            return [f"none ({row.most_sure:.0%})" if row.most_sure < CONFIDENCE else "none fits", "", "", ""]
        ratios = (*found.ratios(model, asked), row.usd_per_mtok / found.of(model, "published").usd_per_mtok)
        active, tokens, usd = (f"{ratio:.2f}" for ratio in ratios)
        return [active, tokens, f"{row.expansion:.3g}", usd]

    rows: list[list[str]] = []
    for model in found.models:
        at = found.of(model, "published")
        about = [format_count(at.active), format_count(at.tokens), f"{at.expansion:.3g}"]
        rows.append([model, *about, *cells(model, "budget"), *cells(model, "model")])
    names = [f"{head} {mark}" for mark in ("(a)", "(b)") for head in ("active", "tokens", "X", "$/Mtok")]
    return table(("model", "active", "tokens", "X", *names), rows, numbers=11)


def figure(rows: Sequence[Row]) -> Figure:
    """A panel a model: the published model, and what a plan would train on its budget and to be as good, active against X."""
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

    lab, alone, as_good = (found.of(model, asked) for asked in ("published", "budget", "model"))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(1.6e8, 8e11)
    ax.set_ylim(0.8, 160.0)
    if not math.isnan(as_good.active):
        ax.plot(*zip(place(lab), place(as_good), strict=True), color=ACCENT, linewidth=1.4)
        point(ax, *place(as_good), "s", ACCENT, 4.4, zorder=5)
    point(ax, *place(alone), "x", CATEGORIES[0], 4.6, zorder=4)
    point(ax, *place(lab), "o", INK, 5.0, zorder=6)
    ax.set_title(f"{model}\n{format_count(lab.tokens)} tokens", fontsize=7)
    for axis, places, text in (
        (ax.xaxis, (1e9, 1e10, 1e11), format_count),
        (ax.yaxis, (1, 4, 16, 64), "{:g}".format),
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
        ("o", INK, "the model"), ("s", ACCENT, "a plan that is as good"), ("x", CATEGORIES[0], "budget alone"),
    ]  # fmt: skip
    handles = [
        Line2D([], [], linestyle="none", marker=marker, color=colour, markersize=4, label=label)
        for marker, colour, label in entries
    ]
    ax.legend(handles=handles, loc="center left", frameon=False, fontsize=6.5, borderpad=0, handletextpad=0.3)


if __name__ == "__main__":
    if "--stored" not in sys.argv:
        write_atomically(STORED, to_csv([row for name in MODELS for row in hindcast(name)]))
    write(PAGE, page(Hindcasts(stored())))

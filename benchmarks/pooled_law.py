"""How well the pooled law speaks of a lab that it does not know: decisions, blind errors, expansions beyond the runs.

    python benchmarks/pooled_law.py [--write]

docs/evidence/pooled-law.md says what is left out, asked and scored; it was written before any score was computed. Every lab is left
out in turn. --write: docs/evidence/pooled-law-{decisions,errors}.csv and the tables of that page.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from laws import DENSE, SOURCES, TABLES, Split, geometric, splits_of
from laws import predicted as predicted_by
from moescale.fitting import canonical
from moescale.fitting.prior import DRIFT, Mode, Prior, Source, fit_source, posterior
from moescale.fitting.workflow import FitSettings, fit_runs
from moescale.runs.table import read_runs
from moescale.scaling_laws import Law, find_law, make_inputs
from moescale.scaling_laws.law import Member
from moescale.scaling_laws.pooled2026 import log_loss
from moescale.typing import FloatArray

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "scripts"))
made: Any = importlib.import_module("fit_pooled2026")
pooling: Any = importlib.import_module("pooling")
pages: Any = importlib.import_module("pages")
PAGE, OWNER = "evidence/pooled-law.md", "pooled"
DECISIONS, ERRORS = "evidence/pooled-law-decisions.csv", "evidence/pooled-law-errors.csv"
CONFIDENCES = (0.5, 0.8, 0.95)
DRAWS, SEED = 800, 0
SIZES = np.linspace(
    np.log(1e-3), np.log(8.0), 241
)  # of a model, over the baseline's, in which the smallest is looked for
BUDGETS = (0.5, 0.9, 1.0)  # quantiles of a table's FLOPs
EXPANSIONS = (8.0, 16.0, 32.0, 128.0)
KINDS = ("dense, twice the budget", "MoE, equal budget", "MoE, equal tokens")
TWELVE = "12 runs"
FIXED_TOKENS = "routing"  # its runs all have as many tokens

INTERVAL = (0.05, 0.95)


@dataclass(frozen=True, slots=True)
class Asked:
    """Which size of expansion x matches a dense-optimal baseline; `tokens` None: those that the budget leaves."""

    kind: str
    flops: float
    x: float
    base_body: float
    base_x: float
    base_tokens: float
    tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """A question of a lab that was left out: the share of draws that ask for less than the truth does."""

    lab: str
    source: str
    asked: Asked
    below: float
    kept: tuple[bool, ...]  # at CONFIDENCES


@dataclass(frozen=True, slots=True)
class Blind:
    """Held-out runs of a table: errors of ln L of the pooled law and of chinchilla's, and the share inside 90% intervals."""

    source: str
    table: str
    split: str
    rmsle: float
    chinchilla: float
    covered: float
    n_runs: int
    reach: bool = False


def main() -> None:
    """Score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RuntimeWarning)
    sources: list[Source] = made.sources()
    others = {lab: [s for s in sources if s.lab != lab] for lab in sorted({s.lab for s in sources})}
    priors = {lab: pooling.pool(left).prior for lab, left in others.items()}
    decisions = [
        kept
        for lab, left in others.items()
        for kept in judged(
            sources, lab, priors[lab], pooling.pool(left, guess=pooling.OF_DECISIONS).prior.draws(DRAWS, SEED)
        )
    ]
    named = {s.name: s for s in sources}
    errors = [*blind(priors), *routed(named, priors)]
    unseen = list(left_out(named, priors))
    tables = {DECISIONS: decisions_csv(decisions), ERRORS: errors_csv([*errors, *unseen])}
    parts = {
        "decisions": decision_lines(decisions),
        "errors": error_lines(errors),
        "dense": dense_words(errors),
        "twelve": twelve_words(errors),
        "unseen": unseen_lines(unseen),
    }
    for part in parts.values():
        print(*([part] if isinstance(part, str) else part), "", sep="\n")
    if options.write:
        for name, text in tables.items():
            pages.write(name, text)
        pages.write(PAGE, pages.filled(PAGE, parts, OWNER))


def loss_of(theta: FloatArray, body: FloatArray, x: float, tokens: FloatArray, like: Source) -> FloatArray:
    """ln L of models of the kind of a source, (..., n)."""
    shape = {name: float(np.median(like.x.extra[name])) for name in ("granularity", "shared_ffn")}
    return log_loss(theta, make_inputs(body, tokens, x, shape | {"unique_tokens": np.inf}))


def optimal_body(theta: FloatArray, flops: float, x: float, like: Source) -> float:
    """The body of lowest loss for 6 N D = flops."""
    sizes = np.geomspace(1e6, 1e13, 400)
    return float(sizes[loss_of(theta, sizes, x, flops / 6.0 / sizes, like).argmin()])


def smallest(theta: FloatArray, asked: Asked, like: Source) -> FloatArray:
    """ln of the smallest body that matches the baseline over the baseline's, by each set of coefficients; infinite where none does."""
    theta = np.atleast_2d(theta)
    goal = loss_of(theta, np.array([asked.base_body]), asked.base_x, np.array([asked.base_tokens]), like)
    body = asked.base_body * np.exp(SIZES)
    tokens = asked.flops / 6.0 / body if asked.tokens is None else np.full(body.size, asked.tokens)
    over = loss_of(theta, body, asked.x, tokens, like) - goal
    found = np.full(len(theta), np.inf)
    first = (over <= 0.0).argmax(axis=1)
    for k in np.flatnonzero((over <= 0.0).any(axis=1)):
        j = first[k]
        share = over[k, j - 1] / (over[k, j - 1] - over[k, j]) if j else 0.0
        found[k] = SIZES[j - 1] + (SIZES[j] - SIZES[j - 1]) * share if j else SIZES[0]
    return found


def questions(source: Source, truth: FloatArray) -> Iterator[Asked]:
    """What is asked of a lab: within its tables' budgets and expansions."""
    body, tokens, x = np.exp(source.x.ln_n), np.exp(source.x.ln_d), source.x.experts
    if source.name == FIXED_TOKENS:
        base, seen = float(np.median(body)), float(np.median(tokens))
        for each in (*EXPANSIONS[:1], 33.0, EXPANSIONS[-1]):
            yield Asked(KINDS[2], 6.0 * base * seen, each, base, 1.0, seen, seen)
        return
    for flops in np.quantile(6.0 * body * tokens, BUDGETS):
        base = optimal_body(truth, flops, 1.0, source)
        seen = flops / 6.0 / base
        yield Asked(KINDS[0], 2.0 * flops, 1.0, base, 1.0, seen)
        if source.has_experts:
            least = 2.5 if x.min() < 2.6 else 1.0  # of the baseline: sparse where the table has few experts
            sparse = optimal_body(truth, flops, least, source)
            for each in [e for e in EXPANSIONS if e <= 1.05 * x.max()]:
                yield Asked(KINDS[1], flops, each, sparse, least, flops / 6.0 / sparse)
                yield Asked(KINDS[2], flops, each, base, 1.0, seen, seen)


def judged(sources: Sequence[Source], lab: str, prior: Prior, draws: FloatArray) -> Iterator[Kept]:
    """The questions of a lab under a prior, and draws, that do not know it."""
    for source in sources:
        if source.lab != lab or source.of_multiplier:
            continue
        own, found = fit_source(source, prior)
        for asked in questions(own, found.theta):
            true, drawn = smallest(found.theta, asked, own)[0], smallest(draws, asked, own)
            if np.isfinite(true):
                promised = np.quantile(drawn, CONFIDENCES, method="higher")
                yield Kept(
                    lab,
                    source.name,
                    asked,
                    float((drawn < true).mean()),
                    tuple(bool(p >= true - 1e-9) for p in promised),
                )


def with_prior(prior: Prior) -> Law:
    """The shipped law with another prior of fits."""
    law = find_law("pooled2026")
    held = {
        "prior_mean": prior.mean.tolist(),
        "prior_covariance": prior.covariance.tolist(),
        "labs": prior.labs.tolist(),
    }
    return replace(law, members=(Member(replace(law.members[0].law, evidence=held), 1.0),))


def twelve(source: str, table: str) -> Split:
    """Twelve runs of a dense table, at equal steps of rank among the 3/4 of smallest N D; the others are predicted."""
    runs = read_runs(TABLES / f"{table}.csv", where="tokens / n_params_dense >= 2")
    size = runs.n_params * runs.tokens
    small, large = (runs.select(mask) for mask in (size <= np.quantile(size, 0.75), size > np.quantile(size, 0.75)))
    small = small.at(canonical.order(small))
    chosen = np.zeros(len(small), dtype=np.bool_)
    chosen[np.round(np.linspace(0, len(small) - 1, 12)).astype(int)] = True
    return Split(source, table, TWELVE, small.select(chosen), large)


def blind(priors: Mapping[str, Prior]) -> Iterator[Blind]:
    """`fit` of dense tables under a prior that does not know their lab: what each split holds out."""
    for source in DENSE:
        for table in SOURCES[source]:
            how = FitSettings(prior=with_prior(priors[made.LABS[table]]))
            for split in (*splits_of(source, table), twelve(source, table)):
                if split.name == "public":
                    continue
                error, covered = missed(split, fit_runs(split.inside, settings=how).law)
                other = (
                    np.nan
                    if split.reach
                    else missed(split, fit_runs(split.inside, "chinchilla", FitSettings(starts=32)).law)[0]
                )
                yield Blind(source, table, split.name, error, other, covered, len(split.outside), split.reach)


def missed(split: Split, law: Law) -> tuple[float, float]:
    """Root mean square error of ln L of the held-out runs, and the share inside their 90% intervals."""
    value, low, high = predicted_by(law, split.outside)
    held = (low <= split.outside.loss) & (split.outside.loss <= high)
    return float(np.sqrt(np.mean(np.log(value / split.outside.loss) ** 2))), float(held.mean())


def predicted(fitted: Source, found: Mode, held_out: Source) -> tuple[float, float]:
    """Root mean square error of ln L of held-out runs, and the share inside the 90% interval of a new run."""
    theta, x, rng = posterior(fitted, found, DRAWS, SEED), held_out.x, np.random.default_rng(SEED)
    beyond = sum(
        np.maximum(getattr(x, name) - getattr(fitted.x, name).max(), 0.0) for name in ("ln_n", "ln_d")
    ) + np.maximum(np.log(x.experts / fitted.x.experts.max()), 0.0)
    value = log_loss(theta, x)
    noisy = value[1:] + rng.standard_normal((DRAWS, x.ln_n.size)) * np.hypot(fitted.noise, DRIFT * beyond)
    low, high = np.quantile(noisy, INTERVAL, axis=0)
    inside = (low <= held_out.values) & (held_out.values <= high)
    return float(np.sqrt(((value[0] - held_out.values) ** 2).mean())), float(inside.mean())


def routed(sources: Mapping[str, Source], priors: Mapping[str, Prior]) -> Iterator[Blind]:
    """Tables with experts: more experts, larger N and D held out, of one unit of losses."""
    joint, routing = sources["joint"], sources["routing"]
    marin = sources["marin"].rows(sources["marin"].group == np.bincount(sources["marin"].group).argmax())
    marin = replace(marin, group=np.zeros_like(marin.group))
    for source, splits in (
        (joint, {"X > 8": joint.x.experts > 8.0, "D": joint.x.ln_d >= np.log(12e9), "N": large(joint.x.ln_n)}),
        (routing, {"X > 11": routing.x.experts > 11.0, "N": large(routing.x.ln_n)}),
        (marin, {"N": large(marin.x.ln_n), "D": large(marin.x.ln_d)}),
        (routing.rows(routing.x.experts <= 43.0), {"X 16 to 33": routing.x.experts[routing.x.experts <= 43.0] > 11.0}),
    ):
        for name, out in splits.items():
            error, covered = predicted(*fit_source(source.rows(~out), priors[source.lab]), source.rows(out))
            yield Blind(source.name, source.name, name, error, np.nan, covered, int(out.sum()))


def left_out(sources: Mapping[str, Source], priors: Mapping[str, Prior]) -> Iterator[Blind]:
    """Whole tables by the prior of other labs, and each group of Marin's by the others; one offset of ln L is free."""
    for source in (sources["joint"], sources["routing"]):
        theta = np.concatenate((priors[source.lab].mean[None], priors[source.lab].draws(DRAWS, SEED)))
        error, covered = shaped(theta, source)
        yield Blind(source.name, source.name, "whole table", error, np.nan, covered, source.values.size)
    marin = sources["marin"]
    sparse = [g for g in range(int(marin.group.max()) + 1) if (marin.x.experts[marin.group == g] > 12.0).any()]
    fitted, found = fit_source(regrouped(marin.rows(~np.isin(marin.group, sparse))), priors[marin.lab])
    theta = posterior(fitted, found, DRAWS, SEED)
    for group in sparse:
        one = replace(marin.rows(marin.group == group), noise=fitted.noise)
        error, covered = shaped(theta, one)
        yield Blind(
            marin.name, marin.name, f"X above 12, group {named_by_x(one)}", error, np.nan, covered, one.values.size
        )
    for group in range(int(marin.group.max()) + 1):
        out = marin.group == group
        fitted, found = fit_source(regrouped(marin.rows(~out)), priors[marin.lab])
        held_out = replace(marin.rows(out), noise=fitted.noise)
        error, covered = shaped(posterior(fitted, found, DRAWS, SEED), held_out)
        yield Blind(marin.name, marin.name, f"group {named_by_x(held_out)}", error, np.nan, covered, int(out.sum()))


def regrouped(source: Source) -> Source:
    """A source whose groups count from 0."""
    return replace(source, group=np.unique(source.group, return_inverse=True)[1])


def named_by_x(source: Source) -> str:
    """The expansions of a group."""
    x = np.unique(np.round(source.x.experts))
    return "X " + (f"{x[0]:g}" if x.size == 1 else f"{x[0]:g} to {x[-1]:g}")


def shaped(theta: FloatArray, source: Source) -> tuple[float, float]:
    """Error and coverage of runs, but for one offset of ln L: by coefficients (k, p), the first the central ones."""
    value, rng = log_loss(theta, source.x), np.random.default_rng(SEED)
    error = value - source.values
    error -= error.mean(axis=1, keepdims=True)
    noise = rng.standard_normal(error[1:].shape) * source.noise
    low, high = np.quantile(error[1:] + noise, INTERVAL, axis=0)
    return float(np.sqrt((error[0] ** 2).mean())), float(((low <= 0.0) & (high >= 0.0)).mean())


def large(values: FloatArray) -> np.typing.NDArray[np.bool_]:
    """What lies above the 75% quantile."""
    return values > np.quantile(values, 0.75)


def decisions_csv(found: Sequence[Kept]) -> str:
    """A row for each question."""
    header = (
        "kind",
        "lab",
        "source",
        "flops",
        "expansion",
        "share_of_draws_below_truth",
        *(f"kept_{c:g}" for c in CONFIDENCES),
    )
    rows = [
        [
            k.asked.kind,
            k.lab,
            k.source,
            f"{k.asked.flops:.3g}",
            f"{k.asked.x:g}",
            f"{k.below:.3f}",
            *(str(int(v)) for v in k.kept),
        ]
        for k in found
    ]
    return pages.csv_text(header, rows)


def errors_csv(found: Sequence[Blind]) -> str:
    """A row for each split."""
    header = ("source", "table", "held_out", "rmsle_1e-3", "chinchilla_1e-3", "covered", "runs")
    return pages.csv_text(header, [
        [b.source, b.table, b.split, f"{1e3 * b.rmsle:.1f}", f"{1e3 * b.chinchilla:.1f}", f"{b.covered:.2f}", str(b.n_runs)] for b in found
    ])  # fmt: skip


def decision_lines(found: Sequence[Kept]) -> list[str]:
    """How often each promise is kept: means over a lab's questions, then over labs."""
    rows = [["question", *(f"{c:.0%}" for c in CONFIDENCES), "labs"], ["---", *("---:" for _ in CONFIDENCES), "---:"]]
    for kind in KINDS:
        mine = [k for k in found if k.asked.kind == kind]
        labs = sorted({k.lab for k in mine})
        kept = np.array([np.mean([k.kept for k in mine if k.lab == lab], axis=0) for lab in labs])
        rows.append([kind, *(f"{share:.0%}" for share in kept.mean(axis=0)), str(len(labs))])
    return [f"| {' | '.join(row)} |" for row in rows]


def by_source(found: Sequence[Blind], source: str, value: str) -> float:
    """Geometric mean over splits, then over tables."""
    found = [b for b in found if not b.reach and b.split != TWELVE]
    tables = {b.table for b in found if b.source == source}
    return geometric(geometric(getattr(b, value) for b in found if b.table == table) for table in tables)


def error_lines(found: Sequence[Blind]) -> list[str]:
    """Errors and coverage by source."""
    rows = [["source", "error, 1e-3", "over chinchilla", "inside 90% intervals"], ["---", "---:", "---:", "---:"]]
    for source in dict.fromkeys(b.source for b in found):
        mine = [b for b in found if b.source == source and not b.reach and b.split != TWELVE]
        covered = float(np.mean([b.covered for b in mine]))
        error = by_source(found, source, "rmsle")
        ratio = f"{error / by_source(found, source, 'chinchilla'):.2f}" if source in DENSE else "-"
        rows.append([source, f"{1e3 * error:.1f}", ratio, f"{covered:.0%}"])
    return [f"| {' | '.join(row)} |" for row in rows]


def unseen_lines(found: Sequence[Blind]) -> list[str]:
    """What was left out whole."""
    rows = [["source", "left out", "runs", "error, 1e-3", "inside 90% intervals"], ["---", "---", *["---:"] * 3]]
    rows += [[b.source, b.split, str(b.n_runs), f"{1e3 * b.rmsle:.1f}", f"{b.covered:.0%}"] for b in found]
    return [f"| {' | '.join(row)} |" for row in rows]


def held(found: Sequence[Blind], key: str) -> dict[str, float]:
    """The mean share inside 90% intervals by source or table."""
    return {
        name: float(np.mean([b.covered for b in found if getattr(b, key) == name]))
        for name in {getattr(b, key) for b in found}
    }


def dense_words(found: Sequence[Blind]) -> str:
    """The ratio to chinchilla over dense sources, the coverage, and that of the worst table."""
    ratio = geometric(by_source(found, s, "rmsle") / by_source(found, s, "chinchilla") for s in DENSE)
    dense = [b for b in found if b.source in DENSE and b.split != TWELVE]
    near, far = ([b for b in dense if b.reach == reach] for reach in (False, True))
    tables, shares = held(near, "table"), [np.mean(list(held(some, "source").values())) for some in (near, far, dense)]
    worst = min(tables, key=lambda name: tables[name])
    return (
        f"{ratio:.2f} of chinchilla's error, {shares[0]:.0%} inside 90% intervals, worst table {tables[worst]:.0%} ({worst}); "
        f"{shares[1]:.0%} where 1/4, 1/16 or 1/64 of the largest N D is fitted, {shares[2]:.0%} of all"
    )


def twelve_words(found: Sequence[Blind]) -> str:
    """Errors of twelve runs of each dense table, and the coverage."""
    few = [b for b in found if b.split == TWELVE]
    ours, other = (
        geometric(geometric(getattr(b, name) for b in few if b.source == s) for s in DENSE)
        for name in ("rmsle", "chinchilla")
    )
    covered = np.mean(list(held(few, "source").values()))
    return f"{1e3 * ours:.1f}e-3, {1e3 * other:.1f}e-3 for chinchilla, {covered:.0%} inside 90% intervals"


if __name__ == "__main__":
    main()

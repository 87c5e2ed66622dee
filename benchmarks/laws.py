"""Every law form and `auto` on public tables: how well they predict held-out runs, and whether nominal 90% intervals hold.

    python benchmarks/laws.py [--tables gadre_c4,olmo_ladder] [--quick] [--write]

Runs with tokens / n_params_dense >= 2 (but of datablations' own split, which scores every row). Held out in turn: what lies
strictly above the 75% quantile of N, D, N D and D / N; on routed tables larger N, D or E. Scores are RMSLE of the held-out runs,
geometric means over a table's splits, then over a source's tables, then over sources. Intervals are also judged on
splits that fit what lies at or below 1/4, 1/16 and 1/64 of the largest N D. --quick: auto and chinchilla only. --write: results/laws.csv and,
under docs/evidence, the tables of own-law.md, own-law-errors.csv and own-law-coverage.csv.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moescale.fitting.canonical import run_arrays
from moescale.fitting.workflow import FitSettings, fit_runs
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import Law
from moescale.scaling_laws.law import predict_many
from moescale.typing import FloatArray

HERE = Path(__file__).resolve().parent
TABLES = HERE.parent / "tests" / "data" / "public"
RESULTS = HERE / "results"
SOURCES = {
    "gadre": ("gadre_c4", "gadre_rpj", "gadre_rw"),
    "porian": ("porian_rw_chin", "porian_owt_chin"),
    "gemstones": ("gemstones_cool",),
    "olmo": ("olmo_ladder",),
    "datablations": ("datablations",),
    "joint_moe_runs": ("joint_moe_runs",),
    "routing": ("routing_S-Base",),
}
DENSE = ("gadre", "porian", "gemstones", "olmo", "datablations")
DENSE_FORMS = ("chinchilla", "moescale2026", "muennighoff2023", "kaplan2020", "yun2024")
ROUTED_FORMS = ("yun2024", "yun2024-centred", "ludziejewski2025", "moescale2026", "clark2022", "chinchilla")
JUDGED, REPLICATES = ("chinchilla", "moescale2026"), 64  # forms whose own bootstrap is judged beside auto
FEWEST_FITTED = 15  # runs, on splits that judge intervals far from the runs
BANDS = ((0.0, 1.0 + 1e-9), (1.0 + 1e-9, 4.0), (4.0, 16.0), (16.0, np.inf))  # of N D over the largest that was fitted
BAND_NAMES = ("within", "to 4", "4 to 16", "over 16")
DISTANCES = ("all splits", *BAND_NAMES[1:])
JUDGED_LAWS, MEAN = ("auto", *JUDGED), "mean over sources"
ERRORS = ("law", "source", "held_out", "rmsle_1e-3")
COVERAGE = ("law", "source", "times_beyond_largest_fitted_nd", "held_percent", "mean_width_percent", "runs")

BoolArray = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """Runs to fit and runs to predict; `reach`: made to judge intervals far from the runs, not to score forms."""

    source: str
    table: str
    name: str
    inside: RunTable
    outside: RunTable
    reach: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """A law on a split: errors of ln L, which runs the interval holds, its relative width, and how far out each run is."""

    split: Split
    law: str
    rmsle: float
    held: BoolArray
    width: FloatArray
    beyond: FloatArray


def splits_of(source: str, name: str) -> list[Split]:
    """The splits of a table."""
    runs = read_runs(TABLES / f"{name}.csv", where="tokens / n_params_dense >= 2")
    found: list[Split] = []

    def hold(what: str, mask: BoolArray, table: RunTable, *, reach: bool = False) -> None:
        if mask.any():
            found.append(Split(source, name, what, table.select(~mask), table.select(mask), reach))

    if source == "joint_moe_runs":
        for what, mask in {
            "D": runs.tokens >= 12e9,
            "E": runs.experts > 8,
            "N": runs.n_params >= 6e8,
        }.items():
            hold(what, mask, runs)
    ladder = runs
    if source == "olmo":
        target = np.array([str(run).startswith(("7B", "13B")) for run in runs.columns["run_id"]])
        hold("7B, 13B", target, runs)
        ladder = runs.select(~target)
    n, d, e = ladder.n_params, ladder.tokens, ladder.experts
    if source in DENSE:
        for what, values in {"N": n, "D": d, "N D": n * d, "D/N": d / n}.items():
            hold(what, values > np.quantile(values, 0.75), ladder)
    if source == "routing":
        for what, values in {"N": n, "E": e}.items():
            hold(what, values > np.quantile(values, 0.75), ladder)
    if source == "datablations":
        every = read_runs(TABLES / f"{name}.csv")
        hold("public", (every.columns["unique_tokens"] >= 6e11) | (every.n_params >= 4.2465e9), every)
    for times in (4.0, 16.0, 64.0):
        far = n * d > (n * d).max() / times
        if (~far).sum() >= FEWEST_FITTED:
            hold(f"1/{times:g}", far, ladder, reach=True)
    return found


def scored(split: Split, name: str) -> Score:
    """Fit a form, or auto, to the runs of a split and predict the others."""
    how = FitSettings() if name == "auto" else FitSettings(starts=32, bootstrap=REPLICATES if name in JUDGED else 0)
    law = fit_runs(split.inside, name, how).law
    value, low, high = predicted(law, split.outside)
    error = np.log(value / split.outside.loss)
    beyond = split.outside.n_params * split.outside.tokens / (split.inside.n_params * split.inside.tokens).max()
    held = (low <= split.outside.loss) & (split.outside.loss <= high)
    return Score(split, name, float(np.sqrt(np.mean(error**2))), held, np.log(high / low), beyond)


def predicted(law: Law, runs: RunTable) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Losses of runs under a law, and the ends of their intervals."""
    arrays, _ = run_arrays(law.form, runs, {})
    return predict_many(law, arrays.n_params, arrays.tokens, arrays.experts, extra=arrays.extra)


def geometric(values: Iterable[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(np.array(list(values))))))


def over_splits(scores: Sequence[Score], source: str, law: str) -> float:
    """A law on a source: geometric mean over splits, then over tables; NaN where it was not tried."""
    tables: dict[str, list[float]] = {}
    for score in scores:
        if score.split.source == source and score.law == law and not score.split.reach and score.split.name != "public":
            tables.setdefault(score.split.table, []).append(score.rmsle)
    return geometric(geometric(values) for values in tables.values()) if tables else float("nan")


def error_rows(scores: Sequence[Score]) -> list[list[str]]:
    """Each law's error on each dense source, on each split of the routed ones, and on datablations' own split."""
    rows: list[list[str]] = []
    for source in SOURCES:
        for law in laws(scores, [source]):
            mine = [s for s in scores if (s.split.source, s.law) == (source, law) and not s.split.reach]
            if source in DENSE:
                rows.append([law, source, "N; D; N D; D/N", thousandths(over_splits(scores, source, law))])
            rows += [
                [law, source, s.split.name, thousandths(s.rmsle)]
                for s in mine
                if source not in DENSE or s.split.name == "public"
            ]
    return rows


def short_rows(scores: Sequence[Score]) -> list[list[str]]:
    """Each law's mean error on dense sources, its ratio to chinchilla's and that ratio's range, then its errors on routed splits."""
    dense = [source for source in DENSE if laws(scores, [source])]
    base = {source: over_splits(scores, source, "chinchilla") for source in dense}
    tried = list(dict.fromkeys([*laws(scores, dense), *laws(scores, ["joint_moe_runs"])]))
    rows: list[list[str]] = []
    for law in tried:
        by = {source: over_splits(scores, source, law) for source in dense}
        ratios = np.array([by[source] / base[source] for source in dense])
        known = bool(np.isfinite(ratios).all())
        ends = (f"{geometric(ratios):.2f}", f"{ratios.min():.2f} to {ratios.max():.2f}") if known else ("-", "-")
        routed = [routed_error(scores, law, split) for split in ("D", "E", "N")]
        cells = [thousandths(geometric(by.values())) if known else "-", *ends]
        rows.append([law, *cells, *map(thousandths, routed), thousandths(over_splits(scores, "routing", law))])
    return rows


def routed_error(scores: Sequence[Score], law: str, split: str) -> float:
    """A law's error on a split of the joint runs; NaN where it was not tried."""
    found = [s.rmsle for s in scores if (s.split.source, s.split.name, s.law) == ("joint_moe_runs", split, law)]
    return found[0] if found else float("nan")


def coverage(scores: Sequence[Score], law: str) -> list[tuple[str, list[tuple[float, float, int]]]]:
    """By source: share of held-out runs in the interval, its mean width and the runs, over all and by how far out they are."""
    found: list[tuple[str, list[tuple[float, float, int]]]] = []
    for source in SOURCES:
        mine = [s for s in scores if s.split.source == source and s.law == law and s.split.name != "public"]
        plain = [s for s in mine if not s.split.reach]
        groups = [(plain, (0.0, np.inf))] + [(mine, band) for band in BANDS[1:]]
        if mine:
            found.append((source, [covered(group, band) for group, band in groups]))
    return found


def coverage_rows(scores: Sequence[Score]) -> list[list[str]]:
    """Each law's coverage by source and distance, and its mean over sources."""
    rows: list[list[str]] = []
    for law in JUDGED_LAWS:
        found = coverage(scores, law)
        for source, bands in found:
            rows += [
                [law, source, distance, f"{100 * share:.0f}", f"{100 * width:.1f}", str(n)]
                for distance, (share, width, n) in zip(DISTANCES, bands, strict=True)
                if n
            ]
        if found:
            means = np.nanmean(np.array([[share for share, *_ in bands] for _, bands in found]), axis=0)
            rows += [
                [law, MEAN, distance, f"{100 * v:.0f}", "", ""] for distance, v in zip(DISTANCES, means, strict=True)
            ]
    return rows


def coverage_short(stored: Iterable[Sequence[str]]) -> list[list[str]]:
    """Each law's mean over sources by distance, and in brackets its worst source, from the rows of the coverage table."""
    held = {(law, source, distance): float(share) for law, source, distance, share, *_ in stored}
    rows: list[list[str]] = []
    for law in dict.fromkeys(law for law, *_ in held):
        worst = {d: min(v for (name, _, at), v in held.items() if (name, at) == (law, d)) for d in DISTANCES}
        rows.append([law, *(f"{held[law, MEAN, d]:.0f}% ({worst[d]:.0f}%)" for d in DISTANCES)])
    return rows


def covered(scores: Sequence[Score], band: tuple[float, float]) -> tuple[float, float, int]:
    """Share held, mean width and number of runs whose N D is so many times the largest that was fitted."""
    if not scores:
        return float("nan"), float("nan"), 0
    beyond, held, width = (np.concatenate([getattr(s, name) for s in scores]) for name in ("beyond", "held", "width"))
    chosen = (beyond >= band[0]) & (beyond < band[1])
    if not chosen.any():
        return float("nan"), float("nan"), 0
    return float(held[chosen].mean()), float(width[chosen].mean()), int(chosen.sum())


def laws(scores: Sequence[Score], sources: Iterable[str]) -> list[str]:
    """The laws that were tried on all of these sources, auto first."""
    wanted = set(sources)
    tried: dict[str, set[str]] = {}
    for score in scores:
        tried.setdefault(score.law, set()).add(score.split.source)
    return sorted((law for law, where in tried.items() if wanted <= where), key=lambda law: (law != "auto", law))


def thousandths(value: float) -> str:
    """In thousandths."""
    return "-" if np.isnan(value) else f"{1e3 * value:.1f}"


def lines(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table as Markdown."""
    return [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *(f"| {' | '.join(row)} |" for row in rows)]


def main() -> None:
    """Score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tables", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    wanted = set(filter(None, options.tables.split(",")))
    scores: list[Score] = []
    began = time.perf_counter()
    for source, names in SOURCES.items():
        for name in names if not wanted else [n for n in names if n in wanted]:
            for split in splits_of(source, name):
                every = ("chinchilla", *(() if options.quick else DENSE_FORMS if source in DENSE else ROUTED_FORMS))
                few = JUDGED if split.reach and not options.quick else every
                scores += [scored(split, law) for law in dict.fromkeys(("auto", *few))]
                said = ", ".join(f"{s.law} {1e3 * s.rmsle:.1f}" for s in scores if s.split is split)
                print(f"{name} {split.name} ({len(split.inside)} to {len(split.outside)}): {said}", file=sys.stderr)
    errors, held = error_rows(scores), coverage_rows(scores)
    parts = page_parts(scores, held)
    for title, part in parts.items():
        print(f"\n{title}\n", *([part] if isinstance(part, str) else part), sep="\n")
    print(f"\n{time.perf_counter() - began:.0f} s")
    if options.write:
        write(scores, errors, held, parts)


def page_parts(scores: Sequence[Score], held: Iterable[Sequence[str]]) -> dict[str, str | list[str]]:
    """The tables of the page, and what it says of `auto`."""
    head = ("law", "dense, mean", "over chinchilla", "range", "joint: larger D", "larger E", "larger N", "routing")
    errors, covered = short_rows(scores), coverage_short(held)
    auto = {row[0]: row for row in errors}["auto"]
    shares = [int(cell.partition("%")[0]) for cell in covered[0][1:]]
    return {
        "errors": lines(head, errors),
        "coverage": lines(("law", "all", *(f"{name} times" for name in BAND_NAMES[1:])), covered),
        "auto-ratio": auto[2],
        "auto-held": f"{min(shares)}% to {max(shares)}%",
    }


def write(
    scores: Sequence[Score],
    errors: Iterable[Sequence[str]],
    held: Iterable[Sequence[str]],
    parts: dict[str, str | list[str]],
) -> None:
    """results/laws.csv, and the computed parts and tables of docs/evidence/own-law.md."""
    with open(RESULTS / "laws.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(("source", "table", "held_out", "law", "n_fitted", "n_held_out", "rmsle", "coverage", "width"))
        for s in scores:
            sizes = (len(s.split.inside), len(s.split.outside))
            numbers = (f"{x:.6g}" for x in (s.rmsle, s.held.mean(), s.width.mean()))
            out.writerow((s.split.source, s.split.table, s.split.name, s.law, *sizes, *numbers))
    sys.path.insert(0, str(HERE.parent / "scripts"))
    pages = importlib.import_module("pages")
    pages.write("evidence/own-law.md", pages.filled("evidence/own-law.md", parts, "laws"))
    pages.write_csv("evidence/own-law-errors.csv", ERRORS, errors)
    pages.write_csv("evidence/own-law-coverage.csv", COVERAGE, held)


if __name__ == "__main__":
    main()

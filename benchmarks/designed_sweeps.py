"""Whole studies before they are paid for: a true law, a sweep with noise, `fit`, `plan`, and the plan's regret.

    python benchmarks/designed_sweeps.py [--development] [--quick] [--write] [--stored]

docs/evidence/decisions.md says which laws are true, which sweeps are compared and how a plan is scored; rule and laws were
committed before the laws that judge were scored. --development: the laws that the design was chosen on. --quick: one law and one
seed. --write: every study in benchmarks/results/designed_sweeps.csv, and what follows from it: docs/evidence/decisions-sweeps.csv
and its part of that page. --stored: these two again from the studies that are there.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from moescale.errors import InfeasibleError
from moescale.fitting.workflow import FitSettings, fit_runs
from moescale.models.family import training_flops
from moescale.planning.allocation import loss_optimal
from moescale.planning.draws import draws_of, oracle_of
from moescale.planning.gaussian_process import RUN_NOISE, Runs, decision_of, process_of
from moescale.planning.question import CONFIDENCE, prepare
from moescale.planning.recommend import choose
from moescale.planning.search import Search
from moescale.planning.sweep_design import decide, design_sweep
from moescale.planning.sweep_runs import SweepLimits, paper_sweep, plain_grid
from moescale.runs.table import RunTable, read_runs
from moescale.scaling_laws import Law, find_law
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.law import loss
from moescale.typing import FloatArray
from simulated_lab import ENSEMBLE, OUTSIDE, Asked, Model, ensemble_without, pages, percent, searched, single, table

HERE = Path(__file__).resolve().parent
STUDIES = HERE / "results" / "designed_sweeps.csv"
PAGE, OWNER, BY_LAW = "evidence/decisions.md", "sweeps", "evidence/decisions-sweeps.csv"
JOINT_RUNS = HERE.parent / "tests" / "data" / "public" / "joint_moe_runs.csv"
GPU = "h100-sxm"
PLANS = (1e23, 1e24)  # FLOPs of the model that is decided for
EXPERTS = (1.0, 4.0, 8.0, 16.0, 32.0)
SEEDS = (0, 1)  # of the noise of the runs
# Laws like a member's: every parameter but E_start and E_max times exp(0.15 z), z normal, the first two of these seeds that are laws.
PERTURBED, LIKE_EACH = 0.15, 2
DEVELOPMENT_SEEDS, JUDGING_SEEDS = range(1000, 1040), range(3000, 3040)
UNSWEPT, NO_SWEEP = "no sweep: the ensemble's plan", "no sweep: the baseline"
FIT, POSTERIOR = "fit and plan", "ensemble and runs"
REFITTED = "yun2024-centred"  # a form that is no member's, fitted to the runs of arXiv 2502.05172


@dataclass(frozen=True, slots=True)
class Truth:
    """A law that is true, and the ensemble that does not know it."""

    name: str
    law: Law
    extra: Mapping[str, float]
    known: Law


@dataclass(frozen=True, slots=True)
class Study:
    """What became of a sweep: the plan's model under the truth."""

    truth: str
    plan_flops: float
    sweep: str
    planner: str  # FIT or POSTERIOR
    seed: int
    runs: int
    sweep_flops: float
    experts: float  # NaN: no model was as good as the base with confidence, and the base is trained
    n_params: float
    regret: float
    kept: float
    missed: float  # ln of the true loss over the base's


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--development", action="store_true")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--stored", action="store_true")
    options = parser.parse_args()
    if options.stored:
        publish(stored())
        return
    began = time.perf_counter()
    truths = list(development() if options.development else judging())
    studies: list[Study] = []
    for truth in truths[:1] if options.quick else truths:
        studies += studied(truth, SEEDS[:1] if options.quick else SEEDS)
        print(f"{truth.name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    print(*sweep_lines(studies), sep="\n")
    if options.write:
        write(studies)
        publish(studies)


def judging() -> Iterator[Truth]:
    """The laws that judge: each member, a refit, and laws like each member, none of which the design knows."""
    public = find_law(ENSEMBLE)
    for member in public.members:
        yield truth_of(member.law, ensemble_without(public, member.law.name))
    refitted = fit_runs(read_runs(JOINT_RUNS, size_column="n_params_active"), REFITTED).law
    yield truth_of(replace(refitted, name=f"{REFITTED} on the joint runs"), public)
    for member in public.members:
        yield from like(member.law, JUDGING_SEEDS, ensemble_without(public, member.law.name))


def development() -> Iterator[Truth]:
    """The laws that the design was chosen on."""
    public = find_law(ENSEMBLE)
    for name, extra in OUTSIDE.items():
        yield truth_of(find_law(name), public, extra)
    for member in public.members:
        yield from like(member.law, DEVELOPMENT_SEEDS, public)


def truth_of(law: Law, known: Law, extra: Mapping[str, float] | None = None) -> Truth:
    """A law in the letters of the plans."""
    return Truth(law.name, single(law, search_of(known, PLANS[-1])), extra or {}, known)


def like(law: Law, seeds: Iterable[int], known: Law) -> Iterator[Truth]:
    """The first LIKE_EACH perturbed laws in which more experts lower the loss, by less than 8% a step, and a plan gains."""
    found, kept = 0, np.array([name.startswith("E_") for name in law.form.names])
    for seed in seeds:
        noise = np.exp(PERTURBED * np.random.default_rng(seed).standard_normal(kept.size))
        theta = law.form.encode(law.form.decode(law.theta) * np.where(kept, 1.0, noise))
        moved = replace(law, name=f"{law.name} ~ {seed}", theta=theta, draws=law.draws[:0])
        truth = truth_of(moved, known)
        if found < LIKE_EACH and is_law(truth):
            found += 1
            yield truth


def is_law(truth: Truth) -> bool:
    """Whether the base's loss-optimal models look like a law's: the stated conditions of `like`."""
    search = search_of(truth.known, PLANS[-1])
    try:
        best = loss_optimal(truth.law, search.question.budget, search.best.experts)
        regret = scored(search, truth, None)[0]
    except (InfeasibleError, ValueError, FloatingPointError):
        return False
    falls = np.diff(best.loss) / best.loss[:-1]
    sane = best.loss[-1] > 1.2 and best.loss[0] < 3.5 and 3e9 < best.n_params[1] < 6e11
    return bool(sane and (falls < 0.0).all() and (falls > -0.08).all() and 0.05 < regret < 2.0)


@cache
def _searches() -> dict[tuple[str, float], Search]:
    return {}


def search_of(known: Law, flops: float) -> Search:
    """The plan of an ensemble before a sweep; all sweeps are judged against its base."""
    key = (known.name, flops)
    if key not in _searches():
        _searches()[key] = searched(known, Asked(flops, GPU))
    return _searches()[key]


def sweeps_of(search: Search) -> dict[str, Runs]:
    """The sweeps that are compared, by name; the paper's runs state the FLOPs."""
    family = search.law.family
    paper = paper_runs(search)
    flops = flops_of(search, paper)
    found = {"the paper's 100 runs": paper}
    for share, name in ((1.0, ""), (1 / 3, ", a third of the FLOPs"), (1 / 10, ", a tenth")):
        found[f"plain grid{name}"] = plain_grid(family, EXPERTS, share * flops)
        runs = design_sweep(search, SweepLimits(flops=share * flops)).runs
        columns = ([getattr(run, key) for run in runs] for key in ("n_params", "tokens", "experts"))
        found[f"designed{name}"] = Runs(*(np.array(column, dtype=float) for column in columns))
    return found


def paper_runs(search: Search) -> Runs:
    """The paper's runs as they are."""
    scaled = paper_sweep(search.law.family, 1e21)
    factor = 81395712.0 / scaled.n_params.min()  # its smallest size
    return Runs(factor * scaled.n_params, factor * scaled.tokens, scaled.experts)


def flops_of(search: Search, runs: Runs) -> float:
    """Training FLOPs of all runs."""
    return float(training_flops(search.law.family, runs.n_params, runs.tokens, runs.experts).sum())


def studied(truth: Truth, seeds: Sequence[int]) -> list[Study]:
    """Every sweep under one truth, and the plans before any."""
    found: list[Study] = []
    for flops in PLANS:
        search = search_of(truth.known, flops)
        for name, model in (
            (UNSWEPT, planned(search, search.law)),
            (NO_SWEEP, None),
        ):
            found.append(study(search, truth, (name, FIT, 0), None, model))
        for name, runs in sweeps_of(search).items():
            for seed in seeds:
                losses = observed(truth, runs, seed)
                found.append(
                    study(search, truth, (name, FIT, seed), runs, planned(search, fitted(search, runs, losses)))
                )
                found.append(study(search, truth, (name, POSTERIOR, seed), runs, posterior(search, runs, losses)))
    return found


def observed(truth: Truth, runs: Runs, seed: int) -> FloatArray:
    """Losses of runs under a truth, with noise."""
    noise = np.exp(RUN_NOISE * np.random.default_rng(seed).standard_normal(len(runs)))
    return loss(truth.law, runs.n_params, runs.tokens, runs.experts, extra=dict(truth.extra) or None) * noise


def fitted(search: Search, runs: Runs, losses: FloatArray) -> Law:
    """The law that `fit` finds in runs."""
    rows = RunTable(
        n_params=runs.n_params,
        tokens=runs.tokens,
        experts=runs.experts,
        loss=losses,
        columns={"top_k": np.where(runs.experts > 1.0, 2.0, 1.0)},
    )
    return fit_runs(rows, settings=FitSettings(family=search.law.family)).law


def planned(search: Search, law: Law) -> Model | None:
    """What a law plans against the search's base; None: nothing is as good with confidence, and the base is trained."""
    law = prepare(restate(law, search.law.family), search.question)[0]
    budget, experts = search.question.budget, search.best.experts
    draws = draws_of(law, budget, experts, search.base_model)
    own = replace(
        search,
        law=law,
        draws=draws,
        oracle=oracle_of(draws, search.sampled, law.allows(experts)),
        best=loss_optimal(law, budget, experts),
        question=replace(search.question, confidence=CONFIDENCE),
    )
    try:
        model, _ = choose(own, own.at_loss())
    except InfeasibleError:
        return None
    return Model(model.n_params, model.experts, model.usd_per_mtok)


def posterior(search: Search, runs: Runs, losses: FloatArray) -> Model | None:
    """What the ensemble and the runs decide together, as `design --runs` says."""
    decision = decision_of(search)
    found = decide(process_of(search, decision, runs).given(np.arange(len(runs)), np.log(losses)), decision)
    if found.cost_ratio == 1.0:
        return None
    return Model(found.n_params, found.experts, found.cost_ratio * (search.base.usd_per_mtok or np.nan))


def study(search: Search, truth: Truth, about: tuple[str, str, int], runs: Runs | None, model: Model | None) -> Study:
    """A model under the truth; None: the base."""
    place = (np.nan, np.nan) if model is None else (model.experts, model.n_params)
    size = (0, 0.0) if runs is None else (len(runs), flops_of(search, runs))
    return Study(truth.name, search.question.budget.flops, *about, *size, *place, *scored(search, truth, model))


def scored(search: Search, truth: Truth, model: Model | None) -> tuple[float, float, float]:
    """Regret, whether the promise is kept, and ln loss over the base's, of a model or the base under the truth."""
    base = search.base
    model = model or Model(base.n_params, base.experts, base.usd_per_mtok or np.nan)
    budget = replace(search.question.budget, extra=dict(truth.extra))
    draws = draws_of(replace(truth.law, draws=truth.law.draws[:0]), budget, search.best.experts, search.base_model)
    oracle = oracle_of(draws, search.sampled, np.ones(draws.experts.size, dtype=np.bool_))
    losses = draws.losses(np.array([model.n_params]), np.array([model.experts]))
    regret = oracle.regrets(draws, losses, np.array([model.usd]), base.usd_per_mtok or np.nan)
    return float(regret[0, 0]), float(draws.meets(losses)[0, 0]), float(np.log(losses[0, 0] / draws.goal[0]))


def sweep_lines(studies: Sequence[Study]) -> list[str]:
    """The table of sweeps."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(s.sweep for s in studies):
        mine = [s for s in studies if s.sweep == name]
        cells = [
            name,
            f"{mine[0].runs or '-'}",
            f"{np.mean([s.sweep_flops for s in mine]):.2g}" if mine[0].runs else "-",
        ]
        for planner in (FIT, POSTERIOR):
            by = [s for s in mine if s.planner == planner]
            by_law = [mean([s for s in by if s.truth == truth]) for truth in dict.fromkeys(s.truth for s in by)]
            kept = np.mean([s.kept for s in by]) if by else np.nan
            cells += [
                percent(np.mean(by_law) if by else np.nan),
                percent(np.median(by_law) if by else np.nan),
                percent(kept),
            ]
        rows.append(cells)
    each = ("mean", "median law", "promise kept")
    header = (
        "sweep",
        "runs",
        "FLOPs",
        *(f"{planner}: {each[0]}" if i == 0 else name for planner in (FIT, POSTERIOR) for i, name in enumerate(each)),
    )
    return table(header, rows, numbers=8)


def by_law_csv(studies: Sequence[Study]) -> str:
    """Each sweep and planner under each true law: means over plans and seeds."""
    groups: dict[tuple[str, str, str], list[Study]] = {}
    for s in studies:
        groups.setdefault((s.truth, s.sweep, s.planner), []).append(s)
    rows = ([*about, f"{mean(mine):.4f}", f"{np.mean([s.kept for s in mine]):.4f}"] for about, mine in groups.items())
    return pages.csv_text(("true_law", "sweep", "planner", "regret", "promise_kept"), rows)


def mean(studies: Sequence[Study]) -> float:
    """The mean regret."""
    return float(np.mean([s.regret for s in studies]))


def write(studies: Sequence[Study]) -> None:
    """Every study, in benchmarks/results/designed_sweeps.csv."""
    with STUDIES.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([f.name for f in fields(Study)])
        for s in studies:
            values = (getattr(s, f.name) for f in fields(Study))
            rows.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in values])


def stored() -> list[Study]:
    """The studies of benchmarks/results/designed_sweeps.csv."""
    kinds: dict[str, Callable[[str], str | int | float]] = {"str": str, "int": int, "float": float}
    of = {f.name: kinds[str(f.type)] for f in fields(Study)}
    with STUDIES.open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = [
            {name: of[name](text) for name, text in row.items()} for row in csv.DictReader(file)
        ]
    return [Study(**row) for row in rows]


def page(studies: Sequence[Study]) -> str:
    """The text of docs/evidence/decisions.md with the part of whole studies."""

    def of(sweep: str, planner: str) -> list[Study]:
        return [s for s in studies if (s.sweep, s.planner) == (sweep, planner)]

    names = [s.sweep for s in studies]
    swept = [name for name in dict.fromkeys(names) if name not in (UNSWEPT, NO_SWEEP)]
    gains = [over_laws(of(name, FIT)) - over_laws(of(name, POSTERIOR)) for name in swept]
    kept = {name: float(np.mean([s.kept for s in of(name, POSTERIOR)])) for name in swept}
    designed = [share for name, share in kept.items() if name.startswith("designed")]
    parts = {
        "studies": sweep_lines(studies),
        "laws": f"{len({s.truth for s in studies})}",
        "third-fit": percent(over_laws(of("designed, a third of the FLOPs", FIT))),
        "grid-fit": percent(over_laws(of("plain grid", FIT))),
        "third-both": percent(over_laws(of("designed, a third of the FLOPs", POSTERIOR))),
        "grid-both": percent(over_laws(of("plain grid", POSTERIOR))),
        "paper-fit": percent(over_laws(of("the paper's 100 runs", FIT))),
        "no-sweep": percent(over_laws(of(UNSWEPT, FIT))),
        "gains": f"{100 * min(gains):.0f} to {100 * max(gains):.0f}",
        "kept-grid": percent(kept["plain grid"]),
        "kept-designed": f"{percent(min(designed))} to {percent(max(designed))}",
    }
    return str(pages.filled(PAGE, parts, OWNER))


def over_laws(studies: Sequence[Study]) -> float:
    """The mean regret over true laws, each with the same weight."""
    return float(
        np.mean([mean([s for s in studies if s.truth == law]) for law in dict.fromkeys(s.truth for s in studies)])
    )


def publish(studies: Sequence[Study]) -> None:
    """Write the table by law, and the page's part."""
    pages.write(BY_LAW, by_law_csv(studies))
    pages.write(PAGE, page(studies))


if __name__ == "__main__":
    main()

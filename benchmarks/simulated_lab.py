"""A simulated lab: plans of pooled2026 judged under true laws whose runs it was fitted without, against plans of named laws.

    python benchmarks/simulated_lab.py [--quick] [--write]

docs/evidence/decisions.md says what is true, asked, planned and scored; it was written before any score was computed. --quick: one
question of the lab, whose table is not written. --write: docs/evidence/decisions-{lab,one-question}.csv, and the part of that page that follows from them.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, SupportsFloat

import numpy as np

from moescale.errors import InfeasibleError
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.draws import Draws, draws_of, oracle_of
from moescale.planning.plan import Plan, make_plan
from moescale.planning.question import CONFIDENCE, Question, prepare
from moescale.planning.recommend import choose
from moescale.planning.search import Search
from moescale.scaling_laws import Law, find_law
from moescale.scaling_laws.ensemble import combine, restate
from moescale.typing import FloatArray

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "scripts"))
made: Any = importlib.import_module("fit_pooled2026")
pages: Any = importlib.import_module("pages")
PAGE, OWNER = "evidence/decisions.md", "lab"
LAB, ONE_QUESTION = "evidence/decisions-lab.csv", "evidence/decisions-one-question.csv"
POOLED, ENSEMBLE = "pooled2026", "public-2026"
# True laws, and the labs whose sources pooled2026 is fitted without while each is true. The first was recovered from a paper
# without a table of runs; the next three rest on the joint runs.
TRUTHS: dict[str, frozenset[str]] = {
    "yun2024-recovered": frozenset(),
    "yun2024-joint": frozenset({"llm-random"}),
    "moescale2026-joint": frozenset({"llm-random"}),
    "ludziejewski2025": frozenset({"llm-random"}),
    "abnar2025": frozenset({"apple"}),
    "zhao2025": frozenset({"tencent"}),
}
# Those that are no members of public-2026, with the further inputs that the paper's models give them. Others cannot be true:
# krajewski2024 knows 64 experts only, clark2022 no tokens, frantar2023 no experts, and Tian's leverage is no loss of a size and
# tokens.
OUTSIDE: dict[str, dict[str, float]] = {"abnar2025": {}, "zhao2025": {"activated_experts": 2.0}}
BUDGETS = (3e20, 5e21, 1e23, 3e24)
GPUS = {"a100-sxm-40gb": "bf16", "h100-sxm": "bf16", "h200-sxm": "fp8"}  # with the format of weights and cache
EXPERTS = (1.0, 4.0, 8.0, 16.0, 32.0)
MOST_TOKENS, MOST_SEQS, MOST_GPUS, KV_HEADS = 40e12, "256", 64, 8
TRUE_DRAWS = 10
CONFIDENCES, DEFAULT = (0.5, 0.8, 0.95), CONFIDENCE
WORD, BASE = ", point estimate", "the baseline"
WITHOUT = f"{ENSEMBLE} without the true law"


@dataclass(frozen=True, slots=True)
class Asked:
    """A question: FLOPs on a GPU."""

    flops: float
    gpu: str


@dataclass(frozen=True, slots=True)
class Model:
    """What a planner would train."""

    n_params: float
    experts: float
    usd: float


@dataclass(frozen=True, slots=True)
class Score:
    """A planner's model on one question under the coefficients (k,) of one true law; without a model, of none (0,)."""

    truth: str
    asked: Asked
    planner: str
    confidence: float | None  # None: at every one
    cost: float  # over the base's
    missed: FloatArray  # ln of the true loss over the base's
    kept: FloatArray  # 0 or 1
    overpaid: FloatArray
    regret: FloatArray


Plans = dict[tuple[str, float | None], Model | None]  # by planner and confidence, None where it has none


def main() -> None:
    """Score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    questions = [Asked(flops, gpu) for gpu in GPUS for flops in BUDGETS]
    scores = simulated([Asked(5e21, "h100-sxm")] if options.quick else questions)
    tables = {LAB: lab_csv(scores), ONE_QUESTION: trial_csv(trial())}
    print(*tables.values(), f"{time.perf_counter() - began:.0f} s", sep="\n")
    if options.write:
        for name, text in tables.items():
            if name != LAB or not options.quick:  # whose table is of all questions
                pages.write(name, text)
        pages.write(PAGE, page(*(pages.read_csv(name) for name in (LAB, ONE_QUESTION))))


def simulated(
    questions: Sequence[Asked], truths: Sequence[str] = (), confidences: Sequence[float] = CONFIDENCES
) -> list[Score]:
    """The scores of every planner on the questions under every true law, or those named."""
    public, scores = find_law(ENSEMBLE), list[Score]()
    for asked in questions:
        known: dict[frozenset[str], tuple[Search, Plans]] = {}
        for truth in truths or TRUTHS:
            labs = TRUTHS[truth]
            if labs not in known:
                search = searched(made.fitted_without(labs), asked)
                known[labs] = search, dict(planned(search, confidences))
            search, plans = known[labs]
            plans = plans | dict(compared(search, ensemble_without(public, truth)))
            draws = true_draws(search, truth)
            scores += [
                judged(search, draws, truth, asked, planner, sure, model) for (planner, sure), model in plans.items()
            ]
    return scores


def ensemble_without(public: Law, name: str) -> Law:
    """The ensemble of the other members, each with the weight and the number of draws that it shares equally."""
    left = [member for member in public.members if member.law.name != name]
    if len(left) == len(public.members):
        return public
    draws = len(public.draws) * len(left) // len(public.members)
    return combine(
        left,
        name=f"{public.name} without {name}",
        family=public.family,
        source=public.source,
        date=public.date,
        draws=draws,
    )


def searched(law: Law, asked: Asked) -> Search:
    """The program's own search for a question."""
    serving = ServingOptions(
        gpu=asked.gpu,
        max_gpus=MOST_GPUS,
        max_num_seqs=MOST_SEQS,
        weights=GPUS[asked.gpu],
        kv_cache=GPUS[asked.gpu],
        latency="roofline",
    )
    deployment = serving.deployment()
    question = Question(budget=Budget(asked.flops, MOST_TOKENS), experts=EXPERTS, kv_heads=KV_HEADS)
    return Search.of(law, question, deployment, serving.open_latency(deployment))


def planned(search: Search, confidences: Sequence[float]) -> Iterator[tuple[tuple[str, float | None], Model | None]]:
    """What the search's law would train at each confidence and by its mean coefficients, and the baseline."""
    for confidence in confidences:
        yield (POOLED, confidence), answer(sure(search, confidence))
    yield (POOLED + WORD, None), at_its_word(search, single(search.law, search))
    base = search.base
    yield (BASE, None), Model(base.n_params, base.experts, base.usd_per_mtok or np.nan)


def compared(search: Search, ensemble: Law) -> Iterator[tuple[tuple[str, float | None], Model | None]]:
    """What an ensemble and each of its laws would train to match the loss of the search's baseline."""
    law = restate(ensemble, search.law.family)
    draws = draws_of(law, search.question.budget, search.best.experts, search.base_model)
    oracle = oracle_of(draws, search.sampled, law.allows(search.best.experts))
    yield (WITHOUT, DEFAULT), answer(sure(replace(search, law=law, draws=draws, oracle=oracle), DEFAULT))
    for member in ensemble.members:
        yield (member.law.name + WORD, None), at_its_word(search, single(member.law, search))


def single(law: Law, search: Search) -> Law:
    """A law in the letters of the search, as one law whatever its members."""
    return replace(prepare(restate(law, search.law.family), search.question)[0], members=())


def sure(search: Search, confidence: float) -> Search:
    """The search with a confidence."""
    return replace(search, question=replace(search.question, confidence=confidence))


def at_its_word(search: Search, law: Law) -> Model | None:
    """The cheapest model that reaches the base's loss by a law's own curve."""
    budget, experts = search.question.budget, search.best.experts
    draws = draws_of(replace(law, draws=law.draws[:0]), budget, experts, search.base_model)
    own = replace(search, law=law, draws=draws, best=loss_optimal(law, budget, experts))
    return answer(own, float(draws.goal[0]))


def answer(search: Search, loss: float | None = None) -> Model | None:
    """What the program chooses at a loss, or that of the base; None where no model reaches it."""
    try:
        chosen, _ = choose(search, search.at_loss(loss))
    except InfeasibleError:
        return None
    return Model(chosen.n_params, chosen.experts, chosen.usd_per_mtok)


def true_draws(search: Search, name: str) -> Draws:
    """A true law's coefficients and some of its draws, each asking for its own loss of the base."""
    law = single(find_law(name), search)
    budget = replace(search.question.budget, extra=OUTSIDE.get(name, {}))
    picked = np.round(np.linspace(0, len(law.draws) - 1, TRUE_DRAWS)).astype(int) if len(law.draws) else []
    law = replace(law, draws=np.concatenate((law.theta[None], law.draws[picked])))
    return draws_of(law, budget, search.best.experts, search.base_model)


def judged(
    search: Search, draws: Draws, truth: str, asked: Asked, planner: str, confidence: float | None, model: Model | None
) -> Score:
    """A model under the truth."""
    about, none = (truth, asked, planner, confidence), np.empty(0)
    unit = search.base.usd_per_mtok
    if unit is None:
        raise ValueError(f"{asked}: the base cannot be served")
    if model is None:
        return Score(*about, np.nan, none, none, none, none)
    losses, usd = draws.losses(np.array([model.n_params]), np.array([model.experts])), np.array([model.usd])
    oracle = oracle_of(draws, search.sampled, np.ones(draws.experts.size, dtype=np.bool_))
    worth = np.minimum(oracle.usd_at(losses), usd)[:, 0]
    return Score(
        *about,
        cost=model.usd / unit,
        missed=np.log(losses[:, 0] / draws.goal),
        kept=draws.meets(losses)[:, 0],
        overpaid=(model.usd - worth) / unit,
        regret=oracle.regrets(draws, losses, usd, unit)[:, 0],
    )


def by_truth(scores: Iterable[Score], name: str) -> FloatArray:
    """The mean of a score over questions and coefficients of each true law, (laws,); NaN where no question has an answer."""
    found: dict[str, list[FloatArray]] = {}
    for score in scores:
        found.setdefault(score.truth, []).append(getattr(score, name))
    means = [np.concatenate(values) for values in found.values()]
    return np.array([values.mean() if values.size else np.nan for values in means])


ANY = "all"  # true laws
LAB_HEADER = (
    *("planner", "confidence", "true_law", "promise_kept", "regret", "regret_worst_law", "overpaid"),
    *("cost_over_baseline", "ln_loss_above_where_not_kept", "no_answer"),
)


def lab_csv(scores: Sequence[Score]) -> str:
    """Every planner at every confidence, under each true law and over them."""
    truths, rows = list(dict.fromkeys(s.truth for s in scores)), list[list[str]]()
    groups = {ANY: truths} | {truth: [truth] for truth in truths}
    for planner, confidence in sorted({(s.planner, s.confidence or 0.0) for s in scores}):
        mine = [s for s in scores if (s.planner, s.confidence or 0.0) == (planner, confidence)]
        for group, within in groups.items():
            found = [s for s in mine if s.truth in within]
            if found:
                rows.append([planner, f"{confidence:g}" if confidence else "", group, *figures(found)])
    return pages.csv_text(LAB_HEADER, rows)


def figures(scores: Sequence[Score]) -> list[str]:
    """What LAB_HEADER names of scores: means over questions and coefficients, then over true laws."""
    short = np.concatenate([s.missed[s.kept == 0.0] for s in scores])
    regrets = by_truth(scores, "regret")
    values = [
        np.nanmean(by_truth(scores, "kept")),
        np.nanmean(regrets),
        np.nanmax(regrets),
        np.nanmean(by_truth(scores, "overpaid")),
        np.nanmean([s.cost for s in scores]),
        np.median(short) if short.size else np.nan,
        np.mean([s.regret.size == 0 for s in scores]),
    ]
    return [f"{value:.6f}" if np.isfinite(value) else "" for value in values]


Rows = Sequence[Mapping[str, str]]


def page(lab: Rows, one_question: Rows) -> str:
    """The text of docs/evidence/decisions.md with the part of the simulated lab, from its tables."""
    found = {(row["planner"], row["confidence"], row["true_law"]): row for row in lab}

    def by_law(figure: str) -> str:
        rows = {law: found[POOLED, f"{DEFAULT:g}", law] for law in TRUTHS}
        return ", ".join(f"{law} {percent(row[figure])}" for law, row in rows.items())

    worst: dict[str, float] = {}
    for row in one_question:
        worst[row["choice_of"]] = max(worst.get(row["choice_of"], 0.0), float(row["regret"]))
    alone = [regret for choice, regret in worst.items() if choice != THIS_PLAN]
    costs = [float(row["cost_over_baseline"]) for row in one_question if row["choice_of"] != THIS_PLAN]
    plan = [row for row in one_question if row["choice_of"] == THIS_PLAN]
    parts = {
        "planners": planner_lines(found),
        "kept-by-law": by_law("promise_kept"),
        "regret-by-law": by_law("regret"),
        "question-alone": f"{percent(min(alone))} to {percent(max(alone))}",
        "question-costs": f"{percent(min(costs))} to {percent(max(costs))}",
        "question-plan": percent(worst[THIS_PLAN]),
        "question-cost": percent(plan[0]["cost_over_baseline"]),
        "question-kept": ", ".join(f"{row['under_law']} {percent(row['probability'])}" for row in plan),
    }
    return pages.filled(PAGE, parts, OWNER)


def planner_lines(found: Mapping[tuple[str, str, str], Mapping[str, str]]) -> list[str]:
    """The table of planners over all true laws: pooled2026 at each confidence, then others, the baseline last."""
    rows: list[list[str]] = []
    shown = [row for (_, _, law), row in found.items() if law == ANY]
    for row in sorted(
        shown, key=lambda r: (r["planner"] == BASE, not r["planner"].startswith(POOLED), not r["confidence"])
    ):
        name = f"{row['planner']}, {percent(row['confidence'])}" if row["confidence"] else row["planner"]
        cells = [percent(row[key]) if row[key] else "-" for key in LAB_HEADER[3:8]]
        above = row["ln_loss_above_where_not_kept"]
        rows.append([name, *cells, f"{100 * float(above):.1f}%" if above else "-"])
    header = (
        "planner",
        "promise kept",
        "regret",
        "worst regret",
        "overpaid",
        "cost / baseline",
        "loss above, where not kept",
    )
    return table(header, rows, numbers=6)


def trial() -> Plan:
    """The plan of the question that docs/evidence/decisions.md shows."""
    serving = ServingOptions(gpu="h100-sxm", max_num_seqs=MOST_SEQS, max_tpot=0.03, kv_heads=KV_HEADS)
    deployment, law = serving.deployment(), find_law(POOLED)
    question = BoundOptions(budget=2.2e22).question(law, deployment, kv_heads=KV_HEADS)
    return make_plan(law, question, deployment, serving.open_latency(deployment))


THIS_PLAN = "this plan"


def trial_csv(plan: Plan) -> str:
    """What each law would choose, and the plan itself: regret under every law, and the probability of the baseline's loss."""
    laws, model = plan.laws, plan.recommendation.model
    rows: list[list[Any]] = []
    for view in laws:
        elsewhere = view.elsewhere
        if elsewhere is not None:
            choice = [view.law, f"{view.experts:g}", f"{view.n_params_active:.4g}", f"{view.cost_ratio:.6f}"]
            rows += [[*choice, v.law, *_sure(elsewhere[v.law].regret, elsewhere[v.law].probability)] for v in laws]
    choice = [THIS_PLAN, f"{model.experts:g}", f"{model.n_params_active:.4g}", f"{model.cost_ratio:.6f}"]
    rows += [[*choice, v.law, *_sure(v.regret, v.probability)] for v in laws]
    head = ("choice_of", "experts", "n_params_active", "cost_over_baseline", "under_law", "regret", "probability")
    return pages.csv_text(head, rows)


def _sure(regret: float | None, probability: float | None) -> tuple[str, str]:
    return f"{regret or 0.0:.6f}", f"{np.nan if probability is None else probability:.6f}"


def percent(share: SupportsFloat | str) -> str:
    """A share as whole percents."""
    return f"{100 * float(share):.0f}%" if np.isfinite(float(share)) else "-"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> list[str]:
    """A table as Markdown, its last columns aligned at the right."""
    rules = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (header, rules, *rows)]


if __name__ == "__main__":
    main()

"""A simulated lab: plans of several laws judged under true laws that they do not know, against plans of single laws.

    python benchmarks/simulated_lab.py [--quick] [--write]

docs/decision.md says what is true, asked, planned and scored; it was written before any score was computed. --quick: one
question. --write: the tables of docs/decision.md.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import SupportsFloat

import numpy as np

from moescale.errors import InfeasibleError
from moescale.options.question import BoundOptions
from moescale.options.serving import ServingOptions
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.panel import Panel, oracle_of, panel_of
from moescale.planning.plan import Plan, make_plan
from moescale.planning.question import CONFIDENCE, Question, prepare
from moescale.planning.search import Search, choose
from moescale.scaling_laws import Law, combine, find_law, restate
from moescale.typing import FloatArray

HERE = Path(__file__).resolve().parent
ENSEMBLE = "public-2026"
# Laws that are no members, with the further inputs that the paper's models give them. Others cannot be true: krajewski2024
# knows 64 experts only, clark2022 no tokens, frantar2023 no experts, and Tian's leverage is no loss of a size and tokens.
OUTSIDE: dict[str, dict[str, float]] = {"abnar2025": {}, "zhao2025": {"activated_experts": 2.0}}
BUDGETS = (3e20, 5e21, 1e23, 3e24)
GPUS = {"a100-sxm-40gb": "bf16", "h100-sxm": "bf16", "h200-sxm": "fp8"}  # with the format of weights and cache
EXPERTS = (1.0, 4.0, 8.0, 16.0, 32.0)
MOST_TOKENS, MOST_SEQS, MOST_GPUS, KV_HEADS = 40e12, "256", 64, 8
TRUE_DRAWS = 10
CONFIDENCES, DEFAULT = (0.5, 0.8, 0.95), CONFIDENCE
AVERAGE, BASE = "average of laws, at its word", "the base itself"
WORD, DRAWS = ", at its word", ", with its draws"


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


def main() -> None:
    """Score, print, and write where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    began = time.perf_counter()
    questions = [Asked(flops, gpu) for gpu in GPUS for flops in BUDGETS]
    scores = simulated([Asked(5e21, "h100-sxm")] if options.quick else questions)
    parts = {"lab": lab_lines(scores), "truths": truth_lines(scores), "trial": trial_lines(trial())}
    parts |= {f"kept-{where}": [kept] for where, kept in by_origin(of(scores, "ensemble", CONFIDENCES[-1])).items()}
    for title, lines in parts.items():
        print(f"\n{title}\n", *lines, sep="\n")
    print(f"\n{time.perf_counter() - began:.0f} s")
    if options.write:
        write(parts)


def simulated(
    questions: Sequence[Asked], truths: Sequence[str] = (), confidences: Sequence[float] = CONFIDENCES
) -> list[Score]:
    """The scores of every planner on the questions under every true law, or those named."""
    public, scores = find_law(ENSEMBLE), list[Score]()
    members = [member.law.name for member in public.members]
    for asked in questions:
        known: dict[str, tuple[Search, dict[tuple[str, float | None], Model | None]]] = {}
        for truth in truths or (*members, *OUTSIDE):
            laws = ensemble_without(public, truth)
            if laws.name not in known:
                search = searched(laws, asked)
                known[laws.name] = search, dict(planned(search, confidences))
            search, plans = known[laws.name]
            panel = true_panel(search, truth)
            scores += [judged(search, panel, truth, asked, *by, model) for by, model in plans.items()]
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
    """What every planner would train, by its name and confidence; all are asked for the loss of the ensemble's base."""
    for confidence in confidences:
        yield ("ensemble", confidence), answer(sure(search, confidence))
    yield (AVERAGE, None), at_its_word(search, single(search.law, search))
    for member in search.law.members:
        law = single(member.law, search)
        yield (member.law.name + WORD, None), at_its_word(search, law)
        if len(law.draws):
            panel = panel_of(law, search.question.budget, search.best.experts, search.base_model)
            oracle = oracle_of(panel, search.sampled, np.ones(panel.experts.size, dtype=np.bool_))
            own = replace(search, law=law, panel=panel, oracle=oracle)
            for confidence in confidences:
                yield (member.law.name + DRAWS, confidence), answer(sure(own, confidence))
    base = search.base
    yield (BASE, None), Model(base.n_params, base.experts, base.usd_per_mtok or np.nan)


def single(law: Law, search: Search) -> Law:
    """A law in the letters of the search, as one law whatever its members."""
    return replace(prepare(restate(law, search.law.family), search.question)[0], members=())


def sure(search: Search, confidence: float) -> Search:
    """The search with a confidence."""
    return replace(search, question=replace(search.question, confidence=confidence))


def at_its_word(search: Search, law: Law) -> Model | None:
    """The cheapest model that reaches the base's loss by a law's own curve."""
    budget, experts = search.question.budget, search.best.experts
    panel = panel_of(replace(law, draws=law.draws[:0]), budget, experts, search.base_model)
    own = replace(search, law=law, panel=panel, best=loss_optimal(law, budget, experts))
    return answer(own, float(panel.goal[0]))


def answer(search: Search, loss: float | None = None) -> Model | None:
    """What the program chooses at a loss, or that of the base; None where no model reaches it."""
    try:
        chosen, _ = choose(search, search.at_loss(loss))
    except InfeasibleError:
        return None
    return Model(chosen.n_params, chosen.experts, chosen.usd_per_mtok)


def true_panel(search: Search, name: str) -> Panel:
    """A true law's coefficients and some of its draws, each asking for its own loss of the base."""
    law = single(find_law(name), search)
    budget = replace(search.question.budget, extra=OUTSIDE.get(name, {}))
    picked = np.round(np.linspace(0, len(law.draws) - 1, TRUE_DRAWS)).astype(int) if len(law.draws) else []
    law = replace(law, draws=np.concatenate((law.theta[None], law.draws[picked])))
    return panel_of(law, budget, search.best.experts, search.base_model)


def judged(
    search: Search, panel: Panel, truth: str, asked: Asked, planner: str, confidence: float | None, model: Model | None
) -> Score:
    """A model under the truth."""
    about, none = (truth, asked, planner, confidence), np.empty(0)
    unit = search.base.usd_per_mtok
    if unit is None:
        raise ValueError(f"{asked}: the base cannot be served")
    if model is None:
        return Score(*about, np.nan, none, none, none, none)
    losses, usd = panel.losses(np.array([model.n_params]), np.array([model.experts])), np.array([model.usd])
    oracle = oracle_of(panel, search.sampled, np.ones(panel.experts.size, dtype=np.bool_))
    worth = np.minimum(oracle.usd_at(losses), usd)[:, 0]
    return Score(
        *about,
        cost=model.usd / unit,
        missed=np.log(losses[:, 0] / panel.goal),
        kept=panel.meets(losses)[:, 0],
        overpaid=(model.usd - worth) / unit,
        regret=oracle.regrets(panel, losses, usd, unit)[:, 0],
    )


def by_truth(scores: Iterable[Score], name: str) -> FloatArray:
    """The mean of a score over questions and coefficients of each true law, (laws,); NaN where no question has an answer."""
    found: dict[str, list[FloatArray]] = {}
    for score in scores:
        found.setdefault(score.truth, []).append(getattr(score, name))
    means = [np.concatenate(values) for values in found.values()]
    return np.array([values.mean() if values.size else np.nan for values in means])


def mean(scores: Iterable[Score], name: str) -> str:
    """The mean of a score over true laws."""
    return percent(np.nanmean(by_truth(scores, name)))


def both(scores: Sequence[Score]) -> str:
    """How often the promise is kept, and the regret; "-" without scores."""
    return f"{mean(scores, 'kept')}, {mean(scores, 'regret')}" if scores else "-"


def of(scores: Iterable[Score], planner: str, confidence: float) -> list[Score]:
    """The scores of a planner at a confidence; those of one without stand at the default."""
    return [s for s in scores if s.planner == planner and (s.confidence or DEFAULT) == confidence]


def by_origin(scores: Iterable[Score]) -> dict[str, str]:
    """How often the promise is kept where a member is true, and where another law is."""
    groups: dict[str, list[Score]] = {"members": [], "outside": []}
    for score in scores:
        groups["outside" if score.truth in OUTSIDE else "members"].append(score)
    return {where: mean(group, "kept") for where, group in groups.items()}


def lab_lines(scores: Sequence[Score]) -> list[str]:
    """The table of planners."""
    rows: list[list[str]] = []
    for name in sorted(dict.fromkeys(s.planner for s in scores), key=lambda name: name == BASE):
        mine = of(scores, name, DEFAULT)
        where = {s.truth for s in mine}
        there = [s for s in of(scores, "ensemble", DEFAULT) if s.truth in where]
        short = np.concatenate([s.missed[s.kept == 0.0] for s in mine])
        figures = [
            both(there),
            percent(np.nanmax(by_truth(mine, "regret"))),
            mean(mine, "overpaid"),
            percent(np.nanmean([s.cost for s in mine])),
            f"{100 * np.median(short):.1f}%" if short.size else "-",
            percent(np.mean([s.regret.size == 0 for s in mine])),
        ]
        rows.append([name, *(both(of(scores, name, c)) for c in CONFIDENCES), *figures])
    header = (
        *("planner: kept, regret", *(f"at {c:g}" for c in CONFIDENCES), "the ensemble there"),
        *("worst regret", "overpaid", "cost of base", "loss above, where not kept", "no answer"),
    )
    return table(header, rows, numbers=9)


def truth_lines(scores: Sequence[Score]) -> list[str]:
    """The table of true laws."""
    rows: list[list[str]] = []
    for truth in dict.fromkeys(s.truth for s in scores):
        mine = [s for s in scores if s.truth == truth]
        word = [s.planner for s in mine if s.planner.endswith(WORD) and s.planner != AVERAGE]
        alone = {name: float(by_truth(of(mine, name, DEFAULT), "regret")[0]) for name in dict.fromkeys(word)}
        ranked = sorted(alone, key=lambda name: alone[name])
        ends = [f"{percent(alone[name])} ({name.removesuffix(WORD)})" for name in (ranked[0], ranked[-1])]
        pairs = [both(of(mine, "ensemble", c)) for c in CONFIDENCES]
        rows.append([truth, *pairs, *(mean(of(mine, name, DEFAULT), "regret") for name in (AVERAGE, BASE)), *ends])
    header = ("true law: kept, regret", *(f"at {c:g}" for c in CONFIDENCES), "regret of the average", "of the base")
    return table((*header, "of the best single law", "of the worst"), rows, numbers=7)


def trial() -> Plan:
    """The plan of the question that docs/decision.md shows."""
    serving = ServingOptions(gpu="h100-sxm", max_num_seqs=MOST_SEQS, max_tpot=0.03, kv_heads=KV_HEADS)
    deployment, law = serving.deployment(), find_law(ENSEMBLE)
    question = BoundOptions(budget=2.2e22).question(law, deployment, kv_heads=KV_HEADS)
    return make_plan(law, question, deployment, serving.open_latency(deployment))


def trial_lines(plan: Plan) -> list[str]:
    """What each law would choose, and the plan itself: regret under every law, and how surely as good as the base."""
    laws, model = plan.laws, plan.recommendation.model
    weights = np.array([view.weight for view in laws])
    choices = [
        (f"{v.law}: E = {v.experts:g}, {billions(v.n_params_active)} active", v.cost_ratio,
         [v.elsewhere[under.law].regret for under in laws], [v.elsewhere[under.law].probability for under in laws])
        for v in laws if v.elsewhere is not None
    ]  # fmt: skip
    name = f"this plan: E = {model.experts:g}, {billions(model.n_params_active)} active"
    choices.append((name, model.cost_ratio, [v.regret for v in laws], [v.probability for v in laws]))
    rows: list[list[str]] = []
    for name, cost, regrets, probabilities in choices:
        lost, kept = np.array([r or 0.0 for r in regrets]), np.array(probabilities)
        each = [f"{percent(r)} ({percent(p)})" for r, p in zip(lost, kept, strict=True)]
        rows.append(
            [
                name,
                percent(cost or np.nan),
                *each,
                percent(weights @ lost),
                percent(lost.max()),
                percent(weights @ kept),
            ]
        )
    header = ("the choice of", "cost of base", *(f"under {v.law}" for v in laws), "mean regret", "worst", "kept")
    return table(header, rows, numbers=len(header) - 1)


def percent(share: SupportsFloat) -> str:
    """A share as whole percents."""
    return f"{100 * float(share):.0f}%" if np.isfinite(float(share)) else "-"


def billions(parameters: float | None) -> str:
    """A size."""
    return f"{(parameters or np.nan) / 1e9:.3g}B"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int) -> list[str]:
    """A table as Markdown, its last columns aligned at the right."""
    rules = ["---"] * (len(header) - numbers) + ["---:"] * numbers
    return [f"| {' | '.join(cells)} |" for cells in (header, rules, *rows)]


def write(parts: dict[str, list[str]]) -> None:
    """The computed parts of docs/decision.md."""
    sys.path.insert(0, str(HERE.parent / "scripts"))
    pages = importlib.import_module("pages")
    pages.write("decision.md", pages.filled("decision.md", parts))


if __name__ == "__main__":
    main()

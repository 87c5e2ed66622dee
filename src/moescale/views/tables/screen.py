"""The first screen of a plan, at most eighteen lines: the choices with published models beside them, what is decided and what is open."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from moescale.options.law import DEFAULT_LAW, PLANNED_SHAPE, SHAPES, shape_name
from moescale.options.serving import PLANNED_TPOT_S
from moescale.planning.recommend import FOR_NOTHING
from moescale.planning.scores import stated_score
from moescale.planning.shapes import repaid_after
from moescale.serving.accuracy import calibrated, limits_missed
from moescale.units import format_count, format_flops, format_seconds, format_usd, plural
from moescale.views.tables import MARK, Cell, Column, Table, beyond_notes, gpus_text, percentage, table_of, ttft_doubt

if TYPE_CHECKING:
    from moescale.planning.candidate import Candidate, Trained
    from moescale.planning.plan import Plan
    from moescale.planning.shapes import ShapeChoice
    from moescale.planning.target import TargetSpend
    from moescale.planning.training_use import TrainingUse
    from moescale.training.step_time import StepError

ALIKE = 0.06  # relative difference in size of two rows of one expert count that are shown as one
NEAR = 0.05  # relative difference in dollars below which the cheapest model is no other choice
MOST_LINES, MOST_ROWS, MOST_KNOWN = 18, 9, 3
BINDS = 0.99  # of the most tokens: what trains longer is bounded by them
SCORED = ("mmlu", "hellaswag", "arc_challenge", "average")  # tasks that are shown; all with --json
MOST_WITHIN = 0.15  # half width of a score's 90% interval: a wider one decides nothing
TOO_SLOW = "Too slow for interactive use: "  # how the caveat of a slow server begins
TRAINER = ("--recipe", "--schedule", "--batch-tokens", "--sequence-tokens", "--peak-lr")  # options of an export alone
OF_SOURCES = "labs unseen by the law"  # what draws of the default law are
UNLIKE = 1.25  # largest over smallest size that several laws choose alone, or FLOPs over a budget: more is said
LEAST_REPAID = 1e6  # served tokens: what is repaid by fewer costs no more
SURE = 0.9  # chance with which days or dollars are said to be enough
LEFT = 0.015  # of a budget: what is left over or spent beyond it is said
SWEEP_SHARE = 1e-2  # of a budget: what `design` is offered to settle an open choice


def budget_words(plan: Plan, *, flops_too: bool = False) -> str:
    """The budget as it was stated, with the FLOPs that days or dollars buy where these are asked for."""
    days, gpus, usd = (plan.asked.get(name) for name in ("max_days", "train_gpus", "max_training_usd"))
    flops = f"{format_flops(plan.budget_flops)} FLOPs"
    stated = [f"{days:g} days on {gpus:g} GPUs"] if isinstance(days, float) and isinstance(gpus, float) else []
    stated += [format_usd(usd)] if isinstance(usd, float) else []
    return f"{' and '.join(stated)}{f' ({flops})' if flops_too else ''}" if stated else flops


def question_line(plan: Plan) -> str:
    """What was asked: budget, GPU and format, latency limits, request."""
    asked = plan.asked
    served, dollars = asked.get("lifetime_tokens"), asked.get("max_total_usd")
    parts = [budget_words(plan)]
    if plan.of_life and isinstance(served, float):
        as_good = [f"as good as {asked['budget_of']}"] if "budget_of" in asked else parts
        stated = [f"{format_usd(dollars)} in all"] if isinstance(dollars, float) else as_good
        parts = [f"{format_count(served)} served tokens", *stated]
    caps = {
        "max_active_params": "active",
        "max_total_params": "total without embeddings",
        "unique_tokens": "unique tokens",
    }
    for name, words in caps.items():
        if isinstance(value := asked.get(name), float):
            parts.append(f"{'' if name == 'unique_tokens' else '<= '}{format_count(value)} {words}")
    if plan.objective == "loss":
        parts.append("lowest loss")
    tokens, tpot_s, ttft_s = (asked.get(name) for name in ("max_tokens", "max_tpot_s", "max_ttft_s"))
    if isinstance(tokens, float) and plan.decision.model.tokens > BINDS * tokens:
        parts.append(f"<= {format_count(tokens)} tokens")
    weights = asked.get("weights")
    parts.append(f"{plan.gpu} {weights}" if isinstance(weights, str) else plan.gpu)
    if isinstance(tpot_s, float):
        parts.append(f"TPOT <= {format_seconds(tpot_s)} ({1.0 / tpot_s:.3g} tok/s a user)")
    else:
        parts.append("no limit of TPOT")
    if isinstance(ttft_s, float):
        parts.append(f"TTFT <= {format_seconds(ttft_s)}")
    if asked.get("disaggregated"):
        parts.append("disaggregated")
    parts.append(f"{plan.prompt_tokens:g} in / {plan.output_tokens:g} out")
    family = asked.get("family")
    own = [] if plan.law == DEFAULT_LAW else [f"law {plan.law}"]
    stated = 1.0 not in _considered(plan)  # then one shape is planned, which nothing else names
    own += (
        []
        if plan.shapes or (family == SHAPES[PLANNED_SHAPE] and not (stated and plan.law == DEFAULT_LAW))
        else [f"shape {shape_name(str(family))}"]
    )
    return "; ".join((f"For {', '.join(parts)}", *own))


def best_dense(plan: Plan) -> Trained | None:
    """The dense model of the lowest loss for the budget; None where it was not asked about, is too large, or the baseline.

    Nor in a shape that is not the default law's: the best dense model of the default one serves for less.
    """
    if plan.law == DEFAULT_LAW and plan.asked.get("family") != SHAPES[PLANNED_SHAPE]:
        return None
    limits = [
        value for name in ("max_active_params", "max_total_params") if isinstance(value := plan.asked.get(name), float)
    ]
    dense = (c for c in plan.loss_optimal if c.experts == 1.0 != plan.base_experts)
    return next((c for c in dense if c.n_params <= min(limits, default=c.n_params)), None)


def _choices(plan: Plan, most: int) -> list[tuple[str, Trained]]:
    """So many rows by name, the first named where there is no room for all, in the order of a screen."""
    chosen, rivals = plan.decision.model, plan.decision.rivals
    knee, better, cheapest = plan.choices.balanced, plan.choices.quality, plan.choices.cheapest
    at_knee = knee is not None and not plan.of_life and _same(knee, chosen)
    named: list[tuple[int, str, Trained | None]] = [(3, "> recommended, knee" if at_knee else "> recommended", chosen)]
    if not plan.is_baseline:
        match = next((c for c in plan.known if c.name == plan.base_name), None)
        if (
            match is not None
            and plan.of_life
            and plan.lifetime is not None
            and plan.lifetime.least_training is not None
        ):
            match = replace(match, total_usd=plan.lifetime.least_training.total_usd)
        of = f" ({plan.base_name.rpartition(' of ')[2]})" if " of " in plan.base_name else ""
        label = f"  {'dense ' if plan.base_experts == 1 else ''}baseline{of}"
        label = label if plan.base_name.startswith("the ") else f"  {plan.base_name} (baseline)"
        bought = "match" not in plan.asked and {"max_training_usd", "max_days"} & plan.asked.keys()
        label += " in bf16" if bought and plan.training and plan.training.precision else ""
        label += "" if plan.of_life else _more_flops(plan, match or plan.built_base)
        row = with_life(plan, match or plan.built_base)
        named.append((1, label, row if plan.base_n_experts is None else replace(row, experts=plan.base_n_experts)))
    if plan.least_training:
        named.append((6, "  least spend", plan.least_training[0]))
    label = "  also open" if plan.decision.undecided else "  next best"
    also = [(2 if c.experts < chosen.experts else 4, label, c) for c in rivals]
    known = [(8, f"  {c.name}{_more_flops(plan, c)}", c) for c in plan.known if c.name != plan.base_name]
    asked_for = known[:MOST_KNOWN] if len(known) > 1 else []  # as --against names them
    named += [*asked_for, *also[:1]]
    by_price = not plan.of_life and plan.objective not in ("loss", "quality")
    named += [(7, "  lower loss", better)] if by_price else []
    named += [*(also[1:][-1:] if plan.decision.undecided else []), *known[len(asked_for) : MOST_KNOWN]]
    built = {c.experts for _, _, c in (*named, *also) if c is not None and c not in plan.known and c is not better}
    if not by_price:
        more = (c for c in _rows(plan) if c.experts > chosen.experts and c.experts not in built)
        named.append((7, "  more experts", min(more, key=lambda c: c.experts, default=None)))
    else:
        saves = cheapest is not None and cheapest.usd_per_mtok < (1.0 - NEAR) * chosen.usd_per_mtok
        named.append((6, "  knee", None if at_knee else knee))
        named.append((5, "  cheapest", cheapest if saves and cheapest and cheapest.experts not in built else None))
    fewer = (c for c in _rows(plan) if c.experts < chosen.experts and c.experts not in built)
    named += [(0, "  best dense", best_dense(plan)), *also[1:], *known[MOST_KNOWN:]]
    named.append((2, "  fewer experts", max(fewer, key=lambda c: c.experts, default=None)))
    kept: list[tuple[int, str, Trained]] = []
    for place, name, row in named:
        again = row is None or (place in (2, 4, 5, 6, 7) and any(_same(row, c) for at, _, c in kept if at != 8))
        if row is not None and not again:
            kept.append((place, name, row))
    by_place = sorted(kept[:most], key=lambda each: (each[0], each[2].experts if each[0] in (2, 4) else 0.0))
    return [(name, row) for _, name, row in by_place]


def _more_flops(plan: Plan, model: Trained) -> str:
    """The training FLOPs of a row over those of the recommended model, where they are others and no dollars say so."""
    if model.training_usd is not None:
        return ""
    times = model.training_flops / plan.decision.model.training_flops
    return f", {times:.2g}x FLOPs" if max(times, 1.0 / times) > UNLIKE else ""


def with_life(plan: Plan, base: Trained) -> Trained:
    """A published baseline with the dollars of its life, where lives decide."""
    own = plan.lifetime.least_training if plan.of_life and plan.lifetime else None
    if own is not None and "max_total_usd" in plan.asked:
        return own
    return base if own is None or "match" not in plan.asked else replace(base, total_usd=own.total_usd)


def _rows(plan: Plan) -> list[Trained]:
    """The model of each expert count that answers, as built: of the whole life those near the best, which are its rivals."""
    return [*plan.decision.rivals] if plan.of_life else [*plan.built]


def _same(one: Trained, other: Trained) -> bool:
    return one.experts == other.experts and abs(one.n_params / other.n_params - 1.0) < ALIKE


def choices_table(plan: Plan, most: int = MOST_ROWS) -> Table:
    """The choices and published models as rows, `most` at most, all as built."""
    rows = _choices(plan, most)
    cells: list[Cell[tuple[str, Trained]]] = [
        (Column("", text=True), lambda r: r[0]),
        (Column("E"), lambda r: _count(getattr(r[1], "n_experts", None) or r[1].experts)),
        (Column("active"), lambda r: format_count(r[1].n_params_active)),
        (Column("total"), lambda r: format_count(r[1].n_params_total)),
        (Column("tokens"), lambda r: format_count(r[1].tokens)),
        (Column("loss"), lambda r: f"{r[1].loss:.4f}{MARK if getattr(r[1], 'beyond_law', None) else ''}"),
        (Column("$/Mtok"), lambda r: "-" if r[1].usd_per_mtok is None else format_usd(r[1].usd_per_mtok)),
        (Column("GPUs"), lambda r: gpus_text(r[1].gpus, r[1].attention_dp, r[1].prefill_gpus)),
        (Column("TPOT", rank=3), lambda r: "-" if r[1].tpot_s is None else format_seconds(r[1].tpot_s)),
        _training_cell(plan),
    ]
    if plan.of_life:
        cells.append(
            (Column("life $", rank=1), lambda r: "-" if r[1].total_usd is None else format_usd(r[1].total_usd))
        )
    experts = tuple(model.experts for _, model in rows)
    return table_of(question_line(plan), rows, cells, experts=experts, notes=beyond_notes(plan.known))


def _training_cell(plan: Plan) -> Cell[tuple[str, Trained]]:
    """The training dollars of each row; the days where GPUs are stated without."""
    if (days := _days_per_usd(plan)) is not None:
        return Column("days", rank=2), lambda r: f"{r[1].training_usd * days:.3g}" if r[1].training_usd else "-"
    return Column("train $", rank=2), lambda r: format_usd(r[1].training_usd) if r[1].training_usd else "-"


def _days_per_usd(plan: Plan) -> float | None:
    """Days of training for a dollar on the GPUs that are stated; None where none are, or days are stated, too."""
    use, gpus = plan.training, plan.asked.get("train_gpus")
    if use is None or not use.usd or not use.gpu_days or not isinstance(gpus, float) or "max_days" in plan.asked:
        return None
    return use.gpu_days / use.usd / gpus


def facts(plan: Plan, options: str | None = None, rows: int = MOST_ROWS) -> list[tuple[str, str]]:
    """What is decided, open, likely, extrapolated, what training and prices cost and are worth, and the next command.

    `options` are those of the command line that asked, for the commands that are named; of the choices so many `rows` are shown.
    """
    best = plan.decision
    model, said = best.model, [("Decided", _decided(plan))]
    if best.undecided:
        said.append(("Open", _open(plan)))
    if model.probability_at_least_base is not None and not plan.is_baseline:
        limit = plan.asked.get("max_loss")
        goal = "to reach the baseline's loss" if limit is None else f"of a loss of at most {limit}"
        voting = len(plan.voting_laws)
        source = f"{voting} laws" if voting else OF_SOURCES if plan.law == DEFAULT_LAW else f"the draws of {plan.law}"
        if voting and model.probability_at_least_base > voting / (voting + 1):
            source += f"; trust at most {voting / (voting + 1):.0%}, as so few laws agree by chance"
        named = () if voting or plan.of_life else plan.laws
        agree = sum(view.probability >= 0.5 for view in named)
        source += f"; {agree} of {len(named)} named laws agree" if named else ""
        said.append(("Chance", f"{percentage(model.probability_at_least_base)} {goal}, over {source}"))
    better = None if plan.of_life or plan.objective in ("loss", "quality") else plan.choices.quality
    if better is not None and _dominates(better, model):
        chance = percentage(better.probability_at_least_base)
        said.append(
            (
                "But",
                f"{better.experts:g} experts cost no more at a lower loss, and reach the baseline's with {chance} only (--confidence)",
            )
        )
    life = with_life(plan, plan.built_base).total_usd
    if plan.of_life and "max_total_usd" not in plan.asked and life and model.total_usd and life < model.total_usd:
        said.append(
            (
                "But",
                f"the baseline's own life costs less, {format_usd(life)}: none that keeps its loss with this chance does",
            )
        )
    if (other := plan.unbounded) is not None:
        price, loss = other.usd_per_mtok / model.usd_per_mtok - 1.0, other.loss - model.loss
        whose = "" if plan.unbounded_shape is None else f" of {plan.unbounded_shape}, {_sizes(other)}"
        spent = "" if other.training_usd is None else f", training {format_usd(other.training_usd)}"
        said.append(("All counts", f"{other.experts:g} experts{whose}: cost {price:+.0%}, loss {loss:+.4f}{spent}"))
    if (other := plan.default_law) is not None:
        beyond = " (beyond this law's runs)" if other.experts in plan.excluded_experts else ""
        price = f"{format_usd(other.usd_per_mtok)}, loss {other.loss:.4f} here"
        said.append(("Default law", f"{other.experts:g} experts{beyond}, {_sizes(other)}: {price}"))
    if (sure := plan.target_spend) is not None:
        said.append((f"{sure.chance:.0%} chance", _surely(sure)))
    if scores := scores_text(plan):
        said.append(("Scores", scores))
    extrapolated = [note for note in best.caveats if note.startswith("Extrapolated: ")]
    said += [("Beyond runs", note.removeprefix("Extrapolated: ").rstrip(".")) for note in extrapolated]
    if plan.repeats_loss is not None:
        said.append(("Repeats", _repeats(plan, plan.repeats_loss)))
    if plan.shapes:
        least = min(choice.model.loss for choice in plan.shapes)
        said.append(("Shapes", "; ".join(_shape(plan, choice, least) for choice in plan.shapes) + _repaid(plan)))
    said.append(("Training", _training(plan)))
    if (use := plan.training) is not None and _is_unspent(use):
        said.append(("Unspent", f"{1.0 - use.budget_share:.0%} of the budget: {use.unused_because}"))
    if plan.of_life and model.serving_usd is not None:
        said.append(
            ("Life", f"{format_usd(model.training_usd or 0.0)} to train, {format_usd(model.serving_usd)} to serve")
        )
    said.append(("Price error", _price_error(plan)))
    rest = [note for note in best.caveats if note not in extrapolated]
    said += [("Too slow", note.removeprefix(TOO_SLOW).rstrip(".")) for note in rest if note.startswith(TOO_SLOW)]
    said.append(("Next", _next(plan, options)))
    hidden = len(_choices(plan, MOST_ROWS)) - rows
    told = [plural(count, what) for count, what in ((hidden, "row"), (len(rest), "caveat")) if count > 0]
    more = f"--details ({', '.join(told)})" if told else "--details"
    if "--shape" not in (options or ""):
        more += "; --shape all"
    life = "" if plan.of_life else "; --lifetime-tokens T"
    said.append(("More", f"{more}{life}; --export megatron"))
    return said


def _decided(plan: Plan) -> str:
    model, best = plan.decision.model, plan.decision
    sizes, tokens = (
        [getattr(c, name) for c in (model, *(best.rivals if best.undecided else ()))]
        for name in ("n_params_active", "tokens")
    )
    counts = _considered(plan)
    edge = " (most considered)" if len(counts) > 1 and model.experts == max(counts) else ""
    text = "" if best.undecided else f"{model.experts:g} experts{edge}, " if model.experts > 1 else "dense, "
    text += f"{_span(sizes)} active, {_span(tokens)} tokens"
    if isinstance(unique := plan.asked.get("unique_tokens"), float) and model.tokens > unique:
        text += f" ({model.tokens / unique:.1f} epochs)"
    alone = [view.n_params_active for view in plan.voting_laws if view.n_params_active is not None]
    if len(alone) > 1 and max(alone) > UNLIKE * min(alone):
        text += f" (its laws alone: {_span(alone)} active)"
    base = with_life(plan, plan.built_base)
    if plan.of_life and "max_total_usd" in plan.asked and base.total_usd is not None:
        return f"{text}; loss {model.loss - base.loss:+.4f} against the baseline, serving {_share(model, base)} of its price"
    if plan.of_life and model.total_usd is not None and base.total_usd is not None and not plan.is_baseline:
        return f"{text}; its life costs {model.total_usd / base.total_usd:.0%} of the baseline's"
    compared = {} if plan.is_baseline else {"baseline": plan.built_base.usd_per_mtok}
    compared["best dense"] = getattr(best_dense(plan), "usd_per_mtok", None)
    shares = [f"{model.usd_per_mtok / usd:.0%} of {whose}" for whose, usd in compared.items() if usd]
    return f"{text}; costs {', '.join(shares)}" if shares else text


def _share(model: Candidate, base: Trained) -> str:
    return "-" if base.usd_per_mtok is None else f"{model.usd_per_mtok / base.usd_per_mtok:.0%}"


def _open(plan: Plan) -> str:
    model, rivals = plan.decision.model, sorted(plan.decision.rivals, key=lambda c: c.experts)
    counts = sorted(c.experts for c in (model, *rivals))
    words = [
        f"{counts[0]:g} or {counts[-1]:g} experts" if len(counts) == 2 else f"{counts[0]:g} to {counts[-1]:g} experts"
    ]
    for c in {c.experts: c for c in (rivals[0], rivals[-1])}.values():
        price, loss = c.usd_per_mtok / model.usd_per_mtok - 1.0, c.loss - model.loss
        if plan.of_life and "max_total_usd" not in plan.asked and c.total_usd and model.total_usd:
            price = c.total_usd / model.total_usd - 1.0
        words.append(f"{c.experts:g} cost {0.0 if abs(price) < 0.005 else price:+.0%}, loss {loss:+.4f}")
    return "; ".join(words)


def _sizes(model: Candidate) -> str:
    return f"{format_count(model.n_params_active)} active, {format_count(model.tokens)} tokens"


def _count(experts: float) -> str:
    return f"{experts:g}" if experts == round(experts) else "-"  # a published baseline, as the family counts it


def _span(values: Sequence[float]) -> str:
    low, high = (format_count(end) for end in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _training(plan: Plan) -> str:
    use = plan.training
    if use is None or use.gpu_days is None or use.usd is None:
        return f"{format_flops(plan.decision.model.training_flops)} FLOPs"
    gpus = use.gpu_days / use.days if use.days else use.train_gpus or 1
    if gpus > 1:
        kind = "GPUs" if use.train_gpu == plan.gpu else f"x {use.train_gpu}"
        days = f"{use.gpu_days / gpus:.3g} days on {gpus:.0f} {kind}"
    else:
        days = f"{format_count(use.gpu_days)} GPU days{'' if use.train_gpu == plan.gpu else f' of {use.train_gpu}'}"
    fp8 = "" if use.fp8_usd is None else f" (fp8 {format_usd(use.fp8_usd)})"
    text = f"{format_usd(use.usd)}{fp8}, {days}"
    dollars = plan.asked.get("max_training_usd")
    share = use.usd / dollars if plan.of_life and isinstance(dollars, float) else use.budget_share
    if use.budget_of is None and abs(share - 1.0) > LEFT and not _is_unspent(use):
        text += f", {share:.0%} of the budget"
    if use.error is None or use.mfu is None:
        return f"{text}, MFU {use.mfu_words}" if use.mfu_words else text
    if use.trainer is not None:
        text += f", {use.trainer}"
    uneven = f", routing to +{use.error.real_routing - 1.0:.0%}" if use.error.real_routing else ""
    precision = f" ({use.precision} over the bf16 peak)" if use.precision else ""
    return f"{text}, MFU {use.mfu:.2f}{precision}; {_kept(plan, use, use.error)}{uneven}"


def _is_unspent(use: TrainingUse) -> bool:
    """Whether some of a stated budget is left over for a reason that is known."""
    return use.unused_because is not None and not use.spent and use.budget_of is None


def _kept(plan: Plan, use: TrainingUse, error: StepError) -> str:
    """The chance that a run stays within its days or dollars by the error of predicted times, and what it keeps SURE of the time.

    The spread where none are stated.
    """
    days, usd, total = (plan.asked.get(name) for name in ("max_days", "max_training_usd", "max_total_usd"))
    serving, longer = plan.decision.model.serving_usd or 0.0, error.times(SURE)
    limits: list[tuple[float, str, str]] = []
    if isinstance(days, float) and use.days is not None:
        limits.append((days / use.days, f"{days:g} days", f"{use.days * longer:.3g} days"))
    if isinstance(usd, float) and use.usd:
        limits.append((usd / use.usd, format_usd(usd), format_usd(use.usd * longer)))
    if plan.of_life and isinstance(total, float) and use.usd:
        limits.append(((total - serving) / use.usd, format_usd(total), format_usd(serving + use.usd * longer)))
    if not limits:
        return f"spread {error.spread:.2f}x"
    times, words, surely = min(limits)
    return f"in {words} {error.kept(times):.0%}, in {surely} {SURE:.0%}, without restarts"


def _dominates(one: Candidate, other: Trained) -> bool:
    usd = other.usd_per_mtok
    return (
        usd is not None
        and one.usd_per_mtok <= usd
        and one.loss < other.loss
        and one.probability_at_least_base is not None
    )


def _shape(plan: Plan, choice: ShapeChoice, least: float) -> str:
    """The model of one shape, with what training costs, also to the `least` loss of all shapes."""
    model, usd = choice.model, choice.training_usd
    text = f"{choice.shape} E={model.experts:g} {format_usd(model.usd_per_mtok)}, loss {model.loss:.4f}"
    if model.total_usd is not None:
        return f"{text}, life {format_usd(model.total_usd)}"
    if usd is None:
        return text
    longer = "does not" if choice.usd_at_loss is None else f"{format_usd(choice.usd_at_loss)} to"
    days = _days_per_usd(plan)
    text += f", training {format_usd(usd)}{'' if days is None else f' in {usd * days:.3g} days'}"
    return f"{text} ({longer} reach {least:.4f})" if model.loss > least + FOR_NOTHING else text


def _repeats(plan: Plan, more: float) -> str:
    """What repeated tokens cost: loss of this model, and the price beside that of fresh tokens."""
    ends, fresh = plan.repeats_loss_interval, plan.fresh_usd_per_mtok
    text = f"{more:+.4f} loss{f' (90% of draws: {ends[0]:.4f} to {ends[1]:.4f})' if ends else ''}"
    return text if fresh is None else f"{text}; a model of fresh tokens would serve for {format_usd(fresh)}"


def _repaid(plan: Plan) -> str:
    """After how many output tokens the cheaper of the first two shapes has repaid what its training costs more."""
    cheaper, dearer = sorted(plan.shapes[:2], key=lambda choice: choice.model.usd_per_mtok)
    after = repaid_after(cheaper, dearer)
    return (
        f" ({cheaper.shape} repaid by {format_count(after)} output tokens)"
        if after and LEAST_REPAID <= after < math.inf
        else ""
    )


def _considered(plan: Plan) -> tuple[float, ...]:
    """The expert counts that were asked about."""
    counts = plan.asked.get("experts")
    return tuple(float(e) for e in counts if isinstance(e, int | float)) if isinstance(counts, list | tuple) else ()


def late_tpot_s(plan: Plan) -> float | None:
    """The TPOT of the model by the known error of its kind, where it misses the limit; None where it does not, or is not known."""
    limit_s = plan.asked.get("max_tpot_s")
    tpot_s = plan.decision.model.tpot_s, limit_s if isinstance(limit_s, float) else None
    return limits_missed(plan.accuracy, (None, None), tpot_s).get("TPOT")


def _price_error(plan: Plan) -> str:
    a, model = plan.accuracy, plan.decision.model
    right = calibrated(model.usd_per_mtok, a)
    if a is None or right is None:
        return f"unknown: no servings of this kind were compared; full servers, {format_usd(plan.usd_per_gpu_hour)} a GPU hour"
    low, high = (format_usd(end) for end in right.interval)
    slow = "" if (late := late_tpot_s(plan)) is None else f", TPOT {format_seconds(late)}"
    ttft_s = "" if model.ttft_s is None else f" {format_seconds(model.ttft_s)}"
    ttft = f"{slow}, TTFT{ttft_s} ({1.0 / a.ttft.geometric_mean:.2g}x)" if a.ttft else slow
    ttft += ttft_doubt(a, plan.asked.get("max_ttft_s"))
    return f"corrected {format_usd(right.usd_per_mtok)} ({low} to {high}){ttft}: {a.n} servings of {a.kind}"


def _surely(spend: TargetSpend) -> str:
    """The model that has the target score with the chance that is asked for, or the highest chance."""
    model = spend.model
    if model is None or model.training_usd is None:
        stated = "no model that has it can be trained on the stated GPUs"
        return stated if spend.highest_chance >= spend.chance else f"out of reach: {spend.highest_chance:.0%} at most"
    served = f"{format_usd(model.usd_per_mtok)}/Mtok"
    return f"{format_usd(model.training_usd)}: {plural(model.experts, 'expert')}, {_sizes(model)}, {served}"


def _chance_of_target(plan: Plan, model: Candidate) -> str:
    """The chance that a model has the score that is the target; empty without one."""
    if not isinstance(target := plan.asked.get("target"), str):
        return ""
    task, wanted = stated_score(target)
    found = (model.scores or {}).get(task)
    return f"{found.at_least(wanted):.0%} for {wanted:g} or more" if found else ""


def scores_text(plan: Plan) -> str:
    """Expected benchmark scores, the target's or those whose interval decides something; empty without any."""
    scores, target = plan.decision.model.scores, str(plan.asked.get("target")).partition("=")[0].strip().lower()
    if not scores:
        return ""
    if target in scores:
        found, (low, high) = scores[target], scores[target].interval
        chance = _chance_of_target(plan, plan.decision.model)
        least = _chance_of_target(plan, plan.least_training[0]) if plan.least_training else ""
        least = f", {least.partition(' ')[0]} at the least spend" if least else ""
        return f"{target} {found.estimate:.2f} (ranked), 90% {low:.2f} to {high:.2f}; {chance}{least}"
    within = {task: (scores[task].interval[1] - scores[task].interval[0]) / 2.0 for task in SCORED}
    kept = [task for task in SCORED if within[task] <= MOST_WITHIN]
    shown = ", ".join(f"{task} {scores[task].estimate:.2f}" for task in kept)
    return f"{shown}; each within {max(within[task] for task in kept):.2f} (ranked)" if kept else ""


def _next(plan: Plan, options: str | None) -> str:
    """The command that goes on from here, as it runs: all shapes where one alone was planned, a sweep where the choice is open, else the export."""
    alone = plan.law == DEFAULT_LAW and not plan.shapes and not plan.of_life
    if options and alone and not any(name in options for name in ("--shape", "--kv-heads", "--disaggregated")):
        return f"moescale plan {options} --shape all"
    if plan.decision.undecided:
        if plan.shapes and options:  # a sweep is of one shape
            options = re.sub(r" *--shape[ =]all", "", options) + f" --shape {plan.shapes[0].shape}"
        budget = f"moescale design --budget {format_flops(plan.budget_flops * SWEEP_SHARE)}"
        return " ".join((budget, *of_design(options or ""), *_relaxed(plan, options or "")))
    return f"moescale plan {options} --export megatron -o launch" if options else "--export megatron -o launch"


def _relaxed(plan: Plan, options: str) -> list[str]:
    """The limit of TPOT that a plan took because no model keeps the default."""
    tpot_s = plan.asked.get("max_tpot_s")
    if tpot_s == PLANNED_TPOT_S or "--max-tpot" in options:
        return []
    return ["--max-tpot", f"{tpot_s * 1e3:g}ms" if isinstance(tpot_s, float) else "none"]


def of_design(options: str) -> Iterator[str]:
    """The options of a plan as `design` takes them: its own budget is the sweep's."""
    words = iter(shlex.split(options))
    for word in words:
        name, stated, value = word.partition("=")
        if name in TRAINER:
            _ = stated or next(words, "")
        elif name == "--budget":
            yield shlex.quote(f"--plan-budget{stated}{value}")
        else:
            yield shlex.quote(word)

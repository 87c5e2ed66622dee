"""What the first screen of a plan says below its rows, in eighteen lines with them: what is decided, open and likely, and the next command."""

from __future__ import annotations

import math
import re
import shlex
import statistics
from collections.abc import Container, Iterator, Sequence

from moescale.models.recipe import most_trained_tokens
from moescale.options.law import DEFAULT_LAW
from moescale.options.serving import PLANNED_TPOT_S
from moescale.planning.beside import APART, FASTER, PRICE_STEP, SLOWER
from moescale.planning.candidate import Candidate, Trained
from moescale.planning.decision import LawView
from moescale.planning.plan import Plan
from moescale.planning.rationale import DECIDES, EXTRAPOLATED, MOST_SWEEP, beyond_runs
from moescale.planning.recommend import FOR_NOTHING
from moescale.planning.scores import letters, measured_scores, nearest_score, stated_score
from moescale.units import format_count, format_flops, format_seconds, format_usd, plural
from moescale.views.tables import ends_text, percentage
from moescale.views.tables.choices import (
    LOWER_LOSS,
    MOST_ROWS,
    UNLIKE,
    asked_number,
    at_other_chances,
    best_dense,
    by_volume,
    chance_label,
    choices,
    considered,
    days_per_usd,
    n_against,
    of_fixed_dollars,
    repaid_by,
    sizes_text,
    with_life,
)
from moescale.views.tables.spending import MOSTLY, limits_text, price_error, training_text, unspent

MOST_LINES = 18  # of the screen
# Characters of its last line beside which another option has room, and of what `--details` has for which there is room.
MOST_MORE, MOST_NAMED = 68, 42
QUALITY = "what the rest of a budget buys"  # a part of a line
SCORED = ("mmlu", "hellaswag", "arc_challenge", "average")  # tasks that are shown; all with --json
MOST_WITHIN = 0.15  # half width of a score's 90% interval: a wider one decides nothing
TOO_SLOW = "Too slow for interactive use: "  # how the caveat of a slow server begins
TRAINER = ("--recipe", "--schedule", "--batch-tokens", "--sequence-tokens", "--peak-lr")  # options of an export alone
OF_SOURCES = "unseen labs"  # what draws of the default law are
SLOWLY = 0.75  # of the price, at most: a price at a slower TPOT that is said
OUTPUT_SHARE = 0.5  # of the active parameters: an output layer that is larger is said
FAR = 4.0  # times the largest fitted: the nearer of the distances at which fits were tested apart (docs/evidence/own-law.md)
# Of a budget, what `design` is offered to settle an open choice, and at most where the runs at hand are large: its longest run, a share
# LARGEST_SHARE of it, is then LONGER than theirs.
SWEEP_SHARE, LONGER = 1e-2, 2.0


def facts(
    plan: Plan, options: str | None = None, rows: int = MOST_ROWS, without: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """What is decided, open, likely, extrapolated, what training and prices cost and are worth, and the next command.

    `options` are those of the command line that asked, for the commands that are named; of the choices so many `rows` are shown, and
    of the facts none of those named by `without`.
    """
    caveats = [note for note in plan.decision.caveats if not note.startswith(EXTRAPOLATED)]
    shown = {name for name, _ in choices(plan, rows)}
    said = [
        ("By volume", by_volume(plan, rows)),
        ("Decided", _decided(plan)),
        ("Open", _open(plan)),
        ("Chance", _chance(plan)),
        *(("But", text) for text in _against(plan, shown)),
        ("All counts", _unbounded(plan)),
        ("No bound", _without_bounds(plan)),
        ("Default law", _default_law(plan)),
        *_surely(plan),
        ("Scores", scores_text(plan)),
        ("Beyond runs", _beyond_runs(plan)),
        ("Vocabulary", _vocabulary(plan)),
        ("Repeats", _repeats(plan)),
        ("Shapes", _shapes(plan)),
        ("Training", training_text(plan)),
        *(("Unspent", text) for text in unspent(plan, lower_loss=LOWER_LOSS in shown or QUALITY in without)),
        ("Limits", limits_text(plan)),
        ("Price error", price_error(plan)),
        ("This model", _otherwise(plan)),
        *(("Too slow", note.removeprefix(TOO_SLOW).rstrip(".")) for note in caveats if note.startswith(TOO_SLOW)),
        ("Next", _next(plan, options)),
    ]
    said = [(name, text) for name, text in said if text]
    kept = [(name, text) for name, text in said if name not in without]
    names = dict.fromkeys(name for name, _ in said if name in without)
    counts = {"row": len(choices(plan, MOST_ROWS)) - rows, "caveat": len(caveats)}
    hidden = [plural(count, name) for name, count in counts.items() if count > 0]
    exported = any(name == "Next" and "--export" in text for name, text in kept)
    return [*kept, ("More", _more(plan, options or "", hidden, [*names], exported=exported))]


def spare(plan: Plan, options: str | None) -> list[tuple[str, int]]:
    """Facts that go, in this order, where fewer than so many rows have room."""
    asked = n_against(plan) + len(at_other_chances(plan))
    asked -= plan.less_sure_between is not None  # which goes before other lines do
    asked += "target" in plan.asked and bool(plan.least_training)  # with the least spend
    asked += plan.objective == "serve" and plan.training is not None and plan.training.left_over
    first = ("Shapes",) if "target" in plan.asked else ("Scores", "Shapes")
    then = ("Shapes", "Scores", "Vocabulary", "This model", QUALITY, "Repeats", "By volume", "Default law")
    order = [*((name, max(4, 2 + asked)) for name in first), *((name, 2 + asked) for name in then)]
    order += [(name, 2 + n_against(plan)) for name in ("Unspent", "But")]
    kept = {"Shapes": plan.shapes and "--shape" in (options or ""), "Repeats": plan.more_epochs is not None}
    return [(name, least) for name, least in order if not kept.get(name)]


def _more(plan: Plan, options: str, hidden: list[str], names: list[str], *, exported: bool) -> str:
    """What `--details` has, and the options that ask for more, as many as a line has room for."""
    use, less_sure = plan.training, plan.more_sure is not None and plan.confidence is not None
    sure = f" T --confidence {plan.confidence:g}" if less_sure else ""
    listed = ", ".join([*hidden, *names])
    if len(listed) >= MOST_NAMED - len(sure):
        listed = ", ".join([*hidden, plural(len(names), "line")])
    apart = "This model" in names and plan.apart_usd_per_mtok
    if apart and apart < SLOWLY * plan.decision.model.usd_per_mtok:
        more = f"--details; --disaggregated {format_usd(apart)}"
    else:
        more = f"--details: {listed}" if listed else "--details"
    left = plan.objective == "serve" and use is not None and use.left_over and use.budget_share < MOSTLY
    in_bf16 = use is None or use.precision is None  # as files for a trainer are
    offers = {
        "--shape all": "--shape" not in options,
        f"--lifetime-tokens{sure}": not plan.of_life,
        "--objective quality": left and plan.choices.quality is None,
        "--weights fp8": plan.fp8_usd_per_mtok is not None and "--weights" not in _otherwise(plan),
        "--export megatron" if in_bf16 else "exports train in bf16": not exported,
    }
    for offer in (offer for offer, offered in offers.items() if offered):
        more += f"; {offer}" if len(more) <= MOST_MORE else ""
    return more


def _against(plan: Plan, shown: Container[str]) -> Iterator[str]:
    """What speaks against the choice, without what has a row that is shown."""
    model = plan.decision.model
    better = plan.choices.quality if not plan.of_life and plan.objective not in ("loss", "quality") else None
    sure = None if better is None else better.probability_at_least_base
    no_dearer = better is not None and better.usd_per_mtok <= model.usd_per_mtok and better.loss < model.loss
    if better is not None and no_dearer and sure is not None and sure < (plan.confidence or 1.0):
        which = (
            f"{better.experts:g} experts" if better.experts > 1 else f"dense models of {format_count(better.n_params)}"
        )
        yield f"{which} cost no more at a lower loss, and reach the baseline's with {sure:.0%} only (--confidence)"
    others = {c.probability_at_least_base or 0.0: c for c in at_other_chances(plan) if c is not plan.less_sure_between}
    wider = "" if plan.wider_options is None else f" {plan.wider_options}"
    if hidden := [
        f"{chance:.0%} costs {format_usd(c.usd_per_mtok)} (--confidence {chance:g}{wider})"
        for chance, c in others.items()
        if chance_label(plan, c) not in shown
    ]:
        yield "; ".join(hidden)
    if (faster := plan.faster_usd_per_mtok) and faster > PRICE_STEP * model.usd_per_mtok:
        limit, other, instead = asked_number(plan, "max_tpot_s") or 0.0, plan.faster_choice, ""
        if other is not None:
            instead = f", where {_experts_and_sizes(other)} take {format_usd(other.usd_per_mtok)}"
        yield f"a step of the price: {format_usd(faster)} at a TPOT of {format_seconds(FASTER * limit)}{instead}"
    served, spent = _as_released_usd(plan), model.total_usd or 0.0
    if served is not None and served < spent:
        yield f"serving {plan.base_name} as it is released costs {format_usd(served)} for these tokens"
    life, stated = with_life(plan, plan.built_base).total_usd, of_fixed_dollars(plan) or "max_loss" in plan.asked
    if plan.of_life and not stated and life and life < spent:
        yield f"the baseline's own life costs less ({format_usd(life)}); none that keeps its loss so surely does"


def _otherwise(plan: Plan) -> str:
    """The price of the same model with prefill and decode apart, at a slower TPOT and with fp8 weights, where these are much lower."""
    usd, limit, words = plan.decision.model.usd_per_mtok, asked_number(plan, "max_tpot_s") or 0.0, list[str]()
    if plan.apart_usd_per_mtok and plan.apart_usd_per_mtok < APART * usd:
        words.append(f"{format_usd(plan.apart_usd_per_mtok)} with prefill and decode apart")
    if plan.slower_usd_per_mtok and plan.slower_usd_per_mtok < SLOWLY * usd:
        words.append(f"{format_usd(plan.slower_usd_per_mtok)} at a TPOT of {format_seconds(SLOWER * limit)}")
    if plan.fp8_usd_per_mtok and plan.fp8_usd_per_mtok < SLOWLY * usd:
        words.append(f"{format_usd(plan.fp8_usd_per_mtok)} with --weights fp8")
    return ", ".join(words)


def _as_released_usd(plan: Plan) -> float | None:
    """Dollars of serving the released baseline over the life that is asked about; None without one."""
    base, life = plan.built_base.usd_per_mtok, plan.lifetime
    return base * life.lifetime_tokens / 1e6 if base and life and plan.of_life and plan.base_released else None


def _experts_and_sizes(model: Trained) -> str:
    return f"{plural(model.experts, 'expert')}, {sizes_text(model)}"


def _trained_for(model: Trained) -> str:
    return "" if model.training_usd is None else f", training {format_usd(model.training_usd)}"


def _without_bounds(plan: Plan) -> str:
    """The choice without bounds on sizes, and the chance that this one reaches the loss of that plan's baseline."""
    if (free := plan.without_bounds) is None:
        return ""
    other, loss = free.model, plan.decision.model.loss
    gain = f"{format_usd(other.usd_per_mtok)}, loss {other.loss:.4f} ({other.loss - loss:+.4f}){_trained_for(other)}"
    surely = f"; its baseline's loss is reached with {percentage(free.chance)} here" if free.chance else ""
    return f"{other.experts:g} experts, {sizes_text(other)}: {gain}{surely}"


def _unbounded(plan: Plan) -> str:
    """The choice among all expert counts, where it is better than the stated ones."""
    model, other = plan.decision.model, plan.unbounded
    if other is None:
        return ""
    price, loss = other.usd_per_mtok / model.usd_per_mtok - 1.0, other.loss - model.loss
    whose = "" if plan.unbounded_shape is None else f" of {plan.unbounded_shape}, {sizes_text(other)}"
    spent = _trained_for(other)
    if other.total_usd and model.total_usd:
        spent = f", life {format_usd(other.total_usd)} ({other.total_usd / model.total_usd - 1.0:+.0%})"
    if not plan.of_life and (after := repaid_by(other, model)):
        spent += f" (repaid by {format_count(after)} output tokens; --lifetime-tokens plans one for fewer)"
    return f"{other.experts:g} experts{whose}: cost {price:+.0%}, loss {loss:+.4f}{spent}"


def _default_law(plan: Plan) -> str:
    """What the default law would choose, and what decides between it and the law in use: errors on runs, or runs that are missing."""
    if (other := plan.default_law) is None:
        return ""
    shape = f" of {plan.default_law_shape}" if plan.default_law_shape else ""
    off = [f"{law} {100 * error:.2g}%" for law, error in (plan.errors_on_runs or {}).items()]
    errors = f"; errors on these runs: {', '.join(off)}" if off else ""
    where = "beyond its own runs" if plan.default_law_beyond else "inside its own runs"
    if plan.default_law_excluded:
        where = "beyond the runs of both" if plan.default_law_beyond else f"{where}, beyond these"
    tested = ": Next takes both as evidence" if plan.default_law_untested_by and not plan.of_life else ""
    sure = other.probability_at_least_base
    chance = "" if sure is None else f" ({sure:.0%} to reach the baseline's)"
    price = f"{format_usd(other.usd_per_mtok)}, loss {other.loss:.4f} here{chance}{_trained_for(other)}"
    return f"{plural(other.experts, 'expert')}{shape}, {sizes_text(other)}: {price}{errors}; {where}{tested}"


def _far_beyond(plan: Plan) -> bool:
    """Whether the model lies far beyond the runs of a law of own runs alone: of labs' larger runs a sweep teaches little."""
    own = plan.law != DEFAULT_LAW and not plan.of_labs  # nor are named laws shown where tokens repeat
    return own and max((plan.decision.over_fitted or {}).values(), default=1.0) > FAR


def _beyond_runs(plan: Plan) -> str:
    """How far beyond the runs of the law, without what the name of the line says."""
    beyond = beyond_runs(plan.decision.caveats)
    shorter = (
        beyond.replace(" the largest fitted", "").replace(", for the baseline", "; baseline").replace(" times", "x")
    )
    shorter = shorter.replace("(X ", "(expansion ").replace("labs varied sizes up to X", "swept to")
    if not beyond or plan.law == DEFAULT_LAW:
        return shorter
    own = "own runs alone decide little here" if _far_beyond(plan) else "other labs' runs decide"
    return f"{shorter}: {own}" if plan.of_labs or _far_beyond(plan) else shorter


def shown_chance(plan: Plan) -> tuple[float, float] | None:
    """The chance that the model reaches its goal as its laws can show it, and that of their draws; None without any."""
    sure, voting = plan.decision.model.probability_at_least_base, len(plan.voting_laws)
    if sure is None or plan.is_baseline:
        return None
    return (min(sure, voting / (voting + 1)) if voting else sure), sure


def _chance(plan: Plan) -> str:
    """With which chance the model reaches its goal, over what, and how many named laws agree; empty without any."""
    if (chances := shown_chance(plan)) is None:
        return ""
    (shown, sure), voting, limit = chances, len(plan.voting_laws), plan.asked.get("max_loss")
    goal = "for the baseline's loss" if limit is None else f"of a loss of at most {limit}"
    if limit is None and not plan.base_name.startswith("the "):  # a published model, whose data and recipe no law knows
        goal = f"to reach the loss that the law gives {plan.base_name} by size and tokens"
    over = f" in {OF_SOURCES}" if plan.law == DEFAULT_LAW else f", over the draws of {plan.law}"
    over = f", over {voting} laws" if voting else over
    over = f", the most that {voting} laws can show ({percentage(sure)} of their draws)" if sure > shown else over
    text, target = f"{percentage(shown)} {goal}{over}", plan.asked.get("target")
    more, regret = plan.more_sure, plan.decision.model.regret
    if more is not None and more.regret and regret:  # one line, beside the row of that chance
        higher = f"of {more.probability_at_least_base or 0.0:.0%} {more.regret.expected:.0%}"
        text = f"{percentage(shown)}{over} (regret {regret.expected:.0%}, {higher})"
    if isinstance(target, str) and (scored := _chance_of_target(plan, plan.decision.model)):
        text = f"{percentage(shown)} for its loss, {scored} for {target.replace('=', ' ')} ranked"  # of unseen labs
    named = () if voting or plan.of_life else plan.laws
    text += f"; {percentage(plan.usual_confidence)} is out of reach" if plan.usual_confidence else ""
    return f"{text}; {_agreement(named)}" if named else text


def _agreement(laws: Sequence[LawView]) -> str:
    """How many laws say that the model more likely than not reaches its goal, and what the others would choose."""
    against = [view for view in laws if view.probability < 0.5]
    choosing = [(view.experts, view.n_params_active) for view in against if view.experts and view.n_params_active]
    text, none = f"{len(laws) - len(against)} of {len(laws)} laws agree", len(against) - len(choosing)
    if choosing:
        counts, sizes = zip(*choosing, strict=True)
        size = "" if len({*counts}) > 1 else f", {format_count(float(f'{statistics.median(sizes):.2g}'))}"
        text += f", {len(choosing)} say{'s' * (len(choosing) == 1)} {ends_text(counts, '{:g}'.format)} experts{size}"
    return f"{text}, {none} find{'s' * (none == 1)} none" if none else text


def _decided(plan: Plan) -> str:
    model, best = plan.decision.model, plan.decision
    among = (model, *(best.rivals if best.undecided else ()))
    sizes, tokens = ([getattr(c, name) for c in among] for name in ("n_params_active", "tokens"))
    counts = considered(plan)
    more = f"{min(plan.excluded_experts, default=0.0):g} have more X than the law's runs"
    more = f"X {best.expansion:.3g}; {more}" if best.expansion else more
    edge = f" ({more})" if plan.excluded_experts else f" (of at most {model.experts:g})"
    edge = edge if len(counts) > 1 and model.experts == max(counts) else ""
    text = "" if best.undecided else f"{model.experts:g} experts{edge}, " if model.experts > 1 else "dense, "
    text += f"{ends_text(sizes, format_count)} active, {ends_text(tokens, format_count)} tokens"
    if (unique := asked_number(plan, "unique_tokens")) is not None and model.tokens > unique:
        epochs = sorted({f"{count / unique:.3g}" for count in (min(tokens), max(tokens))}, key=float)
        text += f" ({' to '.join(epochs)} epochs)"
    alone = [view.n_params_active for view in plan.voting_laws if view.n_params_active is not None]
    if len(alone) > 1 and max(alone) > UNLIKE * min(alone):
        text += f" (each law alone: {ends_text(alone, format_count)} active)"
    base = with_life(plan, plan.built_base)
    prices = [c.usd_per_mtok for c in among]
    if of_fixed_dollars(plan) and base.total_usd is not None:
        serving = "-" if base.usd_per_mtok is None else _shares(prices, base.usd_per_mtok)
        return f"{text}; loss {model.loss - base.loss:+.4f} against the baseline, serving {serving} of its price"
    if plan.of_life and model.total_usd is not None and base.total_usd is not None and not plan.is_baseline:
        lives = [c.total_usd for c in among if c.total_usd is not None]
        shares, served = f"{_shares(lives, base.total_usd)} of the baseline's", _as_released_usd(plan)
        if served is not None:  # whose training is paid
            shares = f"{_shares(lives, served)} of serving {plan.base_name} as released"
        return f"{text}; life costs {shares}"
    compared = {} if plan.is_baseline else {"baseline": plan.built_base.usd_per_mtok}
    compared["best dense"] = getattr(best_dense(plan), "usd_per_mtok", None)
    shares = [f"{_shares(prices, usd)} of {whose}" for whose, usd in compared.items() if usd]
    return f"{text}; costs {', '.join(shares)}" if shares else text


def _shares(dollars: Sequence[float], of_usd: float) -> str:
    """Dollars of the models that are still open as a share of others, one number or a range."""
    return f"{ends_text([100.0 * usd / of_usd for usd in dollars], '{:.0f}'.format)}%"


def _open(plan: Plan) -> str:
    """The expert counts that are open, and what separates them; empty where one is decided."""
    if not plan.decision.undecided:
        return ""
    model, rivals = plan.decision.model, sorted(plan.decision.rivals, key=lambda c: c.experts)
    counts = sorted(c.experts for c in (model, *rivals))
    most = " (the most)" if counts[-1] == max(considered(plan), default=0.0) else ""
    words = [f"{counts[0]:g} {'or' if len(counts) == 2 else 'to'} {counts[-1]:g}{most} experts"]
    what, of_loss = " serving price" if of_fixed_dollars(plan) else " cost", " loss"  # said of the first
    for c in {c.experts: c for c in (rivals[0], rivals[-1])}.values():
        price, loss = c.usd_per_mtok / model.usd_per_mtok - 1.0, c.loss - model.loss
        if plan.of_life and not of_fixed_dollars(plan) and c.total_usd and model.total_usd:
            price = c.total_usd / model.total_usd - 1.0
        regrets = [each.regret.expected for each in (model, c) if each.regret is not None]
        why = ", more regret" if price <= -0.005 and len(regrets) > 1 and regrets[0] < regrets[1] else ""
        words.append(f"{c.experts:g}{what} {0.0 if abs(price) < 0.005 else price:+.0%},{of_loss} {loss:+.4f}{why}")
        what = of_loss = ""
    return "; ".join(words)


def _shapes(plan: Plan) -> str:
    """The best model of each other shape, with what training costs, also to the least loss of all shapes; empty without."""
    least, words, days = min((c.model.loss for c in plan.shapes), default=0.0), list[str](), days_per_usd(plan)
    corrected = all(choice.price_factor for choice in plan.shapes)  # compared by the known errors of their kinds
    for choice in plan.shapes[1:]:
        model, usd, likely = choice.model, choice.training_usd, choice.likely_usd_per_mtok if corrected else None
        price = format_usd(model.usd_per_mtok) + ("" if likely is None else f" (corrected {format_usd(likely)})")
        text = f"{choice.shape} E={model.experts:g} {price}, loss {model.loss:.4f}"
        if model.total_usd is not None:
            text += f", life {format_usd(model.total_usd)}"
        elif usd is not None:
            longer = "does not" if choice.usd_at_loss is None else f"{format_usd(choice.usd_at_loss)} to"
            text += f", training {format_usd(usd)}{'' if days is None else f' in {usd * days:.3g} days'}"
            text += f" ({longer} reach {least:.4f})" if model.loss > least + FOR_NOTHING else ""
        words.append(text)
    return "; ".join((plan.shapes[0].shape, *words)) if plan.shapes else ""


def _vocabulary(plan: Plan) -> str:
    """What the output layer adds to a small model, whose size leaves it out; empty where that is little."""
    shape, active = plan.decision.architecture, plan.decision.model.n_params_active
    rows, added = shape.vocab_size, shape.vocab_size * shape.d_model
    text = f"{rows:,} rows: the output layer adds {format_count(added)} ({added / active:.0%}) to the active parameters"
    return f"{text}, in days, dollars and prices (--vocab-size)" if added > OUTPUT_SHARE * active else ""


def _repeats(plan: Plan) -> str:
    """What repeated tokens cost: loss of this model, the price beside that of fresh tokens, and what more epochs would give."""
    if (more := plan.repeats_loss) is None:
        return ""
    other, fresh = plan.more_epochs, plan.fresh_usd_per_mtok
    ends = plan.repeats_loss_interval if other is None else None  # of few epochs it is narrow
    text = f"{more:+.4f} loss by dense runs{f' (90%: {ends[0]:.4f} to {ends[1]:.4f})' if ends else ''}"
    text += "" if fresh is None else f"; fresh tokens: {format_usd(fresh)}"
    if other is None:
        return text
    tokens = repaid_by(other, plan.decision.model)
    after = "" if tokens is None else f", repaid by {format_count(tokens)} tokens"
    text += f"; {other.tokens / (asked_number(plan, 'unique_tokens') or math.nan):.3g} epochs"
    text += f" (--max-tokens {format_count(most_trained_tokens())}): {plural(other.experts, 'expert')}, "
    text += f"{format_count(other.n_params_active)} active, {format_usd(other.usd_per_mtok)}, loss {other.loss:.4f}"
    return f"{text}{_trained_for(other)}{after}"


def _surely(plan: Plan) -> Iterator[tuple[str, str]]:
    """The model that has the target score with the chance that is asked for, or the highest chance."""
    if (spend := plan.target_spend) is None:
        return
    model, text = spend.model, f"out of reach: {spend.highest_chance:.0%} at most"
    if model is not None and model.training_usd is not None:
        served = f"{format_usd(model.usd_per_mtok)}/Mtok"
        text = f"{format_usd(model.training_usd)}: {_experts_and_sizes(model)}, {served}"
    elif spend.highest_chance >= spend.chance:
        text = "no model that has it can be trained on the stated GPUs"
    yield f"{spend.chance:.0%} chance", text


def _chance_of_target(plan: Plan, model: Candidate) -> str:
    """The chance that a model has the score that is the target; empty without one."""
    if not isinstance(target := plan.asked.get("target"), str):
        return ""
    task, wanted = stated_score(target)
    found = (model.scores or {}).get(task)
    return f"{found.at_least(wanted):.0%}" if found else ""


def scores_text(plan: Plan) -> str:
    """Expected benchmark scores, the target's or those whose interval decides something; empty without any."""
    scores, target = plan.decision.model.scores, str(plan.asked.get("target")).partition("=")[0].strip().lower()
    if not scores:
        return ""
    if target in scores:
        found, (low, high) = scores[target], scores[target].interval
        cheap, least = plan.least_training[0] if plan.least_training else None, ""
        if cheap is not None and cheap.training_usd and (chance := _chance_of_target(plan, cheap)):
            spent = f"{format_usd(cheap.training_usd)}, {format_flops(cheap.training_flops)} FLOPs"
            least = f"; {chance} at the least spend ({spent})"
        model, measured = nearest_score(measured_scores(target), found.estimate)
        by_letters = f", {letters(target)[model]:.3f} by letters" if letters(target).get(model) else ""
        ranked = f"(ranked answers: {model} has {measured:.2f}{by_letters})"
        return f"{target} {found.estimate:.2f} {ranked}, 90% {low:.2f} to {high:.2f}{least}"
    within = {task: scores[task].within for task in SCORED}
    kept = [task for task in SCORED if within[task] <= MOST_WITHIN]
    shown = ", ".join(f"{task} {scores[task].estimate:.2f}" for task in kept)
    return f"{shown}; each within {max(within[task] for task in kept):.2f} (ranked)" if kept else ""


def _next(plan: Plan, options: str | None) -> str:
    """The command that goes on from here, as it runs: all shapes where one alone was planned, a fit of own runs beside those of other labs, a sweep where the choice is open, else the export."""
    alone = plan.law == DEFAULT_LAW and not plan.shapes and not plan.of_life
    if options and alone and not any(name in options for name in ("--shape", "--kv-heads")):
        return f"moescale plan {options} --shape all"
    beyond = plan.decision.over_fitted or {}
    far = _far_beyond(plan)
    sure = (plan.decision.likeliest or 0.0) >= DECIDES  # more than a sweep of that size mostly makes it
    if plan.default_law_untested_by and not plan.of_life:
        return f"moescale fit {shlex.quote(plan.default_law_untested_by)} --prior {DEFAULT_LAW} -o both.toml"
    open_ = (plan.decision.undecided and not sure) or far
    if open_ and not plan.of_life:  # a sweep says nothing of a life
        typed = re.sub(r" *--shape[ =]all", "", options or "")  # `design` takes the shape of its plan
        flops = plan.budget_flops
        sweep = flops * SWEEP_SHARE
        if far:
            from moescale.planning.sweep_runs import LARGEST_SHARE  # which takes long to load

            largest = flops / math.prod(max(beyond.get(name, 1.0), 1.0) for name in ("n_params", "tokens"))
            sweep = min(max(sweep, LONGER * largest / LARGEST_SHARE), flops * MOST_SWEEP)
        words = ["moescale design --budget", format_flops(sweep)]
        if "budget_of" in plan.asked or not any(name in typed for name in ("--budget", "--days")):
            words += ["--plan-budget", format_flops(flops)]
        words += of_design(typed)
        tpot_s = asked_number(plan, "max_tpot_s")
        if tpot_s != PLANNED_TPOT_S and "--max-tpot" not in typed:  # as no model keeps the default
            words += ["--max-tpot", "none" if tpot_s is None else f"{tpot_s * 1e3:g}ms"]
        return " ".join(words)
    if plan.training is not None and plan.training.precision is not None:  # files for a trainer are in bf16
        options = re.sub(r" *--train-precision[ =]\S+", "", options or "").strip()
    return f"moescale plan {options} --export megatron -o launch" if options else "--export megatron -o launch"


def of_design(options: str) -> Iterator[str]:
    """The options of a plan as `design` takes them: its own budget is the sweep's, and files for a trainer it does not write."""
    words = iter(shlex.split(options))
    for word in words:
        name, stated, value = word.partition("=")
        if name in TRAINER:
            _ = stated or next(words, "")
        elif name == "--budget":
            yield shlex.quote(f"--plan-budget{stated}{value}")
        else:
            yield shlex.quote(word)

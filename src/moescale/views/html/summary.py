"""A plan in plain sentences, for readers who neither train nor serve models."""

from __future__ import annotations

from moescale.planning.plan import Plan
from moescale.serving.accuracy import calibrated
from moescale.units import format_count, format_flops, format_usd
from moescale.views.tables.screen import SWEEP_SHARE, TOO_SLOW, late_tpot_s

BUDGET_BASE = "the loss-optimal "  # how the name of a baseline that is no known model begins


def sentences(plan: Plan) -> list[str]:
    """What is trained and what that takes, what serving costs, and the chance that the quality falls short."""
    model, use, base = plan.decision.model, plan.training, plan.base_name
    if base.startswith(BUDGET_BASE):
        base = f"the best {base.removeprefix(BUDGET_BASE).partition(' of ')[0]} of this budget"
    kind = f" ({model.experts:g} experts, {format_count(model.n_params_active)} used for a token)"
    text = f"train a model of {format_count(model.n_params_total)} parameters{'' if model.experts == 1 else kind}"
    takes = f"{format_flops(model.training_flops)} FLOPs"
    if use is not None and use.usd is not None and use.gpu_days is not None:
        gpus = use.gpu_days / use.days if use.days else float(use.train_gpus or 1)
        days = f"{use.gpu_days / gpus:,.0f}" if use.gpu_days >= 10 * gpus else f"{use.gpu_days / gpus:.2g}"
        takes = f"{format_usd(use.usd)} and {days} days on {gpus:,.0f} {use.train_gpu} GPUs"
    told = [f"We spend {takes} to {text} on {format_count(model.tokens)} tokens."]
    ours, its = model.usd_per_mtok, plan.built_base.usd_per_mtok
    text = f"Serving it costs {format_usd(ours)} per million output tokens"
    if (corrected := calibrated(ours, plan.accuracy)) is not None:
        text += f" ({format_usd(corrected.usd_per_mtok)} if corrected by the known error of such prices)"
    if plan.of_life and plan.lifetime is not None and model.total_usd is not None:
        own = plan.lifetime.least_training if "match" in plan.asked else None
        ours, its = model.total_usd, (own or plan.built_base).total_usd
        text += (
            f"; its training and {format_count(plan.lifetime.lifetime_tokens)} served tokens cost {format_usd(ours)}"
        )
    told.append(f"{text}, {ours / its:.0%} of what {base} costs." if its and not plan.is_baseline else f"{text}.")
    sure, limit, laws = model.probability_at_least_base, plan.asked.get("max_loss"), len(plan.voting_laws)
    if sure is not None and not plan.is_baseline:
        missed = max(1.0 - sure, 1.0 / (laws + 1) if laws else 0.01)  # few laws agree by chance
        goal = f"the quality of {base}" if limit is None else f"the quality that was asked for (a loss of {limit})"
        told.append(f"The chance that it falls short of {goal} is {missed:.0%}.")
    return told


def doubts(plan: Plan) -> list[str]:
    """What is open, and what could make the answer wrong."""
    best, error, told = plan.decision, plan.training and plan.training.error, list[str]()
    if best.undecided and best.rivals:
        counts = sorted(c.experts for c in (best.model, *best.rivals))
        told.append(
            f"Open: any number from {counts[0]:g} to {counts[-1]:g} experts may be best; they differ by less than can be "
            f"predicted. Small training runs, for {SWEEP_SHARE:.0%} of the budget, narrow it down."
        )
    for other in plan.shapes[1:2]:
        spent = "" if other.training_usd is None else f" and takes {format_usd(other.training_usd)} to train"
        told.append(
            f"Another kind of model ({other.shape}, {other.model.experts:g} experts) would serve for "
            f"{format_usd(other.model.usd_per_mtok)} per million output tokens{spent}."
        )
    if error is not None:
        uneven = f"; uneven use of experts may add {error.real_routing - 1.0:.0%}" if error.real_routing else ""
        runs = f"of {error.runs} published runs {error.within_25:.0%} were within 25% of their prediction"
        told.append(f"Training days and dollars: {runs}{uneven}.")
    if (corrected := calibrated(best.model.usd_per_mtok, plan.accuracy)) is None:
        told.append("Serving price: its error is unknown, as no servers of this kind were compared.")
    else:
        low, high = (format_usd(end) for end in corrected.interval)
        told.append(f"Serving price: nine of ten servers of this kind cost {low} to {high} per million output tokens.")
    if (tpot_s := late_tpot_s(plan)) is not None:
        told.append(f"Speed: by the known error of such servers a user gets {1.0 / tpot_s:.3g} tokens a second.")
    if any(note.startswith("Extrapolated: ") for note in best.caveats):
        told.append(
            "Quality: the model is beyond the training runs from which it is predicted (technical part, caveats)."
        )
    return [*told, *(note for note in best.caveats if note.startswith(TOO_SLOW)), *plan.warnings]

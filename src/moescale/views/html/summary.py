"""A plan in plain sentences, for readers who neither train nor serve models."""

from __future__ import annotations

from moescale.planning.candidate import Trained
from moescale.planning.plan import Plan
from moescale.serving.accuracy import calibrated
from moescale.units import expert_model, format_count, format_flops, format_usd
from moescale.views.tables import Cell, Column, Table, table_of
from moescale.views.tables.screen import SWEEP_SHARE, TOO_SLOW


def sentences(plan: Plan) -> list[str]:
    """What is trained and what that takes, what serving costs, and the chance that the quality falls short."""
    model, use, base = plan.decision.model, plan.training, _base_name(plan)
    kind = (
        ""
        if model.experts == 1
        else f" ({model.experts:g} experts, {format_count(model.n_params_active)} used for a token)"
    )
    text = (
        f"train a model of {format_count(model.n_params_total)} parameters{kind} on {format_count(model.tokens)} tokens"
    )
    if use is None or use.usd is None or use.gpu_days is None:
        told = [f"We spend {format_flops(model.training_flops)} FLOPs to {text}."]
    else:
        gpus = use.gpu_days / use.days if use.days else float(use.train_gpus or 1)
        days = f"{use.gpu_days / gpus:,.0f}" if use.gpu_days >= 10 * gpus else f"{use.gpu_days / gpus:.2g}"
        told = [f"We spend {format_usd(use.usd)} and {days} days on {gpus:,.0f} {use.train_gpu} GPUs to {text}."]
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


def models_table(plan: Plan) -> Table:
    """The model to train, what it is compared with, the others that are open, and published ones."""
    rows: list[tuple[str, Trained]] = [("recommended", plan.decision.model)]
    rows += [] if plan.is_baseline else [(_base_name(plan), plan.built_base)]
    rows += [(f"also open: {expert_model(c.experts)}", c) for c in plan.decision.rivals]
    rows += [(f"published: {c.name}", c) for c in plan.known if c.name != plan.base_name]
    cells: list[Cell[tuple[str, Trained]]] = [
        (Column("", text=True), lambda r: r[0]),
        (Column("serving a million tokens"), lambda r: format_usd(r[1].usd_per_mtok) if r[1].usd_per_mtok else "-"),
        (Column("parameters"), lambda r: format_count(r[1].n_params_total)),
        (Column("used for a token"), lambda r: format_count(r[1].n_params_active)),
        (Column("training tokens"), lambda r: format_count(r[1].tokens)),
    ]
    return table_of("", rows, cells, experts=tuple(model.experts for _, model in rows))


def doubts(plan: Plan) -> list[str]:
    """What is open, and what could make the answer wrong."""
    best, error, told = plan.decision, plan.training and plan.training.error, list[str]()
    if best.undecided and best.rivals:
        counts = sorted(c.experts for c in (best.model, *best.rivals))
        told.append(
            f"Open: any number from {counts[0]:g} to {counts[-1]:g} experts may be best; they differ by less than can be predicted. "
            f"Small training runs, for {SWEEP_SHARE:.0%} of the budget, narrow it down."
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
    if any(note.startswith("Extrapolated: ") for note in best.caveats):
        told.append(
            "Quality: the model is beyond the training runs from which it is predicted (technical part, caveats)."
        )
    return [*told, *(note for note in best.caveats if note.startswith(TOO_SLOW)), *plan.warnings]


def _base_name(plan: Plan) -> str:
    kind, found = plan.base_name.removeprefix("the loss-optimal "), plan.base_name.startswith("the loss-optimal ")
    return f"the best {kind.partition(' of ')[0]} of this budget" if found else kind

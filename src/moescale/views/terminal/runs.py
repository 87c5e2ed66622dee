"""What experiments will run: a sweep, and a designed one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from moescale.options.law import DEFAULT_LAW
from moescale.planning.plan import Plan
from moescale.planning.rationale import DECIDES
from moescale.planning.sweep_design import DesignedRun, SweepDesign
from moescale.units import format_count, format_flops, format_usd, plural
from moescale.views.tables import Cell, Column, Table, ends_text, table_of
from moescale.views.tables.plan import P_LOSS
from moescale.views.terminal.text import write_line, write_paragraph, write_table

LOWERS = 0.95  # of the price of being wrong: what is left by runs that are said to lower it


def show_settings(console: Console, settings: Mapping[str, Any], expected: Mapping[str, float]) -> None:
    """All settings of a run (as `train --dry-run` has them), and what the run takes."""
    import tomli_w

    for line in [*tomli_w.dumps(settings).splitlines(), ""]:
        write_line(console, line)
    for key, value in expected.items():
        write_line(console, f"# {key:15} {format_flops(value) if key == 'training_flops' else format_count(value)}")


def show_trained(console: Console, rows: Sequence[Mapping[str, Any]], folder: str, table: str) -> None:
    """The rows of a trained model, and where it and they lie."""
    for row in rows:
        flag = f"  DIVERGED: {row['diverged_why']}" if row["diverged"] else ""
        loss = "none" if row["loss"] is None else f"{row['loss']:.4f}"
        write_line(
            console,
            f"{row['name']}: loss {loss} nats per token after {format_count(row['tokens'])} tokens, "
            f"{format_count(row['n_params_dense'])} dense-equivalent parameters, {row['n_experts']} experts, "
            f"{format_count(row['tokens_per_s'])} tokens/s{flag}",
        )
    write_line(console, f"Weights: {folder}/model. Rows: {table}.")


def show_planned_runs(console: Console, plan: Mapping[str, Any]) -> None:
    """The runs of a sweep (the JSON of `sweep --dry-run`), and their total."""
    runs: list[dict[str, Any]] = plan["runs"]
    cells: tuple[Cell[dict[str, Any]], ...] = (
        (Column("run", text=True), lambda r: r["name"]),
        (Column("N"), lambda r: format_count(r["n_params_dense"])),
        (Column("active", rank=3), lambda r: format_count(r["n_params_active"])),
        (Column("total", rank=2), lambda r: format_count(r["n_params_total"])),
        (Column("E", rank=5), lambda r: f"{r['n_experts']}"),
        (Column("tokens"), lambda r: " ".join(format_count(tokens) for tokens in r["tokens"])),
        (Column("FLOPs", rank=1), lambda r: format_flops(r["training_flops"])),
        (Column("state", text=True, rank=4), lambda r: r["state"]),
    )
    write_table(console, table_of("", runs, cells))
    done = sum(run["state"] == "finished" for run in runs)
    write_line(console)
    write_paragraph(
        console,
        f"{plural(len(runs), 'run')}, {done} finished, {format_flops(plan['training_flops'])} FLOPs in total, "
        f"{plan['jobs']} in parallel; sizes without embeddings.",
    )
    write_paragraph(console, f"Run table: {plan['table']}.")


def show_design(
    console: Console,
    found: SweepDesign,
    *,
    shape: str,
    plan: Plan | None,
    details: bool,
    written: Path | None,
    served_tokens: float | None = None,
) -> None:
    """The runs of a designed sweep, all of models of one shape, and the plan's regret after them and after other sweeps.

    `plan` is that of the question, where its shape is taken; `served_tokens` are what the runs are to pay for.
    """
    known = f" in addition to {plural(found.known_runs, 'known run')}" if found.known_runs else ""
    needed = found.count_before.certainty < DECIDES
    write_paragraph(
        console,
        f"{format_flops(found.flops)} FLOPs in total{known}. Plan: {format_flops(found.budget_flops)} FLOPs, "
        f"{P_LOSS} >= {found.confidence:.0%}; baseline: {found.base}.",
        lead=f"{'Train' if needed else 'The expert count is decided without a sweep; this one trains'} {plural(len(found.runs), 'run')} of shape {shape}",
    )
    if plan is not None and plan.shapes:
        best, *others = (
            f"{c.shape}: E={c.model.experts:g} {format_usd(c.model.usd_per_mtok)}, loss {c.model.loss:.4f}"
            for c in plan.shapes
        )
        write_paragraph(console, "; --shape ".join((f"`plan` takes {best}", *others)), lead="Shape")
    swept = [("before", 0, 0.0, found.regret_before, f"{found.count_before.certainty:.0%}")]
    swept += [("these runs", len(found.runs), found.flops, found.regret_after, f"{found.count_after.certainty:.0%}")]
    swept += [(rival.name, rival.runs, rival.flops, rival.regret, "") for rival in found.rivals]
    rows = [
        (name, f"{n or '-'}", format_flops(flops) if flops else "-", f"{regret:.1%}", sure)
        for name, n, flops, regret, sure in swept
    ]
    heads = (Column(head) for head in ("runs", "FLOPs", "expected regret", "P(likeliest E)"))
    write_table(console, Table("", (Column("sweep", text=True), *heads), rows))
    if found.known_runs:
        write_line(console)
        write_paragraph(console, _known_decision(found), lead="Decision from the known runs")
    write_line(console)
    write_paragraph(console, _decided(found, plan))
    write_paragraph(console, _worth(found, served_tokens), lead="Worth it")
    write_table(console, _designed_runs_table(found.runs) if details else _designed_counts_table(found.runs))
    write_line(console)
    if written is not None:
        write_paragraph(
            console, f"Wrote {written}. Next: set its corpus, then run `moescale sweep {written} --dry-run`."
        )
    elif not details:
        write_paragraph(console, "All runs: --details. Write the sweep: -o SWEEP.toml.")


def _known_decision(found: SweepDesign) -> str:
    now, text = found.decision, f"no cheaper model has {P_LOSS} >= {found.confidence:.0%}: train the baseline."
    if now.cost_ratio != 1.0:
        sizes = f"N = {format_count(now.n_params)}, {format_count(now.tokens)} tokens"
        cost = f"{now.cost_ratio:.0%} of the baseline's cost"
        text = f"E = {now.experts:g}, {sizes}, {cost}, {P_LOSS} {now.probability_at_least_base:.0%}."
    return f"{text} The runs correct the law's draws here; `fit --prior {DEFAULT_LAW}` fits the law to both: where its plan chooses another count, both are open."


def _decided(found: SweepDesign, plan: Plan | None) -> str:
    """Whether the runs decide the expert count, or which larger sweep would, and what it costs to train without one."""
    larger, now, after = found.larger, found.count_before, found.count_after
    text = f"With these runs one expert count is more likely the cheapest than not (likeliest E {after.certainty:.0%})"
    if now.certainty >= DECIDES:
        known = "with the known runs" if found.known_runs else "by the law alone"
        text = f"One expert count is more likely the cheapest than not {known} (likeliest E {now.certainty:.0%})"
    elif after.certainty < DECIDES:
        text = f"These runs do not decide the expert count (likeliest E {after.certainty:.0%}); "
        if larger is None:
            text += "no larger sweep was tried: none takes more than a tenth of the plan's FLOPs"
        else:
            text += "the smallest sweep that would takes" if larger.decides else "no sweep does up to"
            text += f" {format_flops(larger.flops)} FLOPs ({larger.certainty:.0%})"
    lower, count = "These runs do not lower that mean", f"{now.experts:g}"
    if after.dearer < LOWERS * now.dearer:
        lower = f"These runs lower that mean to {after.dearer:.1%}"
    taken, whose = now.experts if plan is None else plan.decision.model.experts, "`plan` chooses"
    if found.known_runs:  # which `plan` has not seen
        taken, whose = found.decision.experts, "the known runs decide"
    if taken != now.experts:
        count = f"{taken:g}, as {whose}; the safest count by the law's draws is {count}"
    return (
        f"{text}. Without a sweep train E = {count}: in the mean {now.dearer:.1%} dearer to serve than the best count of each "
        f"draw, {now.dearer_tenth:.1%} or more in one draw of ten. {lower}."
    )


def _worth(found: SweepDesign, served_tokens: float | None) -> str:
    """Dollars of the runs against those that they save, and after how many served tokens these are equal."""
    usd, saved = found.training_usd, found.saved_usd_per_mtok
    hours = "" if found.training_gpu_hours is None else f", {format_count(found.training_gpu_hours)} GPU hours"
    price = "" if usd is None else f" they cost at least {format_usd(usd)}{hours} (at the plan's MFUs);"
    before, after = found.regret_before, found.regret_after
    if after - before > 2.0 * found.regret_error:
        rule = "the plan keeps to its chance of the baseline's loss, not to the least regret"
        return f"no:{price} with them the expected regret is higher, {after:.1%} after {before:.1%}: {rule}."
    if not saved:
        return f"no:{price} they do not lower the regret by more than the error of the simulation."
    lower = f"they lower the regret by {format_usd(saved)} per million served tokens on average"
    text = f"{price} {lower}, in price or in loss at its price".strip()
    if usd is None:
        return f"{text}."
    after = usd / saved * 1e6
    if served_tokens is not None:
        text = f"{'yes' if served_tokens > after else 'no'}, for {format_count(served_tokens)} served tokens: {text}"
    return f"{text}: paid for after {format_count(after)} tokens, simulated without a fit, which promises too much."


def _designed_runs_table(runs: Iterable[DesignedRun]) -> Table:
    cells: tuple[Cell[DesignedRun], ...] = (
        (Column("N"), lambda r: format_count(r.n_params)),
        (Column("E"), lambda r: f"{r.experts}"),
        (Column("tokens"), lambda r: format_count(r.tokens)),
        (Column("tokens/N"), lambda r: f"{r.tokens / r.n_params:.3g}"),
        (Column("FLOPs"), lambda r: format_flops(r.flops)),
        (Column("batch", rank=1), lambda r: format_count(r.batch_tokens)),
        (Column("peak lr", rank=1), lambda r: f"{r.peak_lr:.2e}"),
        (Column("doubt left"), lambda r: f"{r.doubt_left:.1%}"),
    )
    return table_of("Runs, by reduction of regret per FLOP", runs, cells)


def _designed_counts_table(runs: Sequence[DesignedRun]) -> Table:
    total, rows = sum(run.flops for run in runs), list[tuple[str, ...]]()
    for e in sorted({run.experts for run in runs}):
        own = [run for run in runs if run.experts == e]
        sizes, tokens = (
            ends_text([getattr(run, name) for run in own], format_count) for name in ("n_params", "tokens")
        )
        rows.append((f"{e}", f"{len(own)}", sizes, tokens, f"{sum(run.flops for run in own) / total:.0%}"))
    return Table("By expert count", tuple(map(Column, ("E", "runs", "N", "tokens", "share of FLOPs"))), rows)

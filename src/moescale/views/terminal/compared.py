"""Models side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from moescale.scaling_laws.law import INPUT_NAMES
from moescale.units import format_count, format_usd
from moescale.views.tables import latency_name
from moescale.views.tables.models import break_even_lines, compared_table
from moescale.views.terminal.text import write_line, write_paragraph, write_table

if TYPE_CHECKING:
    from rich.console import Console

    from moescale.planning.compare_models import ComparedModel
    from moescale.planning.training_price import TrainingPrice
    from moescale.scaling_laws.law import Law
    from moescale.serving.deployment import Deployment


def show_compared_models(
    console: Console,
    models: Sequence[ComparedModel],
    law: Law,
    deployment: Deployment,
    training: TrainingPrice | None,
    lifetime_tokens: float | None,
    latency: str,
) -> None:
    """The table, break-even lifetimes, and the basis."""
    write_table(console, compared_table(models))
    write_line(console)
    for line in break_even_lines(models):
        write_paragraph(console, line, indent=4, first="  - ")
    far = {name: max(m.extrapolation.get(name, 1.0) for m in models) for name in ("n_params", "tokens")}
    if beyond := [f"{INPUT_NAMES[name]} up to {factor:,.0f}" for name, factor in far.items() if factor > 1.5]:
        text = f"Extrapolated: {' and '.join(beyond)} times the largest fitted."
        write_paragraph(console, text, indent=4, first="  - ")
    trained = ""
    if training is not None:
        usd = format_usd(training.usd_per_gpu_hour)
        trained = f"; training on {training.gpu.name} at {usd} per GPU hour, MFU {'predicted' if training.timed else f'{training.mfu:g}'}"
    life = "" if lifetime_tokens is None else f"; lifetime {format_count(lifetime_tokens)} output tokens"
    write_line(console)
    write_paragraph(
        console,
        f"parameters without embeddings; loss by {law.name}{', intervals over its draws' if len(law.draws) else ''}{trained}; serving on "
        f"{deployment.gpu.name} at {format_usd(float(deployment.usd_per_gpu_hour))} per GPU hour, {deployment.prompt_tokens:g} prompt and "
        f"{deployment.output_tokens:g} output tokens per request, latency from {latency_name(latency)}{life}.",
        lead="Basis",
    )

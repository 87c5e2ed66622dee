"""The command on the paper: reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.cli.options import Json, LawName, app, at_option, examples, file_option, one_option, text_option
from moescale.cli.output import HeldBack, print_json, warn
from moescale.errors import MoescaleError, unknown_name
from moescale.options.law import DEFAULT_LAW, LawOptions
from moescale.options.serving import DEFAULT_GPU, ServingOptions

if TYPE_CHECKING:
    from moescale.latency import LatencySource
    from moescale.serving.deployment import Deployment

LATENCIES = ("both", "silicon", "roofline")


@app.command(
    epilog=examples(
        "moescale reproduce --latency roofline",
        "moescale reproduce --law yun2024-joint --latency roofline --json",
        "moescale reproduce --latency roofline --moe-execution all-experts",
    )
)
def reproduce(
    law: LawName = DEFAULT_LAW,
    latency: Annotated[
        str, text_option("--latency", "both (silicon, and the roofline beside it), silicon, or roofline.")
    ] = "both",
    moe_execution: Annotated[
        str,
        text_option(
            "--moe-execution",
            "How experts run: fused (a token meets its top_k), or all-experts (a loop in which every token meets every "
            "expert of its GPU, as in vLLM 0.2.7).",
        ),
    ] = "fused",
    gpu: Annotated[str, one_option(ServingOptions, "gpu")] = DEFAULT_GPU,
    output: Annotated[
        Path | None, file_option("-o", "Folder for the report, and every figure as SVG, PDF, PNG and CSV.")
    ] = None,
    json_: Json = False,
) -> None:
    """Compute every claim of the paper again: its value, ours with its interval, and whether it holds."""
    from moescale.latency import with_moe_execution
    from moescale.reproduction import reproduce as evaluate

    chosen = LawOptions(law=law).find_law()
    if latency not in LATENCIES:
        raise unknown_name("latency", latency, LATENCIES, where="--latency")
    deployment = ServingOptions(gpu=gpu, reserve=0).deployment()  # otherwise the paper's: it reserves nothing
    with at_option("--moe-execution"):
        first, *others = (with_moe_execution(source, moe_execution) for source in _sources(latency, deployment))
    if output is not None:
        from moescale.reproduction.publish import check_folder

        with at_option("-o"):
            check_folder(output)
    with at_option("--law"):
        outcomes = evaluate(chosen, deployment, first, others)
    held_back = HeldBack()
    if output is not None:
        from moescale.reproduction.publish import publish

        with held_back, at_option("-o"):
            publish(output, chosen, deployment, first, outcomes)
    if json_:
        print_json([outcome.to_dict() for outcome in outcomes])
    else:
        from moescale.reproduction.tables import show_outcomes
        from moescale.views.terminal import terminal

        show_outcomes(terminal(), outcomes)
    held_back.tell()


def _sources(name: str, deployment: Deployment) -> tuple[LatencySource, ...]:
    """The source that claims are judged with, then those that stand beside it."""
    if name != "both":
        return (ServingOptions(latency=name).open_latency(deployment),)
    roofline = ServingOptions(latency="roofline").open_latency(deployment)
    try:
        return ServingOptions(latency="silicon").open_latency(deployment), roofline
    except MoescaleError as error:
        warn(f"roofline latency alone, because {error.what}")
        return (roofline,)

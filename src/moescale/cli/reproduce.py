"""The command on the paper: reproduce."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moescale.cli.flat import flat
from moescale.cli.options import Json, app, examples
from moescale.cli.output import HeldBack, print_json, warn
from moescale.errors import MoescaleError, located, unknown_name
from moescale.options.fields import at_option
from moescale.options.law import PaperLaw
from moescale.options.pages import ReproductionOptions
from moescale.options.serving import ChosenGpu, ServingOptions

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
@flat("law", "latency", "moe_execution", "gpu")
def reproduce(law: PaperLaw, gpu: ChosenGpu, wanted: ReproductionOptions, json_: Json = False) -> None:
    """Recompute every claim of the paper: its value, ours with an interval, and whether it holds."""
    from moescale.latency import with_moe_execution
    from moescale.reproduction import reproduce as evaluate
    from moescale.reproduction.publish import check_folder, publish
    from moescale.reproduction.tables import show_outcomes
    from moescale.views.terminal import terminal

    chosen, latency, output = law.find_law(), wanted.latency, wanted.output
    if latency not in LATENCIES:
        raise unknown_name("latency", latency, LATENCIES, where="--latency")
    deployment = ServingOptions(gpu=gpu.gpu).deployment()
    with at_option("--moe-execution"):
        first, *others = (with_moe_execution(source, wanted.moe_execution) for source in _sources(latency, deployment))
    if output is not None:
        with located("-o"):
            check_folder(output)
    with at_option("--law"):
        outcomes = evaluate(chosen, deployment, first, others)
    held_back = HeldBack()
    if output is not None:
        with held_back, at_option("-o"):
            publish(output, chosen, deployment, first, outcomes)
    if json_:
        print_json([outcome.to_dict() for outcome in outcomes])
    else:
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
        warn(f"using the roofline only, because {error.what}")
        return (roofline,)

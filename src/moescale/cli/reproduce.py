"""The command on the paper: reproduce."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from moescale.cli.options import JSON, command
from moescale.cli.output import answer, held_back, tell, warn
from moescale.errors import InputError, located
from moescale.options.fields import at_option, text
from moescale.options.law import LAW, PAPER_LAW, ChosenLaw
from moescale.options.reproduction import TODAY, ReproductionOptions


@command(
    "moescale reproduce --summary",
    "moescale reproduce --server today --summary --json",
    "moescale reproduce --max-num-seqs 256 --memory-fraction 0.8",
    "moescale reproduce --figure 4",
    top="server summary figure folder law convention moe_execution prompt output max_num_seqs",
)
def reproduce(wanted: ReproductionOptions, law: str = text(LAW, default=PAPER_LAW), json_: bool = JSON) -> None:
    """Recompute every claim of the paper: its value, ours with an interval, and whether it holds."""
    from moescale.models.family import with_convention
    from moescale.reproduction.evaluate import reproduce as evaluate
    from moescale.reproduction.evaluate import score
    from moescale.reproduction.figures import FIGURES, VERDICT, check_figure, check_folder, drawn, publish
    from moescale.reproduction.tables import show_outcomes, show_score
    from moescale.reproduction.world import of_the_papers_models, world_of

    chosen, folder = ChosenLaw(law=law).find_law(), wanted.folder
    if wanted.convention is not None:
        with at_option("--convention"):
            chosen = replace(chosen, family=with_convention(chosen.family, wanted.convention))
    if wanted.figure is not None:
        with at_option("--figure"):
            check_figure(wanted.figure)
        folder = folder or Path(".")
    if folder is not None:
        with located("-o"):
            check_folder(folder)
    costs = wanted.costs(remark=warn)
    unwritten = list[InputError]()
    one_paper_figure = wanted.figure is not None and wanted.figure != VERDICT
    with at_option("--law"):
        outcomes = () if one_paper_figure else evaluate(chosen, costs)
        if folder is not None:
            names = (*FIGURES, VERDICT) if wanted.figure is None else (wanted.figure,)
            # Today's server beside this one in the figure of the verdict.
            outcomes_today = evaluate(chosen, ReproductionOptions(server=TODAY).costs()) if VERDICT in names else ()
            world = world_of(of_the_papers_models(chosen), costs)
            with held_back(unwritten), at_option("-o"):
                shown = None if wanted.figure is not None else outcomes
                written = publish(folder, drawn(names, world, outcomes, outcomes_today), shown)
                if wanted.figure is not None:
                    print("\n".join(str(path) for path in written))
    if wanted.figure is None:
        found = score(outcomes)
        record = {"server": wanted.server, **found.to_dict()} if wanted.summary else [o.to_dict() for o in outcomes]
        answer(json_, record, show_score if wanted.summary else show_outcomes, outcomes, found, wanted.server)
    tell(unwritten)

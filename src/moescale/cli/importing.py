"""The command on runs that others' programs trained: import."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from moescale.cli.options import HeldBack, Json, app, at_option, examples, file_option, print_json, text_option, warn
from moescale.errors import unknown_name


@app.command(
    "import",
    epilog=examples(
        "moescale import trainer examples/trainer",
        "moescale import mlflow http://localhost:5000 -o runs.csv",
        "moescale import wandb wandb --mapping map.toml -o runs.csv",
    ),
)
def import_(
    tracker: Annotated[str, Argument(metavar="TRACKER", help="mlflow, wandb, tensorboard or trainer.")],
    source: Annotated[
        str, Argument(metavar="DIR_OR_URI", help="Folder (searched with those below it), file, or MLflow's URI.")
    ],
    output: Annotated[
        Path | None, file_option("-o", "Run table to write: .csv, .tsv or .parquet; default: only say what is there.")
    ] = None,
    mapping: Annotated[
        Path | None, file_option("--mapping", "TOML file: for each column a name, or an expression over names.")
    ] = None,
    where: Annotated[str | None, text_option("--where", "Filter over the rows.", "EXPR")] = None,
    unfinished: Annotated[bool, Option("--unfinished", help="Keep runs that failed or did not end.")] = False,
    json_: Json = False,
) -> None:
    """Write a run table for `fit` from runs in MLflow, W&B, TensorBoard or a Trainer's folder."""
    from moescale.io.files import check_target
    from moescale.runs.importers import TRACKERS, import_runs
    from moescale.runs.table import write_runs

    if tracker not in TRACKERS:
        raise unknown_name("tracker", tracker, TRACKERS, where="TRACKER")
    if output is not None:
        if output.suffix.lower() not in (".csv", ".tsv", ".parquet"):
            raise unknown_name("suffix to write", output.suffix, (".csv", ".tsv", ".parquet"), where=str(output))
        check_target(output, [source, mapping])
    with at_option("--where"):
        found = import_runs(tracker, source, mapping=mapping, where=where, unfinished=unfinished)
    held_back = HeldBack()
    if output is not None:
        with held_back:
            write_runs(found.columns, output)
    warn(found.warnings)
    if json_:
        answer: dict[str, Any] = found.to_dict()
        print_json(answer | {"table": str(output)} if output is not None else answer)
        held_back.tell()
        return
    runs = f"{found.n_runs} of {found.n_found} run{'s' * (found.n_found != 1)}"
    print(f"{output}: {runs}" if output is not None else f"{runs}; -o RUNS.csv writes them")
    for rule in found.rules:
        print(f"  {rule}")
    if found.left_out:
        print("Left out:")
    for run, reason in found.left_out:
        print(f"  {run}: {reason}")
    held_back.tell()

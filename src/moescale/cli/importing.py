"""The command on runs that others' programs trained: import."""

from __future__ import annotations

from moescale.cli.flat import flat
from moescale.cli.options import TABLE_SUFFIXES, Json, app, examples
from moescale.cli.output import HeldBack, print_json, warn
from moescale.errors import unknown_name
from moescale.options.fields import at_option
from moescale.options.runs import ImportOptions


@app.command(
    "import",
    epilog=examples(
        "moescale import trainer examples/trainer",
        "moescale import mlflow http://localhost:5000 -o runs.csv",
        "moescale import wandb wandb -o runs.csv",
        "moescale import csv runs.tsv --set tokens='step * 524288' --set loss=eval/loss -o runs.csv",
    ),
)
@flat()
def import_(wanted: ImportOptions, json_: Json = False) -> None:
    """Write a run table for `fit` from runs in MLflow, W&B, TensorBoard, a Trainer's folder, or any table."""
    from moescale.io.files import check_target
    from moescale.runs.importers import TRACKERS, import_runs
    from moescale.runs.table import write_runs

    tracker, source, output = wanted.tracker, wanted.source, wanted.output
    if tracker not in TRACKERS:
        raise unknown_name("tracker", tracker, TRACKERS, where="TRACKER")
    if output is not None:
        if output.suffix.lower() not in TABLE_SUFFIXES:
            raise unknown_name("suffix to write", output.suffix, TABLE_SUFFIXES, where=str(output))
        check_target(output, [source])
    rules = wanted.rules()
    with at_option("--where"):
        found = import_runs(tracker, source, mapping=rules, where=wanted.where, unfinished=wanted.unfinished)
    held_back = HeldBack()
    if output is not None:
        with held_back:
            write_runs(found.columns, output)
    warn(found.warnings)
    if json_:
        print_json(found.to_dict() | ({} if output is None else {"table": str(output)}))
    else:
        runs = f"{found.n_runs} of {found.n_found} run{'s' * (found.n_found != 1)}"
        print(f"{output}: {runs}" if output is not None else f"{runs}; write them with -o RUNS.csv")
        for rule in found.rules:
            print(f"  {rule}")
        if found.left_out:
            print("Left out:")
        for run, reason in found.left_out:
            print(f"  {run}: {reason}")
    held_back.tell()

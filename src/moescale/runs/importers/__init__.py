"""Run tables from the experiment trackers that people already use: MLflow, W&B, TensorBoard, Hugging Face's Trainer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moescale.errors import unknown_name
from moescale.runs.importers.mapping import Imported, rows_of
from moescale.runs.importers.rules import Rule, read_mapping

TRACKERS = ("mlflow", "wandb", "tensorboard", "trainer")
"""What `import_runs` reads."""

__all__ = ["TRACKERS", "Imported", "Rule", "import_runs", "read_mapping"]


def import_runs(
    tracker: str,
    source: str | Path,
    *,
    mapping: Mapping[str, Rule] | str | Path | None = None,
    where: str | None = None,
    unfinished: bool = False,
) -> Imported:
    """The rows of a run table from the runs that a tracker holds in a folder, in a file, or under a URI.

    `mapping` says where columns come from (rules, or the path of a mapping file); what it leaves open is guessed.
    Raises InputError for an unknown tracker, a source that holds no run, and where no run makes a row.
    """
    rules = read_mapping(mapping) if isinstance(mapping, str | Path) else dict(mapping or {})
    place = str(source)
    if tracker == "mlflow":
        from moescale.runs.importers.mlflow import read_mlflow

        wanted = " ".join(part for rule in rules.values() for part in (rule.name, rule.expression) if part)
        runs, warnings = read_mlflow(place, lambda name: "loss" in name.lower() or "token" in name or name in wanted)
    elif tracker == "wandb":
        from moescale.runs.importers.wandb import read_wandb

        runs, warnings = read_wandb(place)
    elif tracker == "tensorboard":
        from moescale.runs.importers.tensorboard import read_tensorboard

        runs, warnings = read_tensorboard(place)
    elif tracker == "trainer":
        from moescale.runs.importers.trainer import read_trainer

        runs, warnings = read_trainer(place)
    else:
        raise unknown_name("tracker", tracker, TRACKERS)
    return rows_of(runs, rules, unfinished=unfinished, where=where, source=place, warnings=warnings)

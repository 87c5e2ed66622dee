"""A designed sweep as the SWEEP.toml that `moescale sweep` trains."""

from __future__ import annotations

from pathlib import Path

import tomli_w

from moescale.errors import InputError
from moescale.export.trainers import filled
from moescale.io.files import write_atomically
from moescale.models.family import ModelFamily
from moescale.models.recipe import defaults
from moescale.planning.sweep_design import SweepDesign
from moescale.units import format_count, format_flops, plural


def unbuilt(family: ModelFamily) -> str:
    """What `moescale sweep` cannot build of a family, in words; empty where it trains all: its experts are as wide as an FFN."""
    unusual = {"narrow experts": family.expert_width != 1.0, "shared experts": family.shared_experts > 0.0}
    unusual["latent attention"] = family.kv_lora_rank > 0.0
    return " and no ".join(name for name, has in unusual.items() if has)


def check_family(family: ModelFamily) -> None:
    """InputError for a family that `moescale sweep` cannot build."""
    if found := unbuilt(family):
        raise InputError(
            f"`moescale sweep` builds no {found}, which {family.name} has: its runs would be other models",
            where="-o",
            next_step="leave -o out and train the runs that --details lists, or take --shape paper or mixtral",
        )


def write_sweep(design: SweepDesign, family: ModelFamily, path: Path, sequence_tokens: int | None = None) -> None:
    """Write the runs of a design, the cheapest first, with what all of them share; raises as `check_family` does."""
    check_family(family)
    text = filled(
        "sweep.toml.j2",
        runs=plural(len(design.runs), "run"),
        flops=format_flops(design.flops),
        budget=format_flops(design.budget_flops),
        most_tokens=format_count(max(run.tokens for run in design.runs)),
        names=tomli_w.dumps({"name": path.stem, "table": f"{path.stem}.csv", "folder": path.stem}),
        family=family,
        sequence_tokens=sequence_tokens or defaults().sequence_tokens,
        cheapest_first=sorted(design.runs, key=lambda run: run.flops),
    )
    write_atomically(path, text)

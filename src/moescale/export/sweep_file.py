"""A designed sweep as the SWEEP.toml that `moescale sweep` trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tomli_w

from moescale.errors import InputError
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
    name = path.stem
    title = (
        f"# {plural(len(design.runs), 'run')} of {format_flops(design.flops)} FLOPs in all, chosen for a plan of "
        f"{format_flops(design.budget_flops)} FLOPs: `moescale design`.\n"
        "# corpus is what `moescale pack` made; a run sees up to "
        f"{format_count(max(run.tokens for run in design.runs))} tokens.\n"
    )
    document: dict[str, Any] = {
        "name": name,
        "table": f"{name}.csv",
        "folder": name,
        "data": {"corpus": "corpus"},
        "model": {"top_k": family.top_k, "moe_every": family.moe_every},
        "training": {"sequence_tokens": sequence_tokens or defaults().sequence_tokens, "schedule": "cosine"},
        "runs": [
            {
                "n_params": round(run.n_params),
                "experts": run.experts,
                "tokens": round(run.tokens),
                "batch_tokens": run.batch_tokens,
                "peak_lr": float(f"{run.peak_lr:.3g}"),
            }
            for run in sorted(design.runs, key=lambda run: run.flops)
        ],
    }
    write_atomically(path, title + tomli_w.dumps(document))

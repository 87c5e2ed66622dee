"""A run as the files of a trainer: torchtitan 0.3, Megatron-LM (catalogue/megatron.toml) or `moescale train`; see templates/."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from moescale import catalogue
from moescale.errors import InputError
from moescale.export.huggingface import huggingface_config
from moescale.io.files import write_atomically
from moescale.models.family import ModelFamily
from moescale.models.recipe import Recipe, defaults
from moescale.models.rounding import FURTHER, Buildable
from moescale.training.parallelism import Split, Trainer, stages_of
from moescale.units import format_bytes, format_count, format_flops, format_seconds, plural

if TYPE_CHECKING:
    from moescale.planning.sweep_design import SweepDesign

TORCHTITAN = "0.3.0"
MODULE = "moescale_run"
ARGUMENTS = "megatron.args"
FORMATS: Mapping[str, Trainer] = {
    "hf": Trainer(states="full", pipeline=False, tensor=False, expert=False),
    # The logits' chunks are the default of torchtitan's ChunkedLossWrapper.
    "torchtitan": Trainer(states="full", pipeline=False, tensor=True, logit_chunks=8),
    "megatron": Trainer(states="optimizer", pipeline=True, tensor=True),
}
"""The formats of an export, and how the trainer of each splits a run."""


def filled(name: str, **values: Any) -> str:
    """The template of this name, filled."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Any:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    kept: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made: Any = Environment(loader=PackageLoader("moescale.export"), undefined=StrictUndefined, **kept)
    made.globals.update(format_bytes=format_bytes, format_flops=format_flops, format_seconds=format_seconds)
    return made


def training_files(
    format: str, shape: Buildable, recipe: Recipe, split: Split, title: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files of a format's trainer (text by name), config.json included, and what they do not say at first sight."""
    files = {"config.json": json.dumps(huggingface_config(shape, recipe), indent=2) + "\n"}
    run: dict[str, Any] = {"title": title, "shape": shape, "recipe": recipe, "split": split}
    if format == "hf":
        files["run.toml"] = filled("run.toml.j2", **run, further={key: getattr(shape, key) for key in FURTHER})
        return files, ()
    run["router"] = catalogue.read("routers.toml")["sigmoid"]
    if format == "torchtitan":
        file, about = MODULE, f"Starts the run of {MODULE}.py with torchtitan {TORCHTITAN}"
        # Of torchtitan the fall `sqrt` is 1 - sqrt; the steps of a decay are the nearest to its ratio of all.
        falls = f'decay_type="sqrt", decay_ratio={recipe.decay_steps / recipe.steps!r}'
        files[f"{MODULE}.py"] = filled(
            "moescale_run.py.j2",
            **run,
            version=TORCHTITAN,
            moe=shape.n_experts > 1,
            latent=shape.model_type == "deepseek_v3",
            glm=shape.model_type == "glm4_moe",
            decay='decay_type="cosine"' if recipe.schedule == "cosine" else falls,
            logit_chunks=FORMATS["torchtitan"].logit_chunks,
        )
        bias = "torchtitan balances experts by a bias on the choice of experts (arXiv 2408.15664), not by a loss"
        if not shape.sigmoid_router:
            without = "Qwen3-MoE has no place for a bias, so config.json's model routes without it"
            bias += f": the paper names neither; {without}"
        notes = (bias, "torchtitan starts a document at position 0 and lets it attend to itself alone")
    else:
        file, about = ARGUMENTS, "Starts pretrain_gpt.py of a Megatron-LM checkout, $MEGATRON"
        checked = ", ".join(name[:12] for name in catalogue.read("megatron.toml")["checked"])
        stages = stages_of(shape.architecture(), split.pipeline) or (0,)
        files[ARGUMENTS] = filled("megatron.args.j2", **run, checked=checked, stages=stages)
        notes = ("experts are not split by tensor parallelism, and no token is dropped",)
        if shape.sigmoid_router:
            by_bias = "experts are balanced by a bias on their choice and a small loss within a sequence"
            notes += (f"{by_bias}, as DeepSeek-V3 does",)
    # Started on each server of the run; `file` is what the trainer reads.
    per_server = min(split.gpus, int(catalogue.read("export.toml")["choice"]["gpus_per_server"]))
    run_it = {"trainer": format, "about": about, "file": file, "per_server": per_server}
    files["run.sh"] = filled("run.sh.j2", **run_it, servers=-(-split.gpus // per_server))
    return files, notes if shape.n_experts > 1 else ()


NAMED = ("fine-grained", "deepseek")
"""Families whose shapes `moescale sweep` builds by name; of others those whose experts are as wide as an FFN."""


def check_family(family: ModelFamily) -> None:
    """InputError for a family that `moescale sweep` cannot build."""
    plain = family.expert_width == 1.0 and not family.shared_experts and not family.kv_lora_rank
    if not plain and family.name not in NAMED:
        built = f"experts as wide as an FFN and those of {' and '.join(NAMED)}"
        step = "leave -o out and train the runs that --details lists, or take a --shape"
        raise InputError(f"`moescale sweep` builds {built}, not {family.name}'s", where="-o", next_step=step)


def write_sweep(design: SweepDesign, family: ModelFamily, path: Path, sequence_tokens: int | None = None) -> None:
    """Write the runs of a design of a family as `check_family` wants it, the cheapest first, with what all of them share."""
    text = filled(
        "sweep.toml.j2",
        runs=plural(len(design.runs), "run"),
        flops=format_flops(design.flops),
        budget=format_flops(design.budget_flops),
        most_tokens=format_count(max(run.tokens for run in design.runs)),
        names=tomli_w.dumps({"name": path.stem, "table": f"{path.stem}.csv", "folder": path.stem}),
        family=family,
        named=family.name in NAMED,
        sequence_tokens=sequence_tokens or defaults().sequence_tokens,
        cheapest_first=sorted(design.runs, key=lambda run: run.flops),
    )
    write_atomically(path, text)

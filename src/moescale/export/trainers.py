"""A run as the files of a trainer: torchtitan 0.3, Megatron-LM (catalogue/megatron.toml) or `moescale train`; see templates/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from moescale import catalogue
from moescale.export.huggingface import huggingface_config
from moescale.models.recipe import Recipe
from moescale.models.rounding import Buildable
from moescale.training.parallelism import Split, Trainer, stages_of
from moescale.units import format_bytes, format_flops, format_seconds

Made = tuple[dict[str, str], tuple[str, ...]]  # text by name, and notes

TORCHTITAN = "0.3.0"
MODULE = "moescale_run"
ARGUMENTS = "megatron.args"


@dataclass(frozen=True, slots=True)
class Format:
    """A format of an export: how its trainer splits a run, and the files beside config.json with what they do not say."""

    trainer: Trainer
    made: Callable[[Buildable, Recipe, Split, str], Made]


def filled(name: str, **values: Any) -> str:
    """The template of this name, filled."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> Any:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    def text(name: str) -> str:
        return (resources.files("moescale.export") / "templates" / name).read_text(encoding="utf-8")

    kept: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    made: Any = Environment(loader=FunctionLoader(text), undefined=StrictUndefined, **kept)
    made.globals.update(format_bytes=format_bytes, format_flops=format_flops, format_seconds=format_seconds)
    return made


def is_own(shape: Buildable) -> bool:
    """Whether `moescale train` builds a shape: Qwen3 and Qwen3-MoE with experts as wide as a dense FFN."""
    return not shape.kv_lora_rank and not shape.d_shared_expert and shape.expert_width == shape.d_ffn


def _own(shape: Buildable, recipe: Recipe, split: Split, title: str) -> Made:
    """A RUN.toml for `moescale train`."""
    if not is_own(shape):
        return {}, ()
    return {"run.toml": filled("run.toml.j2", title=title, shape=shape, recipe=recipe, split=split)}, ()


def _torchtitan(shape: Buildable, recipe: Recipe, split: Split, title: str) -> Made:
    """Qwen3, Qwen3-MoE, GLM-4-MoE (Qwen3-MoE with shared experts and the router of DeepSeek-V3) or DeepSeek-V3."""
    # Of torchtitan the fall `sqrt` is 1 - sqrt; the steps of a decay are the nearest to its ratio of all.
    falls = f'decay_type="sqrt", decay_ratio={recipe.decay_steps / recipe.steps!r}'
    module = filled(
        "moescale_run.py.j2",
        title=title,
        version=TORCHTITAN,
        shape=shape,
        recipe=recipe,
        split=split,
        moe=shape.n_experts > 1,
        latent=shape.model_type == "deepseek_v3",
        glm=shape.model_type == "glm4_moe",
        router=catalogue.read("routers.toml")["sigmoid"],
        decay='decay_type="cosine"' if recipe.schedule == "cosine" else falls,
        logit_chunks=FORMATS["torchtitan"].trainer.logit_chunks,
    )
    about = f"Starts the run of {MODULE}.py with torchtitan {TORCHTITAN}"
    files = {f"{MODULE}.py": module, "run.sh": _script(split, "torchtitan", about, MODULE)}
    if shape.n_experts == 1:
        return files, ()
    bias = "torchtitan balances experts by a bias on the choice of experts (arXiv 2408.15664), not by a loss"
    if not shape.sigmoid_router:
        bias += ": the paper names neither; Qwen3-MoE has no place for a bias, so config.json's model routes without it"
    return files, (bias, "torchtitan starts a document at position 0 and lets it attend to itself alone")


def _megatron(shape: Buildable, recipe: Recipe, split: Split, title: str) -> Made:
    arguments = filled(
        "megatron.args.j2",
        title=title,
        checked=", ".join(name[:12] for name in catalogue.read("megatron.toml")["checked"]),
        shape=shape,
        recipe=recipe,
        split=split,
        stages=stages_of(shape.architecture(), split.pipeline) or (0,),
        router=catalogue.read("routers.toml")["sigmoid"],
    )
    about = "Starts pretrain_gpt.py of a Megatron-LM checkout, $MEGATRON"
    files = {ARGUMENTS: arguments, "run.sh": _script(split, "megatron", about, ARGUMENTS)}
    if shape.n_experts == 1:
        return files, ()
    whole = "experts are not split by tensor parallelism, and no token is dropped"
    by_bias = "experts are balanced by a bias on their choice and a small loss within a sequence, as DeepSeek-V3 does"
    return files, (whole, by_bias) if shape.sigmoid_router else (whole,)


def _script(split: Split, trainer: str, about: str, file: str) -> str:
    """The text of run.sh, to be started on each server of a run; `file` is what the trainer reads."""
    per_server = min(split.gpus, int(catalogue.read("export.toml")["choice"]["gpus_per_server"]))
    servers = -(-split.gpus // per_server)
    return filled("run.sh.j2", trainer=trainer, about=about, file=file, servers=servers, per_server=per_server)


FORMATS: Mapping[str, Format] = {
    "hf": Format(Trainer(states="full", pipeline=False, tensor=False, expert=False), _own),
    # The logits' chunks are the default of torchtitan's ChunkedLossWrapper.
    "torchtitan": Format(Trainer(states="full", pipeline=False, tensor=True, logit_chunks=8), _torchtitan),
    "megatron": Format(Trainer(states="optimizer", pipeline=True, tensor=True), _megatron),
}


def training_files(format: str, shape: Buildable, recipe: Recipe, split: Split, title: str) -> Made:
    """What a format's trainer needs, config.json of the model included, and what the files do not say at first sight."""
    files, notes = FORMATS[format].made(shape, recipe, split, title)
    return {"config.json": json.dumps(huggingface_config(shape, recipe), indent=2) + "\n"} | files, notes

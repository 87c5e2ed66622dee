"""A run as a configuration of torchtitan 0.3: a Python module whose function `train` returns a Trainer.Config."""

from __future__ import annotations

from moescale import catalogue
from moescale.export.templates import filled, torchrun_script
from moescale.models.recipe import Recipe
from moescale.models.rounding import Buildable
from moescale.training.parallelism import Split, Trainer

VERSION = "0.3.0"
MODULE = "moescale_run"
# The logits' chunks are the default of torchtitan's ChunkedLossWrapper.
TRAINER = Trainer(states="full", pipeline=False, tensor=True, logit_chunks=8)


def notes(shape: Buildable) -> tuple[str, ...]:
    """What of a run torchtitan does otherwise than other trainers."""
    if shape.n_experts == 1:
        return ()
    bias = "torchtitan balances experts by a bias on the choice of experts (arXiv 2408.15664), not by a loss"
    if not shape.sigmoid_router:
        bias += ": the paper names neither; Qwen3-MoE has no place for a bias, so config.json's model routes without it"
    return bias, "torchtitan starts a document at position 0 and lets it attend to itself alone"


def torchtitan_module(shape: Buildable, recipe: Recipe, split: Split, title: str) -> str:
    """The text of moescale_run.py: Qwen3, Qwen3-MoE, GLM-4-MoE (Qwen3-MoE with shared experts and the router of DeepSeek-V3)
    or DeepSeek-V3, which is the one with latent attention.
    """
    # Of torchtitan the fall `sqrt` is 1 - sqrt; the steps of a decay are the nearest to its ratio of all.
    falls = f'decay_type="sqrt", decay_ratio={recipe.decay_steps / recipe.steps!r}'
    return filled(
        "moescale_run.py.j2",
        title=title,
        version=VERSION,
        shape=shape,
        recipe=recipe,
        split=split,
        moe=shape.n_experts > 1,
        latent=shape.model_type == "deepseek_v3",
        glm=shape.model_type == "glm4_moe",
        router=catalogue.read("routers.toml")["sigmoid"],
        decay='decay_type="cosine"' if recipe.schedule == "cosine" else falls,
        logit_chunks=TRAINER.logit_chunks,
    )


def torchtitan_script(split: Split) -> str:
    """The text of run.sh, to be started on each server."""
    return torchrun_script(split, "torchtitan", f"Starts the run of {MODULE}.py with torchtitan {VERSION}", MODULE)

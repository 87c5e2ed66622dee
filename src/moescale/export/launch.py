"""A recommended model as a folder: what transformers, torchtitan or Megatron-LM needs to train it, and the reasons."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.export import megatron, torchtitan
from moescale.export.folder import check_export_folder, write_export
from moescale.export.huggingface import config_of
from moescale.export.serving_launch import SERVE, Server, serve_script
from moescale.export.templates import filled
from moescale.hardware.gpus import Gpu
from moescale.io.records import record
from moescale.models.parameters import count_parameters
from moescale.models.recipe import Recipe, find_rule
from moescale.models.rounding import Buildable
from moescale.training.choice import Choice, Launch, choose_launch
from moescale.training.parallelism import Split, Trainer
from moescale.units import format_bytes, format_count, format_flops, format_seconds

Files = dict[str, str]  # text by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What was written, for which run, split how."""

    format: str
    folder: str
    files: tuple[str, ...]
    recipe: Recipe
    choice: Choice
    n_params_total: int  # of the model as built: embedding tables, norms and routers included
    n_params_active: int
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        return record(self, without=("choice",)) | {"parallel": record(self.choice)}


def huggingface_config(shape: Buildable, recipe: Recipe) -> dict[str, object]:
    """config.json of a model that is trained by `recipe`: its sequence length, vocabulary, balancing loss."""
    training: dict[str, object] = {
        "max_position_embeddings": recipe.sequence_tokens,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "rms_norm_eps": recipe.rms_norm_eps,
        "initializer_range": recipe.init_std,
        "dtype": "bfloat16",
    }
    if shape.model_type == "qwen3_moe":  # the other classes with experts balance them by a bias of the router
        training |= {"router_aux_loss_coef": recipe.balance_loss, "output_router_logits": True}
    return {**config_of(shape, recipe.vocab_size), **training}


def run_settings(shape: Buildable, recipe: Recipe, split: Split) -> dict[str, object]:
    """The tables of a RUN.toml for `moescale train`."""
    model = _fields(shape, "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ffn")
    model |= {"experts": shape.n_experts, **_fields(shape, "top_k", "moe_every"), "balance_loss": recipe.balance_loss}
    training = {"tokens": round(recipe.tokens), **_fields(recipe, "batch_tokens", "sequence_tokens")}
    training |= {"micro_batch_tokens": split.micro_batch * recipe.sequence_tokens, "peak_lr": recipe.peak_lr}
    training |= {"warmup": recipe.warmup_steps / recipe.steps, "schedule": recipe.schedule}
    if recipe.schedule == "wsd":
        training["decay"] = recipe.decay_steps / recipe.steps
    training |= _fields(recipe, "min_lr_ratio", "weight_decay", "beta1", "beta2", "grad_clip") | {"dtype": "bfloat16"}
    return {
        "name": "plan",
        "output": "runs/plan",
        "model": model,
        "data": {"corpus": "corpus"},
        "training": training,
        "parallel": {"processes": split.gpus, "fsdp": split.data > 1},
    }


def _fields(of: object, *names: str) -> dict[str, object]:
    return {name: getattr(of, name) for name in names}


def _files(format: str, shape: Buildable, recipe: Recipe, split: Split, title: str) -> Files:
    files = {"config.json": json.dumps(huggingface_config(shape, recipe), indent=2) + "\n"}
    if format == "torchtitan":
        files[f"{torchtitan.MODULE}.py"] = torchtitan.torchtitan_module(shape, recipe, split, title)
        files["run.sh"] = torchtitan.torchtitan_script(split)
    elif format == "megatron":
        files[megatron.FILE] = megatron.megatron_file(megatron.megatron_arguments(shape, recipe, split), title)
        files["run.sh"] = megatron.megatron_script(split)
    elif not _untrained(shape):
        files["run.toml"] = f"# {title}\n" + tomli_w.dumps(run_settings(shape, recipe, split))
    return files


def _untrained(shape: Buildable) -> bool:
    """Whether `moescale train` does not build a shape: it has Qwen3 and Qwen3-MoE with experts as wide as a dense FFN."""
    return bool(shape.kv_lora_rank or shape.d_shared_expert) or shape.expert_width != shape.d_ffn


FORMATS = {
    "hf": Trainer(states="full", pipeline=False, tensor=False, expert=False),
    "torchtitan": torchtitan.TRAINER,
    "megatron": megatron.TRAINER,
}
"""How the trainer of each format splits a run."""

NAMES = frozenset({"config.json", "run.toml", f"{torchtitan.MODULE}.py", megatron.FILE, "run.sh", "README.md", SERVE})
"""Every file that an export of any format may hold."""


def check_export(format: str, folder: Path) -> None:
    """Raise the InputError that `export_model` would meet for a format or a folder, before the work of a plan."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS, where="--export")
    check_export_folder(folder, NAMES)


def export_model(
    shape: Buildable,
    tokens: float,
    format: str,
    folder: Path,
    *,
    gpu: Gpu,
    mfu: float | None = None,
    gpus: int | None = None,
    peak_lr: float | None = None,
    rule: str | None = None,
    batch_tokens: float | None = None,
    sequence_tokens: int | None = None,
    schedule: str | None = None,
    server: Server | None = None,
) -> Export:
    """Write what `format` (hf, torchtitan or megatron) needs to train a shape on `tokens` tokens into a folder.

    `rule` (None: that of launches) gives batch and peak learning rate where `batch_tokens` and `peak_lr` do not; with `gpus` the
    batch fills them. See `recipe_for`. With a `server` also the script that starts it on the trained model.

    The folder is written whole or not at all. An older export in it is replaced; one that holds anything else is refused.
    Raises InputError for an unknown format, a folder that cannot be written, a size without a learning rate or a shape that no class of transformers builds, InfeasibleError
    where `gpus` GPUs do not hold the run.
    """
    check_export(format, folder)
    _check_servers(gpus)
    named = find_rule(rule)
    model = shape.architecture()
    counts = count_parameters(model)
    launch = Launch(
        trainer=FORMATS[format],
        rule=rule,
        peak_lr=peak_lr,
        batch_tokens=batch_tokens,
        sequence_tokens=sequence_tokens,
        schedule=schedule,
    )
    recipe, choice = launch.recipe(model, tokens, gpus), choose_launch(model, tokens, gpu, launch, mfu=mfu, gpus=gpus)
    title = (
        f"{'A dense model' if shape.n_experts == 1 else f'{shape.n_experts} experts'}, {format_count(float(counts.total))} "
        f"parameters ({format_count(float(counts.active))} active), {format_count(tokens)} tokens."
    )
    counted = "C counts the experts that a token meets" if "flops" in named.batch else "N counts one FFN in every layer"
    by_rule = named.dense_only and (batch_tokens is None or peak_lr is None) and shape.n_experts > 1
    of_experts = [f"the rule {named.name} was fitted to dense models; {counted}"] if by_rule else []
    remarks = {"torchtitan": torchtitan.notes, "megatron": megatron.notes}
    of_trainer = remarks[format](shape) if format in remarks else ()
    notes = (*recipe.notes, *of_experts, *of_trainer)
    files = _files(format, shape, recipe, choice.split, title)
    started = None if server is None else serve_script(server, recipe.sequence_tokens)
    files["README.md"] = filled(
        "README.md.j2",
        title=title,
        format="config" if format == "hf" and _untrained(shape) else format,
        version=torchtitan.VERSION,
        recipe=recipe,
        choice=choice,
        notes=notes,
        server=server,
        serve=SERVE,
        priced=[] if server is None or started is None else _priced(server, started.notes),
        format_bytes=format_bytes,
        format_flops=format_flops,
        split_in_words=split_in_words,
    )
    if started is not None:
        files[SERVE] = started.command
    write_export(folder, files, NAMES)
    return Export(
        format=format,
        folder=str(folder),
        files=tuple(files),
        recipe=recipe,
        choice=choice,
        n_params_total=int(counts.total),
        n_params_active=int(counts.active),
        notes=notes,
    )


def _check_servers(gpus: int | None) -> None:
    each = int(catalogue.read("export.toml")["choice"]["gpus_per_server"])
    if gpus is not None and gpus > each and gpus % each:
        below = gpus // each * each
        what, nearest = f"{gpus} GPUs do not fill whole servers of {each}", f"{below} or {below + each}"
        raise InputError(what, where="--train-gpus", nearest=nearest, next_step="give a multiple")


def split_in_words(choice: Choice) -> str:
    """The sizes of a run in a line."""
    s = choice.split
    return (
        f"{s.gpus} x {choice.gpu}: tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}, data {s.data}; micro-batches "
        f"of {s.micro_batch} sequence{'s' if s.micro_batch > 1 else ''}, {s.accumulation} a step"
        f"{', layers recomputed' if s.recompute else ''}"
    )


def _priced(server: Server, notes: tuple[str, ...]) -> list[str]:
    cost = server.cost
    figures = (
        f"{cost.batch:,.0f} concurrent requests per replica" if cost.batch else "",
        f"{cost.throughput_tok_s:,.0f} output tokens/s" if cost.throughput_tok_s else "",
        f"TTFT {format_seconds(cost.ttft_s)}" if cost.ttft_s else "",
        f"TPOT {format_seconds(cost.tpot_s)}" if cost.tpot_s else "",
    )
    return [line for line in (*figures, *notes) if line]

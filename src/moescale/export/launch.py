"""A recommended model as a folder: what transformers, torchtitan or Megatron-LM needs to train it, and the reasons."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moescale import catalogue
from moescale.errors import InputError, UnwrittenError, unknown_name
from moescale.export.serving_launch import SERVE, Server, serve_script
from moescale.export.trainers import ARGUMENTS, FORMATS, MODULE, TORCHTITAN, filled, training_files
from moescale.hardware.gpus import Gpu
from moescale.io.files import check_folder, explained, make_folder, write_atomically, write_error
from moescale.io.locks import lock_beside, locked, staged_folder
from moescale.io.records import record
from moescale.models.parameters import count_parameters
from moescale.models.recipe import Recipe, find_rule
from moescale.models.rounding import Buildable
from moescale.training.choice import Choice, Launch, choose_launch
from moescale.units import format_count, plural

NAMES = frozenset({"config.json", "run.toml", f"{MODULE}.py", ARGUMENTS, "run.sh", "README.md", SERVE})
"""Every file that an export of any format may hold."""
MOST_NAMED = 5  # of the files that are not of an export


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
        return record(self, without=("choice",)) | {"parallel": record(self.choice, without=("recipe",))}


def check_export(format: str, folder: Path) -> None:
    """Raise the InputError that `export_model` would for a format or a folder, which may hold files of an export alone."""
    if format not in FORMATS:
        raise unknown_name("format", format, FORMATS, where="--export")
    check_folder(folder)
    where, place = os.fspath(folder), Path(os.path.realpath(folder))
    with explained(write_error, where):
        found = sorted(os.scandir(place), key=lambda entry: entry.name) if place.exists() else []
        foreign = [each.name for each in found if each.name not in NAMES or not each.is_file(follow_symlinks=False)]
        if foreign:
            more = f" and {len(foreign) - MOST_NAMED} more" if len(foreign) > MOST_NAMED else ""
            what = f"holds what is not of an export: {', '.join(foreign[:MOST_NAMED])}{more}"
            step = "give a new folder, or move that away"
        elif found and os.path.islink(folder):
            what = f"is a link to {str(place)!r}, and nothing is overwritten through a link"
            step = "give that folder itself, or a new one"
        elif Path.cwd().is_relative_to(place):
            what = "cannot be replaced as a whole: it is the current folder"
            step = f"give a folder in it, such as {Path(where, 'launch')}"
        else:
            return
        raise UnwrittenError(what, where=where, next_step=step)


def export_model(
    shape: Buildable,
    tokens: float,
    format: str,
    folder: Path,
    *,
    gpu: Gpu,
    mfu: float | None = None,
    gpus: int | None = None,
    launch: Launch = Launch(),  # noqa: B008  # frozen
    server: Server | None = None,
    planned_flops: float | None = None,
) -> Export:
    """Write what `format` (hf, torchtitan or megatron) needs to train a shape on `tokens` tokens into a folder.

    `launch` states what is known of the recipe; its trainer is that of the format. With a `server` also the script that starts
    it on the trained model; `planned_flops` are what its plan counts. The folder is written whole or not at all.
    """
    check_export(format, folder)
    each = int(catalogue.read("export.toml")["choice"]["gpus_per_server"])
    if gpus is not None and gpus > each and gpus % each:
        below = gpus // each * each
        what, nearest = f"{gpus} GPUs do not fill whole servers of {each}", f"{below} or {below + each}"
        raise InputError(what, where="--train-gpus", nearest=nearest, next_step="give a multiple")
    launch, model = replace(launch, trainer=FORMATS[format]), shape.architecture()
    choice, counts = choose_launch(model, tokens, gpu, launch, mfu=mfu, gpus=gpus), count_parameters(model)
    recipe, rule = choice.recipe, find_rule(launch.rule)
    experts = "A dense model" if shape.n_experts == 1 else f"{shape.n_experts} experts"
    sizes = f"{format_count(float(counts.total))} parameters ({format_count(float(counts.active))} active)"
    title = f"{experts}, {sizes}, {format_count(tokens)} tokens."
    files, of_files = training_files(format, shape, recipe, choice.split, title)
    notes = [*recipe.notes]
    if rule.dense_only and shape.n_experts > 1 and (launch.batch_tokens is None or launch.peak_lr is None):
        notes.append(f"the rule {rule.name} was fitted to dense models; C counts the experts that a token meets")
    notes += of_files
    started = server and serve_script(server, recipe.sequence_tokens)
    files["README.md"] = filled(
        "README.md.j2",
        title=title,
        format=format,
        version=TORCHTITAN,
        recipe=recipe,
        choice=choice,
        planned_flops=planned_flops,
        notes=notes,
        server=server,
        serve=SERVE,
        started=started,
        split=split_in_words(choice),
    )
    if started:
        files[SERVE] = started.command
    target = Path(os.path.realpath(folder))
    make_folder(target.parent)
    step = "wait, or give another folder"
    busy = UnwrittenError("another process writes it", where=os.fspath(folder), next_step=step)
    with locked(lock_beside(target), busy=busy):
        check_export(format, folder)
        with staged_folder(target) as staged:  # an older export stays whole until the files take its place
            for name, text in files.items():
                write_atomically(staged / name, text)
    return Export(
        format=format,
        folder=str(folder),
        files=tuple(files),
        recipe=recipe,
        choice=choice,
        n_params_total=int(counts.total),
        n_params_active=int(counts.active),
        notes=tuple(notes),
    )


def split_in_words(choice: Choice) -> str:
    """The sizes of a run in a line."""
    s = choice.split
    return (
        f"{s.gpus} x {choice.gpu}: tensor {s.tensor}, pipeline {s.pipeline}, expert {s.expert}, data {s.data}; micro-batches "
        f"of {plural(s.micro_batch, 'sequence')}, {s.accumulation} a step{', layers recomputed' if s.recompute else ''}"
    )

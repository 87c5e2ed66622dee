"""Runs of a sweep on torchtitan or Megatron-LM: the launch that `export` writes, and its log read into a row."""

from __future__ import annotations

import math
import os
import re
from itertools import pairwise
from typing import Any

from moescale.errors import InputError
from moescale.experiments.settings import stated_columns
from moescale.experiments.sweep_file import Execution, PlannedRun
from moescale.export.launch import export_model
from moescale.hardware.gpus import find_gpu
from moescale.io.files import read_text
from moescale.models.recipe import defaults
from moescale.training.choice import Launch

LAST_LOSSES = 20  # logged training losses whose mean is the training loss of a run
LOG_LIMIT_BYTES = 2**28
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
NUMBER = r"([-+.\deEnaif]+)"
# torchtitan 0.3, components/metrics.py, MetricsProcessor.log and log_validation; Megatron-LM, training/training.py,
# training_log, and evaluate_and_print_results.
STEPS = {
    "torchtitan": re.compile(rf"(?<!validate )step:\s*(\d+)\s+loss:\s*{NUMBER}"),
    "megatron": re.compile(rf"iteration\s+(\d+)/\s*\d+ \|.*?lm loss:\s*{NUMBER}"),
}
VALIDATIONS = {
    "torchtitan": re.compile(rf"validate step:\s*(\d+)\s+loss:\s*{NUMBER}"),
    "megatron": re.compile(rf"validation loss at iteration (\d+).*?lm loss value:\s*{NUMBER}"),
}
SAME = ("peak_lr", "steps", "batch_tokens", "sequence_tokens", "schedule", "min_lr_ratio", "weight_decay", "beta1", "beta2",
        "grad_clip")  # fmt: skip


def write_launch(run: PlannedRun, engine: str, execution: Execution) -> list[str]:
    """Write the launch of a run beside its folder; the command that starts it.

    Raises InputError where the launch would train otherwise than the settings say.
    """
    t, folder = run.settings.training, run.beside("launch")
    launch = Launch(
        peak_lr=t.peak_lr, batch_tokens=t.batch_tokens, sequence_tokens=t.sequence_tokens, schedule=t.schedule
    )
    found = export_model(
        run.settings.model.buildable(), float(t.trained_tokens), engine, folder, gpu=find_gpu(str(execution.gpu)),
        gpus=execution.gpus, launch=launch,
    )  # fmt: skip
    recipe = found.recipe
    pairs = {key: (getattr(t, key), getattr(recipe, key)) for key in SAME}
    pairs["warmup"] = (round(t.warmup * t.steps), recipe.warmup_steps)
    for key, (stated, launched) in pairs.items():
        same = stated == launched if isinstance(stated, str) else math.isclose(stated, launched, rel_tol=1e-9)
        if not same and not (key == "warmup" and abs(stated - launched) <= 1):
            what = f"{key} is {stated}, and the launch for {engine} has {launched}"
            raise InputError(what, where=f"run {run.name}", next_step='take that, or engine = "moescale"')
    corpus, output = run.settings.data.corpus, str(run.output.absolute())
    given = {"OUTPUT": output, "TOKENIZER": corpus, "DATA": f"{corpus}/train", "CORPUS": corpus}
    stated = [f"{name}={os.environ.get(name, value) if name != 'OUTPUT' else value}" for name, value in given.items()]
    return ["env", *stated, "bash", str((folder / "run.sh").absolute())]


def read_log(run: PlannedRun, engine: str) -> list[dict[str, Any]] | None:
    """The row of a launched run from its log; None where the log does not reach the end of the run.

    `loss` is the validation loss where the log has one of the last step, else the mean of the last logged training losses
    (nats per token): `loss_of` says which.
    """
    log = run.beside("log")
    if not log.exists():
        return None
    text = COLOURS.sub("", read_text(log, limit_bytes=LOG_LIMIT_BYTES))
    steps = [(int(step), _number(loss)) for step, loss in STEPS[engine].findall(text)]
    validations = dict((int(step), _number(loss)) for step, loss in VALIDATIONS[engine].findall(text))
    last = run.settings.training.steps
    # A trainer logs every so many steps: the end is the last step that it would log.
    every = max((b - a for (a, _), (b, _) in pairwise(steps)), default=1)
    if not steps or steps[-1][0] <= last - max(every, 1):
        return None
    recent = [loss for _, loss in steps[-LAST_LOSSES:]]
    train_loss = sum(recent) / len(recent)
    loss = validations.get(last, train_loss)
    diverged = not math.isfinite(loss)
    return [
        {
            **stated_columns(run.settings, defaults().vocab_size),
            "loss": None if diverged else loss,
            "loss_of": "validation" if last in validations else "train",
            "train_loss": train_loss if math.isfinite(train_loss) else None,
            "diverged": diverged,
            "diverged_why": "the loss is not finite" if diverged else "",
            "engine": engine,
        }
    ]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

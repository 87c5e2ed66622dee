"""Tokens per second of `moescale train` against a plain transformers Trainer: same model, data, batch and optimiser.

    python benchmarks/training.py [--steps 12] [--rounds 3] [--experts 1,8]

Both run in this process, in turns, with one CPU thread; a round of each is compared by its median step, in time on the clock
and in CPU time, which other programs on the machine hardly change. The Trainer's steps are timed between its own callbacks,
without its start and end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.experiments.settings import RunSettings, settings_of

SEQUENCE, BATCH, MICRO = 256, 4096, 2048
WARM_UPS = 2  # steps of a round that are not counted


Seconds = npt.NDArray[np.float64]  # on the clock, and of CPU time


def now() -> Seconds:
    """The clock and the CPU time of this process."""
    return np.array([time.perf_counter(), time.process_time()])


class Sequences:
    """Random sequences, the same for both."""

    def __init__(self, count: int, length: int, vocab_size: int) -> None:
        self.tokens = np.random.default_rng(0).integers(0, vocab_size, (count, length))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, position: int) -> Any:
        return self.tokens[position]


class Corpus:
    """What a run asks of its data, without files."""

    vocab_size = 4096

    def sequences(self, split: str, length: int, seed: int, epoch: int = 0) -> Sequences:
        """The same for every split."""
        return Sequences(512, length, self.vocab_size)

    def epochs(self, tokens: int, length: int, max_epochs: float = 1) -> float:
        """Not of interest here."""
        return 1.0


def settings_for(experts: int, steps: int, output: str) -> RunSettings:
    """A model of 3M parameters (dense-equivalent, without embeddings)."""
    return settings_of(
        {
            "name": f"e{experts}", "output": output, "parallel": {"device": "cpu"},
            "model": {"d_model": 256, "n_layers": 4, "n_heads": 4, "experts": experts},
            "data": {"corpus": "none"},
            "training": {
                "tokens": steps * BATCH, "batch_tokens": BATCH, "sequence_tokens": SEQUENCE, "micro_batch_tokens": MICRO,
                "checkpoint_every_s": 0,
            },
        }
    )  # fmt: skip


def ours(settings: RunSettings, steps: int) -> Seconds:
    """Seconds of the median step of this package's loop."""
    trainer: Any = import_module("moescale.experiments.train")
    run = trainer.Run(settings, Corpus(), _silent)
    times: list[Seconds] = []
    for _ in range(steps):
        start = now()
        run._step()
        times.append(now() - start)
    return np.median(times[WARM_UPS:], axis=0)


def _silent(_: Any) -> None:
    pass


def plain(settings: RunSettings, steps: int) -> Seconds:
    """Seconds of the median step of transformers' Trainer."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    t = settings.training
    given = settings.model.config(Corpus.vocab_size)
    moe = {"output_router_logits": True, "router_aux_loss_coef": settings.model.balance_loss}
    config = transformers.AutoConfig.for_model(
        given.pop("model_type"), **given, use_cache=False, **(moe if settings.model.experts > 1 else {})
    )
    options = {"experts_implementation": "grouped_mm"} if settings.model.experts > 1 else {}
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    rows = Corpus().sequences("train", SEQUENCE, 0)
    data = [{"input_ids": (ids := torch.from_numpy(rows[i])), "labels": ids} for i in range(len(rows))]
    times: list[Seconds] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.start = now()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times.append(now() - self.start)

    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            output_dir=folder, use_cpu=True, max_steps=steps, per_device_train_batch_size=MICRO // SEQUENCE,
            gradient_accumulation_steps=BATCH // MICRO, learning_rate=t.peak_lr, adam_beta2=t.beta2,
            weight_decay=t.weight_decay, max_grad_norm=t.grad_clip, lr_scheduler_type="cosine_with_min_lr",
            lr_scheduler_kwargs={"min_lr_rate": t.min_lr_ratio}, optim="adamw_torch_fused", report_to="none",
            save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Clock()])
        with redirect_stdout(sys.stderr):  # it prints a summary
            trainer.train()
    return np.median(times[WARM_UPS:], axis=0)


def main() -> int:
    """Compare both for each number of experts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--experts", default="1,8")
    given = parser.parse_args()
    torch: Any = import_module("torch")
    torch.set_num_threads(1)
    sides: dict[str, Callable[[RunSettings, int], Seconds]] = {"moescale": ours, "Trainer": plain}
    with tempfile.TemporaryDirectory() as folder:
        for experts in map(int, given.experts.split(",")):
            settings = settings_for(experts, given.steps, str(Path(folder) / "run"))
            rounds = [{name: side(settings, given.steps) for name, side in sides.items()} for _ in range(given.rounds)]
            ratios = np.array([one["Trainer"] / one["moescale"] for one in rounds])
            answer = {
                "experts": experts,
                "tokens_per_s": {name: round(BATCH / float(np.median([r[name][0] for r in rounds]))) for name in sides},
                "speed_over_trainer": {
                    "clock": np.round(np.median(ratios[:, 0]), 3), "cpu": np.round(np.median(ratios[:, 1]), 3),
                },
                "rounds_cpu": np.round(ratios[:, 1], 3).tolist(),
            }  # fmt: skip
            print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

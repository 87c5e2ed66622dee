"""One run, step by step: a plain loop over torch, the same for one process and for many.

transformers' Trainer does not train tensor-parallel models, computes the balancing loss of each process on its own, and
keeps no trunk to branch from; a loop that does is shorter than its exceptions (docs/architecture.md).
"""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from moescale.errors import InputError
from moescale.experiments.data.corpus import Corpus, Sequences
from moescale.experiments.training import checkpoint, parallel, schedule
from moescale.experiments.training.flops import mfu
from moescale.experiments.training.health import Watch, balance
from moescale.experiments.training.model import build, materialise, routers_of, token_losses
from moescale.experiments.training.optimiser import adamw, clip
from moescale.experiments.training.settings import RunSettings, decay_steps
from moescale.io.files import write_atomically

PROGRESS_EVERY_S = 5.0
LAST_STEPS = 20  # whose mean is the training loss of a run

Report = Callable[[Mapping[str, Any]], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A stretch of steps without a turn: a whole cosine run, or a piece of a trunk, or a branch of it."""

    branch: int | None  # whose row it ends in: an index into the run's tokens; None for a piece of the trunk
    start: int
    stop: int

    @property
    def is_trunk(self) -> bool:
        """Whether the next branch and the next piece of trunk both start from its end."""
        return self.branch is None


@dataclass(slots=True)
class Position:
    """Where a run is: what a checkpoint holds besides tensors."""

    leg: int = 0
    step: int = 0  # within the run's order of data, and of the learning rate
    updates: int = 0
    branched: bool = False  # at the end of a branch: the trunk goes on from its fork
    seconds: float = 0.0  # of training, over all restarts
    trained_tokens: int = 0
    watch: dict[str, Any] = field(default_factory=dict[str, Any])
    shares: list[list[float]] = field(default_factory=list[list[float]])
    recent: list[float] = field(default_factory=list[float])  # the last training losses
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])


def legs(settings: RunSettings) -> list[Leg]:
    """The legs of a run, in the order in which they are trained."""
    training = settings.training
    if training.schedule == "cosine":
        return [Leg(branch=0, start=0, stop=training.steps(training.tokens[0]))]
    found: list[Leg] = []
    trunk = 0
    for branch, tokens in enumerate(training.tokens):
        steps = training.steps(tokens)
        fork = steps - decay_steps(training, steps)
        found += [Leg(branch=None, start=trunk, stop=fork), Leg(branch=branch, start=fork, stop=steps)]
        trunk = fork
    return found


def rate(settings: RunSettings, leg: Leg, step: int) -> float:
    """The learning rate of a 0-based step."""
    t = settings.training
    warmup = round(t.warmup * t.steps(t.tokens[0]))
    if t.schedule == "cosine":
        factor = schedule.cosine(step, steps=leg.stop, warmup_steps=warmup, min_ratio=t.min_lr_ratio)
    else:
        decay = 1 if leg.is_trunk else leg.stop - leg.start
        steps = leg.stop + (1 if leg.is_trunk else 0)  # a trunk never decays
        factor = schedule.warmup_stable_decay(
            step, steps=steps, warmup_steps=warmup, decay_steps=decay, min_ratio=t.min_lr_ratio
        )
    return t.peak_lr * factor


class Run:
    """A run in this process, with its model; `rows` trains what is left of it."""

    def __init__(self, settings: RunSettings, corpus: Corpus, layout: parallel.Layout, report: Report) -> None:
        self.settings, self.layout, self.report = settings, layout, report
        self.corpus, self.legs = corpus, legs(settings)
        self.folder = Path(settings.output) / "checkpoints"
        t = settings.training
        longest = t.steps(t.tokens[-1]) * t.batch_tokens
        self.epochs = [
            corpus.epochs(t.steps(d) * t.batch_tokens, t.sequence_tokens, settings.data.max_epochs) for d in t.tokens
        ]
        self.epoch: tuple[int, Sequences] = (0, corpus.sequences("train", t.sequence_tokens, settings.seed))
        if t.batch_sequences > len(self.epoch[1]) and longest > len(self.epoch[1]) * t.sequence_tokens:
            raise InputError(
                "the corpus holds less than one batch", next_step="pack more text, or make the batch smaller"
            )
        self.model = build(settings, corpus.vocab_size)
        if layout.mesh is not None:
            parallel.lay_out(self.model, layout, t.dtype)
        elif t.dtype == "bfloat16":
            parallel.cast_experts(self.model)
        materialise(self.model, layout.device, settings.seed)
        self.routers = routers_of(self.model, layout.device)
        self.optimiser = adamw(self.model, t)
        self.at = Position(shares=self.routers.shares.tolist())
        self.watch = Watch(steps=t.steps(t.tokens[-1]))
        self.device_name = parallel.describe(layout.device)
        self.last_report = self.last_checkpoint = time.monotonic()

    # Steps.

    def rows(self, resume: bool) -> list[dict[str, Any]]:
        """Train to the end; the measured part of the rows, one a branch. Every process calls this."""
        saved = checkpoint.names(self.folder) if resume else []
        if saved:
            self._restore(saved[-1])
            self._tell("resumed", checkpoint=saved[-1])
        elif self.layout.rank == 0:
            checkpoint.remove(self.folder, but=set())
        while self.at.leg < len(self.legs):
            leg = self.legs[self.at.leg]
            if leg.is_trunk and self.at.branched:
                self._fork(leg)
            while self.at.step < leg.stop and not self.watch.why:
                self._step(leg)
            if not leg.is_trunk:
                self.at.rows.append(self._finish(leg))
                self.at.branched = True
            elif self.watch.why:  # no further branch would be sound
                self.at.rows += [self._finish(rest) for rest in self.legs[self.at.leg + 1 :] if not rest.is_trunk]
                break
            self.at.leg += 1
            if len(self.legs) > 1 and self.at.leg < len(self.legs):
                self._save(f"fork-{leg.stop}" if leg.is_trunk else f"branch-{leg.stop}")
        return self.at.rows

    def _fork(self, leg: Leg) -> None:
        """Back to where the trunk was left; counters and rows go on."""
        kept = self.at
        self._restore(f"fork-{leg.start}")
        self.at.rows, self.at.leg = kept.rows, kept.leg
        self.at.seconds, self.at.trained_tokens = kept.seconds, kept.trained_tokens

    def _step(self, leg: Leg) -> None:
        t, start = self.settings.training, time.monotonic()
        lr = rate(self.settings, leg, self.at.step)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        micro, mine = self._batch(self.at.step)
        summed = torch.zeros((), dtype=torch.float64, device=self.layout.device)
        self.routers.on = True
        for number in range(0, len(mine), micro):
            self._synchronise(number + micro >= len(mine))
            ids = mine[number : number + micro]
            with self._autocast():
                losses = token_losses(self.model, ids).sum()
            loss = losses / (t.batch_sequences * (t.sequence_tokens - 1))
            (loss + self.settings.model.balance_loss * self.routers.loss(t.batch_tokens)).backward()
            summed += losses.detach()
        self.routers.on = False
        norm = clip(self.model.parameters(), t.grad_clip)
        # Clocks differ, and every process must decide alike whether a checkpoint is due.
        late = 0 < t.checkpoint_every_s <= start - self.last_checkpoint
        (total, late), counts = self._sum([float(summed), float(late)], self.routers.take())
        loss = total / self.settings.parallel.tensor / (t.batch_sequences * (t.sequence_tokens - 1))
        self.routers.use(counts)
        self.watch = self.watch.next(loss, norm)
        if math.isfinite(norm):
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.at.step += 1
        self.at.updates += 1
        self.at.trained_tokens += t.batch_tokens
        self.at.recent = [*self.at.recent, loss][-LAST_STEPS:]
        seconds = time.monotonic() - start
        self.at.seconds += seconds
        self._after(leg, loss, lr, norm, counts, seconds)
        due = late > 0 or (t.checkpoint_every_steps > 0 and self.at.step % t.checkpoint_every_steps == 0)
        if due and self.at.step < leg.stop and not self.watch.why:
            self._save(f"step-{self.at.leg}-{self.at.step}")

    def _batch(self, step: int) -> tuple[int, Tensor]:
        """This process's sequences of a step, (sequences, length), and how many make up a pass."""
        t, p = self.settings.training, self.settings.parallel
        count = t.batch_sequences // p.streams
        first = step * t.batch_sequences + self.layout.stream * count
        most = max(1, t.micro_batch_tokens // t.sequence_tokens)
        micro = max(size for size in range(1, count + 1) if count % size == 0 and size <= most)
        rows = np.stack([self._sequence(position) for position in range(first, first + count)])
        return micro, torch.from_numpy(rows).to(self.layout.device)

    def _sequence(self, position: int) -> NDArray[np.int64]:
        epoch, index = divmod(position, len(self.epoch[1]))
        if epoch != self.epoch[0]:
            length = self.settings.training.sequence_tokens
            self.epoch = (epoch, self.corpus.sequences("train", length, self.settings.seed, epoch))
        return self.epoch[1][index]

    def _synchronise(self, last: bool) -> None:
        """Gradients are summed over processes once a step."""
        if self.layout.mesh is not None:
            cast("Any", self.model).set_requires_gradient_sync(last)

    def _autocast(self) -> Any:
        bf16 = self.settings.training.dtype == "bfloat16"
        return torch.autocast(self.layout.device.type, torch.bfloat16) if bf16 else nullcontext()

    def _sum(self, numbers: list[float], counts: Tensor) -> tuple[list[float], Tensor]:
        """The sums of numbers and counts over all processes."""
        together = torch.cat([torch.tensor(numbers, dtype=counts.dtype, device=counts.device), counts.flatten()])
        if dist.is_initialized():
            dist.all_reduce(together)
        return together[: len(numbers)].tolist(), together[len(numbers) :].view_as(counts)

    # What follows a step.

    def _after(self, leg: Leg, loss: float, lr: float, norm: float, counts: Tensor, seconds: float) -> None:
        t, now = self.settings.training, time.monotonic()
        rate_now = t.batch_tokens / seconds
        if now - self.last_report >= PROGRESS_EVERY_S or self.at.step in (1, leg.stop) or self.watch.why:
            self.last_report = now
            used = balance(counts.cpu().numpy())
            utilisation = mfu(self.settings, self.corpus.vocab_size, self.device_name, rate_now)
            self._tell(
                "step", steps=leg.stop, loss=loss, lr=lr, grad_norm=norm, tokens_per_s=rate_now,
                **({} if utilisation is None else {"mfu": utilisation}),
                imbalance=used["imbalance"], dead_experts=used["dead_experts"],
            )  # fmt: skip

    def _save(self, name: str) -> None:
        self.at.watch, self.at.shares = asdict(self.watch), self.routers.shares.tolist()
        checkpoint.save(self.folder, name, self.model, self.optimiser, asdict(self.at))
        if self.layout.rank == 0:
            fork = [saved for saved in checkpoint.names(self.folder) if saved.startswith("fork-")][-1:]
            checkpoint.remove(self.folder, but={name, *fork})
        self.last_checkpoint = time.monotonic()
        self._tell("checkpoint", checkpoint=name)

    def _restore(self, name: str) -> None:
        state = checkpoint.load(self.folder, name, self.model, self.optimiser)
        self.at = Position(**state)
        self.watch = Watch(**self.at.watch)
        self.routers.shares = torch.tensor(self.at.shares, device=self.layout.device).view_as(self.routers.shares)

    def _tell(self, event: str, **values: Any) -> None:
        if self.layout.rank == 0:
            t = self.settings.training
            self.report(
                {"event": event, "step": self.at.step, "tokens": self.at.step * t.batch_tokens, **values,
                 "seconds": self.at.seconds}
            )  # fmt: skip

    def _finish(self, leg: Leg) -> dict[str, Any]:
        """What this process measures of a row."""
        assert leg.branch is not None
        t, why = self.settings.training, self.watch.why
        loss, counts = self.validate()
        if not why and not math.isfinite(loss):
            why = "the validation loss is not finite"
        steps = t.steps(t.tokens[leg.branch])
        self._tell("validation", steps=leg.stop, validation_loss=loss if math.isfinite(loss) else None)
        train_loss = float(np.mean(self.at.recent)) if self.at.recent else math.nan
        return {
            "branch": leg.branch,
            "tokens": steps * t.batch_tokens,
            "loss": loss if math.isfinite(loss) else None,
            "train_loss": train_loss if math.isfinite(train_loss) else None,
            "epochs": self.epochs[leg.branch],
            "tokens_per_s": self.at.trained_tokens / max(self.at.seconds, 1e-9),
            "diverged": bool(why),
            "diverged_why": why,
            **balance(counts),
        }

    @torch.no_grad()
    def validate(self) -> tuple[float, NDArray[np.float64]]:
        """Cross entropy (nats a token, without the balancing loss) on held-out sequences, and tokens by layer and expert."""
        t, p = self.settings.training, self.settings.parallel
        held_out = self.corpus.sequences("validation", t.sequence_tokens, self.settings.seed)
        count = min(len(held_out), max(1, t.validation_tokens // t.sequence_tokens))
        micro = max(1, t.micro_batch_tokens // t.sequence_tokens)
        summed = 0.0
        self.routers.take()
        self.model.eval()
        # Every process makes the same number of passes, as they exchange parts of the model in each; beyond the end they
        # see the first sequence again, which does not count.
        for start in range(0, count, micro * p.streams):
            mine = [start + self.layout.stream * micro + index for index in range(micro)]
            known = [position for position in mine if position < count]
            rows = np.stack([held_out[position] for position in known or [0]])
            self.routers.on = bool(known)
            with self._autocast():
                losses = token_losses(self.model, torch.from_numpy(rows).to(self.layout.device))
            summed += float(losses.double().sum()) if known else 0.0
        self.routers.on = False
        self.model.train()
        parallel.reshard(self.model)
        (summed,), counts = self._sum([summed], self.routers.take())
        return summed / p.tensor / (count * (t.sequence_tokens - 1)), counts.cpu().numpy()

    def save_model(self, folder: Path) -> None:
        """Write config.json and safetensors as transformers and vLLM read them, whole or not at all. Every process calls this.

        Raises UnwrittenError where they cannot be written.
        """
        whole: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            value = parameter.detach()
            full = cast("Any", value).full_tensor() if hasattr(value, "full_tensor") else value
            if self.layout.rank == 0:
                whole[name] = full.to("cpu", getattr(torch, self.settings.training.dtype))
        if self.layout.rank == 0:
            bare: Any = build(self.settings, self.corpus.vocab_size)
            bare.config.dtype = getattr(torch, self.settings.training.dtype)
            aside = folder.with_name(f".{folder.name}.tmp")
            shutil.rmtree(aside, ignore_errors=True)
            try:
                bare.save_pretrained(aside, state_dict=whole)
                # Other versions of transformers, and vLLM with them, name the number of experts as the model's own config does.
                path = aside / "config.json"
                config = json.loads(path.read_text(encoding="utf-8"))
                stated = {**self.settings.model.config(self.corpus.vocab_size), "use_cache": True}
                write_atomically(path, json.dumps({**config, **stated}, indent=2, sort_keys=True))
                shutil.rmtree(folder, ignore_errors=True)
                aside.rename(folder)
            except Exception as error:  # safetensors has its own kind
                shutil.rmtree(aside, ignore_errors=True)
                raise checkpoint.unwritten(folder, error) from error
        if dist.is_initialized():
            dist.barrier()

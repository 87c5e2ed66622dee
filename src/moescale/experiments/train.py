"""Train one run: a plain loop over torch, in one process or data parallel through accelerate (DDP, or FSDP2 with `fsdp`).

Read `Run` from the top: a step, the validation, what is written; then the model, its initial weights and its experts. transformers' Trainer is
not used: it computes the balancing loss of each process on its own, so that the loss would depend on their number.
"""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module

from moescale.errors import InputError, UnwrittenError
from moescale.experiments.corpus import Corpus
from moescale.experiments.health import Watch, balance
from moescale.experiments.settings import RunSettings, mfu, stated_columns
from moescale.io.files import append_line, opened_to_append, write_atomically, write_error
from moescale.io.frames import first_line
from moescale.models.recipe import defaults

PROGRESS_EVERY_S = 5.0
LAST_STEPS = 20  # whose mean is the training loss of a run
IGNORED = -100  # the label of a position that has no next token
METRICS = {"loss": "train/loss", "lr": "train/lr", "tokens_per_s": "train/tokens_per_s", "mfu": "train/mfu",
           "validation_loss": "validation/loss", "imbalance": "moe/imbalance", "dead_experts": "moe/dead_experts"}  # fmt: skip
"""Names of an event's figures in trackers."""

Report = Callable[[Mapping[str, Any]], None]


class Run:
    """A run in this process, with its model; `train` trains what is left of it."""

    def __init__(self, settings: RunSettings, corpus: Corpus, report: Report) -> None:
        t, p, folder = settings.training, settings.parallel, Path(settings.output)
        self.settings, self.corpus, self.report, self.folder = settings, corpus, report, folder / "checkpoints"
        self.epochs = corpus.epochs(t.trained_tokens, t.sequence_tokens, settings.data.max_epochs)
        # Of an epoch; the last two are kept, as a batch may lie in both.
        self.sequences = lru_cache(2)(partial(corpus.sequences, "train", t.sequence_tokens, settings.seed))
        self.per_epoch = len(self.sequences(0))
        self.accelerator = accelerator_of(settings, corpus.vocab_size)
        self.device, self.rank = self.accelerator.device, self.accelerator.process_index
        self.device_name = torch.cuda.get_device_name() if self.device.type == "cuda" else f"{platform.machine()} CPU"
        model = build(settings, corpus.vocab_size)
        self.routers = Routers(model, self.device)
        if t.dtype == "bfloat16" and not p.fsdp:
            cast_experts(model)
        groups = [[w for w in model.parameters() if w.ndim > 1], [w for w in model.parameters() if w.ndim <= 1]]
        optimiser = torch.optim.AdamW(
            [{"params": groups[0], "weight_decay": t.weight_decay}, {"params": groups[1], "weight_decay": 0.0}],
            lr=0.0, betas=(t.beta1, t.beta2), eps=defaults().adam_eps, fused=True,
        )  # fmt: skip
        self.model, self.optimiser = cast("tuple[Any, Any]", self.accelerator.prepare(model, optimiser))
        self.step, self.seconds = 0, 0.0  # of training, over all restarts
        self.recent: list[float] = []  # the last training losses
        self.watch = Watch(steps=t.steps)
        self.last_report = self.last_checkpoint = time.monotonic()

    def train(self, resume: bool) -> dict[str, Any]:
        """Train to the end; what was measured of the row. Every process calls this."""
        steps = self.settings.training.steps
        saved = self.folder.glob("step-*/state.json") if resume else ()
        if newest := max(saved, key=lambda file: file.stat().st_mtime_ns, default=None):
            self._load(newest.parent)
            self._tell("resumed", checkpoint=newest.parent.name)
        while self.step < steps and not self.watch.why:
            self._step()
        validation, counts = self.validate()
        loss, train_loss = (x if math.isfinite(x) else None for x in (validation, float(np.mean(self.recent))))
        why = self.watch.why or ("the validation loss is not finite" if loss is None else "")
        self._tell("validation", steps=steps, validation_loss=loss)
        return {
            "loss": loss,
            "train_loss": train_loss,
            "epochs": self.epochs,
            "tokens_per_s": self.step * self.settings.training.batch_tokens / max(self.seconds, 1e-9),
            "diverged": bool(why),
            "diverged_why": why,
            **balance(counts),
            "device": self.device_name,
            "torch": str(torch.__version__),
            "transformers": str(transformers.__version__),
        }

    def _step(self) -> None:
        t, start, world = self.settings.training, time.monotonic(), self.accelerator.num_processes
        lr = t.learning_rate(self.step)
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        micro, mine = self._batch(self.step)
        summed = torch.zeros((), dtype=torch.float64, device=self.device)
        self.routers.on = True
        for first in range(0, len(mine), micro):
            last = first + micro >= len(mine)
            with nullcontext() if last else self.accelerator.no_sync(self.model):
                losses = token_losses(self.model, mine[first : first + micro]).sum()
                loss = losses / (t.batch_sequences * (t.sequence_tokens - 1))
                loss = loss + self.settings.model.balance_loss * self.routers.loss(t.batch_tokens)
                # accelerate's layouts average gradients, and these are to be summed.
                self.accelerator.backward(loss * world)
            summed += losses.detach()
        self.routers.on = False
        clipped: Any = self.accelerator.clip_grad_norm_(self.model.parameters(), t.grad_clip)
        norm = float(clipped.full_tensor() if hasattr(clipped, "full_tensor") else clipped)
        # Clocks differ, and every process must decide alike whether a checkpoint is due.
        late = 0 < t.checkpoint_every_s <= start - self.last_checkpoint
        (total, late), counts = self._sum([float(summed), float(late)], self.routers.take())
        loss = total / (t.batch_sequences * (t.sequence_tokens - 1))
        self.routers.use(counts)
        self.watch = self.watch.next(loss, norm)
        if math.isfinite(norm):
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        self.recent = [*self.recent, loss][-LAST_STEPS:]
        seconds = time.monotonic() - start
        self.seconds += seconds
        if start - self.last_report >= PROGRESS_EVERY_S or self.step in (1, t.steps) or self.watch.why:
            self.last_report, rate, used = start, t.batch_tokens / seconds, balance(counts.cpu().numpy())
            utilisation = mfu(self.settings, self.corpus.vocab_size, self.device_name, rate)
            self._tell(
                "step", steps=t.steps, loss=loss, lr=lr, grad_norm=norm, tokens_per_s=rate,
                **({} if utilisation is None else {"mfu": utilisation}),
                imbalance=used["imbalance"], dead_experts=used["dead_experts"],
            )  # fmt: skip
        due = late > 0 or (t.checkpoint_every_steps > 0 and self.step % t.checkpoint_every_steps == 0)
        if due and self.step < t.steps and not self.watch.why:
            self._save()

    def _batch(self, step: int) -> tuple[int, Tensor]:
        """This process's sequences of a step, (sequences, length), and how many make up a pass."""
        t = self.settings.training
        count = t.batch_sequences // self.accelerator.num_processes
        first = step * t.batch_sequences + self.rank * count
        most = t.micro_batch_tokens // t.sequence_tokens
        micro = max(size for size in range(1, count + 1) if count % size == 0 and size <= most)
        places = [divmod(position, self.per_epoch) for position in range(first, first + count)]
        rows = np.stack([self.sequences(epoch)[index] for epoch, index in places])
        return micro, torch.from_numpy(rows).to(self.device)

    def _sum(self, numbers: list[float], counts: Tensor) -> tuple[list[float], Tensor]:
        together = torch.cat([torch.tensor(numbers, dtype=counts.dtype, device=counts.device), counts.flatten()])
        together = cast("Tensor", self.accelerator.reduce(together, "sum"))
        return together[: len(numbers)].tolist(), together[len(numbers) :].view_as(counts)

    @torch.no_grad()
    def validate(self) -> tuple[float, NDArray[np.float64]]:
        """Cross entropy (nats a token, without the balancing loss) on held-out sequences, and tokens by layer and expert."""
        t, world = self.settings.training, self.accelerator.num_processes
        held_out = self.corpus.sequences("validation", t.sequence_tokens, self.settings.seed)
        count = min(len(held_out), max(1, t.validation_tokens // t.sequence_tokens))
        micro, summed = t.micro_batch_tokens // t.sequence_tokens, 0.0
        self.routers.take()
        self.model.eval()
        # Every process makes the same number of passes, as they exchange parts of the model in each; beyond the end they
        # see the first sequence again, which does not count.
        for start in range(0, count, micro * world):
            known = [i for i in range(start + self.rank * micro, start + (self.rank + 1) * micro) if i < count]
            rows = np.stack([held_out[position] for position in known or [0]])
            self.routers.on = bool(known)
            losses = token_losses(self.model, torch.from_numpy(rows).to(self.device))
            summed += float(losses.double().sum()) if known else 0.0
        self.routers.on = False
        self.model.train()
        (summed,), counts = self._sum([summed], self.routers.take())
        return summed / (count * (t.sequence_tokens - 1)), counts.cpu().numpy()

    def _tell(self, event: str, **values: Any) -> None:
        if self.rank == 0:
            tokens = self.step * self.settings.training.batch_tokens
            self.report({"event": event, "step": self.step, "tokens": tokens, **values, "seconds": self.seconds})
        metrics = {METRICS[key]: float(value) for key, value in values.items() if key in METRICS and value is not None}
        if metrics:
            self.accelerator.log(metrics, step=self.step)

    # What is written.

    def _save(self) -> None:
        """Write a checkpoint; it takes its place only when it is whole. Every process calls this."""
        place = self.folder / f"step-{self.step}"
        state = {"step": self.step, "seconds": self.seconds, "recent": self.recent, "watch": asdict(self.watch)}
        state["shares"] = self.routers.shares.tolist()
        with self._whole(place) as aside:
            self.accelerator.save_state(str(aside))
            if self.rank == 0:
                write_atomically(aside / "state.json", json.dumps(state))
        if self.rank == 0:
            for other in self.folder.iterdir():
                if other != place:
                    shutil.rmtree(other, ignore_errors=True)
        self.last_checkpoint = time.monotonic()
        self._tell("checkpoint", checkpoint=place.name)

    def _load(self, place: Path) -> None:
        try:
            state = json.loads((place / "state.json").read_text(encoding="utf-8"))
            self.accelerator.load_state(str(place))
            self.step, self.seconds, self.recent = state["step"], state["seconds"], state["recent"]
            self.watch = Watch(**state["watch"])
            self.routers.shares = torch.tensor(state["shares"], device=self.device).view_as(self.routers.shares)
        except Exception as error:  # whatever torch, safetensors and JSON raise
            what = f"cannot be read as a checkpoint: {first_line(error)}"
            step = "remove that folder, or start over with --no-resume"
            raise InputError(what, where=str(place), next_step=step) from error

    def save_model(self, folder: Path) -> None:
        """Write config.json and safetensors as transformers and vLLM read them, whole or not at all. Every process calls this."""
        dtype = getattr(torch, self.settings.training.dtype)
        weights: Any = self.accelerator.get_state_dict(self.model)
        with self._whole(folder) as aside:
            if self.rank:
                return
            bare: Any = build(self.settings, self.corpus.vocab_size, device="meta")
            bare.config.dtype = dtype
            bare.save_pretrained(aside, state_dict={name: value.to("cpu", dtype) for name, value in weights.items()})
            # Other versions of transformers, and vLLM with them, name the number of experts as the model's own config does.
            config = json.loads((aside / "config.json").read_text(encoding="utf-8"))
            config |= {**self.settings.model.config(self.corpus.vocab_size), "use_cache": True}
            write_atomically(aside / "config.json", json.dumps(config, indent=2, sort_keys=True))

    @contextmanager
    def _whole(self, place: Path) -> Generator[Path]:
        """A folder beside `place` to be filled, which then takes its place; nothing is left of it where that fails."""
        aside = place.with_name(f".{place.name}.tmp")
        try:
            if self.rank == 0:
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
            self.accelerator.wait_for_everyone()
            yield aside
            self.accelerator.wait_for_everyone()
            if self.rank == 0:
                shutil.rmtree(place, ignore_errors=True)
                aside.rename(place)
        except Exception as error:
            shutil.rmtree(aside, ignore_errors=True)
            if isinstance(error, OSError | InputError):
                raise
            what = f"cannot be written: {first_line(error)}"  # as torch and safetensors word it
            step = "mend it; the run goes on from its last checkpoint"
            raise UnwrittenError(what, where=str(place), next_step=step) from error
        self.accelerator.wait_for_everyone()


def measure(settings: RunSettings, corpus: Corpus, *, resume: bool, report: Report) -> dict[str, Any]:
    """Train in this process and the others of its group, each event a line of progress.jsonl and reported; what was measured."""
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(settings.parallel.threads)
    folder = Path(settings.output)
    try:
        with opened_to_append(folder / "progress.jsonl") as stream:

            def tell(event: Mapping[str, Any]) -> None:
                line = {"time": time.time(), **event}
                append_line(stream, json.dumps(line))
                report(line)

            run = Run(settings, corpus, tell)
            try:
                measured = run.train(resume)
                run.save_model(folder / "model")
                return measured
            finally:
                run.accelerator.end_training()
                AcceleratorState._reset_state(True)  # another run of this process has another one
    except torch.OutOfMemoryError as error:
        step = "make micro_batch_tokens smaller, set fsdp = true, or export the run for torchtitan or megatron"
        raise InputError(f"the run does not fit in memory: {first_line(error)}", next_step=step) from error
    except OSError as error:
        raise write_error(os.fsdecode(error.filename or folder), error) from error


def accelerator_of(settings: RunSettings, vocab_size: int) -> Accelerator:
    """What lays the run out over its processes, casts to bf16 and feeds the trackers."""
    t, p, folder = settings.training, settings.parallel, Path(settings.output)
    if p.device == "cuda" and not torch.cuda.is_available():
        raise InputError("this torch sees no CUDA device", where="[parallel], device", nearest="cpu")
    layout = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        reshard_after_forward=True,
        state_dict_type="SHARDED_STATE_DICT",
    )
    sharded = p.fsdp and p.processes > 1 and p.device != "cpu"  # on CPUs accelerate copies the model
    made = Accelerator(
        cpu=p.device == "cpu" or not torch.cuda.is_available(), mixed_precision="bf16" if t.dtype == "bfloat16" else "no",
        fsdp_plugin=layout if sharded else None, log_with=list(settings.tracking.to) or None, project_dir=folder / "tracking",
    )  # fmt: skip
    if settings.tracking.to:
        names: dict[str, Any] = {
            "mlflow": {"run_name": settings.name},
            "wandb": {"name": settings.name, "resume": "allow"},
        }
        made.init_trackers(settings.tracking.project, config=stated_columns(settings, vocab_size), init_kwargs=names)
    return made


# The model.


def build(settings: RunSettings, vocab_size: int, device: str = "cpu") -> nn.Module:
    """The model as transformers builds it, with initial weights that depend on the seed and each weight's name alone."""
    given = settings.model.config(vocab_size)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given, use_cache=False)
    # torch's grouped matrix product; the default loops over the experts
    options = {"experts_implementation": "grouped_mm"} if settings.model.experts > 1 else {}
    with torch.device(device):
        model = cast("nn.Module", transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options))
    with torch.no_grad():
        for name, parameter in model.named_parameters() if device != "meta" else ():
            digest = hashlib.sha256(f"{settings.seed}/{name}".encode()).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
            if parameter.ndim > 1:
                parameter.normal_(0.0, defaults().init_std, generator=generator)
            else:
                parameter.fill_(1.0)
    return model


def token_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """The summed cross entropy (nats) of each sequence of `ids` (sequences, length), float32 (sequences,)."""
    logits = model(input_ids=ids).logits.float()
    labels = nn.functional.pad(ids, (0, 1), value=IGNORED)[:, 1:]
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return each.view_as(ids).sum(dim=1)


class Routers:
    """The routers of a model: the loss that balances them, and how many tokens each expert was sent.

    The balancing loss is that of Switch Transformers (arXiv 2101.03961, equation 4), E sum_i f_i P_i a layer, the mean
    over layers, with P_i the mean probability of expert i over the whole batch and f_i its share of the tokens of the
    step before (even before the first). f has no gradient, so that loss and gradient add up over tokens: they are those of
    the global batch in one process or in many, whatever its micro-batches. Scores of a sigmoid are probabilities once their sum is 1
    (arXiv 2412.19437, equation 20).
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        modules = [layer.mlp.gate for layer in cast("Any", model).model.layers if hasattr(layer.mlp, "experts")]
        self.n_experts = int(modules[0].num_experts) if modules else 1
        self.sigmoid = bool(modules) and hasattr(modules[0], "e_score_correction_bias")
        shape, self.on = (len(modules), self.n_experts), False
        self.shares = torch.full(shape, 1.0 / self.n_experts, device=device)  # f: (layers, experts)
        self.counts = torch.zeros(shape, dtype=torch.float64, device=device)  # tokens by layer and expert since `take`
        self.probabilities: list[Tensor] = []  # sums over the tokens of one pass, a layer each
        for layer, module in enumerate(modules):
            module.register_forward_hook(partial(self._hook, layer))

    def _hook(self, layer: int, _module: nn.Module, _given: Any, answer: tuple[Tensor, Tensor, Tensor]) -> None:
        if self.on:
            logits, _, chosen = answer
            tokens = torch.ones_like(chosen, dtype=self.counts.dtype).flatten()
            self.counts[layer].scatter_add_(0, chosen.flatten(), tokens)
            if torch.is_grad_enabled():
                scores = logits.float()
                scores = nn.functional.logsigmoid(scores) if self.sigmoid else scores  # whose softmax is their share
                self.probabilities.append(torch.softmax(scores, dim=-1).sum(dim=0))

    def loss(self, batch_tokens: int) -> Tensor | float:
        """The part of the balancing loss that the tokens of the last pass make up, in a batch of `batch_tokens`."""
        found, self.probabilities = self.probabilities, []
        if not found:
            return 0.0
        return self.n_experts / len(found) / batch_tokens * (self.shares * torch.stack(found)).sum()

    def take(self) -> Tensor:
        """The counts (layers, experts) since they were last taken."""
        taken = self.counts.clone()
        self.counts.zero_()
        return taken

    def use(self, counts: Tensor) -> None:
        """Let the shares of these counts (layers, experts) be the f of what follows."""
        self.shares = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)).to(self.shares)


def cast_experts(model: nn.Module) -> None:
    """Let experts multiply in bf16: autocast does not know grouped products."""

    def cast_forward(experts: Any, forward: Callable[..., Tensor], *given: Tensor) -> Tensor:
        with _reparametrize_module(experts, {name: weight.bfloat16() for name, weight in experts.named_parameters()}):
            return forward(*given)

    for layer in cast("Any", model).model.layers:
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.forward = partial(cast_forward, layer.mlp.experts, layer.mlp.experts.forward)

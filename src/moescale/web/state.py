"""The state of the page: the query of its address, which is also the query of every request and a plan's command line.

A key is an option of `moescale plan` without its dashes, with the option's bounds; a link therefore reproduces a view.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from moescale.errors import InputError, MoescaleError, unknown_name
from moescale.hardware.gpus import Gpu, find_gpu, measured_reserve_bytes
from moescale.hardware.precisions import find_precision
from moescale.hardware.prices import usd_per_gpu_hour
from moescale.latency import LatencySource
from moescale.planning.allocation import Budget
from moescale.planning.plan import Question
from moescale.planning.total_cost import TrainingPrice, default_mfu, flops_of_gpu_hours
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.units import parse_count

# What holds where a query leaves a key out: the defaults of the command line (a test compares them).
DEFAULTS: Mapping[str, str] = {
    "budget": "5.15e21",
    "law": "yun2024-recovered",
    "experts": "1,4,8,16,32,64",
    "match-experts": "4",
    "gpu": "a100-sxm-40gb",
    "max-gpus": "8",
    "prompt": "230",
    "output": "203",
    "utilization": "1",
    "memory-fraction": "0.9",
    "max-num-seqs": "none",
    "weights": "bf16",
    "kv-cache": "bf16",
    "latency": "auto",
}
VIEW_KEYS = ("theme", "bands", "size")  # how the page shows it; no part of the question
MOST_COUNTS = 256  # expert counts of one plan
# What one request may ask for: expert counts x (GPU counts of a replica + the law's draws / DRAWS_PER_GPU). An answer takes
# some 3 ms of processor time for each count and GPU, and as much for each count and 50 draws (measured over 1 to 64
# counts, 1 to 640 GPUs and 64 to 20,000 draws): two seconds at the limit. The command line has no such bound.
MOST_WORK = 700.0
DRAWS_PER_GPU = 50.0
LONGEST = 200  # characters of a value

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a number of the state may be."""

    least: float
    most: float
    whole: bool = False


# The bounds of the command line's options (a test compares them); the upper ones are far beyond what exists.
NUMBERS: Mapping[str, Bounds] = {
    "budget": Bounds(0, math.inf),
    "gpu-hours": Bounds(1e-6, 1e15),
    "mfu": Bounds(1e-6, 1),
    "match-experts": Bounds(1, 1e6, whole=True),
    "max-loss": Bounds(1e-12, 1e3),
    "max-usd-per-mtok": Bounds(1e-12, 1e6),
    "max-tokens": Bounds(1, 1e24),
    "unique-tokens": Bounds(1, 1e24),
    "granularity": Bounds(1e-6, 1e6),
    "sparsity": Bounds(0, 1),
    "max-gpus": Bounds(1, 1024, whole=True),
    "prompt": Bounds(1, 1e9),
    "output": Bounds(1, 1e9),
    "usd-per-gpu-hour": Bounds(1e-6, 1e6),
    "utilization": Bounds(1e-6, 1),
    "memory-fraction": Bounds(1e-6, 1),
    "kv-heads": Bounds(1, 1e6, whole=True),
}
TEXTS = ("law", "experts", "gpu", "train-gpu", "max-num-seqs", "weights", "kv-cache", "latency")
KEYS = (*NUMBERS, *TEXTS, *VIEW_KEYS)
OPTION_ORDER = (
    "budget", "law", "experts", "match-experts", "max-loss", "max-usd-per-mtok", "max-tokens", "unique-tokens",
    "granularity", "sparsity", "train-gpu", "mfu", "gpu", "max-gpus", "usd-per-gpu-hour", "prompt", "output", "utilization",
    "memory-fraction", "max-num-seqs", "weights", "kv-cache", "kv-heads", "latency",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as the public functions take it, the command that asks the same, and remarks."""

    law: Law
    question: Question
    deployment: Deployment
    latency: LatencySource
    command: str
    notes: tuple[str, ...]


def read_state(query: Mapping[str, str], laws: Callable[[str], Law]) -> Asked:
    """The question of a query; `laws` finds a law by name and never reads a file.

    Raises InputError, whose `where` is the key, for unknown keys and impossible values.
    """
    for key, value in query.items():
        if key not in KEYS:
            raise unknown_name("setting", key[:LONGEST], KEYS, where="address")
        if len(value) > LONGEST:
            raise InputError(f"{len(value)} characters are too long", where=key, nearest=f"at most {LONGEST}")
    given = {key: value for key, value in query.items() if value.strip()}
    text = {**DEFAULTS, **given}
    number = {key: _number(key, text[key]) for key in NUMBERS if key in text}
    gpu = _at("gpu", lambda: find_gpu(text["gpu"]))
    law = _at("law", lambda: laws(text["law"]))
    flops = _budget(text, number)
    deployment, own_price = _deployment(text, number, gpu)
    source, notes = _latency(text["latency"], deployment)
    counts = _expert_counts(text["experts"])
    match = number["match-experts"]
    _check_work(len({*counts, match}), deployment.max_gpus, len(law.draws))
    ceiling = law.max_experts
    if ceiling is not None and min(*counts, match) > ceiling:
        raise InputError(
            f"{law.name} was fitted up to {ceiling:g} experts and may recommend no more",
            where="experts",
            nearest=f"{ceiling:g}",
            next_step="add a count that the law may recommend",
        )
    further = {k.replace("-", "_"): number[k] for k in ("unique-tokens", "granularity", "sparsity") if k in number}
    question = Question(
        budget=Budget(flops, number.get("max-tokens"), further),
        experts=counts,
        match_experts=match,
        max_loss=number.get("max-loss"),
        max_usd_per_mtok=number.get("max-usd-per-mtok"),
        kv_heads=number.get("kv-heads"),
        training=_training(text, number, deployment),
    )
    said = {**given, "budget": f"{flops!r}"} if "gpu-hours" in number else {"budget": text["budget"], **given}
    if question.training is None:
        said = {key: value for key, value in said.items() if key not in ("train-gpu", "mfu")}
    else:
        said["train-gpu"] = question.training.gpu.name
    if own_price is not None:
        said["usd-per-gpu-hour"] = text["usd-per-gpu-hour"]
    return Asked(
        law=law,
        question=question,
        deployment=deployment,
        latency=source,
        command=_command(said, law),
        notes=notes,
    )


def _number(key: str, text: str) -> float:
    bounds = NUMBERS[key]
    value = _at(key, lambda: parse_count(text))
    if not bounds.least <= value <= bounds.most or (bounds.whole and not value.is_integer()):
        raise InputError(
            f"{text!r} is not {'a whole number' if bounds.whole else 'a number'} from {bounds.least:g} to {bounds.most:g}",
            where=key,
            nearest=f"{min(max(round(value) if bounds.whole else value, bounds.least), bounds.most):g}",
        )
    return value


def _at(key: str, make: Callable[[], T]) -> T:
    """What `make` returns; an error that names no place names the key."""
    try:
        return make()
    except InputError as error:
        if error.where is not None:
            raise
        raise InputError(error.what, where=key, nearest=error.nearest, next_step=error.next_step) from error


def _budget(text: Mapping[str, str], number: Mapping[str, float]) -> float:
    hours = number.get("gpu-hours")
    if hours is None:
        return number["budget"]
    gpu = _at("train-gpu", lambda: find_gpu(text.get("train-gpu", text["gpu"])))
    return flops_of_gpu_hours(gpu, hours, number.get("mfu", default_mfu()))


def _training(text: Mapping[str, str], number: Mapping[str, float], deployment: Deployment) -> TrainingPrice | None:
    """The price of training where a GPU to train on is named or hours of it are; None where it has no price."""
    if "gpu-hours" not in number and "train-gpu" not in text:
        return None
    gpu = _at("train-gpu", lambda: find_gpu(text.get("train-gpu", text["gpu"])))
    try:
        usd = float(deployment.usd_per_gpu_hour) if gpu.name == deployment.gpu.name else usd_per_gpu_hour(gpu)
    except InputError:
        return None
    return TrainingPrice(gpu=gpu, usd_per_gpu_hour=usd, mfu=number.get("mfu", default_mfu()))


def _deployment(text: Mapping[str, str], number: Mapping[str, float], gpu: Gpu) -> tuple[Deployment, float | None]:
    price = number.get("usd-per-gpu-hour")
    most = text["max-num-seqs"].strip().lower()
    seqs = None if most == "none" else _whole("max-num-seqs", most)
    deployment = Deployment(
        gpu=gpu,
        usd_per_gpu_hour=_at("gpu", lambda: usd_per_gpu_hour(gpu)) if price is None else price,
        prompt_tokens=number["prompt"],
        output_tokens=number["output"],
        max_gpus=int(number["max-gpus"]),
        max_num_seqs=seqs,
        memory_fraction=number["memory-fraction"],
        utilization=number["utilization"],
        reserve_bytes=measured_reserve_bytes(),
        weight_bytes_per_param=_at(
            "weights", lambda: find_precision("weights", text["weights"]).bytes_per_element
        ),
        kv_bytes_per_element=_at(
            "kv-cache", lambda: find_precision("kv_cache", text["kv-cache"]).bytes_per_element
        ),
    )  # fmt: skip
    return deployment, price


def _whole(key: str, text: str) -> float:
    value = _at(key, lambda: parse_count(text))
    if not (1 <= value <= 1e6 and value.is_integer()):
        raise InputError(f"{text!r} is not a whole number from 1 to 1e+06", where=key, nearest="none")
    return value


def _expert_counts(text: str) -> tuple[float, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= MOST_COUNTS:
        what = f"{len(parts)} expert counts" if parts else f"{text!r} is not a list of expert counts"
        raise InputError(what, where="experts", nearest=f"1 to {MOST_COUNTS} counts", next_step="such as 1,4,8,16")
    return tuple(_whole("experts", part) for part in parts)


def _check_work(counts: int, gpus: int, draws: int) -> None:
    if counts * (gpus + draws / DRAWS_PER_GPU) <= MOST_WORK:
        return
    # What each of the three may be where the others stay, by the key that sets it.
    most = {
        "max-gpus": (math.floor(MOST_WORK / counts - draws / DRAWS_PER_GPU), "GPUs"),
        "experts": (math.floor(MOST_WORK / (gpus + draws / DRAWS_PER_GPU)), "expert counts"),
        "law": (math.floor(DRAWS_PER_GPU * (MOST_WORK / counts - gpus)), "draws"),
    }
    less = {key: f"{value} {name}" for key, (value, name) in most.items() if value >= 1}
    raise InputError(
        f"{counts} expert counts on up to {gpus} GPUs under a law of {draws} draws are more than the page computes at a time",
        where=next(iter(less), "max-gpus"),
        nearest=" or ".join(less.values()) or None,
        next_step="ask for less, or run `moescale plan`, which has no such limit",
    )


def _latency(name: str, deployment: Deployment) -> tuple[LatencySource, tuple[str, ...]]:
    """Measured kernels or the roofline; never a table, whose name would be a path."""
    from moescale.latency.roofline import Roofline
    from moescale.latency.silicon import Silicon

    gpu = deployment.gpu
    weights, cache = float(deployment.weight_bytes_per_param), float(deployment.kv_bytes_per_element)
    if name not in ("auto", "silicon", "roofline"):
        raise unknown_name("latency source", name, ("auto", "silicon", "roofline"), where="latency")
    notes: tuple[str, ...] = ()
    if name != "roofline":
        try:
            silicon = Silicon(gpu, weight_bytes_per_param=weights, kv_bytes_per_element=cache)
        except MoescaleError as error:
            if name == "silicon":
                raise InputError(
                    error.what, where="latency", nearest=error.nearest, next_step=error.next_step
                ) from error
            notes = (f"roofline latency, because {error.what}",)
        else:
            return silicon, notes
    return Roofline(gpu, weights, cache), notes


def _command(given: Mapping[str, str], law: Law) -> str:
    """The command line that asks the same question; a law that was uploaded is named by its file."""
    words = ["moescale", "plan"]
    for key in OPTION_ORDER:
        value = given.get(key, "").strip()
        if not value or (key != "budget" and value == DEFAULTS.get(key)):
            continue
        if key == "law" and ":" in value:
            value = f"{law.name}.toml"
        words += [f"--{key}", value]
    return shlex.join(words)

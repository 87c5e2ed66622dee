"""The state of the page: the query of its address, which is also the query of every request and a plan's command line.

A key is an option of `moescale plan` without its dashes, with the option's bounds; a link therefore reproduces a view.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from moescale.errors import InputError, MoescaleError, located, unknown_name
from moescale.hardware.gpus import find_gpu
from moescale.latency import LatencySource
from moescale.options.fields import Group
from moescale.options.law import LawOptions
from moescale.options.question import BoundOptions
from moescale.options.serving import DEFAULT_TRAFFIC, ServingOptions
from moescale.planning.plan import Plan, Question
from moescale.scaling_laws.law import Law
from moescale.serving.deployment import Deployment
from moescale.web.query import BUDGETS, DEFAULT_BUDGET, OPTIONS, VIEW_KEYS

LATENCIES = ("auto", "silicon", "roofline")  # never a table, whose name would be a path
# What one request may ask for: expert counts x (GPU counts of a replica + the law's draws / DRAWS_PER_GPU). An answer takes
# some 3 ms of processor time for each count and GPU, and as much for each count and 50 draws (measured over 1 to 64
# counts, 1 to 640 GPUs and 64 to 20,000 draws): two seconds at the limit. The command line has no such bound.
MOST_WORK = 700.0
DRAWS_PER_GPU = 50.0
# A whole life takes 4 to 10 s more under an average of laws and 0.3 s under one, whatever else is asked (measured over 6 to 12
# counts, 8 to 32 GPUs): so many times the work, which keeps an answer within the pool's limit.
LIFE_WORK = 5.0
LONGEST = 200  # characters of a value

Options = TypeVar("Options", bound=Group)


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


KEYS = (*OPTIONS, *VIEW_KEYS)
# What holds where a query leaves a key out, as the controls show it.
DEFAULTS: Mapping[str, str] = {
    "budget": DEFAULT_BUDGET,
    "prompt": f"{DEFAULT_TRAFFIC[0]:g}",
    "output": f"{DEFAULT_TRAFFIC[1]:g}",
    "kv-cache": "bf16",
    **{key: _shown(getattr(group, name)) for key, (group, name, _) in OPTIONS.items() if getattr(group, name, None)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as the public functions take it, the command that asks the same, and remarks."""

    law: Law
    question: Question
    deployment: Deployment
    latency: LatencySource
    command: str
    notes: tuple[str, ...]
    plan: Callable[[], Plan]


def read_state(query: Mapping[str, str], laws: Callable[[str], Law]) -> Asked:
    """The question of a query; `laws` finds a law by name and never reads a file.

    Raises InputError, whose `where` is the key, for unknown keys and impossible values.
    """
    for key, value in query.items():
        if key not in KEYS:
            raise unknown_name("setting", key[:LONGEST], KEYS, where="address")
        if len(value) > LONGEST and key not in VIEW_KEYS:
            raise InputError(f"{len(value)} characters are too long", where=key, nearest=f"at most {LONGEST}")
    given = {key: value for key, value in query.items() if value.strip()}
    if not any(key in given for key in BUDGETS):
        given["budget"] = DEFAULTS["budget"]
    for key in ("gpu", "train-gpu"):  # by name, and never a file
        if key in given:
            with located(key):
                given[key] = find_gpu(given[key]).name
    bounds, about, serving = _read(BoundOptions, given), _read(LawOptions, given), _read(ServingOptions, given)
    if serving.latency not in LATENCIES:
        raise unknown_name("latency source", serving.latency, LATENCIES, where="latency")
    notes: list[str] = []
    with _places_as_keys():
        law = about.find_law(laws)
        with located("gpu"):
            deployment = serving.deployment(remark=notes.append)
        question = bounds.question(law, deployment, about, kv_heads=serving.kv_heads, unpriced=True)
    life = LIFE_WORK if question.life is not None else 1.0
    _check_work(len({*question.experts, question.match_experts}), deployment.max_gpus, len(law.draws), life)
    if question.training is None:  # of a GPU without a price
        bounds = replace(bounds, train_gpu=None, mfu=None)
    try:
        source = serving.open_latency(deployment, remark=notes.append)
    except MoescaleError as error:
        raise InputError(error.what, where="latency", nearest=error.nearest, next_step=error.next_step) from error
    return Asked(
        law=law,
        question=question,
        deployment=deployment,
        latency=source,
        command=_command((bounds, about, serving), given, law),
        notes=tuple(notes),
        plan=partial(bounds.plan, law, deployment, source, about, kv_heads=serving.kv_heads, unpriced=True),
    )


def _read(group: type[Options], given: Mapping[str, str]) -> Options:
    stated = {
        name: kind.parse(given[key], key) for key, (of, name, kind) in OPTIONS.items() if of is group and key in given
    }
    return group(**stated)


@contextmanager
def _places_as_keys() -> Generator[None]:
    try:
        yield
    except InputError as error:
        where = error.where and error.where.removeprefix("--")
        raise type(error)(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error


def _check_work(counts: int, gpus: int, draws: int, life: float) -> None:
    room = MOST_WORK / life
    if counts * (gpus + draws / DRAWS_PER_GPU) <= room:
        return
    # What each of the three may be where the others stay, by the key that sets it.
    most = {
        "max-gpus": (math.floor(room / counts - draws / DRAWS_PER_GPU), "GPUs"),
        "experts": (math.floor(room / (gpus + draws / DRAWS_PER_GPU)), "expert counts"),
        "law": (math.floor(DRAWS_PER_GPU * (room / counts - gpus)), "draws"),
    }
    less = {key: f"{value} {name}" for key, (value, name) in most.items() if value >= 1}
    raise InputError(
        f"{counts} expert counts on up to {gpus} GPUs under a law of {draws} draws{'' if life == 1 else ', for a whole life,'} are "
        "more than the page computes at a time",
        where=next(iter(less), "max-gpus"),
        nearest=" or ".join(less.values()) or None,
        next_step="ask for less, or run `moescale plan`, which has no such limit",
    )


def _command(groups: Iterable[Group], given: Mapping[str, str], law: Law) -> str:
    stated = {type(group): group for group in groups}
    words = ["moescale", "plan"]
    for key, (group, name, kind) in OPTIONS.items():
        value = getattr(stated[group], name)
        if value == getattr(group, name, None):
            continue
        as_given = key in given and kind.parse(given[key], key) == value
        text = given[key].strip() if as_given else str(value)
        words += [f"--{key}", f"{law.name}.toml" if key == "law" and ":" in text else text]
    return shlex.join(words)

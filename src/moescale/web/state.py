"""The question of a query, which is that of the page's address: its keys are options of `moescale plan` without dashes."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from moescale.errors import InputError, MoescaleError, located, unknown_name
from moescale.hardware.gpus import find_gpu
from moescale.options.fields import Described, FilePath, Group, described, option_name
from moescale.options.law import LawOptions
from moescale.options.planned import PlanRequest
from moescale.options.question import BoundOptions
from moescale.options.serving import DEFAULT_TRAFFIC, NODE, PLANNED_TPOT_S, ServingOptions
from moescale.planning.question import Question
from moescale.scaling_laws.law import Law
from moescale.web.store import PREFIX

LATENCIES = ("auto", "silicon", "roofline")  # never a table, whose name would be a path
BUDGETS = ("budget", "days", "budget-usd")  # keys that state the budget
# What one request may ask for: expert counts x (GPU counts of a replica + the law's draws / DRAWS_PER_GPU). An answer takes
# some 3 ms of processor time for each count and GPU, and as much for each count and 50 draws (measured over 1 to 64
# counts, 1 to 640 GPUs and 64 to 20,000 draws): two seconds at the limit. The command line has no such bound.
MOST_WORK = 700.0
DRAWS_PER_GPU = 50.0
SWITCH = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# A whole life takes 4 to 10 s more under an average of laws and 0.3 s under one, whatever else is asked (measured over 6 to 12
# counts, 8 to 32 GPUs): so many times the work, which keeps an answer within the pool's limit.
LIFE_WORK = 5.0

Options = TypeVar("Options", bound=Group)

# By key: the options that hold it, its field, and what it is. None opens a file.
OPTIONS: Mapping[str, tuple[type[Group], str, Described]] = {
    option_name(name, kind).removeprefix("--"): (group, name, kind)
    for group in (BoundOptions, LawOptions, ServingOptions)
    for name, kind in described(group).items()
    if not isinstance(kind, FilePath)
}


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


# What holds where a query leaves a key out, as the controls show it.
DEFAULTS: Mapping[str, str] = {
    "budget": "5.15e21",  # that of the default plan
    "prompt": _shown(DEFAULT_TRAFFIC[0]),
    "output": _shown(DEFAULT_TRAFFIC[1]),
    "kv-cache": "bf16",
    "max-gpus": _shown(NODE),
    **{key: _shown(getattr(group, name)) for key, (group, name, _) in OPTIONS.items() if getattr(group, name, None)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A question as the public functions take it, the command that asks the same, and remarks."""

    law: Law
    question: Question
    request: PlanRequest
    command: str
    notes: tuple[str, ...]


def read_state(query: Mapping[str, str], laws: Callable[[str], Law]) -> Asked:
    """The question of a query; `laws` finds a law by name and never reads a file.

    Raises InputError, whose `where` is the key, for unknown keys and impossible values.
    """
    given = {key: value.strip() for key, value in query.items() if value.strip()}
    for key in given.keys() - OPTIONS.keys():
        raise unknown_name("setting", key, OPTIONS, where="address")
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
    try:
        law = about.find_law(laws)
        with located("gpu"):
            deployment = serving.deployment(usual_tpot_s=PLANNED_TPOT_S, remark=notes.append)
        question = bounds.question(law, deployment, about, kv_heads=serving.kv_heads)
    except InputError as error:
        where = error.where and error.where.removeprefix("--")
        raise type(error)(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from error
    _check_work(question, deployment.max_gpus, len(law.draws))
    try:
        source = serving.open_latency(deployment, remark=notes.append)
    except MoescaleError as error:
        raise InputError(error.what, where="latency", nearest=error.nearest, next_step=error.next_step) from error
    request = PlanRequest(
        bounds=bounds,
        deployment=deployment,
        latency=source,
        details=about,
        serving=serving,
    )
    command = _command({type(group): group for group in (bounds, about, serving)}, given, law)
    return Asked(law=law, question=question, request=request, command=command, notes=tuple(notes))


def faults(query: Mapping[str, str], laws: Callable[[str], Law]) -> dict[str, InputError]:
    """The keys of a query without which the rest is a question, each with what is wrong with it."""
    unknown = query.keys() - OPTIONS.keys()
    found: dict[str, InputError] = {key: unknown_name("setting", key, OPTIONS, where="address") for key in unknown}
    while True:
        kept = {key: value for key, value in query.items() if key not in found}
        try:
            read_state(kept, laws)
        except InputError as error:
            where = error.where or ""
            if where in kept and not kept[where].startswith(PREFIX):  # a lost upload can be given again
                found[where] = error
                continue
        except MoescaleError:
            pass
        return found


def _read(group: type[Options], given: Mapping[str, str]) -> Options:
    own = ((key, name, kind) for key, (of, name, kind) in OPTIONS.items() if of is group and key in given)
    return group(**{name: (kind.parse if kind.metavar else _switch)(given[key], key) for key, name, kind in own})


def _switch(text: str, key: str) -> bool:
    if (found := SWITCH.get(text.lower())) is None:
        what = f"{text!r} is no state of a switch"
        raise InputError(what, where=key, nearest="true or false", next_step="or leave it out")
    return found


def _check_work(question: Question, gpus: int, draws: int) -> None:
    counts = len({*question.experts, question.match_experts})
    most = MOST_WORK if question.life is None else MOST_WORK / LIFE_WORK
    if counts * (gpus + draws / DRAWS_PER_GPU) > most:
        fewer, life = int(most / counts - draws / DRAWS_PER_GPU), "" if question.life is None else ", for a whole life,"
        what = f"{counts} expert counts on up to {gpus} GPUs under a law of {draws} draws{life}"
        raise InputError(
            f"{what} are more than the page computes at a time",
            where="max-gpus",
            nearest=f"{fewer} GPUs" if fewer >= 1 else None,
            next_step="ask for fewer GPUs, expert counts or draws, or run `moescale plan`, which has no such limit",
        )


def _command(stated: Mapping[type[Group], Group], given: Mapping[str, str], law: Law) -> str:
    words = ["moescale", "plan"]
    for key, (group, name, kind) in OPTIONS.items():
        if key in given and getattr(stated[group], name) != getattr(group, name, None):
            value = f"{law.name}.toml" if key == "law" and ":" in given[key] else given[key]
            words += [f"--{key}", value] if kind.metavar else [f"--{key}"]
    return shlex.join(words)

"""The answers of the page, in a process of its pool: a task in, JSON-ready records of the public functions' results out."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError, MoescaleError
from moescale.hardware.gpus import Gpu, gpus
from moescale.hardware.precisions import precisions
from moescale.hardware.prices import usd_per_gpu_hour
from moescale.options.known import published_models
from moescale.options.law import SHAPES, shape_name
from moescale.options.planned import PlanRequest
from moescale.planning.curves import Draft, draft_plan, loss_band, scaling
from moescale.planning.plan import Plan, Question
from moescale.planning.question import CONFIDENCE, prepare
from moescale.planning.search import FRONTIER_SIZES, costs_of, known_model
from moescale.scaling_laws import catalogue_names, find_law
from moescale.scaling_laws.law import Law
from moescale.scaling_laws.store import law_text, parse_law
from moescale.serving.steady_state import LIMITS, REASONS
from moescale.units import expert_label
from moescale.views.figures.style import ACCENT, colour_of, colour_on_dark, marker_of
from moescale.views.tables import Table, choices
from moescale.views.tables import answer as words
from moescale.views.tables import plan as tables
from moescale.web.state import DEFAULTS, LATENCIES, Asked, faults, read_state
from moescale.web.store import LAW_LIMIT_BYTES, PREFIX, Uploaded, find, text_of

Record = dict[str, Any]

BUDGETS = np.geomspace(1e18, 1e26, 25)  # of the scaling chart: from a laptop's training run to beyond the largest known
# A published model is drawn beside a plan of at most so many times its training FLOPs, or so small a part.
ALIKE_BUDGETS = 30.0
SKETCHED = 10  # sizes of a curve up to its optimum while a slider moves
# Markers of matplotlib's letters as Vega calls them.
VEGA_MARKERS = {"o": "circle", "s": "square", "v": "triangle-down", "p": "cross", "h": "stroke", "d": "diamond",
                "D": "diamond", "^": "triangle-up", "<": "triangle-left", ">": "triangle-right"}  # fmt: skip

# What a curve of the main chart has at each size: of `Draft`, and of its serving.
DRAWN = ("n_params", "n_params_active", "n_params_total", "tokens", "loss")
SERVED = (
    *("usd_per_mtok", "gpus", "batch", "prefill_s", "decode_s", "tpot_s", "ttft_s", "throughput_tok_s"),
    *("weight_bytes_per_gpu", "kv_bytes_per_token", "limited_by", "infeasible"),
)


def look(experts: float) -> Record:
    """How an expert count is drawn, the same in every chart and figure."""
    return {
        "experts": experts,
        "label": expert_label(experts),
        "colour": colour_of(experts),
        "colour_on_dark": colour_on_dark(experts),
        "marker": VEGA_MARKERS[marker_of(experts)],
    }


def catalogue(laws: Iterable[Uploaded], default_law: str) -> Record:
    """What the controls offer, with their bounds and defaults."""
    return {
        "laws": [law.entry for law in laws] + [_law_entry(name, find_law(name)) for name in catalogue_names()],
        "gpus": [_gpu(gpu) for gpu in gpus().values()],
        "weights": list(precisions("weights")),
        "kv_cache": list(precisions("kv_cache")),
        "latency": list(LATENCIES),
        "shapes": list(SHAPES),
        "models": [{"name": model.name, "flops": model.training_flops} for model in published_models()],
        "defaults": {**DEFAULTS, "law": default_law},
        "looks": [look(2.0**power) for power in range(10)],
        "accent": ACCENT,
        "upload_limit_bytes": LAW_LIMIT_BYTES,
    }


def draft(asked: Asked, sizes: int = FRONTIER_SIZES) -> Record:
    """The curves of a plan, each point with its serving figures: what the main chart needs at once."""
    found = draft_plan(asked.law, asked.question, asked.request.deployment, asked.request.latency, sizes=sizes)
    ceiling = asked.law.max_experts or math.inf
    return {
        "budget_flops": asked.question.budget.flops,
        "base_experts": found.base.experts,
        "base_loss": _numbers(np.array([found.base.loss]))[0],
        "confidence": asked.question.confidence or (CONFIDENCE if asked.law.promises_by_draws else None),
        "base_usd_per_mtok": found.base.usd_per_mtok,
        "max_loss": asked.question.max_loss,
        "max_usd_per_mtok": asked.question.max_usd_per_mtok,
        "gpu_memory_bytes": asked.request.deployment.gpu.memory_bytes,
        "memory_fraction": asked.request.deployment.memory_fraction,
        "context_tokens": asked.request.deployment.prompt_tokens + asked.request.deployment.output_tokens / 2,
        "latency_source": asked.request.latency.name,
        "usd_per_gpu_hour": asked.request.deployment.usd_per_gpu_hour,
        "optimum": found.optimum,
        "curves": [{**_curve(found, i), "beyond_law": float(e) > ceiling} for i, e in enumerate(found.experts)],
        "limits": LIMITS,
        "reasons": REASONS,
        "notes": [*asked.notes, *found.notes],
        "shape": shape_name(asked.law.family.name),
        "command": asked.command,
    }


def plan(asked: Asked) -> Record:
    """The plan as the command line gives it, and its first screen."""
    found = asked.request.plan(asked.law)  # in the best shape where none is stated
    return found.to_dict() | {
        "decision": _decision(found, _built(asked, found)),
        "shape": shape_name(str(found.asked["family"])),
        "command": asked.command,
        "warnings": [*asked.notes, *found.warnings],
    }


def bands(asked: Asked) -> Record:
    """What lies around a plan's curves: where the draws of all laws lie, and the published models of such budgets."""
    law, question, _ = prepare(asked.law, asked.question)
    found = loss_band(law, question)
    counts = [] if found is None else zip(question.experts, *found, strict=True)
    return {
        "bands": [{"experts": e, "low": _numbers(low), "high": _numbers(high)} for e, low, high in counts],
        "models": _known_models(law, question, asked.request),
    }


def scales(asked: Asked) -> Record:
    """Loss-optimal size and tokens of each expert count against the budget."""
    found = scaling(asked.law, asked.question, BUDGETS)
    return {
        "budget_flops": BUDGETS.tolist(),
        "curves": [
            look(float(e)) | {name: _numbers(getattr(found, name)[:, i]) for name in ("n_params", "tokens", "loss")}
            for i, e in enumerate(found.experts)
        ],
    }


def read_law(text: str, where: str) -> Uploaded:
    """An uploaded law file; `where` names it in errors. InputError for what is no law."""
    law, name = parse_law(text, where=where), PREFIX + hashlib.sha256(text.encode()).hexdigest()[:16]
    return Uploaded(name, law.name, text, _law_entry(name, law))


def _decision(found: Plan, serving: Record) -> Record:
    best = found.decision
    return {
        "benefit": words.benefit(found),
        "label": tables.plan_headline(found),
        "figures": [asdict(figure) for figure in words.figures(found)],
        "facts": tables.decision_facts(found),
        "tables": [_table(each) for each in (choices.choices_table(found), *tables.choice_tables(found))],
        "why": best.why,
        "caveats": best.caveats,
        "accuracy": tables.serving_basis(found)[1],
        "model": best.model.to_dict(),
        "serving": serving,
    }


def _table(table: Table) -> Record:
    columns = [{"head": column.head, "text": column.text} for column in table.columns]
    return {"title": table.title, "columns": columns, "rows": table.rows}


def _built(asked: Asked, found: Plan) -> Record:
    law, question, _ = prepare(asked.law, asked.question)
    costs = costs_of(law, question, asked.request.deployment, asked.request.latency)
    best = found.decision
    costs = replace(costs, shape=best.architecture.architecture())
    served = costs.serving(np.array([best.model.n_params]), np.array([best.model.experts]))
    return {name: _numbers(getattr(served, name))[0] for name in SERVED}


def _known_models(law: Law, question: Question, request: PlanRequest) -> list[Record]:
    if question.budget.extra:  # further inputs, which no publication states
        return []
    costs, found = costs_of(law, question, request.deployment, request.latency), list[Record]()
    for model in published_models():
        if 1 / ALIKE_BUDGETS <= model.training_flops / question.budget.flops <= ALIKE_BUDGETS:
            row = known_model(law, model, costs)
            spoken_of = row.experts == 1 or law.form.uses_experts or law.form.implied_inputs
            if spoken_of and row.usd_per_mtok is not None:
                figures = {key: getattr(row, key) for key in (*DRAWN[1:], "usd_per_mtok", "gpus", "training_flops")}
                found.append({"name": model.name, "beyond_law": not law.allows(row.experts)} | figures)
    return found


def _curve(found: Draft, i: int) -> Record:
    drawn = {name: getattr(found, name)[i] for name in DRAWN}
    drawn |= {name: getattr(found.serving, name).reshape(found.loss.shape)[i] for name in SERVED}
    return look(float(found.experts[i])) | {name: _numbers(values) for name, values in drawn.items()}


def _law_entry(name: str, law: Law) -> Record:
    known = law.summary()
    shown = ("law", "equation", "source", "date", "parameters", "draws")
    if law.members:
        known["parameters"] = {f"weight of {member.law.name}": member.weight for member in law.members}
    return {key: known[key] for key in shown} | {
        "name": name,
        "title": law.name if name == law.name else f"{law.name} (uploaded)",
        "further": {name: _usual(name, value) for name, value in law.form.extra_inputs.items()},
    }


def _gpu(gpu: Gpu) -> Record:
    usd = None
    with suppress(InputError):  # it has no listed price
        usd = usd_per_gpu_hour(gpu)
    known = {"name": gpu.name, "bf16_flops_per_s": gpu.bf16_flops_per_s, "usd_per_gpu_hour": usd}
    return known | {"silicon": gpu.silicon_system is not None}


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """JSON has no NaN and no infinity: what does not apply is null."""
    finite = np.isfinite(values)
    return [v if ok else None for v, ok in zip(values.tolist(), finite.tolist(), strict=True)]


def _usual(name: str, value: float | None) -> str:
    """What a further input of a law is where it is not stated."""
    if value is None:
        return "required"
    return f"{value:g}" if math.isfinite(value) else "no limit" if name == "unique_tokens" else "by shape"


ANSWERS = {"draft": draft, "sketch": partial(draft, sizes=SKETCHED), "plan": plan, "bands": bands, "scales": scales}


def answer(task: Record) -> Record:
    """The answer to a task, a record or {"error": {..}}: its `name`, its `query`, and the uploaded `laws` that it may need."""
    name, query, laws = task["name"], task["query"], {law.name: law for law in task["laws"]}
    found = partial(find, laws)
    try:
        if name == "read":
            return asdict(read_law(query["text"], query["where"]))
        if name == "faults":
            return {key: error.to_dict() for key, error in faults(query, found).items()}
        law = query.get("law", DEFAULTS["law"])
        if name == "catalogue":
            return catalogue(laws.values(), law)
        if name == "law":
            return {"text": text_of(laws, law) if law.startswith(PREFIX) else law_text(found(law))}
        # A law from a file may be so steep that its loss overflows: no size is optimal there, which the answer says.
        with np.errstate(over="ignore"):
            return ANSWERS[name](read_state(query, found))
    except MoescaleError as error:
        return {"error": error.to_dict()}
    except MemoryError:
        return {"error": MoescaleError("the answer does not fit in memory", next_step="ask for less").to_dict()}


def written(task: Record) -> bytes:
    """The answer as JSON."""
    return json.dumps(answer(task), separators=(",", ":"), allow_nan=False).encode()

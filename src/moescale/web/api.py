"""The answers of the page: a state in, JSON-ready records of the public functions' results out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.hardware.gpus import gpus
from moescale.hardware.precisions import precisions
from moescale.hardware.prices import usd_per_gpu_hour
from moescale.planning.curves import OPTIMUM, Draft, draft_plan, loss_band, scaling
from moescale.planning.plan import SECOND_LAWS, Plan, make_plan
from moescale.planning.total_cost import default_mfu
from moescale.scaling_laws import catalogue_names, find_law
from moescale.scaling_laws import loss as law_loss
from moescale.scaling_laws.law import Law
from moescale.scaling_laws.store import FORMS, law_text, parse_law
from moescale.serving.steady_state import LIMITS, REASONS
from moescale.typing import FloatArray
from moescale.units import format_count, format_flops
from moescale.views.figures import ACCENT, colour_of, colour_on_dark, marker_of
from moescale.web.security import TABLE_LIMIT_BYTES
from moescale.web.state import DEFAULTS, NUMBERS, Asked, read_state
from moescale.web.store import PREFIX, Laws, Uploaded, name_of

Record = dict[str, Any]
Query = Mapping[str, str]

BUDGETS = np.geomspace(1e18, 1e26, 25)  # of the scaling chart: from a laptop's training run to beyond the largest known
LINE_TOKENS = 40  # points of a law's line in the chart of a fit
MOST_SIZES = 6  # with lines of their own there
# Markers of matplotlib's letters as Vega calls them.
VEGA_MARKERS = {
    "o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down", "p": "cross",
    "<": "triangle-left", ">": "triangle-right", "h": "stroke", "d": "diamond",
}  # fmt: skip


def look(experts: float) -> Record:
    """How an expert count is drawn, the same in every chart and figure."""
    label = "dense" if experts == 1 else f"E = {experts:g}"
    return {
        "experts": _plain(experts),
        "label": label,
        "colour": colour_of(experts),
        "colour_on_dark": colour_on_dark(experts),
        "marker": VEGA_MARKERS[marker_of(experts)],
    }


def catalogue(laws: Laws, default_law: str) -> Record:
    """What the controls offer, with their bounds and defaults."""
    known = [_law_entry(name, find_law(name)) for name in catalogue_names()]
    own = [kept.entry for kept in laws.every()]
    return {
        "laws": own + known,
        "forms": [{"name": form.name, "equation": form.equation} for form in FORMS.values()],
        "gpus": [
            {
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "bf16_flops_per_s": gpu.bf16_flops_per_s,
                "usd_per_gpu_hour": _price(gpu.name),
                "silicon": gpu.silicon_system is not None,
            }
            for gpu in gpus().values()
        ],
        "weights": list(precisions("weights")),
        "kv_cache": list(precisions("kv_cache")),
        "latency": ["auto", "silicon", "roofline"],
        "defaults": {**DEFAULTS, "law": default_law, "mfu": f"{default_mfu():g}"},
        "bounds": {
            key: [b.least, b.most if math.isfinite(b.most) else None, b.whole] for key, b in NUMBERS.items()
        },
        "looks": [look(2.0**power) for power in range(10)],
        "accent": ACCENT,
        "upload_limit_bytes": TABLE_LIMIT_BYTES,
    }  # fmt: skip


def draft(query: Query, laws: Laws) -> Record:
    """The curves of a plan, each point with its serving figures: what the main chart needs at once."""
    asked = read_state(query, laws.find)
    with np.errstate(over="ignore"):
        found = draft_plan(asked.law, asked.question, asked.deployment, asked.latency)
    ceiling = asked.law.max_experts or math.inf
    return {
        "budget_flops": asked.question.budget.flops,
        "base_experts": _plain(found.base_experts),
        "base_loss": _number(found.base_loss),
        "base_usd_per_mtok": found.base_usd_per_mtok,
        "max_loss": asked.question.max_loss,
        "max_usd_per_mtok": asked.question.max_usd_per_mtok,
        "gpu_memory_bytes": asked.deployment.gpu.memory_bytes,
        "memory_fraction": asked.deployment.memory_fraction,
        "output_tokens": asked.deployment.output_tokens,
        "context_tokens": asked.deployment.prompt_tokens + asked.deployment.output_tokens / 2,
        "latency_source": asked.latency.name,
        "usd_per_gpu_hour": asked.deployment.usd_per_gpu_hour,
        "optimum": OPTIMUM,
        "curves": [{**_curve(found, i), "beyond_law": float(e) > ceiling} for i, e in enumerate(found.experts)],
        "limits": LIMITS,
        "reasons": REASONS,
        "notes": [*asked.notes, *found.notes],
        "command": asked.command,
    }


def plan(query: Query, laws: Laws) -> Record:
    """The plan, without intervals."""
    asked = read_state(query, laws.find)
    with np.errstate(over="ignore"):
        question = replace(asked.question, draws=0)
        return _plan_record(make_plan(asked.law, question, asked.deployment, asked.latency), asked)


def bands(query: Query, laws: Laws) -> Record:
    """The plan as the command line gives it, intervals and second opinion with it, and the band around each curve."""
    asked = read_state(query, laws.find)
    with np.errstate(over="ignore"):
        second = [find_law(name) for name in SECOND_LAWS]
        found = make_plan(asked.law, asked.question, asked.deployment, asked.latency, second_laws=second)
        band = loss_band(asked.law, asked.question)
    record = _plan_record(found, asked)
    if band is not None:
        low, high = band
        counts = [c.experts for c in found.loss_optimal]
        record["bands"] = [
            {"experts": _plain(e), "low": _numbers(low[i]), "high": _numbers(high[i])} for i, e in enumerate(counts)
        ]
    return record


def scales(query: Query, laws: Laws) -> Record:
    """Loss-optimal size and tokens of each expert count against the budget."""
    asked = read_state(query, laws.find)
    with np.errstate(over="ignore"):
        found = scaling(asked.law, asked.question, BUDGETS)
    return {
        "budget_flops": found.budget_flops.tolist(),
        "curves": [
            {
                **look(float(e)),
                "n_params": _numbers(found.n_params[:, i]),
                "tokens": _numbers(found.tokens[:, i]),
                "loss": _numbers(found.loss[:, i]),
            }
            for i, e in enumerate(found.experts)
        ],
    }


def evidence(query: Query, laws: Laws) -> Record:
    """The law itself: its lines of loss against tokens and, where it was fitted here, the runs and their residuals."""
    asked = read_state(query, laws.find)
    law, kept = asked.law, _evidence(asked.law, query, laws)
    runs: Record | None = kept.get("runs")
    further = kept.get("further", {}) or dict(asked.question.budget.extra)
    if runs is not None:
        sizes = _few(np.unique(np.array(runs["n_params"])))
        counts = np.unique(np.array(runs["experts"]))
        span = float(np.min(runs["tokens"])), float(np.max(runs["tokens"]))
    else:
        sizes = np.geomspace(*_range(law, "n_params", (1e8, 1e10)), 4)
        low, high = _range(law, "experts", (1.0, 1.0))
        counts = np.array([e for e in asked.question.experts if low <= e <= high] or [low])
        span = _range(law, "tokens", (1e9, 1e12))
    tokens = np.geomspace(*span, LINE_TOKENS) if span[0] < span[1] else np.array([span[0]])
    lines: list[Record] = []
    for e in counts:
        for n in sizes:
            try:
                values = law_loss(law, n, tokens, e, extra=further)
            except InputError as error:  # a law of further inputs that the state does not give
                return {"law": _law_entry(law.name, law), "lines": [], "missing": str(error)}
            lines.append(
                {
                    **look(float(e)),
                    "n_params": float(n),
                    "size": f"N = {format_count(float(n))}",
                    "tokens": tokens.tolist(),
                    "loss": _numbers(values),
                }
            )
    record: Record = {"law": _law_entry(law.name, law), "lines": lines, "notes": list(law.notes)}
    if runs is not None:
        record["runs"] = runs
        record["n_runs"] = kept["n_runs"]
        record["fit"] = kept["fit"]
        record["looks"] = [look(float(e)) for e in counts]
    return record


def law_file(name: str, laws: Laws) -> str:
    """The TOML file of a law, to save and to give to the command line."""
    return laws.uploaded(name).text if name.startswith(PREFIX) else law_text(laws.find(name))


def read_law(text: str, where: str) -> Uploaded:
    """An uploaded law file; `where` names it in errors. InputError for what is no law."""
    law, name = parse_law(text, where=where), name_of(text)
    return Uploaded(name, law.name, text, _law_entry(name, law))


def _evidence(law: Law, query: Query, laws: Laws) -> Record:
    name = query.get("law", "")
    return laws.uploaded(name).evidence if ":" in name else {}


def _plan_record(found: Plan, asked: Asked) -> Record:
    record = found.to_dict()
    model = found.recommendation.model
    record["sentence"] = found.recommendation.why
    record["looks"] = [look(c.experts) for c in found.loss_optimal]
    record["recommended"] = look(model.experts)
    record["budget"] = _spent(found)
    record["command"] = asked.command
    record["warnings"] = [*asked.notes, *found.warnings]
    return record


def _spent(found: Plan) -> str:
    """The training FLOPs of a plan's headline: those that it uses, of those that there are."""
    whole = format_flops(found.budget_flops)
    if found.training is None or found.training.spent:
        return whole
    return f"{format_flops(found.training.flops_used)} of {whole}"


def _curve(found: Draft, i: int) -> Record:
    served, shape = found.serving, found.loss.shape

    def of(values: FloatArray) -> list[float | None]:
        return _numbers(values.reshape(shape)[i])

    usd = served.usd_per_mtok.reshape(shape)[i]
    return {
        **look(float(found.experts[i])),
        "n_params": _numbers(found.n_params[i]),
        "n_params_active": _numbers(found.n_params_active[i]),
        "n_params_total": _numbers(found.n_params_total[i]),
        "tokens": _numbers(found.tokens[i]),
        "loss": _numbers(found.loss[i]),
        "usd_per_mtok": _numbers(usd),
        "gpus": of(served.gpus),
        "batch": of(served.batch),
        "prefill_s": of(served.prefill_s),
        "decode_s": of(served.decode_s),
        "tpot_s": of(served.tpot_s),
        "ttft_s": of(served.ttft_s),
        "throughput_tok_s": of(served.throughput_tok_s),
        "weight_bytes_per_gpu": of(served.weight_bytes_per_gpu),
        "kv_bytes_per_token": of(served.kv_bytes_per_token),
        "limited_by": of(served.limited_by),
        "infeasible": of(served.infeasible),
    }


def _law_entry(name: str, law: Law) -> Record:
    return {
        "name": name,
        "title": law.name if name == law.name else f"{law.name} (uploaded)",
        "law": law.form.name,
        "equation": law.form.equation,
        "source": law.source,
        "date": law.date,
        "parameters": law.parameters,
        "fit_range": {k: list(v) for k, v in law.fit_range.items()},
        "max_experts": law.max_experts,
        "uses_experts": law.form.uses_experts,
        "further": list(law.form.extra_inputs),
        "draws": len(law.draws),
    }


def _price(gpu: str) -> float | None:
    try:
        return usd_per_gpu_hour(gpus()[gpu])
    except InputError:
        return None


def _range(law: Law, name: str, otherwise: tuple[float, float]) -> tuple[float, float]:
    low, high = law.fit_range.get(name, otherwise)
    return (low, high) if low > 0 else otherwise


def _few(values: FloatArray) -> FloatArray:
    """At most MOST_SIZES of the rising values, evenly."""
    if values.size <= MOST_SIZES:
        return values
    return values[np.linspace(0, values.size - 1, MOST_SIZES).astype(int)]


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else float(value)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _numbers(values: npt.NDArray[Any]) -> list[float | None]:
    """JSON has no NaN and no infinity: what does not apply is null."""
    finite = np.isfinite(values)
    if finite.all():
        return values.tolist()
    return [v if ok else None for v, ok in zip(values.tolist(), finite.tolist(), strict=True)]

"""Plans as files: what `plan --json` printed, read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.errors import InputError, damaged
from moescale.hardware.gpus import Gpu, find_gpu
from moescale.io.files import read_text
from moescale.models.rounding import Buildable
from moescale.planning.candidate import Candidate, CostCurve
from moescale.planning.lifetime_plan import LifetimePlan
from moescale.planning.plan import Plan
from moescale.planning.rationale import Recommendation, TrainingUse
from moescale.planning.second_laws import SecondOpinion
from moescale.planning.total_cost import TrainingPrice

if TYPE_CHECKING:
    from pydantic import BaseModel

LEAST, MOST = 1e-12, 1e40  # far beyond any ratio, size, cost or number of tokens
AGAIN = "write it again with `moescale plan --json`"


def read_plan(path: str) -> Plan:
    """The plan of a file that holds the output of `plan --json`; every defect is an InputError that names the place."""
    return parse_plan(parse_json(read_text(path), where=path), where=path)


def parse_json(text: str, *, where: str) -> object:
    """The value of a JSON text; InputError for malformed text, and for numbers that are not finite."""

    def refuse(name: str) -> object:
        raise ValueError(f"{name} is not a JSON number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"is not JSON: {error}", where=where, next_step="give what a command printed with --json"
        ) from None


def parse_plan(record: object, *, where: str) -> Plan:
    """The plan of a record as Plan.to_dict makes it; keys that it does not know are left alone, `curves` may be absent."""
    if isinstance(record, dict) and "infeasible" in record and "recommendation" not in record:
        raise InputError(
            f"this question has no answer: {record['infeasible']}", where=where, next_step="relax its bounds"
        )
    table: Any = _validated(record, where)
    plan = _plan_of(table, where)
    _check_rows(plan, where)
    return plan


def _plan_of(table: Any, where: str) -> Plan:
    return Plan(
        budget_flops=table.budget_flops,
        law=table.law,
        convention=table.convention,
        gpu=table.gpu,
        latency_source=table.latency_source,
        usd_per_gpu_hour=table.usd_per_gpu_hour,
        prompt_tokens=table.prompt_tokens,
        output_tokens=table.output_tokens,
        base_experts=table.bounded_loss.base_experts,
        base_loss=table.bounded_loss.loss,
        base_usd_per_mtok=table.bounded_cost.usd_per_mtok,
        loss_optimal=tuple(table.loss_optimal),
        bounded_loss=tuple(table.bounded_loss.plans),
        bounded_cost=tuple(table.bounded_cost.plans),
        frontier=tuple(table.frontier),
        recommendation=_recommendation(table.recommendation),
        training=table.training,
        second_opinions=tuple(table.second_opinions),
        lifetime=None
        if table.lifetime is None or table.lifetime.infeasible is not None
        else _lifetime(table.lifetime, where),
        lifetime_infeasible=None if table.lifetime is None else table.lifetime.infeasible,
        warnings=tuple(table.warnings),
        curves=tuple(_curve(curve, where) for curve in table.curves if curve.n_params),
        asked=table.asked,
    )


def _validated(record: object, where: str) -> BaseModel:
    """The record with every type checked, as a model whose rows are candidates."""
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

    class Finite(BaseModel):
        model_config = ConfigDict(allow_inf_nan=False)

    class BoundedLoss(Finite):
        base_experts: float
        loss: float
        plans: list[Candidate]

    class BoundedCost(Finite):
        usd_per_mtok: float | None = None
        plans: list[Candidate]

    class Advice(Finite):
        model: Candidate
        rule: str
        why: str
        caveats: list[str]
        architecture: Buildable

    class Life(Finite):
        infeasible: str | None = None
        lifetime_tokens: float = 0.0
        train_gpu: str = ""
        mfu: float = 0.0
        train_usd_per_gpu_hour: float = 0.0
        target_loss: float | None = None
        max_total_usd: float | None = None
        training_flops: float | None = None
        training_gpu_hours: float = 0.0
        plans: list[Candidate] = Field(default_factory=list[Candidate])
        least_training: Candidate | None = None
        recommendation: Advice | None = None
        second_opinions: list[SecondOpinion] = Field(default_factory=list[SecondOpinion])

    class Curve(Finite):
        experts: float
        n_params: list[float]
        tokens: list[float]
        loss: list[float]
        usd_per_mtok: list[float]
        gpus: list[float] | None = None

    class PlanTable(Finite):
        budget_flops: float = Field(gt=0)
        law: str
        convention: str
        gpu: str
        latency_source: str
        usd_per_gpu_hour: float = Field(ge=0)
        prompt_tokens: float = Field(gt=0)
        output_tokens: float = Field(gt=0)
        loss_optimal: list[Candidate]
        bounded_loss: BoundedLoss
        bounded_cost: BoundedCost
        frontier: list[Candidate]
        recommendation: Advice
        warnings: list[str] = Field(default_factory=list[str])
        training: TrainingUse | None = None
        second_opinions: list[SecondOpinion] = Field(default_factory=list[SecondOpinion])
        lifetime: Life | None = None
        asked: dict[str, object] = Field(default_factory=dict[str, object])
        curves: list[Curve] = Field(default_factory=list[Curve])

    if not isinstance(record, Mapping):
        raise InputError("is not a plan", where=where, next_step=AGAIN)
    nested = dict(record)
    nested["recommendation"] = _nested_advice(nested.get("recommendation"))
    if isinstance(nested.get("lifetime"), Mapping) and "recommendation" in nested["lifetime"]:
        nested["lifetime"] = {
            **nested["lifetime"],
            "recommendation": _nested_advice(nested["lifetime"]["recommendation"]),
        }
    try:
        return PlanTable.model_validate(nested)
    except ValidationError as error:
        raise damaged("plan", error, where=where, next_step=AGAIN) from None


def _check_rows(plan: Plan, where: str) -> None:
    """Refuse rows that lack what a feasible model has, or hold numbers that no model has."""
    parts: dict[str, Sequence[Candidate]] = {
        "recommendation": [plan.recommendation.model],
        "loss_optimal": plan.loss_optimal,
        "bounded_loss": plan.bounded_loss,
        "bounded_cost": plan.bounded_cost,
        "frontier": plan.frontier,
    }
    if plan.lifetime is not None:
        life = plan.lifetime
        parts |= {"lifetime": life.plans, "lifetime.recommendation": [life.recommendation.model]}
    for part, rows in parts.items():
        single = part.endswith("recommendation")
        for i, row in enumerate(rows):
            place = f"damaged plan at {part}" if single else f"damaged plan at {part}.{i}"
            needed = ["n_params", "n_params_active", "n_params_total", "tokens", "loss"]
            if part == "frontier" or single:
                needed += ["usd_per_mtok", "gpus"]
            elif row.n_params is None:
                needed = ["infeasible"]
            elif row.usd_per_mtok is not None:
                needed.append("gpus")
            for name in needed:
                if getattr(row, name) is None:
                    raise InputError(f"{place}: no {name}", where=where, next_step=AGAIN)
            for f in fields(row):
                value = getattr(row, f.name)
                if isinstance(value, int | float) and not LEAST <= value <= MOST:
                    raise InputError(f"{place}: {f.name} is {value:g}", where=where, next_step=AGAIN)
            for name, (low, high) in (row.intervals or {}).items():
                least = LEAST if name in ("loss", "usd_per_mtok") else -MOST
                if not least <= low <= high <= MOST:
                    raise InputError(f"{place}: intervals of {name}", where=where, next_step=AGAIN)
    if plan.training is not None:
        figures = (getattr(plan.training, f.name) for f in fields(plan.training))
        if not all(LEAST <= value <= MOST for value in figures if isinstance(value, int | float)):
            raise InputError("damaged plan at training", where=where, next_step=AGAIN)
    numbers = [plan.base_experts, plan.base_loss, plan.base_usd_per_mtok or 1.0, plan.budget_flops]
    numbers += [
        x for c in plan.curves for column in (c.n_params, c.tokens, c.loss, c.usd_per_mtok) for x in column.tolist()
    ]
    if not all(LEAST <= x <= MOST for x in numbers):
        raise InputError(
            "damaged plan: the base or a curve holds a number that no model has", where=where, next_step=AGAIN
        )
    if not any(c.usd_per_mtok is not None for c in (*plan.loss_optimal, *plan.bounded_loss)):
        raise InputError("damaged plan: no model is served", where=where, next_step=AGAIN)


def _nested_advice(advice: object) -> object:
    """The model's own figures lie beside the reasons in a recommendation's record."""
    return {**advice, "model": advice} if isinstance(advice, Mapping) else advice


def _recommendation(advice: Any) -> Recommendation:
    return Recommendation(
        model=advice.model,
        rule=advice.rule,
        why=advice.why,
        caveats=tuple(advice.caveats),
        architecture=advice.architecture,
    )


def _lifetime(life: Any, where: str) -> LifetimePlan:
    missing = [name for name in ("recommendation", "training_flops") if getattr(life, name) is None]
    priced = LEAST <= life.train_usd_per_gpu_hour <= MOST and LEAST <= life.training_gpu_hours <= MOST
    if missing or not priced or not LEAST <= life.mfu <= 1 or not LEAST <= life.training_flops <= MOST:
        raise InputError(
            f"damaged plan at lifetime: no {missing[0] if missing else 'training'}", where=where, next_step=AGAIN
        )
    return LifetimePlan(
        lifetime_tokens=life.lifetime_tokens,
        training=TrainingPrice(
            gpu=_training_gpu(life.train_gpu, life.training_flops / (life.training_gpu_hours * 3600.0 * life.mfu)),
            usd_per_gpu_hour=life.train_usd_per_gpu_hour,
            mfu=life.mfu,
        ),
        target_loss=life.target_loss,
        max_total_usd=life.max_total_usd,
        plans=tuple(life.plans),
        least_training=life.least_training,
        recommendation=_recommendation(life.recommendation),
        second_opinions=tuple(life.second_opinions),
    )


def _training_gpu(name: str, flops_per_s: float) -> Gpu:
    """The GPU that a plan trains on, with the peak that the plan used; of a file of one's own little else is known."""
    try:
        known = find_gpu(name)
        if math.isclose(known.bf16_flops_per_s, flops_per_s, rel_tol=1e-6):
            return known
    except InputError:
        pass
    unknown = math.nan
    return Gpu(
        name=name,
        memory_bytes=unknown,
        memory_bandwidth_bytes_per_s=unknown,
        bf16_flops_per_s=flops_per_s,
        fp8_flops_per_s=None,
        interconnect_bytes_per_s=unknown,
        default_max_num_seqs=0,
        silicon_system=None,
        source="a plan's file, which holds no more of it",
        date="",
    )


def _curve(curve: Any, where: str) -> CostCurve:
    columns: Sequence[list[float]] = (curve.n_params, curve.tokens, curve.loss, curve.usd_per_mtok)
    gpus: list[float] | None = curve.gpus
    if len({len(column) for column in (*columns, *([] if gpus is None else [gpus]))}) != 1:
        raise InputError(
            f"damaged plan: the curve of {curve.experts:g} experts has columns of different length",
            where=where,
            next_step=AGAIN,
        )
    n, d, loss, usd = (np.array(column, dtype=np.float64) for column in columns)
    return CostCurve(curve.experts, n, d, loss, usd, None if gpus is None else np.array(gpus, dtype=np.float64))

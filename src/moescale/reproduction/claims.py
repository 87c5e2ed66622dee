"""The catalogue of what Yun et al. 2024 claim: a reader of catalogue/claims.toml, which explains every field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from moescale import catalogue
from moescale.errors import unknown_name
from moescale.latency import MOE_EXECUTION, LatencySource, moe_execution_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far a number may lie from the printed one, relative to it, and why so far."""

    name: str
    value: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One number of a claim: what is computed, under which conditions, and what the paper prints (None: an order only)."""

    label: str
    quantity: str | None  # a name of quantities.QUANTITIES; None where nothing can be computed
    paper: float | None
    tolerance: Tolerance | None
    judged: bool
    experts: float
    other_experts: tuple[float, ...]
    base_experts: float
    budgets_flops: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper, and what of our numbers would confirm it."""

    id: str
    statement: str
    kind: str  # value, range, trend, ordering or surface
    unit: str
    line: int  # of the LaTeX source
    parts: tuple[Part, ...]
    falling: bool
    rising: bool
    below: float | None
    above: float | None
    at_most: bool
    input_of: tuple[str, ...]  # laws that were made from this claim
    input_of_form: tuple[str, ...]  # forms of laws that cannot but agree
    cannot: str | None  # why nothing can be computed
    data: str | None  # the only training data whose losses are comparable
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Serving under which cost claims are evaluated again; None: as in the base case."""

    name: str
    why: str
    memory_fraction: float | None = None
    max_num_seqs: float | None = None
    traffic: str | None = None
    scheduling: str | None = None
    memory_bytes_multiple: float | None = None  # of the GPU's memory
    host_per_pass_s: float | None = None
    host_per_sequence_s: float | None = None
    host_per_expert_s: float | None = None  # of each expert of an MoE layer that a GPU holds
    moe_execution: str | None = None  # a name of latency.MOE_EXECUTION


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the catalogue's order."""
    table = catalogue.read("claims.toml")
    tolerances = {name: Tolerance(name=name, **entry) for name, entry in table["tolerance"].items()}
    return tuple(_claim(entry, tolerances) for entry in table["claim"])


@cache
def sweep_experts() -> tuple[float, ...]:
    """The expert counts that orders and ranges are over."""
    return tuple(float(e) for e in catalogue.read("claims.toml")["experts"])


@cache
def settings() -> tuple[Setting, ...]:
    """The settings of the sensitivity analysis, in the catalogue's order."""
    return tuple(Setting(**entry) for entry in catalogue.read("claims.toml")["setting"])


def settings_of(source: LatencySource) -> tuple[Setting, ...]:
    """The settings that a source can answer for: a measured table cannot run its experts in another way."""
    can = moe_execution_of(source) in MOE_EXECUTION
    return tuple(s for s in settings() if can or s.moe_execution is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopMeasurement:
    """Latencies of one benchmark before and after vLLM fused its experts; arrays over `batch`."""

    gpu: str
    gpus: int
    prompt_tokens: float
    output_tokens: float
    batch: tuple[float, ...]
    all_experts_s: tuple[float, ...]
    fused_s: tuple[float, ...]
    source: str
    date: str


@cache
def loop_measurement() -> LoopMeasurement:
    """What is known of Mixtral 8x7B with every expert on every token, measured."""
    entry: dict[str, Any] = catalogue.read("claims.toml")["loop_measurement"]
    curves: dict[str, Any] = {name: tuple(entry[name]) for name in ("batch", "all_experts_s", "fused_s")}
    return LoopMeasurement(**{**entry, **curves})


def find_claim(name: str) -> Claim:
    """The claim with an id; InputError with the nearest ones otherwise."""
    known = {claim.id: claim for claim in claims()}
    if name not in known:
        raise unknown_name("claim", name, known)
    return known[name]


def _claim(entry: dict[str, Any], tolerances: dict[str, Tolerance]) -> Claim:
    default = entry.get("tolerance")
    return Claim(
        id=entry["id"],
        statement=entry["statement"],
        kind=entry["kind"],
        unit=entry["unit"],
        line=entry["line"],
        parts=tuple(_part(part, default, tolerances) for part in entry["part"]),
        falling=entry.get("falling", False),
        rising=entry.get("rising", False),
        below=entry.get("below"),
        above=entry.get("above"),
        at_most=entry.get("at_most", False),
        input_of=tuple(entry.get("input_of", ())),
        input_of_form=tuple(entry.get("input_of_form", ())),
        cannot=entry.get("cannot"),
        data=entry.get("data"),
        note=entry.get("note", ""),
    )


def _part(entry: dict[str, Any], default: str | None, tolerances: dict[str, Tolerance]) -> Part:
    name = entry.get("tolerance", default)
    budgets = entry.get("budgets_flops") or ([entry["budget_flops"]] if "budget_flops" in entry else [])
    return Part(
        label=entry["label"],
        quantity=entry.get("quantity"),
        paper=entry.get("paper"),
        tolerance=None if name is None else tolerances[name],
        judged=entry.get("judged", True),
        experts=float(entry.get("experts", 1)),
        other_experts=tuple(float(e) for e in entry.get("other_experts", ())),
        base_experts=float(entry.get("base_experts", 1)),
        budgets_flops=tuple(float(b) for b in budgets),
    )

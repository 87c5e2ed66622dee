"""The catalogue of what Yun et al. 2024 claim: a reader of catalogue/claims.toml, which explains every field."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from moescale import catalogue
from moescale.errors import unknown_name


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
    quantity: str | None = None  # a name of quantities.QUANTITIES; None where nothing can be computed
    paper: float | None = None
    tolerance: Tolerance | None = None
    unprinted: float | None = None  # an end that the paper does not print
    judged: bool = True
    experts: float = 1.0
    other_experts: tuple[float, ...] = ()
    base_experts: float = 1.0
    budgets_flops: tuple[float, ...] = ()
    take: str | None = None  # least, most or change of the quantity over other_experts, or else over budgets

    @property
    def budget_flops(self) -> float:
        """The budget, or the first of several."""
        return self.budgets_flops[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One statement of the paper, and what of our numbers would confirm it."""

    id: str
    statement: str
    kind: str  # value, range, ordering or surface
    unit: str
    line: int  # of the LaTeX source
    parts: tuple[Part, ...]
    falling: bool = False
    rising: bool = False
    below: float | None = None
    above: float | None = None
    input_of: tuple[str, ...] = ()  # laws that were made from this claim
    input_of_form: tuple[str, ...] = ()  # forms of laws that cannot but agree
    same_as: str | None = None  # the claim of the same fact, which is judged in its place
    cannot: str | None = None  # why nothing can be computed
    data: str | None = None  # the only training data whose losses are comparable
    note: str = ""

    @property
    def judged(self) -> list[int]:
        """The places of the parts that decide whether the claim holds."""
        return [place for place, part in enumerate(self.parts) if part.judged]

    @property
    def ordered(self) -> bool:
        """Whether it states an order, a direction or a bound."""
        return self.falling or self.rising or self.below is not None or self.above is not None

    @property
    def bound(self) -> str:
        """What an order demands, such as "< 1"."""
        return f"< {self.below:g}" if self.below is not None else f"> {self.above:g}"


@cache
def claims() -> tuple[Claim, ...]:
    """Every claim, in the catalogue's order."""
    table = catalogue.read("claims.toml")
    tolerances = {name: {"name": name, **entry} for name, entry in table["tolerance"].items()}

    def part(entry: dict[str, Any], default: str | None) -> dict[str, Any]:
        budgets = [entry["budget_flops"]] if "budget_flops" in entry else entry.get("budgets_flops", [])
        tolerance = tolerances.get(entry.get("tolerance", default))
        return {**entry, "tolerance": tolerance, "budgets_flops": budgets}

    entries = [{**c, "parts": [part(p, c.get("tolerance")) for p in c["part"]]} for c in table["claim"]]
    return TypeAdapter(tuple[Claim, ...]).validate_python(entries)


@cache
def sweep_experts() -> tuple[float, ...]:
    """The expert counts that orders and ranges are over."""
    return tuple(float(e) for e in catalogue.read("claims.toml")["experts"])


def find_claim(name: str) -> Claim:
    """The claim with an id; InputError with the nearest ones otherwise."""
    known = {claim.id: claim for claim in claims()}
    if name not in known:
        raise unknown_name("claim", name, known)
    return known[name]

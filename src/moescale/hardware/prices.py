"""What an hour of a GPU costs: rented, as the catalogue records it, or owned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from moescale import catalogue
from moescale.bounds import Bound
from moescale.errors import BoundError, InputError
from moescale.hardware.gpus import Gpu, find_gpu, gpus
from moescale.typing import FloatArray, Real

DEFAULT_TERMS = "on-demand"
HOURS_PER_YEAR = 365.25 * 24
FIGURES = {
    "capital_usd": Bound(0.0),
    "years": Bound(0.0, above=True),
    "power_w": Bound(0.0),
    "usd_per_kwh": Bound(0.0),
    "pue": Bound(1.0),
    "share_in_use": Bound(0.0, 1.0, above=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs an hour."""

    gpu: str
    usd_per_gpu_hour: float
    terms: str  # on-demand, spot, owned ..
    source: str
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedDefaults:
    """What stands in where the price of owned hardware is not fully stated; sources in catalogue/prices.toml."""

    years: float
    usd_per_kwh: float
    pue: float


@cache
def prices() -> tuple[Price, ...]:
    """Every recorded price."""
    return tuple(Price(**entry) for entry in catalogue.read("prices.toml")["price"])


def usd_per_gpu_hour(gpu: Gpu) -> float:
    """What an hour of a GPU costs: as its file states, else the catalogue's; raises InputError where neither does."""
    if gpu.usd_per_gpu_hour is not None:
        return gpu.usd_per_gpu_hour
    if gpu.name in gpus():
        return price(gpu.name).usd_per_gpu_hour
    own = "pass --usd-per-gpu-hour, or add usd_per_gpu_hour to its file"
    raise InputError(f"no price is stated for {gpu.name}", next_step=own)


def price(gpu_name: str, terms: str = DEFAULT_TERMS) -> Price:
    """The recorded price of a GPU on `terms` (on-demand, spot, owned); raises InputError where there is none."""
    name = find_gpu(gpu_name).name
    recorded = {price.terms: price for price in prices() if price.gpu == name}
    if (found := recorded.get(terms.strip().lower())) is not None:
        return found
    listed = ", ".join(f"{price.terms} at ${price.usd_per_gpu_hour:.2f}" for price in recorded.values())
    what = f"no {terms} price is recorded for {name}"
    raise InputError(what, nearest=listed or None, next_step="give your price with --usd-per-gpu-hour")


def owned_defaults() -> OwnedDefaults:
    """Years of use, price of electricity and overhead of the building, where nothing else is stated."""
    stated = catalogue.read("prices.toml")["owned"].items()
    return OwnedDefaults(**{name: float(entry["value"]) for name, entry in stated})


def owned_usd_per_gpu_hour(
    capital_usd: Real,
    *,
    years: Real,
    power_w: Real = 0.0,
    usd_per_kwh: Real = 0.0,
    pue: Real = 1.0,
    share_in_use: Real = 1.0,
) -> FloatArray:
    """Dollars of an hour in use of a GPU that one owns: capital_usd / (years in hours x share_in_use) + electricity; all broadcast.

    capital_usd is of one GPU with its share of server and building, written off in a straight line; power_w what both
    draw in use, times `pue` for cooling; share_in_use the share of all hours in which it serves. Raises InputError for
    a figure out of its bounds.
    """
    figures = (capital_usd, years, power_w, usd_per_kwh, pue, share_in_use)
    for (name, bound), value in zip(FIGURES.items(), figures, strict=True):
        if (bad := bound.bad(value)) is not None:
            raise BoundError(f"{name} must be {bound.words}, not {bad:g}", where="owned hardware")
    hours = HOURS_PER_YEAR * np.asarray(years, dtype=np.float64) * share_in_use
    return np.asarray(capital_usd / hours + np.asarray(power_w, dtype=np.float64) / 1e3 * usd_per_kwh * pue)

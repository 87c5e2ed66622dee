"""What an hour of a GPU costs: rented, as the catalogue records it, or owned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from moescale import catalogue
from moescale.errors import InputError
from moescale.hardware.gpus import Gpu, find_gpu, gpus

TERMS = "on-demand"
HOURS_PER_YEAR = 365.25 * 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one GPU costs an hour."""

    gpu: str
    usd_per_gpu_hour: float
    terms: str  # on-demand, spot, owned ..
    source: str
    date: str


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


def price(gpu_name: str) -> Price:
    """The recorded on-demand price of a GPU; raises InputError where there is none."""
    name = find_gpu(gpu_name).name
    recorded = {price.terms: price for price in prices() if price.gpu == name}
    if (found := recorded.get(TERMS)) is not None:
        return found
    listed = ", ".join(f"{price.terms} at ${price.usd_per_gpu_hour:.2f}" for price in recorded.values())
    what = f"no {TERMS} price is recorded for {name}"
    raise InputError(what, nearest=listed or None, next_step="give your price with --usd-per-gpu-hour")


def owned_defaults() -> dict[str, float]:
    """Years of use, dollars a kWh and overhead of the building (pue), where nothing else is stated: catalogue/prices.toml."""
    return {name: float(entry["value"]) for name, entry in catalogue.read("prices.toml")["owned"].items()}


def owned_usd_per_gpu_hour(
    capital_usd: float, *, years: float, power_w: float = 0.0, usd_per_kwh: float = 0.0, pue: float = 1.0
) -> float:
    """Dollars of an hour of a GPU that one owns: capital_usd over the hours of its years, and electricity.

    capital_usd is of one GPU with its share of server and building, written off in a straight line; power_w what both draw
    in use, times `pue` for cooling. Raises InputError for figures below 0, no years, or a pue below 1.
    """
    if not (min(capital_usd, power_w, usd_per_kwh) >= 0.0 < years and pue >= 1.0):
        what = f"{capital_usd:g} dollars over {years:g} years, {power_w:g} W at {usd_per_kwh:g} a kWh and a pue of {pue:g} are no price"
        raise InputError(
            what, where="owned hardware", next_step="give figures of 0 or more, years above 0, a pue from 1 on"
        )
    return capital_usd / (HOURS_PER_YEAR * years) + power_w / 1e3 * usd_per_kwh * pue

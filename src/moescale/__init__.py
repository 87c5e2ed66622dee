"""Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, and the model to train.

The public names below load their modules on first use, so that `import moescale` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescale.allocation import Allocation, Budget, best_within_cost, loss_optimal, smallest_at_loss
    from moescale.architecture import Architecture, from_config
    from moescale.burst import Arrivals, simulate
    from moescale.calibration import calibrate
    from moescale.errors import InfeasibleError, InputError, MoescaleError
    from moescale.family import ModelFamily, families, find_family
    from moescale.fitting import Fit, fit, fitted_law
    from moescale.hardware import (
        Gpu,
        find_gpu,
        gpus,
        measured_reserve_bytes,
        owned_usd_per_gpu_hour,
        price,
        read_gpu,
    )
    from moescale.latency.roofline import Roofline
    from moescale.latency.silicon import Silicon
    from moescale.latency.table import read_latency_table
    from moescale.laws import Law, find_form, find_law, loss, predict, save_law
    from moescale.lifetime import Lifetime, TrainingPrice, best_within_total, cheapest_at_loss, flops_optimal
    from moescale.notebook import load_ipython_extension
    from moescale.planning import Plan, Question, make_plan
    from moescale.runs import RunTable, read_runs
    from moescale.serving import Cost, Deployment, cheapest, cost, degrees, serve, with_traffic
    from moescale.serving_sweep import OperatingPoints, Platform, find_platforms, operating_points
    from moescale.traffic import Traffic, read_trace
    from moescale.uncertainty import bootstrap
    from moescale.units import parse_quantity
    from moescale.validation import RunArrays, added_terms, diagnose, hold_out

__version__ = "0.1.0"

_HOMES = {
    "allocation": ("Allocation", "Budget", "best_within_cost", "loss_optimal", "smallest_at_loss"),
    "architecture": ("Architecture", "from_config"),
    "burst": ("Arrivals", "simulate"),
    "calibration": ("calibrate",),
    "errors": ("InfeasibleError", "InputError", "MoescaleError"),
    "family": ("ModelFamily", "families", "find_family"),
    "fitting": ("Fit", "fit", "fitted_law"),
    "hardware": (
        "Gpu",
        "find_gpu",
        "gpus",
        "measured_reserve_bytes",
        "owned_usd_per_gpu_hour",
        "price",
        "read_gpu",
    ),
    "latency.roofline": ("Roofline",),
    "latency.silicon": ("Silicon",),
    "latency.table": ("read_latency_table",),
    "laws": ("Law", "find_form", "find_law", "loss", "predict", "save_law"),
    "lifetime": ("Lifetime", "TrainingPrice", "best_within_total", "cheapest_at_loss", "flops_optimal"),
    "planning": ("Plan", "Question", "make_plan"),
    "notebook": ("load_ipython_extension",),
    "runs": ("RunTable", "read_runs"),
    "serving": ("Cost", "Deployment", "cheapest", "cost", "degrees", "serve", "with_traffic"),
    "serving_sweep": ("OperatingPoints", "Platform", "find_platforms", "operating_points"),
    "traffic": ("Traffic", "read_trace"),
    "uncertainty": ("bootstrap",),
    "units": ("parse_quantity",),
    "validation": ("RunArrays", "added_terms", "diagnose", "hold_out"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocation",
    "Architecture",
    "Arrivals",
    "Budget",
    "Cost",
    "Deployment",
    "Fit",
    "Gpu",
    "InfeasibleError",
    "InputError",
    "Law",
    "Lifetime",
    "ModelFamily",
    "MoescaleError",
    "OperatingPoints",
    "Plan",
    "Platform",
    "Question",
    "Roofline",
    "RunArrays",
    "RunTable",
    "Silicon",
    "Traffic",
    "TrainingPrice",
    "__version__",
    "added_terms",
    "best_within_cost",
    "best_within_total",
    "bootstrap",
    "calibrate",
    "cheapest",
    "cheapest_at_loss",
    "cost",
    "degrees",
    "diagnose",
    "families",
    "find_family",
    "find_form",
    "find_gpu",
    "find_law",
    "find_platforms",
    "fit",
    "fitted_law",
    "flops_optimal",
    "from_config",
    "gpus",
    "hold_out",
    "load_ipython_extension",
    "loss",
    "loss_optimal",
    "make_plan",
    "measured_reserve_bytes",
    "operating_points",
    "owned_usd_per_gpu_hour",
    "parse_quantity",
    "predict",
    "price",
    "read_gpu",
    "read_latency_table",
    "read_runs",
    "read_trace",
    "save_law",
    "serve",
    "simulate",
    "smallest_at_loss",
    "with_traffic",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'moescale' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"moescale.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# In a notebook answers show themselves as tables and figures; moescale.notebook says how.
if "IPython" in sys.modules and (_shell := getattr(sys.modules["IPython"], "get_ipython", lambda: None)()) is not None:
    importlib.import_module("moescale.notebook").load_ipython_extension(_shell)

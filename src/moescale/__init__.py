"""Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, and the model to train.

The public names below load their modules on first use, so that `import moescale` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moescale.errors import InfeasibleError, InputError, MoescaleError
    from moescale.fitting.bootstrap import bootstrap
    from moescale.fitting.fit import Fit, fit
    from moescale.fitting.holdout import RunArrays, diagnose, hold_out
    from moescale.fitting.isoflop import IsoFlop, isoflop
    from moescale.fitting.workflow import FitSettings, FittedLaw, compare_laws, fit_runs, fitted_law
    from moescale.hardware.gpus import Gpu, find_gpu, gpus, measured_reserve_bytes, read_gpu
    from moescale.hardware.prices import owned_usd_per_gpu_hour, price
    from moescale.latency.open import open_latency
    from moescale.latency.roofline import Roofline
    from moescale.latency.silicon import Silicon
    from moescale.latency.table import read_latency_table
    from moescale.models.architecture import Architecture
    from moescale.models.family import ModelFamily, families, find_family
    from moescale.models.hf_config import from_config
    from moescale.options.law import LawOptions
    from moescale.options.question import BoundOptions
    from moescale.options.serving import ServingOptions
    from moescale.planning.allocation import Allocation, Budget, best_within_cost, loss_optimal, smallest_at_loss
    from moescale.planning.compare_models import ComparedModel, compare_models
    from moescale.planning.plan import Plan, Question, make_plan
    from moescale.planning.question import KnownModel
    from moescale.planning.total_cost import Lifetime, best_within_total, cheapest_at_loss, flops_optimal
    from moescale.planning.training_price import TrainingPrice
    from moescale.runs.table import RunTable, read_runs
    from moescale.scaling_laws import Law, find_form, find_law, loss, predict, save_law
    from moescale.serving.deployment import Deployment, degrees, with_traffic
    from moescale.serving.engine import Policy, simulate
    from moescale.serving.gpu_counts import Cost, cheapest, cost
    from moescale.serving.loads import OpenLoop, open_loop
    from moescale.serving.operating_points import OperatingPoints, Platform, find_platforms, operating_points
    from moescale.serving.steady_state import serve
    from moescale.serving.traffic import Traffic, read_trace
    from moescale.serving.workload import Load, Run, burst, closed, saturated
    from moescale.units import parse_quantity
    from moescale.views.notebook import load_ipython_extension

__version__ = "0.2.0"

_HOMES = {
    "errors": (
        "InfeasibleError",
        "InputError",
        "MoescaleError",
    ),
    "fitting.bootstrap": ("bootstrap",),
    "fitting.fit": (
        "Fit",
        "fit",
    ),
    "fitting.holdout": (
        "RunArrays",
        "diagnose",
        "hold_out",
    ),
    "fitting.isoflop": (
        "IsoFlop",
        "isoflop",
    ),
    "fitting.workflow": (
        "FitSettings",
        "FittedLaw",
        "compare_laws",
        "fit_runs",
        "fitted_law",
    ),
    "hardware.gpus": (
        "Gpu",
        "find_gpu",
        "gpus",
        "measured_reserve_bytes",
        "read_gpu",
    ),
    "hardware.prices": (
        "owned_usd_per_gpu_hour",
        "price",
    ),
    "latency.open": ("open_latency",),
    "latency.roofline": ("Roofline",),
    "latency.silicon": ("Silicon",),
    "latency.table": ("read_latency_table",),
    "models.architecture": ("Architecture",),
    "models.family": (
        "ModelFamily",
        "families",
        "find_family",
    ),
    "models.hf_config": ("from_config",),
    "options.law": ("LawOptions",),
    "options.question": ("BoundOptions",),
    "options.serving": ("ServingOptions",),
    "planning.allocation": (
        "Allocation",
        "Budget",
        "best_within_cost",
        "loss_optimal",
        "smallest_at_loss",
    ),
    "planning.compare_models": (
        "ComparedModel",
        "compare_models",
    ),
    "planning.plan": (
        "Plan",
        "Question",
        "make_plan",
    ),
    "planning.question": ("KnownModel",),
    "planning.training_price": ("TrainingPrice",),
    "planning.total_cost": (
        "Lifetime",
        "best_within_total",
        "cheapest_at_loss",
        "flops_optimal",
    ),
    "runs.table": (
        "RunTable",
        "read_runs",
    ),
    "scaling_laws": (
        "Law",
        "find_form",
        "find_law",
        "loss",
        "predict",
        "save_law",
    ),
    "serving.deployment": (
        "Deployment",
        "degrees",
        "with_traffic",
    ),
    "serving.engine": (
        "Policy",
        "simulate",
    ),
    "serving.gpu_counts": (
        "Cost",
        "cheapest",
        "cost",
    ),
    "serving.loads": (
        "OpenLoop",
        "open_loop",
    ),
    "serving.operating_points": (
        "OperatingPoints",
        "Platform",
        "find_platforms",
        "operating_points",
    ),
    "serving.steady_state": ("serve",),
    "serving.traffic": (
        "Traffic",
        "read_trace",
    ),
    "serving.workload": (
        "Load",
        "Run",
        "burst",
        "closed",
        "saturated",
    ),
    "units": ("parse_quantity",),
    "views.notebook": ("load_ipython_extension",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Allocation",
    "Architecture",
    "BoundOptions",
    "Budget",
    "ComparedModel",
    "Cost",
    "Deployment",
    "Fit",
    "FitSettings",
    "FittedLaw",
    "Gpu",
    "InfeasibleError",
    "InputError",
    "IsoFlop",
    "KnownModel",
    "Law",
    "LawOptions",
    "Lifetime",
    "Load",
    "ModelFamily",
    "MoescaleError",
    "OpenLoop",
    "OperatingPoints",
    "Plan",
    "Platform",
    "Policy",
    "Question",
    "Roofline",
    "Run",
    "RunArrays",
    "RunTable",
    "ServingOptions",
    "Silicon",
    "Traffic",
    "TrainingPrice",
    "__version__",
    "best_within_cost",
    "best_within_total",
    "bootstrap",
    "burst",
    "cheapest",
    "cheapest_at_loss",
    "closed",
    "compare_laws",
    "compare_models",
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
    "fit_runs",
    "fitted_law",
    "flops_optimal",
    "from_config",
    "gpus",
    "hold_out",
    "isoflop",
    "load_ipython_extension",
    "loss",
    "loss_optimal",
    "make_plan",
    "measured_reserve_bytes",
    "open_latency",
    "open_loop",
    "operating_points",
    "owned_usd_per_gpu_hour",
    "parse_quantity",
    "predict",
    "price",
    "read_gpu",
    "read_latency_table",
    "read_runs",
    "read_trace",
    "saturated",
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


# In a notebook answers show themselves as tables and figures; moescale.views.notebook says how.
if "IPython" in sys.modules and (_shell := getattr(sys.modules["IPython"], "get_ipython", lambda: None)()) is not None:
    importlib.import_module("moescale.views.notebook").load_ipython_extension(_shell)

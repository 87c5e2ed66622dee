"""Which sweep to design, as users state it, and the plan that it is for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.bounds import FLOPS, PARAMETERS, SHARE, TOKENS
from moescale.errors import InputError
from moescale.options.fields import MOST_REQUEST_TOKENS, Group, Remark, path, quantity, unsaid
from moescale.options.question import BoundOptions
from moescale.options.runs import TableOptions

if TYPE_CHECKING:
    from moescale.planning.search import Search
    from moescale.planning.sweep_design import SweepDesign

SWEEP = "Limits of the sweep"
BUDGETS = 100.0  # a plan's FLOPs over those of its sweep, where none is stated: our own
MOST_STATED = 1000  # runs


@dataclass(frozen=True, kw_only=True)
class DesignOptions(Group):
    """What a sweep may take, and what is known before it."""

    HEADING = SWEEP

    flops: float | None = quantity(
        "Training FLOPs of the whole sweep, such as 1e21.", 1e-12, FLOPS.most, name="--budget"
    )
    runs: Path | None = path("Table of finished runs, as `fit` reads it.")
    next_: int | None = quantity("Number of further runs.", 1, MOST_STATED, whole=True)
    max_runs: int | None = quantity("Most runs; default 60.", 1, MOST_STATED, whole=True)
    max_run_flops: float | None = quantity(
        "Most FLOPs of one run; default: a quarter of the sweep's.", 1e-12, FLOPS.most
    )
    max_run_tokens: float | None = quantity("Most tokens of one run.", TOKENS)
    min_params: float | None = quantity("Least N of one run; default 1M.", 1e3, PARAMETERS.most, unit="parameters")
    run_noise: float | None = quantity("Standard deviation of ln loss between seeds; default 0.003.", SHARE)
    sequence_tokens: int | None = quantity(
        "Sequence length in tokens; default 2,048.", 2, MOST_REQUEST_TOKENS, whole=True
    )
    sweep_file: Path | None = path("Write SWEEP.toml for `moescale sweep`.", name="-o")

    def sweep_flops(self) -> float:
        """FLOPs of the sweep; InputError without any."""
        if self.flops is None:
            raise InputError("no FLOPs for the sweep", where="--budget", next_step="give --budget FLOPS, such as 1e21")
        return self.flops

    def design(self, search: Search, remark: Remark = unsaid) -> SweepDesign:
        """The sweep for a search."""
        from moescale.models.recipe import defaults
        from moescale.planning.gaussian_process import RUN_NOISE
        from moescale.planning.sweep_design import LEAST_PARAMS, MOST_RUNS, SweepLimits, design_sweep, in_letters

        known = None
        if self.runs is not None:
            table = TableOptions().read_from(self.runs)
            for warning in table.warnings:
                remark(warning)
            known = in_letters(table, search.law.family)
        limits = SweepLimits(
            flops=self.sweep_flops(),
            runs=min(self.next_ or MOST_STATED, self.max_runs or (MOST_STATED if self.next_ else MOST_RUNS)),
            few=self.next_ is not None,
            run_flops=self.max_run_flops,
            run_tokens=self.max_run_tokens,
            least_params=self.min_params or LEAST_PARAMS,
            noise=self.run_noise or RUN_NOISE,
            sequence_tokens=self.sequence_tokens or defaults().sequence_tokens,
        )
        return design_sweep(search, limits, known=known)


@dataclass(frozen=True, kw_only=True)
class PlanOptions(BoundOptions):
    """The question of a plan beside the sweep's own budget."""

    budget: float | None = quantity(
        "Training FLOPs of the planned model; default: 100 times the sweep's.", 0, float("inf"), name="--plan-budget"
    )

    def after(self, sweep_flops: float, remark: Remark = unsaid) -> PlanOptions:
        """With a budget where none is stated."""
        if (self.budget, self.days, self.budget_usd, self.matched()[0]) != (None, None, None, None):
            return self
        remark(f"no plan budget given: using {BUDGETS:g} times the sweep's, {BUDGETS * sweep_flops:.3g} FLOPs")
        return replace(self, budget=BUDGETS * sweep_flops)

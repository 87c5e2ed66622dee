"""The runs that a sweep may take: candidates within its limits, and the plain grid and the paper's runs that it is set against."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from moescale import catalogue
from moescale.models.family import ModelFamily, training_flops
from moescale.planning.gaussian_process import RUN_NOISE, Runs
from moescale.typing import BoolArray, FloatArray

MOST_RUNS = 60  # as many as the plain grid has
TOKENS_PER_PARAM = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
SIZE_STEP = math.sqrt(2.0)
SMALLEST_SHARE, LARGEST_SHARE = 1e-5, 0.25  # of the sweep's FLOPs, of one run
LEAST_PARAMS = 1e6  # N: smaller models are far from what any law was fitted on

# A plain grid: sizes over a factor of eight, three tokens a parameter, every expert count.
GRID_SIZES, GRID_SPAN, GRID_TOKENS_PER_PARAM = 4, 8.0, (5.0, 20.0, 80.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepLimits:
    """What a sweep may take."""

    flops: float
    runs: int = MOST_RUNS
    few: bool = False  # whether the number of runs is what is scarce, and not their FLOPs
    run_flops: float | None = None  # of one run; None: a quarter of all
    run_tokens: float | None = None  # of one run
    least_params: float = LEAST_PARAMS  # N of a run
    noise: float = RUN_NOISE
    sequence_tokens: int = 2048  # that batches are whole sequences of


def flops_of(family: ModelFamily, runs: Runs, factor: float = 1.0) -> FloatArray:
    """Training FLOPs of runs (n,) whose sizes and tokens are so many times larger."""
    return training_flops(family, factor * runs.n_params, factor * runs.tokens, runs.experts)


def candidate_runs(family: ModelFamily, experts: tuple[float, ...], limits: SweepLimits) -> Runs:
    """Every size (steps of the square root of two), tokens a parameter and expert count that the limits allow."""
    sizes = limits.least_params * SIZE_STEP ** np.arange(2.0 * math.log2(1e13 / limits.least_params))
    n, per_param, e = (axis.ravel() for axis in np.meshgrid(sizes, TOKENS_PER_PARAM, experts, indexing="ij"))
    n, tokens = (np.array([float(f"{value:.3g}") for value in values]) for values in (n, n * per_param))
    flops = training_flops(family, n, tokens, e)
    most = min(LARGEST_SHARE * limits.flops, limits.run_flops or math.inf)
    fits = (flops >= SMALLEST_SHARE * limits.flops) & (flops <= most) & (tokens <= (limits.run_tokens or math.inf))
    return Runs(n[fits], tokens[fits], e[fits])


def repeated(offered: Runs, seen: Runs) -> BoolArray:
    """Which candidates (c,) are known runs, to a tenth of N and tokens."""
    if not len(seen):
        return np.zeros(len(offered), dtype=np.bool_)
    sizes, tokens = (
        np.log(own[:, None] / its) for own, its in ((offered.n_params, seen.n_params), (offered.tokens, seen.tokens))
    )
    near = (np.abs(sizes) < 0.1) & (np.abs(tokens) < 0.1)
    return (near & (offered.experts[:, None] == np.round(seen.experts))).any(axis=1)


def plain_grid(family: ModelFamily, experts: tuple[float, ...], flops: float) -> Runs:
    """Four sizes over a factor of eight, 5, 20 and 80 tokens a parameter, every expert count, for so many FLOPs in all."""
    shares = np.geomspace(1.0, GRID_SPAN, GRID_SIZES)
    n, per_param, e = (axis.ravel() for axis in np.meshgrid(shares, GRID_TOKENS_PER_PARAM, experts, indexing="ij"))
    return _scaled(family, Runs(n, n * per_param, e), flops)


def paper_sweep(family: ModelFamily, flops: float) -> Runs:
    """The paper's hundred runs (arXiv 2404.02852, section 3), all sizes and tokens times one factor, for so many FLOPs in all."""
    published = catalogue.read("published_yun2024.toml")["sweep"]
    stated = (np.array(published[key], dtype=float) for key in ("n_params", "tokens", "experts"))
    return _scaled(family, Runs(*(axis.ravel() for axis in np.meshgrid(*stated, indexing="ij"))), flops)


def _scaled(family: ModelFamily, runs: Runs, flops: float) -> Runs:
    """Sizes and tokens times one factor, so that all runs together take so many FLOPs."""
    low, high = -60.0, 60.0  # of the factor's logarithm
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if flops_of(family, runs, math.exp(middle)).sum() > flops else (middle, high)
    factor = math.exp(low)
    return Runs(factor * runs.n_params, factor * runs.tokens, runs.experts)

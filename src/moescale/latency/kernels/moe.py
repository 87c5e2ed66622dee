"""Times of a layer's experts from measured kernels, for every number and width of experts.

The tables hold some tens of shapes, each cut over tensor- and expert-parallel GPUs in many ways, so that they span 1 to
512 local experts. A formula of nine constants, fitted to all rows, carries what is common to them:

    t = t0 + ((D w / (m B))^p + ((a + u D) w / (c F) 2)^p)^(1/p) + activations

with a token-expert pairs on the busiest GPU, w weights of an expert (bytes in the first term), D distinct experts that
those pairs meet under the uneven load of the tables, B and F the data sheet's bandwidth and FLOP rate, u pairs of padding
an expert. What it misses at a measured shape, as a function of pairs per expert, is carried to other shapes by a mean
weighted with their likeness in the logarithms of width, model width, local experts and experts a token meets. A measured
shape itself is answered from its own rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from moescale import catalogue
from moescale.errors import InputError
from moescale.latency.kernels.formats import EXPERTS_OF, KINDS, SERVED_WITH, SHARED_EXPERT_KERNELS, peak_of
from moescale.latency.kernels.tables import (
    System,
    Table,
    default_version,
    engines,
    find_system,
    find_table,
    of_the_fastest,
    read_columns,
)
from moescale.typing import FloatArray, Real

SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
EP = SIZES.index("moe_ep_size")
# Shapes of the tables (model width, expert width) that are left out: the Nemotron-H family has plain experts of two
# matrices (arXiv 2504.03624, section 2), but some tables time them as gated ones of three, and none says which.
UNCLEAR_SHAPES = ((2688, 1856), (4096, 2688), (2048, 5120), (1024, 2688))
# Likeness: a Gaussian of this many e-folds in (width, model width, local experts, experts a token meets), and how many
# shapes' worth of doubt keeps the formula where no shape is like. Chosen once, by the mean leave-one-shape-out error of
# the A100 and H100 tables of vLLM in bf16; docs/evidence/kernels.md has the errors on every GPU.
LIKENESS = (0.3, 0.5, 0.5, 0.7)
DOUBT = 0.3
SAME = 0.01  # e-folds within which a shape counts as the measured one
SAME_WEIGHT = 1e4
STEPS_AN_OCTAVE = 8
OCTAVES = (-10, 16)  # of pairs per local expert
# How unevenly tokens fall on experts: a power law with this exponent is what aiconfigurator-core takes for MoE models.
LOAD = "power_law_1.2"


@dataclass(frozen=True, slots=True)
class Formula:
    """Constants of the formula above; times in units of the data sheet's rates."""

    launch_us: float
    memory_share: float  # m
    compute_share: float  # c
    sharpness: float  # p
    pair_activation: float  # bytes moved for one token-expert pair, in its own inputs and outputs
    evenness: float  # of the load: how fast the distinct experts that are met rise to all of them
    imbalance: float  # the busiest of e expert-parallel GPUs has the share e^-imbalance of all pairs
    padding: float  # u, pairs an expert
    token_activation: float  # bytes moved for one token, in its own width


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides the time of one GPU's experts; all fields broadcast."""

    tokens: Real  # of the whole batch
    d_model: Real
    width: Real  # of an expert on this GPU
    local_experts: Real
    top_k: Real
    expert_parallel: Real
    matrices: Real = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class MoeKernels:
    """Measured experts of one system, engine, version, number format and load."""

    formula: Formula
    system: System
    kind: str
    features: npt.NDArray[np.float32]  # (shapes, 4), divided by LIKENESS
    missed: npt.NDArray[np.float32]  # (steps, shapes): log(measured / formula) on a grid of pairs per expert
    rises: npt.NDArray[np.float32]  # of it to the next step
    widths: FloatArray  # of the measured shapes, as _key has them; sorted

    def is_measured(self, d_model: Real, width: Real) -> npt.NDArray[np.bool_]:
        """Whether experts of these widths were measured, with any number of them."""
        key = _key(d_model, width)
        return self.widths.take(self.widths.searchsorted(key), mode="clip") == key

    def seconds(self, shape: Shape) -> FloatArray:
        """Seconds of one layer's experts, all fields of `shape` broadcast; without the router and the all-reduce."""
        return formula_s(self.formula, shape, self.system, self.kind) * np.exp(self._missed(shape))

    def _missed(self, shape: Shape) -> FloatArray:
        """The mean of log(measured / formula) at these sizes, weighted with likeness."""
        features, at = _features(shape, self.formula)
        place = np.clip((at / np.log(2.0) - OCTAVES[0]) * STEPS_AN_OCTAVE, 0.0, len(self.missed) - 1 - 1e-9)
        # Sizes that differ in tokens alone, along the first axes, are as like: a likeness for all of them.
        whole = np.broadcast_shapes(place.shape, features.shape[:-1])
        alike = whole[len(whole) - features.ndim + 1 :]
        weight = self._likeness(np.broadcast_to(features, (*alike, 4)).reshape(-1, 4))
        total, n = np.sum(weight, axis=1) + DOUBT, len(weight)
        places = np.broadcast_to(place, whole).reshape(math.prod(whole) // max(n, 1), n)
        out, rows = np.empty(places.shape), max(512 // max(n, 1), 1)  # so few that what is weighted stays in the cache
        for part in (slice(i, i + rows) for i in range(0, len(places), rows)):
            low = places[part].astype(np.intp)
            there = self.rises.take(low, axis=0)
            there *= (places[part] - low).astype(np.float32)[..., None]
            there += self.missed.take(low, axis=0)
            there *= weight
            out[part] = np.sum(there, axis=-1) / total
        return out.reshape(whole)

    def _likeness(self, features: FloatArray) -> npt.NDArray[np.float32]:
        """The weight of each measured shape, (n, shapes), at features of (n, 4)."""
        likeness = (features / np.asarray(LIKENESS)).astype(np.float32)
        # Each point by itself, not as a product of matrices, whose last digit depends on how many are asked at once.
        squared = np.zeros((len(likeness), len(self.features)), dtype=np.float32)
        for mine, theirs in zip(likeness.T, self.features.T, strict=True):
            away = mine[:, None] - theirs[None, :]
            away *= away
            squared += away
        same = squared < np.float32((SAME / min(LIKENESS)) ** 2)
        squared *= np.float32(-0.5)
        weight = np.exp(squared, out=squared)
        weight[same] = SAME_WEIGHT
        return weight


def _key(d_model: Real, width: Real) -> FloatArray:
    """One number for a pair of whole widths."""
    return np.asarray(d_model, dtype=np.float64) * 2.0**24 + width


def formula_s(formula: Formula, shape: Shape, system: System, kind: str) -> FloatArray:
    """Seconds by the formula alone, of experts in a number format."""
    f, bandwidth = formula, system.memory_bandwidth_bytes_per_s
    top_k, local = np.asarray(shape.top_k, dtype=np.float64), shape.local_experts
    pairs = shape.tokens * top_k * np.power(shape.expert_parallel, -f.imbalance)
    weights = shape.matrices * np.asarray(shape.d_model, dtype=np.float64) * shape.width
    # Distinct local experts that a pass reads, under the uneven load of the tables.
    met = local * -np.expm1(-f.evenness * np.log1p(pairs / (local * f.evenness)))
    met = np.minimum(met, np.minimum(local, shape.tokens * top_k))
    memory_s = met * weights * (KINDS[kind].bytes_per_weight / (bandwidth * f.memory_share))
    compute_s = (pairs + met * f.padding) * weights * (2.0 / (peak_of(system, kind) * f.compute_share))
    pair_bytes = 2.0 * (2.0 * shape.d_model + shape.matrices * np.asarray(shape.width, dtype=np.float64))
    moved = f.pair_activation * pairs * pair_bytes + f.token_activation * shape.tokens * 2.0 * np.asarray(shape.d_model)
    roof = np.power(np.power(memory_s, f.sharpness) + np.power(compute_s, f.sharpness), 1.0 / f.sharpness)
    return f.launch_us * 1e-6 + roof + moved / bandwidth


def _features(shape: Shape, formula: Formula) -> tuple[FloatArray, FloatArray]:
    """What likeness is measured in, (..., 4), and the logarithm of pairs per local expert."""
    met = np.log(shape.top_k) - formula.imbalance * np.log(shape.expert_parallel)
    experts = np.log(shape.local_experts)
    columns = np.broadcast_arrays(np.log(shape.width), np.log(shape.d_model), experts, met)
    return np.stack(columns, axis=-1), np.asarray(np.log(shape.tokens) + met - experts)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Measured rows of one number format and load: (n,) each."""

    shape: Shape
    latency_s: FloatArray
    model: npt.NDArray[np.intp]  # index of the whole shape that a row was cut from
    cut: npt.NDArray[np.intp]  # index of the shape and the way it was cut
    labels: tuple[str, ...]  # of the whole shapes, such as 4096x14336 top-2 of 8


@cache
def moe_rows(system: str, engine: str, version: str, kind: str) -> Rows:
    """The table's rows, of each size those of the fastest kernel source; InputError for a format that was not measured."""
    table = find_table(system, "moe", engine, version, "moe_perf")
    if table is None:
        raise InputError(f"no experts were measured for {engine} on {system}", where="silicon")
    rows = _read(table, kind)
    for other in EXPERTS_OF.get((engine, kind), ()):
        rows = np.concatenate([rows, _rows_of(system, other, kind, SHARED_EXPERT_KERNELS)])
    lender, kernel = SERVED_WITH.get((engine, kind), ("", ""))
    if lender in engines(system):  # in place of those of the same widths, where each GPU holds a part of all experts
        found = _rows_of(system, lender, kind, kernel)
        found = found[found[:, EP] == 1]
        replaced = np.isin(_key(rows[:, 1], rows[:, 2]), _key(found[:, 1], found[:, 2])) & (rows[:, EP] == 1)
        rows = np.concatenate([rows[~replaced], found])
    if not len(rows):
        raise InputError(f"no {kind} experts were measured for {engine} on {system}", where="silicon")
    rows = rows[~np.isin(_key(rows[:, 1], rows[:, 2]), [_key(*widths) for widths in UNCLEAR_SHAPES])]
    places, latency_s = of_the_fastest(rows[:, : len(SIZES)], rows[:, -2], rows[:, -1])
    tokens, d_model, inter, top_k, experts, tp, ep = places.T
    models, model = np.unique(places[:, 1:5], axis=0, return_inverse=True)
    _, cut = np.unique(places[:, 1:7], axis=0, return_inverse=True)
    return Rows(
        shape=Shape(tokens, d_model, inter / tp, experts / ep, top_k, ep, np.full(len(places), 3.0)),
        latency_s=latency_s,
        model=model.ravel(),
        cut=cut.ravel(),
        labels=tuple(f"{h:.0f}x{w:.0f} top-{k:.0f} of {e:.0f}" for h, w, k, e in models),
    )


def _read(table: Table, kind: str, **source: str) -> FloatArray:
    """The rows of a number format, (n, 9): SIZES, a number for the kernel source, seconds."""
    columns = read_columns(table, (*SIZES, "kernel_source", "latency"), moe_dtype=kind, distribution=LOAD, **source)
    return np.stack(list(columns.values()), axis=1)


def _rows_of(system: str, engine: str, kind: str, kernel: str) -> FloatArray:
    """The rows of another engine's current table whose kernel source has this name in it; often none."""
    table = find_table(system, "moe", engine, default_version(system, engine), "moe_perf")
    found = [np.empty((0, len(SIZES) + 2))]
    if table is None:
        return found[0]
    for source in table.text_values("kernel_source"):
        if kernel in source:
            found.append(_read(table, kind, kernel_source=source))
            found[-1][:, -2] = -len(found)  # none of the engine's own
    return np.concatenate(found)


def kernels_of(rows: Rows, formula: Formula, system: System, kind: str) -> MoeKernels:
    """The answering object of measured rows and the formula fitted to them."""
    logs = np.log(rows.latency_s / formula_s(formula, rows.shape, system, kind))
    features, at = _features(rows.shape, formula)
    steps = np.arange((OCTAVES[1] - OCTAVES[0]) * STEPS_AN_OCTAVE + 1)
    grid = (OCTAVES[0] + steps / STEPS_AN_OCTAVE) * np.log(2.0)
    order = np.lexsort((at, rows.cut))
    groups = np.split(order, np.flatnonzero(np.diff(rows.cut[order])) + 1)
    missed = np.stack([np.interp(grid, at[group], logs[group]) for group in groups], axis=1).astype(np.float32)
    firsts = features[[group[0] for group in groups]]
    return MoeKernels(
        formula=formula,
        system=system,
        kind=kind,
        features=(firsts / np.asarray(LIKENESS)).astype(np.float32),
        missed=missed,
        rises=np.diff(missed, axis=0),
        widths=np.unique(_key(rows.shape.d_model, rows.shape.width)),
    )


@cache
def moe_kernels(system: str, engine: str, version: str, kind: str) -> MoeKernels:
    """Measured experts, ready to be asked, with the formula that scripts/fit_moe_formulas.py fitted to their rows."""
    wanted = {"system": system, "engine": engine, "version": version, "kind": kind, "load": LOAD}
    rows, entries = moe_rows(system, engine, version, kind), catalogue.read("moe_formulas.toml")["formula"]
    formula = next(Formula(*entry["constants"]) for entry in entries if wanted.items() <= entry.items())
    return kernels_of(rows, formula, find_system(system), kind)

"""From a real-valued size to a shape with whole layers and heads: what a configuration file holds, and a server serves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from moescale.errors import InputError
from moescale.io.records import record
from moescale.models.architecture import Architecture
from moescale.models.family import ModelFamily, width
from moescale.models.recipe import defaults
from moescale.typing import FloatArray

BoolArray = npt.NDArray[np.bool_]

# A shape keeps the proportions of its family: these bounds come first, the size after them.
MOST_ASPECT = 1.5  # of d_model / n_layers over the family's, either way
MOST_FFN_RATIO = 1.35  # of d_ffn / d_model over the family's, either way: it is what meets the size
MOST_SIZE = 0.01  # of N, relative
FFN_STEP = 64  # FFN widths are multiples of it, so that kernels run on whole tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """Whole-number shape nearest to a recommended size: what a configuration file would hold."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int  # of a gated FFN, and of every expert
    n_experts: int
    top_k: int
    moe_every: int
    n_params: float  # dense-equivalent, counted as the law counts it
    n_params_total: float  # with all experts, counted so too
    vocab_size: int = field(default_factory=lambda: defaults().vocab_size)  # rows of the input and of the output table

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values."""
        return record(self)

    def architecture(self) -> Architecture:
        """The model that the exported configuration describes: tables, norms and routers included."""
        moe_layers = self.n_layers // self.moe_every if self.n_experts > 1 else 0
        names = ["n_layers", "d_model", "n_heads", "n_kv_heads", "head_dim", "d_ffn", "vocab_size"]
        numbers: dict[str, Any] = {name: getattr(self, name) for name in names}
        if moe_layers:
            numbers |= {"n_experts": self.n_experts, "top_k": self.top_k, "d_expert": self.d_ffn}
        name = "qwen3_moe" if moe_layers else "qwen3"
        return Architecture(**numbers, n_moe_layers=moe_layers, qk_norm=True, name=name)


def family_of(shape: Buildable, family: ModelFamily) -> ModelFamily:
    """The family with the proportions of a shape, so that its counts at `shape.n_params` are those of the shape."""
    return replace(
        family,
        ffn_matrices=3,
        ffn_ratio=shape.d_ffn / shape.d_model,
        d_model_per_layer=shape.d_model / shape.n_layers,
        kv_heads=None if shape.n_kv_heads == shape.n_heads else float(shape.n_kv_heads),
    )


def vocabulary(family: ModelFamily, vocab_size: int | None = None) -> int:
    """Rows of a built model's tables: `vocab_size`, else those that the family's N counts, else the recipe's."""
    return vocab_size or int(family.vocab_size if family.embedding_matrices else 0) or defaults().vocab_size


def buildable(
    family: ModelFamily,
    n_params: float,
    experts: float,
    *,
    gpus: int = 1,
    vocab_size: int | None = None,
    at_most: bool = False,
    must_split: bool = False,
) -> Buildable:
    """The whole-number shape of the family's proportions whose N is the nearest from `n_params` up (`at_most`: down).

    Depth is a multiple of the MoE spacing, width a multiple of the head dimension; d_model / n_layers stays within
    MOST_ASPECT and d_ffn / d_model within MOST_FFN_RATIO of the family's, and N within MOST_SIZE, as far as whole heads
    allow. Heads split over `gpus` GPUs (tensor parallel), or over half as many, and so on, unless they `must_split` over
    these, whatever the proportions; query heads share the family's
    `kv_heads` evenly, or the largest smaller count that they can. FFNs are gated, also where the family's are plain: two
    thirds as wide, they have as many parameters.
    Raises InputError where n_params or experts is no positive number.
    """
    if not (math.isfinite(n_params) and n_params > 0 and math.isfinite(experts) and experts >= 1):
        raise InputError(f"a model of {n_params:g} parameters and {experts:g} experts has no shape")
    heads, layers, cached, fewer, d_ffn, n = _whole_shapes(family, n_params, gpus, at_most=at_most)
    head, d_model = int(family.head_dim), heads * int(family.head_dim)
    aspect = np.abs(np.log(d_model / layers / family.d_model_per_layer))
    wide = np.abs(np.log(d_ffn / d_model / (family.ffn_ratio * family.ffn_matrices / 3.0)))
    off = np.abs(np.log(n / n_params))
    alike = (aspect <= math.log(MOST_ASPECT)) & (wide <= math.log(MOST_FFN_RATIO)) & (off <= MOST_SIZE)
    unlike = aspect + wide + off + fewer
    splits = _splits(heads, cached, gpus)
    if must_split and splits[0].any():
        alike, unlike = alike & splits[0], np.where(splits[0], unlike, np.inf)
    at = _best(unlike, alike, fewer == 0.0, splits, off)
    expert = int(layers[at]) // family.moe_every * 3.0 * int(d_model[at]) * int(d_ffn[at])
    return Buildable(
        n_layers=int(layers[at]),
        d_model=int(d_model[at]),
        n_heads=int(heads[at]),
        n_kv_heads=int(cached[at]),
        head_dim=head,
        d_ffn=int(d_ffn[at]),
        n_experts=int(experts),
        top_k=int(min(family.top_k, experts)),
        moe_every=family.moe_every,
        vocab_size=vocabulary(family, vocab_size),
        n_params=float(n[at]),
        n_params_total=float(n[at]) + (int(experts) - 1) * expert,
    )


def _whole_shapes(family: ModelFamily, n_params: float, gpus: int, *, at_most: bool) -> tuple[FloatArray, ...]:
    """Heads, layers, key-value heads and how many fewer those are than wanted, FFN width and N of the shapes near a size."""
    head, every = int(family.head_dim), family.moe_every
    d = float(width(family, n_params))
    ideal_heads, ideal_layers = d / head, d / family.d_model_per_layer
    near = np.arange(max(1.0, math.floor(0.6 * ideal_heads)), math.ceil(1.5 * ideal_heads) + gpus + 1)
    depths = every * np.arange(1.0, math.ceil(2.0 * ideal_layers / every) + 1)
    heads, layers = np.meshgrid(near, depths, indexing="ij")
    cached, fewer = _kv_heads(heads, family.kv_heads)
    d_model = heads * head
    attention = 2.0 * d_model**2 + 2.0 * d_model * cached * head
    tables = family.embedding_matrices * family.vocab_size * d_model
    per_ffn = ((n_params - tables) / layers - attention) / (3.0 * d_model * FFN_STEP)
    d_ffn = FFN_STEP * np.maximum(np.floor(per_ffn * (1 + 1e-12)) if at_most else np.ceil(per_ffn * (1 - 1e-12)), 1.0)
    return heads, layers, cached, fewer, d_ffn, layers * (attention + 3.0 * d_model * d_ffn) + tables


def _kv_heads(heads: FloatArray, wanted: float | None) -> tuple[FloatArray, FloatArray]:
    """Key-value heads for each count of query heads, and how many fewer they are than wanted, as a logarithm."""
    if wanted is None:
        return heads, np.zeros(heads.shape)
    most = int(wanted)
    divisors = np.arange(1, most + 1)
    shared = np.where(heads[..., None] % divisors == 0, divisors, 1).max(axis=-1)
    cached = np.where(heads <= most, heads, shared)
    return cached, np.log(np.minimum(heads, most) / cached)


def _splits(heads: FloatArray, cached: FloatArray, gpus: int) -> list[BoolArray]:
    """Which head counts split over `gpus` GPUs, over half as many .. down to one, as vLLM demands."""
    counts = [gpus >> halvings for halvings in range(gpus.bit_length())]
    return [(heads % n == 0) & ((cached % n == 0) | (n % cached == 0)) for n in counts]


def _best(
    unlike: FloatArray, alike: BoolArray, exact: BoolArray, splits: list[BoolArray], off: FloatArray
) -> tuple[np.intp, ...]:
    """The index of the shape most like its family, of those that meet most of the demands; proportions come first."""
    # Where no shape of so few heads has the proportions a percent of N weighs as much as a tenth of them.
    kept = (kept & split for kept in (alike & exact, alike) for split in splits)
    weighed = next((np.where(which, unlike, np.inf) for which in kept if which.any()), unlike + 10.0 * off)
    return np.unravel_index(np.argmin(weighed), unlike.shape)

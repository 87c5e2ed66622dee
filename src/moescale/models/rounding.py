"""From a real-valued size to a shape with whole layers and heads: what a configuration file holds, and a server serves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.errors import InputError
from moescale.io.records import record
from moescale.models.architecture import Architecture
from moescale.models.family import LATENT, ModelFamily, width
from moescale.models.operations import attention_products
from moescale.models.recipe import defaults
from moescale.typing import BoolArray, FloatArray

# A shape keeps the proportions of its family: these bounds come first, the size after them.
MOST_ASPECT = 1.5  # of d_model / n_layers over the family's, either way
MOST_FFN_RATIO = 1.35  # of d_ffn / d_model over the family's, either way: it is what meets the size
# Of the width of all heads over d_model over the family's, either way: published shapes of ordinary heads have 0.76 to 3.05, 43 of
# 63 between 0.74 and 1.35 and 37 of them 1 (catalogue/shapes.toml).
MOST_HEADS_RATIO = 1.35
HEADS_WEIGHT = 0.5  # of that proportion beside the others: depth moves the price more, by passes and by cache
MOST_SIZE = 0.01  # of N, relative
# Shapes of a range of sizes. Of 3,131 of 32 experts (3e24 FLOPs, 15T tokens, H200 in fp8) the best of all is served for $1.17, of 600 for $1.22.
MOST_LISTED = 600
SIZE_STEP = 0.01  # in ln N, between the sizes at which all shapes are listed: a step of an FFN mostly moves N by more
MOST_SIZE_USUAL = 0.025  # where no usual count of layers and heads is that near: experts in steps of 64 are coarse
WIDTH_STEP = 64  # of d_model, where the family's heads together are wider or narrower than it
USUAL_WIDTH = 128  # of a d_model that keeps the family's proportion to the depth, and not to the heads
ASPECTS = np.geomspace(0.8, 1.25, 9)  # of such widths, over the family's: a step is USUAL_WIDTH of 2,300
# Widths of FFNs and experts are multiples of the widest of these steps that they hold FEWEST_STEPS of, experts of the last too, the
# least that tensor cores take: kernels run on whole tiles, and N meets its bound.
FFN_STEPS, FEWEST_STEPS, SMALL_STEP = (128, 64), 8, 16
# Of the 70 published shapes with 16 layers and heads or more (catalogue/shapes.toml) 68 have heads in eights and 51 layers in fours, which
# pipelines divide; 67 of 72 FFNs and 32 of 37 experts are multiples of 128.
USUAL_LAYERS, USUAL_HEADS, FEWEST_USUAL = 4, 8, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Buildable:
    """Whole-number shape nearest to a recommended size: what a configuration file would hold."""

    n_layers: int
    d_model: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    d_ffn: int  # of a gated FFN, and of every expert where d_expert does not say
    n_experts: int
    top_k: int
    moe_every: int
    n_params: float  # dense-equivalent, counted as the law counts it
    n_params_total: float  # with all experts, counted so too
    vocab_size: int = field(default_factory=lambda: defaults().vocab_size)  # rows of the input and of the output table
    d_expert: int = 0  # of a routed expert; 0: d_ffn
    d_shared_expert: int = 0  # of all shared experts of a layer together
    kv_lora_rank: int = 0  # of latent attention, as in Architecture; 0: ordinary attention
    q_lora_rank: int = 0
    qk_rope_head_dim: int = 0
    v_head_dim: int = 0

    @property
    def expert_width(self) -> int:
        """FFN width of a routed expert."""
        return self.d_expert or self.d_ffn

    @property
    def model_type(self) -> str:
        """The class of transformers that builds the shape."""
        if self.kv_lora_rank:
            return "deepseek_v3"
        if self.n_experts == 1:
            return "qwen3"
        return "glm4_moe" if self.d_shared_expert else "qwen3_moe"

    @property
    def sigmoid_router(self) -> bool:
        """Whether experts are scored by a sigmoid and balanced by a bias on the choice: catalogue/routers.toml."""
        return self.n_experts > 1 and self.model_type in ("deepseek_v3", "glm4_moe")

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values, without the widths that the shape does not have."""
        return record(self, without=tuple(name for name in FURTHER if not getattr(self, name)))

    def architecture(self) -> Architecture:
        """The model that the exported configuration describes: tables, norms and routers included."""
        moe_layers = self.n_layers // self.moe_every if self.n_experts > 1 else 0
        names = [*WIDTHS, "head_dim", "vocab_size", *LATENT]
        names += ["n_experts", "top_k", "d_shared_expert"] if moe_layers else []
        numbers: dict[str, Any] = {name: getattr(self, name) for name in names}
        numbers |= {"d_expert": self.expert_width} if moe_layers else {}
        kind = self.model_type
        # The bias that corrects the scores of these classes' routers.
        numbers |= {"qk_norm": kind != "deepseek_v3", "router_bias": kind in ("deepseek_v3", "glm4_moe")}
        return Architecture(**numbers, n_moe_layers=moe_layers, name=kind)


WIDTHS = ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ffn")
FURTHER = ("d_expert", "d_shared_expert", *LATENT)


def family_of(shape: Buildable, family: ModelFamily) -> ModelFamily:
    """The family with the proportions of a shape, so that its counts at `shape.n_params` are those of the shape."""
    built = replace(
        family,
        ffn_matrices=3,
        ffn_ratio=shape.d_ffn / shape.d_model,
        d_model_per_layer=shape.d_model / shape.n_layers,
        kv_heads=None if shape.n_kv_heads == shape.n_heads else float(shape.n_kv_heads),
        attention_ratio=shape.n_heads * shape.head_dim / shape.d_model,
    )
    if shape.n_experts == 1:
        return built
    widths = shape.expert_width / shape.d_ffn, shape.d_shared_expert / shape.expert_width
    return replace(built, expert_width=widths[0], shared_experts=widths[1])


def vocabulary(family: ModelFamily, vocab_size: int | None = None) -> int:
    """Rows of a built model's tables: `vocab_size`, else the family's, else the recipe's."""
    return vocab_size or int(family.vocab_size) or defaults().vocab_size


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

    Depth is a multiple of the MoE spacing; layers and heads are usual counts, proportions within MOST_ASPECT,
    MOST_FFN_RATIO and MOST_HEADS_RATIO of the family's, N within MOST_SIZE or MOST_SIZE_USUAL, as far as whole heads
    allow. Heads split over `gpus` GPUs, or over half as many, and so on, unless they `must_split` over these; query
    heads share the family's `kv_heads` evenly, or the largest smaller count that they can. FFNs are gated: two thirds
    as wide as plain ones. Raises InputError where n_params or experts is no positive number.
    """
    if not (math.isfinite(n_params) and n_params > 0 and math.isfinite(experts) and experts >= 1):
        raise InputError(f"a model of {n_params:g} parameters and {experts:g} experts has no shape")
    for usual in (True, False):
        s, counted, fewer = _whole_shapes(family, np.array([n_params]), gpus, at_most=at_most, usual=usual)
        alike, unlike = _likeness(family, s)
        off = np.abs(np.log(counted / n_params))
        unlike = unlike + off + fewer
        splits = _splits(s, gpus)
        if must_split and splits[0].any():
            alike, unlike = alike & splits[0], np.where(splits[0], unlike, np.inf)
        exact, near = alike & (fewer == 0.0), off <= MOST_SIZE
        wanted = [exact & near, exact & (off <= MOST_SIZE_USUAL) if usual else alike & near]
        if not usual or (any(which.any() for which in wanted) and not (must_split and not splits[0].any())):
            break
    # Of those that meet the first demand that any meets; where none does a percent of N weighs as much as a tenth of proportions.
    kept = (which & split for which in wanted for split in splits)
    weighed = next((np.where(which, unlike, np.inf) for which in kept if which.any()), unlike + 10.0 * off)
    best = np.unravel_index(np.argmin(weighed), unlike.shape)
    return _built(family, s, counted, tuple(np.array([each]) for each in best), int(experts), vocab_size)[0]


def buildable_between(
    family: ModelFamily, low: float, high: float, experts: float, *, gpus: int = 1, vocab_size: int | None = None
) -> list[Buildable]:
    """All usual shapes of the family's proportions with N from `low` to `high`, by rising N; of more than MOST_LISTED every so many."""
    sizes = np.geomspace(low, high, math.ceil(math.log(high / low) / SIZE_STEP) + 1)
    s, counted, fewer = _whole_shapes(family, sizes, gpus, at_most=True, usual=True)
    kept = _likeness(family, s)[0] & (fewer == 0.0) & (counted >= low) & (counted <= high)
    at = np.nonzero(kept & _splits(s, gpus)[0])
    numbers = [np.broadcast_to(part, counted.shape)[at] for part in (counted, s.n_layers, s.n_heads)]
    first = np.unique(np.stack(numbers), axis=1, return_index=True)[1]  # of the shapes of each N, depth and heads
    some = first[:: math.ceil(first.size / MOST_LISTED) or 1]
    return _built(family, s, counted, tuple(each[some] for each in at), int(experts), vocab_size)


def _likeness(family: ModelFamily, s: Architecture) -> tuple[BoolArray, FloatArray]:
    """Which shapes have the proportions of the family, and how far each is from these."""
    heads = np.asarray(s.n_heads)
    aspect = np.abs(np.log(s.d_model / s.n_layers / family.d_model_per_layer))
    wide = np.abs(np.log(s.d_ffn / s.d_model / (family.ffn_ratio * family.ffn_matrices / 3.0)))
    heads_off = np.abs(np.log(heads * int(family.head_dim) / s.d_model / family.attention_ratio))
    alike = (aspect <= math.log(MOST_ASPECT)) & (wide <= math.log(MOST_FFN_RATIO))
    return alike & (heads_off <= math.log(MOST_HEADS_RATIO)), aspect + wide + HEADS_WEIGHT * heads_off


def _built(
    family: ModelFamily,
    s: Architecture,
    counted: FloatArray,
    at: tuple[NDArray[np.intp], ...],
    n_experts: int,
    vocab_size: int | None,
) -> list[Buildable]:
    """Some of the whole shapes with their N, as they are built."""
    shared: dict[str, Any] = {name: int(getattr(family, name)) for name in ("head_dim", "moe_every", *LATENT)}
    shared |= {"n_experts": n_experts, "top_k": int(min(family.top_k, n_experts))}
    shared["vocab_size"] = vocabulary(family, vocab_size)
    columns = [np.broadcast_to(getattr(s, name), counted.shape)[at].astype(int) for name in (*WIDTHS, "d_expert")]
    found: list[Buildable] = []
    for n_params, *widths, expert in zip(counted[at].tolist(), *(each.tolist() for each in columns), strict=True):
        sizes = dict(zip(WIDTHS, widths, strict=True))
        d_ffn = sizes["d_ffn"]
        d_expert = expert if n_experts > 1 else d_ffn
        d_shared = round(family.shared_experts * d_expert) if n_experts > 1 else 0
        further = n_experts * d_expert + d_shared - d_ffn  # width that a MoE layer holds beyond a dense one
        total = n_params + sizes["n_layers"] // family.moe_every * 3.0 * sizes["d_model"] * further
        own = {"d_expert": 0 if d_expert == d_ffn else d_expert, "d_shared_expert": d_shared}
        found.append(Buildable(**sizes, **shared, **own, n_params=n_params, n_params_total=total))
    return found


def _whole_shapes(
    family: ModelFamily, n_params: FloatArray, gpus: int, *, at_most: bool, usual: bool
) -> tuple[Architecture, FloatArray, FloatArray]:
    """Shapes for sizes (k,), of one shape (k, heads, depths, widths), N of each, and how many fewer key-value heads than wanted they have, as a logarithm."""
    head, every = int(family.head_dim), family.moe_every
    d, ratio = width(family, n_params), family.attention_ratio
    ideal_heads, ideal_layers = ratio * d / head, d / family.d_model_per_layer
    near = np.arange(max(1.0, math.floor(0.6 * ideal_heads.min())), math.ceil(1.5 * ideal_heads.max()) + gpus + 1)
    depths = every * np.arange(1.0, math.ceil(2.0 * ideal_layers.max() / every) + 1)
    if usual:
        near = near[(near < FEWEST_USUAL) | (near % USUAL_HEADS == 0.0)]
        depths = depths[(depths < FEWEST_USUAL) | (depths % USUAL_LAYERS == 0.0)]
    # A cache of all heads grows with their number, which then follows the width alone.
    free = ASPECTS if family.kv_heads is not None or family.kv_lora_rank else ()
    heads, layers, aspects = np.meshgrid(near, depths, [0.0, *free], indexing="ij")
    cached, fewer = _kv_heads(heads, family.kv_heads)
    by_heads = heads * head
    if ratio != 1.0:
        by_heads = WIDTH_STEP * np.maximum(np.rint(by_heads / ratio / WIDTH_STEP), 1.0)
    by_depth = USUAL_WIDTH * np.maximum(np.rint(aspects * family.d_model_per_layer * layers / USUAL_WIDTH), 1.0)
    d_model = np.where(aspects == 0.0, by_heads, by_depth)
    sizes = Architecture(
        n_layers=layers,
        d_model=d_model,
        n_heads=heads,
        n_kv_heads=cached,
        head_dim=head,
        d_ffn=0.0,
        **{name: getattr(family, name) for name in LATENT},
    )
    attention = sum((op.params for op in attention_products(sizes)), start=np.zeros(()))
    tables = family.embedding_matrices * family.vocab_size * d_model
    steps = [*FFN_STEPS, SMALL_STEP] if family.expert_width < 1.0 else FFN_STEPS
    n, wide = (each[:, None, None, None] for each in (n_params, family.expert_width * family.ffn_ratio * d))
    step = np.select([wide >= FEWEST_STEPS * step for step in steps], steps, steps[-1])

    def whole(values: FloatArray) -> FloatArray:
        return np.floor(values * (1 + 1e-12)) if at_most else np.ceil(values * (1 - 1e-12))

    per_expert = ((n - tables) / layers - attention) / (3.0 * d_model) * family.expert_width
    d_expert = step * np.maximum(whole(per_expert / step), 1.0)
    d_ffn = whole(d_expert / family.expert_width)
    counted = layers * (attention + 3.0 * d_model * d_ffn) + tables
    return replace(sizes, d_ffn=d_ffn, d_expert=d_expert), counted, fewer


def _kv_heads(heads: FloatArray, wanted: float | None) -> tuple[FloatArray, FloatArray]:
    """Key-value heads for each count of query heads, and how many fewer they are than wanted, as a logarithm."""
    if wanted is None:
        return heads, np.zeros(heads.shape)
    most = int(wanted)
    divisors = np.arange(1, most + 1)
    shared = np.where(heads[..., None] % divisors == 0, divisors, 1).max(axis=-1)
    cached = np.where(heads <= most, heads, shared)
    return cached, np.log(np.minimum(heads, most) / cached)


def _splits(s: Architecture, gpus: int) -> list[BoolArray]:
    """Which shapes' heads split over `gpus` GPUs, over half as many .. down to one, as vLLM demands."""
    heads, cached = np.asarray(s.n_heads), np.asarray(s.n_kv_heads)
    counts = [gpus >> halvings for halvings in range(gpus.bit_length())]
    return [(heads % n == 0) & ((cached % n == 0) | (n % cached == 0)) for n in counts]

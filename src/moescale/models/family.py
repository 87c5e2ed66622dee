"""The family of models that a law was fitted on: what its N counts, how N and E become parameters, FLOPs and a shape.

A law's N means nothing without this: one family's accounting with another's law wipes out the gain of the experts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Interval, MaxLen

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.io.records import record
from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real

Convention = Literal["paper", "exact", "dense"]  # CONVENTIONS says what each counts
# How many parameters one token of a model with E experts meets, as a multiple of the dense N.
CONVENTIONS = {
    "paper": "K a + 1 - a with a = 2/3 (paper's section 2.1 and figures): 5/3 for top-2, as if every layer had experts",
    "exact": "1 + (K - 1) c with c the share of N that experts replicate (1/3 in the paper's family): 4/3 for top-2",
    "dense": "1: experts are given free compute",
}

LADDER = (1.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # the expert counts of the paper's plans (section 4)
LATENT = ("kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim")  # of a family, a shape and an Architecture
MOST_KEPT = 200_000  # sizes whose widths are remembered
SQUARED = 1e-8  # relative, of a step of Newton's after which the next one is below rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """Models that differ in size and expert count only; widths and depth grow together (d_model / n_layers fixed).

    N is the size of the dense model, whose FFN is `ffn_ratio` d_model wide. The bounds are those of a law file.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "allow_inf_nan": False}

    name: str
    top_k: Annotated[int, Interval(ge=1, le=1024)]
    moe_every: Annotated[int, Interval(ge=1, le=1024)]  # experts replace the FFN of one in so many layers
    ffn_ratio: Annotated[float, Interval(ge=1e-3, le=1e3)]  # d_ffn / d_model of a dense layer
    d_model_per_layer: Annotated[float, Interval(ge=1, le=1e5)]  # d_model / n_layers
    ffn_matrices: Annotated[int, Interval(ge=2, le=3)] = 3  # gated
    head_dim: Annotated[float, Interval(ge=1, le=1e4)] = 128.0
    vocab_size: Annotated[float, Interval(ge=0, le=1e9)] = 0.0  # rows of an embedding table; 0: the recipe's
    embedding_matrices: Annotated[int, Interval(ge=0, le=2)] = 0  # how many of them N counts (input, output)
    convention: Convention = "exact"
    n_counts: Literal["dense", "total"] = "dense"  # whether a law's N counts the dense model or all of its experts
    tokenizer: str = ""
    dataset: str = ""
    # Key-value heads of a layer, where there are so many heads; None: one a query head.
    kv_heads: Annotated[float, Interval(ge=1, le=1e6)] | None = None
    source: str = ""
    expert_width: Annotated[float, Interval(ge=1e-4, le=1e3)] = 1.0  # FFN width of a routed expert over a dense layer's
    shared_experts: Annotated[float, Interval(ge=0, le=1e4)] = 0.0  # that every token meets, in widths of a routed one
    attention_ratio: Annotated[float, Interval(ge=1e-3, le=1e3)] = 1.0  # n_heads head_dim / d_model
    # Multi-head latent attention, as in Architecture; head_dim is that of queries, kv_heads stays None.
    kv_lora_rank: Annotated[float, Interval(ge=0, le=1e6)] = 0.0
    q_lora_rank: Annotated[float, Interval(ge=0, le=1e6)] = 0.0
    qk_rope_head_dim: Annotated[float, Interval(ge=0, le=1e4)] = 0.0
    v_head_dim: Annotated[float, Interval(ge=0, le=1e4)] = 0.0
    # Expert counts that a plan compares.
    ladder: Annotated[tuple[Annotated[float, Interval(ge=1, le=1e6)], ...], MaxLen(64)] = LADDER
    base_experts: Annotated[float, Interval(ge=1, le=1e6)] = 1.0  # whose loss the others match: of the paper's law 4

    def __post_init__(self) -> None:
        if self.convention not in CONVENTIONS:
            raise unknown_name("convention", self.convention, CONVENTIONS)
        _refuse_groups(self, self.kv_heads)
        if self.kv_lora_rank and self.qk_rope_head_dim >= self.head_dim:
            raise InputError("qk_rope_head_dim must be below head_dim", where=self.name)
        if self.q_lora_rank and not self.kv_lora_rank:
            raise InputError("q_lora_rank needs a positive kv_lora_rank", where=self.name)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values, without what says that the shape and the counts are the usual ones."""
        usual = (f.name for f in fields(self) if f.name in UNUSUAL and getattr(self, f.name) == f.default)
        return record(self, without=tuple(usual))

    @property
    def layer_multiple(self) -> float:
        """Parameters of a dense layer in units of d_model^2: four attention matrices (no grouped queries) and the FFN."""
        return 4.0 * self.attention_ratio + self.ffn_matrices * self.ffn_ratio

    @property
    def has_one_shape_factor(self) -> bool:
        """Whether N is a multiple of d_model^3 and nothing else: no embeddings, no grouped queries, no latent attention."""
        return self.embedding_matrices * self.vocab_size == 0.0 and self.kv_heads is None and not self.kv_lora_rank


_FIELDS = [f.name for f in fields(ModelFamily)]
UNUSUAL = tuple(_FIELDS[_FIELDS.index("expert_width") :])  # what the older families lack


def _refuse_groups(family: ModelFamily, kv_heads: float | None) -> None:
    if family.kv_lora_rank and kv_heads is not None:
        what = "latent attention holds one compressed key and value for all heads, not kv_heads of them"
        raise InputError(what, where=family.name, next_step="leave kv_heads out, or take a family of grouped queries")


@cache
def families() -> dict[str, ModelFamily]:
    """Every family of the catalogue by name."""
    found: dict[str, ModelFamily] = {}
    for name, entry in catalogue.read("families.toml").items():
        stated = {key: value for key, value in entry.items() if key not in ("date", "ladder")}
        found[name] = ModelFamily(name=name, ladder=tuple(entry.get("ladder", LADDER)), **stated)
    return found


def find_family(name: str) -> ModelFamily:
    """The family called `name`; InputError with the nearest names otherwise."""
    if (found := families().get(name.lower())) is None:
        raise unknown_name("family of models", name, families())
    return found


def with_convention(family: ModelFamily, name: str) -> ModelFamily:
    """The family with another named convention for training FLOPs; InputError if the name is unknown."""
    return replace(family, convention=name)  # type: ignore[arg-type]


def _powers_of_width(family: ModelFamily, d_model: FloatArray) -> tuple[FloatArray | float, FloatArray | float, float]:
    """a, b, c of N = a d^3 + b d^2 + c d around the width `d_model`: layers, grouped keys and values, embeddings."""
    per_layer = family.d_model_per_layer
    embeddings = family.embedding_matrices * family.vocab_size
    if family.kv_lora_rank:  # `operations.attention_products` over the width
        heads, value = family.attention_ratio / family.head_dim, family.v_head_dim or family.head_dim  # heads a channel
        rank, expanded = family.kv_lora_rank, family.head_dim - family.qk_rope_head_dim + value
        square, linear = heads * (value + family.head_dim), rank + family.qk_rope_head_dim + heads * rank * expanded
        if family.q_lora_rank:
            square, linear = heads * value, linear + family.q_lora_rank * (1.0 + heads * family.head_dim)
        return (square + family.ffn_matrices * family.ffn_ratio) / per_layer, linear / per_layer, embeddings
    if family.kv_heads is None:
        return family.layer_multiple / per_layer, 0.0, embeddings
    grouped = d_model * family.attention_ratio > family.kv_heads * family.head_dim
    cubic = (family.layer_multiple - np.where(grouped, 2.0 * family.attention_ratio, 0.0)) / per_layer
    return cubic, np.where(grouped, 2.0 * family.kv_heads * family.head_dim / per_layer, 0.0), embeddings


def width(family: ModelFamily, n_params: Real) -> FloatArray:
    """d_model (real-valued) of the dense model with `n_params` parameters, same shape."""
    n = np.asarray(n_params, dtype=float)
    return _width(family, n) if n.size > MOST_KEPT else _known_width(family, n.tobytes(), n.shape).copy()


@lru_cache(maxsize=8)  # each count of parameters and its slope ask for that of the same models
def _known_width(family: ModelFamily, n_params: bytes, shape: tuple[int, ...]) -> FloatArray:
    return _width(family, np.frombuffer(n_params).reshape(shape))


def _width(family: ModelFamily, n: FloatArray) -> FloatArray:
    # Grouped queries begin at one width; below it a head has a key-value head of its own.
    edge = 0.0 if family.kv_heads is None else family.kv_heads * family.head_dim / family.attention_ratio
    at_edge = family.layer_multiple / family.d_model_per_layer * edge**3
    grouped = n > at_edge + family.embedding_matrices * family.vocab_size * edge
    cubic, square, linear = _powers_of_width(family, np.where(grouped, np.inf, 0.0))
    alone, slope, curve = np.cbrt(n / cubic), 2.0 * square, 3.0 * cubic
    # But for cubes of what the others add to the first term:
    d = alone / (1.0 + (square + linear / alone) / (curve * alone))
    for _ in range(60):  # Newton falls onto the root of a convex rising function from above, where its first step leads
        step = (((cubic * d + square) * d + linear) * d - n) / ((curve * d + slope) * d + linear)
        d = d - step
        if np.all(np.abs(step) <= SQUARED * d):
            break
    return d


def dense_params(family: ModelFamily, d_model: Real) -> FloatArray:
    """N of the dense model of this width (real-valued), the inverse of `width`; same shape."""
    d = np.asarray(d_model, float)
    cubic, square, linear = _powers_of_width(family, d)
    return ((cubic * d + square) * d + linear) * d


def width_elasticity(family: ModelFamily, n_params: FloatArray) -> FloatArray:
    """d ln d_model / d ln N, same shape."""
    d = width(family, n_params)
    cubic, square, linear = _powers_of_width(family, d)
    return n_params / (((3.0 * cubic * d + 2.0 * square) * d + linear) * d)


def expert_ffns(family: ModelFamily, experts: Real) -> tuple[FloatArray, FloatArray]:
    """FFNs that a MoE layer holds and that a token meets there, shared ones in both, in units of a dense layer's; 1 at E = 1. Same shape."""
    e = np.asarray(experts, float)
    held, met = (family.expert_width * (n + family.shared_experts) for n in (e, np.minimum(family.top_k, e)))
    dense = e == 1.0
    return (np.where(dense, 1.0, held), np.where(dense, 1.0, met)) if dense.any() else (held, met)


def expert_share(family: ModelFamily, n_params: Real) -> Real:
    """c: what a further FFN of a dense layer's width adds, over all MoE layers, as a share of N; same shape, or one number."""
    if family.has_one_shape_factor:
        return family.ffn_matrices * family.ffn_ratio / family.layer_multiple / family.moe_every
    d = width(family, n_params)
    return family.ffn_matrices * family.ffn_ratio * d**3 / family.d_model_per_layer / family.moe_every / n_params


def n_total(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """Parameters that must be held in memory; (1 + (E - 1)/3) N in the paper's family. Arguments broadcast."""
    held, _ = expert_ffns(family, experts)
    return (1.0 + (held - 1.0) * expert_share(family, n_params)) * np.asarray(n_params, float)


def law_size(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """N as the family's law counts it, for dense-equivalent sizes. Arguments broadcast."""
    if family.n_counts == "total":
        return n_total(family, n_params, experts)
    return np.broadcast_arrays(np.asarray(n_params, float), np.asarray(experts, float))[0]


def n_active(family: ModelFamily, n_params: Real, experts: Real) -> FloatArray:
    """Parameters that one token activates under the family's convention. Arguments broadcast; K = min(top_k, E)."""
    share = expert_share(family, n_params)
    held, met = expert_ffns(family, experts)
    each = {"paper": family.moe_every * share, "exact": share, "dense": 0.0}[family.convention]
    return (1.0 + (np.minimum(met, held) - 1.0) * np.asarray(each, float)) * np.asarray(n_params, float)


def elasticity(family: ModelFamily, n_params: Real, size: Real) -> FloatArray:
    """d ln size / d ln N of a count of parameters, such as n_active, given its value at `n_params`. Arguments broadcast.

    Every count is N (1 + m c) with the share c of N that an FFN adds; d ln c / d ln N is 3 d ln d_model / d ln N - 1.
    """
    n = np.asarray(n_params, float)
    if family.has_one_shape_factor:
        return np.ones(np.broadcast_shapes(n.shape, np.shape(size)))
    return 1.0 + (1.0 - n / size) * (3.0 * width_elasticity(family, n) - 1.0)


def training_flops(family: ModelFamily, n_params: Real, tokens: Real, experts: Real) -> FloatArray:
    """Training FLOPs, 6 * n_active * D. Arguments broadcast."""
    return 6.0 * n_active(family, n_params, experts) * np.asarray(tokens, float)


def tokens_within(family: ModelFamily, budget_flops: Real, n_params: Real, experts: Real) -> FloatArray:
    """Tokens that a training budget pays for at this size and expert count. Arguments broadcast."""
    return np.asarray(budget_flops, float) / (6.0 * n_active(family, n_params, experts))


def architecture(
    family: ModelFamily,
    n_params: Real,
    experts: Real,
    *,
    kv_heads: float | None = None,
    top_k: int | None = None,
    vocab_size: int | None = None,
) -> Architecture:
    """The real-valued shape of each model; `n_params` and `experts` broadcast.

    `kv_heads` sets what the cache holds a layer and leaves the parameters as they are, as the paper does. `vocab_size`
    adds an input and an output table of so many rows that N does not count. Raises InputError for sizes out of bounds,
    and for kv_heads with latent attention.
    """
    n, e = np.broadcast_arrays(np.asarray(n_params, float), np.asarray(experts, float))
    k = float(family.top_k if top_k is None else top_k)
    cached = family.kv_heads if kv_heads is None else kv_heads
    if not np.all((n > 0) & (n < np.inf)):
        raise InputError("n_params must be finite and positive", where=family.name)
    for name, values in (("experts", e), ("top_k", k), ("kv_heads", 1.0 if cached is None else cached)):
        if not np.all((np.asarray(values) >= 1) & (np.asarray(values) < np.inf)):
            raise InputError(f"{name} must be finite and at least 1", where=family.name)
    _refuse_groups(family, cached)
    d = width(family, n)
    layers, heads = d / family.d_model_per_layer, family.attention_ratio * d / family.head_dim
    expert = family.expert_width * family.ffn_ratio * d
    counted = family.vocab_size if family.embedding_matrices else 0.0
    return Architecture(
        n_layers=layers,
        d_model=d,
        n_heads=heads,
        n_kv_heads=heads if cached is None else np.minimum(heads, cached),
        head_dim=family.head_dim,
        d_ffn=family.ffn_ratio * d,
        n_moe_layers=np.where(e > 1.0, layers / family.moe_every, 0.0),
        n_experts=e,
        top_k=np.minimum(k, e),
        d_expert=expert,
        d_shared_expert=family.shared_experts * expert,
        ffn_matrices=family.ffn_matrices,
        vocab_size=counted if vocab_size is None else float(vocab_size),
        tied_embeddings=vocab_size is None and family.embedding_matrices < 2,
        matrices_only=family.kv_heads is None and not family.kv_lora_rank,
        name=family.name,
        **{name: getattr(family, name) for name in LATENT},
    )


def match_family(
    n_params: FloatArray,
    experts: FloatArray,
    *,
    top_k: FloatArray | None = None,
    n_params_total: FloatArray | None = None,
) -> tuple[ModelFamily, list[str]]:
    """The catalogue family that a table of runs, all arrays (n,), belongs to, by its top_k and total-parameter columns, and remarks."""
    if (experts == 1.0).all():
        return find_family("dense"), []
    # N of the runs is a dense-equivalent size: families whose law counts all experts are for --family to name.
    known = {name: family for name, family in families().items() if family.n_counts == "dense" and family.dataset}
    if top_k is None and n_params_total is None:
        return known["yun2024"], [
            "the table has neither top_k nor n_params_total: assuming the paper's family (top-2, experts in "
            "every other layer); for another family, set --family"
        ]
    scores: dict[str, float] = {}
    for name, family in known.items():
        # The cells of dense runs may be empty.
        scores[name] = 0.0
        if top_k is not None:
            met = np.where(experts == 1.0, 1.0, np.minimum(top_k, experts))
            scores[name] += float(np.mean(met != np.minimum(family.top_k, experts)))
        if n_params_total is not None:
            off = np.abs(np.log(n_params_total / n_total(family, n_params, experts)))
            scores[name] += float(np.median(off))
    best = min(scores, key=lambda name: scores[name])
    remark = (
        f"no family of the catalogue matches top_k and n_params_total of the runs (closest: {best}); a plan with this "
        f"law counts parameters and FLOPs as for {best}; for another family, set --family"
    )
    return known[best], [] if scores[best] <= 0.05 else [remark]

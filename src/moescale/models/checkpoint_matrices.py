"""Names and sizes of the matrices of a checkpoint, layer by layer: what lists of modules that are not quantised name."""

from __future__ import annotations

from collections.abc import Iterator

from moescale.models.architecture import Architecture
from moescale.models.config_parts import Layer, type_rows
from moescale.models.operations import State, operations

# Alone, in models that also see, and of Nemotron-H.
PREFIXES = ("model.", "language_model.model.", "model.language_model.", "backbone.")


def _linear_matrices(a: Architecture) -> dict[str, float]:
    state = next(op for op in operations(a) if isinstance(op, State))
    k, v, heads = float(state.keys), float(state.values), float(state.heads)
    d, rank = float(a.d_model), float(a.linear_rank)
    if a.linear_kind == "gated-delta":
        # Qwen3-Next has them in two, Qwen3.5 in four; lists name what the checkpoint has.
        sizes = {"in_proj_qkv": d * (2 * k + v), "in_proj_z": d * v, "in_proj_b": d * heads, "in_proj_a": d * heads}
    elif a.linear_kind == "kda":
        sizes = {"q_proj": d * k, "k_proj": d * k, "v_proj": d * v, "b_proj": d * heads}
        sizes |= {"f_a_proj": d * rank, "f_b_proj": rank * k, "g_a_proj": d * rank, "g_b_proj": rank * v}
        return sizes | {"o_proj": v * d}
    elif a.linear_kind == "mamba2":
        sizes = {"in_proj": d * (2 * k + 2 * v + heads)}
    else:
        sizes = {"in_proj": 2 * d * v, "x_proj": v * (rank + 2 * float(a.linear_key_dim)), "dt_proj": rank * v}
    return sizes | {"out_proj": v * d}


def layer_matrices(a: Architecture, model_type: str, layer: Layer) -> Iterator[tuple[str, str, float]]:
    """Part (a field of Quantised), name and parameters of the matrices of one layer."""
    d, heads, kv_heads, qk = (float(n) for n in (a.d_model, a.n_heads, a.n_kv_heads, a.head_dim))
    rank, query_rank, rope = (float(n) for n in (a.kv_lora_rank, a.q_lora_rank, a.qk_rope_head_dim))
    value = float(a.v_head_dim) or qk
    # Where transformers keeps the parts of this model type, if not in the usual places.
    places = type_rows().get(model_type, {}).get("names", {})
    linear, attention = places.get("linear", "linear_attn"), places.get("attention", "self_attn")
    if layer.mixer == "linear":
        for name, params in _linear_matrices(a).items():
            yield "attention", f"{linear}.{name}", params
    elif layer.mixer:
        sizes = {"q_proj": d * heads * (qk + float(a.attention_gate)), "k_proj": d * kv_heads * qk}
        sizes |= {"v_proj": d * kv_heads * value}
        if rank:
            sizes = {"q_a_proj": d * query_rank, "q_b_proj": query_rank * heads * qk}
            sizes = sizes if query_rank else {"q_proj": d * heads * qk}
            sizes |= {"kv_a_proj_with_mqa": d * (rank + rope), "kv_b_proj": rank * heads * (qk - rope + value)}
        if float(a.index_topk):
            queries, keys = float(a.index_n_heads * a.index_head_dim), d * float(a.index_head_dim)
            names = ("indexer.wq_b", "indexer.wk") if rank else ("index_q_proj", "index_k_proj")
            sizes |= {names[0]: queries * (query_rank or d), names[1]: keys}
        for name, params in (sizes | {"o_proj": heads * value * d}).items():
            yield "attention", f"{attention}.{name}", params
    if not layer.ffn:
        return
    dense, experts = places.get("ffn", "mlp"), places.get("experts", "mlp.experts.0")
    ffns = [("dense_ffn", dense)] if layer.ffn == "dense" else [("experts", experts)]
    if layer.ffn == "experts" and float(a.d_shared_expert):
        ffns.append(("shared_experts", places.get("shared", "mlp.shared_experts")))
    for part, place in ffns:
        letters = places.get("w_named") and part == "experts"
        names = ("w1", "w3", "w2") if letters else ("gate_proj", "up_proj", "down_proj")
        for name in names[3 - a.ffn_matrices :]:
            yield part, f"{place}.{name}", 1.0  # all have one size

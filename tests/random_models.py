"""Random shapes for property tests: the paper's family at any size, and shapes as published models have them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from families import DENSE, PAPER, law_of
from moescale.latency.roofline_constants import RooflineConstants
from moescale.models.architecture import LINEAR_KINDS, Architecture
from moescale.models.family import architecture

FLAGS = (
    "tied_embeddings", "qk_norm", "qk_norm_full_width", "qkv_bias", "attention_output_bias", "ffn_bias", "expert_bias",
    "router_bias", "attention_sinks", "shared_expert_gate",
)  # fmt: skip


@st.composite
def family_models(draw: st.DrawFn) -> Architecture:
    """The paper's family: real-valued shapes."""
    return architecture(PAPER, draw(st.floats(1e8, 5e10)), draw(st.sampled_from([1.0, 2.0, 4.0, 16.0, 64.0])))


@st.composite
def real_models(draw: st.DrawFn) -> Architecture:
    """Shapes as published models have them: grouped queries, windows (with heads of their own), latent, sparse and compressed
    attention, linear layers, shared experts, experts that work in a narrow width, first dense layers.
    """
    layers, heads = draw(st.integers(2, 96)), draw(st.sampled_from([8, 16, 40, 64, 128]))
    experts = draw(st.sampled_from([1, 8, 60, 128, 256]))
    shape: dict[str, Any] = {
        "n_layers": layers, "d_model": draw(st.sampled_from([512, 2880, 4096, 7168])), "n_heads": heads,
        "n_kv_heads": draw(st.sampled_from([1, 2, 8, heads])), "head_dim": draw(st.sampled_from([64, 128])),
        "d_ffn": draw(st.sampled_from([1024, 14336])), "vocab_size": draw(st.sampled_from([0, 32000, 201088])),
    }  # fmt: skip
    if experts > 1:
        shape |= {
            "n_experts": experts, "n_moe_layers": draw(st.integers(1, layers)), "top_k": draw(st.integers(1, 8)),
            "d_expert": draw(st.sampled_from([256, 2048])), "d_shared_expert": draw(st.sampled_from([0, 2048])),
        }  # fmt: skip
        shape["d_expert_model"] = draw(st.sampled_from([0, 256]))
    kind = draw(st.sampled_from(["full", "window", "heads", "latent", "sparse", "linear", "compressed"]))
    if kind in ("window", "heads"):
        shape |= {"n_window_layers": draw(st.integers(1, layers)), "window_tokens": draw(st.sampled_from([128, 4096]))}
    if kind == "heads":
        shape |= {"window_n_kv_heads": heads, "window_head_dim": 64, "full_keys_are_values": draw(st.booleans())}
    if kind == "linear":
        shape |= {"n_linear_layers": draw(st.integers(1, layers)), "linear_conv": 4, "linear_rank": 64}
        shape |= {"linear_n_key_heads": 16, "linear_n_value_heads": draw(st.sampled_from([16, 64]))}
        shape |= {"linear_key_dim": 128, "linear_value_dim": 128, "attention_gate": draw(st.sampled_from([0, 64]))}
        shape["linear_kind"] = draw(st.sampled_from(LINEAR_KINDS))
    if kind in ("latent", "sparse"):
        shape |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128, "head_dim": 192, "n_kv_heads": heads}
        shape["q_lora_rank"] = draw(st.sampled_from([0, 1536]))
    if kind == "sparse":
        shape |= {"index_topk": draw(st.sampled_from([64, 2048])), "index_n_heads": 64, "index_head_dim": 128}
        shape["n_sparse_layers"] = draw(st.integers(1, layers))
        shape["n_index_layers"] = draw(st.integers(1, shape["n_sparse_layers"]))
    if kind == "compressed":
        compressed = draw(st.integers(1, layers))
        shape |= {"n_compressed_layers": compressed, "n_heavy_layers": draw(st.integers(0, layers - compressed))}
        shape |= {"n_sparse_layers": compressed, "n_index_layers": compressed, "index_topk": 512, "index_n_heads": 64}
        shape |= {"n_window_layers": layers, "window_tokens": 128, "compressed_tokens": 4, "heavy_tokens": 128}
        shape |= {"output_groups": 8, "output_rank": 1024, "q_lora_rank": 1024, "index_head_dim": 128, "n_kv_heads": 1}
        shape |= {"residual_streams": draw(st.sampled_from([0, 4]))}
    return Architecture(**shape, **{name: draw(st.booleans()) for name in FLAGS})


models = st.one_of(family_models(), real_models())
dense_laws = st.fixed_dictionaries(
    {
        "E": st.floats(0.5, 2.5), "A": st.floats(100.0, 2000.0), "B": st.floats(100.0, 5000.0),
        "alpha": st.floats(0.25, 0.5), "beta": st.floats(0.25, 0.5),
    }
).map(lambda values: law_of("chinchilla", values, DENSE))  # fmt: skip


def perfect(**overheads: float) -> RooflineConstants:
    """Constants of a GPU that reaches its data sheet and starts kernels in no time."""
    ideal = {f.name: 1.0 if f.name.endswith("efficiency") else 0.0 for f in fields(RooflineConstants)}
    return RooflineConstants(**{**ideal, **overheads})

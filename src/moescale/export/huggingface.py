"""A whole-number shape as a Hugging Face configuration, which transformers trains and vLLM serves."""

from __future__ import annotations

from typing import Any

from moescale.models.rounding import Buildable


def config_of(shape: Buildable, vocab_size: int) -> dict[str, Any]:
    """The Hugging Face config of a shape of the paper's family: Qwen3, or Qwen3-MoE with experts every `moe_every` layers.

    These classes differ from Llama by a norm of every head's queries and keys alone, and vLLM builds them as well.
    """
    common: dict[str, Any] = {
        "vocab_size": vocab_size,
        "hidden_size": shape.d_model,
        "intermediate_size": shape.d_ffn,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
    }
    if shape.n_experts == 1:
        return {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], **common}
    return {
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        **common,
        "num_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.d_ffn,
        "decoder_sparse_step": shape.moe_every,
        "mlp_only_layers": [],
        "norm_topk_prob": False,
    }

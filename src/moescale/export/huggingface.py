"""A whole-number shape as a Hugging Face configuration, which transformers trains and vLLM serves."""

from __future__ import annotations

from typing import Any

from moescale import catalogue
from moescale.errors import InputError
from moescale.models.recipe import Recipe
from moescale.models.rounding import LATENT, Buildable


def config_of(shape: Buildable, vocab_size: int) -> dict[str, Any]:
    """The Hugging Face config of a shape, of the class that `shape.model_type` names: Qwen3, Qwen3-MoE, GLM-4-MoE or DeepSeek-V3.

    Raises InputError for shared experts in some layers only, which the last two classes do not build.
    """
    kind = shape.model_type
    common: dict[str, Any] = {
        "model_type": kind,
        # As transformers calls them: Qwen3ForCausalLM, Qwen3MoeForCausalLM, Glm4MoeForCausalLM, DeepseekV3ForCausalLM.
        "architectures": [f"{kind.title().replace('_', '')}ForCausalLM"],
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
    if kind == "qwen3":
        return common
    if kind == "qwen3_moe":
        return common | {
            "num_experts": shape.n_experts,
            "num_experts_per_tok": shape.top_k,
            "moe_intermediate_size": shape.expert_width,
            "decoder_sparse_step": shape.moe_every,
            "mlp_only_layers": [],
            "norm_topk_prob": False,
        }
    moe = shape.n_experts > 1
    if moe and shape.moe_every > 1:
        what = f"{kind} has experts in every layer, not in one of {shape.moe_every}"
        step = "take a family with moe_every = 1, or without shared experts and latent attention"
        raise InputError(what, next_step=step)
    if kind == "deepseek_v3":
        # Its class takes the channels with positions for head_dim, and sums these up itself.
        common |= {name: getattr(shape, name) for name in LATENT} | {
            "q_lora_rank": shape.q_lora_rank or None,
            "head_dim": shape.qk_rope_head_dim,
            "qk_nope_head_dim": shape.head_dim - shape.qk_rope_head_dim,
        }
    # Experts as DeepSeek-V3 routes them (arXiv 2412.19437, section 2.1.2): sigmoid scores, one group, scaled.
    common |= {
        "n_routed_experts": shape.n_experts,
        "num_experts_per_tok": shape.top_k,
        "moe_intermediate_size": shape.expert_width,
        "n_shared_experts": shape.d_shared_expert // shape.expert_width,
        "first_k_dense_replace": 0 if moe else shape.n_layers,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": catalogue.read("routers.toml")["sigmoid"]["scale"],
    }
    return common | ({"use_qk_norm": True, "partial_rotary_factor": 1.0} if kind == "glm4_moe" else {})


def huggingface_config(shape: Buildable, recipe: Recipe) -> dict[str, Any]:
    """config.json of a model that is trained by `recipe`: its sequence length, vocabulary, balancing loss."""
    config = config_of(shape, recipe.vocab_size) | {
        "max_position_embeddings": recipe.sequence_tokens,
        "rope_parameters": {"rope_type": "default", "rope_theta": recipe.rope_theta},
        "rms_norm_eps": recipe.rms_norm_eps,
        "initializer_range": recipe.init_std,
        "dtype": "bfloat16",
    }
    if shape.model_type == "qwen3_moe":  # the other classes with experts balance them by a bias of the router
        config |= {"router_aux_loss_coef": recipe.balance_loss, "output_router_logits": True}
    return config

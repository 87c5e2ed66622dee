"""The shape of a decoder-only transformer, dense or MoE: from numbers, a published model, or a Hugging Face config.json."""

from __future__ import annotations

from moescale.architecture.config import from_config
from moescale.architecture.model import Architecture, FloatArray, Real, validate
from moescale.architecture.parts import (
    attention_matrix_params,
    attention_params,
    attention_vector_params,
    dense_equivalent_params,
    expert_params,
    ffn_matrix_params,
    ffn_params,
    ffn_vector_params,
    kv_heads_per_gpu,
    value_head_dim,
)
from moescale.architecture.published import Shape, hl_coefficient, published_shapes, shapes, shapes_of_hl

__all__ = [
    "Architecture",
    "FloatArray",
    "Real",
    "Shape",
    "attention_matrix_params",
    "attention_params",
    "attention_vector_params",
    "dense_equivalent_params",
    "expert_params",
    "ffn_matrix_params",
    "ffn_params",
    "ffn_vector_params",
    "from_config",
    "hl_coefficient",
    "kv_heads_per_gpu",
    "published_shapes",
    "shapes",
    "shapes_of_hl",
    "validate",
    "value_head_dim",
]

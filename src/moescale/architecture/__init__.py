"""The shape of a decoder-only transformer, dense or MoE: from numbers, a published model, or a Hugging Face config.json."""

from __future__ import annotations

from moescale.architecture.config import Checkpoint, from_config, read_config
from moescale.architecture.model import Architecture, FloatArray, Quantised, Real, validate
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
from moescale.architecture.quantisation import CheckpointWeights

__all__ = [
    "Architecture",
    "Checkpoint",
    "CheckpointWeights",
    "FloatArray",
    "Quantised",
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
    "read_config",
    "shapes",
    "shapes_of_hl",
    "validate",
    "value_head_dim",
]

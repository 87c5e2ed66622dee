"""The shape of a tracked run's model, where its Hugging Face configuration was logged or lies beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from moescale.errors import InputError
from moescale.models.architecture import Architecture
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters
from moescale.runs.importers.tracked_run import TrackedRun


def architecture_of(run: TrackedRun) -> Architecture | None:
    """The shape that a configuration beside the run, or among its params, states; None where there is none readable."""
    candidates: list[Mapping[str, Any]] = [run.config] if run.config is not None else []
    for name in run.params:
        if name == "model_type" or name.endswith((".model_type", "/model_type")):
            prefix = name.removesuffix("model_type")
            candidates.append({k.removeprefix(prefix): v for k, v in run.params.items() if k.startswith(prefix)})
    for config in candidates:
        try:
            return from_config(config)
        except InputError:
            continue
    return None


@lru_cache(maxsize=1)  # each run is asked column by column
def shape_columns(run: TrackedRun) -> Mapping[str, float]:
    """Sizes without embeddings, experts and top-k; the dense size is that of one FFN in every layer. Empty where unknown."""
    a = architecture_of(run)
    if a is None:
        return {}
    moe = float(np.max(a.n_moe_layers)) > 0
    counted = count_parameters(a)
    dense = a
    if moe:
        width = a.d_ffn if float(np.max(a.d_ffn)) > 0 else a.top_k * a.d_expert + a.d_shared_expert
        plain = replace(a, shared_expert_gate=False, router_bias=False, expert_bias=False, d_shared_expert=0.0)
        dense = replace(plain, n_moe_layers=0.0, n_experts=1.0, top_k=1.0, d_expert=0.0, d_ffn=width)
    return {
        "n_params_dense": float(count_parameters(dense).non_embedding_total),
        "n_params_active": float(counted.non_embedding_active),
        "n_params_total": float(counted.non_embedding_total),
        "n_experts": float(a.n_experts) if moe else 1.0,
        "top_k": float(a.top_k) if moe else 1.0,
    }


def tokens_of_flos(run: TrackedRun) -> float | None:
    """Tokens by Trainer's own count of FLOPs, 6 tokens (parameters - input embedding): modeling_utils' floating_point_ops."""
    flos = run.params.get("total_flos")
    if flos is None and "train/total_flos" in run.metrics:
        flos = run.metrics["train/total_flos"].until(float("nan"))
    a = architecture_of(run)
    if a is None or not isinstance(flos, float) or not flos > 0:
        return None
    counted = float(count_parameters(a).total) - float(a.vocab_size) * float(a.d_model)
    tokens = flos / (6.0 * counted)
    return float(round(tokens)) if math.isfinite(tokens) else None

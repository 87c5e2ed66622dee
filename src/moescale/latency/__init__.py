"""Where iteration latencies come from: one protocol, met by measured tables, measured kernels and the roofline."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np

from moescale.architecture import Architecture, FloatArray, Real

# The fields of an Architecture that may be arrays.
NUMERIC_FIELDS = (
    "n_layers",
    "d_model",
    "n_heads",
    "n_kv_heads",
    "head_dim",
    "d_ffn",
    "n_moe_layers",
    "n_experts",
    "top_k",
    "d_expert",
    "d_shared_expert",
    "vocab_size",
    "kv_lora_rank",
    "q_lora_rank",
    "qk_rope_head_dim",
    "v_head_dim",
    "n_window_layers",
    "window_tokens",
)


@runtime_checkable
class LatencySource(Protocol):
    """Latency of one iteration of a model that is tensor-parallel over `gpus` GPUs.

    `expert_parallel` of the GPUs (a divisor of `gpus`) split whole experts between them, the rest split each expert;
    attention is tensor-parallel over all of them. All numeric arguments, and the fields of `model`, broadcast against
    each other; the answer has their common shape, in seconds. Where a source cannot answer (outside its table, shape not
    measured) it answers NaN, never a guess. A source never knows a scaling law.
    """

    @property
    def name(self) -> str:
        """What to print as the source, such as `roofline`."""
        ...

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to process the prompts of `batch` requests (at least 1) of `prompt_tokens` tokens each."""
        ...

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to produce one token for each of `batch` requests that hold `context_tokens` tokens on average."""
        ...

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:
        """Seconds of one pass (chunked prefill) that decodes as `decode_s` and processes `prompts` prompts as well.

        `prompts` may be a fraction (a chunk of one prompt); weights are read once for both. Sources that know separate
        passes only answer NaN.
        """
        ...


def common_shape(model: Architecture, *numbers: Real) -> tuple[int, ...]:
    """Shape that all fields of `model` and all `numbers` broadcast to."""
    shapes = {np.shape(getattr(model, name)) for name in NUMERIC_FIELDS}
    return np.broadcast_shapes(*shapes, *(np.shape(number) for number in numbers))


def kernels_alone(source: LatencySource) -> LatencySource:
    """The source without the host's time; a measured table as it is, since it cannot tell them apart."""
    from moescale.latency.roofline import Roofline, constants_of
    from moescale.latency.silicon import Silicon

    if isinstance(source, Silicon):
        return replace(source, host_s=0.0)
    if isinstance(source, Roofline):
        constants = source.constants or constants_of(source.gpu, source.weight_bytes_per_param)
        return replace(source, constants=replace(constants, per_iteration_overhead_s=0.0))
    return source

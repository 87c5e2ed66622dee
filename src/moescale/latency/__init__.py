"""Where iteration latencies come from: one base class, of measured tables, measured kernels and the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.models.architecture import Architecture, shape_of
from moescale.typing import FloatArray, Real

# How the experts of an MoE layer run. From December 2023 (pull request 2090) to 0.2.7 (January 2024) vLLM sent every token through
# every whole expert of a GPU (vllm/model_executor/models/mixtral.py; it refuses more GPUs than experts); fused kernels came with
# 0.3.0 (pull requests 2453, 2542). The loop is priced by dense products: under the uneven loads of measured fused kernels a
# small batch misses some experts.
MOE_EXECUTION = {
    "fused": "one grouped kernel, in which a token meets its top_k experts",
    "all-experts": "a loop over the whole experts of a GPU, each a dense FFN for every token, as in vLLM 0.2.7",
    "all-experts-grouped": "every token through every expert, priced as one grouped kernel with top_k = E",
}
FUSED, ALL_EXPERTS, ALL_EXPERTS_GROUPED = MOE_EXECUTION
EXACT = 1e-12  # experts / GPUs this close above a whole number is that number


@dataclass(frozen=True, slots=True)
class Pass:
    """What one pass computes: a token for each request of a batch, or prompts, or both; all numbers broadcast."""

    gpus: Real
    expert_parallel: Real = 1.0
    batch: Real | None = None  # None: no request decodes
    context_tokens: Real = 1.0
    prompts: Real | None = None  # None: no prompt is processed
    prompt_tokens: Real = 1.0  # new tokens of each prompt
    # So many groups of GPUs, each tensor-parallel over gpus / attention_dp, hold attention and dense layers whole and
    # serve their own share of batch and prompts; the experts are spread over all GPUs.
    attention_dp: Real = 1.0
    prefix_tokens: Real = 0.0  # of each prompt, that the cache holds already: a shared prefix, or earlier chunks
    query_tokens: Real = 1.0  # of each request that decodes: 1, and those that were drafted for it

    @property
    def decoded(self) -> Real:
        """Tokens of the requests that decode."""
        return 0.0 if self.batch is None else self.batch * self.query_tokens

    @property
    def tokens(self) -> Real:
        """All tokens, which meet the matrices together."""
        decoded = self.decoded
        return decoded if self.prompts is None else decoded + self.prompts * np.asarray(self.prompt_tokens, np.float64)

    @property
    def busiest_rank(self) -> Pass:
        """What the busiest of `attention_dp` groups, which differ by one request at most, computes of all but the routed experts."""
        if np.ndim(self.attention_dp) == 0 and self.attention_dp == 1.0:
            return self
        groups = np.asarray(self.attention_dp, dtype=np.float64)

        def of_busiest(number: Real | None) -> Real | None:
            return None if number is None else np.maximum(number / groups, np.minimum(number, 1.0))

        return replace(
            self,
            gpus=self.gpus / groups,
            batch=of_busiest(self.batch),
            prompts=of_busiest(self.prompts),
            attention_dp=1.0,
        )

    @property
    def requests(self) -> Real:
        """Tokens that meet the LM head: the last of each prompt, and all that are decoded."""
        decoded = self.decoded
        return decoded if self.prompts is None else decoded + np.asarray(self.prompts)


# Fields of a pass, and the one that says whether they count.
COUNTED = {
    **dict.fromkeys(("batch", "context_tokens", "query_tokens"), "batch"),
    **dict.fromkeys(("prompts", "prompt_tokens", "prefix_tokens"), "prompts"),
}
MOST_STACKED = 4096  # entries: what more of them cost is their number


class LatencySource:
    """Latency of one iteration of a model: a name and one function of a pass, `pass_s`, which a source defines.

    All numbers of a pass, and the fields of `model`, broadcast. Where a source cannot answer (outside its table, shape
    not measured) it answers NaN, never a guess.
    """

    __slots__ = ()
    name: str  # what to print as the source, such as `roofline`
    takes_none: ClassVar[bool] = False  # whether zero requests, or zero prompts, are as none: see `seconds_of`

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass; NaN where there is no answer."""
        raise NotImplementedError

    def prefill_s(self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, **split: Real) -> FloatArray:
        """Seconds to process the prompts of `batch` requests (at least 1) of `prompt_tokens` tokens each.

        `split` are further fields of Pass, here and below: expert_parallel, attention_dp, prefix_tokens, query_tokens.
        """
        return self.seconds(model, Pass(gpus, prompts=batch, prompt_tokens=prompt_tokens, **split))

    def decode_s(self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, **split: Real) -> FloatArray:
        """Seconds to produce one token for each of `batch` requests that hold `context_tokens` tokens on average."""
        return self.seconds(model, Pass(gpus, batch=batch, context_tokens=context_tokens, **split))

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        **split: Real,
    ) -> FloatArray:
        """Seconds of one pass (chunked prefill) that decodes and processes `prompts` prompts, perhaps a fraction; NaN of separate passes only."""
        lengths = {"context_tokens": context_tokens, "prompt_tokens": prompt_tokens}
        return self.seconds(model, Pass(gpus, batch=batch, prompts=prompts, **lengths, **split))

    def seconds(self, model: Architecture, a: Pass) -> FloatArray:
        """Seconds of a pass in the shape that the model and all numbers of the pass have together."""
        numbers = (getattr(a, field) for field in Pass.__slots__)
        shape = common_shape(model, *(number for number in numbers if number is not None))
        seconds = np.asarray(self.pass_s(model, a))
        return seconds if seconds.shape == shape else np.broadcast_to(seconds, shape).copy()


def seconds_of(source: LatencySource, model: Architecture, passes: Sequence[Pass]) -> list[FloatArray]:
    """Seconds of several passes of one model, which differ in requests and prompts alone: one question where the source takes zeros."""
    first = passes[0]
    split = (first.gpus, first.expert_parallel, first.attention_dp)
    shape = common_shape(model, *split, *(getattr(a, n) for a in passes for n in COUNTED if getattr(a, n) is not None))
    stacks = source.takes_none and len(passes) > 1 and math.prod(shape) <= MOST_STACKED
    # Groups on several servers have kernels for prompts that are not those of decoding.
    in_one = getattr(getattr(source, "gpu", None), "gpus_per_server", 1)
    if not stacks or np.any((np.asarray(first.attention_dp) > 1) & (np.asarray(first.gpus) > in_one)):
        return [source.seconds(model, a) for a in passes]

    def stacked(name: str, part: str) -> Any:
        stated = [getattr(a, name) for a in passes if getattr(a, part) is not None]
        if not stated:
            return getattr(first, name)
        if all(value is stated[0] for value in stated) and name != part:
            return stated[0]  # what a pass computes nothing with may be as in the others
        none = 0.0 if name == part else stated[0]
        values = [none if getattr(a, part) is None else getattr(a, name) for a in passes]
        rows = np.stack(np.broadcast_arrays(*values))
        return rows.reshape(len(passes), *(1,) * (len(shape) + 1 - rows.ndim), *rows.shape[1:])

    asked = Pass(*split[:2], attention_dp=split[2], **{name: stacked(name, part) for name, part in COUNTED.items()})
    return list(np.broadcast_to(source.pass_s(model, asked), (len(passes), *shape)))


def common_shape(model: Architecture, *numbers: Real) -> tuple[int, ...]:
    """Shape that all fields of `model` and all `numbers` broadcast to."""
    return np.broadcast_shapes(shape_of(model), *(np.shape(number) for number in numbers))


def kernels_alone(source: LatencySource) -> LatencySource:
    """The source without the host's time; a measured table as it is, since it cannot tell them apart."""
    return _with(source, host_s=0.0)


def in_format(source: LatencySource, weights: str | None, bytes_per_param: float) -> LatencySource:
    """The source for weights of another number format; a measured table as it is, which holds what was measured."""
    return _with(source, weights=weights, weight_bytes_per_param=bytes_per_param)


def with_moe_execution(source: LatencySource, name: str) -> LatencySource:
    """The source with the experts run as a name of MOE_EXECUTION says; InputError for other names, and for a measured table."""
    check_moe_execution(name)
    if name != FUSED and not hasattr(source, "moe_execution"):
        what = f"{source.name} has no latency for {name}: its experts were measured in another execution"
        raise InputError(what, where="moe_execution", next_step="take the silicon or roofline latency")
    return _with(source, moe_execution=name)


def _with(source: LatencySource, **fields: Any) -> LatencySource:
    """The source with other values of its fields; as it is where it has no such fields."""
    return replace(cast("Any", source), **fields) if all(hasattr(source, name) for name in fields) else source


def check_moe_execution(name: str) -> None:
    """Raise InputError, with the nearest one, unless MOE_EXECUTION has the name."""
    if name not in MOE_EXECUTION:
        raise unknown_name("MoE execution", name, MOE_EXECUTION, where="moe_execution")


def local_experts(model: Architecture, gpus: Real) -> FloatArray:
    """Whole experts of a layer on the fullest of `gpus` GPUs; NaN where there are more GPUs than experts."""
    experts = np.asarray(model.n_experts, dtype=np.float64)
    each = experts / np.asarray(gpus, dtype=np.float64)
    return np.where(each < 1.0, np.nan, np.ceil(each * (1.0 - EXACT)))

"""Number formats of the measured kernels: their bytes, the arithmetic that they use, and which of them a format takes."""

from __future__ import annotations

from typing import NamedTuple

from moescale.hardware.gpus import Gpu
from moescale.latency.kernels.tables import System

BF16 = "bfloat16"


class Kind(NamedTuple):
    """Kernels of one number format, as the tables name them."""

    bytes_per_weight: float  # with the scales, as catalogue/precisions.toml has them
    arithmetic: str  # bf16, fp8 or fp4: the peak that its products can reach


# Weight-only formats (int4_wo, w4a16) are brought to bf16 before they are multiplied; mxfp8 activations multiply in fp8.
KINDS = {
    BF16: Kind(2.0, "bf16"),
    "fp8": Kind(1.0, "fp8"),
    "fp8_block": Kind(1.0, "fp8"),
    "nvfp4": Kind(0.5625, "fp4"),
    "int4_wo": Kind(0.51953125, "bf16"),
    "w4a16_mxfp4": Kind(0.53125, "bf16"),
    "w4a8_mxfp4_mxfp8": Kind(0.53125, "fp8"),
}
# Which kernels a format of weights takes, the first that was measured; bf16 ones, scaled, where none of them was.
# Products in fp8: one scale a tensor or channel, as vLLM quantises by itself and ModelOpt for TensorRT-LLM; of models with
# experts blocks of 128 x 128, as their published fp8 checkpoints have them (DeepSeek-V3, Qwen3, GLM-4.5, MiniMax-M2), but
# not with vLLM, whose block rows hold the host's launch: 62 us on H100, 270 us on B200 for a product of one token that
# takes 7 us otherwise.
PRODUCTS = {"fp8": ("fp8", "fp8_block"), "nvfp4": ("nvfp4",), "int4": ("int4_wo",)}
BLOCK_ENGINES = ("trtllm", "sglang")
# Experts in fp8: blocks, as most published checkpoints have them, or one scale a tensor where the checkpoint does. In mxfp4:
# activations are quantised to mxfp8 where the GPU has such arithmetic (Blackwell, where alone it was measured).
EXPERTS = {
    "fp8": ("fp8_block", "fp8"),
    "nvfp4": ("nvfp4",),
    "int4": ("int4_wo",),
    "mxfp4": ("w4a8_mxfp4_mxfp8", "w4a16_mxfp4"),
}
# Projections of latent attention; DeepSeek-V3's checkpoint has blocks.
LATENT = {"fp8": ("fp8_block", "fp8"), "nvfp4": ("nvfp4",), "int4": ("int4_wo",)}
# Engines whose fp8 checkpoints hold the scales of activations (ModelOpt's): no kernel of theirs looks for the largest.
STATIC_SCALES = ("trtllm",)
# Kernels of a format that an engine runs and another engine's table of the same GPU holds: (engine, format) -> the engines
# that were measured. TensorRT-LLM's linear layer tunes itself over CUTLASS, cuBLASLt and CuTe DSL in nvfp4; its own rows
# are of one of them, and those of vLLM and SGLang name CuTe DSL. The experts that FlashInfer calls flashinfer_trtllm are
# TensorRT-LLM's, which has them in fp8 beside DeepGEMM, and vLLM for gpt-oss, whose recipe for Blackwell asks for
# activations in mxfp8. All three were looked for where predictions of the development half were too slow.
PRODUCTS_OF = {("trtllm", "nvfp4"): ("vllm", "sglang")}
EXPERTS_OF = {("trtllm", "fp8_block"): ("sglang",), ("vllm", "w4a8_mxfp4_mxfp8"): ("sglang",)}
SHARED_EXPERT_KERNELS = "flashinfer_trtllm"  # in the names of their kernel sources
# Kernels that an engine serves with where no whole experts are spread over GPUs, while its own table has others: (engine,
# format) -> (the engine whose table has them, part of their names). SGLang's server arguments choose OpenAI's triton_kernels
# for gpt-oss on Hopper without expert parallelism. Its rows are of its own fused kernel over weights unpacked to bf16: 0.30 ms
# for 4 tokens on H100 is the time of 1.0 GB from memory, and the 16 experts they can meet are 0.8 GB in bf16, 0.2 in mxfp4.
SERVED_WITH = {("sglang", "w4a16_mxfp4"): ("vllm", "oaitriton")}
FP8_BYTES = (0.9, 1.2)  # a weight of so many bytes is 8-bit, where no format is named


def peak_of(part: System | Gpu, kind: str) -> float:
    """The data sheet's FLOP rate of the arithmetic that kernels of a number format use."""
    peaks = {"fp8": part.fp8_flops_per_s, "fp4": part.fp4_flops_per_s}
    return peaks.get(KINDS[kind].arithmetic) or part.bf16_flops_per_s

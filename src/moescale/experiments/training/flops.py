"""Model FLOPs utilisation: what a run computes over what its devices could."""

from __future__ import annotations

from moescale.experiments.training.settings import RunSettings, model_flops_per_token
from moescale.hardware.gpus import gpus


def mfu(settings: RunSettings, vocab_size: int, device: str, tokens_per_s: float) -> float | None:
    """FLOPs of matrix products and causal attention over the bf16 peak of all processes' devices.

    None for a float32 run, whose peak is another, and for a device that the GPU catalogue lacks.
    """
    peak = peak_flops_per_s(device) if settings.training.dtype == "bfloat16" else None
    if peak is None:
        return None
    return model_flops_per_token(settings, vocab_size) * tokens_per_s / (peak * settings.parallel.processes)


def peak_flops_per_s(device: str) -> float | None:
    """The dense bf16 peak of a device of the GPU catalogue by the name that its driver gives, or None."""
    words = device.lower().replace("-", " ").split()
    for name, gpu in gpus().items():
        chip = name.split("-")[0]
        form_matches = ("pcie" in words) == name.endswith(("pcie", "pcie-40gb", "pcie-80gb"))
        if chip in words and (form_matches or name == chip):
            return gpu.bf16_flops_per_s
    return None

"""A latency source by its name: measured kernels, the roofline, or a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from moescale.errors import InfeasibleError, InputError, MoescaleError, nearest_names
from moescale.hardware.gpus import Gpu, find_gpu
from moescale.latency import LatencySource
from moescale.latency.roofline import Roofline
from moescale.latency.table import SUFFIXES, read_latency_table
from moescale.models.architecture import Architecture

NAMES = ("silicon", "roofline", "auto", "silicon:vllm", "silicon:sglang", "silicon:trtllm")


def open_latency(
    name: str,
    gpu: Gpu | str,
    *,
    weight_bytes_per_param: float = 2.0,
    kv_bytes_per_element: float = 2.0,
    weights: str | None = None,
    model: Architecture | None = None,
    remark: Callable[[str], None] | None = None,
) -> LatencySource:
    """The latency source of a GPU by its name: silicon, silicon:ENGINE, roofline, auto, or a table's path.

    `weights` names the number format of the weights, such as nvfp4. `auto` is silicon, or the roofline where it has no
    answer for the GPU, the formats or `model`; `remark` is called with the reason. Raises InputError for an unknown
    name.
    """
    card, (kind, _, engine) = find_gpu(gpu) if isinstance(gpu, str) else gpu, name.partition(":")
    if kind == "silicon" or name == "auto":
        from moescale.latency.card import ENGINE
        from moescale.latency.silicon import Silicon

        formats = (weight_bytes_per_param, kv_bytes_per_element)
        try:
            source = Silicon(card, engine or ENGINE, *formats, weights=weights)
            if model is not None and not np.isfinite(source.decode_s(model, 1.0, 1.0, 128.0)):
                what = f"the kernels of {source.backend} on {card.name} that this model needs were not measured"
                other = "take another engine, such as silicon:trtllm, or the roofline"
                raise InfeasibleError(what, where="silicon", next_step=other)
            return source
        except MoescaleError as error:
            if kind == "silicon":
                raise
            if remark is not None:
                remark(f"roofline latency, because {error.what}")
    if name in ("roofline", "auto"):
        return Roofline(card, weight_bytes_per_param, kv_bytes_per_element, weights=weights)
    if name and (Path(name).suffix.lower() in SUFFIXES or Path(name).exists()):
        return read_latency_table(name, gpu=card.name)
    raise InputError(
        f"unknown latency source {name!r}",
        nearest=nearest_names(name, NAMES, 1),
        next_step="silicon, roofline, silicon:ENGINE, or the path of a CSV or Parquet latency table",
    )

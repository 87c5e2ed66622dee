"""The fullest stage of a pipeline, whose stages hold consecutive layers of a model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moescale.models.architecture import NUMERIC_FIELDS, Architecture
from moescale.typing import FloatArray, Real


def layers_share(architecture: Architecture, pipeline_parallel: Real) -> FloatArray:
    """Share of the layers in the fullest stage: whole layers, as even as they go; 1 for one stage."""
    layers, stages = (np.asarray(n, dtype=np.float64) for n in (architecture.n_layers, pipeline_parallel))
    return np.where(stages > 1, np.ceil(layers / stages * (1.0 - 1e-12)) / layers, 1.0)


def fullest_stage(architecture: Architecture, pipeline_parallel: Real) -> Architecture:
    """The model as the fullest of so many stages holds it.

    It has as many layers with experts as it can, its even share of the layers of other kinds, and one embedding table: the
    first stage has the input's and the last one the output's. One stage is the model itself.
    """
    stages = np.asarray(pipeline_parallel, dtype=np.float64)
    if not np.any(stages > 1):
        return architecture
    share = layers_share(architecture, stages)
    layers = share * architecture.n_layers
    of_kinds = [
        name for name in NUMERIC_FIELDS if name.endswith("_layers") and name not in ("n_layers", "n_moe_layers")
    ]
    counts: dict[str, Real] = {name: share * getattr(architecture, name) for name in of_kinds}
    return replace(architecture, n_layers=layers, n_moe_layers=np.minimum(architecture.n_moe_layers, layers), **counts)

"""Compute the part of shapes in docs/evidence/serving.md: parameters and cache of real models against their published figures,
and how well h l = mu N^(2/3) holds for the dense ones (figure 9 of Yun et al. 2024); every model in docs/evidence/shapes*.csv.

python scripts/document_shapes.py
"""

from __future__ import annotations

import numpy as np

from moescale.models.family import find_family
from moescale.models.parameters import (
    count_parameters,
    dense_equivalent_params,
    kv_bytes_per_request,
    kv_bytes_per_token,
)
from moescale.models.published import Shape, hl_coefficient, published_shapes
from moescale.units import parse_quantity
from pages import csv_text, filled, write

PAGE, OWNER = "evidence/serving.md", "shapes"
LONG_CONTEXT_TOKENS = 131_072
COUNTS = (
    *("model", "total_counted", "total_published", "active_counted", "active_published", "published_leave_out"),
    *("kv_bytes_per_token", "kv_bytes_published", "window_tokens", "window_layers", "layers", "kv_gib_at_128k"),
)
DEPTH_AND_WIDTH = ("model", "layers", "width", "n_params", "width_times_layers", "fitted_over_actual", "source")


def dense() -> dict[str, Shape]:
    """The models that h l = mu N^(2/3) is fitted to."""
    return {name: shape for name, shape in published_shapes().items() if shape.fits_hl}


def csvs() -> dict[str, str]:
    """The tables beside the page, by name."""
    _, errors = hl_coefficient(shape.architecture for shape in dense().values())
    fitted = [_depth_and_width(*pair, error) for pair, error in zip(dense().items(), errors, strict=True)]
    return {
        "evidence/shapes.csv": csv_text(COUNTS, (_row(*pair) for pair in published_shapes().items())),
        "evidence/shapes-depth-width.csv": csv_text(DEPTH_AND_WIDTH, fitted),
    }


def page() -> str:
    """The text of docs/evidence/serving.md with its part of shapes."""
    mu, errors = hl_coefficient(shape.architecture for shape in dense().values())
    models = published_shapes()
    beyond = [
        name
        for name, shape in models.items()
        if abs(float(count_parameters(shape.architecture).total) - shape.published_total)
        > shape.digit("published_total")
    ]
    parts = {
        "models": f"{len(models)}",
        "near": f"{len(models) - len(beyond)}",
        "beyond": ", ".join(beyond),
        "dense": f"{errors.size}",
        "mu": f"{mu:.5f}",
        "mean-error": f"{np.abs(errors).mean():.1%}",
        "largest-error": f"{np.abs(errors).max():.1%}",
        "aspect": f"{1.0 / (mu**3 * 12.0**2):.1f}",
        "aspect-held": f"{find_family('yun2024').d_model_per_layer:.1f}",
    }
    return filled(PAGE, parts, OWNER)


def _depth_and_width(name: str, shape: Shape, error: float) -> list[str]:
    a = shape.architecture
    n = f"{float(dense_equivalent_params(a)):.4g}"
    return [
        name,
        f"{a.n_layers:g}",
        f"{a.d_model:g}",
        n,
        f"{a.n_layers * a.d_model:.0f}",
        f"{error:+.3f}",
        shape.source,
    ]


def _row(name: str, shape: Shape) -> list[str]:
    a, counted = shape.architecture, count_parameters(shape.architecture)
    active = stated_active = ""
    whole, looked_up = (shape.row.get(key, True) for key in ("embeddings_published", "active_input_embedding"))
    leave_out = "both embeddings" if not whole else "" if looked_up else "input embedding, of active"
    if counted.experts > 0:
        left_out = counted.embedding if not whole else 0.0 if looked_up else a.vocab_size * a.d_model
        active = f"{float(counted.active - left_out) / 1e9:.2f}B"
        stated_active = _published(shape.published_active, shape.digit("published_active"))
    stated = shape.row.get("published_kv_bytes")
    kv = "" if stated is None else f"{parse_quantity(stated):.0f}"
    window = [f"{a.window_tokens:.0f}", f"{a.n_window_layers:g}"] if a.n_window_layers else ["", ""]
    held = float(kv_bytes_per_request(a, LONG_CONTEXT_TOKENS)) / 2**30
    return [
        name,
        f"{float(counted.total) / 1e9:.2f}B",
        _published(shape.published_total, shape.digit("published_total")),
        active,
        stated_active,
        leave_out,
        f"{float(kv_bytes_per_token(a)):.0f}",
        kv,
        *window,
        f"{a.n_layers:g}",
        f"{held:.2f}",
    ]


def _published(value: float, digit: float) -> str:
    """The count with the digits that its authors gave."""
    decimals = max(0, round(-np.log10(digit / 1e9)))
    return f"{value / 1e9:.{decimals}f}B"


if __name__ == "__main__":
    for name, text in csvs().items():
        write(name, text)
    write(PAGE, page())

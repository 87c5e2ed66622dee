"""Compute the tables of docs/shapes.md: parameters and cache of real models against their published figures, and how well
h l = mu N^(2/3) holds for the dense ones (figure 9 of Yun et al. 2024, as a table).

python scripts/document_shapes.py
"""

from __future__ import annotations

import numpy as np

from moescale.models.family import aspect_ratio, find_family
from moescale.models.kv_cache import kv_bytes_per_request, kv_bytes_per_token
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.published import Shape, hl_coefficient, published_shapes
from pages import filled, table, write

LONG_CONTEXT_TOKENS = 131_072
COUNTS = ("total, counted", "published", "active, counted", "published", "KV bytes a token", "published", "window")


def page() -> str:
    """The page's text."""
    dense = {name: s for name, s in published_shapes().items() if s.fits_hl}
    mu, errors = hl_coefficient(s.architecture for s in dense.values())
    hl = zip(dense.items(), errors, strict=True)
    parts = {
        "counts": table(
            ("model", *COUNTS, "128k, GiB"), (_row(name, shape) for name, shape in published_shapes().items())
        ),
        "hl": table(
            ("model", "layers l", "width h", "N", "h l", "fitted over actual", "source"),
            (_depth_and_width(name, shape, error) for (name, shape), error in hl),
        ),
        "mu": f"{mu:.5f}",
        "mean-error": f"{np.abs(errors).mean():.1%}",
        "largest-error": f"{np.abs(errors).max():.1%}",
        "aspect": f"{aspect_ratio(mu, 12.0):.1f}",
        "aspect-held": f"{find_family('yun2024').d_model_per_layer:.1f}",
    }
    return filled("shapes.md", parts)


def _depth_and_width(name: str, shape: Shape, error: float) -> list[str]:
    a = shape.architecture
    n = f"{float(dense_equivalent_params(a)) / 1e9:.2f}B"
    return [
        name,
        f"{a.n_layers:g}",
        f"{a.d_model:g}",
        n,
        f"{a.n_layers * a.d_model:,.0f}",
        f"{error:+.1%}",
        shape.source,
    ]


def _row(name: str, shape: Shape) -> list[str]:
    a, counted = shape.architecture, count_parameters(shape.architecture)
    active, stated_active = "", ""
    if counted.experts > 0:
        left_out = 0.0 if shape.active_input_embedding else a.vocab_size * a.d_model
        left_out = left_out if shape.embeddings_published else counted.embedding
        mark = "**" if not shape.embeddings_published else "" if shape.active_input_embedding else "*"
        active = f"{float(counted.active - left_out) / 1e9:.2f}B{mark}"
        stated_active = _published(shape.published_active, shape.published_active_digit)
    kv = "" if shape.published_kv_bytes is None else f"{shape.published_kv_bytes:,.0f}"
    window = f"{a.window_tokens:,.0f} in {a.n_window_layers:g} of {a.n_layers:g} layers" if a.n_window_layers else ""
    held = float(kv_bytes_per_request(a, LONG_CONTEXT_TOKENS)) / 2**30
    return [
        name,
        f"{float(counted.total) / 1e9:.2f}B",
        _published(shape.published_total, shape.published_digit),
        active,
        stated_active,
        f"{float(kv_bytes_per_token(a)):,.0f}",
        kv,
        window,
        f"{held:.2f}",
    ]


def _published(value: float, digit: float) -> str:
    """The count with the digits that its authors gave."""
    decimals = max(0, round(-np.log10(digit / 1e9)))
    return f"{value / 1e9:.{decimals}f}B"


if __name__ == "__main__":
    write("shapes.md", page())

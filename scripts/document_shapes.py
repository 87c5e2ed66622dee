"""Write docs/shapes.md: parameters and cache of real models against their published figures, and how well h l = mu N^(2/3)
holds for the dense ones (figure 9 of Yun et al. 2024, as a table).

python scripts/document_shapes.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moescale.io.files import write_atomically
from moescale.models.family import aspect_ratio, find_family
from moescale.models.kv_cache import kv_bytes_per_request, kv_bytes_per_token
from moescale.models.parameters import count_parameters, dense_equivalent_params
from moescale.models.published import Shape, hl_coefficient, published_shapes

PAGE = Path("docs/shapes.md")
LONG_CONTEXT_TOKENS = 131_072


def page() -> str:
    """The page's text."""
    return "\n".join([*counts(), *depth_and_width()])


def counts() -> list[str]:
    """The lines about parameters and cache."""
    return [
        "# Shapes of real models",
        "",
        "Written by `python scripts/document_shapes.py`; do not edit.",
        "",
        "## Parameters and cache, counted and published",
        "",
        "`from_config` reads these families, and counts as transformers builds them; `make test-engines` holds the counts to",
        "those of transformers' own classes, to the parameter. Counted here from `catalogue/shapes.toml`:",
        "",
        "- *total* is the text model. Published totals of Llama 4 hold 0.87B of vision more, those of GPT-3 its learned positions.",
        "  Layers that predict further tokens (DeepSeek-V3: one, 14B) are in neither: the published 671B leaves it out.",
        "- *active* is what one token meets. Most authors count both embedding tables; those of gpt-oss and DeepSeek-V2-Lite",
        "  leave out the input table, which is only looked up (marked *), and so does their column here.",
        "- *KV* is the bf16 cache that one more token adds, in layers with a window too; *128k* is what a request of 131,072 tokens",
        "  holds. Latent attention (DeepSeek) holds 576 elements a layer. Llama 4's attention in chunks counts as a window.",
        "",
        "| model | total, counted | published | active, counted | published | KV bytes a token | published | window | 128k, GiB |",
        "|---|---|---|---|---|---|---|---|---|",
        *(_row(name, shape) for name, shape in published_shapes().items()),
        "",
    ]


def _row(name: str, shape: Shape) -> str:
    a, counted = shape.architecture, count_parameters(shape.architecture)
    active, stated_active = "", ""
    if counted.experts > 0:
        looked_up = 0.0 if shape.active_input_embedding else a.vocab_size * a.d_model
        mark = "" if shape.active_input_embedding else "*"
        active = f"{float(counted.active - looked_up) / 1e9:.2f}B{mark}"
        stated_active = _published(shape.published_active, shape.published_active_digit)
    kv = "" if shape.published_kv_bytes is None else f"{shape.published_kv_bytes:,.0f}"
    window = f"{a.window_tokens:,.0f} in {a.n_window_layers:g} of {a.n_layers:g} layers" if a.n_window_layers else ""
    held = float(kv_bytes_per_request(a, LONG_CONTEXT_TOKENS)) / 2**30
    cells = [
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
    return f"| {' | '.join(cells)} |"


def _published(value: float, digit: float) -> str:
    """The count with the digits that its authors gave."""
    decimals = max(0, round(-np.log10(digit / 1e9)))
    return f"{value / 1e9:.{decimals}f}B"


def depth_and_width() -> list[str]:
    """The lines about h l."""
    dense = {name: s for name, s in published_shapes().items() if s.fits_hl}
    mu, errors = hl_coefficient(s.architecture for s in dense.values())
    family = find_family("yun2024")
    rows = [
        f"| {name} | {s.architecture.n_layers:g} | {s.architecture.d_model:g} | "
        f"{float(dense_equivalent_params(s.architecture)) / 1e9:.2f}B | {s.architecture.n_layers * s.architecture.d_model:,.0f} | "
        f"{error:+.1%} | {s.source} |"
        for (name, s), error in zip(dense.items(), errors, strict=True)
    ]
    return [
        "## Depth and width",
        "",
        "The paper's serving cost needs h l, width times depth, for a model of which only N is known, and takes h l = mu N^(2/3)",
        "(appendix B, figure 9). N counts parameters without embeddings. mu is fitted by least squares on logarithms to the",
        f"dense models below: **mu = {mu:.5f}**, mean error {np.abs(errors).mean():.1%}, largest {np.abs(errors).max():.1%}.",
        f"With 12 h^2 parameters a layer that is h / l = {aspect_ratio(mu, 12.0):.1f}, which `catalogue/families.toml` holds as",
        f"{family.d_model_per_layer:.1f}.",
        "",
        "| model | layers l | width h | N | h l | fitted over actual | source |",
        "|---|---|---|---|---|---|---|",
        *rows,
        "",
    ]


if __name__ == "__main__":
    write_atomically(PAGE, page())

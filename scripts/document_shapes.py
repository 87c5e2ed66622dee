"""Write docs/shapes.md: how well h l = mu N^(2/3) holds for real models (figure 9 of Yun et al. 2024, as a table).

python scripts/document_shapes.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from moescale.architecture import dense_equivalent_params, hl_coefficient, published_shapes
from moescale.family import aspect_ratio, find_family
from moescale.files import write_atomically

PAGE = Path("docs/shapes.md")


def page() -> str:
    """The page's text."""
    known = published_shapes()
    dense = {name: s for name, s in known.items() if not np.any(s.architecture.n_moe_layers)}
    mu, errors = hl_coefficient(s.architecture for s in dense.values())
    family = find_family("yun2024")
    rows = [
        f"| {name} | {s.architecture.n_layers:g} | {s.architecture.d_model:g} | "
        f"{float(dense_equivalent_params(s.architecture)) / 1e9:.2f}B | {s.architecture.n_layers * s.architecture.d_model:,.0f} | "
        f"{error:+.1%} | {s.source} |"
        for (name, s), error in zip(dense.items(), errors, strict=True)
    ]
    lines = [
        "# Depth and width of real models",
        "",
        "Written by `python scripts/document_shapes.py`; do not edit.",
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
    return "\n".join(lines)


if __name__ == "__main__":
    write_atomically(PAGE, page())

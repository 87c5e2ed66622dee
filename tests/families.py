"""The two families of models that the tests are about: the paper's, and that of the public joint_moe_runs."""

from __future__ import annotations

from moescale.models.family import ModelFamily, aspect_ratio
from moescale.models.published import hl_coefficient, shapes_of_hl

DENSE_MU, _ = hl_coefficient(shapes_of_hl().values())

# arXiv 2404.02852, section 2.1 and appendix B: gated FFN 8/3 wide, top-2, experts in every other layer, no embeddings.
PAPER = ModelFamily(
    name="yun2024",
    top_k=2,
    moe_every=2,
    ffn_ratio=8 / 3,
    d_model_per_layer=aspect_ratio(DENSE_MU, 12.0),
    convention="paper",
)
# arXiv 2502.05172: gated FFN 3 wide, top-1 in every layer, both embedding tables counted.
JOINT = ModelFamily(
    name="ludziejewski2025",
    top_k=1,
    moe_every=1,
    ffn_ratio=3.0,
    d_model_per_layer=64.0,
    head_dim=64.0,
    vocab_size=50257.0,
    embedding_matrices=2,
)
# Dense models without embeddings.
DENSE = ModelFamily(name="dense", top_k=1, moe_every=1, ffn_ratio=8 / 3, d_model_per_layer=aspect_ratio(DENSE_MU, 12.0))

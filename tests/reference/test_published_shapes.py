"""Parameters, cache and weights of published models, to the digits that their authors print."""

from __future__ import annotations

import numpy as np
import pytest

from moescale.models.parameters import (
    count_parameters,
    kv_bytes_per_token,
    training_flops_per_token,
    weight_bytes_per_gpu,
)
from moescale.models.published import Shape, find_shape, hl_coefficient, published_shapes, shapes, shapes_of_hl
from moescale.units import parse_quantity


@pytest.mark.parametrize("shape", published_shapes().values(), ids=published_shapes())
def test_published_sizes_to_the_stated_digit(shape: Shape) -> None:
    counted = count_parameters(shape.architecture)
    # A whole unit of the last digit: LLaMA 65.2B and GPT-3 2.7B are cut off or named, not rounded (65.29B, 2.65B).
    row = shape.row
    tables = 0.0 if row.get("embeddings_published", True) else float(counted.embedding)
    total = float(counted.total) - tables + row.get("not_modelled", 0.0)
    assert total == pytest.approx(shape.published_total, abs=shape.digit("published_total"))
    if counted.experts > 0:
        a, looked_up = shape.architecture, not row.get("active_input_embedding", True)
        active = float(counted.active) - tables - looked_up * a.vocab_size * a.d_model
        assert active == pytest.approx(shape.published_active, abs=shape.digit("published_active"))
    if stated := row.get("published_kv_bytes"):
        held = float(kv_bytes_per_token(shape.architecture))
        assert held == pytest.approx(parse_quantity(stated), abs=shape.digit("published_kv_bytes"))


def test_mixtral_and_qwen_to_the_parameter() -> None:
    # As transformers counts them on the meta device (the engine test of test_architecture.py repeats that).
    exact = {
        "mixtral-8x7b": 46_702_792_704,
        "llama-3.1-8b": 8_030_261_248,
        "llama-2-7b": 6_738_415_616,
        "qwen3-30b-a3b": 30_532_122_624,
        "olmoe-1b-7b": 6_919_161_856,
        "gpt-oss-20b": 20_914_757_184,
        "gpt-oss-120b": 116_829_156_672,
        "deepseek-v2": 235_741_434_880,
        "deepseek-v2-lite": 15_706_484_224,
        "deepseek-v3": 671_026_419_200,  # with 14,848 that correct the scores of its routers
        "llama-4-scout": 108_641_793_536 - 871_932_416,  # all weights without those of vision
        "llama-4-maverick": 401_583_781_376 - 871_932_416,
        "gemma-2-9b": 9_241_705_984 - 301_056,  # as keras-hub counts it, without half of its norms
        "gemma-2-27b": 27_227_128_320 - 423_936,
    }
    assert {name: int(count_parameters(shapes()[name]).total) for name in exact} == exact


def test_non_embedding_counts_of_qwen3_model_cards() -> None:
    stated = {"qwen3-0.6b": 0.44e9, "qwen3-1.7b": 1.4e9, "qwen3-8b": 6.95e9, "qwen3-30b-a3b": 29.9e9}
    stated |= {"qwen3-4b": 3.6e9, "qwen3-14b": 13.2e9}
    for name, published in stated.items():
        assert float(count_parameters(shapes()[name]).non_embedding_total) == pytest.approx(published, rel=0.01)


def test_training_flops_of_gpt3() -> None:
    # Brown et al. 2020, table D.1: 3.14e23 FLOPs for 300B tokens, 1.05e12 a token.
    gpt3 = shapes()["gpt3-175b"]
    assert float(training_flops_per_token(gpt3, count_parameters(gpt3).active)) == pytest.approx(1.05e12, rel=0.005)


def test_published_weights_on_disk() -> None:
    # gpt-oss model card, table 1: 4.25 bits (mxfp4 with its scales) for the experts, bf16 for the rest: 60.8 and 12.8 GiB.
    for name, stated_gib in (("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)):
        model = shapes()[name]
        matrices = count_parameters(model).experts
        on_disk = float(2 * count_parameters(model).total - (2 - 4.25 / 8) * matrices) / 2**30
        assert on_disk == pytest.approx(stated_gib, abs=0.1)
        # Attention stays in bf16 in the catalogue's shape, too.
        assert float(weight_bytes_per_gpu(model, 4.25 / 8)) / 2**30 == pytest.approx(stated_gib, abs=0.1)
    # The size of the repository of Kimi K2 Thinking.
    kimi = find_shape("kimi-k2-thinking")
    assert float(weight_bytes_per_gpu(kimi.architecture, kimi.weights.bytes_per_param)) / 1e9 == pytest.approx(
        594.0, abs=1.0
    )


def test_width_times_depth_of_dense_models() -> None:
    """h l = mu N^(2/3) (the paper's figure 9) over real models, 125M to 480B: 8% off on average, 20% at most."""
    dense = list(shapes_of_hl().values())
    assert all(shape.n_moe_layers == 0 for shape in dense)
    mu, errors = hl_coefficient(dense)
    assert errors.shape == (len(dense),)
    assert mu == pytest.approx(0.0397, abs=5e-5)
    assert np.abs(errors).mean() < 0.08
    assert np.abs(errors).max() < 0.20
    assert np.log1p(errors).mean() == pytest.approx(0, abs=1e-12)

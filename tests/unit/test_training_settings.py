"""RUN.toml, the learning rate of a run, its health and its command, without torch."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.cli import main
from moescale.errors import InputError
from moescale.experiments.health import LEAST_STRETCH, MARGIN_NATS, Watch, balance
from moescale.experiments.settings import TrainingSettings, estimate, peak_flops_per_s, read_settings, settings_of
from moescale.models.recipe import recipe_for
from reference_data import ROOT


def tables(**changes: Any) -> dict[str, Any]:
    """A run's tables; a change of a table is merged into it."""
    base: dict[str, Any] = {
        "name": "run", "model": {"d_model": 768, "n_layers": 12, "experts": 4}, "data": {"corpus": "corpus"},
        "training": {"tokens": "2.5B", "batch_tokens": 524_288},
    }  # fmt: skip
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return base


def test_the_papers_model_is_the_papers_and_a_size_beyond_its_learning_rate_needs_its_own() -> None:
    settings = settings_of(tables())
    expected = estimate(settings)
    # Non-embedding millions of 768/12 (transformers' own counts), top-2 of 4 experts in every other layer.
    assert round(expected["n_params_dense"] / 1e6, 1) == 85.0
    assert round(expected["n_params_total"] / 1e6, 1) == 169.9
    assert round(expected["n_params_active"] / 1e6, 1) == 113.3
    assert settings.training.peak_lr == pytest.approx(0.003239 - 0.0001395 * math.log(expected["n_params_dense"]))
    assert (settings.model.top_k, settings.model.moe_every) == (2, 2)
    t = settings.training
    assert (t.warmup, t.min_lr_ratio, t.sequence_tokens, t.schedule) == (0.03, 0.1, 2048, "cosine")
    assert expected["training_flops"] == 6 * expected["n_params_active"] * expected["tokens"]
    large = {**tables(), "model": {"n_params": "20B", "experts": 1}}
    with pytest.raises(InputError, match=r"\[training\], peak_lr.*falls to zero at 12\.1B"):
        settings_of(large)
    stated = settings_of({**large, "training": {"tokens": "1T", "peak_lr": 3e-4}})
    assert stated.training.peak_lr == 3e-4


def test_defaults_are_those_of_an_exported_launch() -> None:
    settings = settings_of(tables(training={"tokens": "10B"}))
    found = settings_of({**tables(), "training": {"tokens": "10B"}}).training
    recipe = recipe_for(estimate(settings)["n_params_dense"], 1e10, rule="paper")
    assert (found.batch_tokens, found.sequence_tokens) == (recipe.batch_tokens, recipe.sequence_tokens)
    assert (found.steps, found.peak_lr) == (recipe.steps, recipe.peak_lr)
    for key in ("min_lr_ratio", "weight_decay", "beta1", "beta2", "grad_clip"):
        assert getattr(found, key) == getattr(recipe, key)
    assert settings.model.balance_loss == recipe.balance_loss


@pytest.mark.parametrize("experts", [1, 2, 8, 32])
@pytest.mark.parametrize("size", ["1M", "6M", "85M"])
def test_a_size_has_one_dense_shape_for_every_number_of_experts(size: str, experts: int) -> None:
    model = {"n_params": size, "experts": experts}
    found = settings_of({**tables(), "model": model}).model
    dense = settings_of({**tables(), "model": {**model, "experts": 1}}).model
    assert (found.d_model, found.n_layers, found.d_ffn) == (dense.d_model, dense.n_layers, dense.d_ffn)
    wanted = float(size[:-1]) * 1e6
    assert abs(math.log(estimate(settings_of({**tables(), "model": model}))["n_params"] / wanted)) < 0.15


def test_a_named_shape_is_built_in_its_widths() -> None:
    model = {"shape": "deepseek", "n_params": "64M", "experts": 64, "top_k": 8}
    settings = settings_of({**tables(), "model": model})
    found, config = settings.model, settings.model.config(257)
    assert (config["model_type"], config["kv_lora_rank"], config["n_routed_experts"]) == ("deepseek_v3", 512, 64)
    assert found.d_ffn == 9 * (found.d_expert or 0) == 9 * (found.d_shared_expert or 0)
    assert settings_of(settings.to_dict()) == settings
    assert estimate(settings)["n_params"] == pytest.approx(64e6, rel=0.05)
    assert settings_of({**tables(), "model": {**model, "shape": "fine-grained"}}).model.kv_lora_rank is None
    with pytest.raises(InputError, match="shape is that of a size"):
        settings_of(tables(model={"shape": "deepseek"}))
    with pytest.raises(InputError, match="d_expert does not go with n_params"):
        settings_of({**tables(), "model": {**model, "d_expert": 64}})


def test_the_hash_is_of_what_a_run_computes() -> None:
    base = settings_of(tables()).sha256
    same = [
        tables(output="elsewhere"), tables(parallel={"processes": 4, "fsdp": True}), tables(tracking={"to": ["mlflow"]}),
        tables(training={"checkpoint_every_s": 1, "micro_batch_tokens": 4096}), tables(data={"corpus": "moved"}),
        tables(model={"d_model": 768, "n_heads": 12}),
    ]  # fmt: skip
    other = [
        tables(seed=1), tables(model={"experts": 8}), tables(training={"tokens": "2.6B"}), tables(name="other"),
        tables(training={"peak_lr": 1e-3}), tables(model={"balance_loss": 0}), tables(data={"max_epochs": 2}),
    ]  # fmt: skip
    assert {settings_of(each).sha256 for each in same} == {base}
    assert len({settings_of(each).sha256 for each in other} | {base}) == len(other) + 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modle": {}}, ("unknown key 'modle'", "nearest: model")),
        ({"training": {"tokens": "many"}}, ("tokens", "'many' is not a quantity")),
        ({"training": {"tokens": ["1B", "2B"]}}, ("tokens", "is not a number")),
        ({"training": {"schedule": "cosin"}}, ("unknown schedule 'cosin'", "nearest: cosine")),
        ({"training": {"warmup": 2}}, ("warmup", "2 is not at most 1", "nearest: 1")),
        ({"training": {"dtype": "float16"}}, ("unknown dtype", "bfloat16")),
        ({"model": {"n_params": "85M"}}, ("d_model does not go with n_params",)),
        ({"model": {"d_model": 100}}, ("no multiple of head_dim 64", "give n_heads")),
        ({"model": {"n_kv_heads": 5}}, ("n_kv_heads 5 does not divide n_heads 12",)),
        ({"model": {"head_dim": 33, "n_heads": 4}}, ("odd",)),
        ({"parallel": {"processes": 4, "tensor": 3}}, ("[parallel]", "unknown key 'tensor'")),
        ({"parallel": {"fsdp": 2}}, ("[parallel], fsdp",)),
        ({"parallel": {"processes": 3}}, ("256 sequences does not split over 3", "nearest: batch_tokens = 522240")),
        ({"tracking": {"to": ["mlflo"]}}, ("[tracking]", "nearest: mlflow")),
        ({"tracking": {"to": 3}}, ("unknown to '3'",)),
        ({"tracking": {"project": 5}}, ("project", "5 is not a text")),
        ({"seed": 1.5}, ("seed", "not a whole number")),
        ({"model": 3}, ("[model]", "is not a table")),
    ],
)
def test_refusals_name_place_and_nearest(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as refused:
        settings_of(tables(**changes), where="RUN.toml")
    text = str(refused.value)
    assert text.startswith("RUN.toml")
    assert [word for word in words if word not in text] == [], text


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@given(steps=st.integers(2, 3000), warmup=st.floats(0, 0.5), decay=st.floats(1e-9, 0.5), ratio=st.floats(0, 1))
def test_the_rate_rises_to_its_peak_and_falls_to_its_floor(
    schedule: str, steps: int, warmup: float, decay: float, ratio: float
) -> None:
    stated = {"tokens": steps * 64, "batch_tokens": 64, "sequence_tokens": 64, "peak_lr": 1.0, "schedule": schedule}
    t = TrainingSettings.model_validate({**stated, "warmup": warmup, "decay": decay, "min_lr_ratio": ratio})
    rates = np.array([t.learning_rate(step) for step in range(steps)])
    rise, fall = (
        round(warmup * steps),
        max(1, round(decay * steps)) if schedule == "wsd" else steps - round(warmup * steps),
    )
    assert rates[-1] == pytest.approx(ratio)
    assert np.all(np.diff(rates[:rise]) >= 0)
    assert np.all(np.diff(rates[rise:]) <= 1e-12)
    assert schedule == "cosine" or np.all(rates[rise : steps - fall] == 1)
    assert rates.max() <= 1 + 1e-12
    assert rates.min() > 0 or ratio == 0


def test_divergence_is_seen_and_spikes_are_forgiven() -> None:
    watch = Watch(steps=1000)
    for _ in range(100):
        watch = watch.next(3.0)
    spike = watch
    for loss in [9.0] * 5 + [3.0] * 100:
        spike = spike.next(loss)
    assert spike.why == ""
    stuck = watch
    count = 0
    while not stuck.why and count < 4 * LEAST_STRETCH:
        stuck = stuck.next(3.0 + 2 * MARGIN_NATS)
        count += 1
    assert LEAST_STRETCH <= count <= LEAST_STRETCH + 20
    assert "not finite" in watch.next(math.nan).why
    assert "gradient" in watch.next(3.0, math.inf).why
    assert watch.next(math.nan).next(3.0).why  # once diverged, always


@given(st.integers(1, 4), st.integers(2, 16), st.integers(1, 10**6))
def test_even_loads_are_healthy_and_one_expert_is_not(layers: int, experts: int, tokens: int) -> None:
    even = balance(np.full((layers, experts), tokens))
    assert (even["dead_experts"], even["token_drop"]) == (0, 0.0)
    assert even["imbalance"] == pytest.approx(1.0)
    assert even["router_entropy"] == pytest.approx(1.0)
    skewed = np.zeros((layers, experts))
    skewed[:, 0] = tokens
    alone = balance(skewed)
    assert (
        alone["dead_experts"], alone["imbalance"], alone["router_entropy"],
    ) == (layers * (experts - 1), experts, 0.0)  # fmt: skip


def test_the_worst_layer_counts() -> None:
    found = balance([[10, 10, 10, 10], [40, 20, 20, 0]])
    assert (found["dead_experts"], found["imbalance"]) == (1, 2.0)
    assert found["router_entropy"] == pytest.approx(1.5 * math.log(2) / math.log(4))


def test_dry_run_prints_settings_that_train_reads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(["train", str(ROOT / "examples" / "run.toml"), "--dry-run"])
    shown = capsys.readouterr().out
    copy = tmp_path / "copy.toml"
    copy.write_text(shown)
    assert read_settings(copy) == read_settings(ROOT / "examples" / "run.toml")
    main(["train", str(copy), "--dry-run", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["settings_sha256"] == read_settings(copy).sha256
    assert set(answer["estimate"]) >= {"n_params", "n_params_active", "tokens", "training_flops"}


def test_peaks_are_of_known_devices_and_none_is_invented() -> None:
    known = {"NVIDIA H200": 989, "NVIDIA A100-SXM4-40GB": 312, "NVIDIA H100 PCIe": 756, "NVIDIA L40S": 362}
    assert {name: peak_flops_per_s(name) / 1e12 for name in known} == pytest.approx(known, rel=0.01)
    assert peak_flops_per_s("x86_64 CPU") is None

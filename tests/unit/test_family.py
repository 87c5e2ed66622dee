"""What N and E mean in a family of models: counted, recovered, built, exported, served."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from examples import daily
from families import DENSE, JOINT, PAPER
from moescale.errors import InputError
from moescale.export.huggingface import config_of
from moescale.export.launch import export_model
from moescale.hardware.gpus import find_gpu
from moescale.io.records import record
from moescale.models.coordinates import expansion, experts_at, in_family, model_of, of_architecture, same_variables
from moescale.models.family import (
    CONVENTIONS,
    ModelFamily,
    architecture,
    dense_params,
    elasticity,
    families,
    find_family,
    match_family,
    n_active,
    n_total,
    tokens_within,
    training_flops,
    width,
    with_convention,
)
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters, dense_equivalent_params, kv_bytes_per_token
from moescale.models.published import published_shapes
from moescale.models.rounding import (
    MOST_ASPECT,
    MOST_FFN_RATIO,
    MOST_HEADS_RATIO,
    MOST_SIZE_USUAL,
    Buildable,
    buildable,
    family_of,
    vocabulary,
)
from moescale.runs.expansion import layer_expansion
from moescale.runs.table import RunTable
from moescale.scaling_laws import find_law, loss
from moescale.scaling_laws.ensemble import restate
from moescale.scaling_laws.store import law_text, parse_law
from moescale.training.choice import Launch

NAMES = ("mixtral", "fine-grained", "deepseek")
MIXTRAL, FINE_GRAINED, DEEPSEEK = (find_family(name) for name in NAMES)
PUBLISHED = published_shapes()
H100 = find_gpu("h100-sxm")
EXPERTS = np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])

sizes = st.floats(math.log(1e7), math.log(1e13)).map(math.exp)
expert_counts = st.integers(1, 512).map(float)


@st.composite
def drawn_families(draw: st.DrawFn) -> ModelFamily:
    """Families of every kind, also ones that nobody has fitted a law to."""
    kind = draw(st.sampled_from(["plain", "grouped", "latent"]))
    numbers: dict[str, Any] = {
        "top_k": draw(st.integers(1, 8)),
        "moe_every": draw(st.integers(1, 4)),
        "ffn_ratio": draw(st.floats(0.5, 8.0)),
        "d_model_per_layer": draw(st.floats(10.0, 500.0)),
        "convention": draw(st.sampled_from(["paper", "exact", "dense"])),
    }
    if kind == "plain":
        numbers |= {"ffn_matrices": draw(st.sampled_from([2, 3])), "embedding_matrices": draw(st.integers(0, 2))}
        return ModelFamily(name="drawn", vocab_size=draw(st.sampled_from([0.0, 32000.0, 250000.0])), **numbers)
    numbers["kv_heads"] = None if kind == "latent" else draw(st.sampled_from([1.0, 4.0, 8.0]))
    numbers |= {"head_dim": draw(st.sampled_from([64.0, 128.0, 192.0])), "expert_width": draw(st.floats(0.05, 1.5))}
    numbers |= {"attention_ratio": draw(st.floats(0.5, 4.0)), "shared_experts": draw(st.sampled_from([0.0, 0.5, 2.0]))}
    if kind == "latent":
        numbers |= {"kv_lora_rank": draw(st.floats(64.0, 1024.0)), "q_lora_rank": draw(st.sampled_from([0.0, 768.0]))}
        numbers |= {
            "qk_rope_head_dim": draw(st.sampled_from([16.0, 32.0])),
            "v_head_dim": draw(st.sampled_from([0, 128.0])),
        }
    return ModelFamily(name="drawn", **numbers)


@pytest.mark.system
@given(drawn_families(), sizes, expert_counts)
def test_the_shape_holds_what_the_abstraction_says(family: ModelFamily, n_params: float, experts: float) -> None:
    shape = architecture(family, n_params, experts)
    counted = count_parameters(shape)
    uncounted = counted.router + counted.norms
    assert float(counted.total - uncounted) == pytest.approx(float(n_total(family, n_params, experts)), rel=1e-11)
    met = float(n_active(replace(family, convention="exact"), n_params, experts))
    assert float(counted.active - uncounted) == pytest.approx(met, rel=1e-11)
    if family.embedding_matrices * family.vocab_size == 0:
        assert float(dense_equivalent_params(shape)) == pytest.approx(n_params, rel=1e-11)
    body, x = of_architecture(shape)
    assert float(x) == pytest.approx(float(expansion(family, experts)), rel=1e-12)
    assert float(body - uncounted) == pytest.approx(float(model_of(family, n_params, experts)[0]), rel=1e-11)


@pytest.mark.system
@given(drawn_families(), sizes, expert_counts)
def test_a_model_keeps_its_letters_through_body_and_expansion(family: ModelFamily, n: float, e: float) -> None:
    assume(e == 1.0 or e > family.top_k)  # all experts met: X is 1, as a dense model's
    again = in_family(family, *model_of(family, n, e))
    assert [float(value) for value in again] == pytest.approx([n, e], rel=1e-8)
    assert float(experts_at(family, expansion(family, e))) == pytest.approx(e, rel=1e-9)
    assert float(dense_params(family, width(family, n))) == pytest.approx(n, rel=1e-11)


@pytest.mark.system
@given(drawn_families(), expert_counts)
def test_a_table_and_a_family_mean_the_same_expansion(family: ModelFamily, e: float) -> None:
    w, s = family.expert_width, family.shared_experts
    tabled = layer_expansion(e, float(family.top_k), 1.0 / family.moe_every, w, s * w, 1.0)
    assert float(expansion(family, e)) == pytest.approx(float(tabled), rel=1e-12)


@pytest.mark.system
@given(drawn_families(), sizes, expert_counts)
def test_elasticities_are_those_of_finite_differences(family: ModelFamily, n_params: float, experts: float) -> None:
    edge = 0.0 if family.kv_heads is None else family.kv_heads * family.head_dim / family.attention_ratio
    assume(abs(math.log(float(width(family, n_params)) / edge)) > 1e-3 if edge else True)  # grouped queries begin there
    step = 1e-4
    for size in (n_active, n_total):
        wider, narrower = (size(family, n_params * math.exp(s), experts) for s in (step, -step))
        found = elasticity(family, n_params, size(family, n_params, experts))
        assert float(found) == pytest.approx(float(np.log(wider / narrower)) / (2 * step), rel=1e-6)


@pytest.mark.system
@given(drawn_families(), sizes, expert_counts, st.floats(1.001, 10.0))
def test_more_is_never_less(family: ModelFamily, n_params: float, experts: float, factor: float) -> None:
    assert n_total(family, n_params * factor, experts) > n_total(family, n_params, experts)
    assert n_active(family, n_params * factor, experts) > n_active(family, n_params, experts)
    if experts > 1.0:
        assert n_total(family, n_params, experts * factor) > n_total(family, n_params, experts)
    if (
        family.shared_experts == 0.0 and family.expert_width == 1.0
    ):  # a dense layer's FFN is the least that a token meets
        paper, exact, dense = (
            float(n_active(with_convention(family, name), n_params, experts)) / n_params for name in CONVENTIONS
        )
        assert paper >= exact * (1 - 1e-12)
        assert exact >= dense == 1.0
    tokens = tokens_within(family, 1e21, n_params, experts)
    assert float(training_flops(family, n_params, tokens, experts)) == pytest.approx(1e21, rel=1e-13)


def test_a_token_of_narrow_experts_meets_the_dense_model() -> None:
    for family in (FINE_GRAINED, DEEPSEEK):
        np.testing.assert_allclose(
            n_active(family, np.array([1e9, 1e11]), np.array([16.0, 256.0])), [1e9, 1e11], rtol=1e-14
        )
        np.testing.assert_allclose(expansion(family, np.array([1.0, 8.0, 16.0, 128.0])), [1.0, 1.0, 17 / 9, 129 / 9])


def test_the_default_expert_counts_have_about_the_same_expansions_in_each() -> None:
    for family in (MIXTRAL, FINE_GRAINED, DEEPSEEK):
        assert family.base_experts == family.ladder[0] == 1.0
        np.testing.assert_allclose(expansion(family, np.array(family.ladder)), 2.0 ** np.arange(6.0), rtol=0.12)


def test_latent_attention_has_no_groups() -> None:
    with pytest.raises(InputError, match="deepseek: latent attention holds one compressed key"):
        architecture(DEEPSEEK, 1e9, 16.0, kv_heads=8)
    with pytest.raises(InputError, match="deepseek: latent attention holds one compressed key"):
        replace(DEEPSEEK, kv_heads=8.0)
    with pytest.raises(InputError, match="deepseek: qk_rope_head_dim must be below head_dim"):
        replace(DEEPSEEK, qk_rope_head_dim=192.0)
    with pytest.raises(InputError, match="mixtral: q_lora_rank needs a positive kv_lora_rank"):
        replace(MIXTRAL, q_lora_rank=64.0)


def test_no_table_of_runs_is_taken_for_a_shape_without_a_dataset() -> None:
    n, e = np.array([1e9, 1e10]), np.array([4.0, 8.0])
    found, remarks = match_family(n, e, top_k=np.full(2, 2.0), n_params_total=n_total(MIXTRAL, n, e))
    assert families()[found.name].dataset
    assert remarks


def test_what_plans_compare_is_no_letter() -> None:
    assert same_variables(MIXTRAL, replace(MIXTRAL, name="mine", ladder=(1.0, 2.0), base_experts=2.0))
    assert not same_variables(MIXTRAL, replace(MIXTRAL, expert_width=0.5))


@pytest.mark.parametrize(
    ("law", "name"), [*(("yun2024-recovered", name) for name in NAMES), ("ludziejewski2025", "yun2024")]
)
def test_a_law_speaks_of_the_same_model_in_these_letters(law: str, name: str) -> None:
    family, known = find_family(name), find_law(law)
    e = np.array(family.ladder)
    body, x = model_of(family, 1e10, e)
    ours, theirs = restate(known, family), in_family(known.family, body, x)
    np.testing.assert_allclose(loss(ours, 1e10, 1e12, e), loss(known, theirs[0], 1e12, theirs[1]), rtol=1e-12)
    assert parse_law(law_text(ours), where="here").family == family


def test_the_papers_family() -> None:
    np.testing.assert_allclose(n_total(PAPER, 3e9, EXPERTS), (1 + (EXPERTS - 1) / 3) * 3e9, rtol=1e-14)
    np.testing.assert_allclose(n_active(PAPER, 3e9, EXPERTS) / 3e9, [1] + [5 / 3] * 6, rtol=1e-14)
    exact = with_convention(PAPER, "exact")
    np.testing.assert_allclose(n_active(exact, 3e9, EXPERTS) / 3e9, [1] + [4 / 3] * 6, rtol=1e-14)
    np.testing.assert_array_equal(n_active(with_convention(PAPER, "dense"), 3e9, EXPERTS), 3e9)
    np.testing.assert_allclose(training_flops(PAPER, 1e9, 2e10, [1.0, 8.0]), [1.2e20, 2e20], rtol=1e-14)


def test_the_joint_family_against_the_public_runs(joint_runs: RunTable) -> None:
    table = joint_runs.columns
    d_model, n_blocks = table["d_model"], table["n_blocks"]
    stated_total, stated_active = table["n_params_total"], joint_runs.n_params
    ours = n_total(JOINT, stated_active, joint_runs.experts)
    on_ratio = d_model == 64 * n_blocks
    assert 100 <= on_ratio.sum() < on_ratio.size
    np.testing.assert_allclose(ours[on_ratio], stated_total[on_ratio], rtol=1e-12)
    np.testing.assert_allclose(width(JOINT, stated_active)[on_ratio], d_model[on_ratio], rtol=1e-12)
    # Elsewhere the family's shape is not the run's, which moves parameters between embeddings and layers.
    np.testing.assert_allclose(ours, stated_total, rtol=0.02)
    exact = joint_runs.experts == 1
    np.testing.assert_allclose(ours[exact], stated_total[exact], rtol=1e-12)
    # With the run's own aspect ratio nothing is left to explain.
    for ratio in np.unique(d_model / n_blocks):
        rows = d_model / n_blocks == ratio
        own = n_total(replace(JOINT, d_model_per_layer=float(ratio)), stated_active[rows], joint_runs.experts[rows])
        np.testing.assert_allclose(own, stated_total[rows], rtol=1e-12)
    # Top-1: a token meets as much as in the dense model.
    np.testing.assert_allclose(n_active(JOINT, stated_active, joint_runs.experts), stated_active, rtol=1e-14)


@given(st.sampled_from((PAPER, JOINT, DENSE)), sizes, st.floats(1.0, 1024.0))
def test_key_value_heads_change_the_cache_and_nothing_else(
    family: ModelFamily, n_params: float, experts: float
) -> None:
    full, grouped = architecture(family, n_params, experts), architecture(family, n_params, experts, kv_heads=2)
    assert replace(grouped, n_kv_heads=full.n_kv_heads) == full
    assert record(count_parameters(grouped)) == record(count_parameters(full))
    shrunk = float(kv_bytes_per_token(grouped) / kv_bytes_per_token(full))
    assert shrunk == pytest.approx(min(1.0, 2.0 / float(full.n_heads)), rel=1e-12)


def test_one_expert_is_the_dense_model() -> None:
    made = architecture(PAPER, 1e9, EXPERTS)
    counted = count_parameters(made)
    assert np.asarray(made.n_moe_layers)[0] == 0
    assert counted.experts[0] == 0
    assert counted.total[0] == pytest.approx(1e9, rel=1e-14)
    np.testing.assert_array_equal(np.asarray(made.top_k), np.minimum(2.0, EXPERTS))
    np.testing.assert_array_equal(np.asarray(architecture(PAPER, 1e9, EXPERTS, top_k=1).top_k), 1.0)
    assert np.all(np.diff(counted.total) > 0)
    experts = count_parameters(architecture(replace(JOINT, embedding_matrices=0), 1e9, 8.0)).experts
    assert float(experts / 8 / 1e9) == pytest.approx(9 / 13, rel=1e-12)


IMPOSSIBLE = [{"n_params": n} for n in (0.0, -1e9, math.nan, np.array([1e9, math.inf]))]


@pytest.mark.parametrize(
    "arguments", [*IMPOSSIBLE, {"experts": 0.5}, {"experts": math.nan}, {"top_k": 0}, {"kv_heads": 0}]
)
def test_impossible_models_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=rf"yun2024: {next(iter(arguments))} must be finite"):
        architecture(PAPER, **({"n_params": 1e9, "experts": 4.0} | arguments))
    with pytest.raises(InputError, match="unknown convention 'exakt'; nearest: exact; known: paper, exact, dense"):
        with_convention(PAPER, "exakt")


@pytest.mark.parametrize(
    ("family", "name", "off"),
    [
        # Beside what the families leave out: layers without experts, another number of key-value heads.
        (MIXTRAL, "mixtral-8x7b", 0.003),
        (MIXTRAL, "mixtral-8x22b", 0.02),  # whose FFN is 2.67 wide, not 3.5
        (FINE_GRAINED, "qwen3-235b-a22b", 0.02),
        (FINE_GRAINED, "qwen3-30b-a3b", 0.04),
        (DEEPSEEK, "deepseek-v3", 0.02),
    ],
)
def test_published_sizes_are_recovered(family: ModelFamily, name: str, off: float) -> None:
    """The family's model of a published body and X has the parameters that the authors state."""
    shape = PUBLISHED[name]
    n, e = in_family(family, *of_architecture(shape.architecture))
    counted = count_parameters(architecture(family, n, e, vocab_size=int(shape.architecture.vocab_size)))
    assert float(counted.total) == pytest.approx(shape.published_total, rel=off)
    assert float(counted.active) == pytest.approx(shape.published_active, rel=off)


@pytest.mark.parametrize(
    ("family", "name", "experts"),
    [
        (MIXTRAL, "mixtral-8x7b", 8.0),
        (replace(FINE_GRAINED, d_model_per_layer=4096 / 94, expert_width=1 / 8, shared_experts=0.0, kv_heads=4.0), "qwen3-235b-a22b", 128.0),
        (DEEPSEEK, "deepseek-v3", 256.0),
    ],
)  # fmt: skip
def test_published_shapes_are_recovered(family: ModelFamily, name: str, experts: float) -> None:
    """With the numbers of one published model the family has its layers, heads and widths, at its width."""
    a = PUBLISHED[name].architecture
    made = architecture(family, dense_params(family, a.d_model), experts)
    for field in ("n_layers", "d_model", "n_heads", "n_kv_heads", "d_ffn", "d_expert", "d_shared_expert", "top_k"):
        assert float(getattr(made, field)) == pytest.approx(float(getattr(a, field)), rel=1e-9), field
    latent = ("head_dim", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "v_head_dim")
    assert all(getattr(made, field) == getattr(a, field) for field in (*latent, "n_experts"))


@pytest.mark.system
@given(
    st.sampled_from([PAPER, JOINT, DENSE, MIXTRAL, FINE_GRAINED, DEEPSEEK]),
    st.floats(math.log(5e8), math.log(2e11)).map(math.exp),
    st.sampled_from([1.0, 4.0, 16.0, 128.0]),
    st.integers(1, 8),
    st.sampled_from([None, 1.0, 4.0, 8.0]),
    st.booleans(),
)
@example(PAPER, math.exp(20.0703125), 1.0, 3, None, False)  # was 6 layers of 2688 where the family has 15 of 1690
@example(PAPER, 2.55e9, 32.0, 1, 8.0, False)  # was 22 layers, and 52 for 2.57e9
@example(PAPER, 2.57e9, 32.0, 1, 8.0, False)
@daily(40)
def test_a_buildable_shape(
    family: ModelFamily, n_params: float, experts: float, gpus: int, kv_heads: float | None, at_most: bool
) -> None:
    if family in (PAPER, JOINT, DENSE):  # the others have key-value heads of their own
        family = replace(family, kv_heads=kv_heads)
    shape = buildable(family, n_params, experts, gpus=gpus, at_most=at_most)
    assert abs(math.log(shape.d_model / shape.n_layers / family.d_model_per_layer)) <= math.log(MOST_ASPECT) + 1e-12
    assert (
        abs(math.log(shape.d_ffn / shape.d_model / (family.ffn_ratio * family.ffn_matrices / 3)))
        <= math.log(MOST_FFN_RATIO) + 1e-12
    )
    assert shape.n_params == pytest.approx(n_params, rel=MOST_SIZE_USUAL * 1.05)
    assert (shape.n_params <= n_params * (1 + 1e-12)) if at_most else (shape.n_params >= n_params * (1 - 1e-9))
    free = family.kv_heads is not None or family.kv_lora_rank > 0.0  # else the cache grows with the heads
    most = math.log(MOST_HEADS_RATIO if free else 1.07)
    assert abs(math.log(shape.n_heads * shape.head_dim / shape.d_model / family.attention_ratio)) <= most + 1e-12
    assert all(isinstance(getattr(shape, name), int) for name in ("n_layers", "n_heads", "d_ffn", "n_experts", "top_k"))
    assert shape.d_model % 64 == 0
    assert shape.expert_width % 16 == 0
    assert shape.n_heads % shape.n_kv_heads == 0
    assert shape.n_kv_heads == shape.n_heads if family.kv_heads is None else shape.n_kv_heads <= family.kv_heads
    assert shape.n_layers % family.moe_every == 0
    assert shape.top_k == min(family.top_k, experts)
    assert shape.vocab_size == vocabulary(family, None)
    if experts > 1:
        assert shape.expert_width / shape.d_ffn == pytest.approx(family.expert_width, rel=1e-9)
        assert shape.d_shared_expert == family.shared_experts * shape.expert_width
    # Its counts are those of the configuration that is exported, and of the family with its proportions.
    config = from_config(json.loads(json.dumps(config_of(shape, shape.vocab_size))))
    assert shape.architecture() == config
    counted = count_parameters(config)
    tables = family.embedding_matrices * family.vocab_size * shape.d_model
    body = counted.non_embedding_total - counted.router - counted.norms
    assert shape.n_params_total - tables == pytest.approx(float(body), rel=1e-12)
    own = family_of(shape, family)
    assert float(width(own, shape.n_params)) == pytest.approx(shape.d_model, rel=1e-9)
    assert float(n_total(own, shape.n_params, experts)) == pytest.approx(shape.n_params_total, rel=1e-9)
    met = float(counted.non_embedding_active - counted.router - counted.norms)
    active = n_active(with_convention(own, "exact"), shape.n_params, experts)
    assert float(active) - tables == pytest.approx(met, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_large_shapes_have_the_counts_that_labs_build(name: str) -> None:
    """Layers in fours and heads in eights where there are 16, wide FFNs in 128s; nearly always within a percent of N."""
    sizes = np.geomspace(2e9, 2e11, 23)
    shapes = [buildable(find_family(name), n, 16.0, gpus=2) for n in sizes]
    usual = [(s.n_layers % 4 == 0 or s.n_layers < 16) and (s.n_heads % 8 == 0 or s.n_heads < 16) for s in shapes]
    near = [abs(s.n_params / n - 1.0) <= 0.01 for s, n in zip(shapes, sizes, strict=True)]
    assert sum(usual) >= 22  # one of 23 may have no such shape within MOST_SIZE_USUAL of its N
    assert sum(near) >= 19
    assert all(s.expert_width % (128 if s.expert_width > 1100 else 64) == 0 for s in shapes)


@pytest.mark.parametrize("experts", [1.0, 32.0])
@pytest.mark.parametrize(
    ("name", "kind"), [("mixtral", "qwen3_moe"), ("fine-grained", "glm4_moe"), ("deepseek", "deepseek_v3")]
)
def test_the_config_of_a_family_is_read_back_without_remarks(
    name: str, kind: str, experts: float, tmp_path: Path
) -> None:
    shape = buildable(find_family(name), 2e9, experts, gpus=8)
    done = export_model(shape, 1e11, "hf", tmp_path, gpu=H100, mfu=0.4, launch=Launch(peak_lr=3e-4))
    found = from_config(tmp_path)  # a remark would be a warning, which is an error here
    dense = {"mixtral": "qwen3", "fine-grained": "qwen3", "deepseek": "deepseek_v3"}[name]
    assert found == shape.architecture()
    assert found.name == (kind if experts > 1 else dense)
    assert done.n_params_total == int(count_parameters(found).total)
    assert "run.toml" in done.files
    assert "moescale train run.toml" in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("name", ["hf", "torchtitan", "megatron"])
@pytest.mark.parametrize("family", [FINE_GRAINED, DEEPSEEK], ids=["fine-grained", "deepseek"])
def test_every_format_says_the_families_and_none_builds_them_in_some_layers_alone(
    name: str, family: ModelFamily, tmp_path: Path
) -> None:
    def write(family: ModelFamily) -> tuple[str, ...]:
        shape = buildable(family, 2e9, 32.0)
        launch = Launch(peak_lr=3e-4)
        return export_model(shape, 1e11, name, tmp_path / "x", gpu=H100, mfu=0.4, launch=launch).files

    assert "config.json" in write(family)
    with pytest.raises(InputError, match=r"has experts in every layer, not in one of 2; .*moe_every = 1"):
        write(replace(family, moe_every=2))


def test_a_shape_that_was_given_by_hand_keeps_its_widths() -> None:
    shape = Buildable(
        n_layers=4, d_model=512, n_heads=8, n_kv_heads=4, head_dim=64, d_ffn=1152, n_experts=16, top_k=8, moe_every=1,
        n_params=1.0, n_params_total=1.0, d_expert=128, d_shared_expert=256,
    )  # fmt: skip
    config = config_of(shape, 1000)
    assert (config["n_shared_experts"], config["moe_intermediate_size"], config["model_type"]) == (2, 128, "glm4_moe")
    assert from_config(config) == replace(shape, vocab_size=1000).architecture()


@pytest.mark.parametrize(("n_params", "experts"), [(math.nan, 4.0), (-1.0, 4.0), (1e9, 0.0)])
def test_an_impossible_model_has_no_shape(n_params: float, experts: float) -> None:
    with pytest.raises(InputError, match="no shape"):
        buildable(PAPER, n_params, experts)


def test_dense_runs_need_no_top_k() -> None:
    family = find_family("yun2024")
    n, e = np.array([1e8, 1e8, 2e8, 2e8]), np.array([1.0, 8.0, 1.0, 8.0])
    assert match_family(n, e, top_k=np.where(e == 1.0, np.nan, 2.0)) == (family, [])

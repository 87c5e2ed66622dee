"""Recipes: what published rules of batch and learning rate say, and how a batch becomes whole sequences on every GPU."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.models.recipe import SCHEDULES, paper_peak_lr, recipe_for, rules, stated_batch, whole_batch

sizes, lengths = st.floats(1e6, 1e12), st.floats(1e7, 1e14)
names, schedules = st.sampled_from(["deepseek", "step-law"]), st.sampled_from(SCHEDULES)
gpu_counts = st.none() | st.integers(1, 5000)


def test_the_learning_rate_is_the_papers() -> None:
    # 0.003239 - 0.0001395 ln N by hand for the smallest and the largest run, with natural logarithms.
    assert paper_peak_lr(81_395_712) == pytest.approx(0.003239 - 0.0001395 * 18.214833, rel=1e-5)
    assert paper_peak_lr(679_477_248) == pytest.approx(0.003239 - 0.0001395 * 20.336834, rel=1e-5)
    assert paper_peak_lr(1.19e10) > 0
    with pytest.raises(InputError, match=r"falls to zero at 12\.1B parameters.*3e-4"):
        paper_peak_lr(1.3e10)
    with pytest.raises(InputError, match=r"12\.1B parameters, but the model has 20B.*take the recipe deepseek"):
        recipe_for(2e10, 1e12, rule="paper")
    assert recipe_for(2e10, 1e12, rule="paper", peak_lr=1e-4).peak_lr == 1e-4


def test_batches_and_schedules_by_hand() -> None:
    found = recipe_for(3e8, 1e11, rule="paper")
    assert (found.batch_tokens, found.sequence_tokens) == (2**19, 2048)
    assert found.steps == 190_735  # 1e11 / 2^19 = 190734.86
    assert found.warmup_steps == 5_722  # 3%
    assert found.min_lr == pytest.approx(found.peak_lr / 10)
    found = recipe_for(1e9, 2e10, schedule="wsd")
    assert found.decay_steps == round(0.2 * found.steps)
    assert f"over the last {found.decay_steps:,} steps" in found.decay_words
    found = recipe_for(1e11, 15e12, gpus=512)
    assert found.batch_sequences == 512 * 24  # 0.2920 x 9e24^0.3271 = 42.5M tokens, 20.3 sequences a GPU: 16 or 24
    assert found.steps == round(15e12 / (512 * 24 * 4096))
    assert "= 512 GPUs x 24: 50,331,648 tokens" in found.arithmetic[0]


@pytest.mark.parametrize(
    ("rule", "n_params", "tokens", "flops", "batch", "lr"),
    [
        # 0.2920 x 10^6.542 and 0.3118 x 10^-2.5
        ("deepseek", 1e9, 1e11, 1e20, 1.0171e6, 9.860e-4),
        # 0.58 x 10^6.281 and 1.79 x 10^(-6.417 + 3.377)
        ("step-law", 1e9, 1e11, None, 1.1077e6, 1.6325e-3),
        # 2^19; 0.003239 - 0.0001395 x 20.7233
        ("paper", 1e9, 1e12, None, 524288, 3.481e-4),
    ],
)
def test_formulas_by_hand(
    rule: str, n_params: float, tokens: float, flops: float | None, batch: float, lr: float
) -> None:
    found = recipe_for(n_params, tokens, flops=flops, rule=rule)
    assert found.asked_batch_tokens == pytest.approx(batch, rel=1e-3)
    assert found.peak_lr == pytest.approx(lr, rel=1e-3)


@pytest.mark.parametrize(
    ("layers", "width", "sequences", "lr"), [(30, 4096, 2304, 4.2e-4), (95, 8192, 4608, 3.2e-4)], ids=["7B", "67B"]
)
def test_deepseek_trained_its_models_by_its_rule(layers: int, width: int, sequences: int, lr: float) -> None:
    """Batch and rate of DeepSeek LLM (README of its repository), 2T tokens, sequences of 4,096; M = 72 l h^2 + 12 l h s."""
    per_token = 72 * layers * width**2 + 12 * layers * width * 4096
    found = recipe_for(1.0, 2e12, flops=per_token * 2e12)
    assert found.peak_lr == pytest.approx(lr, rel=0.03)
    assert found.asked_batch_tokens / 4096 == pytest.approx(sequences, rel=0.1)


def test_every_rule_says_where_it_comes_from() -> None:
    for rule in rules().values():
        assert "arXiv" in rule.source
        assert len(rule.date) == 10
        assert rule.counts
        assert all(least < most for least, most in rule.fitted.values())
    assert recipe_for(1e9, 1e11) == recipe_for(1e9, 1e11, rule="deepseek")


@given(asked=st.floats(1, 1e12), sequence=st.integers(1, 2**17), gpus=gpu_counts)
def test_a_batch_is_whole_sequences_on_every_gpu(asked: float, sequence: int, gpus: int | None) -> None:
    found = whole_batch(asked, sequence, gpus)
    each, left = divmod(found, gpus or 1)
    assert left == 0
    assert each >= 1
    odd = each // (each & -each)  # without its powers of two
    assert odd in (1, 3)
    share = asked / sequence / (gpus or 1)
    if share >= 2:
        assert abs(math.log(each / share)) <= math.log(1.5) / 2 + 1e-9
    else:
        assert each <= 2


@given(n_params=sizes, tokens=lengths, rule=names, schedule=schedules, gpus=gpu_counts)
def test_steps_are_the_nearest_whole_number(
    n_params: float, tokens: float, rule: str, schedule: str, gpus: int | None
) -> None:
    found = recipe_for(n_params, tokens, rule=rule, schedule=schedule, gpus=gpus)
    assert found.steps >= 1
    assert abs(found.steps * found.batch_tokens - tokens) <= found.batch_tokens / 2 or found.steps == 1
    assert 0 <= found.warmup_steps <= min(2000, 0.03 * found.steps + 0.5)
    assert found.warmup_steps + found.decay_steps <= found.steps
    assert found.peak_lr > found.min_lr > 0


@given(n_params=st.floats(1e6, 1e10), tokens=st.floats(1, 1e15))
def test_the_papers_recipe_has_one_batch(n_params: float, tokens: float) -> None:
    found = recipe_for(n_params, tokens, rule="paper")
    assert (found.batch_sequences, found.sequence_tokens, found.schedule) == (256, 2048, "cosine")
    assert found.warmup_steps == round(0.03 * found.steps)
    assert found.notes == ()


@given(n_params=sizes, tokens=lengths, more=st.floats(1.01, 100))
def test_larger_models_learn_slower_in_larger_batches(n_params: float, tokens: float, more: float) -> None:
    one, other = recipe_for(n_params, tokens), recipe_for(more * n_params, tokens)
    assert 0 < other.peak_lr < one.peak_lr
    assert other.batch_tokens >= one.batch_tokens


def test_what_is_stated_stands() -> None:
    found = recipe_for(1e9, 2e10, batch_tokens=1e6, peak_lr=1e-3, sequence_tokens=1000, vocab_size=7, gpus=64)
    assert (found.batch_sequences, found.peak_lr, found.vocab_size, found.steps) == (1000, 1e-3, 7, 20_000)
    assert found.notes == ()
    assert found.arithmetic[0] == "batch as stated: 1M tokens, as 1,000 sequences of 1,000: 1,000,000 tokens"
    assert stated_batch(4e6, 4096) == 976  # 976.6, a multiple of 16; 977 is prime
    assert stated_batch(4e6, 4096, 64) == 960
    assert stated_batch(4_000_000, 4000, 64) == 1000


@given(asked=st.floats(1, 1e12), sequence=st.integers(1, 2**17), gpus=gpu_counts)
def test_a_stated_batch_stays_near_and_divides(asked: float, sequence: int, gpus: int | None) -> None:
    found = stated_batch(asked, sequence, gpus)
    assert found >= 1
    share = asked / sequence
    assert abs(found - share) <= max(0.5, share / 2 if gpus and share >= gpus else share / 64) or found == 1
    assert not gpus or share < gpus or share.is_integer() or found % gpus == 0


def test_a_batch_that_only_fills_gpus_is_said() -> None:
    assert recipe_for(1e8, 1e10).notes == ()
    assert recipe_for(1e7, 1e9, gpus=512).notes[0].startswith("a sequence for each of 512 GPUs is")

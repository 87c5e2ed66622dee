"""The time of a training step: what must hold of its parts, and published runs."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moescale.hardware.gpus import Gpu, find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.parameters import training_flops_per_token
from moescale.models.published import find_shape
from moescale.models.recipe import Recipe, recipe_for
from moescale.planning.allocation import Budget
from moescale.planning.candidate import Life
from moescale.planning.plan import make_plan
from moescale.planning.plan_file import parse_plan
from moescale.planning.question import Question
from moescale.planning.training_price import TrainingPrice, by_parts
from moescale.scaling_laws import find_law
from moescale.serving.deployment import Deployment
from moescale.training.choice import NEAR, Launch, choose_launch
from moescale.training.parallelism import Split, Trainer, memory_of, splits
from moescale.training.step_time import StepTime, step_error, step_time
from reference_data import ROOT
from script_modules import load_script

H100 = find_gpu("h100-sxm")
DENSE, MOE = (find_shape(name).architecture for name in ("llama-3.1-8b", "mixtral-8x7b"))
WHOLE, SPLIT = (Trainer(states=states, pipeline=True, tensor=True) for states in ("full", "optimizer"))
COUNTS = st.sampled_from((1, 2, 4, 8))
LINKS = ("interconnect_bytes_per_s", "network_bytes_per_s", "memory_bandwidth_bytes_per_s")


BENCHMARK = load_script("benchmarks/training_throughput.py")


def split_of(*, t: int = 1, p: int = 1, e: int = 1, d: int = 1, micro_batch: int = 1, recompute: bool = False) -> Split:
    return Split(
        gpus=t * p * d, tensor=t, pipeline=p, expert=e, data=d, micro_batch=micro_batch, accumulation=16, recompute=recompute
    )  # fmt: skip


def time_of(
    split: Split, *, gpu: Gpu = H100, trainer: Trainer = WHOLE, moe: bool = True, sequence: int = 4096
) -> StepTime:
    return step_time(
        MOE if moe else DENSE, batch_sequences=split.data * split.micro_batch * 16, sequence_tokens=sequence, gpu=gpu,
        split=split, trainer=trainer,
    )  # fmt: skip


@st.composite
def runs(draw: st.DrawFn) -> Split:
    t, d = draw(COUNTS), draw(st.sampled_from((1, 8, 64)))
    e = draw(st.sampled_from([k for k in (1, 2, 4, 8) if t * d % k == 0]))
    return split_of(t=t, p=draw(COUNTS), e=e, d=d, micro_batch=draw(COUNTS), recompute=draw(st.booleans()))


@given(split=runs(), whole=st.booleans(), moe=st.booleans())
def test_parts_sum_to_the_step_and_none_is_negative(split: Split, whole: bool, moe: bool) -> None:
    step = time_of(split, trainer=WHOLE if whole else SPLIT, moe=moe)
    assert all(share >= 0 for share in step.shares.values())
    assert sum(step.shares.values()) == pytest.approx(1.0)
    assert 0 < step.mfu < 1
    said = step.to_dict()
    assert sum(said[f"{name}_s"] for name in step.shares) == pytest.approx(said["total_s"])


@given(split=runs(), link=st.sampled_from(LINKS), times=st.floats(1.0, 10.0), whole=st.booleans())
def test_a_faster_link_or_memory_is_never_slower(split: Split, link: str, times: float, whole: bool) -> None:
    trainer, faster = WHOLE if whole else SPLIT, replace(H100, **{link: getattr(H100, link) * times})
    assert time_of(split, gpu=faster, trainer=trainer).total_s <= time_of(split, trainer=trainer).total_s * (1 + 1e-12)


@given(moe=st.booleans(), whole=st.booleans(), micro_batch=COUNTS)
def test_one_gpu_sends_nothing_and_has_no_bubble(moe: bool, whole: bool, micro_batch: int) -> None:
    step = time_of(split_of(micro_batch=micro_batch), trainer=WHOLE if whole else SPLIT, moe=moe)
    sent = step.tensor_parallel_s, step.context_parallel_s, step.expert_exchange_s, step.data_parallel_s
    assert (*sent, step.pipeline_bubble_s, step.recompute_s) == (0, 0, 0, 0, 0, 0)


@given(split=runs())
def test_a_bubble_is_of_pipelines_alone_and_interleaving_shrinks_it(split: Split) -> None:
    once = time_of(split)
    assert (once.pipeline_bubble_s == 0) == (split.pipeline == 1)
    arguments = {"batch_sequences": split.data * split.micro_batch * 16, "sequence_tokens": 4096, "gpu": H100}
    twice = step_time(MOE, **arguments, split=split, trainer=WHOLE, stages_per_gpu=2)  # pyright: ignore[reportArgumentType]
    assert twice.pipeline_bubble_s == pytest.approx(once.pipeline_bubble_s / 2)


@given(split=runs(), moe=st.booleans())
def test_layers_that_run_again_cost_about_a_forward_pass(split: Split, moe: bool) -> None:
    again, once = (time_of(replace(split, recompute=r), moe=moe) for r in (True, False))
    worked = once.compute_s + once.attention_s + once.tensor_parallel_s + once.expert_exchange_s
    assert once.recompute_s == 0
    assert 0.2 < again.recompute_s / worked < 0.51


def test_mfu_counts_matrices_and_causal_attention() -> None:
    step = time_of(split_of(d=8), moe=False, sequence=8192)
    flops = float(training_flops_per_token(DENSE, sequence_tokens=8192.0))
    assert step.mfu == pytest.approx(flops * step.tokens_per_s_per_gpu / 989e12)


def test_experts_far_apart_wait_for_the_network() -> None:
    model = replace(MOE, n_experts=64.0)
    arguments = {"batch_sequences": 1024, "sequence_tokens": 4096, "gpu": H100, "trainer": SPLIT}
    near, far = (step_time(model, **arguments, split=split_of(e=e, d=64)) for e in (8, 64))  # pyright: ignore[reportArgumentType]
    assert near.expert_exchange_s < far.expert_exchange_s
    hidden = step_time(model, **arguments, split=split_of(e=64, d=64), exchange_hidden=True)  # pyright: ignore[reportArgumentType]
    assert hidden.expert_exchange_s < far.expert_exchange_s


def test_fp8_is_faster_where_the_gpu_has_it() -> None:
    split = split_of(d=8, micro_batch=4)
    arguments = {"batch_sequences": 256, "sequence_tokens": 4096, "split": split, "trainer": WHOLE}
    for gpu, faster in ((H100, True), (find_gpu("a100-sxm-80gb"), False)):
        bf16, fp8 = (step_time(DENSE, gpu=gpu, precision=name, **arguments) for name in ("bf16", "fp8"))  # pyright: ignore[reportArgumentType]
        assert (fp8.total_s < bf16.total_s) == faster
        assert fp8.total_s <= bf16.total_s


LAUNCH = Launch(trainer=SPLIT, batch_tokens=1024 * 4096, sequence_tokens=4096)


def recipe() -> Recipe:
    return recipe_for(1e9, 1e12, batch_tokens=LAUNCH.batch_tokens, sequence_tokens=LAUNCH.sequence_tokens)


@pytest.mark.parametrize("shape", [DENSE, MOE], ids=["dense", "experts"])
def test_the_split_is_the_fastest_that_fits(shape: Architecture) -> None:
    found = choose_launch(shape, 1e12, H100, LAUNCH, gpus=512)
    for split in splits(shape, recipe(), 512, SPLIT):
        memory = memory_of(shape, recipe(), H100, split, SPLIT)
        if memory.total_bytes <= memory.available_bytes:
            step = step_time(shape, batch_sequences=1024, sequence_tokens=4096, gpu=H100, split=split, trainer=SPLIT)
            assert found.step.total_s <= step.total_s * (1 + NEAR)
    assert found.mfu == found.step.mfu
    assert found.days == pytest.approx(1e12 / (512 * found.step.tokens_per_s_per_gpu) / 86400)


@pytest.mark.parametrize("model", [DENSE, MOE], ids=["dense", "experts"])
def test_many_splits_are_priced_as_each_alone(model: Architecture) -> None:
    ways, sizes = splits(model, recipe(), 96, SPLIT), {"batch_sequences": 1024, "sequence_tokens": 4096}
    memory = memory_of(model, recipe(), H100, ways, SPLIT)
    step = step_time(model, **sizes, gpu=H100, split=ways, trainer=SPLIT)
    for i, split in enumerate(ways):
        assert memory.total_bytes[i] == pytest.approx(
            memory_of(model, recipe(), H100, split, SPLIT).total_bytes, rel=1e-12
        )
        alone = step_time(model, **sizes, gpu=H100, split=split, trainer=SPLIT)
        assert step.total_s[i] == pytest.approx(alone.total_s, rel=1e-12)


def test_a_stated_mfu_rules_over_the_parts() -> None:
    parts, stated = (
        choose_launch(MOE, 1e12, H100, LAUNCH, gpus=512),
        choose_launch(MOE, 1e12, H100, LAUNCH, gpus=512, mfu=0.5),
    )
    assert (parts.mfu_from, stated.mfu_from) == ("parts", "stated")
    assert (stated.mfu, stated.split, stated.step) == (0.5, parts.split, parts.step)
    assert stated.days == pytest.approx(parts.days * parts.mfu / 0.5)
    assert "stated 50%" in stated.time_in_words
    assert "stated" not in parts.time_in_words


@pytest.mark.system
def test_every_published_run_is_built_and_none_is_absurd() -> None:
    found = BENCHMARK.scored(BENCHMARK.read_rows())
    assert len(found) == 270
    for s in found:
        row = s.row
        assert all(row[name] for name in ("source", "date"))
        assert row["url"].startswith("https://")
        if row["stated_unit"] == "tokens/s/GPU":
            assert float(row["stated"]) == pytest.approx(s.measured, rel=1e-5)
        assert 0 < s.step.mfu < 1
        assert 1 / 3 < s.ratio < 3, s.set


@pytest.mark.system
def test_the_stated_error_is_that_of_the_held_out_runs() -> None:
    found = BENCHMARK.scored(BENCHMARK.read_rows())
    lines = BENCHMARK.table(found, (BENCHMARK.DEVELOPMENT, BENCHMARK.HELD_OUT))
    with (ROOT / "benchmarks" / "results" / "training_throughput.csv").open(newline="", encoding="utf-8") as file:
        for kept, line in zip(csv.DictReader(file), lines, strict=True):
            assert all(
                float(kept[name]) == pytest.approx(line[name], rel=1e-3) for name in ("geometric_mean", "within_25")
            )
    for model in (DENSE, MOE):
        stated = step_error(model)
        (line,) = (x for x in lines if (x["half"], x["kind"], x["from"]) == ("held_out", stated.kind, "parts"))
        names = {"geometric_mean": stated.geometric_mean, "spread": stated.spread, "within_25": stated.within_25}
        assert {name: line[name] for name in names} == pytest.approx(names, rel=1e-3)
        assert stated.runs == line["rows"]


def test_training_with_more_experts_reaches_less_of_peak_on_as_many_gpus_as_hold_them() -> None:
    law, timed = find_law("yun2024-recovered"), TrainingPrice(gpu=H100, usd_per_gpu_hour=2.0, mfu=0.4, timed=True)
    price = by_parts(timed, law, Budget(5.15e21), (1, 8, 64), gpus=64, vocab_size=None)
    (one, dense), (_, _), (_, most) = price.mfu_by_experts
    assert [experts for experts, _ in price.mfu_by_experts] == [1.0, 8.0, 64.0]
    assert 0.1 < most < dense < 0.6
    assert price.mfu_at(np.array([1.0, 8.0, 64.0])).tolist() == pytest.approx([mfu for _, mfu in price.mfu_by_experts])
    assert most < float(price.mfu_at(20.0)) < dense
    assert float(price.mfu_at(1000.0)) == most
    few = by_parts(timed, law, Budget(5.15e21), (1, 64), gpus=8, vocab_size=None).mfu_by_experts
    assert [experts for experts, _ in few] == [1.0, 64.0]  # which 8 GPUs do not hold
    assert few[0] != (one, dense)
    assert by_parts(timed, law, Budget(1e32), (64,), gpus=None, vocab_size=None) is timed


@pytest.mark.system
def test_a_plan_prices_training_by_the_parts_of_its_experts() -> None:
    law, budget = find_law("yun2024-recovered"), Budget(5.15e21)
    gpu, experts = find_gpu("a100-sxm-40gb"), (1.0, 4.0, 16.0, 64.0)
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0)
    timed = TrainingPrice(gpu=gpu, usd_per_gpu_hour=2.0, mfu=0.4, timed=True)
    price = by_parts(timed, law, budget, experts, gpus=64, vocab_size=None)
    assert price.mfu_by_experts is not None
    asked = {"budget": budget, "experts": experts, "training": price, "train_gpus": 64.0, "draws": 0}
    question = Question(**asked, lifetime_tokens=1e12, objective="serve")  # pyright: ignore[reportArgumentType]
    plan = make_plan(law, question, deployment, Roofline(gpu))
    use = plan.training
    assert use is not None
    model = plan.lifetime.recommendation.model
    bill = price.bill(plan.lifetime.recommendation.architecture.architecture(), model.training_flops, model.tokens, 64)
    assert plan.lifetime.training_usd == pytest.approx(bill.usd)
    # The model of the budget is timed as it is built, and it is what this plan decides for.
    built, shape = plan.recommendation.model, plan.recommendation.architecture
    bill = price.bill(shape.architecture(), built.training_flops, built.tokens, 64)
    assert (use.mfu, use.gpu_days, use.mfu_from) == (bill.mfu, pytest.approx(bill.gpu_days), "parts")
    assert use.usd == pytest.approx(48.0 * (use.gpu_days or 0.0))
    assert use.mfu_words == f"{bill.mfu:.2f} predicted"
    for life in plan.lifetime.plans:
        if isinstance(life, Life):
            hours = life.training_flops / (gpu.bf16_flops_per_s * float(price.mfu_at(life.experts))) / 3600
            assert life.training_usd == pytest.approx(2.0 * hours)
    record = json.loads(json.dumps(plan.to_dict()))
    assert parse_plan(record, where="plan").training == use

"""Attention data parallelism, experts over several servers and pipelines: memory, batches, exchanges and refusals."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from moescale.errors import BoundError, InfeasibleError
from moescale.hardware.gpus import find_gpu
from moescale.latency import LatencySource, Pass, network
from moescale.latency.engines import Engine
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
from moescale.models.parameters import fullest_stage, kv_bytes_per_request, weight_bytes_per_gpu
from moescale.models.published import shapes
from moescale.options.cost import CostServingOptions
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import cost
from moescale.serving.steady_state import Reason, serve
from moescale.typing import FloatArray, Real

H100, H200, A100 = find_gpu("h100-sxm"), find_gpu("h200-sxm"), find_gpu("a100-sxm-80gb")
MIXTRAL, QWEN, DEEPSEEK = shapes()["mixtral-8x7b"], shapes()["qwen3-30b-a3b"], shapes()["deepseek-v3"]
SERVED = Deployment(gpu=H100, usd_per_gpu_hour=2.0, prompt_tokens=512, output_tokens=256, max_num_seqs=256)
ROOFLINE = Roofline(H100)
FIGURES = ("batch", "prefill_s", "decode_s", "iteration_s", "tpot_s", "ttft_s", "usd_per_mtok", "weight_bytes_per_gpu")

batches = st.floats(0.0, math.log(4096.0)).map(math.exp)
groups = st.sampled_from((2.0, 4.0, 8.0))


@dataclass(frozen=True, slots=True)
class Asked(LatencySource):
    """A latency source that keeps what it is asked, and answers in proportion to the requests."""

    passes: list[Pass]
    name: str = "asked"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        self.passes.append(a)
        return 1e-3 + 1e-5 * np.asarray(a.tokens, dtype=np.float64)


@pytest.mark.parametrize("source", [ROOFLINE, Asked([])])
def test_one_group_and_one_stage_change_no_digit(source: LatencySource) -> None:
    counts, groups_of = np.array([2.0, 4.0, 8.0]), np.array([1.0, 1.0, 8.0])
    plain = serve(MIXTRAL, counts, source, SERVED)
    same = serve(MIXTRAL, counts, source, replace(SERVED, attention_dp=1.0, pipeline_parallel=1.0))
    mixed = serve(MIXTRAL, counts, source, replace(SERVED, attention_dp=groups_of, expert_parallel=1.0))
    for name in FIGURES:
        np.testing.assert_array_equal(getattr(plain, name), getattr(same, name))
        np.testing.assert_allclose(getattr(mixed, name)[:2], getattr(plain, name)[:2], rtol=1e-12)


def test_whole_experts_are_over_all_gpus_of_a_stage_where_infinity_says_so() -> None:
    assert SERVED.expert_ways(8) == 1.0
    some = np.array([1.0, math.inf])
    np.testing.assert_array_equal(replace(SERVED, expert_parallel=some).expert_ways(8), [1.0, 8.0])
    staged = replace(SERVED, attention_dp=2.0, pipeline_parallel=2.0, expert_parallel=math.inf)
    assert staged.expert_ways(8) == 4.0
    assert replace(staged, expert_parallel=1.0).expert_ways(8) == 1.0
    chosen = CostServingOptions(gpu="h100-sxm", attention_dp=2)
    assert (chosen.deployment().expert_parallel, CostServingOptions().deployment().expert_parallel) == (math.inf, 1.0)
    with pytest.raises(BoundError, match="expert_parallel must be"):
        replace(staged, expert_parallel=math.nan * 1.0)


@given(batch=batches, prompts=batches, ranks=groups)
def test_the_busiest_group_has_its_share_or_one_whole_request(batch: float, prompts: float, ranks: float) -> None:
    whole = Pass(8.0, 8.0, batch, 100.0, prompts / 100.0, 50.0, attention_dp=ranks)
    rank = whole.busiest_rank
    assert rank.gpus == 8.0 / ranks
    assert rank.batch == max(batch / ranks, 1.0)
    assert rank.prompts == max(prompts / 100.0 / ranks, min(prompts / 100.0, 1.0))
    assert whole.tokens <= ranks * rank.tokens * (1 + 1e-12)
    assert Pass(8.0, 8.0, batch).busiest_rank.batch == batch


def test_groups_hold_attention_whole_and_experts_spread() -> None:
    """Mixtral: attention, tables, routers and norms on each of 8 GPUs, and one whole expert of each layer."""
    layers, d, width = 32, 4096, 14336
    attention = layers * (2 * d * d + 2 * d * 1024)
    rest = attention + 2 * 32000 * d + layers * 8 * d + (2 * layers + 1) * d
    found = weight_bytes_per_gpu(MIXTRAL, 2.0, 8, 8, attention_dp=8)
    assert float(found) == 2 * (rest + layers * 3 * d * width)
    assert float(weight_bytes_per_gpu(MIXTRAL, 2.0, 8, 1, attention_dp=8)) == float(found)
    assert float(weight_bytes_per_gpu(MIXTRAL, 2.0, 8, 8, attention_dp=2)) < float(found)


def test_groups_of_deepseek_hold_more_requests_as_each_has_a_cache_of_its_own() -> None:
    """8 x H200, fp8 weights: under TP8 every GPU holds the compressed cache of every request."""
    d, heads = 7168, 128
    attention = d * 1536 + 1536 * heads * 192 + d * 576 + 512 * heads * 256 + heads * 128 * d
    expert = 3 * d * 2048
    fp8 = 61 * attention + 3 * 3 * d * 18432 + 58 * expert + 58 * 256 // 8 * expert
    bf16 = 2 * 129280 * d + 58 * (256 * d + 256) + (2 * 61 + 1) * d + 61 * (1536 + 512)
    weights = fp8 + 2 * bf16
    served = replace(SERVED, gpu=H200, weight_bytes_per_param=1.0, reserve_bytes=0.0)
    served = replace(served, max_num_seqs=math.inf, batching="largest")
    spread = replace(served, attention_dp=8.0, expert_parallel=math.inf)
    assert float(weight_bytes_per_gpu(DEEPSEEK, 1.0, 8, 8, attention_dp=8)) == weights
    request = (512 + 256 / 2) * 61 * (512 + 64) * 2
    free = 0.9 * H200.memory_bytes - weights
    source = Roofline(H200, 1.0)
    batch = float(serve(DEEPSEEK, 8, source, spread).batch)
    assert batch == pytest.approx(8 * free / request, rel=1e-12)
    assert batch > 3 * float(serve(DEEPSEEK, 8, source, served).batch)


def test_prompts_that_wait_for_each_other_share_a_pass() -> None:
    """A prompt alone holds up all groups; eight of them, one a group, hold them up as long."""
    served = replace(SERVED, output_tokens=1024, attention_dp=8.0, expert_parallel=math.inf)  # a prompt in 4 passes
    alone = serve(QWEN, 8, ROOFLINE, served)
    waiting = serve(QWEN, 8, ROOFLINE, replace(served, engine=Engine(balance_passes=16)))  # 4 prompts
    longest = serve(QWEN, 8, ROOFLINE, replace(served, engine=Engine(balance_passes=10**6)))  # 8 prompts, one a group
    assert longest.tpot_s < waiting.tpot_s < alone.tpot_s
    assert longest.ttft_s > waiting.ttft_s > alone.ttft_s
    source = Asked([])
    serve(QWEN, 8, source, replace(served, engine=Engine(balance_passes=16), batching="largest"))
    assert {float(np.asarray(a.prompts)) for a in source.passes if a.prompts is not None} == {4.0}


def test_a_stage_holds_whole_layers_and_one_table() -> None:
    stage = fullest_stage(DEEPSEEK, 4)
    assert (float(stage.n_layers), float(stage.n_moe_layers)) == (16.0, 16.0)
    assert fullest_stage(DEEPSEEK, 1.0) is DEEPSEEK
    table, half = 32000 * 4096, replace(MIXTRAL, n_layers=16, n_moe_layers=16)
    final_norm = 2 * 4096
    found = float(weight_bytes_per_gpu(MIXTRAL, 2.0, 1, 1, pipeline_parallel=2))
    assert found == float(weight_bytes_per_gpu(half)) - 2 * table
    assert 2 * (found + 2 * table) == float(weight_bytes_per_gpu(MIXTRAL)) + 2 * 2 * table + final_norm
    assert float(kv_bytes_per_request(half, 100)) * 2 == float(kv_bytes_per_request(MIXTRAL, 100))


def test_a_pipeline_works_on_parts_of_the_batch_at_once_and_waits_for_the_fullest_stage() -> None:
    served = serve(MIXTRAL, 6, Asked([]), replace(SERVED, pipeline_parallel=3.0))
    sent_s = 3 * (256 / 3 * 4096 * 2 / H100.interconnect_bytes_per_s + network.HOP_S)
    assert float(served.decode_s) == pytest.approx((1e-3 + 256e-5 / 3) * 33 / 32 + sent_s, rel=1e-12)
    source = Asked([])
    served = serve(MIXTRAL, 8, source, replace(SERVED, pipeline_parallel=4.0))
    asked = source.passes[0]
    assert float(asked.batch if asked.batch is not None else 0) == 64.0
    assert float(asked.gpus) == 2.0
    sent_s = 4 * (64 * 4096 * 2 / H100.interconnect_bytes_per_s + network.HOP_S)
    assert float(served.decode_s) == pytest.approx(1e-3 + 64e-5 + sent_s, rel=1e-12)
    assert float(served.throughput_tok_s) == pytest.approx(256.0 / float(served.iteration_s), rel=1e-12)


@pytest.mark.parametrize(
    ("model", "gpus", "changes", "reason", "words"),
    [
        (MIXTRAL, 8, {"attention_dp": 3.0}, Reason.ATTENTION_DP, "a number that divides the GPU count"),
        (shapes()["llama-3.1-8b"], 2, {"attention_dp": 2.0}, Reason.ATTENTION_DP, "need a model with experts"),
        (MIXTRAL, 8, {"pipeline_parallel": 3.0}, Reason.PIPELINE, "on 8 GPUs the pipeline stages exceed"),
        (MIXTRAL, 64, {"pipeline_parallel": 64.0}, Reason.PIPELINE, "the pipeline stages exceed the layers"),
        (
            MIXTRAL,
            8,
            {"pipeline_parallel": 4.0, "expert_parallel": 4.0},
            Reason.EXPERT_PARALLEL,
            "do not divide the GPU count",
        ),
        (
            MIXTRAL,
            16,
            {"attention_dp": 16.0, "expert_parallel": math.inf},
            Reason.EXPERT_PARALLEL,
            "exceed the experts",
        ),
        (MIXTRAL, 24, {"attention_dp": 2.0}, Reason.HEADS, "12 GPUs cannot share 32 attention heads"),
    ],
)
def test_what_no_server_can_do_has_its_reason(
    model: Architecture, gpus: int, changes: dict[str, float], reason: Reason, words: str
) -> None:
    deployment = replace(SERVED, max_gpus=64, **changes)
    assert serve(model, gpus, ROOFLINE, deployment).infeasible == reason
    with pytest.raises(InfeasibleError, match=words):
        cost(model, ROOFLINE, deployment, gpus)


def test_within_a_server_the_network_adds_nothing_and_beyond_it_the_bytes_that_leave() -> None:
    assert float(network.all_reduce_s(H100, 8.0, 1e9)) == 0.0
    assert float(network.exchange_s(H100, 8.0, 1e9)) == 0.0
    # Two servers of 8 GPUs: half of the message leaves each, an eighth of it over each card of 50 GB/s.
    assert float(network.gather_s(H100, 16.0, 1e9)) == pytest.approx(1e9 / 2 / 8 / 50e9 + network.HOP_S)
    assert float(network.exchange_s(H100, 16.0, 1e9)) == pytest.approx(1e9 / 2 / 50e9 + network.HOP_S)
    assert find_gpu("gb200").gpus_per_server == 72
    assert float(network.servers(find_gpu("gb300"), 72.0)) == 1.0
    assert A100.network_bytes_per_s == 25e9


@pytest.fixture(scope="module")
def silicon() -> Silicon:
    pytest.importorskip("aiconfigurator_core", reason="the kernel tables exist for Linux x86-64 only")
    return Silicon(H100, host_s=0.0)


@pytest.mark.system
def test_a_measured_exchange_takes_its_measured_time(silicon: Silicon) -> None:
    from moescale.latency.kernels.tables import find_table, read_columns
    from moescale.latency.messages import NEWEST, collective_grid, deepep_grid

    path = find_table("h100_sxm", "comm", "nccl", NEWEST, "nccl_perf")
    assert path is not None
    rows = read_columns(path, ("num_gpus", "message_size", "latency"), op_name="all_gather", nccl_dtype="half")
    at = (rows["num_gpus"] == 8) & (rows["message_size"] == 2**24)
    grid = collective_grid("h100_sxm", "all_gather")
    measured = float(np.exp(np.mean(np.log(rows["latency"][at]))))
    assert float(grid.seconds(8.0, 2.0**24)) == pytest.approx(measured, rel=1e-9)
    path = find_table("h100_sxm", "comm", "sglang", "0.5.6.post2", "wideep_deepep_ll_perf")
    assert path is not None
    names = ("node_num", "num_token", "dispatch_avg_t_us", "combine_avg_t_us")
    rows = read_columns(path, names)
    at = (rows["node_num"] == 4) & (rows["num_token"] == 64)
    both = (rows[names[2]] + rows[names[3]])[at] * 1e-6
    grid = deepep_grid("h100_sxm", low_latency=True)
    assert float(grid.seconds(4.0, 64.0)) == pytest.approx(float(np.exp(np.mean(np.log(both)))), rel=1e-9)
    assert deepep_grid("b200_sxm", low_latency=True) is None


@pytest.mark.system
@pytest.mark.parametrize("gpus", [8.0, 16.0, 64.0])
def test_groups_over_servers_have_answers_that_rise_with_the_batch(silicon: Silicon, gpus: float) -> None:
    asked: dict[str, Real] = {"expert_parallel": gpus, "attention_dp": gpus}
    seconds = silicon.decode_s(DEEPSEEK, gpus, np.geomspace(gpus, 256 * gpus, 9), 2000.0, **asked)
    assert np.all(np.isfinite(seconds))
    assert np.all(np.diff(seconds) > 0)
    slow = replace(silicon, gpu=replace(H100, network_bytes_per_s=1e9))
    whole = slow.decode_s(DEEPSEEK, 16.0, 64.0, 2000.0)
    assert float(whole) > float(silicon.decode_s(DEEPSEEK, 16.0, 64.0, 2000.0))


@pytest.mark.system
def test_experts_behind_an_exchange_take_their_measured_time() -> None:
    from moescale.latency.experts import BALANCED, spread_experts, spread_s
    from moescale.latency.kernels.tables import find_table, read_columns

    grid, each = spread_experts("h100_sxm", prompts=False), 3.0 * 7168 * 2048
    path = find_table("h100_sxm", "moe", "sglang", "0.5.10", "wideep_generation_moe_perf")
    assert path is not None
    assert grid is not None
    names = ("moe_ep_size", "num_tokens", "latency")
    rows = read_columns(path, names, distribution=BALANCED, moe_dtype="fp8_block")
    at = (rows["moe_ep_size"] == 64) & (rows["num_tokens"] == 4096)
    (measured,) = rows["latency"][at]
    assert float(spread_s(grid, 64.0, 4096.0, 8.0, 256.0, each)) == pytest.approx(measured, rel=1e-9)
    # Half as wide experts take half of it; as many pairs on as many experts of each of half the GPUs as long.
    assert float(spread_s(grid, 64.0, 4096.0, 8.0, 256.0, each / 2)) == pytest.approx(measured / 2, rel=1e-9)
    assert float(spread_s(grid, 32.0, 2048.0, 8.0, 128.0, each)) == pytest.approx(measured, rel=1e-9)
    assert spread_experts("a100_sxm", prompts=False) is None


@pytest.mark.system
def test_cost_says_how_the_gpus_share_the_model() -> None:
    asked = ("cost", "mixtral-8x7b", "--gpu", "h100-sxm", "--latency", "roofline", "--gpus", 8, "--kv-cache", "bf16")
    code, out, _ = run(*asked, "--attention-dp", 2, "--pipeline-parallel", 2)
    assert code == 0
    assert "on 8 x h100-sxm (2 pipeline stages, 2 attention groups)" in out
    code, out, _ = run(*asked, "--attention-dp", 8, "--json")
    told = json.loads(out)
    assert "pipeline_parallel" not in told
    assert (told["attention_dp"], told["expert_parallel"], told["tensor_parallel"]) == (8, 8, 1)
    code, out, _ = run(*asked, "--attention-dp", 8, "--expert-parallel", 1, "--json")
    assert json.loads(out)["expert_parallel"] == 1

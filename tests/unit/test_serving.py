"""Serving cost: one example worked by hand, and what must hold for every model, price and memory."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import PAPER
from moescale.errors import InputError
from moescale.hardware.gpus import Gpu, find_gpu
from moescale.latency import LatencySource, Pass
from moescale.latency.engines import NO_OVERHEAD, find_host
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.models.parameters import weight_bytes_per_gpu
from moescale.models.published import shapes
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.gpu_counts import cheapest, cost
from moescale.serving.steady_state import LIMITS, Serving, infeasible_reason, serve
from moescale.typing import FloatArray

# 2 layers x (q 64 + k 32 + v 32 + o 64 + gate, up, down 3 x 128 + two norms 16) + final norm 8 = 1192 parameters;
# at 2 bytes 2384 bytes of weights, and 2 layers x 2 (K, V) x 1 head x 4 x 2 bytes = 32 bytes of KV cache a token.
TINY = Architecture(n_layers=2, d_model=8, n_heads=2, n_kv_heads=1, head_dim=4, d_ffn=16, name="tiny")
TINY_GPU = Gpu(
    name="toy", memory_bytes=10_000.0, memory_bandwidth_bytes_per_s=1e6, bf16_flops_per_s=1e9, fp8_flops_per_s=None,
    interconnect_bytes_per_s=1e5, default_max_num_seqs=256, silicon_system=None, source="made up", date="2026-01-01",
)  # fmt: skip
TINY_SERVED = Deployment(
    gpu=TINY_GPU, usd_per_gpu_hour=3.6, prompt_tokens=10, output_tokens=20, max_gpus=4, memory_fraction=0.9,
    utilization=0.5, max_num_seqs=math.inf, reserve_bytes=0.0,
)  # fmt: skip
A100 = find_gpu("a100-sxm-40gb")
SHARE_GPT = Deployment(
    gpu=A100, usd_per_gpu_hour=2.0, prompt_tokens=230, output_tokens=203, max_num_seqs=math.inf, reserve_bytes=0.0
)
LATENCY = Roofline(A100)

sizes = st.floats(1e8, 2e10)
experts = st.sampled_from([1.0, 2.0, 4.0, 8.0, 16.0, 64.0])
gpu_counts = st.integers(1, 8)


@dataclass(frozen=True)
class Straight(LatencySource):
    """A latency source on a straight line, to compute with by hand; NaN above `largest_batch`."""

    largest_batch: float = np.inf
    name: str = "straight"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        decode_s = np.asarray(0.0)
        if a.batch is not None:
            decode_s = np.where(np.asarray(a.batch) <= self.largest_batch, 0.1 + 0.01 * np.asarray(a.batch), np.nan)
        return decode_s + (0.0 if a.prompts is None else 0.2 * np.asarray(a.prompts))


def entry(serving: Serving, index: tuple[int, ...]) -> list[float]:
    return [float(getattr(serving, f.name)[index]) for f in fields(serving)]


def test_one_gpu_and_two_by_hand() -> None:
    served = serve(TINY, 1, Straight(), TINY_SERVED)
    # 0.9 x 10000 - 2384 = 6616 bytes free; a request holds 10 + 20/2 = 20 tokens on average, so 640 bytes.
    assert served.batch == pytest.approx(6616 / 640, rel=1e-15)
    # 10.3375 / 20 = 0.516875 prompts an iteration: prefill(1) times that.
    assert served.prefill_s == pytest.approx(0.2 * 0.516875, rel=1e-15)
    assert served.decode_s == pytest.approx(0.1 + 0.103375, rel=1e-15)
    assert served.iteration_s == pytest.approx(0.30675, rel=1e-15)
    assert served.throughput_tok_s == pytest.approx(10.3375 / 0.30675, rel=1e-15)
    # 3.6 dollars an hour are a thousandth a second; half of the plateau is used.
    assert served.usd_per_mtok == pytest.approx(0.001 * 0.30675 / 10.3375 * 1e6 / 0.5, rel=1e-14)
    assert served.weight_bytes == 2384
    assert served.kv_bytes_per_token == 32
    assert LIMITS[int(served.limited_by)] == "memory"
    assert served.infeasible == 0
    served = serve(TINY, 2, Straight(), TINY_SERVED)
    # The one KV head is on both: 640 bytes a request on each, beside the weights that a GPU holds.
    batch = (9000 - float(weight_bytes_per_gpu(TINY, 2.0, 2.0))) / 640
    assert served.batch == pytest.approx(batch, rel=1e-15)
    iteration_s = 0.2 * batch / 20 + 0.1 + 0.01 * batch
    assert served.usd_per_mtok == pytest.approx(2 * 0.001 * iteration_s / batch * 1e6 / 0.5, rel=1e-14)
    # More than one prompt an iteration is prefilled as a batch.
    served = serve(TINY, 1, Straight(), replace(TINY_SERVED, output_tokens=2, prompt_tokens=19))
    assert served.batch == pytest.approx(6616 / 640, rel=1e-15)
    assert served.prefill_s == pytest.approx(0.2 * 10.3375 / 2, rel=1e-15)
    served = serve(TINY, [1, 2], Straight(), replace(TINY_SERVED, max_num_seqs=11))
    assert served.batch.tolist() == [pytest.approx(10.3375), 11]
    assert [LIMITS[int(i)] for i in served.limited_by] == ["memory", "max_num_seqs"]


class Stepped(Straight):
    """Decoding beyond a batch of 6 takes 0.5 s more, so that 6 is the cheapest batch of up to 36."""

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        return super().pass_s(model, a) + np.where(np.asarray(0.0 if a.batch is None else a.batch) > 6.0, 0.5, 0.0)


def test_a_server_need_not_fill_its_memory() -> None:
    filled = replace(TINY_SERVED, batching="largest")
    largest = serve(TINY, 1, Stepped(), filled)
    assert largest.batch == pytest.approx(6616 / 640, rel=1e-15)
    assert LIMITS[int(largest.limited_by)] == "memory"
    record = cost(TINY, Stepped(), TINY_SERVED, gpus=1)
    assert record.limited_by == "optimum"
    assert record.batch == pytest.approx(6.0, rel=0.01)
    assert record.usd_per_mtok == pytest.approx(0.001 * (0.2 / 20 + 0.1 / 6 + 0.01) * 1e6 / 0.5, rel=0.01)
    # Among arrays, too, where fewer smaller batches are looked at.
    several = replace(TINY_SERVED, usd_per_gpu_hour=np.array([3.6, 7.2]), max_gpus=1)
    for found in (cheapest(TINY, Stepped(), several), serve(TINY, 1, Stepped(), several)):
        assert [LIMITS[int(i)] for i in found.limited_by] == ["optimum"] * 2
        # Refined in ten steps between a batch of 1 and the largest over 1.4.
        assert np.all((found.batch <= 6.0) & (found.batch > 6.0 / (6616 / 640 / 1.4) ** 0.1))
        np.testing.assert_array_equal(found.throughput_tok_s, found.batch / found.iteration_s)
        assert np.all(
            found.usd_per_mtok < 0.9 * serve(TINY, 1, Stepped(), replace(several, batching="largest")).usd_per_mtok
        )
    # With more memory the whole batch is the cheaper one again.
    roomy = replace(TINY_SERVED, gpu=replace(TINY_GPU, memory_bytes=40_000.0))
    assert cost(TINY, Stepped(), roomy, gpus=1).limited_by == "memory"


def test_infeasible_entries_cost_infinity_and_say_why() -> None:
    def reason(deployment: Deployment, gpus: int, latency: LatencySource) -> str | None:
        served = serve(TINY, gpus, latency, deployment)
        assert np.isinf(served.usd_per_mtok) == bool(served.infeasible)
        assert (served.batch == 0) == (served.throughput_tok_s == 0) == bool(served.infeasible)
        return infeasible_reason(served, TINY, latency, deployment)

    small = replace(TINY_SERVED, gpu=replace(TINY_GPU, memory_bytes=2e9 / 1e6))
    assert reason(TINY_SERVED, 1, Straight()) is None
    assert "weights take" in str(reason(small, 1, Straight()))
    # 9000 - 2384 bytes hold 206 tokens: one request of 207 does not fit, although its mean length does.
    long = replace(TINY_SERVED, prompt_tokens=187)
    assert "one request of 207 tokens" in str(reason(long, 1, Straight()))
    assert reason(replace(long, prompt_tokens=186), 1, Straight()) is None
    assert "3 GPUs cannot share 2 attention heads" in str(reason(TINY_SERVED, 3, Straight()))
    searched = replace(TINY, n_layers=2.5)  # heads must divide only where the model could be built
    assert np.isfinite(serve(searched, 3, Straight(), TINY_SERVED).usd_per_mtok)
    assert "no answer" in str(reason(TINY_SERVED, 1, Straight(largest_batch=10)))


def test_gpu_counts_are_powers_of_two_unless_others_are_stated() -> None:
    assert degrees(TINY_SERVED) == (1, 2, 4)
    assert degrees(replace(TINY_SERVED, max_gpus=7)) == (1, 2, 4)
    assert degrees(replace(TINY_SERVED, max_gpus=8)) == (1, 2, 4, 8)
    assert degrees(replace(TINY_SERVED, tensor_parallel_degrees=(6, 3, 1, 3))) == (1, 3)
    six = replace(TINY, n_heads=6, n_kv_heads=6, head_dim=1)
    every = replace(TINY_SERVED, tensor_parallel_degrees=(1, 2, 3))
    assert [record.gpus for record in cost(six, Straight(), every).candidates or ()] == [1, 2, 3]
    assert np.isfinite(cheapest(six, Straight(), every).usd_per_mtok)
    assert cost(six, Straight(), TINY_SERVED, gpus=3).gpus == 3  # one count that is asked for need be no power of two
    for wrong, words in (((0,), "whole numbers of at least 1, not 0"), ((5, 8), "within max_gpus = 4")):
        with pytest.raises(InputError, match=words):
            cheapest(TINY, Straight(), replace(TINY_SERVED, tensor_parallel_degrees=wrong))


# Heads, KV heads, GPUs, and whether vLLM accepts them (QKVParallelLinear and the models' own assertions).
@pytest.mark.parametrize(
    ("heads", "kv_heads", "gpus", "words"),
    [
        (32, 8, 16, None),  # each KV head twice
        (48, 8, 6, "6 GPUs cannot share 8 key-value heads evenly, as vLLM requires; 4 or 8 GPUs can"),
        (48, 8, 12, "12 GPUs cannot share 8 key-value heads evenly, as vLLM requires; 8 or 16 GPUs can"),
        (28, 4, 8, "8 GPUs cannot share 28 attention heads evenly, as vLLM requires; 4 or 28 GPUs can"),
        (40, 10, 4, "4 GPUs cannot share 10 key-value heads evenly, as vLLM requires; 2 or 5 GPUs can"),
        (2, 1, 4, "4 GPUs cannot share 2 attention heads evenly, as vLLM requires; 2 GPUs can"),
        (3, 3, 2, "2 GPUs cannot share 3 attention heads evenly, as vLLM requires; 1 or 3 GPUs can"),
        (6, 6, 3, None),
    ],
)
def test_gpus_share_heads_as_vllm_demands(heads: int, kv_heads: int, gpus: int, words: str | None) -> None:
    model = replace(TINY, n_heads=heads, n_kv_heads=kv_heads, head_dim=1)
    roomy = replace(TINY_SERVED, gpu=replace(TINY_GPU, memory_bytes=1e6))
    served = serve(model, gpus, Straight(), roomy)
    assert infeasible_reason(served, model, Straight(), roomy) == words
    assert np.isfinite(served.usd_per_mtok) == (words is None)


@pytest.mark.system
@given(st.lists(sizes, min_size=1, max_size=4), st.integers(1, 8))
def test_cheapest_is_the_minimum_over_gpu_counts(some_sizes: list[float], max_gpus: int) -> None:
    model = architecture(PAPER, np.array(some_sizes)[:, None], np.array([1.0, 8.0, 64.0]))
    deployment = replace(SHARE_GPT, max_gpus=max_gpus)
    best = cheapest(model, LATENCY, deployment)
    every = [serve(model, gpus, LATENCY, deployment) for gpus in degrees(deployment)]
    minimum = np.min([served.usd_per_mtok for served in every], axis=0)
    assert best.usd_per_mtok.shape == (len(some_sizes), 3)
    np.testing.assert_array_equal(best.usd_per_mtok, minimum)
    for index in np.ndindex(minimum.shape):
        chosen = degrees(deployment).index(int(best.gpus[index]))
        np.testing.assert_array_equal(entry(best, index), entry(every[chosen], index))
        assert all(served.usd_per_mtok[index] > minimum[index] for served in every[:chosen]) or np.isinf(minimum[index])


def test_ties_go_to_fewer_gpus_and_models_that_fit_nowhere_cost_infinity() -> None:
    class FasterByGpus(Straight):
        """Iterations that fall as 1/g at a fixed batch: every count costs the same."""

        def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
            return np.asarray(0.0 if a.batch is None else 1 / np.asarray(a.gpus))

    tied = cheapest(replace(TINY, n_heads=4), FasterByGpus(), replace(TINY_SERVED, max_num_seqs=4))
    assert tied.gpus == 1
    nowhere = cheapest(architecture(PAPER, np.array([1e9, 1e13]), 1.0), LATENCY, SHARE_GPT)
    assert np.isfinite(nowhere.usd_per_mtok).tolist() == [True, False]
    assert nowhere.gpus[1] == SHARE_GPT.max_gpus


def test_candidates_hold_one_record_a_gpu_count() -> None:
    records = cost(TINY, Straight(), TINY_SERVED).candidates or ()
    assert [record.gpus for record in records] == [1, 2, 4]
    always = {"gpus", "n_params_total", "n_params_active", "weight_bytes", "kv_bytes_per_token", "latency_source"}
    always |= {"tensor_parallel", "expert_parallel", "replicas", "weight_bytes_per_gpu", "reserve_bytes"}
    figures = {"usd_per_mtok", "batch", "limited_by", "prefill_s", "decode_s", "iteration_s", "throughput_tok_s"}
    figures |= {"ttft_s", "tpot_s", "usd_per_input_mtok", "usd_per_output_mtok"}
    assert set(records[0].to_dict()) == always | figures
    assert set(records[2].to_dict()) == always | {"infeasible"}
    assert records[0].n_params_total == records[0].n_params_active == 1192
    for record in records[:2]:
        served = serve(TINY, record.gpus, Straight(), TINY_SERVED)
        assert (record.usd_per_mtok, record.batch) == (served.usd_per_mtok, served.batch)


def test_cost_is_the_cheapest_candidate_of_one_model_as_json() -> None:
    answer = cost(TINY, Straight(), TINY_SERVED)
    record = json.loads(json.dumps(answer.to_dict()))
    feasible = [c for c in record["candidates"] if "infeasible" not in c]
    assert record["usd_per_mtok"] == min(c["usd_per_mtok"] for c in feasible)
    assert record["gpus"] == 1
    assert record["latency_source"] == "straight"
    assert all(value is not None for value in record.values())
    chosen = cost(TINY, Straight(), TINY_SERVED, gpus=2).to_dict()
    assert chosen["gpus"] == 2
    assert len(chosen["candidates"]) == 1
    with pytest.raises(InputError, match="holds arrays"):
        cost(architecture(PAPER, np.array([1e9, 2e9]), 1.0), LATENCY, SHARE_GPT)
    with pytest.raises(InputError, match="holds arrays"):
        cost(TINY, Straight(), replace(TINY_SERVED, utilization=np.array([0.5, 1.0])))


def test_the_host_adds_to_every_pass_and_asynchronous_hosts_hide() -> None:
    source = Roofline(find_gpu("h100-sxm"))
    base = Deployment(
        gpu=source.gpu, usd_per_gpu_hour=1.0, prompt_tokens=512, output_tokens=256, max_num_seqs=np.array([8, 64, 512])
    )
    bare, in_line, hidden = (
        serve(shapes()["llama-3.1-8b"], 1, source, replace(base, host=find_host(name)))
        for name in ("none", "in-line", "asynchronous")
    )
    assert base.host == NO_OVERHEAD
    # One decoding pass of b requests, and a prefill pass of b/n prompts (or one, every n/b iterations).
    starting = bare.batch / 256
    host_s = 1.4e-3 * (1 + np.minimum(starting, 1)) + 2.1e-5 * (bare.batch + starting)
    np.testing.assert_allclose(in_line.iteration_s, bare.iteration_s + host_s, rtol=1e-12)
    assert np.all((bare.iteration_s < hidden.iteration_s) & (hidden.iteration_s < in_line.iteration_s))
    with pytest.raises(InputError, match="in-line"):
        find_host("inline")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight_bytes_per_param": 1.0}, "weight_bytes_per_param = 2, the deployment has 1"),
        ({"weight_bytes_per_param": np.array([2.0, 1.0])}, "weight_bytes_per_param = 2"),
        ({"kv_bytes_per_element": 1.0}, "kv_bytes_per_element = 2, the deployment has 1"),
        ({"gpu": find_gpu("h100-sxm")}, "those of a100-sxm-40gb, the deployment is on h100-sxm"),
    ],
)
def test_latencies_of_another_deployment_are_refused(changes: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        serve(TINY, 1, LATENCY, replace(SHARE_GPT, **changes))


FASTER = [Roofline(find_gpu("h100-sxm")), Silicon(find_gpu("h100-sxm"))]
H100 = Deployment(
    gpu=find_gpu("h100-sxm"), usd_per_gpu_hour=4.0, prompt_tokens=2000.0, output_tokens=300.0, max_num_seqs=256.0
)


@pytest.mark.parametrize("source", FASTER, ids=lambda source: source.name)
@pytest.mark.parametrize("scheduling", ["separate", "chunked"])
def test_what_is_off_changes_no_digit(source: LatencySource, scheduling: str) -> None:
    model, plain = shapes()["llama-3.1-8b"], replace(H100, scheduling=scheduling)
    off = replace(plain, prefix_hit=0.0, accepted_tokens=0.0, draft_tokens=0.0, max_num_batched_tokens=1e9)
    both = [serve(model, np.asarray([1.0, 4.0]), source, d) for d in (plain, off)]
    for f in fields(Serving):
        assert np.array_equal(getattr(both[0], f.name), getattr(both[1], f.name)), f.name


@pytest.mark.parametrize("source", FASTER, ids=lambda source: source.name)
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("scheduling", ["separate", "chunked"])
def test_more_hits_of_the_prefix_cache_are_never_dearer_nor_slower(
    source: LatencySource, name: str, scheduling: str
) -> None:
    hits = np.linspace(0.0, 1.0, 11)
    served = serve(shapes()[name], 2, source, replace(H100, prefix_hit=hits, scheduling=scheduling, max_num_seqs=128.0))
    assert np.all(served.infeasible == 0)
    assert np.all(np.diff(served.usd_per_mtok) <= 1e-3 * served.usd_per_mtok[1:])
    assert served.usd_per_mtok[-1] < 0.8 * served.usd_per_mtok[0]
    limited = serve(
        shapes()[name], 2, source, replace(H100, prefix_hit=hits, max_num_seqs=math.inf, batching="largest")
    )
    assert np.all(np.diff(limited.batch) > 0)  # what is shared is stored once


@pytest.mark.parametrize("source", FASTER, ids=lambda source: source.name)
def test_a_cached_prefix_costs_its_attention_alone(source: Roofline | Silicon) -> None:
    """Parts of a prompt after each other attend to as many pairs as the whole, and read what is cached."""
    model = replace(shapes()["llama-3.1-8b"], vocab_size=0.0)
    whole = float(source.prefill_s(model, 1, 1.0, 16384.0))
    parts = [float(source.prefill_s(model, 1, 1.0, 4096.0, prefix_tokens=4096.0 * i)) for i in range(4)]
    assert all(np.diff(parts) > 0)
    assert sum(parts) == pytest.approx(whole, rel=0.08)
    assert parts[0] == pytest.approx(float(source.prefill_s(model, 1, 1.0, 4096.0)))


@pytest.mark.parametrize("source", FASTER, ids=lambda source: source.name)
def test_drafted_tokens_are_cheap_beside_the_weights_and_dear_in_full_batches(source: Roofline | Silicon) -> None:
    model = shapes()["llama-3.1-8b"]
    one, two = (source.decode_s(model, 1, np.asarray([1.0, 512.0]), 1000.0, query_tokens=q) for q in (1.0, 2.0))
    assert two[0] < 1.1 * one[0]
    assert one[1] < two[1] < 2.0 * one[1]
    # The cache is read once: less than as many further requests take.
    assert two[1] < float(source.decode_s(model, 1, 1024.0, 1000.0))
    single = serve(model, 1, source, replace(H100, max_num_seqs=1.0))
    drafted = serve(model, 1, source, replace(H100, max_num_seqs=1.0, accepted_tokens=0.85))
    assert float(drafted.tpot_s) < 0.75 * float(single.tpot_s)
    useless = serve(model, 1, source, replace(H100, accepted_tokens=0.001, draft_tokens=4.0))
    assert float(useless.usd_per_mtok) > float(serve(model, 1, source, H100).usd_per_mtok)


def test_a_pass_yields_what_is_accepted() -> None:
    """All drafted tokens kept, and drafted for nothing: half of the passes, of each of which a request gets two tokens."""

    class Free(Roofline):
        takes_none = False

        def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
            whole = np.asarray(model.n_layers) > 1
            return np.where(whole, 0.01, 0.0) if a.prompts is None else super().pass_s(model, a)

    model, source = shapes()["llama-3.1-8b"], Free(H100.gpu)
    plain, drafted = (
        serve(model, 1, source, replace(H100, accepted_tokens=a, max_num_seqs=8.0, batching="largest"))
        for a in (0.0, 1.0)
    )
    assert float(drafted.decode_s) == pytest.approx(float(plain.decode_s))
    without_prompts = float(plain.iteration_s - plain.prefill_s)
    assert float(drafted.iteration_s - drafted.prefill_s / 2.0) == pytest.approx(without_prompts / 2.0)
    assert float(drafted.usd_per_input_mtok) == pytest.approx(float(plain.usd_per_input_mtok))
    with pytest.raises(InputError, match="more than are drafted"):
        replace(H100, accepted_tokens=1.5, draft_tokens=1.0)
    with pytest.raises(InputError, match="prefix_hit must be"):
        replace(H100, prefix_hit=1.5)


@given(budget=st.integers(128, 16_384), prompt=st.integers(1, 20_000), output=st.integers(2, 2000), hit=st.floats(0, 1))
def test_a_pass_never_holds_more_tokens_than_its_budget(budget: int, prompt: int, output: int, hit: float) -> None:
    d = replace(
        H100, prompt_tokens=float(prompt), output_tokens=float(output), scheduling="chunked", batching="largest"
    )
    source, model = Roofline(H100.gpu), shapes()["llama-3.1-8b"]
    free, bound = (
        serve(model, 8, source, replace(d, prefix_hit=hit, max_num_batched_tokens=t)) for t in (None, budget)
    )
    new = max(prompt * (1 - hit), 1.0)
    assert float(bound.batch) * (1 + new / output) <= max(budget, 1 + new / output) * (1 + 1e-9)
    assert float(bound.batch) <= float(free.batch)
    if float(bound.batch) == float(free.batch):
        assert float(bound.iteration_s) >= float(free.iteration_s) * (1 - 1e-9)


@given(count=experts, size=sizes, gpus=gpu_counts, chunked=st.booleans())
def test_dollars_of_prompts_and_outputs_are_all_dollars(count: float, size: float, gpus: int, chunked: bool) -> None:
    d = replace(SHARE_GPT, scheduling="chunked" if chunked else "separate")
    served = serve(architecture(PAPER, size, count), gpus, LATENCY, d)
    request = d.prompt_tokens * served.usd_per_input_mtok + d.output_tokens * served.usd_per_output_mtok
    if served.infeasible == 0:
        assert float(request) == pytest.approx(float(d.output_tokens * served.usd_per_mtok))
        assert float(served.usd_per_input_mtok) < float(served.usd_per_output_mtok)
    else:
        assert np.isinf(served.usd_per_input_mtok)
        assert np.isinf(served.usd_per_output_mtok)

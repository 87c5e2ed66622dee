"""Deployments beyond the paper's: reserve, replicas, expert parallelism, one pass for both, latency limits, traces."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from examples import daily
from families import PAPER
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu, gpus, measured_reserve_bytes
from moescale.latency import LatencySource, Pass
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.models.parameters import kv_bytes_per_request, weight_bytes_per_gpu
from moescale.models.published import shapes
from moescale.serving.deployment import ARRAY_FIELDS, Deployment, with_traffic
from moescale.serving.gpu_counts import cheapest, cost
from moescale.serving.steady_state import LIMITS, Serving, infeasible_reason, serve
from moescale.serving.traffic import summarise
from moescale.typing import FloatArray
from random_models import models, perfect

A100, H100 = find_gpu("a100-sxm-40gb"), find_gpu("h100-sxm")
LATENCY = Roofline(A100)
PLAIN = Deployment(
    gpu=A100, usd_per_gpu_hour=2.0, prompt_tokens=230.0, output_tokens=203.0, max_num_seqs=math.inf, reserve_bytes=0.0
)
MOE = architecture(PAPER, 1.5e9, 16.0)
PERFECT = perfect()

given_deployments: Mapping[str, st.SearchStrategy[Any]] = {
    "gpu": st.sampled_from([gpus()[name] for name in ("a100-sxm-40gb", "h100-sxm", "l40s", "mi300x")]),
    "usd_per_gpu_hour": st.floats(0.01, 100),
    "prompt_tokens": st.one_of(st.floats(1, 1e5), st.floats(100, 3000)),
    "output_tokens": st.floats(1, 1e4),
    "max_num_seqs": st.one_of(st.none(), st.floats(1, 4096)),
    "memory_fraction": st.one_of(st.floats(0.7, 1), st.floats(0.01, 1)),
    "utilization": st.floats(0.01, 1),
    "reserve_bytes": st.one_of(st.floats(0, 3e9), st.floats(0, 2e11)),
    "expert_parallel": st.sampled_from([1.0, 1.0, 1.0, 1.0, 2.0, 4.0]),
    "replicas": st.sampled_from([1.0, 2.0, 5.0]),
    "scheduling": st.sampled_from(["separate", "chunked"]),
    "max_ttft_s": st.one_of(st.none(), st.floats(1e-4, 10), st.floats(0.02, 1)),
    "max_tpot_s": st.one_of(st.none(), st.floats(1e-4, 1), st.floats(0.005, 0.1)),
}
deployments = st.builds(Deployment, **given_deployments)
gpu_counts = st.sampled_from([1.0, 2.0, 3.0, 4.0, 8.0, 8.0, 8.0])


@dataclass(frozen=True)
class Straight(LatencySource):
    """Latencies to compute with by hand: a pass takes 0.1 s, and what its requests and prompts add."""

    name: str = "straight"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        seconds = np.asarray(0.1)
        if a.batch is not None:
            seconds = seconds + 1e-5 * np.asarray(a.batch) * a.context_tokens
        if a.prompts is not None:
            each = 1e-4 * np.asarray(a.prompt_tokens) + 1e-6 * np.square(a.prompt_tokens)
            seconds = seconds + np.asarray(a.prompts) * each
        return seconds


def figures(serving: Serving, index: tuple[int, ...] = ()) -> dict[str, float]:
    return {f.name: float(getattr(serving, f.name)[index]) for f in fields(serving)}


def test_a_request_waits_for_the_pass_under_way_and_its_own_prefill() -> None:
    served = serve(MOE, 2, Straight(), replace(PLAIN, max_num_seqs=20.3))
    own_s, decode_s = 0.1 + 1e-4 * 230 + 1e-6 * 230**2, 0.1 + 1e-5 * 20.3 * 331.5
    iteration_s = decode_s + 0.1 * own_s
    assert served.decode_s == pytest.approx(decode_s, rel=1e-12)
    assert served.prefill_s == pytest.approx(0.1 * own_s, rel=1e-12)
    assert served.iteration_s == served.prefill_s + served.decode_s
    # The 19.3 others start 19.3 / 203 prompts an iteration; a random moment meets a pass in proportion to its length.
    assert served.tpot_s == pytest.approx(decode_s + 19.3 / 203 * own_s, rel=1e-12)
    rest_s = (decode_s * decode_s / 2 + 0.1 * own_s * own_s / 2) / iteration_s
    assert served.ttft_s == pytest.approx(rest_s + own_s, rel=1e-12)


def test_chunked_prefill_mixes_whole_prompts_into_a_share_of_the_passes() -> None:
    served = serve(MOE, 2, Straight(), replace(PLAIN, max_num_seqs=20.3, scheduling="chunked"))
    decode_s, added_s = 0.1 + 1e-5 * 20.3 * 331.5, 1e-4 * 230 + 1e-6 * 230**2
    assert served.iteration_s == pytest.approx(decode_s + 0.1 * added_s, rel=1e-12)
    assert served.decode_s == pytest.approx(decode_s, rel=1e-12)
    assert served.prefill_s == pytest.approx(0.1 * added_s, rel=1e-12)
    assert served.tpot_s == pytest.approx(decode_s + 19.3 / 202 * added_s, rel=1e-12)
    rest_s = (0.9 * decode_s**2 + 0.1 * (decode_s + added_s) ** 2) / 2 / float(served.iteration_s)
    assert served.ttft_s == pytest.approx(rest_s + decode_s + added_s, rel=1e-12)


@pytest.mark.system
@given(models, gpu_counts, st.floats(1, 1e5), st.floats(1, 1e4), st.sampled_from(["separate", "chunked"]))
def test_times_and_throughput_are_those_of_a_closed_loop(
    model: Architecture, count: float, prompt: float, output: float, scheduling: str
) -> None:
    """c = X (TTFT + n TPOT), of which b are in service and the others wait for less than the longest pass."""
    place = replace(PLAIN, gpu=H100, prompt_tokens=prompt, output_tokens=output, scheduling=scheduling)
    served = serve(model, count, Roofline(H100), place)
    if served.infeasible:
        return
    decodes = output - 1.0 if scheduling == "chunked" else output
    requests_per_s = served.throughput_tok_s / output
    loop = requests_per_s * (served.ttft_s + decodes * served.tpot_s)
    longest_s = float(Roofline(H100).prefill_s(model, count, max(float(served.batch) / output, 1.0), prompt))
    longest_s += float(served.decode_s)
    assert served.batch * (1 - 1e-9) <= loop <= (served.batch + requests_per_s * longest_s) * (1 + 1e-9)
    assert served.decode_s <= served.tpot_s <= served.iteration_s * (1 + 1e-12)


def test_replicas_leave_the_cost_alone_and_the_reserve_takes_the_place_of_requests() -> None:
    one, five = (serve(MOE, 2, LATENCY, replace(PLAIN, replicas=r)) for r in (1.0, 5.0))
    assert five.throughput_tok_s == 5 * one.throughput_tok_s
    assert (five.usd_per_mtok, five.batch, five.gpus) == (one.usd_per_mtok, one.batch, one.gpus)
    record = cost(MOE, LATENCY, replace(PLAIN, replicas=5.0), gpus=2)
    assert (record.gpus, record.tensor_parallel, record.replicas) == (10, 2, 5)
    assert record.throughput_tok_s is not None
    # Dollars a second of the whole deployment, over its tokens a second.
    assert record.usd_per_mtok == pytest.approx(10 * 2.0 / 3600 / record.throughput_tok_s * 1e6, rel=1e-12)
    plain, reserved = (serve(MOE, 2, LATENCY, replace(PLAIN, reserve_bytes=r)) for r in (0.0, 3e9))
    request = kv_bytes_per_request(MOE, 230 + 203 / 2, 2.0, 2)
    assert plain.batch - reserved.batch == pytest.approx(3e9 / float(request), rel=1e-9)
    assert measured_reserve_bytes() == 1.5 * 2**30


def test_a_limit_on_time_per_token_is_met_exactly_where_it_binds_and_else_changes_nothing() -> None:
    free = serve(MOE, 2, Straight(), PLAIN)
    limit_s = 0.15
    held = serve(MOE, 2, Straight(), replace(PLAIN, max_tpot_s=limit_s))
    assert free.tpot_s > limit_s
    assert held.tpot_s == pytest.approx(limit_s, rel=1e-9)
    assert held.tpot_s <= limit_s
    assert LIMITS[int(held.limited_by)] == "latency"
    # 0.1 + 1e-5 b 331.5 + (b - 1) / 203 (0.1 + 0.023 + 0.0529) = 0.15
    assert held.batch == pytest.approx((0.05 + 0.1759 / 203) / (331.5e-5 + 0.1759 / 203), rel=1e-6)
    free = serve(MOE, 2, LATENCY, PLAIN)
    loose = serve(MOE, 2, LATENCY, replace(PLAIN, max_ttft_s=1e3, max_tpot_s=np.inf))
    assert figures(free) == figures(loose)


@pytest.mark.system
@given(models, gpu_counts, deployments, st.floats(0.1, 1))
def test_batch_and_throughput_shrink_with_tighter_limits(
    model: Architecture, count: float, deployment: Deployment, factor: float
) -> None:
    latency = Roofline(deployment.gpu)
    limits = {name: getattr(deployment, name) or 1.0 for name in ("max_ttft_s", "max_tpot_s")}
    loose = serve(model, count, latency, replace(deployment, **limits))
    tight = serve(model, count, latency, replace(deployment, **{name: factor * s for name, s in limits.items()}))
    assert tight.batch <= loose.batch * (1 + 1e-9)
    assert tight.infeasible >= loose.infeasible
    for served, scale in ((loose, 1.0), (tight, factor)):
        if served.infeasible == 0:
            assert served.tpot_s <= limits["max_tpot_s"] * scale * (1 + 1e-9)
            assert served.ttft_s <= limits["max_ttft_s"] * scale * (1 + 1e-9)


def test_a_trace_keeps_what_requests_hold_and_cost_and_one_of_equal_requests_is_the_mean_pair() -> None:
    p, n = np.array([100.0, 400.0, 1200.0]), np.array([300.0, 100.0, 50.0])
    deployment = with_traffic(replace(PLAIN, max_num_seqs=90.0), summarise(p, n))
    served = serve(MOE, 4, Straight(), deployment)
    starting = 90 / np.mean(n)
    own_s = float(np.mean(0.1 + 1e-4 * p + 1e-6 * p**2))
    held = np.sum(n * (p + n / 2)) / np.sum(n)
    assert served.decode_s == pytest.approx(0.1 + 1e-5 * 90 * held, rel=1e-12)
    assert served.prefill_s == pytest.approx(starting * own_s, rel=1e-9)
    chunked = serve(MOE, 4, Straight(), replace(deployment, scheduling="chunked"))
    assert chunked.iteration_s == pytest.approx(served.decode_s + starting * (own_s - 0.1), rel=1e-9)
    same = with_traffic(PLAIN, summarise(np.full(7, 230.0), np.full(7, 203.0)))
    for scheduling in ("separate", "chunked"):
        pair, trace = (figures(serve(MOE, 2, LATENCY, replace(d, scheduling=scheduling))) for d in (PLAIN, same))
        assert trace == pytest.approx(pair, rel=1e-12)


@pytest.mark.system
@given(models, gpu_counts, deployments)
def test_any_deployment_is_served_within_its_memory_or_costs_infinity(
    model: Architecture, count: float, deployment: Deployment
) -> None:
    d = deployment
    served = serve(model, count, Roofline(d.gpu), d)
    told = infeasible_reason(served, model, Roofline(d.gpu), d)
    assert served.weight_bytes >= 0
    assert served.kv_bytes_per_token >= 0
    if told is not None:
        assert (served.usd_per_mtok, served.batch, served.throughput_tok_s) == (np.inf, 0, 0)
        return
    found = figures(served)
    assert all(np.isfinite(value) and value >= 0 for value in found.values())
    assert found["batch"] >= 1 - 1e-12
    held = found["batch"] * float(
        kv_bytes_per_request(model, d.prompt_tokens + d.output_tokens / 2, d.kv_bytes_per_element, count)
    )
    used = float(weight_bytes_per_gpu(model, 2.0, count, d.expert_parallel)) + float(d.reserve_bytes) + held
    assert used <= float(d.memory_fraction) * d.gpu.memory_bytes * (1 + 1e-12)
    assert d.max_num_seqs is None or found["batch"] <= d.max_num_seqs
    perfect = serve(model, count, Roofline(d.gpu, constants=PERFECT), replace(d, max_ttft_s=None, max_tpot_s=None))
    assert found["throughput_tok_s"] <= perfect.throughput_tok_s * (1 + 1e-12)


@pytest.mark.system
@given(models, gpu_counts, deployments, st.floats(1, 10))
def test_cost_rises_with_price_and_falls_with_utilization_only(
    model: Architecture, count: float, deployment: Deployment, factor: float
) -> None:
    latency = Roofline(deployment.gpu)
    base = serve(model, count, latency, deployment)
    dearer = serve(model, count, latency, replace(deployment, usd_per_gpu_hour=deployment.usd_per_gpu_hour * factor))
    idler = serve(model, count, latency, replace(deployment, utilization=deployment.utilization / factor))
    for other in (dearer, idler):
        assert other.usd_per_mtok == pytest.approx(float(base.usd_per_mtok) * factor, rel=1e-12)
        assert (other.batch, other.throughput_tok_s) == (base.batch, base.throughput_tok_s)


ARRAYS = {name: given_deployments[name] for name in ARRAY_FIELDS if name in given_deployments}


@pytest.mark.system
@daily(10)  # of sixteen calls each
@given(st.data(), st.sampled_from(["separate", "chunked"]), st.booleans())
def test_a_call_with_arrays_of_everything_equals_the_scalar_calls(
    data: st.DataObject, scheduling: str, limited: bool
) -> None:
    entries = 4
    numbers: dict[str, FloatArray] = {}
    for name, values in ARRAYS.items():
        if name.startswith("max_") and not limited:
            continue
        some = data.draw(st.lists(values.filter(lambda v: v is not None), min_size=entries, max_size=entries))
        numbers[name] = np.asarray(some, dtype=np.float64)
    sizes = np.asarray(data.draw(st.lists(st.floats(1e8, 1e10), min_size=entries, max_size=entries)))
    counts = np.array([1.0, 4.0, 8.0])[:, None]
    deployment = Deployment(gpu=H100, scheduling=scheduling, **numbers)  # type: ignore[arg-type]
    latency = Roofline(H100)
    together = serve(architecture(PAPER, sizes, 8.0), counts, latency, deployment)
    assert together.batch.shape == (3, entries)
    best = cheapest(architecture(PAPER, sizes, 8.0), latency, replace(deployment, max_gpus=2))
    for i in range(entries):
        alone = replace(deployment, **{name: float(values[i]) for name, values in numbers.items()})
        for g in range(3):
            single = serve(architecture(PAPER, float(sizes[i]), 8.0), float(counts[g, 0]), latency, alone)
            assert figures(together, (g, i)) == pytest.approx(figures(single), rel=1e-9, nan_ok=True)
        single = cheapest(architecture(PAPER, float(sizes[i]), 8.0), latency, replace(alone, max_gpus=2))
        assert figures(best, (i,)) == pytest.approx(figures(single), rel=1e-9, nan_ok=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reserve_bytes": -1.0}, "reserve_bytes must be finite and not negative, not -1"),
        ({"expert_parallel": 1.5}, "expert_parallel must be a whole number of at least 1, not 1.5"),
        ({"replicas": 0.0}, "replicas must be a whole number of at least 1, not 0"),
        ({"replicas": np.array([1.0, 2.5])}, "replicas must be a whole number of at least 1, not 2.5"),
        ({"scheduling": "both"}, "unknown scheduling 'both'"),
        ({"batching": "all"}, "unknown batching 'all'"),
        ({"max_tpot_s": 0.0}, "max_tpot_s must be positive"),
        ({"max_ttft_s": np.nan}, "max_ttft_s must be positive, not nan"),
        ({"memory_fraction": np.array([0.5, 1.5])}, "memory_fraction must be above 0 and at most 1, not 1.5"),
        ({"context_tokens": 500.0}, "longest_request_tokens"),
        *(
            ({name: value}, name)
            for name, value in (
                ("usd_per_gpu_hour", 0.0), ("usd_per_gpu_hour", np.nan), ("prompt_tokens", 0.0), ("output_tokens", np.inf),
                ("max_num_seqs", 0.5), ("utilization", 0.0), ("weight_bytes_per_param", -1.0),
            )
        ),
        *(({"max_gpus": count}, "max_gpus") for count in (0, 2.5, 10**9)),
    ],
)  # fmt: skip
def test_impossible_deployments_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        serve(MOE, 1, LATENCY, replace(PLAIN, **changes))


# Groups of attention, searched where one group would hold its cache more than once.


@pytest.mark.parametrize(
    ("name", "ways"), [("deepseek-v2-lite", 1), ("qwen3-30b-a3b", 4), ("olmoe-1b-7b", 16), ("llama-3.1-8b", math.inf)]
)
@pytest.mark.parametrize("max_tpot_s", [None, 0.03])
def test_groups_are_searched_where_the_cache_would_be_held_twice(
    name: str, ways: float, max_tpot_s: float | None
) -> None:
    model, gpu = shapes()[name], H100
    d = Deployment(gpu=gpu, usd_per_gpu_hour=3.0, prompt_tokens=1000.0, output_tokens=500.0, max_gpus=8)
    d = replace(d, max_tpot_s=max_tpot_s, searches_groups=True)
    source = Roofline(gpu)
    found = cost(model, source, d)
    looked_at = {(c.gpus, c.attention_dp or 1) for c in found.candidates or ()}
    groups = {(n, int(n / ways)) for n in (1, 2, 4, 8) if n > ways}
    assert looked_at == {(n, 1) for n in (1, 2, 4, 8)} | groups
    stated = [replace(d, searches_groups=False)]
    stated += [
        replace(d, attention_dp=float(g), expert_parallel=math.inf, tensor_parallel_degrees=(n,), searches_groups=False)
        for n, g in groups
    ]
    prices = [float(cheapest(model, source, one, every=True).usd_per_mtok) for one in stated]
    assert found.usd_per_mtok == pytest.approx(min(prices), rel=1e-12)
    searched = cheapest(model, source, d, every=True)
    assert float(searched.usd_per_mtok) == pytest.approx(found.usd_per_mtok, rel=1e-12)
    assert (int(searched.gpus), int(searched.attention_dp)) == (found.gpus, found.attention_dp or 1)


@pytest.mark.parametrize(
    ("limits", "which", "words"),
    [
        ({"max_tpot_s": 0.01}, "max_tpot", "TPOT limit"),
        ({"max_ttft_s": 0.02}, "max_ttft", "TTFT limit"),
        ({"max_tpot_s": 0.01, "max_ttft_s": 10.0}, "max_tpot", "TPOT limit"),
        ({"max_tpot_s": 10.0, "max_ttft_s": 0.02}, "max_ttft", "TTFT limit"),
        ({"max_tpot_s": 10.0, "max_ttft_s": 20.0}, None, "memory"),
    ],
)
def test_cost_says_which_latency_limit_binds(limits: dict[str, float], which: str | None, words: str) -> None:
    found = cost(MOE, Roofline(H100), replace(PLAIN, gpu=H100, **limits), 1)
    assert (found.latency_limit, found.limited_by) == (which, "latency" if which else "memory")
    if which is not None:
        assert {"max_tpot": found.tpot_s, "max_ttft": found.ttft_s}[which] == pytest.approx(
            limits[f"{which}_s"], rel=1e-6
        )
    options = [f"--{name[:-2].replace('_', '-')}={value}" for name, value in limits.items()]
    model = ("--n-params", "1.5B", "--experts", 16, "--latency", "roofline", "--gpu", "h100-sxm", "--gpus", 1)
    code, out, _ = run("cost", *model, *options, "--reserve", 0, "--max-num-seqs", "none")
    assert code == 0
    assert out.splitlines()[-1].removesuffix("<- cheapest").strip().endswith(words)

"""The simulated server: what every run conserves, where it must agree with the plateau, how exact its prices are."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import Gpu, find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.published import shapes
from moescale.serving.deployment import Deployment
from moescale.serving.host import NO_OVERHEAD, HostOverhead, default_overhead
from moescale.serving.simulator import (
    Arrivals,
    Run,
    _Limits,
    _price,
    _Scheduler,
    arrival_times_s,
    default_max_num_batched_tokens,
    simulate,
)
from moescale.serving.steady_state import serve
from moescale.typing import FloatArray, Real

MODEL = Architecture(
    n_layers=8, d_model=512, n_heads=8, n_kv_heads=8, head_dim=64, d_ffn=2048, vocab_size=0.0, name="small"
)
GPU = find_gpu("a100-sxm-40gb")


@dataclass(frozen=True)
class Lines:
    """Passes that are exactly: weights or arithmetic, whichever is longer, and the reading of the cache."""

    weights_s: float = 2e-3
    token_s: float = 1e-5
    cache_s: float = 1e-8  # per cached token
    mixes: bool = True
    most_batch: float = math.inf

    name = "lines"

    def _pass_s(self, tokens: Real, cached: Real) -> FloatArray:
        work = np.maximum(self.weights_s, self.token_s * np.asarray(tokens, dtype=np.float64))
        return work + self.cache_s * np.asarray(cached)

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        return self._pass_s(np.asarray(batch) * prompt_tokens, 0.0)

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        seconds = self._pass_s(batch, np.asarray(batch) * context_tokens)
        return np.where(np.asarray(batch) > self.most_batch, math.nan, seconds)

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:
        seconds = self._pass_s(batch + np.asarray(prompts) * prompt_tokens, np.asarray(batch) * context_tokens)
        return seconds if self.mixes else np.full_like(seconds, math.nan)


def deployment(**changes: Real | Gpu | None) -> Deployment:
    base = Deployment(
        gpu=GPU, usd_per_gpu_hour=3.6, prompt_tokens=100, output_tokens=20, max_num_seqs=64, reserve_bytes=0.0
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def small_memory(requests: float) -> float:
    """The memory fraction that leaves cache for so many requests of 120 tokens."""
    weights = 8 * (4 * 512 * 512 + 3 * 512 * 2048 + 2 * 512) + 512
    cache = 2 * 8 * 8 * 64 * 2 * 120 * requests
    return (2 * weights + cache) / GPU.memory_bytes


runs = st.fixed_dictionaries(
    {
        "n": st.integers(1, 40),
        "rate": st.one_of(st.just(math.inf), st.floats(0.5, 2000.0)),
        "burstiness": st.floats(0.2, 4.0),
        "seed": st.integers(0, 5),
        "seqs": st.integers(1, 48),
        "budget": st.integers(16, 600),
        "room": st.floats(1.3, 30.0),  # requests that the cache holds
        "chunked": st.booleans(),
    }
)


def a_run(case: dict[str, float], overhead: HostOverhead = NO_OVERHEAD) -> tuple[Run, FloatArray, FloatArray]:
    n = int(case["n"])
    rng = np.random.default_rng(int(case["seed"]))
    prompt, output = rng.integers(1, 101, n).astype(float), rng.integers(1, 41, n).astype(float)
    budget = int(case["budget"]) if case["chunked"] else max(int(case["budget"]), 101)
    run = simulate(
        MODEL,
        Lines(),
        deployment(max_num_seqs=case["seqs"], memory_fraction=small_memory(case["room"])),
        1,
        Arrivals(n_requests=n, requests_per_s=case["rate"], burstiness=case["burstiness"], seed=int(case["seed"])),
        prompt_tokens=prompt,
        output_tokens=output,
        max_num_batched_tokens=budget,
        chunked_prefill=bool(case["chunked"]),
        overhead=overhead,
    )
    return run, prompt, output


@pytest.mark.system
@settings(max_examples=150, deadline=None)
@given(case=runs)
def test_every_token_is_produced_once_within_every_limit(case: dict[str, float]) -> None:
    run, prompt, output = a_run(case)
    assert np.array_equal(run.output_tokens, output)
    assert run.peak_running <= case["seqs"]
    assert run.peak_kv_bytes <= run.kv_bytes_available
    assert np.all(run.ttft_s > 0)
    assert np.all(run.e2e_s >= run.ttft_s)
    assert np.all(np.isnan(run.tpot_s) == (output == 1))
    # No pass is shorter than a reading of the weights, none gives more than one token to a request.
    assert run.makespan_s >= Lines().weights_s * np.max(output)
    assert run.makespan_s >= Lines().token_s * np.sum(prompt + output - 1) * (1 - 1e-9)
    assert run.output_tok_s <= run.peak_running / Lines().weights_s
    assert run.mean_running <= run.peak_running * (1 + 1e-9)
    assert run.output_tok_s * run.makespan_s == pytest.approx(np.sum(output))
    assert run.usd_per_mtok == pytest.approx(3.6 / 3600 / run.output_tok_s * 1e6)


@pytest.mark.system
@settings(max_examples=60, deadline=None)
@given(case=runs)
def test_the_host_never_makes_a_run_shorter(case: dict[str, float]) -> None:
    bare, _, _ = a_run(case)
    hidden, _, _ = a_run(case, replace(default_overhead(), asynchronous=True))
    exposed, _, _ = a_run(case, default_overhead())
    # A different clock lets arrivals meet other passes, and share them: spaced ones may then end sooner (4 requests at 18.5 a
    # second, burstiness 4, seed 2, two at a time: by 0.2%). What arrives at once is ordered, and what is served one by one.
    if math.isinf(case["rate"]) or case["seqs"] == 1:
        assert bare.makespan_s < hidden.makespan_s
    if math.isinf(case["rate"]):
        assert hidden.makespan_s <= exposed.makespan_s + bare.n_passes * default_overhead().gap_s


def test_a_run_is_the_same_every_time_and_another_with_another_seed() -> None:
    arrivals = Arrivals(n_requests=60, requests_per_s=50.0, seed=3)
    first, again = (simulate(MODEL, Lines(), deployment(), 1, arrivals) for _ in range(2))
    other = simulate(MODEL, Lines(), deployment(), 1, replace(arrivals, seed=4))
    assert first.to_dict() == again.to_dict()
    assert first.makespan_s != other.makespan_s


def test_one_request_takes_its_prefill_and_its_decodes() -> None:
    source = Lines(token_s=1e-4)
    run = simulate(MODEL, source, deployment(), 1, Arrivals(n_requests=1), overhead=NO_OVERHEAD)
    decodes = [source.weights_s + source.cache_s * context for context in range(100, 119)]
    assert run.n_passes == 20
    assert run.ttft_s[0] == pytest.approx(100 * 1e-4, rel=1e-9)
    assert run.e2e_s[0] == pytest.approx(100 * 1e-4 + sum(decodes), rel=1e-9)
    assert run.tpot_s[0] == pytest.approx(sum(decodes) / 19, rel=1e-9)


def test_a_long_prompt_is_computed_in_chunks_beside_the_decodes() -> None:
    # The first request decodes while the second one's 100 tokens take passes of 49 (64 with nothing else to do).
    arguments = {"max_num_batched_tokens": 50, "overhead": NO_OVERHEAD}
    run = simulate(
        MODEL, Lines(), deployment(), 1, Arrivals(n_requests=2), prompt_tokens=np.array([50.0, 100.0]), **arguments
    )
    # Pass 1: the first prompt. Passes 2 to 4: 49, 49 and 2 tokens of the second.
    assert run.ttft_s / Lines().weights_s == pytest.approx([1.0, 4.0], rel=2e-3)
    whole = simulate(
        MODEL, Lines(), deployment(), 1, Arrivals(n_requests=2), chunked_prefill=False,
        prompt_tokens=np.array([50.0, 100.0]), max_num_batched_tokens=100, overhead=NO_OVERHEAD,
    )  # fmt: skip
    assert (
        whole.n_passes == 40
    )  # 100 tokens fit into no pass beside a decode: the second waits for the first's 20 passes


def test_a_full_cache_evicts_the_latest_request_and_computes_it_again() -> None:
    tight = simulate(
        MODEL, Lines(), deployment(memory_fraction=small_memory(2.0), output_tokens=40), 1, Arrivals(n_requests=3),
        overhead=NO_OVERHEAD,
    )  # fmt: skip
    roomy = simulate(MODEL, Lines(), deployment(output_tokens=40), 1, Arrivals(n_requests=3), overhead=NO_OVERHEAD)
    assert roomy.n_preemptions == 0
    assert tight.n_preemptions >= 1
    assert tight.makespan_s > roomy.makespan_s
    assert np.array_equal(tight.output_tokens, roomy.output_tokens)


@pytest.mark.system
def test_throughput_grows_with_the_rate_and_then_stays() -> None:
    rates = [1.0, 5.0, 20.0, 80.0, 320.0, 2000.0]
    answers = [
        simulate(MODEL, Lines(), deployment(), 1, Arrivals(n_requests=300, requests_per_s=rate, seed=1))
        for rate in rates
    ]
    throughput = [run.output_tok_s for run in answers]
    assert all(a < b * 1.01 for a, b in itertools.pairwise(throughput))
    assert throughput[0] == pytest.approx(20.0, rel=0.02)  # 20 tokens a second are asked for
    dollars = [run.usd_per_mtok for run in answers]
    assert dollars[0] > 20 * dollars[-1]


@pytest.mark.system
@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize(("seqs", "prompt", "output"), [(64, 100, 100), (48, 400, 50), (200, 50, 300)])
def test_an_endless_stream_comes_to_the_plateau_of_serving(seqs: int, prompt: int, output: int, mixes: bool) -> None:
    """Separate passes: the plateau within 4%, the same weights being read. Mixed passes read them once: never slower."""
    source = Lines(token_s=3e-5, mixes=mixes)
    place = deployment(max_num_seqs=seqs, prompt_tokens=prompt, output_tokens=output)
    plateau = float(serve(MODEL, 1, source, place).throughput_tok_s)
    n = 40 * seqs
    # Arrivals about as fast as they are served keep the requests out of step with each other.
    arrivals = Arrivals(n_requests=n, requests_per_s=1.1 * plateau / output, seed=2)
    run = simulate(MODEL, source, place, 1, arrivals, max_num_batched_tokens=8192, overhead=NO_OVERHEAD)
    if mixes:
        assert 0.96 * plateau <= run.output_tok_s
    else:
        assert run.output_tok_s == pytest.approx(plateau, rel=0.04)


@pytest.mark.system
@pytest.mark.parametrize("source", [Lines(), Roofline(find_gpu("h100-sxm")), Roofline(find_gpu("a100-pcie-80gb"))])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_interpolated_prices_are_within_one_percent(source: Lines | Roofline, name: str) -> None:
    """One pass of a run against the source itself, at random batches, contexts and chunks."""
    model = shapes()[name]
    rng = np.random.default_rng(0)
    limits = _Limits(1024, 8192, True, np.zeros(0), 0.0)
    prices = _price(model, source, 1, 1.0, 1024, _Scheduler(np.full(1024, 512), np.full(1024, 256), limits))  # type: ignore[arg-type]
    for batch in np.unique(np.exp(rng.uniform(0, math.log(1024), 150)).astype(int)):
        contexts = rng.uniform(512, 767, 4)
        exact = source.decode_s(model, 1, float(batch), contexts)
        assert prices.decode_s(int(batch), contexts) == pytest.approx(exact, rel=0.01)
        if hasattr(source, "mixed_s"):
            for chunk in np.exp(rng.uniform(0, math.log(8192), 4)).astype(int):
                one = float(source.mixed_s(model, 1, float(batch), float(contexts[0]), chunk / 512, 512.0))
                assert prices.mixed_s(int(batch), float(contexts[0]), int(chunk)) == pytest.approx(one, rel=0.01)


@pytest.mark.system
@pytest.mark.parametrize("rate", [10.0, 40.0, math.inf])
def test_a_finer_grid_of_prices_gives_the_same_run(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = find_gpu("h100-sxm")
    place = deployment(gpu=gpu, prompt_tokens=512, output_tokens=64, max_num_seqs=1024)

    def run() -> Run:
        arrivals = Arrivals(n_requests=200, requests_per_s=rate)
        return simulate(shapes()["llama-3.1-8b"], Roofline(gpu), place, 1, arrivals)

    coarse = run()
    monkeypatch.setattr("moescale.serving.simulator._RATIO", 1.002)
    fine = run()
    assert coarse.output_tok_s == pytest.approx(fine.output_tok_s, rel=0.003)
    assert np.median(coarse.tpot_s) == pytest.approx(np.median(fine.tpot_s), rel=0.005)
    assert np.median(coarse.ttft_s) == pytest.approx(np.median(fine.ttft_s), rel=0.01)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_have_the_mean_and_the_spread_that_were_asked_for(burstiness: float) -> None:
    times = arrival_times_s(Arrivals(n_requests=20000, requests_per_s=7.0, burstiness=burstiness, seed=1))
    intervals = np.diff(times)
    assert times[-1] == pytest.approx(20000 / 7)
    assert np.all(intervals >= 0)
    assert np.var(intervals) == pytest.approx(1 / 49 / burstiness, rel=0.1)


def test_the_front_end_bounds_the_tokens_a_second() -> None:
    slow = replace(NO_OVERHEAD, front_end_s_per_token=1e-3)
    run = simulate(MODEL, Lines(), deployment(), 1, Arrivals(n_requests=64), overhead=slow)
    assert run.output_tok_s == pytest.approx(1000.0, rel=0.02)
    assert run.output_tok_s <= 1000.0


def test_defaults_are_those_of_the_catalogue() -> None:
    assert default_max_num_batched_tokens(find_gpu("h100-sxm")) == 8192
    assert default_max_num_batched_tokens(find_gpu("a100-sxm-80gb")) == 2048
    overhead = default_overhead()
    assert not overhead.asynchronous
    kernels = np.array([1e-4, 20e-3])
    # 256 sequences keep the host busy for 1.4 ms + 256 x 21 us.
    assert overhead.pass_s(kernels, 256) == pytest.approx([6.876e-3, 26.776e-3])
    assert replace(overhead, asynchronous=True).pass_s(kernels, 256) == pytest.approx([6.776e-3 + 1.7e-4, 20.17e-3])


def test_the_record_is_json() -> None:
    run = simulate(MODEL, Lines(), deployment(output_tokens=1), 1, Arrivals(n_requests=5))
    record = json.loads(json.dumps(run.to_dict(), allow_nan=False))
    assert "tpot_s" not in record  # one token has no later ones
    assert record["ttft_s"]["p50"] == pytest.approx(float(np.median(run.ttft_s)))
    assert record["output_tok_s"] == run.output_tok_s


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_requests", 0), ("requests_per_s", 0.0), ("requests_per_s", math.nan), ("burstiness", -1.0), ("seed", -1)],
)
def test_impossible_arrivals_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InputError, match=f"arrivals: {name} must be"):
        Arrivals(**({"n_requests": 5} | {name: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gpus": 0}, "gpus"),
        ({"prompt_tokens": 0.5}, "prompt_tokens"),
        ({"prompt_tokens": math.nan}, "prompt_tokens"),
        ({"output_tokens": np.ones(3)}, "one for each of 5 requests"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens"),
        ({"max_num_batched_tokens": 50, "chunked_prefill": False}, "exceeds max_num_batched_tokens"),
        ({"deployment": deployment(memory_fraction=np.array([0.5, 0.9]))}, "one deployment"),
        ({"model": replace(MODEL, d_model=np.array([512.0, 1024.0]))}, "one model"),
    ],
)
def test_bad_input_is_refused_by_name(changes: dict[str, object], said: str) -> None:
    arguments: dict[str, object] = {
        "model": MODEL, "latency": Lines(), "deployment": deployment(), "gpus": 1, "arrivals": Arrivals(n_requests=5),
    }  # fmt: skip
    with pytest.raises(InputError, match=said):
        simulate(**(arguments | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "source", "said"),
    [
        (deployment(memory_fraction=1e-4), Lines(), "weights take"),
        (deployment(memory_fraction=small_memory(0.9)), Lines(), "one request of 120 tokens"),
        (deployment(), Lines(most_batch=10), "no answer for a pass"),
    ],
)
def test_what_cannot_be_served_is_infeasible(place: Deployment, source: Lines, said: str) -> None:
    with pytest.raises(InfeasibleError, match=said):
        simulate(MODEL, source, place, 1, Arrivals(n_requests=64))

"""Closed loops: the formula against the simulator, Little's law, one client and more clients than a server holds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.published import shapes
from moescale.serving.closed_loop import REQUEST_S, ROUNDS, ClosedLoop, closed_loop
from moescale.serving.deployment import Deployment
from moescale.serving.host import NO_OVERHEAD
from moescale.serving.simulator import Arrivals, Run, simulate
from moescale.serving.steady_state import serve
from test_simulator import MODEL, Lines, deployment

LENGTHS = [(1000, 100), (100, 300), (4000, 128), (1000, 1000), (200, 40)]


def simulated(
    source: Lines | Roofline, place: Deployment, clients: int, request_s: float, model: object = MODEL, seed: int = 0
) -> Run:
    """The benchmark of the formula: ROUNDS requests a client, lengths uniform in 0.8 to 1.0 of 1 / 0.9 of their means."""
    n, rng = ROUNDS * clients, np.random.default_rng(seed)

    def lengths(mean: float) -> np.ndarray:
        return np.maximum(np.round(mean / 0.9 * rng.uniform(0.8, 1.0, n)), 1.0)

    prompt, output = lengths(float(place.prompt_tokens)), lengths(float(place.output_tokens))
    arrivals = Arrivals(n_requests=n, clients=clients, request_s=request_s)
    options = {"prompt_tokens": prompt, "output_tokens": output, "overhead": NO_OVERHEAD}
    return simulate(model, source, place, 1, arrivals, **options)  # type: ignore[arg-type]


def place(prompt: int, output: int, budget: int, **changes: float | str) -> Deployment:
    base = deployment(max_num_seqs=256.0, prompt_tokens=float(prompt), output_tokens=float(output))
    return replace(base, scheduling="chunked", max_num_batched_tokens=float(budget), **changes)  # type: ignore[arg-type]


@pytest.mark.system
@pytest.mark.parametrize("token_s", [1e-5, 6e-5])
@pytest.mark.parametrize("budget", [2048, 8192])
def test_the_formula_is_the_simulated_loop_whatever_the_kernels_take(token_s: float, budget: int) -> None:
    """First tokens within 30% (25% but for one of 160), 7% on average; times per token and requests within 16%.

    Where 64 clients share a kernel that is bound by arithmetic from the first token on, passes follow each other's bursts.
    """
    source, logs = Lines(weights_s=8e-3, token_s=token_s, cache_s=2e-8), list[float]()
    for prompt, output in LENGTHS:
        for clients in (1, 4, 16, 64):
            for request_s in (0.0, REQUEST_S):
                server = place(prompt, output, budget)
                run = simulated(source, server, clients, request_s)
                loop = closed_loop(MODEL, 1, source, server, clients, request_s=request_s)
                logs.append(math.log(float(loop.ttft_s) / float(np.mean(run.ttft_s))))
                assert abs(logs[-1]) < math.log(1.3), (prompt, output, clients, request_s)
                assert float(loop.tpot_s) == pytest.approx(float(np.nanmean(run.tpot_s)), rel=0.16)
                assert float(loop.e2e_s) == pytest.approx(float(np.mean(run.e2e_s)), rel=0.16)
    assert abs(np.mean(logs)) < 0.07


@pytest.mark.system
def test_separate_passes_are_the_simulated_ones_without_the_decode_that_rides_along() -> None:
    """Within 30% and 7% on average: the simulator adds a decode to every pass of prompts, and splits those beyond the budget."""
    source, logs = Lines(weights_s=8e-3, token_s=3e-5, cache_s=2e-8, mixes=False), list[float]()
    for prompt, output in (pair for pair in LENGTHS if pair[0] <= 2048):
        for clients in (4, 16, 64):
            server = replace(place(prompt, output, 2048), scheduling="separate")
            run, loop = (
                simulated(source, server, clients, REQUEST_S),
                closed_loop(MODEL, 1, source, server, clients),
            )
            decode_s = float(source.decode_s(MODEL, 1, float(loop.batch), prompt + output / 2))
            logs.append(math.log((float(loop.ttft_s) + decode_s) / float(np.mean(run.ttft_s))))
            assert abs(logs[-1]) < math.log(1.3), (prompt, output, clients)
    assert abs(np.mean(logs)) < 0.07


@pytest.mark.system
@pytest.mark.parametrize("clients", [2, 16, 64])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b"])
def test_a_loop_on_the_roofline_is_the_simulated_one(name: str, clients: int) -> None:
    gpu = find_gpu("h200-sxm")
    server, source = replace(place(1024, 256, 8192), gpu=gpu), Roofline(gpu)
    run = simulated(source, server, clients, REQUEST_S, shapes()[name])
    loop = closed_loop(shapes()[name], 1, source, server, clients)
    assert float(loop.ttft_s) == pytest.approx(float(np.mean(run.ttft_s)), rel=0.2)
    assert float(loop.plateau_ttft_s) == pytest.approx(float(np.mean(run.ttft_s[clients:])), rel=0.25)
    assert float(loop.tpot_s) == pytest.approx(float(np.mean(run.tpot_s)), rel=0.1)


@pytest.mark.system
def test_clients_beyond_what_is_held_wait_for_a_place() -> None:
    source, server = Lines(weights_s=8e-3), place(500, 200, 8192, max_num_seqs=16.0)
    for clients in (32, 64, 128):
        run = simulated(source, server, clients, 0.0)
        loop = closed_loop(MODEL, 1, source, server, clients, request_s=0.0)
        assert float(loop.batch) == 16.0
        assert float(loop.ttft_s) == pytest.approx(float(np.mean(run.ttft_s)), rel=0.12)
        assert float(loop.tpot_s) == pytest.approx(float(np.nanmean(run.tpot_s)), rel=0.1)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.floats(1.0, 1e4),
    prompt=st.integers(1, 20_000),
    output=st.integers(1, 4000),
    budget=st.integers(256, 16_384),
    chunked=st.booleans(),
)
def test_little_s_law_holds(clients: float, prompt: int, output: int, budget: int, chunked: bool) -> None:
    server = place(prompt, output, budget)
    server = replace(server, scheduling="chunked" if chunked else "separate")
    loop = closed_loop(MODEL, 1, Lines(), server, clients)
    requests_per_s = float(loop.output_tok_s) / output
    after = float(loop.plateau_ttft_s) + (output - 1) * float(loop.tpot_s)  # beyond the burst of the first requests
    assert requests_per_s * after == pytest.approx(clients)
    assert float(loop.e2e_s) == pytest.approx(float(loop.ttft_s) + (output - 1) * float(loop.tpot_s))
    assert 1.0 <= float(loop.batch) <= min(clients, 256.0) * (1 + 1e-12)
    assert float(loop.ttft_s) >= REQUEST_S


def test_one_client_meets_nobody() -> None:
    server = replace(place(1000, 100, 8192), scheduling="separate")
    loop, alone = closed_loop(MODEL, 1, Lines(), server, 1), serve(MODEL, 1, Lines(), replace(server, max_num_seqs=1.0))
    assert float(loop.ttft_s) == pytest.approx(REQUEST_S + float(alone.ttft_s))
    assert float(loop.plateau_ttft_s) == pytest.approx(float(loop.ttft_s))
    assert float(loop.tpot_s) == pytest.approx(float(alone.tpot_s))


def test_very_many_clients_get_the_plateau_and_share_it() -> None:
    server = place(500, 200, 8192, max_num_seqs=32.0)
    plateau = serve(MODEL, 1, Lines(), replace(server, batching="largest"))
    clients = np.asarray([1e3, 1e4, 1e5])
    loop = closed_loop(MODEL, 1, Lines(), server, clients, rounds=10_000)
    assert np.allclose(loop.output_tok_s, float(plateau.throughput_tok_s), rtol=0.1)
    assert np.all(
        np.diff(loop.plateau_ttft_s) / np.diff(clients) == pytest.approx(200 / loop.output_tok_s[-1], rel=0.02)
    )


@settings(max_examples=60, deadline=None)
@given(prompt=st.integers(1, 10_000), output=st.integers(16, 2000), chunked=st.booleans())
def test_more_clients_are_never_served_less_nor_each_faster(prompt: int, output: int, chunked: bool) -> None:
    """Within 5%, by which rounds of a few clients are off; with a handful of output tokens by more."""
    server = replace(place(prompt, output, 8192), scheduling="chunked" if chunked else "separate")
    loop = closed_loop(MODEL, 1, Lines(), server, np.round(np.geomspace(1.0, 1000.0, 13)))
    assert np.all(np.diff(loop.e2e_s) > -0.05 * loop.e2e_s[1:])
    assert np.all(np.diff(loop.output_tok_s) > -0.05 * loop.output_tok_s[1:])


def test_arrays_answer_as_their_entries_do() -> None:
    server, clients = place(1000, 100, 8192), np.asarray([1.0, 7.0, 300.0])
    prompts = np.asarray([[100.0], [3000.0]])
    loops = closed_loop(MODEL, np.asarray([1.0, 2.0, 4.0]), Lines(), replace(server, prompt_tokens=prompts), clients)
    assert loops.ttft_s.shape == (2, 3)
    one = closed_loop(MODEL, 2, Lines(), replace(server, prompt_tokens=3000.0), 7)
    for name in ("ttft_s", "tpot_s", "e2e_s", "output_tok_s", "batch", "plateau_ttft_s"):
        assert float(getattr(loops, name)[1, 1]) == pytest.approx(float(getattr(one, name)))


def test_replicas_share_the_clients() -> None:
    server = place(1000, 100, 8192)
    one: ClosedLoop = closed_loop(MODEL, 1, Lines(), server, 8)
    four = closed_loop(MODEL, 1, Lines(), replace(server, replicas=4.0), 32)
    assert float(four.ttft_s) == pytest.approx(float(one.ttft_s))
    assert float(four.output_tok_s) == pytest.approx(4 * float(one.output_tok_s))


def test_what_is_not_served_has_no_figures() -> None:
    loop = closed_loop(MODEL, np.asarray([1.0, 3.0]), Lines(), place(1000, 100, 8192), 4)
    assert np.isfinite(loop.ttft_s[0])
    assert np.isnan(loop.ttft_s[1])  # three GPUs cannot share eight heads
    assert np.isnan(loop.output_tok_s[1])


def test_less_than_a_client_is_refused() -> None:
    with pytest.raises(InputError, match="clients must be at least 1"):
        closed_loop(MODEL, 1, Lines(), place(10, 10, 512), 0.5)
    with pytest.raises(InputError, match="set the rate themselves"):
        Arrivals(n_requests=10, clients=2, requests_per_s=3.0)


def test_a_simulated_client_waits_for_its_answer() -> None:
    run = simulated(Lines(), place(100, 20, 512), 4, 0.01)
    ends = run.arrival_s + run.e2e_s
    assert np.all(run.arrival_s[:4] == 0.0)
    assert run.peak_running <= 4
    for at in run.arrival_s[4:]:
        assert np.min(np.abs(ends - at)) < 1e-9  # sent when another was answered
        assert np.sum((run.arrival_s <= at) & (ends > at + 1e-9)) <= 4
    assert np.all(run.ttft_s >= 0.01)

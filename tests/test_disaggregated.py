"""Prefill and decode on GPUs of their own."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import run
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.published import find_shape
from moescale.serving.deployment import Deployment
from moescale.serving.disaggregated import Disaggregated, disaggregated
from moescale.serving.steady_state import Servers

H100 = find_gpu("h100-sxm")
LLAMA = find_shape("llama-3.1-70b").architecture
SOURCE = Roofline(H100, 1.0)
SERVED = Deployment(
    gpu=H100, usd_per_gpu_hour=2.0, prompt_tokens=2000, output_tokens=500, weight_bytes_per_param=1.0, max_num_seqs=256
)


def check_arithmetic(found: Disaggregated, d: Deployment) -> None:
    """What holds by definition of the figures."""
    assert found.gpus == found.prefill.gpus + found.decode.gpus
    for pool in (found.prefill, found.decode):
        assert pool.gpus == pool.workers * pool.gpus_per_worker
        assert 0.0 < pool.busy <= 1.0 + 1e-9
    assert max(found.prefill.busy, found.decode.busy) == pytest.approx(1.0)
    assert found.throughput_tok_s == pytest.approx(found.requests_per_s * float(np.asarray(d.output_tokens)))
    usd_per_s = found.gpus * float(np.asarray(d.usd_per_gpu_hour)) / 3600
    assert found.usd_per_mtok == pytest.approx(usd_per_s / found.throughput_tok_s * 1e6)
    # Little's law: those that decode are what comes in, times the passes of a request.
    in_service = found.decode.batch * found.decode.workers
    assert in_service == pytest.approx(found.requests_per_s * 499 * found.tpot_s, rel=0.02)


def test_figures_follow_from_the_workers_passes() -> None:
    found = disaggregated(LLAMA, SOURCE, SERVED, prefill_gpus=4, decode_gpus=8)
    assert (found.prefill.gpus, found.decode.gpus) == (4, 8)
    check_arithmetic(found, SERVED)
    worker = Servers(LLAMA, np.asarray(float(found.prefill.gpus_per_worker)), SOURCE, SERVED)
    q = found.prefill.batch
    pass_s = float(worker.prompt_pass_s(np.asarray(q)))
    assert found.prefill.pass_s == pytest.approx(pass_s)
    assert found.ttft_s == pytest.approx(pass_s * (1 + (q - 1) / (2 * q)) + found.transfer_s)
    decoding = Servers(LLAMA, np.asarray(float(found.decode.gpus_per_worker)), SOURCE, SERVED)
    assert found.tpot_s == pytest.approx(float(decoding.decode_pass_s(np.asarray(found.decode.batch))))


def test_the_search_finds_what_enumeration_finds() -> None:
    searched = disaggregated(LLAMA, SOURCE, SERVED)
    check_arithmetic(searched, SERVED)
    enumerated = [
        disaggregated(LLAMA, SOURCE, SERVED, prefill_gpus=p, decode_gpus=d).usd_per_mtok
        for p in range(1, 9)
        for d in range(1, 17)
        if _is_served(p, d)
    ]
    assert searched.usd_per_mtok <= min(enumerated) * 1.011


def _is_served(prefill_gpus: int, decode_gpus: int) -> bool:
    try:
        disaggregated(LLAMA, SOURCE, SERVED, prefill_gpus=prefill_gpus, decode_gpus=decode_gpus)
    except InfeasibleError:
        return False
    return True


@settings(max_examples=15, deadline=None)
@given(
    prompt=st.floats(100, 20_000), output=st.floats(20, 4000), tpot_s=st.floats(0.02, 0.2), ttft_s=st.floats(1.0, 20.0)
)
def test_limits_hold_and_cost_dollars(prompt: float, output: float, tpot_s: float, ttft_s: float) -> None:
    d = replace(SERVED, prompt_tokens=prompt, output_tokens=output)
    free = disaggregated(LLAMA, SOURCE, d)
    try:
        within = disaggregated(LLAMA, SOURCE, replace(d, max_tpot_s=tpot_s, max_ttft_s=ttft_s))
    except InfeasibleError:
        return
    assert within.tpot_s <= tpot_s * (1 + 1e-9)
    assert within.ttft_s <= ttft_s * (1 + 1e-9)
    assert within.usd_per_mtok >= free.usd_per_mtok * 0.989


def test_kept_drafts_make_output_tokens_cheaper() -> None:
    plain = disaggregated(LLAMA, SOURCE, SERVED, prefill_gpus=4, decode_gpus=4)
    drafting = disaggregated(LLAMA, SOURCE, replace(SERVED, accepted_tokens=0.8), prefill_gpus=4, decode_gpus=4)
    assert plain.limited_by == "decode"
    assert drafting.requests_per_s > plain.requests_per_s


def test_refusals_name_what_forbids_them() -> None:
    with pytest.raises(InfeasibleError, match="no GPU count serves a prompt"):
        disaggregated(LLAMA, SOURCE, replace(SERVED, max_ttft_s=1e-4))
    with pytest.raises(InfeasibleError, match="no GPU count serves an output token"):
        disaggregated(LLAMA, SOURCE, replace(SERVED, max_tpot_s=1e-4))
    big = replace(SERVED, weight_bytes_per_param=2.0)
    with pytest.raises(InfeasibleError, match="no whole numbers of workers"):
        disaggregated(LLAMA, Roofline(H100), big, prefill_gpus=1, decode_gpus=8)
    with pytest.raises(InputError, match="one model and one deployment"):
        disaggregated(LLAMA, SOURCE, replace(SERVED, prompt_tokens=np.array([100.0, 200.0])))


@pytest.mark.system
def test_cost_prices_prefill_and_decode_apart() -> None:
    line = "cost llama-3.1-70b --gpu h100-sxm --weights fp8 --latency roofline --prompt 4000 --output 500"
    code, out, err = run(*line.split(), "--prefill-gpus", "4", "--decode-gpus", "auto", "--json")
    assert code == 0, err
    told = json.loads(out)["disaggregated"]
    assert told["prefill"]["gpus"] == 4
    assert told["gpus"] == 4 + told["decode"]["gpus"]
    assert math.isfinite(told["usd_per_mtok"])
    code, out, _ = run(*line.split(), "--prefill-gpus", "auto")
    assert code == 0
    assert "Separate prefill and decode" in out
    code, _, err = run(*line.split(), "--prefill-gpus", "few")
    assert code == 2
    assert "or auto" in err

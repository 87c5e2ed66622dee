"""What `cost` answers beside the plateau: loops, rates, bursts, limits that the known error breaks, and what times rest on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from command_line import answer_of, run
from reference_data import ROOT


def test_a_gpu_without_a_price_needs_one() -> None:
    for asked in (("cost", "--n-params", "1.5B", "--experts", 16), ("plan", "--budget", "5e21")):
        refused = run(*asked, "--gpu", "gb200", "--latency", "roofline")
        assert refused.code == 2
        assert "--usd-per-gpu-hour" in refused.err


LLAMA = ("cost", "llama-3.1-8b", "--gpu", "h100-sxm")


def test_a_closed_loop_is_answered_beside_the_plateau() -> None:
    asked = (*LLAMA, "--prompt", 1024, "--output", 256, "--concurrency", 32)
    chosen, told = answer_of(*asked), run(*asked).out
    loop = chosen["closed_loop"]
    assert loop["usd_per_mtok"] == min(one["closed_loop"]["usd_per_mtok"] for one in chosen["candidates"])
    assert loop["e2e_s"] == pytest.approx(loop["ttft_s"] + 255 * loop["tpot_s"], rel=0.01)
    assert loop["usd_per_mtok"] > chosen["usd_per_mtok"]  # fewer clients than the server could hold
    assert "for 32 clients" in told.splitlines()[0]
    assert "Closed loop of 32 clients" in " ".join(told.split())
    most = run(*asked, "--percentile", 95)
    assert "the table's times hold for 95% of requests after the first burst" in " ".join(most.out.split())


def test_an_open_loop_finds_the_replicas() -> None:
    asked = (*LLAMA, "--gpus", 1, "--request-rate", 1, "--prompt", 100, "--output", 20)
    one = " ".join(run(*asked).out.split())
    assert "1 request per second: 1 x h100-sxm (1 replica of 1)" in one
    assert "% of the rate that full batches take without limits of latency; TTFT" in one
    assert one.endswith("host: in-line (default of --request-rate).")
    rate = answer_of(*asked)["open_loop"]
    assert rate["usd_per_mtok"] == pytest.approx(rate["usd_per_hour"] / (3600 * 20) * 1e6)  # of 20 tokens a second
    assert one.startswith(
        f"${rate['usd_per_mtok']:.2f} per million output tokens on 1 x h100-sxm at 1 request a second"
    )


def test_a_rate_is_answered_by_the_fewest_gpus_of_all_counts_that_were_looked_at() -> None:
    asked = ("cost", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--prompt", 1024, "--output", 256, "--request-rate", 5)
    limits = ("--max-tpot", "30ms", "--max-ttft", "500ms")
    best, *alone = (answer_of(*asked, *limits, *more) for more in ((), ("--gpus", 1), ("--gpus", 2)))
    gpus = [one["open_loop"]["gpus"] for one in (best, *alone)]
    assert gpus == [1, 1, 2]  # two are the cheapest at full load within the limits
    assert min(best["candidates"][:2], key=lambda one: one["usd_per_mtok"])["gpus"] == 2
    assert best["open_loop"]["usd_per_mtok"] == pytest.approx(alone[0]["open_loop"]["usd_per_mtok"])
    assert "separate prices" not in run(*asked, *limits, "--calibrated").out  # which are those of full load


def test_a_request_that_takes_long_does_not_make_a_server_late() -> None:
    """Outputs of the trace differ ten times in length: one server answers 32 a second, as a simulated run of 5,000 shows."""
    asked = (*LLAMA, "--trace", ROOT / "examples" / "requests.csv", "--request-rate", 32)
    found = answer_of(*asked)["open_loop"]
    assert found["gpus"] == 1
    simulated = answer_of(*asked, "--gpus", 1, "--burst", 5000)["burst"]
    assert simulated["p99"]["ttft_s"] < 0.2
    assert simulated["makespan_s"] < 1.1 * 5000 / 32


def test_stated_workers_that_miss_a_rate_are_refused() -> None:
    asked = ("cost", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--prompt", 4000, "--output", 500, "--request-rate", 5)
    code, _, err = run(*asked, "--prefill-gpus", 1, "--decode-gpus", 1, "--max-tpot", "20ms")
    assert (code, "separate prefill and decode" in err) == (1, True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("llama-2-7b", "--kv-cache", "int4"), "a cache of 16 bits"),
        (("llama-3.1-8b", "--scheduling", "separate"), "passes of their own"),
        (("gpt3-2.7b",), "no checkpoint of gpt3-2.7b is known"),
        (("llama-7b", "--prompt", 3000), "longer than the 2048 that the model was made for"),
        (("llama-3.1-8b", "--prompt", 60000), "lower it if the model's context is shorter"),
    ],
)
def test_a_launch_says_what_of_the_price_it_does_not_start(options: tuple[object, ...], said: str) -> None:
    found = run("cost", *options, "--gpu", "h100-sxm", "--launch", "vllm")
    assert found.code == 0
    assert said in " ".join(found.err.split())


@pytest.mark.fuzz
def test_a_limit_that_the_known_error_breaks_is_named() -> None:
    asked = (
        "cost", "llama-3.3-70b", "--gpu", "h200-sxm", "--max-ttft", "1s", "--max-tpot", "33.3ms", "--concurrency",
        100,
    )  # fmt: skip
    found = answer_of(*asked)
    late = found["limits_missed_by_error"]
    assert set(late) == {"TTFT"}
    assert late["TTFT"] == pytest.approx(found["closed_loop"]["ttft_s"] / found["accuracy"]["ttft"]["geometric_mean"])
    assert late["TTFT"] > 1.0 > found["closed_loop"]["ttft_s"]
    assert "limits_missed_by_error" not in answer_of(*asked, "--gpus", 8)
    at_rate = answer_of(*asked[:-2], "--request-rate", 13)  # whose TTFT is far below that of full load
    assert "limits_missed_by_error" not in at_rate


def test_a_limit_that_the_known_error_breaks_is_asked_for_more_strictly() -> None:
    asked = ("cost", "llama-3.1-405b", "--gpu", "h200-sxm", "--weights", "fp8", "--max-tpot")
    said = " ".join(run(*asked, "50ms").out.split())
    (stricter,) = re.findall(
        r"would miss the limit of TPOT \(.*\); --max-tpot (\S+ms) asks for what would keep it", said
    )
    assert float(stricter[:-2]) == pytest.approx(
        50 * answer_of(*asked, "50ms")["accuracy"]["tpot"]["geometric_mean"], rel=0.01
    )
    assert "limits_missed_by_error" in answer_of(*asked, "50ms")
    assert "limits_missed_by_error" not in answer_of(*asked, stricter)


def test_a_burst_is_simulated_beside_the_plateau(tmp_path: Path) -> None:
    model = ("cost", "--n-params", "1B", "--experts", 8, "--gpu", "h100-sxm", "--latency", "roofline")
    burst = answer_of(*model, "--gpus", 1, "--burst", 200)["burst"]
    assert burst["peak_running"] == 200
    assert burst["usd_per_mtok"] == pytest.approx(3.9 / 3600 / burst["output_tok_s"] * 1e6)
    assert "Simulated: 200 requests" in run(*model, "--burst", 200).out
    trace = tmp_path / "requests.csv"
    trace.write_text("prompt_tokens,output_tokens\n100,10\n2000,30\n")
    found = answer_of(*model, "--trace", trace, "--burst", 5)["burst"]
    assert found["output_tok_s"] * found["makespan_s"] == pytest.approx(10 + 30 + 10 + 30 + 10)


@pytest.mark.parametrize(
    ("model", "gpu", "says", "leaves_out"),
    [
        ("deepseek-v3", "mi300x", "latent layers carry 196 us each, from servings of DeepSeek-R1 on MI300X", "no m"),
        ("deepseek-v3", "mi325x", "on MI300X; no measurement of mi325x was compared", "mi300x"),
        ("deepseek-v3", "mi355x", "no measurement of mi355x was compared", "latent layers"),
        ("llama-3.1-8b", "mi300x", "lowered to 45% of its arithmetic and 81% of its bandwidth\n", "latent layers"),
        ("llama-3.1-8b", "h100-sxm", "", "roofline with"),
    ],
)
def test_a_gpu_without_measured_kernels_says_what_its_times_rest_on(
    model: str, gpu: str, says: str, leaves_out: str
) -> None:
    asked = ("cost", model, "--gpu", gpu, "--usd-per-gpu-hour", 2, "--latency", "roofline", "--weights", "fp8")
    found = run(*asked, "--gpus", 8)
    assert found.code == 0
    assert found.err.count(f"{gpu}: roofline with") == bool(says)
    assert says in found.err
    assert leaves_out not in found.err

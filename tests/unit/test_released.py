"""Published models are priced in the format of their release, and a server that is too slow for use is called so first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from command_line import answer_of, run
from moescale.hardware.gpus import find_gpu
from moescale.hardware.precisions import precisions
from moescale.latency.roofline import Roofline
from moescale.models.published import find_shape, published_shapes
from moescale.options.known import published_model
from moescale.planning.question import as_released, release_notes
from moescale.serving.deployment import MOST_TPOT_S, MOST_TTFT_S, Deployment, slow_for_use
from moescale.serving.gpu_counts import cost

H200 = find_gpu("h200-sxm")
SERVED = Deployment(gpu=H200, usd_per_gpu_hour=4.0, prompt_tokens=230.0, output_tokens=203.0)
OF_8_BITS = {"deepseek-v3", "deepseek-v3.2", "kimi-k2", "minimax-m2.5", "mimo-v2-flash"}
OF_4_BITS = {"gpt-oss-20b": "mxfp4", "gpt-oss-120b": "mxfp4", "kimi-k2-thinking": "int4"}


def test_every_released_model_has_a_format_with_its_source_and_another_release_its_own() -> None:
    for name, shape in published_shapes().items():
        if name.startswith("gpt3"):
            assert shape.weights is None
            continue
        assert shape.weights.format in precisions("weights")
        assert shape.weights.stated.startswith("as released: ")
        own = "fp8" if name in OF_8_BITS or name.endswith("-fp8") else OF_4_BITS.get(name, "bf16")
        assert shape.weights.format == own
    old, new = find_shape("llama-3.1-70b"), find_shape("Llama-3.3-70B-Instruct")
    assert replace(new.architecture, name=None) == replace(old.architecture, name=None)
    assert new.architecture.name == "llama-3.3-70b"
    formats = {name: find_shape(name).weights for name in ("zai-org/GLM-5", "zai-org/GLM-5-FP8", "deepseek-v3.1")}
    assert [found and found.format for found in formats.values()] == ["bf16", "fp8", "fp8"]


@pytest.mark.system
def test_a_name_means_the_model_as_released() -> None:
    asked = ("cost", "deepseek-v3", "--gpu", "h200-sxm", "--latency", "roofline")
    named = answer_of(*asked)
    assert named["weights"]["format"] == "fp8"
    assert named["weights"]["source"].startswith("as released: config.json of deepseek-ai/DeepSeek-V3")
    assert named["usd_per_mtok"] == answer_of(*asked, "--weights", "fp8")["usd_per_mtok"]
    assert "in fp8, as released; --weights overrides" in " ".join(run(*asked).out.split())
    wide = run(*asked, "--weights", "bf16")
    assert wide.code == 1
    assert "the checkpoint's weights are fp8" in wide.err
    assert answer_of("cost", "llama-3.1-8b", "--latency", "roofline")["weights"]["format"] == "bf16"


def test_known_models_are_served_as_released_unless_a_format_is_stated() -> None:
    small, large = published_model("llama-3.1-8b", ""), published_model("deepseek-v3", "")
    latency = Roofline(H200)
    assert as_released(small, SERVED, latency) == (SERVED, latency)
    own, source = as_released(large, SERVED, latency)
    assert (own.weights, own.weight_bytes_per_param, source) == ("fp8", 1.0, Roofline(H200, 1.0, weights="fp8"))
    assert cost(large.architecture, source, own).gpus == 8
    stated = replace(SERVED, weights="bf16")
    assert as_released(large, stated, latency) == (stated, latency)
    assert release_notes((small, large), SERVED)[0].startswith("weights priced as released: deepseek-v3 in fp8")
    assert release_notes((small, large), stated) == []


@pytest.mark.system
def test_compared_models_are_priced_as_cost_prices_them() -> None:
    serving = ("--gpu", "h200-sxm", "--latency", "roofline", "--max-tpot", "50ms")  # that plan and compare-models keep
    named = run("compare-models", "llama-3.1-8b", "deepseek-v3", *serving, "--json")
    assert "deepseek-v3 in fp8" in named.err
    rows = answer_of("compare-models", "llama-3.1-8b", "deepseek-v3", *serving)
    for row in rows:
        assert row["usd_per_mtok"] == pytest.approx(answer_of("cost", row["name"], *serving)["usd_per_mtok"], rel=1e-12)
    published = 2.664e6 / 24  # days of H800: arXiv 2412.19437, table 1; in bf16 it would be 1.7 times as many
    assert (rows[1]["train_precision"], rows[1]["gpu_days"]) == ("fp8", pytest.approx(published, rel=0.4))
    stated = (*serving, "--weights", "bf16", "--train-precision", "bf16")
    _, wide = answer_of("compare-models", "llama-3.1-8b", "deepseek-v3", *stated)
    assert ("infeasible" in wide, wide["train_precision"]) == (True, "bf16")


def test_a_slow_server_is_called_so_unless_a_limit_is_stated() -> None:
    assert slow_for_use(SERVED, MOST_TTFT_S, MOST_TPOT_S) == []
    assert slow_for_use(SERVED, None, None) == []
    (told,) = slow_for_use(SERVED, 12.3, 1.03)
    assert "TPOT 1.03 s (above 100 ms), TTFT 12.3 s (above 10 s)" in told
    assert "TTFT" not in slow_for_use(replace(SERVED, max_ttft_s=20.0), 12.3, 1.03)[0]
    assert slow_for_use(replace(SERVED, max_ttft_s=20.0, max_tpot_s=2.0), 12.3, 1.03) == []


def test_cost_says_first_that_a_server_is_slow() -> None:
    asked = ("cost", "deepseek-v3", "--gpu", "gb200", "--gpus", 32, "--attention-dp", 32, "--latency", "roofline")
    asked = (*asked, "--usd-per-gpu-hour", 5)
    assert run(*asked).out.startswith("Warning:  Too slow for interactive use: TPOT ")
    assert answer_of(*asked)["warnings"][0].startswith("Too slow for interactive use: TPOT ")
    assert "warnings" not in answer_of(*asked, "--max-tpot", "100ms")


@pytest.mark.system
def test_a_plan_says_first_that_its_server_is_slow() -> None:
    asked = ("plan", "--budget", "1e24", "--law", "hoffmann2022", "--experts", 1, "--match-experts", 1)
    asked = (*asked, "--latency", "roofline", "--gpu", "a100-sxm-80gb", "--max-num-seqs", "none", "--bootstrap", 0)
    slow = answer_of(*asked, "--max-tpot", "none")["recommendation"]
    assert slow["tpot_s"] > MOST_TPOT_S
    assert slow["caveats"][0].startswith("Too slow for interactive use: TPOT ")
    stated = answer_of(*asked, "--max-tpot", "10s")["recommendation"]
    assert stated["tpot_s"] == slow["tpot_s"]
    assert not any("Too slow" in told for told in stated["caveats"])

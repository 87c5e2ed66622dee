"""The launch line of the server that `cost` recommends."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from moescale.errors import InputError
from moescale.export.serving_launch import ENGINES, Server, launch, published_name, serve_script
from moescale.hardware.gpus import find_gpu
from moescale.models.published import published_shapes
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import Cost

GIB = 2.0**30
COST = Cost(
    gpus=8, n_params_total=671e9, n_params_active=37e9, weight_bytes=671e9, kv_bytes_per_token=35136.0,
    latency_source="silicon", tensor_parallel=8, expert_parallel=8, replicas=1, weight_bytes_per_gpu=80.0 * GIB,
    reserve_bytes=1.5 * GIB, usd_per_mtok=1.0, batch=512.7,
)  # fmt: skip


def served(**changes: Any) -> Deployment:
    usual = {"gpu": find_gpu("h200-sxm"), "usd_per_gpu_hour": 1.0, "prompt_tokens": 1000.0, "output_tokens": 500.0}
    return Deployment(**(usual | changes))


def options(command: str) -> dict[str, str]:
    """The options of a launch line, an empty text for those without a value."""
    line = command.rpartition("EOF\n")[2].replace("\\\n", "")
    words = shlex.split(line, comments=True)
    found: dict[str, str] = {}
    for word, after in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = "" if after.startswith("--") else after
    return found


def test_vllm() -> None:
    found = launch("vllm", "deepseek-ai/DeepSeek-V3", COST, served(weights="fp8", kv_bytes_per_element=1.0))
    assert found.command.startswith("vllm serve deepseek-ai/DeepSeek-V3 ")
    assert options(found.command) == {
        "--tensor-parallel-size": "8", "--enable-expert-parallel": "", "--max-num-seqs": "512", "--max-model-len": "6000",
        "--gpu-memory-utilization": "0.9", "--quantization": "fp8", "--kv-cache-dtype": "fp8",
    }  # fmt: skip


def test_sglang_keeps_activations_out_of_its_static_share() -> None:
    found = launch("sglang", "here", COST, served(weights="fp8", kv_bytes_per_element=1.0), "fp8")
    assert found.command.startswith("python -m sglang.launch_server ")
    share = 0.9 - 1.5 * GIB / find_gpu("h200-sxm").memory_bytes
    assert options(found.command) == {
        "--model-path": "here", "--tp-size": "8", "--ep-size": "8", "--max-running-requests": "512",
        "--context-length": "6000", "--mem-fraction-static": f"{share:.3g}", "--kv-cache-dtype": "fp8_e4m3",
    }  # fmt: skip


def test_trtllm_has_a_share_of_what_the_weights_leave() -> None:
    found = launch("trtllm", "here", COST, served(weights="fp8", scheduling="chunked", kv_bytes_per_element=1.0), "fp8")
    memory, held = find_gpu("h200-sxm").memory_bytes, 81.5 * GIB
    share = f"{(0.9 * memory - held) / (memory - held):.3g}"
    assert options(found.command) == {
        "--tp_size": "8", "--ep_size": "8", "--max_batch_size": "512", "--max_seq_len": "6000",
        "--kv_cache_free_gpu_memory_fraction": share, "--extra_llm_api_options": "trtllm.yaml",
    }  # fmt: skip
    file = f"enable_chunked_prefill: true\nkv_cache_config:\n  dtype: fp8\n  free_gpu_memory_fraction: {share}\n"
    assert found.command.startswith(f"cat > trtllm.yaml <<'EOF'\n{file}EOF\ntrtllm-serve here ")
    plain = launch("trtllm", "here", COST, served())
    assert plain.command.startswith("trtllm-serve here ")
    assert "yaml" not in plain.command


def spread(engine: str, **changes: Any) -> dict[str, str]:
    load = served(max_num_batched_tokens=8192.0, accepted_tokens=0.8)
    found = launch(engine, "here", replace(COST, **changes), load)
    return options(found.command) | {"text": found.command, "notes": " ".join(found.notes)}


def test_groups_of_attention_and_stages() -> None:
    changes = {"tensor_parallel": 2, "attention_dp": 4, "pipeline_parallel": 2, "gpus": 16}
    vllm, sglang, trtllm = (spread(engine, **changes) for engine in ENGINES)
    # vLLM counts the GPUs, requests and tokens of one group, TensorRT-LLM the requests and tokens; SGLang divides itself.
    assert {name: vllm[name] for name in list(vllm)[:6]} == {
        "--tensor-parallel-size": "2", "--pipeline-parallel-size": "2", "--data-parallel-size": "4",
        "--enable-expert-parallel": "", "--max-num-seqs": "128", "--max-model-len": "6000",
    }  # fmt: skip
    assert vllm["--max-num-batched-tokens"] == "2048"
    assert json.loads(vllm["--speculative-config"]) == {"method": "mtp", "num_speculative_tokens": 1}
    named = ("--tp-size", "--pp-size", "--dp-size", "--max-running-requests", "--chunked-prefill-size")
    assert [sglang[name] for name in named] == ["8", "2", "4", "512", "8192"]
    assert "--enable-dp-attention" in sglang
    assert (sglang["--speculative-num-steps"], sglang["--speculative-num-draft-tokens"]) == ("1", "2")
    assert [trtllm[name] for name in ("--tp_size", "--pp_size", "--max_batch_size", "--max_num_tokens")] == ["8", "2", "128", "2048"]  # fmt: skip
    assert "enable_attention_dp: true\n" in trtllm["text"]
    assert "decoding_type: MTP\n  num_nextn_predict_layers: 1\n" in trtllm["text"]
    assert "16 GPUs exceed most servers" in vllm["notes"]
    assert "fails for models released without such heads" in vllm["notes"]


@pytest.mark.parametrize(("batch", "each"), [(515.0, "128"), (511.9, "127"), (3.0, "1")])
def test_no_group_takes_more_requests_than_were_priced(batch: float, each: str) -> None:
    """But for one each, without which a group would do nothing."""
    vllm, sglang, trtllm = (spread(engine, attention_dp=4, batch=batch) for engine in ENGINES)
    assert (vllm["--max-num-seqs"], trtllm["--max_batch_size"]) == (each, each)
    assert int(sglang["--max-running-requests"]) // 4 == int(each)


def test_what_a_line_cannot_say_is_noted() -> None:
    four_bits = launch("vllm", "here", COST, served(weights="nvfp4", weight_bytes_per_param=0.57))
    assert any("name a checkpoint in nvfp4" in note for note in four_bits.notes)
    assert "--quantization" not in four_bits.command
    assert not any("nvfp4" in note for note in launch("vllm", "here", COST, served(weights="nvfp4"), "nvfp4").notes)
    few = launch("vllm", "here", replace(COST, expert_parallel=2), served())
    assert any("over all 8 GPUs; priced: 2" in note for note in few.notes)
    assert launch("vllm", "here", replace(COST, replicas=3, gpus=24), served()).command.startswith(
        "# one of 3 replicas, on 8 x h200"
    )
    with pytest.raises(InputError, match="vllm"):
        launch("vlm", "here", COST, served())
    with pytest.raises(InputError, match="recommended"):
        launch("vllm", "here", replace(COST, batch=None), served())


def test_the_checkpoint_of_gpt_oss_is_in_mxfp4() -> None:
    asked = ("cost", "gpt-oss-120b", "--gpu", "h100-sxm", "--latency", "roofline", "--launch", "vllm")
    assert "name a checkpoint" not in run(*asked, "--weights", "mxfp4").err
    assert "name a checkpoint" not in run(*asked).err
    assert (
        "the checkpoint is in mxfp4, priced: weights in bf16: add --weights mxfp4"
        in run(*asked, "--weights", "bf16").err
    )
    other = run("cost", "llama-3.1-8b", *asked[2:], "--weights", "mxfp4")
    assert "name a checkpoint in mxfp4" in other.err


@pytest.mark.skipif(os.name == "nt", reason="needs bash")
@pytest.mark.parametrize("given_model", [None, "some where/model"])
def test_the_script_serves_the_trained_folder_as_priced(given_model: str | None, tmp_path: Path) -> None:
    server = Server(cost=COST, deployment=served(weights="fp8"))
    found = serve_script(server, 1024)
    folder = tmp_path / "a launch"
    folder.mkdir()
    (folder / "serve.sh").write_text(found.command)
    fake = tmp_path / "bin" / "vllm"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    env = {k: v for k, v in os.environ.items() if k != "MODEL"} | ({"MODEL": given_model} if given_model else {})
    env["PATH"] = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", str(folder / "serve.sh"), "--port", "1"], env=env, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[:2] == ["serve", given_model or str(folder)]
    assert words[-2:] == ["--port", "1"]
    line = launch("vllm", "MODEL", COST, served(weights="fp8")).command
    changed = {"--dtype": "bfloat16", "--max-model-len": "1024", "--port": "1"}
    assert options(shlex.join(["vllm", *words])) == options(line) | changed
    assert (
        "requests of more than 1024 tokens are refused: raise the length if yours are longer (priced: 1500)"
        in found.notes
    )
    assert "$1.00 per million output tokens" in found.command


@given(
    engine=st.sampled_from(sorted(ENGINES)),
    model=st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1).filter(
        lambda name: not name.startswith("--")
    ),
    batch=st.floats(1.0, 1e5),
    fraction=st.floats(0.05, 1.0),
)
def test_a_line_is_one_command_whatever_the_folder_is_called(
    engine: str, model: str, batch: float, fraction: float
) -> None:
    found = launch(engine, model, replace(COST, batch=batch), served(memory_fraction=fraction))
    words = shlex.split(found.command)
    assert words.count(model) >= 1
    told = options(found.command)
    name = {"vllm": "--max-num-seqs", "sglang": "--max-running-requests", "trtllm": "--max_batch_size"}[engine]
    assert batch - 1.0 < int(told[name]) <= batch
    shares = {"vllm": "--gpu-memory-utilization", "sglang": "--mem-fraction-static", "trtllm": "--kv_cache_free_gpu_memory_fraction"}  # fmt: skip
    assert 0.0 < float(told[shares[engine]]) <= 1.0


def test_published_models_are_named_as_they_are_loaded() -> None:
    assert published_name("llama-3.1-70b") == "meta-llama/Llama-3.1-70B"
    assert published_name("meta-llama/Llama-3.1-70B-Instruct") == "meta-llama/Llama-3.1-70B-Instruct"
    assert published_name("mistral-7b") == "mistralai/Mistral-7B-v0.1"
    names = {name: published_name(name) for name in published_shapes()}
    assert [name for name, told in names.items() if "/" not in told] == [n for n in names if n.startswith("gpt3")]


def test_cost_prints_the_line_and_puts_it_into_json(tmp_path: Path) -> None:
    asked = ("cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--latency", "roofline", "--launch")
    shown, told = run(*asked, "vllm"), run(*asked, "vllm", "--json")
    line = json.loads(told.out)["launch"]
    assert line in shown.out
    assert line.startswith("vllm serve meta-llama/Llama-3.1-8B ")
    assert "launch" not in json.loads(run(*asked[:-1], "--json").out)
    assert "requests of more than 4096 tokens" in shown.err
    wrong = run(*asked, "vlm")
    assert wrong.code == 2
    assert "vllm" in wrong.err
    made = run("cost", "--n-params", "1.5B", "--experts", "16", "--latency", "roofline", "--launch", "sglang")
    assert "--model-path MODEL" in made.out

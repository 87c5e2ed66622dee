"""Exports: the recipe, the memory of a run, how it is split, and the files that trainers read."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import run
from examples import daily
from moescale import catalogue
from moescale.errors import InfeasibleError, UnwrittenError
from moescale.experiments.settings import read_settings
from moescale.export.huggingface import huggingface_config
from moescale.export.launch import FORMATS, NAMES, Export, export_model
from moescale.export.trainers import training_files
from moescale.hardware.gpus import find_gpu
from moescale.models.architecture import Architecture
from moescale.models.hf_config import from_config
from moescale.models.parameters import count_parameters
from moescale.models.recipe import SCHEDULES, Recipe, recipe_for
from moescale.models.rounding import Buildable
from moescale.training.choice import Launch, choose_launch
from moescale.training.parallelism import (
    Split,
    Trainer,
    fits,
    gpu_counts,
    layer_elements_per_token,
    memory_of,
    splits,
    stages_of,
)
from moescale.units import format_bytes, format_flops, format_usd

SHAPE = Buildable(
    n_layers=20, d_model=1664, n_heads=13, n_kv_heads=13, head_dim=128, d_ffn=4416, n_experts=16, top_k=2, moe_every=2,
    n_params=6.6e8, n_params_total=3.96e9,
)  # fmt: skip
DENSE = replace(SHAPE, n_experts=1, top_k=1)
FINE = replace(SHAPE, n_kv_heads=1, moe_every=1, n_experts=32, top_k=8, d_expert=512, d_shared_expert=512)
LATENT = replace(
    FINE, n_kv_heads=13, head_dim=192, kv_lora_rank=512, q_lora_rank=1536, qk_rope_head_dim=64, v_head_dim=128
)
FAMILIES = {"experts": SHAPE, "dense": DENSE, "fine-grained": FINE, "deepseek": LATENT}
H100, A100 = find_gpu("h100-sxm"), find_gpu("a100-sxm-40gb")
MEGATRON, TORCHTITAN = FORMATS["megatron"], FORMATS["torchtitan"]
FLAGS: dict[str, dict[str, str]] = catalogue.read("megatron.toml")["flags"]


@st.composite
def shapes(draw: st.DrawFn) -> Buildable:
    heads, every = draw(st.integers(1, 48)), draw(st.integers(1, 3))
    experts = draw(st.sampled_from((1, 2, 4, 8, 16, 24)))
    kv_heads = draw(st.sampled_from([k for k in range(1, heads + 1) if heads % k == 0]))
    return Buildable(
        n_layers=every * draw(st.integers(1, 12)), d_model=128 * heads, n_heads=heads, n_kv_heads=kv_heads, head_dim=128,
        d_ffn=64 * draw(st.integers(1, 200)), n_experts=experts, top_k=min(2, experts), moe_every=every, n_params=1.0,
        n_params_total=1.0,
    )  # fmt: skip


def recipe(tokens: float = 1e11) -> Recipe:
    return recipe_for(3e8, tokens, rule="paper")


def model_of(shape: Buildable) -> Architecture:
    return from_config(huggingface_config(shape, recipe()))


def megatron_arguments(shape: Buildable, run: Recipe, split: Split) -> dict[str, str]:
    """The arguments of megatron.args by name, an empty text for those without a value."""
    lines = training_files("megatron", shape, run, split, "A model.")[0]["megatron.args"].splitlines()
    pairs = (line.removeprefix("--").partition(" ") for line in lines if line.startswith("--"))
    return {name: value for name, _, value in pairs}


def test_activations_are_those_of_korthikanti_and_experts_keep_what_every_chosen_one_keeps() -> None:
    model = model_of(SHAPE)
    dense, moe = (layer_elements_per_token(model, moe=moe) for moe in (False, True))
    ffn = 3 * SHAPE.d_ffn
    assert moe - dense == 2 * SHAPE.n_experts + SHAPE.top_k * (2 * SHAPE.d_model + ffn) - ffn
    # Experts as wide as those that a token shares, one more of which it meets, keep as much and their copy of the token.
    for fine in map(model_of, (FINE, LATENT)):
        routed = replace(fine, top_k=fine.top_k + 1, d_shared_expert=0)
        more = layer_elements_per_token(routed, moe=True) - layer_elements_per_token(fine, moe=True)
        assert more == 2 * fine.d_model
    # Their 34 h bytes a token (section 4.1, without scores): 2 of these are masks of dropout, which nothing has here.
    h = 1024.0
    plain = Architecture(
        n_layers=1.0, d_model=h, n_heads=16.0, n_kv_heads=16.0, head_dim=64.0, d_ffn=4 * h, ffn_matrices=2
    )
    assert 2 * layer_elements_per_token(plain, moe=False) == (34 - 2) * h


@pytest.mark.parametrize(("states", "bytes_per_param"), [("optimizer", 6 + 12 / 8), ("full", 16 / 8)])
@pytest.mark.parametrize(
    ("shape", "tied"), [(SHAPE, False), (DENSE, False), (DENSE, True), (FINE, False), (LATENT, False)]
)
def test_states_of_data_parallel_gpus(shape: Buildable, tied: bool, states: Any, bytes_per_param: float) -> None:
    """6 + 12 / d bytes a parameter (Megatron-LM), 16 / d where all is split (ZeRO's third stage)."""
    model = replace(model_of(shape), tied_embeddings=tied)
    split = Split(gpus=8, tensor=1, pipeline=1, expert=1, data=8, micro_batch=1, accumulation=32, recompute=False)
    found = memory_of(model, recipe(), H100, split, Trainer(states=states, pipeline=True, tensor=True))
    held = found.weights_bytes + found.gradients_bytes + found.optimizer_bytes
    assert held == pytest.approx(bytes_per_param * float(count_parameters(model).total), rel=1e-12)
    assert (found.gathered_bytes > 0) == (states == "full")


def test_expert_parallelism_divides_the_experts_alone() -> None:
    model, trainer = model_of(SHAPE), MEGATRON
    one = Split(gpus=16, tensor=1, pipeline=1, expert=1, data=16, micro_batch=1, accumulation=16, recompute=False)
    found = [memory_of(model, recipe(), H100, replace(one, expert=e), trainer) for e in (1, 2, 16)]
    experts = float(count_parameters(model).experts)
    for memory, e in zip(found, (1, 2, 16), strict=True):
        assert found[0].weights_bytes - memory.weights_bytes == pytest.approx(2 * experts * (1 - 1 / e))
        # The optimiser's states are split over the copies of each expert: their number falls as the experts a GPU do.
        assert memory.optimizer_bytes == pytest.approx(found[0].optimizer_bytes)


@pytest.mark.system
@given(shape=shapes(), gpus=st.sampled_from((1, 2, 3, 4, 8, 12, 16, 24, 64)), name=st.sampled_from(list(FORMATS)))
def test_every_split_is_whole_and_its_memory_adds_up(shape: Buildable, gpus: int, name: str) -> None:
    model, run, trainer = model_of(shape), recipe(), FORMATS[name]
    for split in list(splits(model, run, gpus, trainer))[:40]:
        assert split.tensor * split.pipeline * split.data == gpus
        assert split.data * split.micro_batch * split.accumulation == run.batch_sequences
        assert shape.n_heads % split.tensor == 0
        assert shape.n_kv_heads % split.tensor == 0
        stages = stages_of(model, split.pipeline)
        assert all(layers > 0 and layers % (shape.moe_every if shape.n_experts > 1 else 1) == 0 for layers in stages)
        assert sum(stages) == shape.n_layers
        assert stages[0] - stages[-1] in (0, shape.moe_every if shape.n_experts > 1 else 1)
        assert shape.n_experts % split.expert == 0
        assert split.tensor * split.data % split.expert == 0
        assert split.tensor <= 8
        memory = memory_of(model, run, H100, split, trainer)
        parts = {k: v for k, v in memory.to_dict().items() if k.endswith("_bytes") and k[0] != "t" and k[1] != "v"}
        assert len(parts) == 6
        assert all(isinstance(v, float) and v >= 0 for v in parts.values())
        assert memory.total_bytes == pytest.approx(sum(v for v in parts.values() if isinstance(v, float)))


@pytest.mark.system
@given(shape=shapes(), name=st.sampled_from(list(FORMATS)), gpus=st.sampled_from((8, 16, 64)))
def test_more_splitting_never_takes_more_memory(shape: Buildable, name: str, gpus: int) -> None:
    model, run, trainer = model_of(shape), recipe(), FORMATS[name]

    def total(**changed: Any) -> float:
        split = Split(
            gpus=gpus, tensor=1, pipeline=1, expert=1, data=gpus, micro_batch=2, accumulation=2, recompute=False
        )
        return memory_of(model, run, H100, replace(split, **changed), trainer).total_bytes

    assert total(data=2 * gpus) <= total()
    assert total(micro_batch=1) < total()
    assert total(tensor=2, data=gpus // 2) < total()
    if shape.n_layers > 1:  # of one layer recomputation keeps the input beside all that it makes again
        assert total(recompute=True) < total()


@pytest.mark.system
@daily(10)
@given(shape=shapes(), name=st.sampled_from(list(FORMATS)), memory_gib=st.floats(2, 200))
def test_the_smallest_count_fits_and_no_smaller_one_does(shape: Buildable, name: str, memory_gib: float) -> None:
    model, trainer = model_of(shape), FORMATS[name]
    launch = Launch(trainer=trainer, batch_tokens=256 * 2048, sequence_tokens=2048)
    run, gpu = launch.recipe(model, 1e11), replace(H100, memory_bytes=memory_gib * 2**30)
    counts = [count for count in gpu_counts() if fits(model, run, gpu, count, trainer)]
    if not counts:
        with pytest.raises(InfeasibleError):
            choose_launch(model, 1e11, gpu, launch, mfu=0.4)
        return
    found = choose_launch(model, 1e11, gpu, launch, mfu=0.4, gpus=counts[0])
    assert found.memory.total_bytes <= found.memory.available_bytes == gpu.memory_bytes * 0.9
    for smaller in (n for n in gpu_counts() if n < counts[0]):
        with pytest.raises(InfeasibleError) as refused:
            choose_launch(model, 1e11, gpu, launch, mfu=0.4, gpus=smaller)
        if "are usable" in str(refused.value):
            assert refused.value.nearest == f"{counts[0]} GPU{'s' if counts[0] > 1 else ''}"


def test_a_run_that_ends_in_time_takes_the_fewest_gpus() -> None:
    launch = Launch(trainer=MEGATRON, rule="paper")
    found = choose_launch(model_of(SHAPE), 7.8e11, A100, launch, mfu=0.4)
    assert found.split.gpus == 16
    assert found.days == pytest.approx(found.training_flops / (16 * 312e12 * 0.4) / 86400)
    assert found.days < 30
    halved = choose_launch(model_of(SHAPE), 7.8e11, A100, launch, mfu=0.4, gpus=32)
    assert halved.days == pytest.approx(found.days / 2)
    launch = Launch(trainer=TORCHTITAN, batch_tokens=256 * 2048, sequence_tokens=2048)
    with pytest.raises(InfeasibleError, match=r"7 x h100-sxm cannot .* no split .*; nearest: 8 GPUs"):
        choose_launch(model_of(SHAPE), 1e11, H100, launch, mfu=0.4, gpus=7)


@pytest.mark.system
@given(shape=shapes(), gpus=st.sampled_from((1, 8, 64)))
def test_megatron_arguments_are_known_ones(shape: Buildable, gpus: int) -> None:
    model, run = model_of(shape), recipe()
    for split in list(splits(model, run, gpus, MEGATRON))[:: max(1, gpus)][:4]:
        arguments = megatron_arguments(shape, run, split)
        for name, value in arguments.items():
            kind = FLAGS[name]["value"]
            assert (value == "") == (kind == "none"), name
            if kind in ("int", "float"):
                assert {"int": int, "float": float}[kind](value) >= 0
        if shape.n_experts > 1:
            pattern = eval(arguments["moe-layer-freq"], {"__builtins__": {}})  # a product of lists, as Megatron reads
            assert pattern == [int((layer + 1) % shape.moe_every == 0) for layer in range(shape.n_layers)]
        assert ("sequence-parallel" in arguments) == (split.tensor > 1)


@pytest.mark.system
@given(shape=shapes())
def test_the_torchtitan_module_is_python_with_the_numbers_of_the_run(shape: Buildable) -> None:
    split = Split(gpus=8, tensor=1, pipeline=1, expert=1, data=8, micro_batch=4, accumulation=8, recompute=True)
    run = recipe()
    tree = ast.parse(training_files("torchtitan", shape, run, split, "A model.")[0]["moescale_run.py"])
    stated: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            values = ast.literal_eval(node.value)
            stated |= {ast.unparse(n): v for n, v in zip(node.targets[0].elts, values, strict=True)}
    assert stated["N_LAYERS"] == shape.n_layers
    assert stated["N_EXPERTS"] == shape.n_experts
    assert stated["VOCAB_SIZE"] == run.vocab_size
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert ("experts" in functions) == (shape.n_experts > 1)
    keywords = {k.arg: ast.unparse(k.value) for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords}
    assert keywords["global_batch_size"] == "256"
    assert float(keywords["lr"]) == run.peak_lr
    assert keywords["activation_checkpoint"] == "FullAC.Config()"


@pytest.mark.parametrize("name", list(FORMATS))
@pytest.mark.parametrize("shape", FAMILIES.values(), ids=list(FAMILIES))
def test_every_export_holds_the_same_model(name: str, shape: Buildable, tmp_path: Path) -> None:
    done = export_model(shape, 7.8e11, name, tmp_path / "a" / "b", gpu=A100, mfu=0.4)
    folder = Path(done.folder)
    assert {path.name for path in folder.iterdir()} == set(done.files)
    counted = count_parameters(from_config(folder))
    assert (int(counted.total), int(counted.active)) == (done.n_params_total, done.n_params_active)
    # Closer to the plan's own count than its embedding tables, norms and routers are large.
    assert float(counted.total - counted.embedding) == pytest.approx(
        float(count_parameters(model_of(shape)).non_embedding_total)
    )
    memory = format_bytes(done.choice.memory.total_bytes)
    assert f"Memory of the fullest GPU: {memory} of " in (folder / "README.md").read_text()
    assert json.loads(json.dumps(done.to_dict()))["parallel"]["split"]["gpus"] == done.choice.split.gpus
    if name == "hf":  # `moescale train` reads the shape back
        stated = read_settings(folder / "run.toml").model
        for key in ("n_experts", "expert_width", "d_shared_expert", "kv_lora_rank", "v_head_dim", "model_type"):
            assert getattr(stated.buildable(), key) == getattr(shape, key)


def exported(folder: Path, name: str = "hf", tokens: float = 7.8e11) -> dict[str, str]:
    """The text of the files of an export."""
    export_model(SHAPE, tokens, name, folder, gpu=A100, mfu=0.4)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_an_older_export_is_replaced_as_a_whole(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    formats = [*FORMATS, next(iter(FORMATS))]
    for name in formats:
        assert set(exported(folder, name)) == set(exported(tmp_path / f"alone-{name}", name)) <= NAMES
        folder.chmod(0o750)
    assert folder.stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(tmp_path)) == sorted({"run", *(f"alone-{name}" for name in FORMATS)})


def test_a_folder_that_holds_anything_else_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    for name in ("notes.txt", "outputs", "config.json"):
        folder = tmp_path / name.replace(".", "-")
        before = exported(folder)
        if name == "outputs":
            (folder / name).mkdir()
            (folder / name / "step-1").write_text("precious")
        elif name == "config.json":
            (tmp_path / "precious").write_text("precious")
            (folder / name).unlink()
            (folder / name).symlink_to(tmp_path / "precious")
            before[name] = "precious"
        else:
            before[name] = "precious"
            (folder / name).write_text("precious")
        with pytest.raises(UnwrittenError, match=f"holds what is not of an export: {name}; give a new folder"):
            exported(folder, "megatron", 1e11)
        assert {path.name: path.read_text() for path in folder.iterdir() if path.is_file()} == before
        assert (folder / name).exists()
    (tmp_path / "own").mkdir()
    for number in range(8):
        (tmp_path / "own" / f"{number}").touch()
    with pytest.raises(UnwrittenError, match="0, 1, 2, 3, 4 and 3 more"):
        exported(tmp_path / "own")


def test_nothing_is_overwritten_through_a_link_and_the_current_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = exported(tmp_path / "run")
    for name, target in {"link": "run", "chain": "link", "new": "made/there"}.items():
        (tmp_path / name).symlink_to(target)
    for name in ("link", "chain"):
        with pytest.raises(UnwrittenError, match=r"is a link to '.*run', and nothing is overwritten through a link"):
            exported(tmp_path / name, "megatron", 1e11)
    assert {path.name: path.read_text() for path in (tmp_path / "run").iterdir()} == before
    assert exported(tmp_path / "new") == before  # a link to nothing is followed
    assert (tmp_path / "new").is_symlink()
    assert (tmp_path / "made" / "there" / "config.json").is_file()
    exported(tmp_path / "run")
    monkeypatch.chdir(tmp_path / "run")
    for name in (Path(), tmp_path / "run"):
        with pytest.raises(UnwrittenError, match=r"as a whole: it is the current folder; give .* such as .*launch"):
            exported(name)
    exported(Path("launch"))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_format_follows_the_recipe(schedule: str, tmp_path: Path) -> None:
    def exported(name: str) -> Export:
        launch = Launch(rule="step-law", schedule=schedule, sequence_tokens=1024, batch_tokens=1e6)
        return export_model(SHAPE, 7.8e11, name, tmp_path / name, gpu=A100, mfu=0.4, gpus=16, launch=launch)

    done = exported("megatron")
    run = done.recipe
    assert (run.rule, run.schedule, run.sequence_tokens, run.batch_sequences) == ("step-law", schedule, 1024, 976)
    for line in run.arithmetic:
        assert line in (tmp_path / "megatron" / "README.md").read_text()
    wsd = schedule == "wsd"
    arguments = megatron_arguments(SHAPE, run, done.choice.split)
    assert arguments["lr-decay-style"] == ("WSD" if wsd else "cosine")
    assert arguments.get("lr-wsd-decay-iters") == (f"{run.decay_steps}" if wsd else None)
    assert all(name in FLAGS for name in arguments)
    exported("torchtitan")
    module = (tmp_path / "torchtitan" / "moescale_run.py").read_text()
    called = [
        n for n in ast.walk(ast.parse(module)) if isinstance(n, ast.Call) and "LRSchedulers" in ast.unparse(n.func)
    ]
    (found,) = ({k.arg: ast.literal_eval(k.value) for k in call.keywords} for call in called)
    assert found["decay_type"] == ("sqrt" if wsd else "cosine")
    assert not wsd or round(run.steps * found["decay_ratio"]) == run.decay_steps
    exported("hf")
    stated = tomllib.loads((tmp_path / "hf" / "run.toml").read_text())
    assert (stated["training"]["tokens"], stated["parallel"]) == (780_000_000_000, {"processes": 16, "fsdp": True})
    training = read_settings(tmp_path / "hf" / "run.toml").training
    assert (training.schedule, training.batch_sequences, training.peak_lr) == (schedule, 976, run.peak_lr)
    assert training.steps == run.steps
    assert not wsd or round(training.decay * training.steps) == run.decay_steps


def test_rules_of_dense_models_say_so_for_experts(tmp_path: Path) -> None:
    def notes(shape: Buildable, **stated: Any) -> str:
        launch = Launch(**stated)
        return " ".join(export_model(shape, 7.8e11, "hf", tmp_path, gpu=A100, mfu=0.4, launch=launch).notes)

    assert "deepseek was fitted to dense models; C counts the experts that a token meets" in notes(SHAPE)
    assert "dense models" not in notes(DENSE) + notes(SHAPE, rule="paper") + notes(
        SHAPE, peak_lr=1e-3, batch_tokens=1e6
    )


@pytest.mark.parametrize("shape", FAMILIES.values(), ids=list(FAMILIES))
def test_megatron_is_told_the_widths_and_the_router_of_the_shape(shape: Buildable) -> None:
    split = Split(gpus=8, tensor=1, pipeline=1, expert=1, data=8, micro_batch=4, accumulation=8, recompute=False)
    told = megatron_arguments(shape, recipe(), split)
    assert set(told) <= set(FLAGS)
    asked = {
        "multi-latent-attention": "", "kv-lora-rank": "512", "q-lora-rank": "1536", "qk-head-dim": "128",
        "qk-pos-emb-head-dim": "64", "v-head-dim": "128", "rope-type": "rope", "no-rope-fusion": "",
    }  # fmt: skip
    assert {name: told[name] for name in asked if name in told} == (asked if shape.kv_lora_rank else {})
    if shape.n_experts > 1:
        assert int(told["moe-ffn-hidden-size"]) == shape.expert_width
        assert int(told.get("moe-shared-expert-intermediate-size", 0)) == shape.d_shared_expert
        # Scores of a softmax are taken before the choice; those of a sigmoid sum to a constant after it.
        by_bias = {"moe-router-score-function", "moe-router-topk-scaling-factor", "moe-router-enable-expert-bias"}
        assert bool(by_bias & set(told)) == ("moe-router-pre-softmax" not in told) == shape.sigmoid_router


@pytest.mark.skipif(os.name == "nt", reason="needs bash")
@pytest.mark.parametrize("name", ["torchtitan", "megatron"])
def test_the_script_starts_torchrun_with_every_argument(name: str, tmp_path: Path) -> None:
    done = export_model(SHAPE, 7.8e11, name, tmp_path / "run", gpu=A100, mfu=0.4)
    fake = tmp_path / "bin" / "torchrun"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    given = {
        "MEGATRON": "/m", "TOKENIZER": "t", "DATA": "d d", "CORPUS": "c", "OUTPUT": "o", "RENDEZVOUS": "host:29500",
    }  # fmt: skip
    path = f"{fake.parent}{os.pathsep}{os.environ['PATH']}"
    ran = subprocess.run(
        ["bash", str(tmp_path / "run" / "run.sh"), "--more"],
        env={**os.environ, **given, "PATH": path}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = ran.stdout.splitlines()
    assert words[:4] == ["--nnodes", "2", "--nproc-per-node", "8"]
    assert words[-1] == "--more"
    if name == "torchtitan":
        started = ["torchtitan.train", "--module", "moescale_run", "--config", "train"]
        assert words[words.index("-m") + 1 :][:5] == started
        return
    asked = words[words.index("/m/pretrain_gpt.py") + 1 : -1]
    expected: list[str] = []
    for key, value in megatron_arguments(SHAPE, done.recipe, done.choice.split).items():
        expected += [f"--{key}", value] if value else [f"--{key}"]
    assert asked[: len(expected)] == expected
    rest = asked[len(expected) :]
    assert rest[rest.index("--data-path") + 1] == "d d"
    assert all(word[2:] in FLAGS for word in rest if word.startswith("--"))


@pytest.mark.system
def test_plan_exports_its_recommendation(tmp_path: Path) -> None:
    line = "plan --budget 5.15e21 --bootstrap 0 --shape mixtral --export megatron --train-gpu h100-sxm --train-gpus 64"
    code, out, err = run(*line.split(), "-o", tmp_path / "x", "--vocab-size", 50304, "--peak-lr", 2e-4, "--json")
    assert code == 0, err
    answer = json.loads(out)
    best, found = answer["recommendation"], answer["export"]
    assert found["recipe"]["tokens"] == best["tokens"]
    assert (found["recipe"]["peak_lr"], found["recipe"]["vocab_size"]) == (2e-4, 50304)
    assert (found["parallel"]["gpu"], found["parallel"]["split"]["gpus"]) == ("h100-sxm", 64)
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    shape = best["architecture"]
    assert config["hidden_size"] == shape["d_model"]
    assert config["num_experts"] == shape["n_experts"]
    script, readme = ((tmp_path / "x" / name).read_text() for name in ("serve.sh", "README.md"))
    assert "serve.sh" in found["files"]
    price = format_usd(best["usd_per_mtok"])
    assert f"{price} per million output tokens" in script
    assert f"vLLM on {best['gpus']} x a100-sxm-40gb, weights in bf16: {price} per million output tokens" in readme
    # The plan's FLOPs count 5/3 N a token, the built model's matrices and attention what they are.
    assert math.log(found["parallel"]["training_flops"] / 5.15e21) == pytest.approx(0, abs=0.4)


@pytest.mark.parametrize("shape", ["mixtral", "fine-grained"])
def test_an_export_states_the_flops_and_the_mfu_of_its_plan(shape: str, tmp_path: Path) -> None:
    asked = (
        "plan",
        "--budget",
        "1e22",
        "--gpu",
        "h100-sxm",
        "--shape",
        shape,
        "--objective",
        "loss",
        "--latency",
        "roofline",
    )
    found = json.loads(run(*asked, "--bootstrap", 0, "--export", "megatron", "-o", tmp_path / "launch", "--json").out)
    told = (tmp_path / "launch" / "README.md").read_text()
    flops, mfu = format_flops(found["training"]["flops_used"]), found["training"]["mfu"]
    assert f"{flops} by the count of the plan's law, an MFU of {mfu:.2f}" in told

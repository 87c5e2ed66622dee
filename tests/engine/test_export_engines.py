"""Exports as the real programs read them: `make test-engines`, where those programs are there.

MOESCALE_TORCHTITAN_PYTHON and MOESCALE_MEGATRON_PYTHON: interpreters of environments with torchtitan 0.3 (and triton) and
with megatron-core (and transformers, triton). MOESCALE_MEGATRON: folder of a Megatron-LM checkout, for its own parser.
torchtitan and megatron-core are in none of the extras. An environment for all engine tests:

    python -m venv engines
    engines/bin/pip install -c constraints.txt torch==2.13.0
    engines/bin/pip install -c constraints.txt '.[test,train,track]' torchtitan==0.3.0 megatron-core==0.16.1
    engines/bin/pip install --no-deps triton datasets==5.2.0
    PYTHONPATH=src MOESCALE_MEGATRON=CHECKOUT MOESCALE_VLLM_PYTHON=PYTHON engines/bin/python -m pytest -m engine
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from moescale import catalogue
from moescale.export.launch import Export, export_model
from moescale.hardware.gpus import find_gpu
from moescale.models.rounding import Buildable
from moescale.training.choice import Launch

SHAPE = Buildable(
    n_layers=6, d_model=256, n_heads=4, n_kv_heads=2, head_dim=64, d_ffn=704, n_experts=8, top_k=2, moe_every=2,
    n_params=1.0, n_params_total=1.0,
)  # fmt: skip
# Narrow experts and a shared one (GLM-4-MoE), latent attention with and without a rank of queries (DeepSeek-V3), whose other
# widths are those of the family: vLLM has kernels for these alone.
FINE = replace(SHAPE, n_experts=16, top_k=4, moe_every=1, d_ffn=640, d_expert=128, d_shared_expert=128)
LATENT = replace(
    FINE, n_kv_heads=4, head_dim=192, kv_lora_rank=512, q_lora_rank=96, qk_rope_head_dim=64, v_head_dim=128
)
SHAPES = {
    "experts": SHAPE,
    "dense": replace(SHAPE, n_experts=1, top_k=1),
    "narrow": replace(SHAPE, d_expert=128),
    "fine-grained": FINE,
    "two-shared": replace(FINE, d_shared_expert=256),
    "deepseek": LATENT,
    "whole-queries": replace(LATENT, q_lora_rank=0),
    "dense-latent": replace(LATENT, n_experts=1, top_k=1, d_expert=0, d_shared_expert=0),
}
LARGE = replace(SHAPE, n_layers=32, d_model=8192, n_heads=64, n_kv_heads=16, head_dim=128, d_ffn=21888)

TORCHTITAN = """
import json, sys, torch
from torchtitan.config import ConfigManager
from torchtitan.distributed import ParallelDims

config = ConfigManager().parse_args(["--module", "moescale_run", "--config", "train"])
dims = ParallelDims.from_config(config.parallelism, world_size=int(sys.argv[1]))
spec = config.model_spec
spec.model.update_from_config(config=config)
with torch.device("meta"):
    model = spec.model.build()
schedule = config.lr_scheduler.build(
    optimizers=[torch.optim.AdamW([torch.zeros(1)], **{"lr": config.optimizer.param_groups[0].optimizer_kwargs["lr"]})],
    training_steps=config.training.steps,
)
factor = schedule.schedulers[0].lr_lambdas[0]
print("ANSWER", json.dumps({
    "n_params": sum(p.numel() for p in model.parameters()),
    "moe_layers": [i for i, layer in enumerate(spec.model.layers) if layer.moe is not None],
    "router": [[r.top_k, r.score_func, r.route_norm, r.route_scale]
               for r in (l.moe.router for l in spec.model.layers if l.moe)],
    "saved": {name: list(weight.shape) for name, weight in
              spec.state_dict_adapter(spec.model, None).to_hf(model.state_dict()).items()},
    "sizes": [dims.dp_shard, dims.tp, dims.pp, dims.ep],
    "batch": [config.training.local_batch_size, config.training.global_batch_size, config.training.seq_len],
    "rope": spec.model.layers[0].attention.rope.theta,
    "falls": next(step for step in range(config.lr_scheduler.warmup_steps, config.training.steps) if factor(step + 1) < 1),
    "lr": [factor(step) for step in (0, config.lr_scheduler.warmup_steps, config.training.steps - 1)],
    "optimizer": config.optimizer.param_groups[0].optimizer_kwargs,
    "clip": config.training.max_norm,
}))
"""

FIELDS = """
import dataclasses, json
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer import MLATransformerConfig, TransformerConfig

known = (TransformerConfig, MLATransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
print("ANSWER", json.dumps({c.__name__: [f.name for f in dataclasses.fields(c)] for c in known}))
"""

# Megatron-LM asks for a GPU's capability and, from 0.20, for Python 3.12; its fused RoPE needs Transformer Engine.
MEGATRON = """
import dataclasses, json, os, sys, types, typing
checkout, arguments, world_size = sys.argv[1:]
typing.override = getattr(typing, "override", lambda f: f)
import megatron
megatron.__path__ = [checkout + "/megatron"]
sys.path.insert(0, checkout)
import torch
torch.cuda.get_device_capability = lambda *a: (9, 0)
torch.cuda.get_device_properties = lambda *a: types.SimpleNamespace(major=9, minor=0)
os.environ.update(WORLD_SIZE=world_size, RANK="0", CUDA_DEVICE_MAX_CONNECTIONS="1")  # as run.sh does
import megatron.training.arguments as A
from megatron.training.theoretical_memory_usage import compute_weight_and_optimizer_memory
from megatron.core import parallel_state, tensor_parallel
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec


def model_size(config, args):
    # Parameters of megatron-core's own model on one GPU, built without storage and without Transformer Engine.
    alone = dict(tensor_model_parallel_size=1, pipeline_model_parallel_size=1, expert_model_parallel_size=1)
    one = dataclasses.replace(
        config, **alone, expert_tensor_parallel_size=1, sequence_parallel=False, moe_grouped_gemm=False,
        use_cpu_initialization=True, perform_initialization=False, persist_layer_norm=False, gradient_accumulation_fusion=False, pipeline_dtype=None, moe_token_dispatcher_type="allgather",
    )
    torch.cuda.current_device = lambda: "meta"
    multi_latent_attention.HAVE_TE = False  # it takes Transformer Engine's stand-ins for the thing itself
    made = DotProductAttention.__init__  # holds no parameters; that of Transformer Engine has keys wider than values
    DotProductAttention.__init__ = lambda self, *a, k_channels=None, v_channels=None, **named: made(self, *a, **named)
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    layers = get_gpt_decoder_block_spec(one, use_transformer_engine=False, normalization="RMSNorm")
    with torch.device("meta"):
        model = GPTModel(
            one, layers, vocab_size=args.vocab_size, max_sequence_length=args.seq_length,
            share_embeddings_and_output_weights=not args.untie_embeddings_and_output_weights,
            position_embedding_type=args.position_embedding_type, rotary_base=args.rotary_base,
        )
    return sum(p.numel() for p in model.parameters())


sys.argv = ["pretrain_gpt.py", *json.loads(arguments)]
args = A.parse_args()
sys.stdout, shown = sys.stderr, sys.stdout
A.validate_args(args)
config = A.core_transformer_config_from_args(args)
args.padded_vocab_size = 32000
answer = {
    "data": args.data_parallel_size,
    "weights": compute_weight_and_optimizer_memory(args),
    "pattern": config.moe_layer_freq,
    "router": [config.num_moe_experts, config.moe_router_topk, config.moe_router_score_function,
               config.moe_router_pre_softmax, config.moe_router_topk_scaling_factor, config.moe_router_enable_expert_bias],
    "balancing": [config.moe_router_load_balancing_type, config.moe_aux_loss_coeff, config.moe_router_bias_update_rate],
    "latent": [getattr(config, name, None) for name in
               ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type")],
    "sizes": [config.tensor_model_parallel_size, config.pipeline_model_parallel_size, config.expert_model_parallel_size],
    "ffn": [config.ffn_hidden_size, config.moe_ffn_hidden_size, config.moe_shared_expert_intermediate_size],
    "kind": [type(config).__name__, config.gated_linear_unit, config.add_bias_linear],
    "n_params": model_size(config, args),
    "heads": [config.num_attention_heads, config.num_query_groups, config.kv_channels, config.qk_layernorm],
    "steps": [args.train_iters, args.lr_decay_iters, args.lr_warmup_iters, args.global_batch_size],
    "decay": [args.lr_decay_style, args.lr_wsd_decay_style, args.lr_wsd_decay_iters],
}
print("ANSWER", json.dumps(answer), file=shown)
"""

VLLM = """
import json, sys
from vllm import LLM, SamplingParams
llm = LLM(model=sys.argv[1], load_format="dummy", skip_tokenizer_init=True, enforce_eager=True, max_model_len=64,
          enable_prefix_caching=False, dtype="bfloat16")
out = llm.generate([{"prompt_token_ids": [1, 2, 3]}], SamplingParams(max_tokens=4, ignore_eos=True, detokenize=False))
print("ANSWER", json.dumps(len(out[0].outputs[0].token_ids)))
"""


def export(name: str, shape: Buildable, folder: Path, gpus: int | None = None, schedule: str = "cosine") -> Export:
    launch = Launch(peak_lr=3e-4, schedule=schedule)
    return export_model(shape, 1e10, name, folder, gpu=find_gpu("h100-sxm"), mfu=0.4, gpus=gpus, launch=launch)


def checkpoint_of(folder: Path) -> dict[str, list[int]]:
    """Names and shapes of the checkpoint of transformers' model of a config.json, an expert's matrices one by one."""
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
    config = transformers.AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        weights = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    names: dict[str, list[int]] = {}
    for name, weight in weights.items():
        place, _, part = name.rpartition("mlp.experts.")
        if not place:
            names[name] = list(weight.shape)
            continue
        parts = ("gate_proj", "up_proj") if part == "gate_up_proj" else ("down_proj",)
        experts, rows, columns = weight.shape
        for expert in range(experts):
            for each in parts:
                names[f"{place}mlp.experts.{expert}.{each}.weight"] = [rows // len(parts), columns]
    return names


def interpreter(variable: str, modules: str) -> str:
    python = os.environ.get(variable, sys.executable)
    found = subprocess.run([python, "-c", f"import {modules}"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip(f"no {modules}: set {variable} to an interpreter that has it")
    return python


def run(python: str, code: str, *arguments: str, path: Path | None = None) -> Any:
    """The JSON that a script prints on its line of ANSWER; programs print others around it."""
    added = {"PYTHONPATH": str(path)} if path else {}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | added | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (answer,) = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    return json.loads(answer.removeprefix("ANSWER "))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_torchtitan_builds_the_model(shape: Buildable, tmp_path: Path) -> None:
    gpus = 16
    python = interpreter("MOESCALE_TORCHTITAN_PYTHON", "torchtitan.trainer")
    done = export("torchtitan", shape, tmp_path, gpus)
    found = run(python, TORCHTITAN, str(gpus), path=tmp_path)
    split, recipe = done.choice.split, done.recipe
    assert found["n_params"] == done.n_params_total - biases(shape)
    moe = [i for i in range(shape.n_layers) if shape.n_experts > 1 and (i + 1) % shape.moe_every == 0]
    assert found["moe_layers"] == moe
    router = ["sigmoid", True, 2.5] if shape.sigmoid_router else ["softmax", False, 1.0]
    assert found["router"] == [[shape.top_k, *router]] * len(moe)
    assert found["saved"] == checkpoint_of(tmp_path)
    assert found["sizes"] == [split.data, split.tensor, 1, split.expert]
    assert found["batch"] == [split.micro_batch, recipe.batch_sequences, recipe.sequence_tokens]
    assert found["rope"] == recipe.rope_theta
    # The last step is within a step's change of the end of the cosine.
    assert found["lr"] == pytest.approx([1 / recipe.warmup_steps, 1.0, 0.1], rel=1e-4)
    assert found["falls"] == recipe.warmup_steps
    assert found["optimizer"] == {"lr": recipe.peak_lr, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    assert found["clip"] == 1.0


def test_torchtitan_holds_the_rate_until_the_decay(tmp_path: Path) -> None:
    python = interpreter("MOESCALE_TORCHTITAN_PYTHON", "torchtitan.trainer")
    recipe = export("torchtitan", SHAPE, tmp_path, 16, schedule="wsd").recipe
    found = run(python, TORCHTITAN, "16", path=tmp_path)
    assert found["falls"] == recipe.steps - recipe.decay_steps  # the step before it is the last at the peak
    # One step before the end of 1 - sqrt: a fall of 0.9 of the peak, less half a step's share of it.
    assert found["lr"] == pytest.approx([1 / recipe.warmup_steps, 1.0, 0.1], abs=1 / recipe.decay_steps)


def test_torchtitan_accepts_a_split_with_experts_apart(tmp_path: Path) -> None:
    python = interpreter("MOESCALE_TORCHTITAN_PYTHON", "torchtitan.trainer")
    gpu, launch = find_gpu("a100-sxm-40gb"), Launch(peak_lr=3e-4)
    done = export_model(LARGE, 1e12, "torchtitan", tmp_path, gpu=gpu, mfu=0.4, gpus=1024, launch=launch)
    split = done.choice.split
    assert split.tensor > 1
    assert split.expert > 1
    found = run(python, TORCHTITAN, "1024", path=tmp_path)
    assert found["sizes"] == [split.data, split.tensor, 1, split.expert]
    assert found["n_params"] == done.n_params_total


def test_the_arguments_are_fields_of_megatron_core() -> None:
    python = interpreter("MOESCALE_MEGATRON_PYTHON", "megatron.core")
    found = run(python, FIELDS)
    stated = {name: flag["core"] for name, flag in catalogue.read("megatron.toml")["flags"].items() if "core" in flag}
    assert len(stated) > 30
    for name, place in stated.items():
        kind, field = place.split(".")
        assert field in found[kind], name


def biases(shape: Buildable) -> int:
    """Entries of the routers' biases, which our counts hold and no trainer calls parameters."""
    return shape.n_layers // shape.moe_every * shape.n_experts if shape.sigmoid_router else 0


def parsed(shape: Buildable, gpus: int, folder: Path, schedule: str = "cosine") -> tuple[Export, Any]:
    """An export for Megatron-LM, and what Megatron-LM makes of its arguments."""
    checkout = os.environ.get("MOESCALE_MEGATRON")
    if not checkout:
        pytest.skip("no Megatron-LM: set MOESCALE_MEGATRON to the folder of a checkout")
    python = interpreter("MOESCALE_MEGATRON_PYTHON", "megatron.core, triton")
    done = export("megatron", shape, folder, gpus, schedule)
    lines = [line for line in (folder / "megatron.args").read_text().splitlines() if not line.startswith("#")]
    more = "--tokenizer-type NullTokenizer --vocab-size 32000 --data-path x --split 99,1,0 --no-rope-fusion"
    given = [word for line in (*lines, more) for word in line.split()]
    return done, run(python, MEGATRON, checkout, json.dumps(given), str(gpus))


@pytest.mark.parametrize(
    ("shape", "gpus"),
    [(SHAPES["experts"], 64), *((SHAPES[name], 8) for name in list(SHAPES)[1:]), (LARGE, 512)],
    ids=[*SHAPES, "large"],
)
def test_megatron_lm_parses_and_validates_the_arguments(shape: Buildable, gpus: int, tmp_path: Path) -> None:
    done, found = parsed(shape, gpus, tmp_path)
    split, recipe = done.choice.split, done.recipe
    moe, latent = shape.n_experts > 1, shape.kv_lora_rank > 0
    assert found["data"] == split.data
    assert found["sizes"] == [split.tensor, split.pipeline, split.expert]
    assert found["heads"] == [shape.n_heads, shape.n_kv_heads, shape.head_dim, True]
    assert found["steps"] == [recipe.steps, recipe.steps, recipe.warmup_steps, recipe.batch_sequences]
    assert found["decay"][0] == "cosine"
    assert found["ffn"] == [shape.d_ffn, shape.expert_width if moe else None, shape.d_shared_expert or None]
    assert found["kind"] == ["MLATransformerConfig" if latent else "TransformerConfig", True, False]
    if latent:
        rotated = shape.qk_rope_head_dim
        widths = [shape.kv_lora_rank, shape.head_dim - rotated, rotated, shape.v_head_dim]
        assert found["latent"] == [shape.q_lora_rank or None, *widths, "rope"]
    if moe:
        assert found["pattern"] == [int((i + 1) % shape.moe_every == 0) for i in range(shape.n_layers)]
        router = ["sigmoid", False, 2.5, True] if shape.sigmoid_router else ["softmax", True, None, False]
        assert found["router"] == [shape.n_experts, shape.top_k, *router]
        assert found["balancing"] == (
            ["seq_aux_loss", 1e-4, 1e-3] if shape.sigmoid_router else ["aux_loss", 0.01, 1e-3]
        )
    assert found["n_params"] == done.n_params_total - biases(shape)
    memory = done.choice.memory
    ours = memory.weights_bytes + memory.gradients_bytes + memory.optimizer_bytes
    if not moe and split.pipeline == 1:
        # Megatron's own estimate, which leaves out the norms of heads. (It knows no expert parallelism.)
        assert math.log(ours / found["weights"]) == pytest.approx(0, abs=1e-3)


def test_megatron_lm_takes_the_schedule_with_a_late_decay(tmp_path: Path) -> None:
    done, found = parsed(SHAPE, 8, tmp_path, "wsd")
    assert found["decay"] == ["WSD", "minus_sqrt", done.recipe.decay_steps]


@pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
def test_transformers_builds_the_model(shape: Buildable, tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="needs torch")
    transformers: Any = pytest.importorskip("transformers", reason="needs transformers")
    done = export("hf", shape, tmp_path)
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert sum(p.numel() for p in model.parameters()) == done.n_params_total - biases(shape)
    kept = {name: buffer.numel() for name, buffer in model.named_buffers()}
    assert sum(n for name, n in kept.items() if name.endswith("e_score_correction_bias")) == biases(shape)
    assert kept["model.rotary_emb.inv_freq"] == (shape.qk_rope_head_dim or shape.head_dim) // 2
    assert config.rope_parameters["rope_theta"] == done.recipe.rope_theta
    if shape.model_type == "qwen3_moe":
        assert (config.output_router_logits, config.router_aux_loss_coef) == (True, 0.01)


@pytest.mark.parametrize("name", ["experts", "dense", "fine-grained", "deepseek"])
def test_vllm_serves_the_configuration_with_dummy_weights(name: str, tmp_path: Path) -> None:
    python = os.environ.get("MOESCALE_VLLM_PYTHON", "")
    if not Path(python).is_file():
        pytest.skip("no vLLM: set MOESCALE_VLLM_PYTHON")
    export("hf", SHAPES[name], tmp_path)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    assert run(python, VLLM, str(tmp_path)) == 4

"""A run as a configuration of torchtitan 0.3: a Python module whose function `train` returns a Trainer.Config."""

from __future__ import annotations

from moescale.export.torchrun import torchrun_script
from moescale.io.records import record
from moescale.models.recipe import Recipe
from moescale.models.rounding import Buildable
from moescale.training.parallelism import Split, Trainer

VERSION = "0.3.0"
MODULE = "moescale_run"
# The logits' chunks are the default of torchtitan's ChunkedLossWrapper.
TRAINER = Trainer(states="full", pipeline=False, tensor=True, logit_chunks=8)

NOTES = (
    "torchtitan balances experts by a bias on the choice of experts (arXiv 2408.15664), not by a loss: the paper names "
    "neither",
    "torchtitan starts a document at position 0 and lets it attend to itself alone",
)

_DENSE_IMPORTS = (
    "from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config"
)
_MOE_IMPORTS = """from torchtitan.models.common.config_utils import (
    get_attention_config,
    make_ffn_config,
    make_gqa_config,
    make_moe_config,
    make_routed_experts_config,
    make_router_config,
)"""

_FFN = """make_ffn_config(dim=D_MODEL, hidden_dim=D_FFN, w1_param_init=LINEAR, w2w3_param_init=LINEAR)"""
_EXPERTS = '''

def experts():
    """The experts of a layer: the top {top_k} of a softmax over all, whose scores are not made to sum to one."""
    router = make_router_config(
        dim=D_MODEL,
        num_experts=N_EXPERTS,
        gate_param_init=LINEAR,
        top_k=TOP_K,
        score_func="softmax",
        route_norm=False,
    )
    routed = make_routed_experts_config(
        dim=D_MODEL,
        hidden_dim=D_FFN,
        num_experts=N_EXPERTS,
        top_k=TOP_K,
        param_init={{name: INIT for name in ("w1_EFD", "w2_EDF", "w3_EFD")}},
        comm_backend="standard",
    )
    return make_moe_config(num_experts=N_EXPERTS, router=router, routed_experts=routed)
'''

_TEXT = '''"""{title}

Written by moescale for torchtitan {version}; run.sh starts it. The corpus is $CORPUS: a data set of the hub, or a folder of
JSON lines with a field `text`.
"""

import os
from functools import partial

import torch.nn as nn
from datasets import load_dataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw, register_moe_load_balancing_hook
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.distributed.pipeline_parallel import pipeline_llm
from torchtitan.hf_datasets import DatasetConfig
from torchtitan.hf_datasets.text_datasets import DATASETS, HuggingFaceTextDataLoader
from torchtitan.models.common import CosSinRoPE, Embedding, Linear
{imports}
from torchtitan.models.common.nn_modules import RMSNorm
from torchtitan.models.qwen3 import Qwen3Model, parallelize_qwen3
from torchtitan.models.qwen3.model import Qwen3TransformerBlock
from torchtitan.models.qwen3.state_dict_adapter import Qwen3StateDictAdapter
from torchtitan.protocols.model_spec import ModelSpec
from torchtitan.trainer import Trainer

N_LAYERS, D_MODEL, D_FFN = {n_layers}, {d_model}, {d_ffn}
N_HEADS, N_KV_HEADS, HEAD_DIM = {n_heads}, {n_kv_heads}, {head_dim}
N_EXPERTS, TOP_K, MOE_EVERY = {n_experts}, {top_k}, {moe_every}  # experts in layers number MOE_EVERY, 2 MOE_EVERY .. from 1
VOCAB_SIZE, SEQUENCE_TOKENS = {vocab_size}, {sequence_tokens}

INIT = partial(nn.init.normal_, std={init_std})
LINEAR = {{"weight": INIT, "bias": nn.init.zeros_}}


def norm(width):
    """An RMSNorm."""
    return RMSNorm.Config(normalized_shape=width, eps={rms_norm_eps}, param_init={{"weight": nn.init.ones_}})
{experts}

def layer(number):
    """Layer `number`, from 0."""
    attention = make_gqa_config(
        dim=D_MODEL,
        n_heads=N_HEADS,
        n_kv_heads=N_KV_HEADS,
        head_dim=HEAD_DIM,
        wqkv_param_init=LINEAR,
        wo_param_init=LINEAR,
        inner_attention=get_attention_config("flex"),
        fuse_qkv=True,
        qk_norm=norm(HEAD_DIM),
        rope=CosSinRoPE.Config(dim=HEAD_DIM, max_seq_len=SEQUENCE_TOKENS, theta={rope_theta}),
    )
    {ffn}
    return Qwen3TransformerBlock.Config(
        attention_norm=norm(D_MODEL), ffn_norm=norm(D_MODEL), attention=attention, **ffn
    )


def model_spec():
    """The model, and how torchtitan splits, balances and saves it."""
    model = Qwen3Model.Config(
        dim=D_MODEL,
        vocab_size=VOCAB_SIZE,
        norm=norm(D_MODEL),
        tok_embeddings=Embedding.Config(
            num_embeddings=VOCAB_SIZE, embedding_dim=D_MODEL, param_init={{"weight": INIT}}
        ),
        lm_head=Linear.Config(in_features=D_MODEL, out_features=VOCAB_SIZE, param_init=LINEAR),
        layers=[layer(number) for number in range(N_LAYERS)],
    )
    return ModelSpec(
        name="qwen3",
        flavor="{flavor}",
        model=model,
        parallelize_fn=parallelize_qwen3,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=register_moe_load_balancing_hook,
        state_dict_adapter=Qwen3StateDictAdapter,
    )


def text(sample):
    """The text of a document."""
    return sample["text"]


DATASETS["corpus"] = DatasetConfig(
    path=os.environ.get("CORPUS", "cerebras/SlimPajama-627B"),
    loader=partial(load_dataset, split="train", streaming=True),
    sample_processor=text,
)


def train():
    """The run: {steps:,} steps of {batch_sequences} sequences on {gpus} GPUs."""
    return Trainer.Config(
        model_spec=model_spec(),
        hf_assets_path=os.environ.get("TOKENIZER", "tokenizer"),
        dump_folder=os.environ.get("OUTPUT", "outputs"),
        dataloader=HuggingFaceTextDataLoader.Config(dataset="corpus", infinite=False),
        loss=ChunkedLossWrapper.Config(
            loss_fn=CrossEntropyLoss.Config(global_vocab_size=VOCAB_SIZE), num_chunks={logit_chunks}
        ),
        optimizer=default_adamw(
            lr={peak_lr}, betas=({beta1}, {beta2}), eps={adam_eps}, weight_decay={weight_decay}
        ),
        lr_scheduler=LRSchedulersContainer.Config(
            warmup_steps={warmup_steps}, {decay}, min_lr_factor={min_lr_ratio}
        ),
        training=TrainingConfig(
            local_batch_size={micro_batch},
            global_batch_size={batch_sequences},
            seq_len=SEQUENCE_TOKENS,
            steps={steps},
            max_norm={grad_clip},
            disable_cuda_graphs={no_graphs},
        ),
        parallelism=ParallelismConfig(
            data_parallel_shard_degree={data},
            tensor_parallel_degree={tensor},
            expert_parallel_degree={expert},
        ),
        activation_checkpoint={recompute},
        checkpoint=CheckpointManager.Config(enable=True, interval=1000, last_save_in_hf=True, export_dtype="bfloat16"),
    )
'''


def torchtitan_module(shape: Buildable, recipe: Recipe, split: Split, title: str) -> str:
    """The text of moescale_run.py."""
    moe = shape.n_experts > 1
    ffn = f'ffn = {{"feed_forward": {_FFN}}}'
    if moe:
        ffn = f'if (number + 1) % MOE_EVERY == 0:\n        ffn = {{"moe": experts()}}\n    else:\n        {ffn}'
    values = {**record(shape), **record(recipe), **record(split)}
    values |= {
        "title": title,
        "version": VERSION,
        "imports": _MOE_IMPORTS if moe else _DENSE_IMPORTS,
        "experts": _EXPERTS.format(top_k=shape.top_k) if moe else "",
        "ffn": ffn,
        "flavor": f"{shape.d_model}x{shape.n_layers}" + (f"-{shape.n_experts}-experts" if moe else ""),
        "logit_chunks": TRAINER.logit_chunks,
        # torchtitan: graphs cannot be captured across the all-to-all of this token dispatcher.
        "no_graphs": split.expert > 1,
        "decay": _decay(recipe),
        "recompute": "FullAC.Config()" if split.recompute else "None",
    }
    return _TEXT.format(**values)


def _decay(recipe: Recipe) -> str:
    """Of torchtitan the fall `sqrt` is 1 - sqrt; the steps of a decay are the nearest to its ratio of all."""
    if recipe.schedule == "cosine":
        return 'decay_type="cosine"'
    return f'decay_type="sqrt", decay_ratio={recipe.decay_steps / recipe.steps!r}'


def torchtitan_script(split: Split) -> str:
    """The text of run.sh, to be started on each server."""
    about = (
        f"Starts the run of {MODULE}.py with torchtitan {VERSION}",
        "TOKENIZER: folder with the tokenizer's files. CORPUS: data set. OUTPUT: folder for checkpoints and logs.",
    )
    path = 'export PYTHONPATH="$here${PYTHONPATH:+:$PYTHONPATH}"'
    return torchrun_script(split, about, path, f"-m torchtitan.train --module {MODULE} --config train")

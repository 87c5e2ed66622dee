"""A run as arguments of Megatron-LM's pretrain_gpt.py, one a line; catalogue/megatron.toml says where each was checked."""

from __future__ import annotations

from moescale import catalogue
from moescale.export.templates import torchrun_script
from moescale.models.recipe import Recipe
from moescale.models.rounding import Buildable
from moescale.training.parallelism import Split, Trainer, stages_of

FILE = "megatron.args"
TRAINER = Trainer(states="optimizer", pipeline=True, tensor=True)

Arguments = dict[str, str | int | float | None]  # None: a switch


def notes(shape: Buildable) -> tuple[str, ...]:
    """What of a run the arguments do not say at first sight."""
    if shape.n_experts == 1:
        return ()
    by_bias = "experts are balanced by a bias on their choice and a small loss within a sequence, as DeepSeek-V3 does"
    return (
        "experts are not split by tensor parallelism, and no token is dropped",
        *((by_bias,) if shape.sigmoid_router else ()),
    )


def megatron_arguments(shape: Buildable, recipe: Recipe, split: Split) -> Arguments:
    """Model, experts, sizes, batch and schedule by name without dashes, in the order of the file."""
    experts = _experts(shape, recipe) if shape.n_experts > 1 else {}
    return {**_model(shape, recipe), **experts, **_sizes(shape, split), **_run(recipe, split)}


def _attention(shape: Buildable) -> Arguments:
    if not shape.kv_lora_rank:
        fewer_keys = shape.n_kv_heads < shape.n_heads
        return {"group-query-attention": None, "num-query-groups": shape.n_kv_heads} if fewer_keys else {}
    return {
        "multi-latent-attention": None,
        **({"q-lora-rank": shape.q_lora_rank} if shape.q_lora_rank else {}),
        "kv-lora-rank": shape.kv_lora_rank,
        "qk-head-dim": shape.head_dim - shape.qk_rope_head_dim,
        "qk-pos-emb-head-dim": shape.qk_rope_head_dim,
        "v-head-dim": shape.v_head_dim,
        "rope-type": "rope",  # unsaid, positions are stretched (YaRN); those are the only ones that are fused
        "no-rope-fusion": None,
    }


def _model(shape: Buildable, recipe: Recipe) -> Arguments:
    return {
        "use-mcore-models": None,
        "num-layers": shape.n_layers,
        "hidden-size": shape.d_model,
        "ffn-hidden-size": shape.d_ffn,
        "num-attention-heads": shape.n_heads,
        "kv-channels": shape.head_dim,
        **_attention(shape),
        "qk-layernorm": None,
        "normalization": "RMSNorm",
        "norm-epsilon": recipe.rms_norm_eps,
        "swiglu": None,
        "disable-bias-linear": None,
        "untie-embeddings-and-output-weights": None,
        "position-embedding-type": "rope",
        "rotary-base": round(recipe.rope_theta),
        "seq-length": recipe.sequence_tokens,
        "max-position-embeddings": recipe.sequence_tokens,
        "attention-dropout": 0.0,
        "hidden-dropout": 0.0,
        "init-method-std": recipe.init_std,
        # FlashAttention-2 wants values as wide as keys, which those of latent attention are not.
        "attention-backend": "auto" if shape.kv_lora_rank else "flash",
    }


def _experts(shape: Buildable, recipe: Recipe) -> Arguments:
    period = f"[0]*{shape.moe_every - 1}+[1]*1" if shape.moe_every > 1 else "[1]*1"
    return {
        "num-experts": shape.n_experts,
        "moe-ffn-hidden-size": shape.expert_width,
        **({"moe-shared-expert-intermediate-size": shape.d_shared_expert} if shape.d_shared_expert else {}),
        "moe-layer-freq": f"({period})*{shape.n_layers // shape.moe_every}",
        "moe-router-topk": shape.top_k,
        **_router(shape, recipe),
        "moe-router-dtype": "fp32",
        "moe-grouped-gemm": None,
        "moe-token-dispatcher-type": "alltoall",
    }


def _router(shape: Buildable, recipe: Recipe) -> Arguments:
    if not shape.sigmoid_router:
        return {
            "moe-router-pre-softmax": None,  # scores of the chosen experts are not made to sum to one
            "moe-router-load-balancing-type": "aux_loss",
            "moe-aux-loss-coeff": recipe.balance_loss,
        }
    stated = catalogue.read("routers.toml")["sigmoid"]
    return {
        "moe-router-score-function": "sigmoid",
        "moe-router-topk-scaling-factor": stated["scale"],
        "moe-router-enable-expert-bias": None,
        "moe-router-bias-update-rate": stated["bias_update_rate"],
        "moe-router-load-balancing-type": "seq_aux_loss",
        "moe-aux-loss-coeff": stated["sequence_balance_loss"],
    }


def _sizes(shape: Buildable, split: Split) -> Arguments:
    sizes: Arguments = {"tensor-model-parallel-size": split.tensor, "pipeline-model-parallel-size": split.pipeline}
    stages = stages_of(shape.architecture(), split.pipeline)
    if (
        stages is not None and stages[0] != stages[-1]
    ):  # E: the input table, t: a layer, L: the output layer and the loss
        sizes["pipeline-model-parallel-layout"] = f"E{'|'.join('t' * layers for layers in stages)}L"
    if shape.n_experts > 1:
        sizes |= {"expert-model-parallel-size": split.expert, "expert-tensor-parallel-size": 1}
    if split.tensor > 1:
        sizes["sequence-parallel"] = None
    sizes |= dict.fromkeys(("use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather", "bf16"))
    if split.recompute:
        sizes |= {"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}
    return sizes


def _run(recipe: Recipe, split: Split) -> Arguments:
    return {
        "micro-batch-size": split.micro_batch,
        "global-batch-size": recipe.batch_sequences,
        "train-iters": recipe.steps,
        "lr": recipe.peak_lr,
        "min-lr": recipe.min_lr,
        **_decay(recipe),
        "lr-decay-iters": recipe.steps,
        "lr-warmup-iters": recipe.warmup_steps,
        "weight-decay": recipe.weight_decay,
        "adam-beta1": recipe.beta1,
        "adam-beta2": recipe.beta2,
        "adam-eps": recipe.adam_eps,
        "clip-grad": recipe.grad_clip,
        "log-interval": 10,
        "log-throughput": None,
        "save-interval": 1000,
        "eval-interval": 1000,
        "eval-iters": 10,
    }


def _decay(recipe: Recipe) -> Arguments:
    if recipe.schedule == "cosine":
        return {"lr-decay-style": "cosine"}
    return {"lr-decay-style": "WSD", "lr-wsd-decay-style": "minus_sqrt", "lr-wsd-decay-iters": recipe.decay_steps}


def megatron_file(arguments: Arguments, title: str) -> str:
    """The text of megatron.args: one argument a line, `#` starts a comment."""
    stated = catalogue.read("megatron.toml")
    lines = [
        f"# {title}",
        f"# Arguments of Megatron-LM's pretrain_gpt.py, as in {', '.join(name[:12] for name in stated['checked'])}.",
    ]
    lines += [f"--{name}" if value is None else f"--{name} {value}" for name, value in arguments.items()]
    return "\n".join(lines) + "\n"


def megatron_script(split: Split) -> str:
    """The text of run.sh, to be started on each server from a checkout of Megatron-LM."""
    about = "Starts pretrain_gpt.py of a Megatron-LM checkout, $MEGATRON"
    return torchrun_script(split, "megatron", about, FILE)

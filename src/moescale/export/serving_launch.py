"""The launch line of a priced server for vLLM, SGLang and TensorRT-LLM.

Options as the engines document them: `vllm serve` (docs.vllm.ai, engine arguments, data and expert parallel deployment,
0.19), `sglang.launch_server` (docs.sglang.io, server arguments, 0.5) and `trtllm-serve` (nvidia.github.io/TensorRT-LLM, 1.2),
all read in 2026.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.export.templates import filled
from moescale.models.published import find_shape
from moescale.serving.deployment import Deployment, longest_request_tokens
from moescale.serving.gpu_counts import Cost
from moescale.units import format_usd

IN_ONE_SERVER = 8  # GPUs of a usual server; more need the engine's words on nodes
YAML = "trtllm.yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type to start one replica, and what the line does not say."""

    command: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    model: str
    gpus: int  # of one pipeline stage
    stages: int
    groups: int  # of attention data parallelism
    expert_ways: int
    experts: bool
    requests: int  # of the replica at once
    longest: int  # tokens of a request
    memory_fraction: float
    weight_bytes: float  # of a GPU
    reserve_bytes: float
    memory_bytes: float
    quantise: bool  # 16-bit weights of the checkpoint to fp8
    fp8_cache: bool
    chunked: bool
    pass_tokens: int | None
    drafted: int

    def of_a_group(self, total: int) -> int:
        return max(total // self.groups, 1)


def launch(
    engine: str,
    model: str,
    cost: Cost,
    deployment: Deployment,
    checkpoint_format: str | None = None,
    *,
    most_tokens: int | None = None,
) -> Launch:
    """How to start one replica of the server that `cost` recommends, with `engine`, a name of ENGINES.

    `model` is what the engine loads: a folder, or a name at Hugging Face. `checkpoint_format` is the format of its weights
    where its config says one, `most_tokens` of a request what the model was trained on: by default those of the longest priced. Raises InputError for another engine, and where nothing was recommended.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES, where="--launch")
    if cost.batch is None or cost.tensor_parallel is None:
        raise InputError("no server is recommended", where="--launch")
    weights, stated = deployment.weights or "bf16", checkpoint_format
    stages, groups = cost.pipeline_parallel or 1, cost.attention_dp or 1
    batched, drafted = deployment.max_num_batched_tokens, deployment.draft_tokens
    loop = cost.closed_loop
    clients = math.inf if loop is None else math.ceil((loop.concurrency or 1) / (cost.replicas or 1))
    accepted = float(np.asarray(deployment.accepted_tokens))
    longest = math.ceil(float(np.asarray(longest_request_tokens(deployment))))
    server = _Server(
        model=model,
        gpus=cost.tensor_parallel * groups,
        stages=stages,
        groups=groups,
        expert_ways=cost.expert_parallel or 1,
        experts=cost.n_params_active < cost.n_params_total,
        requests=max(math.floor(min(cost.batch, clients)), 1),
        longest=most_tokens or longest,
        memory_fraction=float(np.asarray(deployment.memory_fraction)),
        weight_bytes=cost.weight_bytes_per_gpu or 0.0,
        reserve_bytes=cost.reserve_bytes or 0.0,
        memory_bytes=deployment.gpu.memory_bytes,
        quantise=weights == "fp8" and stated in (None, "bf16"),
        fp8_cache=float(np.asarray(deployment.kv_bytes_per_element)) == 1.0,
        chunked=deployment.scheduling == "chunked" or batched is not None,
        pass_tokens=None if batched is None else int(np.asarray(batched)),
        drafted=math.ceil(accepted) if drafted is None else int(np.asarray(drafted)),
    )
    notes = _notes(engine, weights, stated, server)
    if server.longest != longest:
        notes += (f"priced: requests of {longest} tokens; the model is trained on sequences of {server.longest}",)
    copies = cost.replicas or 1
    each = (
        f"# one of {copies} replicas, on {cost.gpus_per_replica} x {deployment.gpu.name} each\n" if copies > 1 else ""
    )
    return Launch(command=each + ENGINES[engine](server), notes=notes)


def _notes(engine: str, weights: str, stated: str | None, s: _Server) -> tuple[str, ...]:
    notes: list[str] = []
    if weights not in ("bf16", "fp8") and stated != weights:
        notes.append(f"name a checkpoint in {weights}: engines read the format from its config")
    if weights == "bf16" and stated not in (None, "bf16"):
        notes.append(f"the checkpoint is in {stated}, priced: weights in bf16: add --weights {stated}")
    if s.quantise and engine == "trtllm":
        notes.append("name a checkpoint in fp8: trtllm-serve does not quantise one in 16 bits while it loads")
    if engine == "vllm" and s.experts and 1 < s.expert_ways < s.gpus:
        notes.append(f"vLLM splits whole experts over all {s.gpus} GPUs; priced: {s.expert_ways}")
    if s.gpus * s.stages > IN_ONE_SERVER:
        notes.append(f"{s.gpus * s.stages} GPUs exceed most servers: add the engine's multi-node options")
    if s.drafted:
        notes.append(
            "draft tokens: the command uses the model's heads (multi-token prediction), not a draft model; it "
            "fails for models released without such heads (DeepSeek-V3, GLM-4.5 and later, Qwen3-Next .. have them)"
        )
    notes.append(f"requests of more than {s.longest} tokens are refused: raise the length if yours are longer")
    return tuple(notes)


Options = dict[str, str | int | float | bool | None]  # True: a switch; False and None: left out


def _line(program: str, model: str, options: Options) -> str:
    line = f"{program} {shlex.quote(model)}"
    for name, value in options.items():
        if value is not None and value is not False:
            text = f"{value:.3g}" if isinstance(value, float) else str(value)
            line += f" \\\n  {name}" + ("" if value is True else f" {shlex.quote(text)}")
    return line


def _several(count: int) -> int | None:
    return count if count > 1 else None


def _vllm(s: _Server) -> str:
    drafts = json.dumps({"method": "mtp", "num_speculative_tokens": s.drafted})
    options: Options = {
        "--tensor-parallel-size": s.gpus // s.groups,
        "--pipeline-parallel-size": _several(s.stages),
        "--data-parallel-size": _several(s.groups),
        "--enable-expert-parallel": s.experts and s.expert_ways > 1,
        # Each group of data parallelism schedules its own requests.
        "--max-num-seqs": s.of_a_group(s.requests),
        "--max-model-len": s.longest,
        "--gpu-memory-utilization": s.memory_fraction,
        "--quantization": "fp8" if s.quantise else None,
        "--kv-cache-dtype": "fp8" if s.fp8_cache else None,
        "--max-num-batched-tokens": None if s.pass_tokens is None else s.of_a_group(s.pass_tokens),
        "--speculative-config": drafts if s.drafted else None,
    }
    return _line("vllm serve", s.model, options)


def _sglang(s: _Server) -> str:
    options: Options = {
        "--tp-size": s.gpus,
        "--pp-size": _several(s.stages),
        "--dp-size": _several(s.groups),
        "--enable-dp-attention": s.groups > 1,
        "--ep-size": _several(s.expert_ways) if s.experts else None,
        # With attention data parallelism it divides requests and chunks by the groups itself (server_args.py, 0.5). Its
        # static share holds weights and cache; activations lie beside it.
        "--max-running-requests": max(s.requests, s.groups),
        "--context-length": s.longest,
        "--mem-fraction-static": max(s.memory_fraction - s.reserve_bytes / s.memory_bytes, 0.01),
        "--quantization": "fp8" if s.quantise else None,
        "--kv-cache-dtype": "fp8_e4m3" if s.fp8_cache else None,
        "--chunked-prefill-size": s.pass_tokens,
    }
    if s.drafted:
        options |= {"--speculative-algorithm": "EAGLE", "--speculative-num-steps": s.drafted}
        options |= {"--speculative-eagle-topk": 1, "--speculative-num-draft-tokens": s.drafted + 1}
    return _line("python -m sglang.launch_server \\\n  --model-path", s.model, options)


def _trtllm(s: _Server) -> str:
    # Its share is of the memory that weights and activations leave.
    free = s.memory_bytes - s.weight_bytes - s.reserve_bytes
    cache = s.memory_fraction * s.memory_bytes - s.weight_bytes - s.reserve_bytes
    share = min(max(cache / free, 0.01), 1.0)
    file: list[str] = []
    if s.groups > 1:
        file += ["enable_attention_dp: true"]
    if s.chunked:
        file += ["enable_chunked_prefill: true"]
    if s.fp8_cache:  # the file's part stands for all of it in older versions, so it has the share as well
        file += ["kv_cache_config:", "  dtype: fp8", f"  free_gpu_memory_fraction: {share:.3g}"]
    if s.drafted:
        file += ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {s.drafted}"]
    options: Options = {
        "--tp_size": s.gpus,
        "--pp_size": _several(s.stages),
        "--ep_size": _several(s.expert_ways) if s.experts else None,
        # Its batch is that of one group of attention.
        "--max_batch_size": s.of_a_group(s.requests),
        "--max_seq_len": s.longest,
        "--kv_cache_free_gpu_memory_fraction": share,
        "--max_num_tokens": None if s.pass_tokens is None else s.of_a_group(s.pass_tokens),
        "--extra_llm_api_options": YAML if file else None,
    }
    before = "\n".join([f"cat > {YAML} <<'EOF'", *file, "EOF", ""]) if file else ""
    return before + _line("trtllm-serve", s.model, options)


ENGINES: dict[str, Callable[[_Server], str]] = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}


SERVE = "serve.sh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What a plan priced for serving a model, and under which conditions."""

    cost: Cost
    deployment: Deployment

    @property
    def title(self) -> str:
        """The server and its price in a line."""
        cost, gpu = self.cost, self.deployment.gpu.name
        price = "" if cost.usd_per_mtok is None else f": {format_usd(cost.usd_per_mtok)} per million output tokens"
        return f"vLLM on {cost.gpus} x {gpu}, weights in {self.deployment.weights or 'bf16'}{price}"


def serve_script(server: Server, trained_tokens: int) -> Launch:
    """The text of serve.sh, which starts vLLM on a trained checkpoint in bf16 as it was priced, and what it does not say.

    Requests may be as long as the `trained_tokens` of a sequence. Raises InputError where no server is recommended.
    """
    found = launch("vllm", "MODEL", server.cost, server.deployment, "bf16", most_tokens=trained_tokens)
    line = found.command.replace("vllm serve MODEL", 'vllm serve "${MODEL:-$here}" \\\n  --dtype bfloat16', 1)
    return Launch(command=filled("serve.sh.j2", title=server.title, line=line), notes=found.notes)


def published_name(name: str) -> str:
    """The name at Hugging Face of a published model of the catalogue; as asked where it has an organisation."""
    if "/" in name:
        return name.strip()
    shape = find_shape(name)
    alias = next((one for one in shape.hf if one.rpartition("/")[2].lower() == name.strip().lower()), None)
    if alias is not None:
        return alias
    # Sources read `config.json of ORGANISATION/NAME`; without one, the first of the names that were released.
    found = re.search(r"config\.json(?: and model card)? of ([\w.-]+/[\w.-]*\w)", shape.source)
    return found[1] if found else (*shape.hf, name)[0]

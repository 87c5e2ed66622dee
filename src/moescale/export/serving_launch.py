"""The launch line of a priced server for vLLM, SGLang and TensorRT-LLM.

Options as the engines document them: `vllm serve` (docs.vllm.ai, engine arguments, data and expert parallel deployment,
0.19), `sglang.launch_server` (docs.sglang.io, server arguments, 0.5) and `trtllm-serve` (nvidia.github.io/TensorRT-LLM, 1.2),
all read in 2026.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from moescale.errors import InputError, unknown_name
from moescale.export.trainers import filled
from moescale.models.published import find_shape
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import Cost
from moescale.units import format_usd

IN_ONE_SERVER = 8  # GPUs of a usual server; more need the engine's words on nodes
BEYOND_MEAN, USUAL_TOKENS = 4.0, 4096  # of the mean request; what models admit whose context is not stated
ENGINES = ("vllm", "sglang", "trtllm")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to type to start one replica, and what the line does not say."""

    command: str
    notes: tuple[str, ...] = ()


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
    where its config says one, `most_tokens` of a request what the model was made for: by default those of the longest priced.
    Raises InputError for another engine, and where nothing was recommended.
    """
    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES, where="--launch")
    if cost.batch is None or cost.tensor_parallel is None:
        raise InputError("no server is recommended", where="--launch")
    tokens = float(np.asarray(deployment.longest_tokens))
    priced, stated = math.ceil(tokens), deployment.longest_request_tokens is not None
    admitted = tokens if stated else max(BEYOND_MEAN * tokens, USUAL_TOKENS)
    s = _replica(cost, cost.batch, deployment, checkpoint_format) | {"longest": most_tokens or math.ceil(admitted)}
    refused = f"requests of more than {s['longest']} tokens are refused: raise the length if yours are longer"
    if most_tokens is None and s["longest"] > 2 * USUAL_TOKENS:
        refused += ", and lower it if the model's context is shorter"
    if s["longest"] != priced:
        refused += f" (priced: {priced})"
    file = filled("trtllm.yaml.j2", s=s) if engine == "trtllm" else ""
    line = filled(f"{engine}.j2", s=s, model=shlex.quote(model), file=file).rstrip("\n")
    before = f"cat > trtllm.yaml <<'EOF'\n{file}EOF\n" if file else ""
    if (copies := cost.replicas or 1) > 1:
        before = f"# one of {copies} replicas, on {cost.gpus_per_replica} x {deployment.gpu.name} each\n{before}"
    notes = (*_notes(engine, deployment.weights or "bf16", checkpoint_format, s), refused)
    return Launch(command=before + line.replace("\n--", " \\\n  --"), notes=notes)


def _replica(cost: Cost, batch: float, deployment: Deployment, stated: str | None) -> dict[str, Any]:
    """What the templates of the engines say of a replica."""
    groups, loop, memory = cost.attention_dp or 1, cost.closed_loop, deployment.gpu.memory_bytes
    batched, drafted = deployment.max_num_batched_tokens, deployment.draft_tokens
    clients = math.inf if loop is None else math.ceil((loop.concurrency or 1) / (cost.replicas or 1))
    fraction, reserve = float(np.asarray(deployment.memory_fraction)), cost.reserve_bytes or 0.0
    held = (cost.weight_bytes_per_gpu or 0.0) + reserve
    return {
        "gpus": (cost.tensor_parallel or 1) * groups,  # of one pipeline stage
        "stages": cost.pipeline_parallel or 1,
        "groups": groups,  # of attention data parallelism
        "expert_ways": cost.expert_parallel or 1,
        "experts": cost.n_params_active < cost.n_params_total,
        "requests": max(math.floor(min(batch, clients)), 1),  # of the replica at once
        "memory_fraction": fraction,
        "static_share": max(fraction - reserve / memory, 0.01),  # of a GPU's memory: weights and cache
        "cache_share": min(max((fraction * memory - held) / (memory - held), 0.01), 1.0),  # of what both leave
        "quantise": deployment.weights == "fp8" and stated in (None, "bf16"),  # while 16-bit weights are loaded
        "cache_bytes": (cache_bytes := float(np.asarray(deployment.kv_bytes_per_element))),
        "fp8_cache": cache_bytes == 1.0,
        "apart": deployment.scheduling != "chunked",
        "chunked": deployment.scheduling == "chunked" or batched is not None,
        "pass_tokens": None if batched is None else int(np.asarray(batched)),
        "drafted": math.ceil(float(np.asarray(deployment.accepted_tokens if drafted is None else drafted))),
    }


def _notes(engine: str, weights: str, stated: str | None, s: Mapping[str, Any]) -> Iterator[str]:
    gpus, stages, ways = s["gpus"], s["stages"], s["expert_ways"]
    if weights not in ("bf16", "fp8") and stated != weights:
        yield f"name a checkpoint in {weights}: engines read the format from its config"
    if weights == "bf16" and stated not in (None, "bf16"):
        yield f"the checkpoint is in {stated}, priced: weights in bf16: add --weights {stated}"
    if s["quantise"] and engine == "trtllm":
        yield "name a checkpoint in fp8: trtllm-serve does not quantise one in 16 bits while it loads"
    if engine == "vllm" and s["experts"] and 1 < ways < gpus:
        yield f"vLLM splits whole experts over all {gpus} GPUs; priced: {ways}"
    if gpus * stages > IN_ONE_SERVER:
        yield f"{gpus * stages} GPUs exceed most servers: add the engine's multi-node options"
    if s["cache_bytes"] < 1.0:
        yield f"the line starts a cache of 16 bits: no option for one of {s['cache_bytes']:g} bytes is known; priced with that"
    if engine == "vllm" and s["apart"] and not s["chunked"]:
        yield "vLLM mixes prompts with decoding; priced: passes of their own (--scheduling separate)"
    if s["drafted"]:
        yield (
            "draft tokens: the command uses the model's heads (multi-token prediction), not a draft model; it "
            "fails for models released without such heads (DeepSeek-V3, GLM-4.5 and later, Qwen3-Next .. have them)"
        )


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
    """serve.sh, which starts vLLM on a checkpoint in bf16 as priced, for requests of `trained_tokens`; InputError for no server."""
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

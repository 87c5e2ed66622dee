"""What servers do around the kernels: engines and hosts of catalogue/servers.toml."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache

import numpy as np

from moescale import catalogue
from moescale.errors import unknown_name
from moescale.models.architecture import Architecture
from moescale.typing import FloatArray, Real


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """How an engine fills passes, admits requests and launches kernels; the default adds nothing to kernels and prices."""

    name: str = ""
    scheduling: str = "separate"  # chunked: prompts ride in passes that decode
    reserves: bool = False  # a request is admitted when the cache holds it at full length, so that none is evicted
    asynchronous: bool = False  # the host schedules the next pass while the GPU runs
    max_num_batched_tokens: int | None = None  # None: vLLM's for the GPU
    fused_norms: bool = False  # of queries and keys, with their rotary positions
    # Passes with prompts launch their kernels one by one, which takes so long a layer at least; those of few tokens replay
    # captured graphs between attention kernels.
    hybrid_layer_s: float = 0.0  # of experts in a model that has layers with a state
    expert_layer_s: float = 0.0
    dense_layer_s: float = 0.0
    graph_tokens: float = 0.0
    graph_expert_layer_s: float = 0.0
    graph_dense_layer_s: float = 0.0
    # Passes that decode until the scheduler looks for new requests again.
    receive_interval: int = 1
    # Prompts are held back for so many passes at most, until they and what decodes are this share of a pass's tokens.
    batch_wait_passes: int = 0
    batch_wait_share: float = 0.0
    # The same until each attention group has one: others idle beside a single one.
    balance_passes: int = 0

    def floor_s(self, model: Architecture, tokens: Real) -> FloatArray:
        """Seconds that a pass with prompts takes at least, of so many tokens on the busiest GPU."""
        sparse, few = np.asarray(model.n_moe_layers) > 0, np.asarray(tokens) <= self.graph_tokens
        of_experts = np.where(np.asarray(model.n_linear_layers) > 0, self.hybrid_layer_s, self.expert_layer_s)
        captured = np.where(sparse, self.graph_expert_layer_s, self.graph_dense_layer_s)
        return model.n_layers * np.where(few, captured, np.where(sparse, of_experts, self.dense_layer_s))


NO_ENGINE = Engine()


@cache
def engines() -> dict[str, Engine]:
    """The presets by name."""
    known, entries = {field.name for field in fields(Engine)}, catalogue.read("servers.toml")["engine"]
    return {entry["name"]: Engine(**{k: v for k, v in entry.items() if k in known}) for entry in entries}


def engine_of_latency(name: str) -> Engine:
    """The preset of a latency source by its name (`open_latency`): vLLM's where none is named, none of a measured table."""
    kind, _, rest = name.partition(":")
    if kind not in ("silicon", "roofline", "auto"):
        return NO_ENGINE
    return engines().get(rest or "vllm", NO_ENGINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverhead:
    """Time of the server's CPU side; published figures and their sources are in catalogue/servers.toml."""

    per_pass_s: float  # scheduling, sampling, input preparation of one pass
    per_sequence_s: float  # the same, for each running sequence
    gap_s: float  # what stays visible between two passes when the host works on the next one while the GPU runs
    # Whether the host works on the next pass while the GPU runs (vLLM's default since 0.14), so that the longer of the two
    # sets the pace. In line is the default: docs/evidence/serving.md says why.
    asynchronous: bool = False

    def pass_s(self, kernels_s: FloatArray, sequences: Real) -> FloatArray:
        """Seconds of passes whose kernels take `kernels_s` with `sequences` running; the arguments broadcast."""
        host_s = self.per_pass_s + self.per_sequence_s * np.asarray(sequences, dtype=np.float64)
        return np.maximum(kernels_s, host_s) + self.gap_s if self.asynchronous else kernels_s + host_s


NO_OVERHEAD = HostOverhead(per_pass_s=0.0, per_sequence_s=0.0, gap_s=0.0)

HOSTS = {
    "none": "kernels alone",
    "in-line": "vLLM's published host times around each pass (as it ran before 0.14)",
    "asynchronous": "the same times while the GPU runs; the longer of the two sets the pace",
}


@cache
def default_overhead() -> HostOverhead:
    """The published host overheads of catalogue/servers.toml, in line with the kernels."""
    figures = {name: float(entry["value"]) for name, entry in catalogue.read("servers.toml")["host_overhead"].items()}
    return replace(NO_OVERHEAD, **figures)


def find_host(name: str) -> HostOverhead:
    """The host called `name` in HOSTS; raises InputError for another."""
    if (wanted := name.strip().lower()) not in HOSTS:
        raise unknown_name("host", name, HOSTS)
    return NO_OVERHEAD if wanted == "none" else replace(default_overhead(), asynchronous=wanted == "asynchronous")

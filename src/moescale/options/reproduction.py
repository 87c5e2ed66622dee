"""How the paper's claims are computed again, as users state it: a named server, and what differs from it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale import catalogue
from moescale.bounds import GPUS, REQUEST_TOKENS, RESERVED
from moescale.errors import InputError, unknown_name
from moescale.options.fields import Remark, Seconds, at_option, flag, ignore, listed, path, quantity, text, within
from moescale.options.serving import NODE, ServingOptions

if TYPE_CHECKING:
    from moescale.planning.candidate import Costs
    from moescale.serving.deployment import Deployment

PAPER_SERVER, TODAY = "yun2024", "today"
HOST_TIME, COUNT = Seconds(""), within(GPUS)


def servers() -> dict[str, dict[str, Any]]:
    """The named servers of catalogue/paper_servers.toml: each part with its value and source."""
    return {
        name: {k: v for k, v in s.items() if k != "date"} for name, s in catalogue.read("paper_servers.toml").items()
    }


@dataclass(frozen=True, kw_only=True)
class ReproductionOptions(ServingOptions):
    """A server for the paper's models: a named one, but for the options that are stated; and what to answer.

    >>> costs = ReproductionOptions(server="today", latency="roofline", max_num_seqs="256").costs()
    """

    server: str = text("Server: yun2024 (vLLM of early 2024) or today; options replace parts.", default=PAPER_SERVER)
    prompt: float | None = quantity("Mean prompt tokens per request; default: the server's.", REQUEST_TOKENS)
    output: float | None = quantity("Mean output tokens per request; default: the server's.", REQUEST_TOKENS)
    max_num_seqs: str | None = text("Most concurrent requests; default: the server's (none).", metavar="INT|none")
    reserve: float | None = quantity("Memory of each GPU for the runtime; default: the server's (0).", RESERVED)
    summary: bool = flag("Count numbers and claims that hold, and over the law's draws, instead of listing claims.")
    figure: str | None = text("Draw this figure (1 to 6, 8, or verdict) instead; -o names its folder.", metavar="N")
    folder: Path | None = path("Folder for the claims and all figures (SVG, PDF, PNG, CSV).", name="-o")
    convention: str | None = text("How activated parameters are counted: paper, exact or dense; default: the law's.")
    moe_execution: str | None = text("Execution of experts: fused or all-experts; default: the server's.")
    gpu_counts: str | None = text("GPU counts to try, such as 1,2,4,8; default: all.", metavar="LIST")
    gpu_memory: float | None = quantity("Memory of each GPU, such as 80GiB.", 1e9, RESERVED.most, unit="bytes")
    context: float | None = quantity("Tokens of cache of a request; default: prompt + output / 2.", REQUEST_TOKENS)
    vocab_size: int | None = quantity("Vocabulary of embeddings that are served; default: none.", 2, whole=True)
    layer_width: float | None = quantity("Width over depth of the models; default: the paper's, 111.", 1, 1e4)
    host_times: str | None = text("CPU time of a pass and a sequence: 1.4ms,0.103ms.", metavar="PASS,SEQUENCE")

    def __post_init__(self) -> None:
        """Parts that are not stated are the server's."""
        super().__post_init__()
        if self.server not in servers():
            raise unknown_name("server", self.server, servers(), where="--server")
        usual = {field.name: field.default for field in fields(self)}
        for name, part in servers()[self.server].items():
            if getattr(self, name) == usual[name] and not (name in ("prompt", "output") and self.trace is not None):
                object.__setattr__(self, name, part["value"])

    def deployment(self, *, remark: Remark = ignore, **given: Any) -> Deployment:
        """As for a plan, with every GPU count tried and batches that fill what memory and the cap allow, as in the paper."""
        from moescale.latency.engines import NO_ENGINE, NO_OVERHEAD

        found = super().deployment(remark=remark, **given)
        counts = [*range(1, (self.max_gpus or NODE) + 1)]
        if self.gpu_counts is not None:
            counts = [int(COUNT.parse(part, "--gpu-counts")) for part in listed("--gpu-counts", self.gpu_counts)]
        changes: dict[str, Any] = {"batching": "largest", "tensor_parallel_degrees": tuple(counts), "engine": NO_ENGINE}
        if self.host is None:
            changes["host"] = NO_OVERHEAD
        if self.gpu_memory is not None:
            changes["gpu"] = replace(found.gpu, memory_bytes=self.gpu_memory)
        if self.context is not None:
            longest = max(float(found.longest_tokens), self.context)
            changes |= {"context_tokens": self.context, "longest_request_tokens": longest}
        if self.host_times is not None:
            parts = [part.strip() for part in self.host_times.split(",")]
            times = [0.0 if part == "0" else HOST_TIME.parse(part, "--host-times") for part in parts]
            if len(times) != 2:
                what = f"{self.host_times!r} is not two times"
                raise InputError(what, where="--host-times", next_step="such as 1.4ms,0.103ms")
            changes["host"] = replace(NO_OVERHEAD, per_pass_s=times[0], per_sequence_s=times[1])
        return replace(found, **changes)

    def costs(self, remark: Remark = ignore) -> Costs:
        """Serving costs of the paper's models on this server."""
        from moescale.latency import with_moe_execution
        from moescale.models.family import find_family
        from moescale.planning.candidate import Costs

        deployment = self.deployment(remark=remark)
        with at_option("--moe-execution"):
            latency = with_moe_execution(self.open_latency(deployment, remark=remark), str(self.moe_execution))
        family = find_family("yun2024")
        if self.layer_width is not None:
            family = replace(family, d_model_per_layer=self.layer_width)
        return Costs(family, latency, deployment, self.kv_heads, self.vocab_size)

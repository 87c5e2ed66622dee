"""What `cost` is asked, as users state it: the model, its server, a burst of requests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.bounds import GPUS, PARAMETERS, Bound
from moescale.errors import InputError
from moescale.options.fields import LEAST, Group, Remark, flag, ignore, path, quantity, refuse, text
from moescale.options.serving import ServingOptions
from moescale.units import plural

if TYPE_CHECKING:
    from moescale.serving.deployment import Deployment

faster = partial(quantity, panel="Caching and speculative decoding")
SIMULATED = Bound(1, 1e5, whole=True)  # clients or requests: far beyond what a server is asked
PERCENTILE = Bound(1, 99.9)
MOST_DRAFTED = 64  # tokens a pass: beyond, few are kept of any draft


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Group):
    """A model that is there already, or one of a size."""

    HEADING = "Model"

    published: str | None = text("Published model, a config.json, or a plan's row; see `moescale models`.", name="NAME")
    config: Path | None = path("Model by its Hugging Face config.json, or its folder.")
    n_params: float | None = quantity("Model by its dense-equivalent size N.", 1e5, PARAMETERS.most)
    experts: int | None = quantity("Experts E, with --n-params; default 1 (dense).", whole=True)
    top_k: int | None = quantity("Active experts per token, with --n-params; default: the shape's.", whole=True)
    shape: str | None = text("Shape, with --n-params: paper, mixtral, fine-grained or deepseek; default: paper.")
    vocab_size: int | None = quantity("Vocabulary, with --n-params; default: no embeddings.", 2, whole=True)

    def __post_init__(self) -> None:
        """A NAME that is a path states a config."""
        super().__post_init__()
        named = self.published
        if named and self.config is None and (named.endswith(".json") or (Path(named) / "config.json").is_file()):
            object.__setattr__(self, "config", Path(named))
            object.__setattr__(self, "published", None)


@dataclass(frozen=True, kw_only=True)
class CostServingOptions(ServingOptions):
    """How one model is served: as for a plan, with replicas, and with a server's and a checkpoint's own defaults."""

    max_gpus: int = quantity("Most GPUs of all replicas together; with --request-rate of one.", GPUS, default=8)
    calibrated: bool = flag("Show the price corrected by the error of held-out servings of its kind, too.")
    gpus: int | None = quantity("Exact number of GPUs of all replicas together; with --request-rate of one.", GPUS)
    replicas: int | None = quantity("Replicas, on equal GPUs; default: 1, or the fewest for --concurrency.", whole=True)
    pipeline_parallel: int = quantity("Pipeline stages of a replica.", GPUS, default=1)
    prefill_gpus: str | None = text("GPUs for prefill only; auto: the fewest or cheapest.", metavar="INT|auto")
    decode_gpus: str | None = text("GPUs for decode only, or auto.", metavar="INT|auto")
    max_num_batched_tokens: int | None = faster("Most tokens per pass; default: no limit.", whole=True)
    prefix_hit: float | None = faster("Share of prompt tokens found in the prefix cache; default 0.", 0, 1)
    speculative: float | None = faster("Accepted draft tokens per pass, such as 0.85; default 0.", 0, MOST_DRAFTED)
    draft_tokens: int | None = faster("Draft tokens per pass; default: of --speculative.", 1, MOST_DRAFTED, whole=True)
    launch: str | None = text("Print the launch command for vllm, sglang or trtllm.", metavar="ENGINE")

    def deployment(self, *, remark: Remark = ignore, **given: Any) -> Deployment:
        """As for a plan, with replicas, parallelism and what speeds the server up."""
        found = super().deployment(remark=remark, **given)
        accepted, drafted = self.speculative or 0.0, self.draft_tokens
        if not accepted:
            refuse(self, ("draft_tokens",), "goes with --speculative", "add it, or leave this out")
        if drafted is not None and accepted > drafted:
            what = f"{accepted:g} accepted tokens exceed {drafted} draft tokens"
            raise InputError(what, where="--speculative", nearest=f"{drafted}")
        replicas = self.replicas or 1
        if self.max_gpus < replicas:
            what = f"{plural(self.max_gpus, 'GPU')} cannot hold {replicas} replicas"
            raise InputError(what, where="--max-gpus", nearest=f"{replicas}")
        return replace(
            found,
            max_gpus=self.gpus_of_replica() or self.max_gpus // replicas,
            replicas=float(replicas),
            searches_groups=found.searches_groups and self.pipeline_parallel == 1,
            pipeline_parallel=float(self.pipeline_parallel),
            max_num_batched_tokens=self.max_num_batched_tokens,
            prefix_hit=self.prefix_hit or 0.0,
            accepted_tokens=accepted,
            draft_tokens=drafted,
        )

    def gpus_of_replica(self) -> int | None:
        """Exactly so many GPUs of each replica; None where they are not stated."""
        if self.gpus is None:
            return None
        replicas = self.replicas or 1
        if self.gpus % replicas:
            what = f"{plural(self.gpus, 'GPU')} cannot be shared evenly by {replicas} replicas"
            nearest = max(round(self.gpus / replicas), 1) * replicas
            raise InputError(what, where="--gpus", nearest=f"{nearest}")
        return self.gpus // replicas


@dataclass(frozen=True, kw_only=True)
class LoadOptions(Group):
    """What a server is asked: a closed loop, an open loop, or a simulated burst; without any, all that it can do."""

    HEADING = "Load"

    concurrency: int | None = quantity("Concurrent clients (closed loop), of ten requests each.", SIMULATED)
    request_rate: float | None = quantity("Requests per second (Poisson); finds the replicas for the limits.", LEAST)
    percentile: float | None = quantity("Percentile at which the limits hold; default: the means.", PERCENTILE)
    burst: int | None = quantity("Number of requests to simulate, pass by pass.", SIMULATED)

    def check(self, serving: CostServingOptions) -> None:
        """InputError where a load goes with none of the other options."""
        from moescale.latency.engines import engine_of_latency

        rated = self.request_rate or self.concurrency
        if self.percentile is not None and (rated is None or self.burst is not None):
            next_step = "add one, without --burst, or leave this out"
            raise InputError("goes with --request-rate or --concurrency", where="--percentile", next_step=next_step)
        if self.request_rate is not None and self.burst is None and (serving.replicas or 1) > 1:
            what = "finds the number of replicas by itself"
            raise InputError(what, where="--request-rate", next_step="leave out --replicas, or add --burst 500")
        if serving.utilization != 1.0 and (rated or self.burst) is not None:
            what = "is a share of full servers; a rate of requests, clients or a burst say themselves what is used"
            raise InputError(what, where="--utilization", next_step="leave it out")
        mixes = (serving.scheduling or engine_of_latency(serving.latency).scheduling) == "chunked"
        if serving.max_num_batched_tokens is not None and not (mixes or rated or self.burst):
            what = "applies to chunked scheduling, closed loops and simulated runs only"
            raise InputError(what, where="--max-num-batched-tokens", next_step="add --scheduling chunked")

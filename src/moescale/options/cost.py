"""What `cost` is asked, as users state it: the model, its server, a burst of requests, a sweep of operating points."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.errors import InputError, MoescaleError, located
from moescale.options.fields import (
    LEAST,
    MOST,
    MOST_BATCH,
    MOST_PARAMETERS,
    FilePath,
    Flag,
    Group,
    Quantity,
    Remark,
    Text,
    listed,
    unsaid,
)
from moescale.options.serving import DEFAULT_GPU, SERVER, ServingOptions

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu, Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.models.quantisation import CheckpointWeights
    from moescale.serving.deployment import Deployment
    from moescale.serving.operating_points import OperatingPoints
    from moescale.serving.simulator import Run

BURST, SWEEP = "Simulated burst", "All operating points"
LEAST_MEASURED_BYTES = 0.75  # a weight, scales included: formats of fewer have no measured kernels here
SWEPT_WEIGHTS = "bf16,fp8,int4"
SERVER_CACHES = "bf16,fp8"  # what vLLM's --kv-cache-dtype knows (docs.vllm.ai, quantized KV cache)


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Group):
    """A model that is there already, or one of a size."""

    config: Annotated[Path | None, FilePath("Hugging Face config.json, or its folder.")] = None
    n_params: Annotated[
        float | None, Quantity("Instead of --config: dense-equivalent size N.", 1e5, MOST_PARAMETERS)
    ] = None
    experts: Annotated[int | None, Quantity("With --n-params: experts E; default 1, dense.", whole=True)] = None
    top_k: Annotated[int | None, Quantity("With --n-params: experts a token meets; default 2.", whole=True)] = None
    vocab_size: Annotated[
        int | None,
        Quantity("With --n-params: rows of the embedding tables, as `plan` counts them; default: none.", 2, whole=True),
    ] = None

    def model(
        self, kv_heads: int | None = None, remark: Remark = unsaid
    ) -> tuple[Architecture, CheckpointWeights | None]:
        """The model, and where a config states it, the format of its weights."""
        from moescale.models.hf_config import read_config

        if (self.config is None) == (self.n_params is None):
            raise InputError(
                "give the model either as --config CONFIG.json or as --n-params N with --experts E",
                next_step="for example --n-params 1.5B --experts 16",
            )
        if self.config is None:
            return self._of_size(kv_heads, remark), None
        of_size = {"experts": self.experts, "top-k": self.top_k, "kv-heads": kv_heads, "vocab-size": self.vocab_size}
        for name, value in of_size.items():
            if value is not None:
                what = "goes with --n-params; a config states its own"
                raise InputError(what, where=f"--{name}", next_step="leave it out")
        checkpoint = read_config(self.config)
        for text in checkpoint.remarks:
            remark(text)
        return checkpoint.architecture, checkpoint.weights

    def _of_size(self, kv_heads: int | None, remark: Remark) -> Architecture:
        from moescale.models.accounting import count_parameters
        from moescale.models.family import architecture, find_family
        from moescale.units import format_count

        assert self.n_params is not None
        count = self.experts or 1
        if self.top_k is not None and self.top_k > max(count, 2):
            remark(f"--top-k {self.top_k}: a token meets all {count} experts, there are no more")
        family = replace(find_family("yun2024"), top_k=self.top_k or 2, kv_heads=kv_heads)
        model = architecture(family, self.n_params, float(count), vocab_size=self.vocab_size)
        if count == 1:
            return model
        # N leaves the experts' copies out: who states all parameters of a model as N gets many times the model meant.
        total = format_count(float(count_parameters(model).total))
        name = f"N = {format_count(self.n_params)} with {count} experts ({total} parameters in all)"
        return replace(model, name=name)


@dataclass(frozen=True, kw_only=True)
class CostServingOptions(ServingOptions):
    """How one model is served: as for a plan, with replicas, and with a server's and a checkpoint's own defaults."""

    gpu: Annotated[str, Text("GPU of the catalogue, such as h100-sxm; with --sweep several, with commas between.")] = (
        DEFAULT_GPU
    )
    max_gpus: Annotated[int, Quantity("Most GPUs of all replicas together.", 1, 1024, whole=True)] = 8
    gpus: Annotated[int | None, Quantity("Exactly so many GPUs, of all replicas together.", 1, 1024, whole=True)] = None
    replicas: Annotated[
        int, Quantity("Copies of the model, which share the GPUs evenly.", whole=True, panel=SERVER)
    ] = 1
    max_num_seqs: Annotated[
        str | None,
        Text("Most concurrent requests, or none; default: vLLM's for that GPU.", metavar="INT|none", panel=SERVER),
    ] = None
    weights: Annotated[
        str | None, Text("bf16, fp8, int4, nvfp4 or mxfp4; default: what the config states, else bf16.", panel=SERVER)
    ] = None
    kv_cache: Annotated[
        str | None, Text("Number format of the KV cache: bf16 (default), fp8 or int4.", panel=SERVER)
    ] = None

    def cap(self, gpu: Gpu) -> float | None:
        return float(gpu.default_max_num_seqs) if self.max_num_seqs is None else super().cap(gpu)

    def n_replicas(self) -> int:
        return self.replicas

    def max_gpus_of_replica(self) -> int:
        if self.max_gpus < self.replicas:
            what = f"{self.max_gpus} GPUs are too few for {self.replicas} replicas"
            raise InputError(what, where="--max-gpus", nearest=f"{self.replicas}")
        return self.gpus_of_replica() or self.max_gpus // self.replicas

    def gpus_of_replica(self) -> int | None:
        """Exactly so many GPUs of each replica; None where they are not stated."""
        if self.gpus is None:
            return None
        if self.gpus % self.replicas:
            raise InputError(
                f"{self.gpus} GPUs cannot be shared evenly by {self.replicas} replicas",
                where="--gpus",
                nearest=f"{max(round(self.gpus / self.replicas), 1) * self.replicas}",
            )
        return self.gpus // self.replicas

    def has_price(self, remark: Remark = unsaid) -> bool:
        """Whether an hour of the GPU has a price; a remark where it has none: everything but the dollars is answered."""
        from moescale.hardware.gpus import usd_per_gpu_hour

        gpu = self.find_gpu()
        if self.stated_price() is not None:
            return True
        try:
            usd_per_gpu_hour(gpu)
        except InputError as error:
            remark(f"no dollars, because {error.what}; pass --usd-per-gpu-hour with what you pay")
            return False
        return True

    def open_latency(
        self, deployment: Deployment, model: Architecture | None = None, remark: Remark = unsaid
    ) -> LatencySource:
        source = super().open_latency(deployment, model, remark)
        if source.name.startswith("silicon") and float(deployment.weight_bytes_per_param) < LEAST_MEASURED_BYTES:
            remark(
                "4-bit products and experts are not read from the measured kernels yet: bf16 kernels scaled by the roofline"
            )
        return source

    def weight_formats(
        self, checkpoint: CheckpointWeights | None, swept: str | None = None, remark: Remark = unsaid
    ) -> list[Precision]:
        """The formats to price: those of --weights or `swept`, else the checkpoint's; none where neither says any.

        A format that is asked for by the checkpoint's name has the checkpoint's bytes, and another one is remarked on.
        """
        from moescale.hardware.gpus import Precision

        option, asked = ("--weights", self.weights) if swept is None else ("--sweep-weights", swept)
        formats = [] if asked is None else _precisions("weights", listed(option, asked) if swept else [asked], option)
        if checkpoint is None:
            return formats
        if checkpoint.kv_cache is not None and self.kv_cache is None:
            name = checkpoint.kv_cache
            remark(f"the checkpoint asks for an {name} KV cache, which is an option here: --kv-cache {name}")
        if checkpoint.format is None:
            if asked is None:
                raise InputError(
                    f"quantization_config {checkpoint.stated}",
                    where="--config",
                    next_step="state the nearest format of the weights, such as --weights fp8",
                )
            remark(f"quantization_config {checkpoint.stated}; priced with {option} {asked}")
            return formats
        if asked is None:
            for text in checkpoint.remarks:
                remark(text)
        if checkpoint.bytes_per_param >= 2.0:
            return formats
        own = Precision(
            name=checkpoint.format, bytes_per_element=checkpoint.bytes_per_param, source=checkpoint.stated, date=""
        )
        other = [found.name for found in formats if found.name != own.name]
        if other:
            remark(
                f"the checkpoint's weights are {own.name} ({own.source}); priced with {option} {', '.join(other)} instead, "
                "for the matrices that it quantises"
            )
        return [own if found.name == own.name else found for found in formats] or [own]

    def weights_record(self, checkpoint: CheckpointWeights | None, formats: Sequence[Precision]) -> dict[str, object]:
        """The format that was priced, and who says so, as JSON has it."""
        name, held = (formats[0].name, formats[0].bytes_per_element) if formats else ("bf16", 2.0)
        source = "--weights" if self.weights is not None else "default" if checkpoint is None else checkpoint.stated
        record: dict[str, object] = {"format": name, "bytes_per_param": held, "source": source}
        if checkpoint is not None and self.weights is not None:
            record["checkpoint"] = checkpoint.format or "not understood"
        return record


@dataclass(frozen=True, kw_only=True)
class BurstOptions(Group):
    """Requests that arrive at an idle server, to be simulated."""

    burst: Annotated[
        int | None,
        Quantity(
            "Simulate so many requests as well, pass by pass, with the host in line.", 1, 1e5, whole=True, panel=BURST
        ),
    ] = None
    request_rate: Annotated[
        float | None, Quantity("With --burst: requests a second (Poisson); default: all at once.", LEAST, panel=BURST)
    ] = None

    def check(self, serving: CostServingOptions, *, sweep: bool) -> None:
        """InputError where a burst goes with none of the other options."""
        if self.request_rate is not None and self.burst is None:
            raise InputError("goes with --burst", where="--request-rate", next_step="add --burst 500, or leave it out")
        if self.burst is not None and (sweep or serving.replicas > 1 or serving.trace is not None):
            raise InputError(
                "is of one model on one replica, with requests of one length",
                where="--burst",
                next_step="leave out --sweep and --replicas (each replica serves its share of the requests), and --trace "
                "(moescale.simulate takes a length for each request)",
            )

    def run(
        self, model: Architecture, source: LatencySource, deployment: Deployment, gpus: int, host: str | None
    ) -> Run | None:
        """The deployment under the burst, if one is stated, on one replica; the host in line unless --host says otherwise."""
        from moescale.latency import kernels_alone
        from moescale.serving.host import find_host
        from moescale.serving.simulator import Arrivals, simulate

        if self.burst is None:
            return None
        rate = math.inf if self.request_rate is None else self.request_rate
        return simulate(
            model,
            kernels_alone(source),
            deployment,
            gpus,
            Arrivals(n_requests=self.burst, requests_per_s=rate),
            overhead=find_host(host or "in-line"),
            prompt_tokens=float(round(float(deployment.prompt_tokens))),
            output_tokens=float(round(float(deployment.output_tokens))),
        )


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Group):
    """Which operating points of one model are looked at."""

    sweep: Annotated[
        bool, Flag("All batches, GPU counts and number formats: dollars against time per token.", panel=SWEEP)
    ] = False
    sweep_batch: Annotated[
        str | None,
        Text(
            "With --sweep: caps of the batch, such as 1,8,64; default: 1, 2, 3, 4, 6, 8 .. to what fits.",
            metavar="LIST",
            panel=SWEEP,
        ),
    ] = None
    sweep_weights: Annotated[
        str | None,
        Text(
            "With --sweep: such as bf16,fp8; default: bf16,fp8,int4, or what the config states.",
            metavar="LIST",
            panel=SWEEP,
        ),
    ] = None
    sweep_kv_cache: Annotated[
        str | None, Text("With --sweep: such as bf16,fp8, the default.", metavar="LIST", panel=SWEEP)
    ] = None
    sweep_expert_parallel: Annotated[
        str | None,
        Text("With --sweep: degrees, such as 1,2,4; default: --expert-parallel.", metavar="LIST", panel=SWEEP),
    ] = None
    plot: Annotated[Path | None, FilePath("With --sweep: draw the points to this SVG, PDF or PNG file.")] = None
    output_table: Annotated[
        Path | None, FilePath("With --sweep: write all points to this CSV, TSV or Parquet file.", panel=SWEEP)
    ] = None

    def check(self, gpu: str) -> None:
        """InputError where an option of a sweep stands without --sweep."""
        if self.sweep:
            return
        for name in ("sweep_batch", "sweep_weights", "sweep_kv_cache", "sweep_expert_parallel", "plot", "output_table"):
            if getattr(self, name) is not None:
                where = f"--{name.replace('_', '-')}"
                raise InputError("goes with --sweep", where=where, next_step="add --sweep, or leave it out")
        if "," in gpu:
            raise InputError("several GPUs go with --sweep", where="--gpu", next_step="add --sweep, or name one")

    def points(
        self,
        model: Architecture,
        serving: CostServingOptions,
        checkpoint: CheckpointWeights | None = None,
        remark: Remark = unsaid,
    ) -> OperatingPoints:
        """All operating points of a model, under one latency source: those of two would not compare."""
        from moescale.hardware.gpus import load_gpu
        from moescale.serving.operating_points import find_platforms, operating_points

        with located("--gpu"):
            cards = [load_gpu(name) for name in listed("--gpu", serving.gpu)]
        price = serving.stated_price()
        if price is not None and len(cards) > 1:
            raise InputError(
                "states one price, but --gpu names several GPUs",
                where="--usd-per-gpu-hour",
                next_step="sweep one GPU at a time, or leave it out for the catalogue's prices",
            )
        _one_of("weights", self.sweep_weights, serving.weights)
        formats = serving.weight_formats(checkpoint, self.sweep_weights, remark)
        # Every batch that fits is looked at: a server's own cap binds only where it is stated.
        looked = replace(serving, max_num_seqs=serving.max_num_seqs or "none")
        deployment = looked.deployment(
            gpu=cards[0],
            weights=formats[0] if formats else None,
            usd_per_gpu_hour=1.0 if price is None else price,  # each platform has its own
            remark=remark,
        )
        weights, kv_cache = self._formats(serving, formats)
        parallel = _one_of(
            "expert-parallel",
            self.sweep_expert_parallel,
            str(serving.expert_parallel) if serving.expert_parallel > 1 else None,
        )
        caps = None if self.sweep_batch is None else _counts("--sweep-batch", self.sweep_batch, MOST_BATCH)
        ways = [1] if parallel is None else _counts("--sweep-expert-parallel", parallel, MOST)

        def platforms(latency: str):
            opened = replace(serving, latency=latency)
            return find_platforms(
                [(card, _price_of(card, price)) for card in cards],
                weights,
                kv_cache,
                lambda d: ServingOptions.open_latency(opened, d, model, remark),
                deployment,
            )

        try:
            kinds, left_out = platforms("silicon" if serving.latency == "auto" else serving.latency)
        except MoescaleError as error:
            if serving.latency != "auto":
                raise
            kinds, left_out = platforms("roofline")
            remark(f"roofline latency, because {error.what}")
        each = serving.gpus_of_replica()
        return operating_points(
            model,
            kinds,
            deployment,
            gpus=None if each is None else [each],
            batch_caps=caps,
            expert_parallel=ways,
            left_out=left_out,
        )

    def _formats(
        self, serving: CostServingOptions, stated: Sequence[Precision]
    ) -> tuple[Sequence[Precision], Sequence[Precision]]:
        """The formats of weights and cache to look at; a latency table was measured with one pair of them."""
        table = serving.latency not in ("auto", "roofline") and serving.latency.partition(":")[0] != "silicon"
        caches = _one_of("kv-cache", self.sweep_kv_cache, serving.kv_cache) or ("bf16" if table else SERVER_CACHES)
        weights = stated or _precisions("weights", listed("", "bf16" if table else SWEPT_WEIGHTS), "--sweep-weights")
        kv_cache = _precisions("kv_cache", listed("--sweep-kv-cache", caches), "--sweep-kv-cache")
        for option, formats in (("--sweep-weights", weights), ("--sweep-kv-cache", kv_cache)):
            if table and len(formats) > 1:
                raise InputError(
                    "a latency table was measured with one number format",
                    where=option,
                    next_step="name that one, or take silicon or the roofline",
                )
        return weights, kv_cache


def _price_of(card: Gpu, stated: float | None) -> Callable[[], float]:
    from moescale.hardware.gpus import price

    return lambda: price(card.name).usd_per_gpu_hour if stated is None else stated


def _one_of(name: str, several: str | None, one: str | None) -> str | None:
    """What a list option of the sweep states, or the one value of the option that `cost` has anyway."""
    if several is not None and one is not None:
        raise InputError(f"states what --{name} states, too", where=f"--sweep-{name}", next_step="give one of them")
    return one if several is None else several


def _counts(option: str, text: str, most: float) -> list[int]:
    """The whole numbers in a list with commas, each once."""
    count = Quantity(most=most, whole=True)
    return [int(value) for value in dict.fromkeys(count.parse(part, option) for part in listed(option, text))]


def _precisions(kind: str, names: Sequence[str], option: str) -> list[Precision]:
    from moescale.hardware.gpus import find_precision

    with located(option):
        return [find_precision(kind, name) for name in names]

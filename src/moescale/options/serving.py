"""How a model is served, as users state it: hardware, price, traffic, limits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.errors import InputError, located, unknown_name
from moescale.options.fields import (
    LEAST,
    LONGEST_WAIT_S,
    MOST,
    MOST_BYTES,
    MOST_REQUEST_TOKENS,
    MOST_USD,
    FilePath,
    Group,
    Quantity,
    Remark,
    Seconds,
    Text,
    unsaid,
)

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu, Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.serving.deployment import Deployment
    from moescale.serving.traffic import Traffic

DEFAULT_GPU = "a100-sxm-40gb"  # the paper's
DEFAULT_TRAFFIC = (230.0, 203.0)  # ShareGPT, as vLLM's serving benchmark samples it (catalogue/traffic.toml)
SERVER, PRICE = "Server", "Price"
CAP = Quantity("", 1, MOST, whole=True)  # of concurrent requests


@dataclass(frozen=True, kw_only=True)
class ServingOptions(Group):
    """How a model is served, as `plan` and the page take it.

    >>> deployment = ServingOptions(gpu="h100-sxm", prompt=512, output=256, max_tpot=0.05).deployment()
    >>> source = ServingOptions(latency="roofline").open_latency(deployment)
    """

    gpu: Annotated[str, Text("GPU of the catalogue, such as h100-sxm, or the path of your own GPU's TOML file.")] = (
        DEFAULT_GPU
    )
    max_gpus: Annotated[int, Quantity("Most GPUs to serve one model on (tensor parallel).", 1, 1024, whole=True)] = 8
    prompt: Annotated[
        float | None,
        Quantity(f"Mean prompt tokens of a request; default {DEFAULT_TRAFFIC[0]:g}.", 1, MOST_REQUEST_TOKENS),
    ] = None
    output: Annotated[
        float | None,
        Quantity(f"Mean output tokens of a request; default {DEFAULT_TRAFFIC[1]:g}.", 1, MOST_REQUEST_TOKENS),
    ] = None
    trace: Annotated[
        Path | None,
        FilePath("Requests instead of --prompt and --output: ShareGPT JSON, or CSV or JSON lines with token counts."),
    ] = None
    latency: Annotated[
        str,
        Text(
            "silicon (measured kernels of vLLM), silicon:ENGINE[@VERSION], roofline, a latency table's path, or "
            "auto: silicon where it can.",
            panel=SERVER,
        ),
    ] = "auto"
    scheduling: Annotated[
        str, Text("separate (prompts and outputs in passes of their own) or chunked (one pass for both).", panel=SERVER)
    ] = "separate"
    host: Annotated[
        str | None,
        Text(
            "CPU side of the server: none (default: 1.4 ms a pass at least), in-line or asynchronous (vLLM's "
            "published times, docs/servings.md).",
            panel=SERVER,
        ),
    ] = None
    expert_parallel: Annotated[
        int,
        Quantity("So many GPUs of a replica split whole experts; 1: each expert is split.", whole=True, panel=SERVER),
    ] = 1
    usd_per_gpu_hour: Annotated[
        float | None, Quantity("Price of a GPU hour; default: the catalogue's.", LEAST, panel=PRICE)
    ] = None
    capital_usd_per_gpu: Annotated[
        float | None,
        Quantity("Owned hardware: price of a GPU with its share of the server.", LEAST, MOST_USD, panel=PRICE),
    ] = None
    years: Annotated[
        float | None, Quantity("Owned hardware: years until it is written off; default 5.", 0.01, 100, panel=PRICE)
    ] = None
    power_w: Annotated[
        float | None, Quantity("Owned hardware: watts of a GPU with its share of the server.", 0, panel=PRICE)
    ] = None
    usd_per_kwh: Annotated[
        float | None, Quantity("Owned hardware: price of electricity; default 0.08.", 0, panel=PRICE)
    ] = None
    pue: Annotated[
        float | None,
        Quantity("Owned hardware: power of the site over its servers'; default 1.56.", 1, 100, panel=PRICE),
    ] = None
    max_num_seqs: Annotated[
        str | None, Text("Most concurrent requests; none: memory alone limits.", metavar="INT|none", panel=SERVER)
    ] = "none"
    max_ttft: Annotated[
        float | None,
        Seconds(
            "Longest time to first token, such as 500ms; shrinks the batch.", longest_s=LONGEST_WAIT_S, panel=SERVER
        ),
    ] = None
    max_tpot: Annotated[
        float | None,
        Seconds(
            "Longest time per output token, such as 50ms; shrinks the batch.", longest_s=LONGEST_WAIT_S, panel=SERVER
        ),
    ] = None
    memory_fraction: Annotated[
        float, Quantity("Share of GPU memory for weights and KV cache.", LEAST, 1, panel=SERVER)
    ] = 0.9
    reserve: Annotated[
        float | None,
        Quantity(
            "Bytes of each GPU for activations and the runtime, such as 2GiB; default: the median of vLLM's logs, "
            "1.5GiB.",
            0,
            MOST_BYTES,
            unit="bytes",
            panel=SERVER,
        ),
    ] = None
    utilization: Annotated[
        float, Quantity("Share of the plateau throughput that traffic uses.", LEAST, 1, panel=SERVER)
    ] = 1.0
    weights: Annotated[str | None, Text("bf16, fp8, int4, nvfp4 or mxfp4.", panel=SERVER)] = "bf16"
    kv_cache: Annotated[str | None, Text("Number format of the KV cache: bf16, fp8 or int4.", panel=SERVER)] = "bf16"
    kv_heads: Annotated[
        int | None, Quantity("Cached KV heads a layer; default: one a query head.", whole=True, panel=SERVER)
    ] = None

    def find_gpu(self) -> Gpu:
        """The GPU of the catalogue, or of one's own file."""
        from moescale.hardware.gpus import load_gpu

        with located("--gpu"):
            return load_gpu(self.gpu)

    def deployment(
        self,
        *,
        gpu: Gpu | None = None,
        weights: Precision | None = None,
        usd_per_gpu_hour: float | None = None,
        remark: Remark = unsaid,
    ) -> Deployment:
        """The deployment that the options state; the arguments stand before the options of their names.

        Raises InputError that names the option.
        """
        from moescale.hardware import gpus
        from moescale.serving.deployment import SCHEDULING, Deployment, with_traffic
        from moescale.serving.host import find_host

        card = gpu or self.find_gpu()
        traffic = self.traffic(remark)
        price = usd_per_gpu_hour or self.stated_price()
        with located("--weights"):
            weight_format = weights or gpus.find_precision("weights", "bf16" if self.weights is None else self.weights)
        with located("--kv-cache"):
            cache_format = gpus.find_precision("kv_cache", "bf16" if self.kv_cache is None else self.kv_cache)
        if self.scheduling not in SCHEDULING:
            raise unknown_name("scheduling", self.scheduling, SCHEDULING, where="--scheduling")
        with located("--host"):
            host = find_host(self.host or "none")
        deployment = Deployment(
            gpu=card,
            usd_per_gpu_hour=gpus.usd_per_gpu_hour(card) if price is None else price,
            prompt_tokens=traffic.prompt_tokens,
            output_tokens=traffic.output_tokens,
            max_gpus=self.max_gpus_of_replica(),
            max_num_seqs=self.cap(card),
            memory_fraction=self.memory_fraction,
            utilization=self.utilization,
            weight_bytes_per_param=weight_format.bytes_per_element,
            kv_bytes_per_element=cache_format.bytes_per_element,
            reserve_bytes=gpus.measured_reserve_bytes() if self.reserve is None else self.reserve,
            expert_parallel=float(self.expert_parallel),
            replicas=float(self.n_replicas()),
            scheduling=self.scheduling,
            host=host,
            max_ttft_s=self.max_ttft,
            max_tpot_s=self.max_tpot,
        )
        return with_traffic(deployment, traffic)

    def open_latency(
        self, deployment: Deployment, model: Architecture | None = None, remark: Remark = unsaid
    ) -> LatencySource:
        """The latency source by its name; `auto` is silicon where it answers (for `model`), else the roofline, remarked on.

        Where the deployment states a host, the source leaves its own one out.
        """
        from moescale.latency import kernels_alone
        from moescale.latency.open import open_latency
        from moescale.serving.host import NO_OVERHEAD

        with located("--latency"):
            source = open_latency(
                self.latency,
                deployment.gpu,
                weight_bytes_per_param=float(deployment.weight_bytes_per_param),
                kv_bytes_per_element=float(deployment.kv_bytes_per_element),
                model=model,
                remark=remark,
            )
        return source if deployment.host == NO_OVERHEAD else kernels_alone(source)

    def traffic(self, remark: Remark = unsaid) -> Traffic:
        """The lengths that --prompt, --output and --trace state; without any of them, ShareGPT's means."""
        from moescale.serving.traffic import Traffic, read_trace

        if self.trace is None:
            return Traffic(self.prompt or DEFAULT_TRAFFIC[0], self.output or DEFAULT_TRAFFIC[1])
        for option, value in (("--prompt", self.prompt), ("--output", self.output)):
            if value is not None:
                what = "goes without --trace, which states the lengths"
                raise InputError(what, where=option, next_step="leave it out")
        traffic = read_trace(self.trace)
        if traffic.approximate:
            remark(f"{self.trace}: text counted at 4 characters a token; a tokenizer's counts may differ by a third")
        return traffic

    def stated_price(self) -> float | None:
        """Dollars of a GPU hour, as stated or of owned hardware; None for the catalogue's price."""
        from moescale.hardware.gpus import owned_defaults, owned_usd_per_gpu_hour

        if self.capital_usd_per_gpu is None:
            for name in ("years", "power_w", "usd_per_kwh", "pue"):
                if getattr(self, name) is not None:
                    where = f"--{name.replace('_', '-')}"
                    raise InputError(
                        "goes with --capital-usd-per-gpu", where=where, next_step="add it, or leave this out"
                    )
            return self.usd_per_gpu_hour
        if self.usd_per_gpu_hour is not None:
            what = "states a price, and so does --capital-usd-per-gpu"
            raise InputError(what, where="--usd-per-gpu-hour", next_step="give one")
        if self.power_w is None:
            raise InputError(
                "is missing beside --capital-usd-per-gpu",
                where="--power-w",
                next_step="watts of one GPU with its share of the server, such as 1275 (an eighth of a DGX H100's 10.2 kW)",
            )
        usual = owned_defaults()
        return float(
            owned_usd_per_gpu_hour(
                self.capital_usd_per_gpu,
                years=usual.years if self.years is None else self.years,
                power_w=self.power_w,
                usd_per_kwh=usual.usd_per_kwh if self.usd_per_kwh is None else self.usd_per_kwh,
                pue=usual.pue if self.pue is None else self.pue,
            )
        )

    def cap(self, gpu: Gpu) -> float | None:
        """Most concurrent requests of one replica; None: memory alone limits."""
        text = "none" if self.max_num_seqs is None else self.max_num_seqs
        return None if text.strip().lower() == "none" else CAP.parse(text, "--max-num-seqs")

    def max_gpus_of_replica(self) -> int:
        """Most GPUs of one replica."""
        return self.max_gpus

    def n_replicas(self) -> int:
        """Copies of the model."""
        return 1

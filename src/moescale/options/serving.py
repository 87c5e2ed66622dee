"""How a model is served, as users state it: hardware, price, traffic, limits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from moescale.bounds import COUNT, GPUS, REQUEST_TOKENS, RESERVED, SHARE, USD_PER_HOUR
from moescale.errors import InputError, located, unknown_name
from moescale.options.fields import LEAST, Group, Remark, ignore, path, quantity, refuse, seconds, text, within

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.hardware.precisions import Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.serving.deployment import Deployment
    from moescale.serving.traffic import Traffic

DEFAULT_GPU = "a100-sxm-40gb"  # the paper's
NODE = 8  # GPUs of a server, all of which serve one model where nothing else is stated
PLANNED_TPOT_S = 0.05  # 20 tokens a second for each user, where a plan states no limit: faster than people read
DEFAULT_TRAFFIC = (230.0, 203.0)  # ShareGPT, as vLLM's serving benchmark samples it (catalogue/paper_servers.toml)
priced = partial(quantity, panel="Price")
CAP = within(COUNT)  # of concurrent requests


@dataclass(frozen=True, kw_only=True)
class ServingOptions(Group):
    """How a model is served, as `plan` and the page take it.

    >>> deployment = ServingOptions(gpu="h100-sxm", prompt=512, output=256, max_tpot=0.05).deployment()
    >>> source = ServingOptions(latency="roofline").open_latency(deployment)
    """

    HEADING = "Server"

    gpu: str = text("GPU name or TOML file; such as h100-sxm.", default=DEFAULT_GPU)
    max_gpus: int | None = quantity(f"Most GPUs to serve one model; tensor parallel; default: {NODE}.", GPUS)
    prompt: float | None = quantity(f"Mean prompt tokens per request; default {DEFAULT_TRAFFIC[0]:g}.", REQUEST_TOKENS)
    output: float | None = quantity(f"Mean output tokens per request; default {DEFAULT_TRAFFIC[1]:g}.", REQUEST_TOKENS)
    trace: Path | None = path(
        "File of requests with token counts, in place of --prompt and --output; CSV or JSON lines."
    )
    latency: str = text("Latency source: silicon (or silicon:ENGINE), roofline, a table, or auto.", default="auto")
    scheduling: str | None = text("Passes of prefill and decode: separate or chunked; default: the engine's.")
    host: str | None = text("CPU time of the server: none, in-line or asynchronous; default: the engine's.")
    expert_parallel: int | None = quantity("GPUs of a replica that hold whole experts; default 1.", whole=True)
    attention_dp: int | None = quantity("Groups of a replica's attention (data parallel); default: the cheapest.", GPUS)
    usd_per_gpu_hour: float | None = priced("Price of a GPU hour; default: the catalogue's.", USD_PER_HOUR)
    capital_usd_per_gpu: float | None = priced("Owned hardware: price of a GPU with its server.", LEAST, 1e9)
    years: float | None = priced("Owned hardware: years of depreciation; default 5.", 0.01, 100)
    power_w: float | None = priced("Owned hardware: watts of a GPU with its share of the server.", 0)
    usd_per_kwh: float | None = priced("Owned hardware: price of electricity; default 0.08.", 0)
    pue: float | None = priced("Owned hardware: power usage effectiveness of the site; default 1.56.", 1, 100)
    max_num_seqs: str | None = text("Most concurrent requests of a replica; default: vLLM's.", metavar="INT|none")
    max_ttft: float | None = seconds("Longest TTFT (time to first token), such as 500ms.")
    max_tpot: float | None = seconds("Longest time per token; default: 50ms, in cost none.")
    memory_fraction: float = quantity("Share of GPU memory for weights and KV cache.", SHARE, default=0.9)
    reserve: float | None = quantity("Memory of each GPU that is kept free; default: 1.5GiB.", RESERVED)
    utilization: float = quantity("Share of the maximum throughput that traffic uses.", SHARE, default=1.0)
    weights: str | None = text("Weights: bf16, fp8, int4, nvfp4 or mxfp4; default: as released, else bf16.")
    kv_cache: str | None = text("Format of the KV cache: bf16, fp8 or int4; default: bf16.")
    kv_heads: int | None = quantity("KV heads per layer; default: the number of query heads.", whole=True)

    def find_gpu(self) -> Gpu:
        """The GPU of the catalogue, or of one's own file."""
        from moescale.hardware.gpus import load_gpu

        with located("--gpu"):
            return load_gpu(self.gpu)

    def wider(self, deployment: Deployment) -> Self | None:
        """What serves larger models, of what is not stated: fp8 weights where the GPU multiplies them, and two servers' GPUs."""
        more: dict[str, Any] = {} if self.max_gpus else {"max_gpus": 2 * NODE}
        more |= {"weights": "fp8"} if self.weights is None and deployment.gpu.fp8_flops_per_s else {}
        return replace(self, **more) if more else None

    def deployment(
        self,
        *,
        weights: Precision | None = None,
        usual_tpot_s: float | None = None,
        remark: Remark = ignore,
    ) -> Deployment:
        """The deployment that the options state; `weights` stand before the option of that name.

        `usual_tpot_s` is the limit of TPOT where none is stated. Raises InputError that names the option.
        """
        from moescale.hardware.precisions import find_precision
        from moescale.hardware.prices import usd_per_gpu_hour
        from moescale.latency.engines import engine_of_latency, find_host
        from moescale.serving.deployment import SCHEDULING, Deployment, with_traffic

        gpu, traffic = self.find_gpu(), self.traffic()
        price = self.stated_price()
        with located("--weights"):
            weight_format = weights or find_precision("weights", "bf16" if self.weights is None else self.weights)
        with located("--kv-cache"):
            cache_format = find_precision("kv_cache", "bf16" if self.kv_cache is None else self.kv_cache)
        cap = self.max_num_seqs  # by default that of the GPU
        if cap is not None:
            cap = math.inf if cap.strip().lower() == "none" else CAP.parse(cap, "--max-num-seqs")
        engine = engine_of_latency(self.latency)
        scheduling = self.scheduling or engine.scheduling
        if scheduling not in SCHEDULING:
            raise unknown_name("scheduling", scheduling, SCHEDULING, where="--scheduling")
        with located("--host"):
            host = find_host(self.host or ("asynchronous" if engine.asynchronous else "none"))
        deployment = Deployment(
            gpu=gpu,
            usd_per_gpu_hour=usd_per_gpu_hour(gpu) if price is None else price,
            prompt_tokens=traffic.prompt_tokens,
            output_tokens=traffic.output_tokens,
            max_gpus=self.max_gpus or NODE,
            max_num_seqs=cap,
            memory_fraction=self.memory_fraction,
            utilization=self.utilization,
            weight_bytes_per_param=weight_format.bytes_per_element,
            weights=None if self.weights is None and weights is None else weight_format.name,
            kv_bytes_per_element=cache_format.bytes_per_element,
            reserve_bytes=self.reserve,
            expert_parallel=float(self.expert_parallel or (math.inf if (self.attention_dp or 1) > 1 else 1)),
            attention_dp=float(self.attention_dp or 1),
            searches_groups=self.attention_dp is None and self.expert_parallel is None,
            scheduling=scheduling,
            engine=engine,
            host=host,
            max_ttft_s=None if self.max_ttft == math.inf else self.max_ttft,
            max_tpot_s=None if self.max_tpot == math.inf else self.max_tpot or usual_tpot_s,
        )
        return with_traffic(deployment, traffic)

    def open_latency(
        self, deployment: Deployment, model: Architecture | None = None, remark: Remark = ignore
    ) -> LatencySource:
        """The latency source by its name; `auto` is silicon where it answers (for `model`), else the roofline, remarked on.

        Where the deployment states a host, the source leaves its own one out.
        """
        from moescale.latency import kernels_alone
        from moescale.latency.engines import NO_OVERHEAD
        from moescale.latency.open import open_latency

        with located("--latency"):
            source = open_latency(
                self.latency,
                deployment.gpu,
                weight_bytes_per_param=float(deployment.weight_bytes_per_param),
                kv_bytes_per_element=float(deployment.kv_bytes_per_element),
                weights=deployment.weights,
                model=model,
                remark=remark,
            )
        return source if deployment.host == NO_OVERHEAD else kernels_alone(source)

    def traffic(self) -> Traffic:
        """The lengths that --prompt, --output and --trace state; without any of them, ShareGPT's means."""
        from moescale.serving.traffic import Traffic, read_trace

        if self.trace is None:
            return Traffic(self.prompt or DEFAULT_TRAFFIC[0], self.output or DEFAULT_TRAFFIC[1])
        refuse(self, ("prompt", "output"), "goes without --trace, which states the lengths")
        return read_trace(self.trace)

    def stated_price(self) -> float | None:
        """Dollars of a GPU hour, as stated or of owned hardware; None for the catalogue's price."""
        from moescale.hardware.prices import owned_defaults, owned_usd_per_gpu_hour

        if self.capital_usd_per_gpu is None:
            owned = ("years", "power_w", "usd_per_kwh", "pue")
            refuse(self, owned, "goes with --capital-usd-per-gpu", "add it, or leave this out")
            return self.usd_per_gpu_hour
        refuse(self, ("usd_per_gpu_hour",), "states a price, and so does --capital-usd-per-gpu", "give one")
        if self.power_w is None:
            what, such_as = "is required with --capital-usd-per-gpu", "1275 (an eighth of a DGX H100's 10.2 kW)"
            next_step = f"watts of one GPU with its share of the server, such as {such_as}"
            raise InputError(what, where="--power-w", next_step=next_step)
        stated = {"years": self.years, "usd_per_kwh": self.usd_per_kwh, "pue": self.pue}
        terms = owned_defaults() | {name: value for name, value in stated.items() if value is not None}
        return float(owned_usd_per_gpu_hour(self.capital_usd_per_gpu, power_w=self.power_w, **terms))

    def price_terms(self) -> str | None:
        """Terms and date of the catalogue's price; None for a price of one's own."""
        from moescale.hardware.prices import price

        gpu = self.find_gpu()
        if self.stated_price() is not None or gpu.usd_per_gpu_hour is not None:
            return None
        found = price(gpu.name)
        return f"{found.terms}, {found.date}"

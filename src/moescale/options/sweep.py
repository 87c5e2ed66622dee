"""All operating points of a model, as users state them: batches, GPU counts, number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.errors import InputError, MoescaleError, located
from moescale.options.cost import CostServingOptions, precisions
from moescale.options.fields import MOST, Group, Quantity, Remark, flag, listed, path, text, unsaid
from moescale.options.serving import ServingOptions

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.hardware.precisions import Precision
    from moescale.latency import LatencySource
    from moescale.models.architecture import Architecture
    from moescale.models.quantisation import CheckpointWeights
    from moescale.serving.deployment import Deployment
    from moescale.serving.operating_points import LeftOut, OperatingPoints, Platform

    Platforms = tuple[tuple[Platform, ...], tuple[LeftOut, ...]]

SWEEP = "Operating points"
MOST_BATCH = 1e9
SWEPT_WEIGHTS = "bf16,fp8,int4"
SERVER_CACHES = "bf16,fp8"  # what vLLM's --kv-cache-dtype knows (docs.vllm.ai, quantized KV cache)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Group):
    """Which operating points of one model are looked at."""

    HEADING = SWEEP

    sweep: bool = flag("List all batches, GPU counts and formats: $/Mtok against TPOT.")
    sweep_batch: str | None = text(
        "With --sweep: batch limits, such as 1,8,64; default: 1, 2, 3, 4, 6, 8 .. to the largest that fits.",
        metavar="LIST",
    )
    sweep_weights: str | None = text(
        "With --sweep: weight formats, such as bf16,fp8; default: bf16,fp8,int4, or the config's.", metavar="LIST"
    )
    sweep_kv_cache: str | None = text("With --sweep: KV cache formats; default: bf16,fp8.", metavar="LIST")
    sweep_expert_parallel: str | None = text(
        "With --sweep: degrees of expert parallelism, such as 1,2,4; default: --expert-parallel.", metavar="LIST"
    )
    plot: Path | None = path("Draw the points of --sweep to this SVG, PDF or PNG file.")
    output_table: Path | None = path("With --sweep: write all points to this CSV, TSV or Parquet file.")

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
        """All operating points of a model."""
        from moescale.hardware.gpus import load_gpu
        from moescale.serving.operating_points import operating_points

        with located("--gpu"):
            gpus = [load_gpu(name) for name in listed("--gpu", serving.gpu)]
        if serving.stated_price() is not None and len(gpus) > 1:
            raise InputError(
                "states one price, but --gpu names several GPUs",
                where="--usd-per-gpu-hour",
                next_step="sweep one GPU at a time, or leave it out for the catalogue's prices",
            )
        for name in ("attention_dp", "pipeline_parallel"):
            if getattr(serving, name) > 1:
                where = f"--{name.replace('_', '-')}"
                raise InputError("goes without --sweep", where=where, next_step="leave one of them out")
        _one_of("weights", self.sweep_weights, serving.weights)
        stated = serving.weight_formats(checkpoint, self.sweep_weights, remark)
        deployment = serving.deployment(  # each platform has its price
            gpu=gpus[0],
            weights=stated[0] if stated else None,
            usd_per_gpu_hour=serving.stated_price() or 1.0,
            remark=remark,
        )
        own = str(serving.expert_parallel) if (serving.expert_parallel or 1) > 1 else None
        parallel = _one_of("expert-parallel", self.sweep_expert_parallel, own)
        caps = None if self.sweep_batch is None else _counts("--sweep-batch", self.sweep_batch, MOST_BATCH)
        ways = [1] if parallel is None else _counts("--sweep-expert-parallel", parallel, MOST)
        platforms, left_out = self._platforms(model, serving, gpus, stated, deployment, remark)
        each = serving.gpus_of_replica()
        return operating_points(
            model,
            platforms,
            deployment,
            gpus=None if each is None else [each],
            batch_caps=caps,
            expert_parallel=ways,
            left_out=left_out,
        )

    def _platforms(
        self,
        model: Architecture,
        serving: CostServingOptions,
        gpus: Sequence[Gpu],
        stated: Sequence[Precision],
        deployment: Deployment,
        remark: Remark,
    ) -> Platforms:
        """Every GPU with every number format, all under one latency source: points of two would not compare."""
        from moescale.hardware.prices import usd_per_gpu_hour
        from moescale.serving.operating_points import find_platforms

        own = serving.stated_price()
        priced = [
            (gpu, partial(usd_per_gpu_hour, replace(gpu, usd_per_gpu_hour=own or gpu.usd_per_gpu_hour))) for gpu in gpus
        ]
        weights, kv_cache = self._formats(serving, stated)

        unmeasured: set[str] = set()

        def under(latency: str) -> Platforms:
            options = ServingOptions(latency=latency)

            def source(at: Deployment) -> LatencySource:
                try:
                    return options.open_latency(at, model, remark)
                except MoescaleError as error:
                    unmeasured.add(error.what)
                    raise

            return find_platforms(priced, weights, kv_cache, source, deployment)

        if serving.latency != "auto":
            return under(serving.latency)
        try:
            found, left_out = under("silicon")
        except MoescaleError as error:
            under_roofline = under("roofline")
            remark(f"roofline latency, because {error.what}")
            return under_roofline
        compares = "; --latency roofline compares all"
        return found, tuple(
            replace(entry, reason=entry.reason + compares) if entry.reason in unmeasured else entry
            for entry in left_out
        )

    def _formats(
        self, serving: CostServingOptions, stated: Sequence[Precision]
    ) -> tuple[Sequence[Precision], Sequence[Precision]]:
        """The formats of weights and cache to look at; a latency table was measured with one pair of them."""
        table = serving.latency not in ("auto", "roofline") and serving.latency.partition(":")[0] != "silicon"
        caches = _one_of("kv-cache", self.sweep_kv_cache, serving.kv_cache)
        if caches is None:
            caches = "bf16" if table else SERVER_CACHES
        weights = stated or precisions("weights", listed("", "bf16" if table else SWEPT_WEIGHTS), "--sweep-weights")
        kv_cache = precisions("kv_cache", listed("--sweep-kv-cache", caches), "--sweep-kv-cache")
        for place, formats in (("--sweep-weights", weights), ("--sweep-kv-cache", kv_cache)):
            if table and len(formats) > 1:
                raise InputError(
                    "a latency table was measured with one number format",
                    where=place,
                    next_step="name that one, or take silicon or the roofline",
                )
        return weights, kv_cache


def _one_of(name: str, several: str | None, one: str | None) -> str | None:
    if several is not None and one is not None:
        raise InputError(f"repeats --{name}", where=f"--sweep-{name}", next_step="give one of them")
    return one if several is None else several


def _counts(place: str, text: str, most: float) -> list[int]:
    count = Quantity(most=most, whole=True)
    return [int(value) for value in dict.fromkeys(count.parse(part, place) for part in listed(place, text))]

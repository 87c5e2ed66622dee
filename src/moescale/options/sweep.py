"""All operating points of a model, as users state them: batches, GPU counts, number formats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.errors import InputError, MoescaleError, located
from moescale.options.cost import CostServingOptions, precisions
from moescale.options.fields import Group, Quantity, Remark, flag, listed, path, refuse, text, unsaid
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
BATCH = Quantity(most=1e9, whole=True)
SWEPT_WEIGHTS = "bf16,fp8,int4"
SERVER_CACHES = "bf16,fp8"  # what vLLM's --kv-cache-dtype knows (docs.vllm.ai, quantized KV cache)


@dataclass(frozen=True, kw_only=True)
class SweepOptions(Group):
    """Which operating points of one model are looked at."""

    HEADING = SWEEP

    sweep: bool = flag(
        "List all batches, GPU counts and formats: $/Mtok against TPOT; --gpu, --weights and --kv-cache take lists."
    )
    sweep_batch: str | None = text(
        "With --sweep: batch limits, such as 1,8,64; default: 1, 2, 3, 4, 6, 8 .. to the largest that fits.",
        metavar="LIST",
    )
    plot: Path | None = path("Draw the points of --sweep to this SVG, PDF or PNG file.")
    output_table: Path | None = path("With --sweep: write all points to this CSV, TSV or Parquet file.")

    def check(self, serving: CostServingOptions) -> None:
        """InputError where an option of a sweep stands without --sweep."""
        if self.sweep:
            return
        stated = ("sweep_batch", "plot", "output_table")
        refuse(self, stated, "goes with --sweep", "add --sweep, or leave it out")
        for name in ("gpu", "weights", "kv_cache"):
            if "," in (getattr(serving, name) or ""):
                what = "several GPUs go with --sweep" if name == "gpu" else "several formats go with --sweep"
                where = f"--{name.replace('_', '-')}"
                raise InputError(what, where=where, next_step="add --sweep, or name one")

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
        refuse(serving, ("attention_dp", "pipeline_parallel"), "goes without --sweep", "leave one of them out")
        stated = serving.weight_formats(checkpoint, remark)
        deployment = replace(serving, kv_cache=None).deployment(  # each platform has its cache and its price
            gpu=gpus[0],
            weights=stated[0] if stated else None,
            usd_per_gpu_hour=serving.stated_price() or 1.0,
            remark=remark,
        )
        caps = None if self.sweep_batch is None else _counts("--sweep-batch", self.sweep_batch)
        platforms, left_out = _platforms(model, serving, gpus, stated, deployment, remark)
        each = serving.gpus_of_replica()
        return operating_points(
            model,
            platforms,
            deployment,
            gpus=None if each is None else [each],
            batch_caps=caps,
            expert_parallel=[serving.expert_parallel or 1],
            left_out=left_out,
        )


def _platforms(
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
    weights, kv_cache = _formats(serving, stated)

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
        replace(entry, reason=entry.reason + compares) if entry.reason in unmeasured else entry for entry in left_out
    )


def _formats(
    serving: CostServingOptions, stated: Sequence[Precision]
) -> tuple[Sequence[Precision], Sequence[Precision]]:
    """The formats of weights and cache to look at; a latency table was measured with one pair of them."""
    table = serving.latency not in ("auto", "roofline") and serving.latency.partition(":")[0] != "silicon"
    weights = stated or precisions("weights", "bf16" if table else SWEPT_WEIGHTS, "--weights")
    usual = "bf16" if table else SERVER_CACHES
    kv_cache = precisions("kv_cache", usual if serving.kv_cache is None else serving.kv_cache, "--kv-cache")
    for place, formats in (("--weights", weights), ("--kv-cache", kv_cache)):
        if table and len(formats) > 1:
            raise InputError(
                "a latency table was measured with one number format",
                where=place,
                next_step="name that one, or take silicon or the roofline",
            )
    return weights, kv_cache


def _counts(place: str, text: str) -> list[int]:
    return [int(value) for value in dict.fromkeys(BATCH.parse(part, place) for part in listed(place, text))]

"""What training costs and how much a model serves in its life, as users state it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from moescale.bounds import SHARE, TOKENS, USD_PER_HOUR
from moescale.errors import InputError, located, unknown_name
from moescale.options.fields import Group, quantity, text

if TYPE_CHECKING:
    from moescale.hardware.gpus import Gpu
    from moescale.planning.training_price import TrainingPrice
    from moescale.serving.deployment import Deployment
    from moescale.training.choice import Launch

LIFE = "Training price and lifetime"
of_life = partial(quantity, panel=LIFE)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Group):
    """What training costs, and how many tokens a model serves in its life."""

    lifetime_tokens: float | None = of_life(
        "Output tokens to serve; adds the serving bill and the model with the lowest total cost.", TOKENS
    )
    train_gpu: str | None = text("GPU to train on; default: --gpu.", panel=LIFE)
    train_gpus: int | None = of_life(
        "Number of GPUs to train on; default: as many as hold the run and end it within 30 days.", whole=True
    )
    mfu: float | None = of_life("MFU of training; default: predicted from the parts of a training step.", SHARE)
    train_precision: str | None = text(
        "Precision of training products: bf16 or fp8; default: bf16, compare-models: as published; exports train in bf16.",
        panel=LIFE,
    )
    train_usd_per_gpu_hour: float | None = of_life(
        "Price of a GPU hour of training; default: the serving price, or the catalogue's for --train-gpu.", USD_PER_HOUR
    )

    def training_gpu(self, deployment: Deployment) -> Gpu:
        """The GPU to train on, by default the one that serves."""
        from moescale.hardware.gpus import load_gpu

        with located("--train-gpu"):
            return deployment.gpu if self.train_gpu is None else load_gpu(self.train_gpu)

    def training_price(
        self, deployment: Deployment, *, unpriced: bool = False, launch: Launch | None = None
    ) -> TrainingPrice | None:
        """The price of training; None for a GPU without a price that nothing needs. `launch`: of the runs that are timed.

        Where a lifetime, a GPU to train on, its price or its MFU is stated, such a GPU is refused unless `unpriced`.
        """
        from moescale.hardware.prices import usd_per_gpu_hour
        from moescale.planning.training_price import TrainingPrice, default_mfu

        gpu, usd = self.training_gpu(deployment), self.train_usd_per_gpu_hour
        launch = self._in_precision(launch, gpu)
        stated = (self.lifetime_tokens, self.train_gpu, self.mfu, self.train_usd_per_gpu_hour)
        unpriced = unpriced or stated == (None,) * 4
        if usd is None:
            try:
                own = gpu.name == deployment.gpu.name
                usd = float(deployment.usd_per_gpu_hour) if own else usd_per_gpu_hour(gpu)
            except InputError as error:
                if self.lifetime_tokens is None and unpriced:
                    return None
                where, next_step = error.where or "--train-gpu", "give --train-usd-per-gpu-hour as well"
                raise InputError(error.what, where=where, nearest=error.nearest, next_step=next_step) from error
        mfu = default_mfu() if self.mfu is None else self.mfu
        return TrainingPrice(gpu=gpu, usd_per_gpu_hour=usd, mfu=mfu, timed=self.mfu is None, launch=launch)

    def _in_precision(self, stated: Launch | None, gpu: Gpu) -> Launch:
        """A launch in the precision that is stated; InputError where the GPU lacks it, the trainer's files do, or an MFU is stated."""
        from moescale.training.choice import Launch

        where, precisions, launch = "--train-precision", ("bf16", "fp8"), stated or Launch()
        if self.train_precision in (None, "bf16"):
            return launch
        if self.train_precision not in precisions:
            raise unknown_name("precision", str(self.train_precision), precisions, where=where)
        if self.mfu is not None:
            raise InputError("has no effect beside a stated --mfu", where=where, next_step="leave one out")
        if stated is not None:
            raise InputError("exported files train in bf16", where=where, next_step="leave it out, or --export")
        if gpu.fp8_flops_per_s is None:
            raise InputError(f"{gpu.name} has no fp8 arithmetic", where=where, nearest="bf16")
        return replace(launch, precision="fp8")

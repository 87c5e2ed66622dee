"""What of a plan's recommendation is written for training it, and where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.errors import InputError
from moescale.options.fields import LEAST, Group, path, quantity, text

if TYPE_CHECKING:
    from moescale.export.launch import Export
    from moescale.hardware.gpus import Gpu
    from moescale.latency import LatencySource
    from moescale.planning.plan import Plan
    from moescale.serving.deployment import Deployment

FILES = "Files to train from"


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Group):
    """The format and folder of an export, and how the run that it starts trains."""

    HEADING = FILES

    export: str | None = text(
        "Write what training the recommended model needs: hf, torchtitan or megatron.", metavar="FORMAT"
    )
    export_folder: Path | None = path("With --export: folder to write.", name="-o")
    peak_lr: float | None = quantity("With --export: peak learning rate; default: the paper's formula.", LEAST, 1)

    def check(self) -> None:
        """InputError where --export and -o do not come together, or an option stands that only they use."""
        from moescale.export.launch import FORMATS, check_export

        if self.export is not None and self.export_folder is None:
            raise InputError("needs a folder", where="--export", next_step="add -o FOLDER")
        if self.export is not None and self.export_folder is not None:
            check_export(self.export, self.export_folder)
            return
        others = {"-o": self.export_folder, "--peak-lr": self.peak_lr}
        for place, value in others.items():
            if value is not None:
                raise InputError("goes with --export only", where=place, next_step=f"add --export {'|'.join(FORMATS)}")

    def write(
        self, plan: Plan, gpu: Gpu, gpus: int | None, mfu: float | None, deployment: Deployment, source: LatencySource
    ) -> Export | None:
        """Write what a plan decides for to the folder, to be trained on so many GPUs (None: enough for 30 days).

        Beside it, how to serve it in the deployment that it was priced for. None where no format is stated.
        """
        from moescale.export.launch import export_model
        from moescale.export.serving_launch import Server
        from moescale.planning.total_cost import default_mfu
        from moescale.serving.gpu_counts import cost

        if self.export is None or self.export_folder is None:
            return None
        best = plan.decision
        served = cost(best.architecture.architecture(), source, deployment)
        return export_model(
            best.architecture,
            best.model.tokens,
            self.export,
            self.export_folder,
            gpu=gpu,
            mfu=default_mfu() if mfu is None else mfu,
            gpus=gpus,
            peak_lr=self.peak_lr,
            server=Server(cost=served, deployment=deployment),
        )

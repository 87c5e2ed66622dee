"""What `plan --export` adds to a plan: its options checked, and the recommended model written as a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from moescale.cli.options import LEAST, at_option, file_option, number_option, text_option
from moescale.errors import InputError

if TYPE_CHECKING:
    from moescale.export.launch import Export
    from moescale.hardware.gpus import Gpu
    from moescale.planning.plan import Plan

ExportFormat = Annotated[
    str | None,
    text_option("--export", "Write what training the recommended model needs: hf, torchtitan or megatron.", "FORMAT"),
]
ExportFolder = Annotated[Path | None, file_option("-o", "With --export: folder to write.")]
TrainGpus = Annotated[
    int | None,
    number_option("--train-gpus", "With --export: GPUs to train on; default: enough for 30 days.", whole=True),
]
VocabSize = Annotated[
    int | None,
    number_option(
        "--vocab-size",
        "Rows of the embedding tables that are served and exported; default: the law's, or 32000.",
        2,
        whole=True,
    ),
]
PeakLr = Annotated[
    float | None,
    number_option("--peak-lr", "With --export: peak learning rate; default: the paper's formula.", LEAST, 1),
]


def check_options(export: str | None, folder: Path | None, others: dict[str, object]) -> None:
    """InputError where --export and -o do not come together, or an option stands that only they use."""
    from moescale.export.launch import FORMATS, check_export

    if export is None:
        for option, value in {"-o": folder, **others}.items():
            if value is not None:
                raise InputError("goes with --export only", where=option, next_step=f"add --export {'|'.join(FORMATS)}")
        return
    if folder is None:
        raise InputError("needs a folder", where="--export", next_step="add -o FOLDER")
    check_export(export, folder)


def export_plan(
    plan: Plan,
    export: str,
    folder: Path,
    *,
    gpu: Gpu,
    mfu: float | None,
    gpus: int | None,
    peak_lr: float | None,
) -> Export:
    """The recommendation of a plan, written to a folder."""
    from moescale.export.launch import export_model
    from moescale.planning.total_cost import default_mfu

    best = plan.recommendation
    with at_option("--export"):
        return export_model(
            best.architecture,
            best.model.tokens,
            export,
            folder,
            gpu=gpu,
            mfu=default_mfu() if mfu is None else mfu,
            gpus=gpus,
            peak_lr=peak_lr,
        )

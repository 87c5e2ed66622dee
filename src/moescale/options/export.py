"""What of a plan's recommendation is written for training it, and where."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.bounds import SEQUENCE_TOKENS, SHARE
from moescale.errors import InputError
from moescale.options.fields import Group, path, quantity, refuse, text

if TYPE_CHECKING:
    from moescale.training.choice import Launch


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Group):
    """The format and folder of an export, and how the run that it starts trains."""

    HEADING = "Export for training"

    export: str | None = text("Write files to train the model: hf, torchtitan or megatron.", metavar="FORMAT")
    export_folder: Path | None = path("With --export: folder to write.", name="-o")
    recipe: str | None = text("With --export: recipe (deepseek, paper or step-law); default: deepseek.")
    schedule: str | None = text("With --export: cosine or wsd (constant, then decay); default: cosine.")
    batch_tokens: float | None = quantity("With --export: tokens per step; default: the recipe's.", 1, 1e12)
    sequence_tokens: int | None = quantity("With --export: sequence length; default: the recipe's.", SEQUENCE_TOKENS)
    peak_lr: float | None = quantity("With --export: peak learning rate; default: the recipe's.", SHARE)

    def check(self) -> None:
        """InputError where --export and -o do not come together, or an option stands that only they use."""
        if self.export is None:
            others = [field.name for field in fields(self) if field.name != "export"]
            refuse(self, others, "goes with --export only", "add --export hf|torchtitan|megatron")
            return
        if self.export_folder is None:
            raise InputError("needs a folder", where="--export", next_step="add -o FOLDER")
        from moescale.export.launch import check_export
        from moescale.models.recipe import SCHEDULES, check_schedule, find_rule

        check_export(self.export, self.export_folder)
        find_rule(self.recipe, where="--recipe")
        check_schedule(self.schedule or SCHEDULES[0], where="--schedule")

    def launch(self) -> Launch | None:
        """How the run that is written is launched; None where no format is stated."""
        if self.export is None:
            return None
        from moescale.export.trainers import FORMATS
        from moescale.training.choice import Launch

        return Launch(
            trainer=FORMATS[self.export],
            rule=self.recipe,
            peak_lr=self.peak_lr,
            batch_tokens=self.batch_tokens,
            sequence_tokens=self.sequence_tokens,
            schedule=self.schedule,
        )

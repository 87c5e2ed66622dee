"""Tables of runs, and what is fitted to them, as users state them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.bounds import DRAWS
from moescale.errors import InputError, located
from moescale.options.fields import MOST_SEED, Group, Quantity, at_option, flag, path, quantity, text

if TYPE_CHECKING:
    from moescale.fitting.workflow import FitSettings
    from moescale.runs.table import RunTable

STARTS = Quantity("", 1, DRAWS.most, whole=True)
COLUMNS = ("size_column", "tokens_column", "experts_column", "loss_column")
CHOICES = ("best_of", "last_point")


@dataclass(frozen=True, kw_only=True)
class TableOptions(Group):
    """Which rows and columns of a table of runs to use."""

    HEADING = "Rows and columns of the table"

    where: str | None = text("Rows to keep, such as 'tokens / n_params_active >= 2'.", metavar="EXPR")
    best_of: bool = flag("Keep the run with the lowest loss at each N, D and E.")
    last_point: bool = flag("Keep the last row of each run (needs a column run_id).")
    size_column: str | None = text("Column of N; default: n_params_dense.", metavar="COL")
    tokens_column: str = text("Column of D, the training tokens.", default="tokens", metavar="COL")
    experts_column: str = text("Column of E, 1 for a dense model.", default="n_experts", metavar="COL")
    loss_column: str = text("Column of the loss.", default="loss", metavar="COL")

    def read_from(self, path: Path, *, needs_loss: bool = True) -> RunTable:
        """The runs; InputError that names the file or the option."""
        from moescale.runs.table import read_runs

        columns = {name: getattr(self, name) for name in COLUMNS}
        with at_option("--where"):
            return read_runs(path, where=self.where, needs_loss=needs_loss, **columns, **self.choices())

    def choices(self) -> dict[str, Any]:
        """What is stated beyond the filter and the names of columns, as `read_runs` takes it."""
        return {name: getattr(self, name) for name in CHOICES if getattr(self, name)}


@dataclass(frozen=True, kw_only=True)
class RunOptions(TableOptions):
    """A table of runs, the rows of it to use, and the columns to take.

    >>> table = RunOptions(runs=Path("runs.csv"), where="tokens >= 5e9").read()
    """

    runs: Path = path("Table of runs: CSV, TSV, Parquet or JSON lines.", name="RUNS", default=MISSING)

    def read(self) -> RunTable:
        """The runs; InputError that names the file or the option."""
        return self.read_from(self.runs)


@dataclass(frozen=True, kw_only=True)
class PredictedOptions(TableOptions):
    """A table of runs to predict."""

    HEADING = "Table of models"

    runs: Path | None = path("Table of runs to predict; losses may be missing.")


@dataclass(frozen=True, kw_only=True)
class IsoflopOptions(RunOptions):
    """Runs at equal FLOPs."""

    tolerance: float = quantity("Relative difference of FLOPs (6 N D) within one budget.", 0, 0.99, default=0.05)
    budget: float | None = quantity("FLOPs to state the optimum of, by the trends.", 1e12, 1e32, unit="FLOPs")


@dataclass(frozen=True, kw_only=True)
class HoldOutOptions(RunOptions):
    """Laws, the runs to fit them to, and those to test them on."""

    where: str | None = text("Rows to use.", metavar="EXPR")
    holdout: str = text("Rows to hold out, such as 'tokens >= 12e9'.", default=MISSING, metavar="EXPR")
    law: list[str] | None = text("Form of a law; repeat to compare several; default: yun2024.")


@dataclass(frozen=True, kw_only=True)
class FitOptions(Group):
    """How a law is fitted to a table of runs."""

    HEADING = "Fit"

    law: str = text("Form of the law; auto: the best forms by inner hold-outs.", default="auto")
    starts: str = text(
        "Starting points: auto, paper, or a number; paper: all 810,000, a minute or more.", default="auto"
    )
    bootstrap: int = quantity("Bootstrap replicates for 90% intervals; 0: no intervals.", DRAWS, default=0)
    seed: int = quantity("Seed of the bootstrap.", 0, MOST_SEED, default=0, whole=True)
    prior: str | None = text(
        "Law whose prior fills in what the runs do not determine: pooled2026, or one fitted with it.", metavar="LAW"
    )
    family: str | None = text("Family of the runs: yun2024, ludziejewski2025 or dense; default: by the columns.")

    def settings(self, inputs: Mapping[str, float]) -> FitSettings:
        """The settings of the fit, with further inputs that hold for all runs; InputError that names the option."""
        from moescale.fitting.workflow import FitSettings
        from moescale.models.family import find_family
        from moescale.scaling_laws import find_form, find_law

        starts: Any = self.starts
        if starts not in ("auto", "paper"):
            try:
                starts = STARTS.parse(starts, "--starts")
            except InputError as error:
                what = f"{starts!r} is not a number of starting points"
                raise InputError(what, where="--starts", next_step=f"auto, paper, or 1 to {DRAWS.most:g}") from error
        with located("--prior"):
            prior = None if self.prior is None else find_law(self.prior)
        with located("--law"):
            if self.law != "auto":
                find_form(self.law)
        with located("--family"):
            family = None if self.family is None else find_family(self.family)
        return FitSettings(
            starts=starts, extra=inputs, family=family, prior=prior, bootstrap=self.bootstrap, seed=self.seed
        )

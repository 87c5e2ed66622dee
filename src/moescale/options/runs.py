"""Tables of runs, as users state them."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moescale.options.fields import Group, at_option, flag, text

if TYPE_CHECKING:
    from moescale.runs.table import RunTable
    from moescale.scaling_laws import Law


@dataclass(frozen=True, kw_only=True)
class TableOptions(Group):
    """Which rows and columns of a table of runs to use, as `read_runs` takes them.

    >>> table = TableOptions(where="tokens >= 5e9").read(Path("runs.csv"))
    """

    HEADING = "Rows and columns of the table"

    where: str | None = text("Rows to keep, such as 'tokens / n_params_active >= 2'.", metavar="EXPR")
    best_of: bool = flag("Keep the run with the lowest loss at each N, D and E.")
    last_point: bool = flag("Keep the last row of each run (needs a column run_id).")
    size_column: str | None = text("Column of N; default: n_params_dense.", metavar="COL")
    tokens_column: str = text("Column of D, the training tokens.", default="tokens", metavar="COL")
    experts_column: str = text("Column of E, 1 for a dense model.", default="n_experts", metavar="COL")
    loss_column: str = text("Column of the loss.", default="loss", metavar="COL")

    def read(self, path: Path, *, needs_loss: bool = True) -> RunTable:
        """The runs; InputError that names the file or the option."""
        from moescale.runs.table import read_runs

        with at_option("--where"):
            return read_runs(path, needs_loss=needs_loss, **asdict(self))

    def choices(self) -> dict[str, Any]:
        """Which of the rows that pass the filter are kept, where that is stated."""
        return {name: True for name in ("best_of", "last_point") if getattr(self, name)}


def runs_of(law: Law) -> str | None:
    """The table that a law was fitted to, as `fit` was given it; RUNS.csv where it read a part or is unknown, None of a law of the catalogue."""
    options = tuple(f"--{each.name.replace('_', '-')}" for each in fields(TableOptions))
    with suppress(ValueError):  # of a file that was edited
        words = shlex.split(str(law.evidence.get("command", "")))
        named = [word for word in words if os.path.basename(word) == law.evidence.get("table")]
        if named and not any(word.startswith(options) for word in words):
            return named[0]
    return "RUNS.csv" if law.is_fitted else None

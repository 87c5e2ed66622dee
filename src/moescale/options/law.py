"""The law that a question is asked under, and the table of runs that it is fitted to, as users state them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from moescale.bounds import TOKENS
from moescale.errors import InputError, located, unknown_name
from moescale.options.fields import LEAST, Group, at_option, flag, quantity, text

if TYPE_CHECKING:
    from moescale.models.family import ModelFamily
    from moescale.runs.table import RunTable
    from moescale.scaling_laws import Law

DEFAULT_LAW = "pooled2026"
PAPER_LAW = "yun2024-recovered"  # what is asked about the paper itself
DETAILS = "Law"
LAW = "Law name or law file; `moescale laws` lists the names, `fit -o` writes a file."
SHAPES = {"paper": "yun2024", "mixtral": "mixtral", "fine-grained": "fine-grained", "deepseek": "deepseek"}
"""What `--shape` calls families of models."""
EVERY_SHAPE = "all"  # `plan` compares them
PLANNED_SHAPE = "mixtral"  # of the default law, which speaks of every shape, where one is needed and none is named
# That a plan by that law compares where none is named: the first, and of the others the first that the GPU's kernels serve.
USUAL_SHAPES = (PLANNED_SHAPE, "deepseek", "fine-grained")


@dataclass(frozen=True, kw_only=True)
class ChosenLaw(Group):
    """A law by its name."""

    law: str = text(LAW, default=DEFAULT_LAW)

    def find_law(self, find: Callable[[str], Law] | None = None) -> Law:
        """The law by its name (by `find`, where given); InputError that names the option."""
        from moescale.scaling_laws import find_law

        with located("--law"):
            return (find or find_law)(self.law)


@dataclass(frozen=True, kw_only=True)
class InputOptions(Group):
    """What laws take beyond size, tokens and experts."""

    HEADING = "Further inputs of a law"

    unique_tokens: float | None = quantity("Unique tokens, for laws of repeated data.", TOKENS)
    granularity: float | None = quantity("d_ff / expert width, for laws of fine-grained MoE.", LEAST, 1e6)
    sparsity: float | None = quantity("Inactive share of weights or experts, for laws with sparsity.", 0, 1)
    activated_experts: float | None = quantity("Active experts per layer, for zhao2025.", 1, 1e6)
    shared_ratio: float | None = quantity("Shared experts / active experts, for zhao2025.", 0, 1)

    def inputs(self) -> dict[str, float]:
        """The further inputs of a law that are stated."""
        stated = {field.name: getattr(self, field.name) for field in fields(InputOptions)}
        return {name: value for name, value in stated.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class LawOptions(InputOptions, ChosenLaw):
    """A law, its further inputs and how it counts FLOPs.

    >>> law = LawOptions(law="krajewski2024", granularity=8).find_law()
    """

    HEADING = DETAILS

    convention: str | None = text("Count of training FLOPs: paper, exact or dense; default: the law's.")
    top_k: int | None = quantity("Active experts per token; must be the law's, which is the default.", whole=True)
    shape: str | None = text("Shape, or all; mixtral, fine-grained, deepseek or paper; default: the best or the law's.")

    def find_law(self, find: Callable[[str], Law] | None = None) -> Law:
        """The law by its name (by `find`, where given), checked against what else is stated; InputError that names the option."""
        from moescale.models.family import with_convention

        law = super().find_law(find)
        if self.top_k is not None and self.top_k != law.family.top_k:
            what = f"{law.name} was fitted on top-{law.family.top_k} models and does not cover top-{self.top_k}"
            next_step = f"leave --top-k out, or fit a law to top-{self.top_k} runs"
            raise InputError(what, where="--top-k", next_step=next_step)
        if self.convention is not None:
            with located("--convention"):
                with_convention(law.family, self.convention)
        shape = PLANNED_SHAPE if self.shape is None and self.law == DEFAULT_LAW else self.shape
        return law if shape is None else in_shape(law, shape)


def family_of_shape(shape: str) -> ModelFamily:
    """The family of models that `--shape` names; InputError for another name."""
    from moescale.models.family import find_family

    if shape not in SHAPES:
        raise unknown_name("shape", shape, SHAPES, where="--shape")
    return find_family(SHAPES[shape])


def shape_name(family: str) -> str:
    """What `--shape` calls a family; a family of another name by that."""
    return next((shape for shape, name in SHAPES.items() if name == family), family)


def in_shape(law: Law, shape: str) -> Law:
    """The law of models of another shape, a name of SHAPES; InputError for an unknown one, or a law that does not speak of it."""
    from moescale.models.family import with_convention
    from moescale.scaling_laws.ensemble import restate

    family = family_of_shape(shape)
    with located("--shape"):
        return restate(law, with_convention(family, law.family.convention) if shape == "paper" else family)


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


def runs_of(law: Law) -> str | None:
    """The table that a law was fitted to, as `fit` was given it; RUNS.csv where it read a part or is unknown, None of a law of the catalogue."""
    options = tuple(f"--{each.name.replace('_', '-')}" for each in fields(TableOptions))
    with suppress(ValueError):  # of a file that was edited
        words = shlex.split(str(law.evidence.get("command", "")))
        named = [word for word in words if os.path.basename(word) == law.evidence.get("table")]
        if named and not any(word.startswith(options) for word in words):
            return named[0]
    return "RUNS.csv" if law.is_fitted else None

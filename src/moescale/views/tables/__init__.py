"""Answers as tables of text, the same ones for a terminal, a report and a notebook: one function a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from moescale.planning.compare_models import ComparedModel
from moescale.planning.known import KnownRow
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import INPUT_NAMES
from moescale.serving.accuracy import Accuracy
from moescale.units import format_count, format_flops, format_seconds, format_usd

MARK = "*"  # of a loss where the law may not speak


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; of the columns with a `rank`, that of the highest goes first where the table is too wide."""

    head: str
    text: bool = False  # left-aligned
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a title; `experts` is the expert count of each row where rows are models, `notes` what is missing."""

    title: str
    columns: tuple[Column, ...]
    rows: Sequence[Sequence[str]]
    experts: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()

    def filled(self) -> tuple[int, ...]:
        """Places of the columns that must be shown: those without a rank, and of the others those that say something."""
        kept = (not c.rank or any(row[i].strip("-") for row in self.rows) for i, c in enumerate(self.columns))
        return tuple(i for i, shown in enumerate(kept) if shown)


Item = TypeVar("Item")
Value = TypeVar("Value")

Cell = tuple[Column, Callable[[Item], str]]  # a column, and what it says of an item


def table_of(title: str, items: Iterable[Item], cells: Sequence[Cell[Item]], **more: Any) -> Table:
    """A table with a row an item; `more` is what else a Table has."""
    rows = tuple(tuple(text(item) for _, text in cells) for item in items)
    return Table(title, tuple(column for column, _ in cells), rows, **more)


def gpus_text(gpus: int | None, attention_dp: int | None, prefill_gpus: int | None = None) -> str:
    """GPUs of a server, and in how many groups of them attention is data parallel where it is: 8 DP8; 2 + 8: of a prefill and a decode worker."""
    if gpus is None:
        return "-"
    text = f"{gpus}" if attention_dp is None else f"{gpus} DP{attention_dp}"
    return text if prefill_gpus is None else f"{prefill_gpus} + {text}"


def latency_name(source: str) -> str:
    """A latency source in words: measured kernels, the roofline, or a table's name."""
    return {"silicon": "measured kernels (silicon)", "roofline": "the roofline"}.get(source, source)


def span_text(limits: Sequence[float] | None, form: str = ".4g") -> str:
    """An interval as `low to high`, or nothing."""
    return f"{limits[0]:{form}} to {limits[1]:{form}}" if limits else ""


SIZE_NAMES = {"n_params_dense": "dense-equivalent N", "n_params_active": "active N", "n_params_total": "total N"}


def range_text(fit_range: Mapping[str, tuple[float, float]], form: LawForm | None = None, size_column: str = "") -> str:
    """The ranges of a fit: N 80M to 700M (with the column of sizes, which N), D 2B to 20B, E 1 to 32; of a form of models, active body and X."""
    names = INPUT_NAMES | {"n_params": SIZE_NAMES.get(size_column, "N")}
    if form is not None and form.of_models:
        names |= {"n_params": "active body", "experts": "X"}
    words: list[str] = []
    for name, ends in fit_range.items():
        low, high = map(format_flops if name == "training_flops" else format_count, ends)
        words.append(f"{names.get(name, name)} {low} to {high}")
    return ", ".join(words)


def reason_lines(reasons: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Names with their reasons, a line for each reason."""
    told: dict[str, list[str]] = {}
    for name, reason in reasons:
        told.setdefault(reason, []).append(name)
    return tuple(f"{', '.join(names)}: {reason}" for reason, names in told.items())


def beyond_notes(models: Iterable[KnownRow | ComparedModel]) -> tuple[str, ...]:
    """Of which models a law may not speak, and why, a line for each reason."""
    return tuple(f"{MARK} {line}" for line in reason_lines((c.name, c.beyond_law) for c in models if c.beyond_law))


def accuracy_text(a: Accuracy | None, gpu: str, kind: str) -> str:
    """How far predictions of this kind lay from measurements; `kind` is what has no measurements."""
    if a is None:
        return f"unknown (no held-out measurements of {kind})"
    named = (("TPOT", a.tpot), ("TTFT", a.ttft))
    times = "".join(f", {words} {band.geometric_mean:.2f}" for words, band in named if band is not None)
    elsewhere = "" if gpu in a.gpus else f", none on {gpu}"
    return (
        f"predicted / measured throughput {a.geometric_mean:.2f} (spread {a.spread:.2f}x){times}; "
        f"{a.n} published points: {a.kind}{elsewhere}"
    )


def ttft_doubt(accuracy: Accuracy | None, limit_s: object) -> str:
    """What a limit of TTFT may be by the mean error of such servings, in words; empty without either."""
    if accuracy is None or not isinstance(limit_s, float):
        return ""
    if accuracy.ttft is None:
        return " (no TTFT of this kind was verified)"
    return f" (a TTFT of {format_seconds(limit_s)} may be {format_seconds(limit_s / accuracy.ttft.geometric_mean)})"


def or_dash(value: Value | None, text: Callable[[Value], str]) -> str:
    """A value as text, or a dash."""
    return "-" if value is None else text(value)


def ends_text(values: Sequence[float], text: Callable[[float], str]) -> str:
    """The least and the largest value as `low to high`, or as one where their texts are equal."""
    low, high = text(min(values)), text(max(values))
    return low if low == high else f"{low} to {high}"


def usd_range(ends: Sequence[float]) -> str:
    """Dollars as `low to high`, or nothing."""
    return " to ".join(map(format_usd, ends))


def percentage(ratio: float | None) -> str:
    """A share in per cent, or a dash."""
    return or_dash(ratio, "{:.0%}".format)

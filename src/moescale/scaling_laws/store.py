"""Laws as TOML files: the catalogue that ships with the package, and the files that `fit` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal

import numpy as np

from moescale.errors import InputError, damaged, nearest_names, unknown_name
from moescale.io.files import read_text, write_atomically
from moescale.io.schema import parse_toml
from moescale.models.family import ModelFamily
from moescale.scaling_laws import (
    abnar2025,
    chinchilla,
    clark2022,
    frantar2023,
    kaplan2020,
    krajewski2024,
    ludziejewski2025,
    moescale2026,
    muennighoff2023,
    yun2024,
    yun2024_centred,
)
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import Law

FORMAT = 1
MOST_NESTED = 20  # tables and lists of a law's evidence in each other
FORMS: dict[str, LawForm] = {
    form.name: form
    for form in (
        yun2024.FORM,
        chinchilla.FORM,
        kaplan2020.FORM,
        clark2022.FORM,
        muennighoff2023.FORM,
        frantar2023.FORM,
        krajewski2024.FORM,
        ludziejewski2025.FORM,
        abnar2025.FORM,
        yun2024_centred.FORM,
        moescale2026.FORM,
    )
}
ALIASES = {
    "yun": "yun2024",
    "moe": "yun2024",
    "hoffmann": "chinchilla",
    "kaplan": "kaplan2020",
    "clark": "clark2022",
    "unified": "clark2022",
    "muennighoff": "muennighoff2023",
    "data-constrained": "muennighoff2023",
    "frantar": "frantar2023",
    "sparse": "frantar2023",
    "krajewski": "krajewski2024",
    "fine-grained": "krajewski2024",
    "ludziejewski": "ludziejewski2025",
    "joint": "ludziejewski2025",
    "abnar": "abnar2025",
}


def find_form(name: str) -> LawForm:
    """The law form of this name or alias; InputError with the nearest names otherwise."""
    key = ALIASES.get(name.lower(), name.lower())
    if key in FORMS:
        return FORMS[key]
    hint = "that is a coefficient set; use it with plan and predict" if key in catalogue_names() else None
    error = unknown_name("law", name, FORMS)
    raise InputError(error.what, nearest=error.nearest, next_step=hint or error.next_step)


@cache
def catalogue_names() -> tuple[str, ...]:
    """Names of the coefficient sets that ship with the package, sorted."""
    folder = resources.files("moescale.catalogue") / "laws"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


@cache
def _catalogue_law(name: str) -> Law:
    text = (resources.files("moescale.catalogue") / "laws" / f"{name}.toml").read_text(encoding="utf-8")
    return parse_law(text, where=f"catalogue law {name}")


def find_law(name_or_path: str) -> Law:
    """A law of the catalogue by name, or a saved law file by path (anything that ends in .toml or names a file)."""
    if name_or_path.lower() in catalogue_names():
        return _catalogue_law(name_or_path.lower())
    path = Path(name_or_path)
    if name_or_path.endswith(".toml") or _is_file(path):
        return parse_law(read_text(path), where=str(path))
    names = catalogue_names()
    form = FORMS.get(ALIASES.get(name_or_path.lower(), name_or_path.lower()))
    if form is not None:
        fitted = [name for name in names if _catalogue_law(name).form is form]
        raise InputError(
            f"{name_or_path!r} is the form of a law, without coefficients",
            nearest=", ".join(fitted) or None,
            next_step="take a coefficient set, or fit the form to your runs: `moescale fit RUNS --law "
            f"{name_or_path} -o law.toml`",
        )
    raise InputError(
        f"unknown law {name_or_path!r}",
        nearest=nearest_names(name_or_path, names),
        next_step=f"known coefficient sets: {', '.join(names)}; or give the path of a law file that `moescale fit -o` wrote",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the system allows
        return False


def parse_law(text: str, *, where: str) -> Law:
    """A law from the text of its TOML file; every defect is an InputError that names the place."""
    from pydantic import BaseModel, ConfigDict, Field, ValidationError

    class FamilyTable(BaseModel):
        model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
        name: str
        top_k: int = Field(ge=1, le=1024)
        moe_every: int = Field(ge=1, le=1024)
        ffn_ratio: float = Field(gt=0, le=1e3)
        d_model_per_layer: float = Field(gt=0, le=1e5)
        ffn_matrices: int = Field(ge=2, le=3)
        head_dim: float = Field(gt=0, le=1e4)
        vocab_size: float = Field(ge=0, le=1e9)
        embedding_matrices: int = Field(ge=0, le=2)
        convention: Literal["paper", "exact", "dense"]
        n_counts: Literal["dense", "total"] = "dense"
        tokenizer: str = ""
        dataset: str = ""
        kv_heads: float | None = Field(default=None, ge=1, le=1e6)
        source: str = ""

    class LawTable(BaseModel):
        model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
        format: int = Field(ge=1)
        name: str
        law: str
        source: str
        date: str
        parameters: dict[str, float]
        family: FamilyTable
        fit_range: dict[str, tuple[float, float]]
        max_experts: float | None = Field(default=None, ge=1)
        notes: list[str] = Field(default_factory=list)
        evidence: dict[str, object] = Field(default_factory=dict)
        draws: list[list[float]] = Field(default_factory=list)

    document = parse_toml(text, where=where, kind="a law file", next_step="give a file that `moescale fit -o` wrote")
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT:
        raise InputError(
            f"law file of format {version}, this program reads {FORMAT}", where=where, next_step="update moescale"
        )
    try:
        table = LawTable.model_validate(document)
    except ValidationError as error:
        raise damaged("law file", error, where=where, next_step="write it again with `moescale fit -o`") from None
    if _is_deep(document.get("evidence")):  # what is read can be written again
        raise InputError(
            f"damaged law file at evidence: nested more than {MOST_NESTED} deep",
            where=where,
            next_step="write it again with `moescale fit -o`",
        )
    return _law_of(table.model_dump(), where)


def _is_deep(value: object) -> bool:
    """Whether lists and tables of a TOML value lie more than MOST_NESTED deep in each other."""
    level: list[object] = [value]
    for _ in range(MOST_NESTED):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for many in inner for one in many]
    return any(isinstance(one, dict | list) for one in level)


def _law_of(table: Mapping[str, object], where: str) -> Law:
    try:
        form = find_form(str(table["law"]))
    except InputError as error:
        raise InputError(error.what, where=where, nearest=error.nearest, next_step=error.next_step) from None
    parameters: dict[str, float] = dict(table["parameters"])  # type: ignore[call-overload]
    if set(parameters) != set(form.names):
        raise InputError(
            f"parameters {', '.join(sorted(parameters))} are not those of {form.name}",
            where=where,
            next_step=f"expected {', '.join(form.names)}",
        )
    rows: list[list[float]] = list(table["draws"])  # type: ignore[call-overload]
    for i, row in enumerate(rows):
        if len(row) != len(form.names):
            raise InputError(
                f"damaged law file at draws.{i}: {len(row)} numbers",
                where=where,
                next_step=f"expected {len(form.names)}, one for each of {', '.join(form.names)}",
            )
    fit_range: dict[str, tuple[float, float]] = dict(table["fit_range"])  # type: ignore[call-overload]
    for name, (low, high) in fit_range.items():
        if not (0 < low <= high or (low == 0 < high and name in form.extra_inputs)):
            raise InputError(
                f"damaged law file at fit_range.{name}: {low:g} to {high:g} is not a range of positive numbers",
                where=where,
            )
    draws_public = np.array(rows, dtype=float).reshape(-1, len(form.names))
    with np.errstate(all="ignore"):
        theta = form.encode(np.array([parameters[name] for name in form.names]))
        draws = form.encode(draws_public)
        numbers = [theta, draws, form.decode(theta), form.decode(draws)]  # what is read can be written again
    if not all(np.isfinite(values).all() for values in numbers):
        raise InputError(
            f"a parameter or a draw lies outside the domain of {form.name}",
            where=where,
            next_step=f"where {form.domain}",
        )
    return Law(
        name=str(table["name"]),
        form=form,
        theta=theta,
        family=ModelFamily(**table["family"]),  # type: ignore[arg-type]
        source=str(table["source"]),
        date=str(table["date"]),
        fit_range=fit_range,
        draws=draws,
        notes=tuple(table["notes"]),  # type: ignore[arg-type]
        max_experts=table["max_experts"],  # type: ignore[arg-type]
        evidence=dict(table["evidence"]),  # type: ignore[call-overload]
    )


def law_text(law: Law) -> str:
    """The TOML text of a law; `parse_law` reads it back but for the rounding of logarithms (relative 1e-14)."""
    import tomli_w

    document: dict[str, object] = {
        "format": FORMAT,
        "name": law.name,
        "law": law.form.name,
        "source": law.source,
        "date": law.date,
        "notes": list(law.notes),
    }
    if law.max_experts is not None:
        document["max_experts"] = law.max_experts
    document |= {
        "draws": law.form.decode(law.draws).tolist(),
        "parameters": law.parameters,
        "fit_range": {name: list(limits) for name, limits in law.fit_range.items()},
        "family": {name: value for name, value in asdict(law.family).items() if value is not None},
        "evidence": law.evidence,
    }
    return tomli_w.dumps(document)


def save_law(law: Law, path: str | Path) -> None:
    """Write a law file; nothing is half-written."""
    write_atomically(path, law_text(law))

"""Laws as TOML files: the catalogue that ships with the package, and the files that `fit` writes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from moescale.errors import DamagedFileError, InputError, UnknownNameError, damaged, located, unknown_name
from moescale.io.files import read_text, write_atomically
from moescale.io.records import record
from moescale.io.toml import parse_toml
from moescale.models.family import ModelFamily, find_family
from moescale.scaling_laws import (
    clark2022,
    kaplan2020,
    ludziejewski2025,
    moescale2026,
    muennighoff2023,
    pooled2026,
    yun2024,
    zhao2025,
)
from moescale.scaling_laws.ensemble import combine
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import ABOUT, MOST_DRAWS, Law, Member
from moescale.scaling_laws.power_laws import POWER_LAWS

FORMAT = 1
FORMS: dict[str, LawForm] = {
    form.name: form
    for form in (
        *(yun2024.FORM, POWER_LAWS["chinchilla"], kaplan2020.FORM, clark2022.FORM, muennighoff2023.FORM),
        *(POWER_LAWS["frantar2023"], POWER_LAWS["krajewski2024"], ludziejewski2025.FORM, POWER_LAWS["abnar2025"]),
        *(yun2024.CENTRED, moescale2026.FORM, moescale2026.FORM_LATE, zhao2025.FORM, pooled2026.FORM),
    )
}
ALIASES = {
    **{name.rstrip("0123456789"): name for name in FORMS if name[-1].isdigit() and "2026" not in name},
    **{"moe": "yun2024", "hoffmann": "chinchilla", "unified": "clark2022", "data-constrained": "muennighoff2023"},
    **{"sparse": "frantar2023", "fine-grained": "krajewski2024", "joint": "ludziejewski2025", "tencent": "zhao2025"},
}


def find_form(name: str) -> LawForm:
    """The law form of this name or alias; InputError with the nearest names otherwise."""
    key = ALIASES.get(name.lower(), name.lower())
    if key in FORMS:
        return FORMS[key]
    hint = "that is a coefficient set; use it with plan and predict" if key in catalogue_names() else None
    error = unknown_name("law", name, FORMS)
    raise UnknownNameError(error.what, nearest=error.nearest, next_step=hint or error.next_step)


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
    key, names = name_or_path.lower(), catalogue_names()
    if key in names:
        return _catalogue_law(key)
    if name_or_path.endswith(".toml") or os.path.isfile(name_or_path):
        return parse_law(read_text(name_or_path), where=name_or_path)
    form = FORMS.get(ALIASES.get(key, key))
    if form is not None:
        fitted = ", ".join(name for name in names if _catalogue_law(name).form is form)
        what = f"{name_or_path!r} is the form of a law, without coefficients"
        command = f"moescale fit RUNS --law {name_or_path} -o law.toml"
        advice = f"use a coefficient set, or fit the form to your runs: `{command}`"
        raise UnknownNameError(what, nearest=fitted or None, next_step=advice)
    raise unknown_name("law", name_or_path, names, otherwise="or the path of a law file that `moescale fit -o` wrote")


class About(BaseModel, extra="forbid", allow_inf_nan=False, defer_build=True):
    """What all law files hold."""

    format: int = Field(ge=1)
    name: str
    source: str
    date: str
    notes: tuple[str, ...] = ()
    evidence: dict[str, object] = Field(default_factory=dict)
    run_noise: float = Field(default=0.0, ge=0, le=10)
    drift: float = Field(default=0.0, ge=0, le=10)


class LawTable(About):
    """A law file."""

    law: str
    parameters: dict[str, float]
    family: ModelFamily
    fit_range: dict[str, tuple[float, float]]
    max_experts: float | None = Field(default=None, ge=1)
    draws: list[list[float]] = Field(default_factory=list, max_length=MOST_DRAWS)


class MemberTable(BaseModel, extra="forbid", allow_inf_nan=False, defer_build=True):
    """A law of an ensemble: in full, or the name of one of the catalogue."""

    law: LawTable | str
    weight: float = Field(gt=0)
    unit: float = Field(default=0.0, ge=-10, le=10)


class EnsembleTable(About):
    """The file of an ensemble; its coefficients and draws are those of its members."""

    family: ModelFamily | str
    members: list[MemberTable] = Field(min_length=1, max_length=64)
    n_draws: int = Field(ge=0, le=MOST_DRAWS)
    fit_range: dict[str, tuple[float, float]] = Field(default_factory=dict)


def parse_law(text: str, *, where: str) -> Law:
    """A law from the text of its TOML file; every defect is an InputError that names the place."""
    document = parse_toml(text, where=where, kind="a law file", next_step="give a file that `moescale fit -o` wrote")
    version = document.get("format")
    if isinstance(version, int) and version > FORMAT:
        what = f"law file of format {version}, this program reads {FORMAT}"
        raise DamagedFileError(what, where=where, next_step="update moescale")
    kind = EnsembleTable if "members" in document else LawTable
    try:
        table = kind.model_validate(document)
    except ValidationError as error:
        raise damaged("law file", error, where=where, next_step="write it again with `moescale fit -o`") from None
    with located(where):
        return _law_of(table) if isinstance(table, LawTable) else _ensemble_of(table)


def _law_of(table: LawTable) -> Law:
    form = find_form(table.law)
    names = ", ".join(form.names)
    if set(table.parameters) != set(form.names):
        stated = ", ".join(sorted(table.parameters))
        advice = f"expected {names}; where an older version wrote the file, fit the form to its runs again"
        raise DamagedFileError(f"parameters {stated} are not those of {form.name}", next_step=advice)
    for i, row in enumerate(table.draws):
        if len(row) != len(form.names):
            advice = f"expected {len(form.names)}, one for each of {names}"
            raise DamagedFileError(f"damaged law file at draws.{i}: {len(row)} numbers", next_step=advice)
    _check_ranges(table.fit_range, form.extra_inputs)
    with np.errstate(all="ignore"):
        theta = form.encode(np.array([table.parameters[name] for name in form.names]))
        draws = form.encode(np.array(table.draws, dtype=float).reshape(-1, len(form.names)))
        numbers = [theta, draws, form.decode(theta), form.decode(draws)]  # what is read can be written again
    if not all(np.isfinite(values).all() for values in numbers):
        what = f"a parameter or a draw lies outside the domain of {form.name}"
        raise DamagedFileError(what, next_step=f"where {form.domain}")
    facts = {name: getattr(table, name) for name in (*ABOUT, "family", "fit_range", "max_experts")}
    return Law(form=form, theta=theta, draws=draws, **facts)


def _ensemble_of(table: EnsembleTable) -> Law:
    members: list[Member] = []
    for i, member in enumerate(table.members):
        try:
            members.append(Member(_member_law(member.law), member.weight, member.unit))
        except InputError as error:
            what = f"members.{i}: {error.what}"
            raise DamagedFileError(what, nearest=error.nearest, next_step=error.next_step) from None
    _check_ranges(table.fit_range, {name for member in members for name in member.law.form.extra_inputs})
    family = find_family(table.family) if isinstance(table.family, str) else table.family
    facts = {name: getattr(table, name) for name in ABOUT}
    return combine(members, family=family, draws=table.n_draws, fit_range=table.fit_range, **facts)


def _member_law(stated: LawTable | str) -> Law:
    if isinstance(stated, LawTable):
        return _law_of(stated)
    if stated not in catalogue_names():
        raise unknown_name("law", stated, catalogue_names())
    law = _catalogue_law(stated)
    if law.members:
        raise DamagedFileError(f"{stated} is an ensemble", next_step="name its members")
    return law


def _check_ranges(ranges: Mapping[str, tuple[float, float]], may_be_zero: Collection[str]) -> None:
    for name, (low, high) in ranges.items():
        if not (0 < low <= high or (low == 0 < high and name in may_be_zero)):
            what = f"{low:g} to {high:g} is not a range of positive numbers"
            raise DamagedFileError(f"damaged law file at fit_range.{name}: {what}")


def law_text(law: Law) -> str:
    """The TOML text of a law; `parse_law` reads it back but for the rounding of logarithms (relative 1e-14)."""
    import tomli_w

    return tomli_w.dumps(_document(law))


def _document(law: Law) -> dict[str, object]:
    about: dict[str, object] = record(law, without=("form", "theta", "draws", "family", "members", "max_experts"))
    about |= {"format": FORMAT, "family": law.family.to_dict()}
    if law.members:
        members = [{"weight": each.weight, "unit": each.unit, "law": _document(each.law)} for each in law.members]
        return about | {"n_draws": len(law.draws), "members": members}
    if law.max_experts is not None:
        about["max_experts"] = law.max_experts
    return about | {"law": law.form.name, "draws": law.form.decode(law.draws).tolist(), "parameters": law.parameters}


def save_law(law: Law, path: str | Path) -> None:
    """Write a law file; nothing is half-written."""
    write_atomically(path, law_text(law))

"""Laws as TOML files: the catalogue that ships with the package, and the files that `fit` writes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from moescale.errors import (
    DamagedFileError,
    InputError,
    UnknownNameError,
    damaged,
    located,
    nearest_names,
    unknown_name,
)
from moescale.io.files import read_text, write_atomically
from moescale.io.records import plain, record
from moescale.io.toml import parse_toml
from moescale.models.family import BASE_EXPERTS, LADDER, ModelFamily, find_family
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
    pooled2026,
    yun2024,
    zhao2025,
)
from moescale.scaling_laws.ensemble import combine
from moescale.scaling_laws.form import LawForm
from moescale.scaling_laws.law import MOST_DRAWS, Law, Member

FORMAT = 1
AGAIN = "write it again with `moescale fit -o`"
ABOUT = ("name", "source", "date", "notes", "evidence", "run_noise", "drift")  # of every law
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
        yun2024.CENTRED,
        moescale2026.FORM,
        moescale2026.FORM_LATE,
        zhao2025.FORM,
        pooled2026.FORM,
    )
}
_ALSO = {
    "yun2024": "yun moe",
    "chinchilla": "hoffmann",
    "kaplan2020": "kaplan",
    "clark2022": "clark unified",
    "muennighoff2023": "muennighoff data-constrained",
    "frantar2023": "frantar sparse",
    "krajewski2024": "krajewski fine-grained",
    "ludziejewski2025": "ludziejewski joint",
    "abnar2025": "abnar",
    "zhao2025": "zhao tencent",
}
ALIASES = {alias: name for name, words in _ALSO.items() for alias in words.split()}


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
    if name_or_path.lower() in catalogue_names():
        return _catalogue_law(name_or_path.lower())
    path = Path(name_or_path)
    if name_or_path.endswith(".toml") or _is_file(path):
        return parse_law(read_text(path), where=str(path))
    names = catalogue_names()
    form = FORMS.get(ALIASES.get(name_or_path.lower(), name_or_path.lower()))
    if form is not None:
        fitted = [name for name in names if _catalogue_law(name).form is form]
        what = f"{name_or_path!r} is the form of a law, without coefficients"
        command = f"moescale fit RUNS --law {name_or_path} -o law.toml"
        advice = f"use a coefficient set, or fit the form to your runs: `{command}`"
        raise UnknownNameError(what, nearest=", ".join(fitted) or None, next_step=advice)
    nearest = nearest_names(name_or_path, names)
    advice = f"known coefficient sets: {', '.join(names)}; or give the path of a law file that `moescale fit -o` wrote"
    raise UnknownNameError(f"unknown law {name_or_path!r}", nearest=nearest, next_step=advice)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than the system allows
        return False


class FamilyTable(BaseModel, extra="forbid", allow_inf_nan=False, defer_build=True):
    """The fields of `ModelFamily` in a law file, with their bounds."""

    name: str
    top_k: int = Field(ge=1, le=1024)
    moe_every: int = Field(ge=1, le=1024)
    ffn_ratio: float = Field(ge=1e-3, le=1e3)
    d_model_per_layer: float = Field(ge=1, le=1e5)
    ffn_matrices: int = Field(ge=2, le=3)
    head_dim: float = Field(ge=1, le=1e4)
    vocab_size: float = Field(ge=0, le=1e9)
    embedding_matrices: int = Field(ge=0, le=2)
    convention: Literal["paper", "exact", "dense"]
    n_counts: Literal["dense", "total"] = "dense"
    tokenizer: str = ""
    dataset: str = ""
    kv_heads: float | None = Field(default=None, ge=1, le=1e6)
    source: str = ""
    expert_width: float = Field(default=1.0, ge=1e-4, le=1e3)
    shared_experts: float = Field(default=0.0, ge=0, le=1e4)
    attention_ratio: float = Field(default=1.0, ge=1e-3, le=1e3)
    kv_lora_rank: float = Field(default=0.0, ge=0, le=1e6)
    q_lora_rank: float = Field(default=0.0, ge=0, le=1e6)
    qk_rope_head_dim: float = Field(default=0.0, ge=0, le=1e4)
    v_head_dim: float = Field(default=0.0, ge=0, le=1e4)
    ladder: tuple[Annotated[float, Field(ge=1, le=1e6)], ...] = Field(default=LADDER, max_length=64)
    base_experts: float = Field(default=BASE_EXPERTS, ge=1, le=1e6)


class About(BaseModel, extra="forbid", allow_inf_nan=False, defer_build=True):
    """What all law files hold."""

    format: int = Field(ge=1)
    name: str
    source: str
    date: str
    notes: list[str] = Field(default_factory=list)
    evidence: dict[str, object] = Field(default_factory=dict)
    run_noise: float = Field(default=0.0, ge=0, le=10)
    drift: float = Field(default=0.0, ge=0, le=10)

    def facts(self) -> dict[str, Any]:
        """The fields that a law has under the same names."""
        return {name: getattr(self, name) for name in ABOUT}


class LawTable(About):
    """A law file."""

    law: str
    parameters: dict[str, float]
    family: FamilyTable
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

    family: FamilyTable | str
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
        raise damaged("law file", error, where=where, next_step=AGAIN) from None
    with located(where):
        return _law_of(table) if isinstance(table, LawTable) else _ensemble_of(table)


def _is_deep(value: object) -> bool:
    """Whether lists and tables of a TOML value lie more than MOST_NESTED deep in each other."""
    level: list[object] = [value]
    for _ in range(MOST_NESTED):
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level = [one for many in inner for one in many]
    return any(isinstance(one, dict | list) for one in level)


def _law_of(table: LawTable) -> Law:
    form = find_form(table.law)
    _check_parts(table, form)
    with np.errstate(all="ignore"):
        theta = form.encode(np.array([table.parameters[name] for name in form.names]))
        draws = form.encode(np.array(table.draws, dtype=float).reshape(-1, len(form.names)))
        numbers = [theta, draws, form.decode(theta), form.decode(draws)]  # what is read can be written again
    if not all(np.isfinite(values).all() for values in numbers):
        what = f"a parameter or a draw lies outside the domain of {form.name}"
        raise DamagedFileError(what, next_step=f"where {form.domain}")
    facts: dict[str, Any] = table.facts() | {"notes": tuple(table.notes), "max_experts": table.max_experts}
    family = ModelFamily(**table.family.model_dump())
    return Law(form=form, theta=theta, family=family, fit_range=table.fit_range, draws=draws, **facts)


def _ensemble_of(table: EnsembleTable) -> Law:
    if _is_deep(table.evidence):
        raise DamagedFileError(f"damaged law file at evidence: nested more than {MOST_NESTED} deep", next_step=AGAIN)
    members: list[Member] = []
    for i, member in enumerate(table.members):
        try:
            law = _law_of(member.law) if isinstance(member.law, LawTable) else _member_of_catalogue(member.law)
        except InputError as error:
            what = f"members.{i}: {error.what}"
            raise DamagedFileError(what, nearest=error.nearest, next_step=error.next_step) from None
        members.append(Member(law, member.weight, member.unit))
    _check_ranges(table.fit_range, {name for member in members for name in member.law.form.extra_inputs})
    family = find_family(table.family) if isinstance(table.family, str) else ModelFamily(**table.family.model_dump())
    return combine(members, family=family, draws=table.n_draws, fit_range=table.fit_range, **table.facts())


def _member_of_catalogue(name: str) -> Law:
    if name not in catalogue_names():
        raise unknown_name("law", name, catalogue_names())
    law = _catalogue_law(name)
    if law.members:
        raise DamagedFileError(f"{name} is an ensemble", next_step="name its members")
    return law


def _check_parts(table: LawTable, form: LawForm) -> None:
    """Refuse parts that do not fit the form, or could not be written again."""
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
    if _is_deep(table.evidence):
        raise DamagedFileError(f"damaged law file at evidence: nested more than {MOST_NESTED} deep", next_step=AGAIN)


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
    if law.members:
        return {
            "format": FORMAT,
            **{key: plain(getattr(law, key)) for key in ABOUT},
            "n_draws": len(law.draws),
            "fit_range": plain(law.fit_range),
            "family": law.family.to_dict(),
            "members": [
                {"weight": member.weight, "unit": member.unit, "law": _document(member.law)} for member in law.members
            ],
        }
    return {
        "format": FORMAT,
        **record(law, without=("form", "theta", "draws", "family", "fit_range", "evidence", "members")),
        "law": law.form.name,
        "draws": law.form.decode(law.draws).tolist(),
        "parameters": law.parameters,
        "fit_range": plain(law.fit_range),
        "family": law.family.to_dict(),
        "evidence": law.evidence,
    }


def save_law(law: Law, path: str | Path) -> None:
    """Write a law file; nothing is half-written."""
    write_atomically(path, law_text(law))

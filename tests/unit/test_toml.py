"""TOML files of settings: what an annotation allows, what a refusal names, and what the parser cannot take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import Field, StrictBool, model_validator

from moescale.errors import BoundError, InputError, UnknownNameError
from moescale.experiments.profile import read_grid
from moescale.experiments.settings import read_settings
from moescale.experiments.sweep_file import read_sweep
from moescale.hardware.gpus import read_gpu
from moescale.io.toml import LIMIT_BYTES, Experts, Listed, Quantity, Size, Table, Text, Tokens, checked
from moescale.scaling_laws import find_law


class Model(Table):
    n_params: Size
    experts: Experts = 1

    @model_validator(mode="after")
    def complete(self) -> Self:
        if self.experts == 13:
            raise InputError("13 experts are one too many")
        return self


class Run(Table):
    name: Text
    model: Model
    tokens: Annotated[tuple[Tokens, ...], Listed]
    schedule: Literal["cosine", "wsd"] = "cosine"
    offline: StrictBool | None = None
    slurm: dict[str, Any] = Field(default_factory=dict[str, Any])
    layers: Annotated[int, Quantity, Field(ge=1)] = 12


GOOD: dict[str, Any] = {"name": "a", "model": {"n_params": "85M"}, "tokens": "2B"}


def test_a_table_becomes_the_model_with_its_defaults() -> None:
    made = checked(Run, GOOD, where="f")
    assert made == Run(name="a", model=Model(n_params=85e6), tokens=(2_000_000_000,))
    full = GOOD | {"tokens": [1, "2K"], "offline": False, "slurm": {"x": 1}, "schedule": "wsd"}
    found = checked(Run, full | {"model": {"n_params": 5e3, "experts": "1K"}}, where="f")
    assert (found.tokens, found.model.experts, found.schedule, found.slurm) == ((1, 2000), 1000, "wsd", {"x": 1})
    assert isinstance(found.model.experts, int)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"tokns": 1}, UnknownNameError, "f: unknown key 'tokns'; nearest: tokens; known: name, model"),
        ({"name": None}, InputError, "f: name is missing; add name = .."),
        ({"name": " "}, InputError, "f, name: ' ' is not a text"),
        ({"name": 7}, InputError, "f, name: 7 is not a text"),
        ({"model": 3}, InputError, "f, [model]: is not a table; write it as [name]"),
        ({"model": {}}, InputError, "f, [model]: n_params is missing"),
        ({"model": {"n_parms": 1}}, UnknownNameError, "f, [model]: unknown key 'n_parms'; nearest: n_params"),
        ({"model": {"n_params": "many"}}, InputError, "f, [model], n_params: 'many' is not a quantity"),
        ({"model": {"n_params": True}}, InputError, "f, [model], n_params: True is not a number"),
        ({"model": {"n_params": 1}}, BoundError, "f, [model], n_params: 1 is not at least 1000; nearest: 1000"),
        ({"model": {"n_params": 1e4, "experts": 1.5}}, BoundError, "experts: 1.5 is not a whole number; nearest: 2"),
        ({"model": {"n_params": 1e4, "experts": 13}}, InputError, "f, [model]: 13 experts are one too many"),
        ({"tokens": []}, InputError, "f, tokens: is empty"),
        ({"tokens": [1, 0]}, BoundError, "f, tokens: 0 is not at least 1; nearest: 1"),
        ({"schedule": "cosin"}, UnknownNameError, "f: unknown schedule 'cosin'; nearest: cosine"),
        ({"offline": "no"}, InputError, "f, offline: 'no'"),
        ({"slurm": []}, InputError, "f, [slurm]: is not a table"),
        ({"layers": 2**2000}, InputError, "f, layers"),
    ],
)
def test_a_refusal_names_the_place_the_nearest_and_the_next_step(
    changes: dict[str, Any], kind: type[InputError], message: str
) -> None:
    given = {key: value for key, value in (GOOD | changes).items() if value is not None}
    with pytest.raises(kind) as caught:
        checked(Run, given, where="f")
    assert type(caught.value) is kind
    assert message in str(caught.value)


READERS = (read_gpu, read_grid, read_settings, read_sweep)


@pytest.mark.parametrize("read", [*READERS, lambda path: find_law(str(path))])
@pytest.mark.parametrize(
    "text",
    [
        "name = " + "[" * 5000, "name = " + "[" * 3000 + "]" * 3000, "name = " + "9" * 5000, "name = 0x" + "f" * 5000,
        'name = "a', "name = 2026-13-40",
    ],
    ids=["open", "deep", "digits", "hexadecimal", "cut", "date"],
)  # fmt: skip
def test_what_the_parser_cannot_take_is_told_with_the_file(
    read: Callable[[Path], object], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "given.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert caught.value.what.startswith(("is not valid TOML", "is not a law file"))
    assert caught.value.next_step


@pytest.mark.parametrize("read", READERS)
def test_settings_of_megabytes_are_refused_unparsed(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "given.toml"
    path.write_text("# " + "x" * LIMIT_BYTES)
    with pytest.raises(InputError, match="larger than"):
        read(path)

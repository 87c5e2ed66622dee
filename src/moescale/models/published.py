"""Published models: their shapes, the counts that their authors state, and the depth and width that they share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from string import ascii_letters
from typing import Any, Literal

import numpy as np

from moescale import catalogue
from moescale.errors import InputError, unknown_name
from moescale.hardware.precisions import find_precision
from moescale.models.architecture import Architecture, Quantised
from moescale.models.parameters import dense_equivalent_params
from moescale.models.quantisation import CheckpointWeights
from moescale.typing import FloatArray
from moescale.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A published model: its architecture and the parameter counts that its authors state."""

    architecture: Architecture
    published_total: float
    published_active: float  # the total for a dense model
    source: str
    date: str
    row: Mapping[str, Any] = field(compare=False)  # of catalogue/shapes.toml: what the published figures count
    fits_hl: bool = True  # belongs to the dense models that the catalogue's mu of h l = mu N^(2/3) was fitted to
    tokens: float | None = None  # of pre-training, where the authors state them
    tokens_source: str = ""
    weights: CheckpointWeights | None = None  # as they were released; None: they were not
    trained_in: Literal["bf16", "fp8"] | None = None  # of pre-training's products, where the authors state it
    trained_in_source: str = ""
    context_tokens: int | None = None  # the longest sequence that it was made for, where the catalogue states it
    hf: tuple[str, ...] = ()  # names at Hugging Face beside ORGANISATION/NAME

    def digit(self, figure: str) -> float:
        """Value of one unit in the last digit of a figure of the row, such as published_total: 0.1e9 of 46.7B."""
        text = str(self.row[figure])
        number = text.rstrip(ascii_letters)
        return parse_quantity(f"1{text[len(number) :]}") * 10.0 ** -len(number.partition(".")[2])

    def to_dict(self) -> dict[str, object]:
        """JSON-ready: what the authors state, and where."""
        stated: dict[str, object] = {"name": self.architecture.name, "published_total": self.published_total}
        stated["published_active"] = self.published_active
        if self.tokens is not None:
            stated |= {"tokens": self.tokens, "tokens_source": self.tokens_source}
        if self.weights is not None:
            stated |= {"weights": self.weights.format, "weights_source": self.weights.stated}
        return stated | {"source": self.source, "date": self.date}


def _shape(name: str, row: dict[str, Any]) -> Shape:
    numbers, stated = ({f.name: row[f.name] for f in fields(kind) if f.name in row} for kind in (Architecture, Shape))
    if "quantised" in row:
        numbers["quantised"] = Quantised(**row["quantised"])
    stated |= {"architecture": Architecture(**numbers, name=name), "row": row, "hf": tuple(row.get("hf", ()))}
    stated |= {"fits_hl": row.get("fits_hl", not row.get("n_moe_layers", 0))}
    if "tokens" in row:
        stated |= {"tokens": parse_quantity(row["tokens"]), "tokens_source": row.get("tokens_source", row["source"])}
    stated["published_active"] = parse_quantity(row.get("published_active", row["published_total"]))
    stated["published_total"] = parse_quantity(row["published_total"])
    if (weights := row.get("weights")) is not None:
        held = float(row.get("weight_bytes", find_precision("weights", weights).bytes_per_element))
        # Source and date of released weights are the shape's where none are stated.
        source, date = (row.get(f"weights_{key}", row[key]) for key in ("source", "date"))
        released = f"as released: {source}, {date}"
        stated["weights"] = CheckpointWeights(format=weights, bytes_per_param=held, stated=released)
    return Shape(**stated)


@cache
def published_shapes() -> dict[str, Shape]:
    """Every published model of the catalogue with its stated counts and source."""
    rows = catalogue.read("shapes.toml")["shape"]
    own = {"tokens", "tokens_source", "hf"}  # of one release, which others of its shape do not share
    found: dict[str, Shape] = {}
    for name, row in rows.items():
        shared = {key: value for key, value in rows.get(row.get("like"), {}).items() if key not in own}
        found[name] = _shape(name, shared | row)
    return found


@cache
def _by_name() -> dict[str, Shape]:
    listed = {alias.lower().rpartition("/")[2]: shape for shape in published_shapes().values() for alias in shape.hf}
    return listed | {name.lower(): shape for name, shape in published_shapes().items()}


def find_shape(name: str) -> Shape:
    """The published model of this name, its own or that at Hugging Face, with or without the organisation; raises UnknownNameError."""
    if (found := _by_name().get(name.strip().lower().rpartition("/")[2])) is None:
        other = "any other as --config CONFIG.json, or --n-params and --experts"
        raise unknown_name("published model", name, published_shapes(), otherwise=other)
    return found


def shapes() -> dict[str, Architecture]:
    """The architectures of the published models of the catalogue by name."""
    return {name: shape.architecture for name, shape in published_shapes().items()}


def shapes_of_hl() -> dict[str, Architecture]:
    """The dense published models whose depth and width the catalogue's h l = mu N^(2/3) was fitted to."""
    return {name: shape.architecture for name, shape in published_shapes().items() if shape.fits_hl}


def hl_coefficient(architectures: Iterable[Architecture]) -> tuple[float, FloatArray]:
    """mu of h l = mu N^(2/3) (paper's appendix B), by least squares on logarithms, and the relative error of each shape's d_model n_layers."""
    given = list(architectures)
    if not given:
        raise InputError("no architecture to fit h l = mu N^(2/3) to", next_step="pass at least one, or shapes()")
    width_depth = np.array([float(a.d_model * a.n_layers) for a in given])
    n_params = np.array([float(dense_equivalent_params(a)) for a in given])
    mu = float(np.exp(np.mean(np.log(width_depth) - 2 / 3 * np.log(n_params))))
    return mu, mu * n_params ** (2 / 3) / width_depth - 1

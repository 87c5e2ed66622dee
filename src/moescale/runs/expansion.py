"""What a table says of its models: the body that one token meets, and how far experts expand the FFNs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moescale.typing import FloatArray, Real

NEURONS = 32.0  # no published expert is narrower; a width below is a multiple of some layer's

Columns = Mapping[str, NDArray[Any]]

# Parameters that one token meets, embedding tables not counted, in the order of preference.
BODY_COLUMNS = ("n_params_active_nonemb", "n_params_nonemb")
EMBEDDING_COLUMN = "n_params_embedding"  # where it stands, as in tables of `moescale train`, no size counts embeddings
VOCABULARY_COLUMN = "vocab_size"
WIDTH_COLUMNS = ("d_model", "width")
# Smallest value of each column that describes a model; a column with another cell is not used.
LEAST = dict.fromkeys(
    ("n_params_active", *BODY_COLUMNS, VOCABULARY_COLUMN, *WIDTH_COLUMNS, "expansion", "top_k", "moe_every"), 1.0
) | {"routing_frequency": 1e-6, "expert_width": 1e-6, "shared_width": 0.0, "ffn_width": 1e-6}
# Those that say nothing of a dense model, whose cells may be empty.
OF_ROUTED = ("expansion", "top_k", "moe_every", "routing_frequency", "expert_width", "shared_width", "ffn_width")


def layer_expansion(
    experts: Real,
    top_k: Real = 1.0,
    routed_share: Real = 1.0,
    expert_width: Real = 1.0,
    shared_width: Real = 0.0,
    dense_width: Real | None = None,
) -> FloatArray:
    """X: FFN weights of all experts over those that one token meets, dense and shared ones in both; arguments broadcast.

    `routed_share` of the layers have experts. The widths of an expert, of the shared experts of a layer together, and
    of the FFN of a layer without experts (default: top_k experts) are in one unit, whichever. 1 where there is one
    expert.
    """
    e, k, f, w, s = (np.asarray(v, dtype=float) for v in (experts, top_k, routed_share, expert_width, shared_width))
    met = np.minimum(k, e) * w
    without = (1.0 - f) * (met if dense_width is None else np.asarray(dense_width, dtype=float))
    return np.where(e == 1.0, 1.0, (f * (e * w + s) + without) / (f * (met + s) + without))


def expansion(experts: FloatArray, columns: Columns) -> FloatArray:
    """X of each run of a table, (n,): its column expansion, else by `layer_expansion` from what it states.

    Experts that are no whole numbers are expansions themselves; those whose width no column states are as wide as a
    dense FFN.
    """

    usable_ones = ((name, usable(columns, name, experts)) for name in OF_ROUTED)
    stated = {name: np.where(experts == 1.0, 1.0, values) for name, values in usable_ones if values is not None}
    if "expansion" in stated:
        return stated["expansion"]
    if (experts != np.floor(experts)).any():
        return experts
    share = np.minimum(stated.get("routing_frequency", 1.0 / stated.get("moe_every", np.ones(1))), 1.0)
    width = stated.get("expert_width", 1.0)
    dense = stated.get("ffn_width", None if "expert_width" in stated else 1.0)
    found = layer_expansion(experts, stated.get("top_k", 1.0), share, width, stated.get("shared_width", 0.0), dense)
    return np.broadcast_to(found, experts.shape)


def expert_shape(experts: FloatArray, columns: Columns) -> dict[str, FloatArray]:
    """Granularity and the share of shared experts of each run, (n,) each, as far as its columns tell; 1 and 0 of dense runs.

    Granularity is 8 d_model^2 over the parameters of a routed expert. A width is in neurons where a column d_model says
    what a neuron costs and no width is below NEURONS; else it is one of a dense FFN, `ffn_width` or 1, of granularity
    1.
    """
    width, top_k, dense = (usable(columns, name, experts) for name in ("expert_width", "top_k", "ffn_width"))
    if width is None:
        return {}
    routed, model = experts > 1.0, _first(WIDTH_COLUMNS, columns, experts)
    if model is not None and (width[routed] >= NEURONS).all():
        dense = 8.0 / 3.0 * model
    found = {"granularity": np.where(routed, (1.0 if dense is None else dense) / width, 1.0)}
    if (shared := usable(columns, "shared_width", experts)) is not None:
        met = shared + np.minimum(1.0 if top_k is None else top_k, experts) * width
        found["shared_ffn"] = np.where(routed, shared / met, 0.0)
    return found


def active_body(n_params: FloatArray, experts: FloatArray, size_column: str, columns: Columns) -> FloatArray | None:
    """Parameters without embeddings that one token meets, (n,); None where a table does not tell.

    The first of `BODY_COLUMNS`; else n_params_active beside a column of embeddings; else the active size (the column,
    or the sizes in use unless these count all experts) less two tables of vocab_size rows, d_model or width wide.
    """
    named = {**columns, size_column: n_params}
    apart = ("n_params_active",) * (EMBEDDING_COLUMN in columns)
    if (body := _first((*BODY_COLUMNS, *apart), named, experts)) is not None:
        return body
    rows, width = usable(named, VOCABULARY_COLUMN, experts), _first(WIDTH_COLUMNS, named, experts)
    active = named.get("n_params_active", n_params)
    counts_all = size_column == "n_params_total" and "n_params_active" not in named and bool((experts > 1.0).any())
    if rows is None or width is None or counts_all or active.dtype.kind != "f":
        return None
    body = active - 2.0 * rows * width
    return body if bool((body > 0.0).all()) else None


def usable(columns: Columns, name: str, experts: FloatArray) -> FloatArray | None:
    """The column that describes models, (n,), where every cell that matters is a number in its range; else None."""
    values = columns.get(name)
    if values is None or values.dtype.kind != "f" or unusable(values, name, experts).any():
        return None
    return values.astype(float)


def _first(names: Iterable[str], columns: Columns, experts: FloatArray) -> FloatArray | None:
    return next((values for name in names if (values := usable(columns, name, experts)) is not None), None)


def unusable(values: NDArray[Any], name: str, experts: FloatArray) -> NDArray[np.bool_]:
    """Which runs have no number, or one out of range, where a column describes models, (n,)."""
    wrong = ~(np.isfinite(values) & (values >= LEAST[name])) if values.dtype.kind == "f" else np.full(len(values), True)
    return wrong & (experts > 1.0) if name in OF_ROUTED else wrong

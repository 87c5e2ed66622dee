"""Fit pooled2026 to the public tables and published laws, and write the catalogue's pooled2026.toml.

    python scripts/fit_pooled2026.py [--print]

docs/evidence/pooled-law.md says which sources count, and how; --print shows the mean and the spread, and writes nothing.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import tomli_w

from leverage import efficiency_leverage
from moescale.fitting.prior import EFFECTS, Prior, Source
from moescale.io.files import write_atomically
from moescale.io.records import record
from moescale.models.coordinates import in_family, model_of
from moescale.models.family import find_family, law_size, with_convention
from moescale.scaling_laws import Law, find_law, loss, make_inputs
from moescale.scaling_laws.pooled2026 import FORM, log_loss
from moescale.scaling_laws.store import FORMAT, parse_law
from moescale.typing import FloatArray
from pooling import MULTIPLIER_NOISE, OF_DECISIONS, Pooled, pool

PUBLIC = Path(__file__).resolve().parents[1] / "tests/data/public"
FEWEST_TOKENS = 2.0  # a parameter: fewer, and losses rise with experts
LABS = {
    "gadre_c4": "gadre", "gadre_rpj": "gadre", "gadre_rw": "gadre", "porian_rw_chin": "porian", "porian_owt_chin": "porian",
    "gemstones_cool": "gemstones", "olmo_ladder": "ai2", "datablations": "datablations",
}  # fmt: skip
USUAL_RATIO = (5.0, 300.0)  # tokens a parameter at which published laws are asked
PUBLISHED_POINTS = 6  # of each variable of a published law
NAME, DATE, DRAWS, SEED = "pooled2026", "2026-11-23", 400, 0
SOURCE = (
    "fitted by scripts/fit_pooled2026.py to the public tables of tests/data/public and to published laws of MoE models"
)
UNIT_OF, REFERENCE = "ludziejewski2025", (1e9, 2e10, 1.0)  # dense, 20 tokens a parameter
MOST_X = 128.0  # expansions that a plan may recommend: three times the largest of runs that vary N and D
MOST_VARIED = 43.0  # the largest expansion at which a lab varied N and D: Marin's (docs/evidence/pooled-law.md, "What falls short")
TARGET = Path(__file__).resolve().parents[1] / "src/moescale/catalogue/laws/pooled2026.toml"


def columns(name: str) -> dict[str, FloatArray]:
    """The numeric columns of a public table."""
    with (PUBLIC / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found: dict[str, FloatArray] = {}
    for key in rows[0]:
        try:
            found[key] = np.array([float(row[key] or "nan") for row in rows])
        except ValueError:
            found[key] = np.array([row[key] for row in rows])  # type: ignore[assignment]
    return found


def source(
    name: str,
    lab: str,
    body: FloatArray,
    tokens: FloatArray,
    x: FloatArray | float,
    values: FloatArray,
    *,
    granularity: FloatArray | float = 1.0,
    shared: FloatArray | float = 0.0,
    unique: FloatArray | float = np.inf,
    group: Sequence[str] | None = None,
    of_multiplier: bool = False,
) -> Source:
    """A source of these runs: `values` are losses, or size multipliers."""
    extra = {"granularity": granularity, "shared_ffn": shared, "unique_tokens": unique}
    inputs = make_inputs(body, tokens, x, extra)
    groups = np.zeros(inputs.ln_n.size, np.intp) if group is None else np.unique(group, return_inverse=True)[1]
    noise = MULTIPLIER_NOISE if of_multiplier else 0.01
    return Source(
        name=name, lab=lab, x=inputs, values=np.log(np.broadcast_to(values, inputs.ln_n.shape)), group=groups,
        of_multiplier=of_multiplier, noise=noise,
    )  # fmt: skip


def dense_tables() -> list[Source]:
    """Tables of dense runs; of repeated data, those of one epoch and those of more."""
    found: list[Source] = []
    for name, lab in LABS.items():
        table = columns(name)
        size = table["n_params_dense"]
        body = table.get("n_params_nonemb")
        if body is None:
            body = model_of(find_law("muennighoff2023").family, size, 1.0)[0] if name == "datablations" else size
        unique = table.get("unique_tokens", np.full(size.size, np.inf))
        unique = np.where(unique >= table["tokens"], np.inf, unique)
        made = source(name, lab, body, table["tokens"], 1.0, table["loss"], unique=unique)
        found.append(made.rows(table["tokens"] / size >= FEWEST_TOKENS))
    return found


def moe_tables() -> list[Source]:
    """Tables of runs with experts."""
    joint, routing, marin = columns("joint_moe_runs"), columns("routing_S-Base"), columns("marin_moe")
    made = source("joint", "llm-random", joint["n_params_active_nonemb"], joint["tokens"], joint["n_experts"], joint["loss"],
                  granularity=8.0 / 9.0)  # fmt: skip
    found = [made.rows(joint["tokens"] / joint["n_params_active"] >= FEWEST_TOKENS)]
    # Experts in every other layer: X counts the dense ones as well.
    x = (routing["n_experts"] + 1.0) / 2.0
    found.append(source("routing", "deepmind", routing["n_params_nonemb"], routing["tokens"], x, routing["loss"]))
    width = 3.0 * marin["expert_width"] * marin["d_model"]
    active = marin["shared_width"] + marin["top_k"] * marin["expert_width"]
    made = source(
        "marin", "marin", marin["n_params_active_nonemb"], marin["tokens"], marin["X"], marin["loss"],
        granularity=np.where(marin["X"] > 1.0, 8.0 * marin["d_model"] ** 2 / width, 1.0),
        shared=marin["shared_width"] / active,
        group=np.char.replace(np.char.replace(marin["group"].astype(str), "-dense", "-moe"), "-moe-depth", "-moe").tolist(),
    )  # fmt: skip
    found.append(made.rows(marin["tokens"] / marin["n_params_active_nonemb"] >= FEWEST_TOKENS))
    return found


def grid(*ranges: tuple[float, float], points: int = PUBLISHED_POINTS) -> list[FloatArray]:
    """All combinations of geometric steps through ranges."""
    return [axis.ravel() for axis in np.meshgrid(*(np.geomspace(*ends, points) for ends in ranges), indexing="ij")]


def published(
    name: str,
    lab: str,
    body: tuple[float, float],
    tokens: tuple[float, float],
    x: tuple[float, float],
    extra: Mapping[str, float] | None = None,
    *,
    flops: tuple[float, float] = (0.0, np.inf),
    granularity: float = 1.0,
    shared: float = 0.0,
) -> Source:
    """A published law of losses at points of its ranges with USUAL_RATIO tokens a parameter."""
    law = find_law(name)
    n, d, expansion = grid(body, tokens, x)
    inside = (d / n >= USUAL_RATIO[0]) & (d / n <= USUAL_RATIO[1]) & (6 * n * d >= flops[0]) & (6 * n * d <= flops[1])
    n, d, expansion = n[inside], d[inside], expansion[inside]
    size, experts = in_family(law.family, n, expansion)
    implied = law.form.implied_inputs(experts, law.family.top_k) if law.form.implied_inputs else {}
    predicted = loss(law, law_size(law.family, size, experts), d, experts, extra={**implied, **(extra or {})})
    return replace(source(name, lab, n, d, expansion, predicted, granularity=granularity, shared=shared), of_law=True)


def published_laws() -> list[Source]:
    """Laws of others at points of their ranges."""
    parts: list[Source] = []
    for shared in (0.0, 0.15, 0.31):
        for active in (2.0, 4.0, 7.0):
            extra = {"activated_experts": active, "shared_ratio": shared}
            ends = (1e8, 1e9), (5e9, 1e11), (4.0, 20.0)
            parts.append(published("zhao2025", "tencent", *ends, extra, granularity=active, shared=shared))
    abnar = published("abnar2025", "apple", (3e7, 3e9), (5e9, 1e11), (1.0, 20.0), flops=(3e19, 1e21))
    return [abnar, joined("zhao2025", parts)]


def joined(name: str, parts: list[Source]) -> Source:
    """Sources of one unit as one."""
    extra = {key: np.concatenate([p.x.extra[key] for p in parts]) for key in parts[0].x.extra}
    n, d, x = (np.concatenate([getattr(p.x, key) for p in parts]) for key in ("ln_n", "ln_d", "experts"))
    made = make_inputs(np.exp(n), np.exp(d), x, extra)
    return replace(
        parts[0], name=name, x=made, values=np.concatenate([p.values for p in parts]), group=np.zeros(n.size, np.intp)
    )


def multipliers() -> list[Source]:
    """Published laws that say which dense model an MoE equals: tian2025, and krajewski2024 beside its law of dense models."""
    ratio, grain, flops = (
        axis.ravel()
        for axis in np.meshgrid(
            [1 / 4, 1 / 8, 1 / 16, 1 / 32], [2.0, 4.0, 8.0, 12.0], [3e18, 3e19, 3e20], indexing="ij"
        )
    )
    leverage = efficiency_leverage(ratio, grain, flops)
    inside = leverage <= 6.0
    ratio, grain, flops, leverage = ratio[inside], grain[inside], flops[inside], leverage[inside]
    # For a multiplier that does not depend on N and D, FLOPs of equal loss differ by it; 40 tokens a parameter are their optimum.
    body = np.sqrt(flops / 240.0)
    tian = source(
        "tian2025", "ling", body, 40.0 * body, 1.0 / ratio, leverage, granularity=8.0 * grain / 6.0, of_multiplier=True
    )
    moe, dense = find_law("krajewski2024"), find_law("krajewski2024-dense")
    total, tokens, g = grid((1.29e8 * 8, 3.7e9), (1.6e10, 1.3e11), (1.0, 16.0), points=4)
    body = model_of(moe.family, in_dense(moe, total), 64.0)[0]
    value = loss(moe, total, tokens, 64.0, extra={"granularity": g})
    p = dense.parameters
    left = value - p["E"] - p["B"] * tokens ** -p["beta"]
    own = (p["A"] / left) ** (1.0 / p["alpha"])
    ok = (left > 0) & (own > body) & (own < 64 * body) & (tokens / body > 5)
    kraj = source(
        "krajewski2024",
        "llm-random",
        body[ok],
        tokens[ok],
        64.0,
        (own / body)[ok],
        granularity=g[ok],
        of_multiplier=True,
    )
    return [tian, kraj]


def in_dense(law: object, total: FloatArray) -> FloatArray:
    """Dense-equivalent sizes of models of 64 experts with these totals, in krajewski2024's shape: d^2 (8 E + 4) a layer."""
    return total * 12.0 / (8.0 * 64.0 + 4.0)


def sources() -> list[Source]:
    """Everything that the law is fitted to."""
    return [*dense_tables(), *moe_tables(), *published_laws(), *multipliers()]


def main() -> None:
    """Fit, print or write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true")
    options = parser.parse_args()
    every = sources()
    found, decisions = pool(every), pool(every, guess=OF_DECISIONS).prior
    if not options.print:
        write_atomically(TARGET, tomli_w.dumps(document(found, decisions)))
    show(found)


@cache
def fitted_without(labs: frozenset[str]) -> Law:
    """The law as its file would be if these labs had published nothing."""
    left = [source for source in sources() if source.lab not in labs]
    text = tomli_w.dumps(document(pool(left), pool(left, guess=OF_DECISIONS).prior))
    return parse_law(text, where=f"{NAME} without {', '.join(sorted(labs)) or 'no lab'}")


def document(found: Pooled, decisions: Prior) -> dict[str, object]:
    """The law's file: mean and draws of a new source by `decisions`, in a common unit, and the prior that fits start from."""
    prior, body = (
        found.prior,
        replace(find_family("ludziejewski2025"), name="body", vocab_size=0.0, embedding_matrices=0),
    )
    unit = np.log(float(loss(find_law(UNIT_OF), *REFERENCE)))
    draws = in_unit(np.concatenate((decisions.mean[None], decisions.draws(DRAWS, SEED))), unit)
    rounded = np.array([[float(f"{value:.6g}") for value in row] for row in draws])
    runs = [s for s in found.sources if not (s.of_law or s.of_multiplier)]
    n, d, x = (np.concatenate([np.asarray(getattr(s.x, key)) for s in runs]) for key in ("ln_n", "ln_d", "experts"))
    law = {
        "format": FORMAT,
        "name": NAME,
        "law": NAME,
        "source": SOURCE,
        "date": DATE,
        "max_experts": MOST_X,
        "parameters": dict(zip(FORM.names, rounded[0].tolist(), strict=True)),
        "draws": rounded[1:].tolist(),
        "family": record(replace(body, dataset="", tokenizer="")),
        "fit_range": {
            "n_params": ends(np.exp(n)),
            "tokens": ends(np.exp(d)),
            "experts": [1.0, float(x.max())],
            **{
                name: ends(np.concatenate([s.x.extra[name] for s in found.sources]))
                for name in ("granularity", "shared_ffn")
            },
            "unique_tokens": ends(np.concatenate([s.x.extra["unique_tokens"] for s in runs])),
        },
        "evidence": {
            "prior_mean": [float(f"{value:.6g}") for value in prior.mean],
            "prior_covariance": [[float(f"{value:.6g}") for value in row] for row in prior.covariance],
            "labs": [round(value, 2) for value in prior.labs],
            "sources": [s.name for s in found.sources],
            "runs": sum(s.values.size for s in runs),
        },
    }
    return {
        "format": FORMAT,
        "name": NAME,
        "source": SOURCE,
        "date": DATE,
        "family": record(with_convention(find_family("yun2024"), "exact")),
        "n_draws": DRAWS,
        "notes": [
            "A draw is a source that was not seen: coefficients differ between labs, and nobody's next run belongs to a table.",
            f"Losses are those of {UNIT_OF} (nats a token on FineWeb-Edu, GPT-2 tokenizer): every draw agrees with it on a dense model "
            f"of {REFERENCE[0]:.0e} parameters and {REFERENCE[1]:.0e} tokens. Another dataset has another unit; decisions do not depend on it.",
            "Sizes leave embeddings out.",
        ],
        "evidence": {"varied_expansion": MOST_VARIED},
        "members": [{"law": law, "weight": 1.0}],
    }


def in_unit(theta: FloatArray, ln_reference: float) -> FloatArray:
    """Coefficients (k, p) whose losses of the reference model are the same."""
    at = make_inputs(REFERENCE[0], REFERENCE[1], 1.0, {"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": np.inf})
    scaled = theta.copy()
    scaled[:, 0] += ln_reference - log_loss(theta, at)[:, 0]
    return scaled


def ends(values: FloatArray) -> list[float]:
    """The smallest and the largest of those that are finite."""
    values = values[np.isfinite(values)]
    return [float(f"{values.min():.4g}"), float(f"{values.max():.4g}")]


def show(found: Pooled) -> None:
    """The mean, the spread and the errors."""
    for k, j in enumerate(EFFECTS):
        print(
            f"{FORM.names[j]:12} {found.prior.mean[j]:7.3f} sd {found.prior.covariance[k, k] ** 0.5:6.3f} labs {found.prior.labs[j]:.1f}"
        )
    for s, m in zip(found.sources, found.modes, strict=True):
        print(
            f"{s.name:18} {s.lab:12} {s.values.size:5d} points, error {float(np.sqrt((s.errors(m.theta) ** 2).mean())):.4f}"
        )


if __name__ == "__main__":
    main()

"""What a run's folder and settings say before the run: its settings, and the columns of its rows that need no training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from moescale.errors import InputError
from moescale.experiments.training.settings import RunSettings, dense_params, parameters, settings_of
from moescale.io.files import read_text
from moescale.units import format_count

SETTINGS = "settings.json"


def stated_columns(settings: RunSettings, vocab_size: int, branch: int) -> dict[str, Any]:
    """What is known of a row of the run table before the run: its name, sizes, tokens and settings."""
    m, t = settings.model, settings.training
    counted = parameters(m, vocab_size)
    active = float(counted.non_embedding_active)
    tokens = t.steps(t.tokens[branch]) * t.batch_tokens
    several = len(t.tokens) > 1
    return {
        "name": f"{settings.name}-{format_count(t.tokens[branch])}" if several else settings.name,
        "n_params_dense": dense_params(m),
        "n_params_active": active,
        "n_params_total": float(counted.non_embedding_total),
        "n_params_embedding": float(counted.embedding),
        "n_params_nonemb": active,  # of a token, which the columns above do not name as theirs
        "n_experts": m.experts,
        "top_k": m.top_k,
        "moe_every": m.moe_every,
        "tokens": tokens,
        "loss": None,
        "train_loss": None,
        "schedule": t.schedule,
        "trunk": settings.name,
        "epochs": None,
        "seed": settings.seed,
        "d_model": m.d_model,
        "n_layers": m.n_layers,
        "d_ffn": m.d_ffn,
        "batch_tokens": t.batch_tokens,
        "sequence_tokens": t.sequence_tokens,
        "vocab_size": vocab_size,
        "peak_lr": t.peak_lr,
        "training_flops": 6.0 * active * tokens,
    }


def settings_in(folder: str | Path) -> RunSettings:
    """The settings of the run that a folder holds."""
    path = Path(folder) / SETTINGS
    document = stated(path)
    document.pop("identity", None)
    return settings_of(document, where=str(path))


def stated(path: Path) -> dict[str, Any]:
    """The content of a run's settings.json; InputError where it holds none."""
    advice = "start the run over with --no-resume, or give the folder of another"
    text = read_text(path)
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"holds no run's settings: {error}", where=str(path), next_step=advice) from error
    if not isinstance(found, dict):
        raise InputError("holds no run's settings", where=str(path), next_step=advice)
    return cast("dict[str, Any]", found)

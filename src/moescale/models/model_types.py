"""The reader of each model type's config: a row of catalogue/model_types.toml, or a function of irregular_types."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from moescale.models.config_parts import read_row, type_rows
from moescale.models.irregular_types import IRREGULAR_TYPES
from moescale.models.settings import Settings, shown

MODEL_TYPES: dict[str, Callable[[Settings], dict[str, Any]]] = {
    name: IRREGULAR_TYPES.get(name) or partial(read_row, row=row) for name, row in type_rows().items()
}
# Keys of experts, sparse, latent and linear attention, and state spaces: what would make another model of a known type.
_OTHER_MODEL = re.compile(
    r"expert|(^|_)moe(_|$)|^index_|^(kv|q)_lora_rank$|^qk_(nope|rope)_head_dim$|^decoder_sparse_step$|^mlp_only_layers$"
    r"|^first_k_dense_replace$|^(linear|mamba|ssm)_"
)
# Training of routers, and how they score: no shape follows from them.
_NO_SHAPE = re.compile(
    r"router|aux_loss|z_loss|jitter|score|scoring|norm_topk|capacity|dropout|init|bias|_ep_|_tp_|seed"
)


def remarks(settings: Settings, model_type: str) -> tuple[str, ...]:
    """What a config says that the reader of its model_type, which has run, did not ask for."""
    found: list[str] = []
    unseen = ((str(key), value) for key, value in settings.config.items() if key not in settings.seen)
    named = ((key, value) for key, value in unseen if _OTHER_MODEL.search(key) and not _NO_SHAPE.search(key))
    unread = [key for key, value in named if _says_something(key, value)]
    if unread:
        sparse = " every token attends to its whole context, and" if any(k.startswith("index_") for k in unread) else ""
        found.append(
            f"{settings.where}: {', '.join(sorted(unread)[:8])}{' ..' if len(unread) > 8 else ''} "
            f"{'is' if len(unread) == 1 else 'are'} no part of model_type {model_type}, and left out:{sparse} the model is "
            f"priced as transformers builds {model_type}; if it is another model, its model_type is wrong"
        )
    names = settings.config.get("architectures")
    stated = cast("list[Any]", names)[0] if isinstance(names, list) and names else None
    prefixes = type_rows()[model_type].get("classes", ["".join(part.capitalize() for part in model_type.split("_"))])
    if isinstance(stated, str) and not re.match(rf"({'|'.join(prefixes)})(For|Model|Text|$)", stated):
        found.append(
            f"{settings.where}: architectures says {shown(stated)}, which is not model_type {model_type}; the model is "
            f"priced as {model_type}"
        )
    return tuple(found)


def _says_something(key: str, value: Any) -> bool:
    """Whether a value is more than the way to write "none" or "one"; switches and names say nothing of a shape."""
    if isinstance(value, list):
        return bool(cast("list[Any]", value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return value > (0 if "shared" in key else 1)

"""What a row of catalogue/model_types.toml makes of a config, as transformers 5 builds its model type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from moescale import catalogue
from moescale.errors import InputError, nearest_names

LARGEST = 10**9  # no width, depth, vocabulary or number of experts comes near; beyond it products lose digits
MOST_LAYERS = 2048  # each is looked at; no model has as many
FP32 = ("float32", "torch.float32")
# Of lists with an entry a layer: which entries are meant by a rule that names the list.
KINDS: dict[str, dict[str, bool]] = {
    "window": {"sliding_attention": True, "full_attention": False, "1": True, "0": False},
    "chunked": {"chunked_attention": True, "full_attention": False},
    "linear": {"linear_attention": True, "mamba": True, "full_attention": False, "attention": False},
    "experts": {"dense": False, "sparse": True, "0": False, "1": True},
    "sparse": {"minimax_m3_sparse": True, "full_attention": False, "0": False, "1": True},
    "indexer": {"full": True, "shared": False},
    "ones": {"0": False, "1": True},
}
Row = Mapping[str, Any]
Parts = dict[str, Any]


def shown(value: Any) -> str:
    """The start of what `value` looks like."""
    try:
        return repr(value)[:60]
    except ValueError:  # Python refuses to print whole numbers of more than a few thousand digits
        return "a number of thousands of digits"
    except RecursionError:
        return f"a {type(value).__name__} nested too deeply to show"


@dataclass(slots=True)
class Settings:
    """Checked access to one config: every answer is in range, every complaint names file and key; a key `a.b` is b of the object a."""

    config: Mapping[str, Any]
    where: str
    called: Mapping[str, str] = field(default_factory=dict[str, str])  # the config's names of keys
    seen: set[str] = field(default_factory=set[str])  # keys that were asked for, or that say nothing of a shape

    def get(self, key: str) -> Any:
        """The value as it stands; None where it is absent."""
        outer, _, inner = self.called.get(key, key).partition(".")
        self.seen.add(outer)
        value = self.config.get(outer)
        return value if not inner or value is None else self.inner(outer).config.get(inner)

    def inner(self, key: str) -> Settings:
        """The object under `key`."""
        if not isinstance(value := self.get(key), Mapping):
            raise self.bad(key, "an object of settings")
        return Settings(cast("Mapping[str, Any]", value), self.where)

    def entries(self, key: str) -> dict[str, Settings]:
        """The objects in the object under `key`, by name."""
        named = self.inner(key).config.items()
        return {str(name): Settings({key: value}, self.where).inner(key) for name, value in named}

    def texts(self, key: str) -> list[str]:
        """The list of texts under `key`, empty where it is absent."""
        found = self.listed(key) or []
        if not all(isinstance(text, str) for text in found):
            raise self.bad(key, "a list of texts")
        return found

    def bad(self, key: str, wanted: str) -> InputError:
        return InputError(f"{self.called.get(key, key)} must be {wanted}, not {shown(self.get(key))}", where=self.where)

    def integer(self, *keys: str, default: int | None = None, least: int = 1, most: int = LARGEST) -> int:
        """The whole number under the first of `keys`; all of those present must agree. Null counts as absent."""
        present = {key: value for key in keys if (value := self.get(key)) is not None}
        if not present:
            if default is not None:
                return default
            named = [self.called.get(key, key) for key in keys]
            nearest = nearest_names(named[0], [str(key) for key in self.config])
            what, add = f"{' or '.join(named)} is missing", "add it: without it the model's shape is unknown"
            raise InputError(what, where=self.where, nearest=nearest, next_step=add)
        for key, value in present.items():
            number = isinstance(value, int | float) and not isinstance(value, bool)
            # Comparisons first: they hold for NaN, infinities and integers of any length; int() does not.
            if not (number and least <= value <= most and int(value) == value):
                raise self.bad(key, f"a whole number from {least} to {most}")
        if len(set(present.values())) > 1:
            raise InputError(f"{' and '.join(present)} disagree ({str([*present.values()])[1:-1]})", where=self.where)
        return int(next(iter(present.values())))

    def boolean(self, key: str, default: bool) -> bool:
        if (value := self.get(key)) is None:
            return default
        if not isinstance(value, bool):
            raise self.bad(key, "true or false")
        return value

    def listed(self, key: str) -> list[Any] | None:
        """The list under `key`; None where it is absent, and [None] where there is something else."""
        value: Any = self.get(key)
        if value is None or isinstance(value, list):
            return value
        return [None]

    def flags(self, key: str, n_layers: int, names: Mapping[str, bool]) -> list[bool] | None:
        """What `names` makes of the entries of the list under `key`, one a layer; None where it is absent or empty."""
        if (entries := self.listed(key)) == [] or entries is None:
            return None
        if len(entries) != n_layers:
            raise self.bad(key, f"a list with one entry for each of {n_layers} layers")
        if not all(isinstance(entry, str | int) and str(entry) in names for entry in entries):
            known = [name for name in names if not name.isdigit()] or list(names)
            raise self.bad(key, f"a list of {', '.join(known[:-1])} and {known[-1]}")
        return [names[str(entry)] for entry in entries]

    def layer_numbers(self, key: str, first: int, last: int) -> set[int] | None:
        """The layers that a list names; None where it is absent."""
        if (entries := self.listed(key)) is None:
            return None
        whole = (isinstance(entry, int) and not isinstance(entry, bool) for entry in entries)
        if not all(whole) or not all(first <= entry <= last for entry in entries):
            raise self.bad(key, f"a list of layer numbers from {first} to {last}")
        return set(entries)


@dataclass(frozen=True, slots=True)
class Layer:
    """What one numbered layer of a checkpoint has."""

    mixer: str  # attention, linear or none
    ffn: str  # dense_ffn, experts or none


def read_type(settings: Settings, model_type: str) -> tuple[Parts, list[Layer]]:
    """Fields of an Architecture that a config of a known model type states, and the numbered layers of its checkpoint."""
    row = type_rows()[model_type]
    settings.called = row.get("called", {})
    further = PREPARED[model_type](settings) if model_type in PREPARED else {}
    # What no config says under these names, and so no remark is about.
    settings.config = {**settings.config, **further.pop("config", {})}
    for key, (default, why) in row.get("refused", {}).items():
        if settings.get(key) or (settings.get(key) is None and default):
            raise settings.bad(key, why)
    d_model, n_layers = settings.integer("hidden_size"), settings.integer("num_hidden_layers", most=MOST_LAYERS)
    settings.seen.update(row.get("known", ()))
    parts: Parts = {
        "n_layers": n_layers,
        "d_model": d_model,
        "n_heads": settings.integer("num_attention_heads"),
        "vocab_size": settings.integer("vocab_size"),
        # All classes default to separate tables; small Qwen models say true in their config.
        "tied_embeddings": settings.boolean("tie_word_embeddings", False),
        "d_ffn": settings.integer("intermediate_size", default=0 if row.get("no_ffn_width") else None),
    }
    parts |= _fields(settings, type_table()["latent"]) if row.get("latent") else _grouped_attention(settings, row)
    if row.get("latent") or "attention_bias" in row:
        bias = settings.boolean("attention_bias", row.get("attention_bias", False))
        parts |= {"qkv_bias": bias, "attention_output_bias": bias}
    parts |= _fields(settings, row)
    parts |= _windows(settings, row["windows"], n_layers) if "windows" in row else {}
    parts |= _indexer(settings, row["indexer"], n_layers) if "indexer" in row else {}
    experts, linear = [False] * n_layers, [False] * n_layers
    if "experts" in row:
        found, experts = _experts(settings, row["experts"], n_layers)
        parts |= found
    if "linear" in row:
        linear = _chosen(settings, row["linear"]["layers"], n_layers)
        stated = {"n_linear_layers": sum(linear), "linear_kind": row["linear"]["kind"]}
        # Bytes of an element of the state: as the config asks under a key, 4 unless it does, or the class's number.
        source = row["linear"]["state_bytes"]
        asked = settings.get(source) if isinstance(source, str) else None
        stated["linear_state_bytes"] = source if isinstance(source, float) else 4.0 if asked in (None, *FP32) else 2.0
        parts |= stated | _fields(settings, row["linear"]) if any(linear) else {}
    pairs = zip(linear, experts, strict=True)
    layers = [Layer("linear" if state else "attention", "experts" if moe else "dense_ffn") for state, moe in pairs]
    layers = further.pop("layers", layers)
    return parts | further, layers


def _grouped_attention(settings: Settings, row: Row) -> Parts:
    d_model, n_heads = settings.integer("hidden_size"), settings.integer("num_attention_heads")
    head_dim = row.get("head_dim")
    # Grouped-query attention is the default of most classes, with numbers that suit one model only.
    optional = row.get("kv_heads_optional") or "num_key_value_heads" in settings.config
    n_kv_heads = settings.integer("num_key_value_heads", default=n_heads if optional else None)
    if n_heads % n_kv_heads:
        raise settings.bad("num_key_value_heads", f"a divisor of num_attention_heads ({n_heads})")
    if settings.get("head_dim") is None and head_dim is None and d_model % n_heads:
        raise settings.bad("hidden_size", f"a multiple of num_attention_heads ({n_heads}), unless head_dim is given")
    return {"n_kv_heads": n_kv_heads, "head_dim": settings.integer("head_dim", default=head_dim or d_model // n_heads)}


def _chosen(settings: Settings, rule: Row, n_layers: int) -> list[bool]:
    first, last, until, step, offset, early = (
        _number(settings, rule.get(name, default))
        for name, default in {"first": 0, "last": -1, "until": n_layers, "step": 1, "offset": 0, "early": 0}.items()
    )
    but = (settings.layer_numbers(rule["but"], 0, n_layers - 1) if "but" in rule else None) or ()
    for key, kinds in rule.get("lists", {}).items():
        if (listed := settings.flags(key, n_layers, KINDS[kinds])) is not None:
            return listed
    base, counted = rule.get("from", 0), rule.get("only_from", 0)
    only = settings.layer_numbers(rule["only"], counted, n_layers - 1 + counted) if "only" in rule else None
    if only is not None:
        return [i + counted in only for i in range(n_layers)]
    within = range(first, min(until, n_layers if last < 0 else last + 1))
    found = (i in within and i not in but and (i < early or (i + base - offset) % step == 0) for i in range(n_layers))
    return [taken is not rule.get("inverse", False) for taken in found]


def _windows(settings: Settings, row: Row, n_layers: int) -> Parts:
    """A window of null says that there is none; Qwen's classes have none unless a switch says so."""
    if "switch" in row and not settings.boolean(row["switch"], False):
        return {}
    chosen, key = sum(_chosen(settings, row["layers"], n_layers)), row["key"]
    if not chosen or (settings.get(key) is None and ("default" not in row or key in settings.config)):
        return {}
    window = settings.integer(key, default=row.get("default"))
    return {"n_window_layers": chosen, "window_tokens": window} | _fields(settings, row)


def _experts(settings: Settings, row: Row, n_layers: int) -> tuple[Parts, list[bool]]:
    none: tuple[Parts, list[bool]] = {}, [False] * n_layers
    if "switch" in row and not settings.boolean(row["switch"], False):
        return none
    layers = _chosen(settings, row.get("layers", {}), n_layers)
    top_k, width = row.get("top_k", ["num_experts_per_tok"]), row["width"]
    width = {"key": width} if isinstance(width, str) else width
    shared = {name: _number(settings, row[name]) for name in ("shared", "shared_width") if name in row}
    number = row.get("number", ["num_experts", "num_local_experts"])
    for key in (*number, *top_k, width["key"]):
        settings.get(key)
    n_experts = settings.integer(*number, least=row.get("least", 1)) if any(layers) else 0
    if n_experts == 0 or (n_experts == 1 and row.get("one_is_dense")):
        return none
    met, d_expert = settings.integer(*top_k), _number(settings, width)
    if met > n_experts:
        raise settings.bad(top_k[0], f"at most the number of experts ({n_experts})")
    parts: Parts = {"n_moe_layers": sum(layers), "n_experts": n_experts, "top_k": met, "d_expert": d_expert}
    if shared:
        parts["d_shared_expert"] = shared.get("shared_width", shared.get("shared", 0) * d_expert)
    if row.get("chosen_width"):
        parts["d_ffn"] = met * d_expert
    return parts | _fields(settings, row), layers


def _indexer(settings: Settings, row: Row, n_layers: int) -> Parts:
    sparse = sum(_chosen(settings, row.get("layers", {}), n_layers))
    indexed = sum(_chosen(settings, row["own"], n_layers)) if "own" in row else sparse
    found = {"n_sparse_layers": sparse, "n_index_layers": indexed} | _fields(settings, row)
    return found if sparse else {}


def _fields(settings: Settings, row: Row) -> Parts:
    return {name: _number(settings, source) for name, source in row.get("fields", {}).items()}


def _number(settings: Settings, source: Any) -> Any:
    """A field's number or switch: `source` itself, or what stands under its key."""
    if not isinstance(source, Mapping):
        return source
    at = cast("Row", source)
    keys, default = at["keys"] if "keys" in at else [at["key"]], at.get("default")
    if isinstance(default, bool):
        return settings.boolean(keys[0], default)
    if "null" in at and keys[0] in settings.config and settings.get(keys[0]) is None:
        return at["null"]
    other = isinstance(default, Mapping) and all(settings.get(key) is None for key in keys)
    default = _number(settings, default) if other or not isinstance(default, Mapping) else None
    found = settings.integer(*keys, default=default, least=at.get("least", 1)) * _number(settings, at.get("times", 1))
    found += _number(settings, at.get("plus", 0))
    if found % (over := _number(settings, at.get("over", 1))):
        raise settings.bad(at["over"]["key"], f"a divisor of {found}")
    return found // over


def _blocks(settings: Settings) -> Parts:
    """Nemotron-H has blocks of one kind each: those that mix tokens count as layers, and FFNs go with the layer before."""
    letters = {
        "M": Layer("linear", ""),
        "*": Layer("attention", ""),
        "-": Layer("", "dense_ffn"),
        "E": Layer("", "experts"),
    }
    words = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}
    key = "hybrid_override_pattern"
    pattern, listed = settings.get(key), settings.listed("layers_block_type") or settings.listed("layer_types")
    if pattern is None:
        pattern = "".join(words.get(str(name), "?") for name in listed or [])
        if pattern and len(pattern) != settings.integer("num_hidden_layers", default=len(pattern)):
            raise settings.bad(key, "absent, or as long as num_hidden_layers says")
    if not (isinstance(pattern, str) and pattern and set(pattern) <= set(letters) and len(pattern) <= MOST_LAYERS):
        raise settings.bad(key, f"a text of {' '.join(letters)}, a letter a layer")
    mixers, n_moe = [letter for letter in pattern if letter in "M*"], pattern.count("E")
    bare = len(mixers) - n_moe - pattern.count("-")
    if bare < 0:
        raise settings.bad(key, "one with as many blocks of state and attention as of FFNs at least")
    config: Parts = {"num_hidden_layers": len(mixers) or None, "layers_block_type": None}
    config["layer_types"] = ["mamba" if letter == "M" else "attention" for letter in mixers]
    config["mlp_layer_types"] = ["sparse"] * n_moe + ["dense"] * (len(mixers) - n_moe)
    return {"config": config, "layers": [letters[letter] for letter in pattern], "n_layers_without_ffn": bare}


def _compress_ratios(settings: Settings) -> Parts:
    """DeepSeek-V4 compresses the cache of most layers; further entries are of layers that predict further tokens."""
    n_layers = settings.integer("num_hidden_layers", most=MOST_LAYERS)
    listed = (settings.listed("compress_ratios") or [])[:n_layers]
    if len(listed) < n_layers or not all(ratio in (0, 4, 128) for ratio in listed):
        raise settings.bad("compress_ratios", f"a list of 0, 4 and 128 with an entry for each of {n_layers} layers")
    counts = dict.fromkeys(("n_compressed_layers", "n_sparse_layers", "n_index_layers"), listed.count(4))
    return {**counts, "n_heavy_layers": listed.count(128)}


def _one_for_all(settings: Settings) -> Parts:
    """Numbers that Hunyuan's configs may give a layer each must be one."""
    alike: Parts = {}
    for key in ("moe_topk", "num_shared_expert", "moe_intermediate_size"):
        if isinstance(settings.get(key), list):
            entries = settings.listed(key)
            if not entries or entries.count(entries[0]) < len(entries):
                raise settings.bad(key, "the same number in every layer")
            alike[key] = entries[0]
    return {"config": alike}


def _automatic_rank(settings: Settings) -> Parts:
    automatic = settings.get("mamba_dt_rank") in (None, "auto")
    return {"config": {"mamba_dt_rank": -(-settings.integer("hidden_size") // 16)} if automatic else {}}


# What is done to a config before its row reads it, where no row can say it.
PREPARED: dict[str, Callable[[Settings], Parts]] = {
    "nemotron_h": _blocks,
    "hunyuan_v1_moe": _one_for_all,
    "deepseek_v4": _compress_ratios,
    "deepseek_ref": _compress_ratios,
    "jamba": _automatic_rank,
}


def _merged(base: Row, own: Row) -> dict[str, Any]:
    both = {key: _merged(base[key], own[key]) for key in base.keys() & own.keys() if isinstance(own[key], Mapping)}
    return {**base, **own, **both}


def type_table() -> dict[str, Any]:
    """The content of catalogue/model_types.toml."""
    return catalogue.read("model_types.toml")


@cache
def type_rows() -> dict[str, dict[str, Any]]:
    """Its rows by model type, each with what it takes from the one that it is `like`."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in type_table()["type"].items():
        base = {} if "like" not in row else {k: v for k, v in rows[row["like"]].items() if k != "classes"}
        rows[name] = _merged(base, row)
    return rows

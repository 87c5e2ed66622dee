"""Number formats of quantised weights, as each method's quantization_config states them, and the modules that they are for."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, cast

from moescale.models.settings import shown

MOST_PATTERNS = 50_000  # of module names in one list; MiniMax-M3 names each of its experts, 22,400
MOST_REPEATS = 4  # in a regular expression, which could take for ever with more


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    bytes_per_weight: float
    text: str


class Patterns:
    """Names of modules as checkpoints list them: whole names or parts of them, wildcards, `re:` regular expressions."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.plain, self.regexes, wild = set[str](), list[re.Pattern[str]](), list[str]()
        for count, text in enumerate(texts):
            if count >= MOST_PATTERNS:
                raise NotUnderstoodError(f"lists more than {MOST_PATTERNS:,} modules")
            if text.startswith("re:"):
                self.regexes.append(_regex(text[3:]))
            elif "*" in text or "?" in text:
                wild += [fnmatch.translate(text), fnmatch.translate(f"{text}.*")]
            else:
                self.plain.add(text.strip("."))
        self.wild = re.compile("|".join(wild)) if wild else None

    def match(self, names: tuple[str, ...]) -> bool:
        """Whether one of the ways to write a module's name is meant."""
        return any(
            any(regex.match(name) for regex in self.regexes)
            or (self.wild is not None and self.wild.match(name) is not None)
            or not self.plain.isdisjoint(_within(name))
            for name in names
        )


def _within(name: str) -> Iterator[str]:
    """The name, and every run of whole words of it: what lists without wildcards name."""
    words = name.split(".")
    return (".".join(words[start:end]) for start, end in combinations(range(len(words) + 1), 2))


def _regex(text: str) -> re.Pattern[str]:
    if len(re.findall(r"[*+{]", text)) > MOST_REPEATS or re.search(r"\)[*+{]", text):
        raise NotUnderstoodError(f"lists modules by a regular expression of many repeats, {shown(text)}")
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise NotUnderstoodError(f"lists modules by {shown(text)}, no regular expression") from error


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a config says: formats, each with the modules that it is for (None: all), and the modules left out."""

    groups: tuple[tuple[Format, Patterns | None], ...]
    text: str
    lm_head: bool = False  # whether the output projection is quantised, unless left out


class NotUnderstoodError(Exception):
    """A quantization_config that says something else than the readers here know."""


def _number(config: Mapping[str, Any], key: str, least: int, most: int, default: int | None = None) -> int | None:
    value = config.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise NotUnderstoodError(f"has {key} = {shown(value)}")
    return value


def mapping_of(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise NotUnderstoodError(f"has {what} = {shown(value)}")
    return cast("Mapping[str, Any]", value)


def names_of(config: Mapping[str, Any], key: str) -> list[str]:
    value = config.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in cast("list[Any]", value)):
        raise NotUnderstoodError(f"has {key} = {shown(value)}")
    return cast("list[str]", value)


def _integers(bits: int, group: int | None, symmetric: bool) -> Format:
    """Whole numbers with a 16-bit scale a group (none: one an output channel), and a zero point where not symmetric."""
    if not group or group < 0:
        return Format(f"int{bits}", bits / 8, f"{bits}-bit integers")
    scale_bits = 16 + (0 if symmetric else bits)
    return Format(f"int{bits}", (bits + scale_bits / group) / 8, f"{bits}-bit integers in groups of {group}")


def floats(bits: int, group: int | None, block: tuple[int, int] | None = None) -> Format:
    """Floating point: fp8 with one scale a block of 32-bit, or microscaled; 4 bits in groups of 16 or 32."""
    if bits == 8 and group == 32:
        return Format("fp8", 1 + 1 / 32, "mxfp8, groups of 32")
    if bits == 8:
        a, b = block or (0, 0)
        return Format("fp8", 1 + (4 / (a * b) if block else 0), f"fp8{f', blocks of {a} x {b}' if block else ''}")
    if bits == 4 and group == 32:
        return Format("mxfp4", (4 + 8 / 32) / 8, "mxfp4, groups of 32")
    if bits == 4 and group in (None, 16):
        return Format("nvfp4", (4 + 8 / 16) / 8, "nvfp4, groups of 16")
    raise NotUnderstoodError(f"has {bits}-bit floating point in groups of {group}")


def _block(value: Any) -> tuple[int, int] | None:
    """A block of a rows and b columns, written [a, b] or "axb"."""
    if value is None:
        return None
    try:
        a, b = (int(size) for size in (value.split("x") if isinstance(value, str) else value))
    except (TypeError, ValueError, OverflowError):
        a = b = 0
    if not (1 <= a <= 10**6 and 1 <= b <= 10**6):
        raise NotUnderstoodError(f"has blocks of {shown(value)}")
    return a, b


def _one(found: Format, *, only: Patterns | None = None, lm_head: bool = False) -> Scheme:
    return Scheme(((found, only),), found.text, lm_head)


def _grouped(config: Mapping[str, Any]) -> Scheme:
    """GPTQ and AWQ: zero points are in the file, even where all are the same, unless zero_point is false."""
    bits = _number(config, "bits", 2, 8) or cast("int", _number(config, "w_bit", 2, 8, 4))
    group = _number(config, "group_size", -1, 10**6) or _number(config, "q_group_size", -1, 10**6, 128)
    found = _integers(bits, group, symmetric=config.get("zero_point") is False)
    return _one(found, lm_head=config.get("lm_head") is True)


def _compressed(config: Mapping[str, Any]) -> Scheme:
    groups: list[tuple[Format, Patterns | None]] = []
    for group in mapping_of(config.get("config_groups"), "config_groups").values():
        entry = mapping_of(group, "config_groups")
        if entry.get("weights") is None:  # activations or the cache only
            continue
        weights = mapping_of(entry["weights"], "weights")
        bits, size = _number(weights, "num_bits", 2, 8, 8), _number(weights, "group_size", -1, 10**6)
        assert bits is not None
        if weights.get("type", "int") == "float":
            block = _block(weights.get("block_structure")) if weights.get("strategy") == "block" else None
            found = floats(bits, None if size is None or size < 0 else size, block)
        else:
            found = _integers(bits, size, symmetric=weights.get("symmetric") is not False)
        targets = names_of(entry, "targets") or ["Linear"]
        classes = [name for name in targets if name[:1].isupper() and "." not in name]
        if any(name != "Linear" for name in classes):
            raise NotUnderstoodError(f"is for modules of the class {shown(classes[0])}")
        groups.append((found, None if classes else Patterns(targets)))
    if not groups:
        raise NotUnderstoodError("has no group of weights")
    return Scheme(tuple(groups), " and ".join(dict.fromkeys(found.text for found, _ in groups)), lm_head=True)


# A quant_algo of NVIDIA's Model Optimizer, by the pattern that it matches, in this order; the group is the config's.
ALGORITHMS: dict[str, Callable[[int | None], Format]] = {
    ".*NVFP4": lambda group: floats(4, group),
    ".*MXFP4": lambda _: floats(4, 32),
    "MXFP8$": lambda _: floats(8, 32),
    "FP8_PB_(WO|REAL_QUANT)$": lambda _: floats(8, None, (128, 128)),
    "FP8": lambda _: floats(8, None),
    "W4A16|W4A8|INT4": lambda group: _integers(4, group or 128, symmetric=True),
    "W8A16|W8A8|INT8": lambda _: _integers(8, None, symmetric=True),
}


def _algorithm(name: Any, group: int | None) -> Format:
    for pattern, form in ALGORITHMS.items():
        if isinstance(name, str) and re.match(pattern, name.upper()):
            return form(group)
    raise NotUnderstoodError(f"has quant_algo = {shown(name)}")


def _modelopt(config: Mapping[str, Any]) -> Scheme:
    group = _number(config, "group_size", 1, 10**6)
    if config.get("quant_algo") != "MIXED_PRECISION":
        return _one(_algorithm(config.get("quant_algo"), group), lm_head=True)
    listed: dict[Format, list[str]] = {}
    for name, entry in mapping_of(config.get("quantized_layers"), "quantized_layers").items():
        stated = mapping_of(entry, "quantized_layers")
        found = _algorithm(stated.get("quant_algo"), _number(stated, "group_size", 1, 10**6))
        listed.setdefault(found, []).append(str(name))
    if not listed:
        raise NotUnderstoodError("names no quantized_layers")
    groups = tuple((found, Patterns(names)) for found, names in listed.items())
    return Scheme(groups, " and ".join(found.text for found in listed), lm_head=True)


METHODS: dict[str, Callable[[Mapping[str, Any]], Scheme]] = {
    "fp8": lambda config: _one(floats(8, None, _block(config.get("weight_block_size")))),
    "fbgemm_fp8": lambda _: _one(floats(8, None)),
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    # transformers and vLLM quantise the routed experts only, whatever the list of exceptions says (gpt-oss).
    "mxfp4": lambda _: _one(floats(4, 32), only=Patterns(["experts"])),
    **dict.fromkeys(("gptq", "gptq_marlin", "awq", "awq_marlin"), _grouped),
}


def method_of(config: Mapping[str, Any]) -> str:
    """The name of the method; Model Optimizer's and compressed-tensors' older files leave it out."""
    stated = config.get("quant_method")
    if isinstance(stated, str):
        return stated.lower()
    named_by = {"quant_algo": "modelopt", "config_groups": "compressed-tensors"}
    found = next((name for key, name in named_by.items() if stated is None and key in config), None)
    if found is None:
        raise NotUnderstoodError(f"has quant_method = {shown(stated)}")
    return found

"""Measured servings: the rows of points.csv and of the kernel package, what each means in the words of `moescale cost`, its half,
its set and its kind. The rules and conventions stand in measured_servings.py.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.resources
import importlib.util
import json
import math
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

DEVELOPMENT, HELD_OUT = "development", "held_out"


def half(model: str, system: str, backend: str, precision: str) -> str:
    """The half that a set of the kernel package's measured rows belongs to."""
    digest = hashlib.sha256("|".join((model, system, backend, precision)).encode()).digest()
    return HELD_OUT if digest[-1] % 2 else DEVELOPMENT


# What was measured.


@dataclass(frozen=True, slots=True)
class Case:
    """One server and its load, in the words of `moescale cost`."""

    model: str
    gpu: str
    engine: str
    weights: str
    kv_cache: str
    gpus: int
    expert_parallel: int
    prompt_tokens: float
    output_tokens: float
    max_num_seqs: float | None  # the concurrency of a closed loop; None: the GPU's default
    n_requests: int | None = None  # a burst of so many; None: a closed loop
    attention_dp: int = 1  # groups of GPUs that hold attention each
    campaign: bool = False  # InferenceX's, whose launching scripts state settings of the scheduler (`_engine_settings`)
    per_tensor: bool = False  # fp8 with a scale a tensor
    script: str = ""  # of the campaign, by its name in campaign.toml
    not_in_words: str | None = None  # what of the measurement `moescale cost` has no word for


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured figure of a case: seconds, or output tokens a second of the whole deployment."""

    case: Case
    source: str
    metric: str
    value: float

    @property
    def group(self) -> str:
        """Name of the set whose rows are not independent."""
        c = self.case
        return " ".join((c.model.rpartition("/")[2].lower(), c.gpu, c.engine, c.weights))


METRICS = {"output_tok_s": ("output_tok_s", 1.0), "tpot_ms": ("tpot", 1e-3), "ttft_ms": ("ttft", 1e-3), "e2e_s": ("e2e", 1.0)}  # fmt: skip
PLAIN = re.compile(r"TP(\d+)|DEP(\d+)")  # tensor-parallel; attention data-parallel with the experts over all GPUs
CONCURRENCY = re.compile(r"silicon_concurrency=(\d+)")
MEASURED = re.compile(r"measured=(\d{4}-\d\d-\d\d)")
MAX_NUM_SEQS = re.compile(r"max_num_seqs (\d+)")
PARTIAL_LENGTHS = ("lengths 0.8-1.0 of nominal", 0.9)
# Files named by their day, and the two without a path, whose rows repeat theirs to the last digit.
CAMPAIGN = ("source_file=20", "db-dump/", "source_file=qwen3.5-397b-gap", "source_file=kimi-k2.5-gap")
BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300", "b200-sxm", "b300-sxm")
IN_ONE_SERVER = {"gb200": 72, "gb300": 72}  # NVL72; others: 8


def point(row: Mapping[str, str]) -> Measured | None:
    """A row of points.csv; None for one with a flag."""
    if row["flag"]:
        return None
    metric, unit = METRICS.get(row["metric"], (row["metric"], 1.0))
    plain = PLAIN.fullmatch(row["mapping"])
    reason = None
    if row["metric"] not in METRICS or row["concurrency"] == "fleet":
        reason = APART
    elif plain is None or (plain[2] and plain[2] != row["n_gpus"]):
        reason = "attention data-parallel" if re.search(r"DE?P", row["mapping"]) else f"mapping {row['mapping']}"
    groups = int(plain[2]) if plain is not None and plain[2] else 1
    note, share = PARTIAL_LENGTHS
    scale = share if note in row["notes"] else 1.0
    stated_cap = MAX_NUM_SEQS.search(row["notes"])
    cap = float(row["concurrency"]) if row["concurrency"].isdigit() else float(stated_cap[1]) if stated_cap else None
    campaign, weights = note in row["notes"], _format(row["weights"], row["model"])
    asked = (_engine(row["engine"]), row["model"], row["gpu"].replace("-", "_"), weights, float(row["prompt"]))
    case = Case(
        model=row["model"], gpu=row["gpu"], engine=asked[0], weights=weights,
        kv_cache=row["kv"], gpus=int(row["n_gpus"]), expert_parallel=groups, prompt_tokens=scale * float(row["prompt"]),
        output_tokens=scale * float(row["output"]), max_num_seqs=cap,
        n_requests=int(float(row["n_requests"])) if row["n_requests"] else None, attention_dp=groups,
        not_in_words=reason, campaign=campaign, per_tensor=_per_tensor(row["model"], row["weights"]),
        script=campaign_script(*asked).get("name", "") if campaign else "",
    )  # fmt: skip
    return Measured(case, "points", metric, float(row["measured"]) * unit)


def package_row(row: Mapping[str, str]) -> list[Measured]:
    """A row of silicon_sample.csv: its two figures, and the throughput that they make."""
    concurrency = CONCURRENCY.search(row["silicon_data_source"])
    c = float(concurrency[1]) if concurrency else math.nan
    reason, (gpus, ways, groups) = None, degrees(row)
    held = float(row["batch_size"] or "nan") * _count(row["attention_dp_size"])
    if row["mode"] != "agg":
        reason = APART
    elif _count(row["pp_size"]) > 1:
        reason = "pipeline-parallel"
    elif ways == 0:
        reason = "experts over more GPUs than attention"
    elif concurrency is None:
        reason = "no concurrency stated"
    elif row["batch_size"] and held != c:
        reason = "concurrency of several servers"
    elif gpus > IN_ONE_SERVER.get(row["system"], 8):
        reason = "more GPUs than a server has"
    if not is_moe(row["model_path"]):
        ways = 1
    weights = _format(row["moe_quant_mode"] or row["precision"], row["model_path"])
    campaign = row["silicon_data_source"].startswith(CAMPAIGN)
    scale = PARTIAL_LENGTHS[1] if campaign else 1.0
    eight_bits = row["backend"] == "trtllm" and weights != "bf16"
    eight_bits |= campaign and row["system"] in BLACKWELL
    day = MEASURED.search(row["silicon_data_source"])
    asked = (row["backend"], row["model_path"], row["system"], weights, float(row["isl"]), day[1] if day else "")
    script = campaign_script(*asked) if campaign else {}
    per_tensor = _per_tensor(row["model_path"], row["moe_quant_mode"] or row["precision"])
    case = Case(
        model=row["model_path"], gpu=row["system"], engine=_engine(row["backend"]), weights=weights,
        kv_cache=script.get("kv_cache", "fp8" if eight_bits else "bf16"), gpus=gpus, expert_parallel=ways, prompt_tokens=scale * float(row["isl"]),
        output_tokens=scale * float(row["osl"]), max_num_seqs=c if concurrency else None, attention_dp=groups,
        not_in_words=reason, campaign=campaign, per_tensor=per_tensor,
        script=script.get("name", ""),
    )  # fmt: skip
    ttft, tpot = float(row["silicon_ttft_ms"] or "nan") * 1e-3, float(row["silicon_tpot_ms"] or "nan") * 1e-3
    n = case.output_tokens
    found = {"output_tok_s": c * n / (ttft + (n - 1) * tpot), "tpot": tpot, "ttft": ttft}
    return [Measured(case, "package", metric, value) for metric, value in found.items()]


@cache
def scripts() -> tuple[dict[str, Any], ...]:
    """The campaign's launching scripts, as campaign.toml has them."""
    return tuple(tomllib.loads(Path(__file__).with_name("campaign.toml").read_text(encoding="utf-8"))["script"])


def campaign_script(engine: str, model: str, system: str, weights: str, prompt: float, day: str = "") -> dict[str, Any]:
    """What the launching script of a row of the campaign states; nothing where none is listed."""
    for one in scripts():
        fits = one["engine"] == engine and one["model"].lower() in model.lower() and system in one["systems"]
        fits &= weights in one["weights"] and prompt <= one.get("longest_prompt", math.inf)
        if fits and day >= one.get("since", ""):
            return one
    return {}


def degrees(row: Mapping[str, str]) -> tuple[int, int, int]:
    """GPUs, GPUs that split whole experts and attention groups of a row of silicon_sample.csv, as the conventions have it.

    The experts' degree is 0 where it fits no server of so many GPUs.
    """
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    tensor, groups, split, whole = (_count(row[name]) for name in names)
    if row["backend"] == "vllm" and groups == tensor > 1 and whole == tensor**2:
        return tensor, tensor, 1
    if tensor == 1 and split == whole > 1 and groups == split * whole:
        return whole, whole, whole
    return tensor * groups, whole if split * whole in (1, tensor * groups) else 0, groups


def _per_tensor(model: str, stated: str) -> bool:
    """Whether fp8 weights have a scale a tensor: where no blocks are stated, by the row or by the model's config."""
    blocks = (
        text_config(model).get("quantization_config") or (config(model) or {}).get("quantization_config") or {}
    ).get("weight_block_size")
    return stated == "fp8" and not blocks


def _count(text: str) -> int:
    """A degree of parallelism; an empty field and 0 mean that there is none."""
    return max(int(float(text or "1")), 1)


def _engine(name: str) -> str:
    return {"trt": "trtllm"}.get(name, name)


def _format(name: str, model: str) -> str:
    """The name of a number format of weights; gpt-oss was published with mxfp4 experts, whatever kernels ran them."""
    known = {"": "bf16", "bfloat16": "bf16", "fp8_block": "fp8", "int4_wo": "int4", "fp4": "nvfp4"}
    found = known.get(name, name)
    return "mxfp4" if "gpt-oss" in model and found == "nvfp4" else found


def read_points() -> list[Measured]:
    """points.csv, without the rows that carry a flag; nothing, and a message, where it is absent."""
    shared = os.environ.get("MOESCALE_SHARED")
    path = Path(shared or ".") / "data/measured_serving/points.csv"
    if not shared or not path.exists():
        print(
            "MOESCALE_SHARED does not lead to data/measured_serving/points.csv: those rows are left out",
            file=sys.stderr,
        )
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [found for row in csv.DictReader(file) if (found := point(row)) is not None]


def read_package(which: str) -> list[Measured]:
    """The kernel package's measured rows of one half; nothing, and a message, where it is not installed."""
    found: list[Measured] = []
    if importlib.util.find_spec("aiconfigurator_core") is None:
        print("aiconfigurator-core is not installed: its measured rows are left out", file=sys.stderr)
        return found
    path = importlib.resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
    with path.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if half(*set_of(row)) == which]
    fleets = {set_of(row) for row in rows if row["mode"] == "agg" and not _power_of_2(_count(row["tp_size"]))}
    for row in rows:
        figures = package_row(row)
        if set_of(row) in fleets and figures[0].case.gpus > 8:
            figures = [replace(one, case=replace(one.case, not_in_words=FLEET)) for one in figures]
        found += figures
    return found


FLEET = "GPUs of a whole fleet"


def set_of(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    return row["model_path"], row["system"], row["backend"], row["precision"]


def _power_of_2(count: int) -> bool:
    return count & (count - 1) == 0


# Models.

CONFIGS = {
    "deepseek-r1": "deepseek-ai/DeepSeek-R1",
    "deepseek-v3": "deepseek-ai/DeepSeek-V3",
    "llama-3.1-70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama-3.1-405b": "meta-llama/Meta-Llama-3.1-405B",
    "qwen3-32b": "Qwen/Qwen3-32B",
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/DeepSeek-R1-NVFP4": "deepseek-ai/DeepSeek-R1",
    "nvidia/Qwen3-32B-NVFP4": "Qwen/Qwen3-32B",
    "zhipuai/GLM-5": "zai-org/GLM-5",
}
# Qwen/Qwen3-14B, config.json: the package has no copy.
QWEN3_14B: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 40,
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 17408, "vocab_size": 151936,
    "tie_word_embeddings": False,
}  # fmt: skip


@cache
def config(model: str) -> Mapping[str, Any] | None:
    """The Hugging Face config of a model; None where the package has none."""
    if model == "qwen3-14b":
        return QWEN3_14B
    if importlib.util.find_spec("aiconfigurator_core") is None:
        return None
    name = CONFIGS.get(model, model).replace("/", "--")
    path = importlib.resources.files("aiconfigurator_core") / "model_configs" / f"{name}_config.json"
    return cast("dict[str, Any]", json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def text_config(model: str) -> Mapping[str, Any]:
    found = config(model) or {}
    return found.get("text_config", found)


def is_moe(model: str) -> bool:
    """Whether the model has experts."""
    text = text_config(model)
    return any((text.get(key) or 1) > 1 for key in ("n_routed_experts", "num_experts", "num_local_experts"))


APART = "prefill and decode on servers of their own"


@cache
def _architecture(model: str) -> Any:
    """The model as this version reads it; None where it does not."""
    from moescale.errors import MoescaleError
    from moescale.models.hf_config import from_config

    stated = config(model)
    try:
        return None if stated is None else from_config(stated)
    except MoescaleError:
        return None


def kind(case: Case) -> str:
    """What a case is an example of: dense fp8, MoE bf16, latent MoE fp8, gpt-oss mxfp4 .."""
    apart, model = case.not_in_words == APART, _architecture(case.model)
    if case.not_in_words is not None and not apart:
        return case.not_in_words
    if model is None:
        return _kind_of_text(case)
    try:
        from moescale.serving.accuracy import kind_of
    except ImportError:  # an older version
        return _kind_of_text(case)
    return kind_of(model, case.weights, attention_dp=getattr(case, "attention_dp", 1), apart=apart)


def _kind_of_text(case: Case) -> str:
    """The kind by the config's words, for models that this version does not read; as moescale.serving.accuracy has it."""
    text, family = text_config(case.model), "MoE" if is_moe(case.model) else "dense"
    if "gpt-oss" in case.model:
        family = "gpt-oss"
    elif any(key.startswith(("linear_", "mamba_")) for key in text):
        family = f"hybrid {family}"
    elif text.get("kv_lora_rank"):
        family = f"latent {family}"
    split = "attention-DP " if getattr(case, "attention_dp", 1) > 1 else ""
    ending = ", prefill and decode apart" if case.not_in_words == APART else ""
    return f"{split}{family} {case.weights}{ending}"

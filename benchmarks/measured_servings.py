"""Predicted over measured servings: how far this version's throughput and latencies lie from published measurements.

`python benchmarks/measured_servings.py [--src PATH] [--against benchmarks/results/measured_servings_v0.1.csv]`

Measured: (a) $MOESCALE_SHARED/data/measured_serving/points.csv where it is at hand; (b) the rows that the kernel package
ships, aiconfigurator_core's systems/silicon_sample.csv. --src names the `src` folder of another version to judge.

The rule that sets rows aside was written, and committed, before any error of these rows was computed.

Rows of (b) that belong to one set are not independent, so whole sets go to one half. A set is (model_path, system, backend,
precision) as the file spells them; its key is those four joined by "|"; the half is `development` where the last byte of the
SHA-256 of the key (UTF-8) is even, else `held_out`. Work on the program looks at `development` alone. `held_out` is scored,
by kind only, with an explicit --held-out. Some of its sets and some of (a) are of one campaign (DeepSeek-R1, InferenceX), so
of those kinds it is no blind test of what was mended with (a) in sight.

Predicted: what `moescale cost` answers with the row's GPU, GPU count, engine, formats, lengths and expert parallelism, and
--concurrency at the row's (a closed loop of c clients; its --max-num-seqs is not below, and before version 0.2 was all there
is of it); --scheduling and --host default to the command's own. Neither source says whether its first tokens are means or
medians over the requests. Where both measured one server under one load (30 pairs of the development half, DeepSeek-R1 and
V3), (b) is above (a) in every one, from 1.1 times at 4 clients (TensorRT-LLM on B200) to 5 times at 64 (on H200): as
means are above medians where the first burst waits long. So (b) is held against closed_loop's ttft_s, the mean, and (a)
against plateau_ttft_s. This was seen before it was written; it changes no prediction.
A row with a number of requests is a burst of them, all at once (`--burst`), with the GPU's default of --max-num-seqs unless
the row says otherwise; its latencies are means over the requests. Where no kernels of a GPU were measured, the roofline
answers, as with --latency auto. Conventions where a source says less than a prediction needs, all written before any score:

- Lengths are as stated; where the notes say "0.8-1.0 of nominal", 0.9 of it.
- (b) states no cache format: fp8 for TensorRT-LLM with weights of 8 or 4 bits, else bf16, as (a) has it for the same engines;
  fp8 on Blackwell where the campaign's scripts say so, for all models but MiniMax-M2.5.
- Rows of (b) whose file is named by a day are InferenceX's (the others are the package's authors'): its lengths are uniform in 0.8
  to 1.0 of the stated ones, so 0.9 of them on average, as for (a).
- fp8 has a scale a tensor where neither the row nor the model's own config states blocks: NVIDIA's checkpoints.
- Schedulers of InferenceX, by its launching scripts: SGLang on Blackwell looks for requests every 10 passes (30 from 16 clients
  on); TensorRT-LLM on B200 holds prompts of 1024 tokens, with as many out, back for 20 passes or 0.9 of 2,248 tokens (dense, fewer
  than 8 GPUs), or 40 passes or 0.8 of 8,192 (latent MoE in fp8, 64 to 255 clients); vLLM's graphs reach 2,048 tokens for gpt-oss.
- (b) states no throughput: output_tok_s is measured by the closed loop's law, c n / (TTFT + (n - 1) TPOT), n output tokens.
- No number format in (b) (an empty field): bf16, the format of the checkpoints without one in their name.
- The time of one whole request of a closed loop (e2e) is c n / throughput, in every version.

Attention data-parallelism in (b), by ids and columns, and by the campaign's own configurations and launching scripts at the
days of the rows (InferenceX: .github/configs/nvidia-master.yaml, benchmarks/); written before any of these rows was scored:

- vLLM: attention_dp_size = tp_size and moe_ep_size = tp_size^2, with ids tpN_epN. Its scripts start --tensor-parallel-size N
  --enable-expert-parallel and no data parallelism, and an earlier dump has the same runs with attention_dp_size 1: these
  are N tensor-parallel GPUs with expert parallelism over N.
- TensorRT-LLM: attention_dp_size is moe_tp_size times moe_ep_size. Where both are above 1 the ids say tpN_epN with N equal to
  both (`tp: N, ep: N, dp-attn: true`): N GPUs, attention data-parallel over N, experts over N. Where one of them is 1 the
  degrees are those of the server: attention_dp_size GPUs and groups, experts whole over moe_ep_size.
- batch_size is the concurrency over attention_dp_size as it stands.
- TensorRT-LLM's scripts balance prompts over the groups (attention_dp_config: enable_balance), which `--latency
  silicon:trtllm` answers for. Two candidates were written down before their scores: none is held back, or up to 50 passes.
  The first one's scores had been seen, and that its H200 row with prompts of 8192 tokens was 1.68 times too slow. The second
  one is taken: median errors of TPOT fell from 11% to 9% (gpt-oss) and TTFT came from 0.08 to 0.32 of what was measured.

A row is counted with its reason, not guessed, where the program has no word for what was measured: pipelines, servers with
prefill and decode apart, formats and models it does not know; and where it refuses or answers nothing. Four more reasons lie in the data, and were written after the development half's first scores were seen:

- A row of (b) without a stated concurrency, or with another batch_size without attention data-parallelism: several servers.
- (b) has rows of 16 and 64 tensor-parallel GPUs that stand for servers of 4 and 8: it multiplies the degree by that of the
  experts. More GPUs than a server of that GPU holds (8; 72 of gb200 and gb300) are no mapping to predict.
- A set with "aggregated" rows of 12, 20, 36 .. tensor-parallel GPUs, no power of 2, which no model's heads divide, states the
  GPUs of whole fleets (the campaign's servers with prefill and decode apart): every row of more than 8 GPUs of such a set
  is left out. Written after two such rows of 32 and 64 GPUs of the development half came out at 5 times.
- A set with a row that needs more than PLAUSIBLE of the data sheet's arithmetic, at two FLOPs a token and active
  parameter without the embeddings, did not compute what it states (cached prefixes, shorter prompts): the whole set is
  left out.

A score is of sets, for a set's rows are not independent: each row weighs one over the rows of its set, and then
geometric mean: exp of the mean ln(predicted / measured); spread: exp of its standard deviation; within 25%: the share with
0.8 <= ratio <= 1.25, within 2x: that with 0.5 <= ratio <= 2; error: the median of |ratio - 1|.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import hashlib
import importlib.resources
import importlib.util
import inspect
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np

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
MAX_NUM_SEQS = re.compile(r"max_num_seqs (\d+)")
PARTIAL_LENGTHS = ("lengths 0.8-1.0 of nominal", 0.9)
CAMPAIGN = ("source_file=20", "db-dump/")  # files named by their day
BLACKWELL = ("b200_sxm", "b300_sxm", "gb200", "gb300", "b200-sxm", "b300-sxm")
IN_ONE_SERVER = {"gb200": 72, "gb300": 72}  # NVL72; others: 8
PLAUSIBLE = (
    0.8  # of the data sheet's FLOPs: large products alone reach that, a server with attention and decoding does not
)
IMPLAUSIBLE = f"measured beyond {PLAUSIBLE:.0%} of the data sheet's arithmetic"


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
    case = Case(
        model=row["model"], gpu=row["gpu"], engine=_engine(row["engine"]), weights=_format(row["weights"], row["model"]),
        kv_cache=row["kv"], gpus=int(row["n_gpus"]), expert_parallel=groups, prompt_tokens=scale * float(row["prompt"]),
        output_tokens=scale * float(row["output"]), max_num_seqs=cap,
        n_requests=int(float(row["n_requests"])) if row["n_requests"] else None, attention_dp=groups,
        not_in_words=reason, campaign=note in row["notes"], per_tensor=_per_tensor(row["model"], row["weights"]),
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
    eight_bits |= campaign and row["system"] in BLACKWELL and "MiniMax" not in row["model_path"]
    per_tensor = _per_tensor(row["model_path"], row["moe_quant_mode"] or row["precision"])
    case = Case(
        model=row["model_path"], gpu=row["system"], engine=_engine(row["backend"]), weights=weights,
        kv_cache="fp8" if eight_bits else "bf16", gpus=gpus, expert_parallel=ways, prompt_tokens=scale * float(row["isl"]),
        output_tokens=scale * float(row["osl"]), max_num_seqs=c if concurrency else None, attention_dp=groups,
        not_in_words=reason, campaign=campaign, per_tensor=per_tensor,
    )  # fmt: skip
    ttft, tpot = float(row["silicon_ttft_ms"] or "nan") * 1e-3, float(row["silicon_tpot_ms"] or "nan") * 1e-3
    n = case.output_tokens
    found = {"output_tok_s": c * n / (ttft + (n - 1) * tpot), "tpot": tpot, "ttft": ttft}
    return [Measured(case, "package", metric, value) for metric, value in found.items()]


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
    blocks = (_text(model).get("quantization_config") or (config(model) or {}).get("quantization_config") or {}).get(
        "weight_block_size"
    )
    return stated == "fp8" and not blocks


def _engine_settings(case: Case) -> dict[str, Any]:
    """What the campaign's launching scripts state of the scheduler (see above)."""
    new, nominal = (
        case.gpu in BLACKWELL,
        (case.prompt_tokens / PARTIAL_LENGTHS[1], case.output_tokens / PARTIAL_LENGTHS[1]),
    )
    if not case.campaign:
        return {}
    clients, short = case.max_num_seqs or 0.0, max(nominal) < 2048.0
    if case.engine == "sglang" and new:
        return {"receive_interval": 30 if clients >= 16 else 10, "max_num_batched_tokens": 32768}
    if case.engine == "vllm" and "gpt-oss" in case.model:
        return {"graph_tokens": 2048.0, "max_num_batched_tokens": 8192}
    if case.engine == "trtllm" and new and short and not is_moe(case.model) and case.gpus < 8:
        return {"batch_wait_passes": 20, "batch_wait_share": 0.9, "max_num_batched_tokens": 2248}
    if (
        case.engine == "trtllm"
        and new
        and short
        and is_moe(case.model)
        and case.attention_dp == 1
        and 64 <= clients < 256
    ):
        latent = bool(_text(case.model).get("kv_lora_rank"))
        return {"batch_wait_passes": 40, "batch_wait_share": 0.8} if latent and case.weights == "fp8" else {}
    return {}


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
        rows = [row for row in csv.DictReader(file) if half(*_set(row)) == which]
    fleets = {_set(row) for row in rows if row["mode"] == "agg" and not _power_of_2(_count(row["tp_size"]))}
    for row in rows:
        figures = package_row(row)
        if _set(row) in fleets and figures[0].case.gpus > 8:
            figures = [replace(one, case=replace(one.case, not_in_words=FLEET)) for one in figures]
        found += figures
    return found


FLEET = "GPUs of a whole fleet"


def _set(row: Mapping[str, str]) -> tuple[str, str, str, str]:
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


def _text(model: str) -> Mapping[str, Any]:
    found = config(model) or {}
    return found.get("text_config", found)


def is_moe(model: str) -> bool:
    """Whether the model has experts."""
    text = _text(model)
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
    text, family = _text(case.model), "MoE" if is_moe(case.model) else "dense"
    if "gpt-oss" in case.model:
        family = "gpt-oss"
    elif any(key.startswith(("linear_", "mamba_")) for key in text):
        family = f"hybrid {family}"
    elif text.get("kv_lora_rank"):
        family = f"latent {family}"
    split = "attention-DP " if getattr(case, "attention_dp", 1) > 1 else ""
    ending = ", prefill and decode apart" if case.not_in_words == APART else ""
    return f"{split}{family} {case.weights}{ending}"


# What is predicted, through the public API.

Prediction = Mapping[str, float] | str  # metric -> value, or why there is none


@dataclass(frozen=True, slots=True)
class Setting:
    """How servers run in the predictions, where a row does not say."""

    latency: str = "silicon"
    scheduling: str | None = None  # None: the command's own default
    host: str | None = None


def predict(cases: Iterable[Case], setting: Setting) -> dict[Case, Prediction]:
    """The prediction of every case; cases of one model, GPU, engine and formats are one question."""
    answers: dict[Case, Prediction] = {}
    groups: dict[tuple[str, ...], list[Case]] = defaultdict(list)
    for case in dict.fromkeys(cases):
        if case.not_in_words is not None:
            answers[case] = case.not_in_words
        else:
            groups[case.model, case.gpu, case.engine, case.weights, case.kv_cache, str(case.per_tensor)].append(case)
    for group in groups.values():
        answers |= _predict_group(group, setting)
    return answers


def _predict_group(group: list[Case], setting: Setting) -> dict[Case, Prediction]:
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu
    from moescale.hardware.precisions import find_precision
    from moescale.models import quantisation
    from moescale.models.hf_config import from_config

    first = group[0]
    stated = config(first.model)
    if stated is None:
        return dict.fromkeys(group, f"no config.json of {first.model} at hand")
    try:
        model = from_config(stated)
        if hasattr(quantisation, "with_usual_shares"):
            model = quantisation.with_usual_shares(model, first.weights)
        if first.per_tensor and hasattr(model.quantised, "scale_per_tensor"):
            model = replace(model, quantised=replace(model.quantised, scale_per_tensor=True))
        gpu = find_gpu(first.gpu)
        weights = find_precision("weights", first.weights).bytes_per_element
        cache_bytes = find_precision("kv_cache", first.kv_cache).bytes_per_element
        source, template = _source(gpu, first.engine, weights, cache_bytes, setting, first.weights)
    except MoescaleError as error:
        return dict.fromkeys(group, _reason(error))
    answers: dict[Case, Prediction] = {}
    for case in (case for case in group if case.n_requests is not None):
        answers[case] = _burst(case, model, source, template)
    loops = [case for case in group if case.n_requests is None]
    if loops:
        try:
            answers |= dict(zip(loops, _closed_loops(loops, model, source, template), strict=True))
        except MoescaleError:  # one of them: each alone
            for case in loops:
                try:
                    answers[case] = _closed_loops([case], model, source, template)[0]
                except MoescaleError as error:
                    answers[case] = _reason(error)
    return answers


def _reason(error: Any) -> str:
    """An error's message without what differs between rows."""
    return re.sub(r"^the kernels of \S+ on \S+ ", "the kernels ", str(error.what).partition(";")[0])


def _source(gpu: Any, engine: str, weights: float, cache_bytes: float, setting: Setting, name: str) -> tuple[Any, Any]:
    """The latency source of the command line's --latency, and a deployment with its defaults."""
    from moescale.cli.cost import cost
    from moescale.hardware.gpus import measured_reserve_bytes
    from moescale.latency import kernels_alone
    from moescale.latency.engines import NO_OVERHEAD, find_host
    from moescale.latency.roofline import Roofline
    from moescale.latency.silicon import Silicon
    from moescale.serving.deployment import Deployment

    usual = inspect.signature(cost).parameters
    preset, extra = None, dict[str, Any]()
    if importlib.util.find_spec("moescale.latency.engines") is not None:  # since version 0.3
        from moescale.latency.engines import engines

        preset = engines()[engine] if engine in engines() else engines()["vllm"]
        extra["engine"] = preset
    scheduling = setting.scheduling or usual["scheduling"].default or (preset.scheduling if preset else "separate")
    host = setting.host or usual["host"].default or ("asynchronous" if preset and preset.asynchronous else None)
    measured = setting.latency == "silicon" and gpu.silicon_system is not None
    source: Any = Silicon(gpu, engine, None, weights, cache_bytes) if measured else Roofline(gpu, weights, cache_bytes)
    if hasattr(source, "weights"):
        source = replace(source, weights=name)
    overhead = NO_OVERHEAD if host is None else find_host(host)
    template = Deployment(
        gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=1.0, output_tokens=1.0, weight_bytes_per_param=weights,
        kv_bytes_per_element=cache_bytes, reserve_bytes=measured_reserve_bytes(), scheduling=scheduling, host=overhead,
        **extra,
    )  # fmt: skip
    return (source if overhead == NO_OVERHEAD else kernels_alone(source)), template


def _closed_loops(cases: Sequence[Case], model: Any, source: Any, template: Any) -> list[Prediction]:
    """Closed loops of `max_num_seqs` clients each, in one call."""
    from moescale.serving.steady_state import REASONS, serve

    def column(name: str) -> Any:
        return np.asarray([getattr(case, name) for case in cases], dtype=np.float64)

    clients = column("max_num_seqs")
    deployment = replace(
        template, prompt_tokens=column("prompt_tokens"), output_tokens=column("output_tokens"),
        expert_parallel=column("expert_parallel"), max_num_seqs=clients,
        **({"attention_dp": column("attention_dp")} if np.any(column("attention_dp") > 1) else {}),
    )  # fmt: skip
    found = serve(model, column("gpus"), source, deployment)
    tpot = getattr(found, "tpot_s", found.iteration_s)  # version 0.1: one iteration
    e2e = clients * column("output_tokens") / np.where(found.throughput_tok_s > 0, found.throughput_tok_s, np.nan)
    figures = {"output_tok_s": found.throughput_tok_s, "tpot": tpot, "ttft": found.ttft_s, "e2e": e2e}
    if importlib.util.find_spec("moescale.serving.engine") is not None:  # since version 0.3
        singles = [_engine_loop(case, model, source, template) for case in cases]
        figures = {name: [one.get(name, math.nan) for one in singles] for name in ENGINE_FIGURES}
    answers: list[Prediction] = []
    for i in range(len(cases)):
        why = int(found.infeasible[i])
        values = {name: float(figure[i]) for name, figure in figures.items()}
        answers.append(REASONS[why] if why else values)
    return answers


# Throughput by the law that measures it in (b), and as a benchmark counts it for (a).
ENGINE_FIGURES = ("output_tok_s", "tpot", "ttft", "e2e", "median ttft", "median output_tok_s")


def _engine_loop(case: Case, model: Any, source: Any, template: Any) -> dict[str, float]:
    """A closed loop of `max_num_seqs` clients by the engine; nothing where it is not served."""
    from moescale.errors import InfeasibleError
    from moescale.serving.engine import simulate
    from moescale.serving.workload import closed

    assert case.max_num_seqs is not None
    deployment = replace(
        template, prompt_tokens=case.prompt_tokens, output_tokens=case.output_tokens,
        expert_parallel=float(case.expert_parallel), max_num_seqs=case.max_num_seqs,
        attention_dp=float(case.attention_dp), engine=replace(template.engine, **_engine_settings(case)),
    )  # fmt: skip
    try:
        found = simulate(model, source, deployment, case.gpus, closed(int(case.max_num_seqs))).answer()
    except InfeasibleError:
        return {}
    tpot_s = found.tpot_s or 0.0
    by_law = case.max_num_seqs * case.output_tokens / (found.ttft_s + (case.output_tokens - 1.0) * tpot_s)
    figures = (by_law, tpot_s, found.ttft_s, found.e2e_s, found.plateau_ttft_s or 0.0, found.output_tok_s)
    return dict(zip(ENGINE_FIGURES, figures, strict=True))


def _burst(case: Case, model: Any, source: Any, template: Any) -> Prediction:
    """All requests at once, as `moescale cost --burst`; latencies are means over the requests."""
    from moescale.errors import MoescaleError
    from moescale.latency import kernels_alone
    from moescale.latency.engines import default_overhead
    from moescale.serving.engine import simulate
    from moescale.serving.workload import burst

    assert case.n_requests is not None
    deployment = replace(
        template, prompt_tokens=float(max(round(case.prompt_tokens), 1)), expert_parallel=float(case.expert_parallel),
        output_tokens=float(max(round(case.output_tokens), 1)),
        max_num_seqs=float(template.gpu.default_max_num_seqs if case.max_num_seqs is None else case.max_num_seqs),
        scheduling="chunked", host=default_overhead(),
    )  # fmt: skip
    try:
        run = simulate(model, kernels_alone(source), deployment, case.gpus, burst(case.n_requests))
    except MoescaleError as error:
        return _reason(error)
    with np.errstate(invalid="ignore"):
        return {
            "output_tok_s": run.output_tok_s, "tpot": float(np.mean(run.tpot_s)), "ttft": float(np.mean(run.ttft_s)),
            "e2e": float(np.mean(run.e2e_s)),
        }  # fmt: skip


# Scores.


@dataclass(frozen=True, slots=True)
class Scored:
    """One measured figure beside its prediction: their ratio, or why there is none."""

    measured: Measured
    ratio: float  # predicted over measured; NaN where there is none
    reason: str | None = None


def implausible(rows: Iterable[Measured]) -> set[str]:
    """The sets with a row of more arithmetic than PLAUSIBLE of the data sheet's; formats without a data sheet pass."""
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu
    from moescale.models.hf_config import from_config
    from moescale.models.parameters import count_parameters

    found: set[str] = set()
    for row in rows:
        case, stated = row.case, config(row.case.model)
        if row.metric != "output_tok_s" or case.weights not in ("bf16", "fp8") or case.not_in_words or stated is None:
            continue
        try:
            gpu, model = find_gpu(case.gpu), from_config(stated)
            active = float(count_parameters(replace(model, vocab_size=0.0)).active)
        except MoescaleError:
            continue
        peak = gpu.bf16_flops_per_s if case.weights == "bf16" else gpu.fp8_flops_per_s or gpu.bf16_flops_per_s
        tokens_per_s = row.value * (1.0 + case.prompt_tokens / case.output_tokens)
        if 2.0 * active * tokens_per_s > PLAUSIBLE * peak * case.gpus:
            found.add(row.group)
    return found


def compare(
    rows: Iterable[Measured], predictions: Mapping[Case, Prediction], left_out: Container[str] = ()
) -> list[Scored]:
    """The ratio of every row, or the reason that there is none; the sets in `left_out` are implausible."""
    found: list[Scored] = []
    for row in rows:
        answer = IMPLAUSIBLE if row.group in left_out else predictions[row.case]
        if isinstance(answer, str):
            found.append(Scored(row, math.nan, answer))
            continue
        predicted = answer.get(row.metric, math.nan)
        if row.source == "points":
            predicted = answer.get(f"median {row.metric}", predicted)
        ratio = predicted / row.value if row.value > 0 else math.nan
        usable = math.isfinite(ratio) and ratio > 0
        found.append(Scored(row, ratio if usable else math.nan, None if usable else "no figure to compare"))
    return found


@dataclass(frozen=True, slots=True)
class Score:
    """The ratios of one slice of the rows and one metric."""

    source: str
    level: str  # of LEVELS, or SAMPLE
    name: str
    metric: str
    sets: int
    rows: int
    geometric_mean: float
    spread: float
    within_25pct: float
    median_error: float
    within_2x: float = math.nan  # NaN where it was not stored yet


def score(ratios_by_set: Mapping[str, Sequence[float]]) -> tuple[float, float, float, float, float]:
    """Geometric mean, spread, share within 25%, median |ratio - 1| and share within a factor 2, every set weighing the same."""
    logs = np.concatenate([np.log(np.asarray(ratios)) for ratios in ratios_by_set.values()])
    weights = np.concatenate([np.full(len(ratios), 1.0 / len(ratios)) for ratios in ratios_by_set.values()])
    weights /= np.sum(weights)
    mean = float(np.sum(weights * logs))
    spread = math.sqrt(float(np.sum(weights * (logs - mean) ** 2)))
    within, within_2x = (float(np.sum(weights[np.abs(logs) <= math.log(most) + 1e-12])) for most in (1.25, 2.0))
    errors = np.abs(np.exp(logs) - 1.0)
    order = np.argsort(errors)
    median = float(errors[order][np.searchsorted(np.cumsum(weights[order]), 0.5 - 1e-12)])
    return math.exp(mean), math.exp(spread), within, median, within_2x


@cache
def gpu_name(gpu: str) -> str:
    """The catalogue's name of a GPU; as the source has it where it has none."""
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu

    try:
        return find_gpu(gpu).name
    except MoescaleError:
        return gpu


LEVELS: dict[str, Callable[[Measured], str]] = {
    "all": lambda row: "all",
    "kind": lambda row: kind(row.case),
    "kind gpu": lambda row: f"{kind(row.case)} on {gpu_name(row.case.gpu)}",
    "kind engine": lambda row: f"{kind(row.case)} with {row.case.engine}",
    "gpu": lambda row: row.case.gpu,
    "engine": lambda row: row.case.engine,
    "set": lambda row: row.group,
}


BY_KIND = ("all", "kind", "kind gpu", "kind engine")  # what may be told of the half set aside
NARROWED = ("kind gpu", "kind engine")
LEAST_SETS = 3  # of a narrowed kind; with fewer its rows are counted, and no figure is given


def scores(found: Iterable[Scored], levels: Sequence[str]) -> list[Score]:
    """The scores of every slice of `levels`, by metric; those of a narrowed kind of fewer than LEAST_SETS are NaN."""
    slices: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in (one for one in found if one.reason is None):
        row = one.measured
        for level in levels:
            slices[row.source, level, LEVELS[level](row), row.metric][row.group].append(one.ratio)
    untold = (math.nan,) * 5
    return [
        Score(
            *key,
            len(sets),
            sum(len(ratios) for ratios in sets.values()),
            *(untold if key[1] in NARROWED and len(sets) < LEAST_SETS else score(sets)),
        )
        for key, sets in sorted(slices.items(), key=lambda item: (item[0][0], levels.index(item[0][1]), item[0][2:]))
    ]


SAMPLE = "sample"
SAMPLED = 4  # cases of a kind


def sample(rows: Iterable[Measured]) -> list[Measured]:
    """The rows of the SAMPLED cases of each kind whose SHA-256 is smallest: a fixed few, for a quick look at all kinds."""
    rows = [row for row in rows if row.source == "package" and row.case.not_in_words is None]
    keys: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        keys[kind(row.case)][_digest(row.case)] = None
    chosen = {digest for digests in keys.values() for digest in sorted(digests)[:SAMPLED]}
    return [row for row in rows if _digest(row.case) in chosen]


def _digest(case: Case) -> str:
    c = case
    key = (c.model, c.gpu, c.engine, c.weights, c.gpus, c.prompt_tokens, c.output_tokens, c.max_num_seqs)
    return hashlib.sha256("|".join(map(str, key)).encode()).hexdigest()


def sample_scores(found: Iterable[Scored]) -> list[Score]:
    """The scores of the sample by kind, at the level SAMPLE."""
    found = list(found)
    chosen = set(sample(one.measured for one in found))
    return [replace(one, level=SAMPLE) for one in scores((one for one in found if one.measured in chosen), ("kind",))]


def refusals(found: Iterable[Scored]) -> dict[tuple[str, str, str], int]:
    """How many rows have no ratio, by source, kind and reason, most first."""
    counted: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in found:
        if one.reason is not None:
            counted[one.measured.source, kind(one.measured.case), one.reason] += 1
    return dict(sorted(counted.items(), key=lambda item: (item[0][0], -item[1])))


# What is written.


def table(results: Iterable[Score], before: Mapping[tuple[str, ...], Score] | None = None) -> list[str]:
    """A line for each score; with `before`, the former geometric mean and error beside it."""
    head = f"{'source':8s} {'slice':58s} {'metric':12s} {'sets':>4s} {'rows':>5s} {'ratio':>6s} {'spread':>6s} {'in 25%':>6s} {'error':>6s}"
    lines = [head + ("   before: rows  ratio  error" if before is not None else "")]
    for one in (one for one in results if math.isfinite(one.geometric_mean)):
        name = one.name if one.level in ("all", "set", *NARROWED) else f"{one.level} {one.name}"
        line = (
            f"{one.source:8s} {name:58s} {one.metric:12s} {one.sets:4d} {one.rows:5d} {one.geometric_mean:6.2f} "
            f"{one.spread:6.2f} {one.within_25pct:6.0%} {one.median_error:6.0%}"
        )
        old = None if before is None else before.get(_key(one))
        if before is not None:
            line += (
                "            -"
                if old is None
                else f"          {old.rows:5d} {old.geometric_mean:6.2f} {old.median_error:6.0%}"
            )
        lines.append(line)
    return lines


def common_sets(now: Iterable[Score], before: Mapping[tuple[str, ...], Score]) -> list[str]:
    """Geometric mean and mean |ln| over the sets that both versions answer with the same number of rows."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in now:
        old = before.get(_key(one))
        if one.level == "set" and old is not None and old.rows == one.rows:
            pairs[one.source, one.metric].append((math.log(old.geometric_mean), math.log(one.geometric_mean)))
    lines = ["Sets answered by both with as many rows: geometric mean, and exp of the mean |ln| of the sets' means"]
    for (source, metric), logs in sorted(pairs.items()):
        old, new = np.asarray(logs).T
        lines.append(
            f"{source:8s} {metric:12s} {len(logs):3d} sets: {math.exp(old.mean()):.2f} -> {math.exp(new.mean()):.2f}, "
            f"{math.exp(np.abs(old).mean()):.2f} -> {math.exp(np.abs(new).mean()):.2f}"
        )
    return lines


def _key(one: Score) -> tuple[str, ...]:
    return one.source, one.level, one.name, one.metric


def about(which: str, setting: Setting) -> dict[str, str]:
    """What made these scores: the version, its commit, the day, the half and the settings."""
    import moescale

    def git(*words: str) -> str:
        where = Path(moescale.__file__).parent
        return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=False).stdout.strip()

    # The last commit that changed the package, not one of this script or of a page.
    changed = " with changes" if git("status", "--porcelain", ".") else ""
    commit = (git("log", "-1", "--format=%H", "--", ".") or "unknown") + changed
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"version": moescale.__version__, "commit": commit, "date": day, "half": which}
    return facts | {name: value or "default" for name, value in asdict(setting).items()}


def write_scores(
    path: Path, results: Iterable[Score], refused: Mapping[tuple[str, str, str], int], facts: Mapping[str, str]
) -> None:
    """The scores as CSV, after a line of facts; refused rows have the level `refused` and their reason for a metric."""
    names = [field.name for field in fields(Score)]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("# " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for one in results:
            values = asdict(one)
            writer.writerow(f"{value:.4g}" if isinstance(value := values[name], float) else value for name in names)
        for (source, name, reason), n in refused.items():
            writer.writerow([source, "refused", name, reason, "", n, "", "", "", "", ""])


def read_scores(path: Path) -> dict[tuple[str, ...], Score]:
    """The scores that `write_scores` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("#")]
    found = [
        Score(
            row["source"], row["level"], row["name"], row["metric"], int(row["sets"]), int(row["rows"]),
            float(row["geometric_mean"]), float(row["spread"]), float(row["within_25pct"]), float(row["median_error"]),
            float(row.get("within_2x") or "nan"),
        )
        for row in csv.DictReader(lines) if row["level"] != "refused"
    ]  # fmt: skip
    return {_key(one): one for one in found}


def write_rows(path: Path, found: Iterable[Scored]) -> None:
    """Every row with its ratio, to look at; it copies measurements, so it is no file to keep in the repository."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Case)]
        writer.writerow([*names, "source", "kind", "metric", "measured", "ratio", "reason"])
        for one in found:
            row = one.measured
            values = [getattr(row.case, name) for name in names]
            writer.writerow([*values, row.source, kind(row.case), row.metric, row.value, one.ratio, one.reason or ""])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Predicted over measured servings.")
    parser.add_argument("--src", type=Path, help="the src folder of the version to judge; default: the installed one")
    parser.add_argument("--held-out", action="store_true", help="score the half set aside, by kind only")
    parser.add_argument("--latency", choices=("silicon", "roofline"), default="silicon")
    parser.add_argument("--scheduling", help="default: that of `moescale cost`")
    parser.add_argument("--host", help="default: that of `moescale cost`")
    parser.add_argument("--against", type=Path, metavar="CSV", help="scores of another version to print beside these")
    parser.add_argument("--output", type=Path, metavar="CSV", help="write the scores")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write every row with its ratio")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser.parse_args()


def main() -> int:
    """Print the scores; the exit code."""
    asked = arguments()
    if asked.src is not None:
        sys.path.insert(0, str(asked.src.resolve()))
    if asked.held_out and asked.rows is not None:
        raise SystemExit("--held-out is scored by kind only: leave out --rows")
    which = HELD_OUT if asked.held_out else DEVELOPMENT
    setting = Setting(asked.latency, asked.scheduling, asked.host)
    rows = read_package(which) if asked.held_out else read_points() + read_package(which)
    found = compare(rows, predict((row.case for row in rows), setting), implausible(rows))
    results = scores(found, BY_KIND) if asked.held_out else scores(found, tuple(LEVELS)) + sample_scores(found)
    refused, facts = refusals(found), about(which, setting)
    if asked.output is not None:
        write_scores(asked.output, results, refused, facts)
    if asked.rows is not None:
        write_rows(asked.rows, found)
    if asked.json:
        listed = [{"source": s, "kind": k, "reason": why, "rows": n} for (s, k, why), n in refused.items()]
        print(
            json.dumps(
                {
                    **facts,
                    "scores": [asdict(one) for one in results if math.isfinite(one.geometric_mean)],
                    "refused": listed,
                },
                indent=1,
            )
        )
        return 0
    before = None if asked.against is None else read_scores(asked.against)
    print(", ".join(f"{name} {value}" for name, value in facts.items()), "\n")
    print("\n".join(table(results, before)))
    if before is not None:
        print("\n" + "\n".join(common_sets(results, before)))
    print("\nRows without a ratio")
    for (source, name, reason), n in refused.items():
        print(f"{source:8s} {n:5d}  {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

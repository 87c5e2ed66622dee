"""Predictions of measured servings through the public API, as `moescale cost` answers; measured_servings.py says how.

Modules of moescale are imported where they are used: measured_servings.py judges other versions, too.
"""

from __future__ import annotations

import importlib.util
import inspect
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serving_rows import BLACKWELL, PARTIAL_LENGTHS, Case, config, is_moe, scripts, text_config

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
        source, template = latency_source(gpu, first.engine, weights, cache_bytes, setting, first.weights)
    except MoescaleError as error:
        return dict.fromkeys(group, reason_of(error))
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
                    answers[case] = reason_of(error)
    return answers


def reason_of(error: Any) -> str:
    """An error's message without what differs between rows."""
    return re.sub(r"^the kernels of \S+ on \S+ ", "the kernels ", str(error.what).partition(";")[0])


def latency_source(
    gpu: Any, engine: str, weights: float, cache_bytes: float, setting: Setting, name: str
) -> tuple[Any, Any]:
    """The latency source of the command line's --latency, and a deployment with its defaults."""
    from moescale.cli.decide import cost
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
    source: Any = Silicon(gpu, engine, weights, cache_bytes) if measured else Roofline(gpu, weights, cache_bytes)
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
    deployment = replace(deployment, **_memory(case, model, source, deployment))
    try:
        found = simulate(model, source, deployment, case.gpus, closed(int(case.max_num_seqs))).answer()
    except InfeasibleError:
        return {}
    tpot_s = found.tpot_s or 0.0
    by_law = case.max_num_seqs * case.output_tokens / (found.ttft_s + (case.output_tokens - 1.0) * tpot_s)
    figures = (by_law, tpot_s, found.ttft_s, found.e2e_s, found.plateau_ttft_s or 0.0, found.output_tok_s)
    return dict(zip(ENGINE_FIGURES, figures, strict=True))


def _script(case: Case) -> Mapping[str, Any]:
    return next((one for one in scripts() if one["name"] == case.script), {})


def _memory(case: Case, model: Any, source: Any, deployment: Any) -> dict[str, float]:
    """Its share of GPU memory: SGLang's is of weights and cache alone, TensorRT-LLM's of what weights leave."""
    from moescale.serving.servers import Servers

    script = _script(case)
    if "memory_fraction" in script:
        found = {"memory_fraction": script["memory_fraction"]}
        return found | ({"reserve_bytes": 0.0} if case.engine == "sglang" else {})
    if "free_fraction" not in script:
        return {}
    whole = replace(deployment, memory_fraction=1.0)
    free = float(Servers(model, np.asarray(float(case.gpus)), source, whole).bytes_per_gpu()[1])
    return {"memory_fraction": 1.0 - (1.0 - script["free_fraction"]) * free / deployment.gpu.memory_bytes}


def _engine_settings(case: Case) -> dict[str, Any]:
    """What the campaign's launching scripts state of the scheduler (see above)."""
    new, nominal = (
        case.gpu in BLACKWELL,
        (case.prompt_tokens / PARTIAL_LENGTHS[1], case.output_tokens / PARTIAL_LENGTHS[1]),
    )
    if not case.campaign:
        return {}
    clients, short, script = case.max_num_seqs or 0.0, max(nominal) < 2048.0, _script(case)
    if script:
        tokens = script.get("pass_tokens") or round(script.get("per_prompt", 0) * nominal[0])
        found = {"graph_tokens": float(script["graph_tokens"])} if "graph_tokens" in script else {}
        found |= {"max_num_batched_tokens": tokens} if tokens else {}
        return found | ({"receive_interval": script["receive"][clients >= 16]} if "receive" in script else {})
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
        latent = bool(text_config(case.model).get("kv_lora_rank"))
        return {"batch_wait_passes": 40, "batch_wait_share": 0.8} if latent and case.weights == "fp8" else {}
    return {}


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
        return reason_of(error)
    with np.errstate(invalid="ignore"):
        return {
            "output_tok_s": run.output_tok_s, "tpot": float(np.mean(run.tpot_s)), "ttft": float(np.mean(run.ttft_s)),
            "e2e": float(np.mean(run.e2e_s)),
        }  # fmt: skip

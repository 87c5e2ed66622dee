"""The answer of `cost`: a model priced on a server under every load that is asked about, and the limits that it misses by the known error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from moescale.bounds import Bound
from moescale.errors import InputError, located
from moescale.export.serving_launch import launch, published_name
from moescale.hardware.precisions import Precision, find_precision
from moescale.latency import LatencySource, kernels_alone
from moescale.latency.engines import find_host
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import basis
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture, some
from moescale.models.family import architecture
from moescale.models.hf_config import read_config
from moescale.models.parameters import count_parameters
from moescale.models.published import find_shape
from moescale.models.quantisation import CheckpointWeights, with_usual_shares
from moescale.options.cost import CostServingOptions, LoadOptions, ModelOptions
from moescale.options.fields import Remark, ignore, refuse, silent, within
from moescale.options.law import family_of_shape
from moescale.serving.accuracy import Accuracy, Calibrated, accuracy_of, calibrated, limits_missed
from moescale.serving.deployment import Deployment, question_record, slow_for_use, weight_format
from moescale.serving.disaggregated import Disaggregated, disaggregated
from moescale.serving.engine import simulate
from moescale.serving.gpu_counts import Cost, cost, cost_at_rate, laid_out
from moescale.serving.loads import OpenLoop
from moescale.serving.traffic import trace_lengths
from moescale.serving.workload import Answer, burst
from moescale.typing import FloatArray, Progress
from moescale.units import format_count, format_seconds, three_digits_down

POOL = within(Bound(1, 1e5, whole=True))  # GPUs of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The answer of `cost`: the model and the options that were asked about, the server, and what else is said of it."""

    model: Architecture
    published: bool  # the model has a name that `cost` knows
    checkpoint: CheckpointWeights | None
    source: LatencySource
    serving: CostServingOptions
    cost: Cost
    deployment: Deployment  # laid out as the cost is
    opened: OpenLoop | None  # what answers a rate of requests
    accuracy: Accuracy | None  # the known error of its kind
    apart: Disaggregated | None
    apart_accuracy: Accuracy | None
    burst: Answer | None
    launch: str | None = None  # the line that starts the server

    @property
    def loaded(self) -> OpenLoop | Answer | Cost:
        """At the rate, or of the closed loop, where one is stated; else at full load."""
        return self.opened or self.cost.closed_loop or self.cost

    @property
    def late_s(self) -> dict[str, float]:
        """Which of its limits it misses by the known error of its kind, and the seconds as corrected."""
        times, limits = self.loaded, self.deployment
        return limits_missed(self.accuracy, (times.ttft_s, limits.max_ttft_s), (times.tpot_s, limits.max_tpot_s))

    @property
    def stricter(self) -> str:
        """The options that ask for a server which keeps these limits despite the error."""
        found = list[str]()
        for name in map(str.lower, self.late_s):
            limit, band = getattr(self.deployment, f"max_{name}_s"), getattr(self.accuracy, name)
            most_s = format_seconds(three_digits_down(float(limit) * band.geometric_mean))
            found.append(f"--max-{name} {most_s.replace(' ', '')}")
        return " ".join(found)

    @property
    def calibrated(self) -> Calibrated | None:
        """The price, of the closed loop where there is one, corrected by the known error."""
        return calibrated((self.cost.closed_loop or self.cost).usd_per_mtok, self.accuracy)

    def warnings(self) -> list[str]:
        """Latencies that are of little use and that no limit was stated for."""
        deployment, loaded, apart = self.deployment, self.loaded, self.apart
        found = slow_for_use(deployment, loaded.ttft_s, loaded.tpot_s)
        if apart is not None:
            found += slow_for_use(deployment, apart.ttft_s, apart.tpot_s, " with separate prefill and decode")
        return found

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; what does not apply is absent."""
        error = self.apart_accuracy
        record = {"question": question_record(self.model, self.deployment, self.source), **self.cost.to_dict()}
        parts = {
            "weights": self._weights_record(),
            "open_loop": self.opened and self.opened.to_dict(),
            "disaggregated": self.apart and self.apart.to_dict() | ({"accuracy": error.to_dict()} if error else {}),
            "warnings": self.warnings(),
            "burst": self.burst and self.burst.to_dict(),
            "accuracy": self.accuracy and self.accuracy.to_dict(),
            "calibrated": self.calibrated and self.calibrated.to_dict(),
            "limits_missed_by_error": self.late_s,
            "launch": self.launch,
        }
        return record | {name: part for name, part in parts.items() if part}

    def _weights_record(self) -> dict[str, object]:
        """The format that was priced, and who says so."""
        priced, checkpoint = self.deployment, self.checkpoint
        source = "default" if checkpoint is None else checkpoint.stated
        of_checkpoint = {}
        if self.serving.weights is not None:
            source = "--weights"
            of_checkpoint = {} if checkpoint is None else {"checkpoint": checkpoint.format or "not understood"}
        held = float(priced.weight_bytes_per_param)
        return {"format": priced.weights or "bf16", "bytes_per_param": held, "source": source, **of_checkpoint}

    def weights_words(self) -> str:
        """The format of the weights, and whose choice it is where it is the checkpoint's and not of 16 bits."""
        checkpoint = self.checkpoint
        if checkpoint is None or self.serving.weights is not None or checkpoint.bytes_per_param >= 2.0:
            return weight_format(self.deployment)
        whose = "as released" if self.published else "as its config states"
        return f"{checkpoint.format}, {whose}; --weights overrides"


def price(
    described: ModelOptions,
    load: LoadOptions,
    serving: CostServingOptions,
    remark: Remark = ignore,
    progress: Progress = silent,
) -> Priced:
    """The model on its cheapest server; raises InputError that names the option, InfeasibleError where no GPU count holds it."""
    load.check(serving)
    model, checkpoint = _model(described, serving.kv_heads, remark)
    limits = serving.deployment(weights=_weight_format(serving, checkpoint, remark), remark=remark)
    if described.published is not None and ".json:" in described.published:  # a row of a plan: no name for a server
        described = replace(described, published=None)
    model = with_usual_shares(model, limits.weights)
    source = serving.open_latency(limits, model, remark)
    if isinstance(source, Roofline) and (rests_on := basis(limits.gpu, latent=some(model.kv_lora_rank))) is not None:
        remark(rests_on)
    if isinstance(source, Silicon) and (scaled := source.unmeasured(model)):
        what = f"{' and '.join(scaled)} in {weight_format(limits)} were not measured on {source.gpu.name} with {source.backend}"
        remark(f"{what}: priced with bf16 kernels, scaled by the roofline")
    lengths, of_trace = None, dict[str, FloatArray]()  # tokens of each request
    if serving.trace is not None:
        prompt, output = (np.maximum(np.round(tokens), 1.0) for tokens in trace_lengths(serving.trace))
        lengths, of_trace = (prompt, output), {"prompt_tokens": prompt, "output_tokens": output}

    alone, host = kernels_alone(source), find_host(serving.host or "in-line")  # under a load
    with located("--concurrency"):
        found = cost(
            model, source, limits, serving.gpus_of_replica(),
            clients=load.concurrency, lengths=lengths, percentile=load.percentile,
            more_replicas=serving.replicas is None, progress=progress,
        )  # fmt: skip
    opened, apart, apart_accuracy, simulated = None, None, None, None
    timed, one_of_many = source, limits
    how: dict[str, Any] = {}  # of prefill and decode apart
    if load.request_rate is not None and load.burst is None:
        timed, one_of_many = alone, replace(limits, host=host)
        how = {"requests_per_s": load.request_rate, "percentile": load.percentile, "lengths": lengths}
        with located("--request-rate"):
            found, opened = cost_at_rate(
                found, model, alone, one_of_many, load.request_rate, percentile=load.percentile, **of_trace
            )
    own = laid_out(replace(limits, replicas=float(found.replicas or 1)), found.attention_dp)
    if serving.prefill_gpus or serving.decode_gpus:
        refuse(serving, ("replicas",), "goes without --prefill-gpus and --decode-gpus, which count the workers")
        for name, stated in (("prefill_gpus", serving.prefill_gpus), ("decode_gpus", serving.decode_gpus)):
            searched = stated is None or stated.strip().lower() == "auto"
            how[name] = None if searched else int(POOL.parse(stated, f"--{name.replace('_', '-')}"))
        apart = disaggregated(model, timed, replace(one_of_many, replicas=own.replicas), **how)
        decoding = replace(own, attention_dp=float(apart.decode.attention_dp))
        apart_accuracy = accuracy_of(model, decoding, source, apart=True)
    longest, context = math.ceil(float(np.asarray(limits.longest_tokens))), _context_tokens(described)
    if context is not None and longest > context:
        remark(f"requests of {longest} tokens are longer than the {context} that the model was made for")
    if load.burst is not None:
        requests = replace(burst(load.burst, load.request_rate or math.inf), **of_trace)
        with located("--burst"):
            simulated = simulate(model, alone, replace(own, host=host), found.gpus_per_replica, requests).answer()
    priced = Priced(
        model=model,
        published=described.published is not None,
        checkpoint=checkpoint,
        source=source,
        serving=serving,
        cost=found,
        deployment=own,
        opened=opened,
        accuracy=accuracy_of(model, own, source),
        apart=apart,
        apart_accuracy=apart_accuracy,
        burst=simulated,
    )
    return priced if serving.launch is None else replace(priced, launch=_launch_line(priced, described, remark))


def _model(
    described: ModelOptions, kv_heads: int | None, remark: Remark
) -> tuple[Architecture, CheckpointWeights | None]:
    """The model, and the format of its weights as they were released or as the config states it."""
    given = {"NAME": described.published, "--config": described.config, "--n-params": described.n_params}
    stated = [name for name, value in given.items() if value is not None]
    if len(stated) > 1:
        what = f"{', '.join(stated[:-1])} and {stated[-1]} each name a model"
        raise InputError(what, next_step="give only one of them")
    if described.n_params is not None:
        return _model_of_size(described, described.n_params, kv_heads, remark), None
    if not stated:
        what = "give one model: the NAME of a published one, --config CONFIG.json, or --n-params N with --experts E"
        raise InputError(what, next_step="for example llama-3.1-8b, or --n-params 1.5B --experts 16")
    whose = "a published model has" if described.config is None else "a config states"
    what = f"goes with --n-params only; {whose} it already"
    refuse(described, ("experts", "top_k", "shape", "vocab_size"), what)
    if kv_heads is not None:
        raise InputError(what, where="--kv-heads", next_step="leave it out")
    if described.config is None:
        named = str(described.published)
        if ".json:" in named:
            from moescale.options.known import stated_model  # which loads what plans take

            known = stated_model(named, "NAME", remark)
            return known.architecture, known.weights
        with located("NAME"):
            found = find_shape(named)
        return found.architecture, found.weights
    checkpoint = read_config(described.config)
    for said in checkpoint.remarks:
        remark(said)
    return checkpoint.architecture, checkpoint.weights


def _context_tokens(described: ModelOptions) -> int | None:
    """Tokens of the longest sequence that the model was made for; None where they are not stated."""
    if described.config is not None:
        return read_config(described.config).max_position_embeddings
    return None if described.published is None else find_shape(described.published).context_tokens


def _model_of_size(described: ModelOptions, n_params: float, kv_heads: int | None, remark: Remark) -> Architecture:
    count, top_k = described.experts or 1, described.top_k
    if top_k is not None and top_k > max(count, 2):
        remark(f"--top-k {top_k}: there are only {count} experts, and all of them are active")
    family = family_of_shape(described.shape or "paper")
    with located("--kv-heads"):
        family = replace(family, top_k=top_k or family.top_k, kv_heads=kv_heads or family.kv_heads)
    model = architecture(family, n_params, float(count), vocab_size=described.vocab_size)
    if count == 1:
        return model
    # N leaves the experts' copies out: who states all parameters of a model as N gets many times the model meant.
    total = format_count(float(count_parameters(model).total))
    return replace(model, name=f"N = {format_count(n_params)} with {count} experts ({total} total parameters)")


def _weight_format(
    serving: CostServingOptions, checkpoint: CheckpointWeights | None, remark: Remark
) -> Precision | None:
    """The format to price: that of --weights, else the checkpoint's with its bytes; None where neither says any."""
    stated, asked = serving.weights, None
    if stated is not None:
        with located("--weights"):
            asked = find_precision("weights", stated)
    if checkpoint is None:
        return asked
    if (cache := checkpoint.kv_cache) is not None and serving.kv_cache is None:
        remark(f"the checkpoint states an {cache} KV cache; to price it, add --kv-cache {cache}")
    own, held = checkpoint.format, checkpoint.bytes_per_param
    if own is None:
        what = f"quantization_config {checkpoint.stated}"
        if asked is None:
            next_step = "state the nearest format of the weights, such as --weights fp8"
            raise InputError(what, where="--config", next_step=next_step)
        remark(f"{what}; priced with --weights {stated}")
        return asked
    if asked is None:
        for said in checkpoint.remarks:
            remark(said)
    if held >= 2.0:
        return asked
    if asked is None or asked.name == own:
        return Precision(name=own, bytes_per_element=held, source=checkpoint.stated, date="")
    instead = f"priced with --weights {asked.name} instead for the quantised matrices"
    remark(f"the checkpoint's weights are {own} ({checkpoint.stated}); {instead}")
    return asked


def _launch_line(priced: Priced, described: ModelOptions, remark: Remark) -> str:
    """The line that starts the recommended server; what it does not say is remarked on."""
    engine, model = str(priced.serving.launch), "MODEL"
    if described.published is not None:
        model = published_name(described.published)
        if "/" not in model:
            remark(f"--launch: no checkpoint of {model} is known: put the folder of one in its place")
    elif (config := described.config) is not None:
        model = str(config if config.is_dir() else config.parent)
    else:
        remark("--launch: put the folder of the trained model in place of MODEL")
    stated = priced.checkpoint and priced.checkpoint.format
    found = launch(engine, model, priced.cost, priced.deployment, stated, most_tokens=_context_tokens(described))
    if priced.apart is not None:
        on_same = "the line starts prefill and decode on the same GPUs"
        remark(f"--launch: {on_same}; {engine} has options of its own for separate ones")
    if (backend := getattr(priced.source, "backend", engine)) != engine:
        others = f"--latency silicon:{engine} takes those of {engine}"
        remark(f"--launch: priced with the kernels of {backend}; {others}")
    for note in found.notes:
        remark(f"--launch: {note}")
    return found.command

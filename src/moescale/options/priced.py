"""The answer of `cost`: a model priced on a server under every load that is asked about, and the limits that it misses by the known error."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from moescale.bounds import Bound
from moescale.errors import InputError, MoescaleError, located
from moescale.export.serving_launch import launch, published_name
from moescale.hardware.precisions import Precision, find_precision
from moescale.hardware.prices import usd_per_gpu_hour
from moescale.latency import LatencySource, kernels_alone
from moescale.latency.engines import find_host
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import basis
from moescale.latency.silicon import Silicon
from moescale.models.architecture import Architecture
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
from moescale.units import format_count, three_digits_down

SIMULATED = "load"  # where engine.simulate says that its refusals lie
POOL = within(Bound(1, 1e5, whole=True))  # GPUs of a kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """What serves a model: its cost, its layout, what answers a rate of requests, and the known error of its kind."""

    cost: Cost
    deployment: Deployment
    opened: OpenLoop | None
    accuracy: Accuracy | None

    @property
    def loaded(self) -> OpenLoop | Answer | Cost:
        """At the rate, or of the closed loop, where one is stated; else at full load."""
        return self.opened or self.cost.closed_loop or self.cost

    @property
    def usd_per_mtok(self) -> float:
        """Under the load that was asked about."""
        return self.loaded.usd_per_mtok or 0.0

    def late_s(self, limits: Deployment) -> dict[str, float]:
        """Which of the limits it misses by the known error, with the seconds as corrected."""
        times = self.loaded
        return limits_missed(self.accuracy, (times.ttft_s, limits.max_ttft_s), (times.tpot_s, limits.max_tpot_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """Which limits a server misses by the known error of its kind, and the cheapest server found that keeps all of them."""

    times_s: dict[str, float]  # as corrected
    kept: Server | None  # None: nothing that was looked at
    stricter_s: dict[str, float]  # limits that give it, by option, such as --max-tpot; none: the stated ones do

    def kept_record(self) -> dict[str, object]:
        """The server that keeps the limits as JSON-ready values; empty where there is none."""
        if self.kept is None:
            return {}
        one, groups, usd = self.kept.opened or self.kept.cost, self.kept.cost.attention_dp, self.kept.usd_per_mtok
        record: dict[str, object] = {"gpus": one.gpus, "replicas": one.replicas or 1, "usd_per_mtok": usd}
        record |= {} if groups is None else {"attention_dp": groups}
        return record | {f"{option[2:].replace('-', '_')}_s": s for option, s in self.stricter_s.items()}


def missed_by_error(server: Server, limits: Deployment, ask: Callable[[Deployment], Server]) -> Missed | None:
    """What the known error says of the limits; None where all are kept.

    `ask` answers the same question under other limits: as strict as the error is large, which smaller batches may keep.
    """
    first = missed = server.late_s(limits)
    if not first:
        return None
    looked_at = server.cost.candidates or () if server.opened is None else ()
    others = [replace(server, cost=candidate) for candidate in looked_at if candidate.batch is not None]
    found = [(other, dict[str, float]()) for other in others if not other.late_s(limits)]
    strict: dict[str, float] = {}
    asked, last = limits, server
    for _ in range(2):  # the smaller batch may miss the other limit
        for name in missed:
            stated, band = f"max_{name.lower()}_s", getattr(last.accuracy, name.lower())
            most_s = three_digits_down(float(getattr(limits, stated)) * band.geometric_mean)
            asked, strict = replace(asked, **{stated: most_s}), strict | {f"--max-{name.lower()}": most_s}
        try:
            last = ask(asked)
        except MoescaleError:
            break
        if not (missed := last.late_s(limits)):
            found.append((last, strict))
            break
    found = [(one, given) for one, given in found if one.cost.closed_loop is None or one.cost.closed_loop.meets_limits]
    kept, stricter_s = min(found, key=lambda each: float(f"{each[0].usd_per_mtok:.9g}"), default=(None, {}))
    return Missed(times_s=first, kept=kept, stricter_s=stricter_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """The answer of `cost`: the model and the options that were asked about, the server, and what else is said of it."""

    model: Architecture
    published: bool  # the model has a name that `cost` knows
    checkpoint: CheckpointWeights | None
    weights: Precision | None  # None: bf16, as nothing says another format
    source: LatencySource
    serving: CostServingOptions
    has_price: bool  # of a GPU hour; else no dollars are shown
    server: Server
    missed: Missed | None
    apart: Disaggregated | None
    apart_accuracy: Accuracy | None
    burst: Answer | None
    launch: str | None  # the line that starts the server

    @property
    def calibrated(self) -> Calibrated | None:
        """The price, of the closed loop where there is one, corrected by the known error."""
        return calibrated((self.server.cost.closed_loop or self.server.cost).usd_per_mtok, self.server.accuracy)

    def warnings(self) -> list[str]:
        """Latencies that are of little use and that no limit was stated for."""
        deployment, loaded, apart = self.server.deployment, self.server.loaded, self.apart
        found = slow_for_use(deployment, loaded.ttft_s, loaded.tpot_s)
        if apart is not None:
            found += slow_for_use(deployment, apart.ttft_s, apart.tpot_s, " with separate prefill and decode")
        return found

    def to_dict(self) -> dict[str, object]:
        """JSON-ready values; what does not apply is absent."""
        server, error = self.server, self.apart_accuracy
        record = {"question": question_record(self.model, server.deployment, self.source), **server.cost.to_dict()}
        parts = {
            "weights": self._weights_record(),
            "open_loop": server.opened and server.opened.to_dict(),
            "disaggregated": self.apart and self.apart.to_dict() | ({"accuracy": error.to_dict()} if error else {}),
            "warnings": self.warnings(),
            "burst": self.burst and self.burst.to_dict(),
            "accuracy": server.accuracy and server.accuracy.to_dict(),
            "calibrated": self.calibrated and self.calibrated.to_dict(),
            "limits_missed_by_error": self.missed and self.missed.times_s,
            "limits_kept_by_error": self.missed and self.missed.kept_record(),
            "launch": self.launch,
        }
        record |= {name: part for name, part in parts.items() if part}
        return record if self.has_price else cast("dict[str, object]", _without_dollars(record))

    def _weights_record(self) -> dict[str, object]:
        """The format that was priced, and who says so."""
        name, held = ("bf16", 2.0) if self.weights is None else (self.weights.name, self.weights.bytes_per_element)
        source = "default" if self.checkpoint is None else self.checkpoint.stated
        record: dict[str, object] = {"format": name, "bytes_per_param": held, "source": source}
        if self.serving.weights is not None:
            record["source"] = "--weights"
            record |= {} if self.checkpoint is None else {"checkpoint": self.checkpoint.format or "not understood"}
        return record

    def weights_words(self) -> str:
        """The format of the weights, and whose choice it is where it is the checkpoint's and not of 16 bits."""
        checkpoint = self.checkpoint
        if checkpoint is None or self.serving.weights is not None or checkpoint.bytes_per_param >= 2.0:
            return weight_format(self.server.deployment)
        whose = "as released" if self.published else "as its config states"
        return f"{checkpoint.format}, {whose}; --weights overrides"


def _without_dollars(record: object) -> object:
    if isinstance(record, dict):
        parts = cast("dict[str, object]", record)
        return {name: _without_dollars(part) for name, part in parts.items() if not name.startswith("usd")}
    if isinstance(record, list):
        return [_without_dollars(part) for part in cast("list[object]", record)]
    return record


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
    has_price = _has_price(serving, remark)
    weights = _weight_format(serving, checkpoint, remark)
    limits = serving.deployment(weights=weights, usd_per_gpu_hour=None if has_price else 1.0, remark=remark)
    if described.published is not None:
        from moescale.options.known import asked_otherwise  # which loads what plans take

        if (note := asked_otherwise(described.published, limits)) is not None:
            remark(note)
        if ".json:" in described.published:  # a row of a plan has no name that a server knows
            described = replace(described, published=None)
    model = with_usual_shares(model, limits.weights)
    source = serving.open_latency(limits, model, remark)
    latent = bool(np.any(np.asarray(model.kv_lora_rank) > 0))
    if isinstance(source, Roofline) and (rests_on := basis(limits.gpu, latent=latent)) is not None:
        remark(rests_on)
    if isinstance(source, Silicon) and (scaled := source.unmeasured(model)):
        what = f"{' and '.join(scaled)} in {weight_format(limits)} were not measured on {source.gpu.name} with {source.backend}"
        remark(f"{what}: priced with bf16 kernels, scaled by the roofline")
    lengths, of_trace = None, dict[str, FloatArray]()  # tokens of each request
    if serving.trace is not None:
        prompt, output = (np.maximum(np.round(tokens), 1.0) for tokens in trace_lengths(serving.trace))
        lengths, of_trace = (prompt, output), {"prompt_tokens": prompt, "output_tokens": output}

    def under_load(deployment: Deployment) -> Deployment:
        return replace(deployment, host=find_host(serving.host or "in-line"))

    def served(asked: Deployment) -> Server:
        with _asked_by("--concurrency"):
            found = cost(
                model, source, asked, serving.gpus_of_replica(),
                clients=load.concurrency, lengths=lengths, percentile=load.percentile,
                more_replicas=serving.replicas is None, progress=progress,
            )  # fmt: skip
        opened = None
        if load.request_rate is not None and load.burst is None:
            with _asked_by("--request-rate"):
                found, opened = cost_at_rate(
                    found, model, kernels_alone(source), under_load(asked), load.request_rate,
                    percentile=load.percentile, **of_trace,
                )  # fmt: skip
        own = laid_out(replace(asked, replicas=float(found.replicas or 1)), found.attention_dp)
        return Server(cost=found, deployment=own, opened=opened, accuracy=accuracy_of(model, own, source))

    server = served(limits)
    apart_accuracy, one_of_many = None, replace(limits, replicas=server.deployment.replicas)
    timed, at_rate = source, dict[str, Any]()
    if server.opened is not None:  # by the same rate and host
        timed, one_of_many = kernels_alone(source), under_load(one_of_many)
        at_rate = {"requests_per_s": load.request_rate, "percentile": load.percentile, "lengths": lengths}
    if (apart := _apart(serving, model, timed, one_of_many, **at_rate)) is not None:
        decoding = replace(server.deployment, attention_dp=float(apart.decode.attention_dp))
        apart_accuracy = accuracy_of(model, decoding, source, apart=True)
    longest, context = math.ceil(float(np.asarray(limits.longest_tokens))), described.context_tokens()
    if context is not None and longest > context:
        remark(f"requests of {longest} tokens are longer than the {context} that the model was made for")
    line = _launch_line(described, serving, server, checkpoint, source, remark)
    simulated = None
    if load.burst is not None:
        requests = replace(burst(load.burst, load.request_rate or math.inf), **of_trace)
        gpus, loaded = server.cost.gpus_per_replica, under_load(server.deployment)
        with _asked_by("--burst"):
            simulated = simulate(model, kernels_alone(source), loaded, gpus, requests).answer()
    return Priced(
        model=model,
        published=described.published is not None,
        checkpoint=checkpoint,
        weights=weights,
        source=source,
        serving=serving,
        has_price=has_price,
        server=server,
        launch=line,
        apart=apart,
        apart_accuracy=apart_accuracy,
        burst=simulated,
        missed=missed_by_error(server, limits, served),
    )


@contextmanager
def _asked_by(option: str) -> Generator[None]:
    """Refusals of the engine name the option that asked for the load."""
    try:
        yield
    except MoescaleError as error:
        if error.where != SIMULATED:
            raise
        raise type(error)(error.what, where=option, nearest=error.nearest, next_step=error.next_step) from error


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


def _has_price(serving: CostServingOptions, remark: Remark) -> bool:
    """Whether an hour of the GPU has a price; a remark where it has none: everything but the dollars is answered."""
    gpu = serving.find_gpu()
    if serving.stated_price() is None:
        try:
            usd_per_gpu_hour(gpu)
        except InputError as error:
            remark(f"no dollars, because {error.what}; pass --usd-per-gpu-hour with what you pay")
            return False
    return True


def _weight_format(
    serving: CostServingOptions, checkpoint: CheckpointWeights | None, remark: Remark
) -> Precision | None:
    """The format to price: that of --weights, else the checkpoint's; None where neither says any.

    A format that is asked for by the checkpoint's name has the checkpoint's bytes, and another one is remarked on.
    """
    stated, asked = serving.weights, None
    if stated is not None:
        if "," in stated:
            raise InputError("one format is priced at a time", where="--weights", next_step="ask once for each")
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


def _apart(
    serving: CostServingOptions, model: Architecture, source: LatencySource, deployment: Deployment, **at_rate: Any
) -> Disaggregated | None:
    """Prefill and decode on GPUs of their own, if either count is stated; the other one is searched."""
    if not (serving.prefill_gpus or serving.decode_gpus):
        return None
    refuse(serving, ("replicas",), "goes without --prefill-gpus and --decode-gpus, which count the workers")
    prefill, decode = _pool("--prefill-gpus", serving.prefill_gpus), _pool("--decode-gpus", serving.decode_gpus)
    return disaggregated(model, source, deployment, prefill_gpus=prefill, decode_gpus=decode, **at_rate)


def _pool(option: str, stated: str | None) -> int | None:
    if stated is None or stated.strip().lower() == "auto":
        return None
    try:
        return int(POOL.parse(stated, option))
    except InputError as error:
        raise InputError(error.what, where=option, next_step=f"{error.next_step}, or auto") from None


def _launch_line(
    described: ModelOptions,
    serving: CostServingOptions,
    server: Server,
    checkpoint: CheckpointWeights | None,
    source: LatencySource,
    remark: Remark,
) -> str | None:
    """The line that starts the recommended server, if it is asked for; what it does not say is remarked on."""
    if (engine := serving.launch) is None:
        return None
    model, stated = "MODEL", None if checkpoint is None else checkpoint.format
    if described.published is not None:
        model = published_name(described.published)
        if "/" not in model:
            remark(f"--launch: no checkpoint of {model} is known: put the folder of one in its place")
    elif (config := described.config) is not None:
        model = str(config if config.is_dir() else config.parent)
    else:
        remark("--launch: put the folder of the trained model in place of MODEL")
    found = launch(engine, model, server.cost, server.deployment, stated, most_tokens=described.context_tokens())
    if serving.prefill_gpus or serving.decode_gpus:
        remark(
            f"--launch: the line starts prefill and decode on the same GPUs; {engine} has options of its own for separate ones"
        )
    if (priced := getattr(source, "backend", engine)) != engine:
        others = f"--latency silicon:{engine} takes those of {engine}"
        remark(f"--launch: priced with the kernels of {priced}; {others}")
    for note in found.notes:
        remark(f"--launch: {note}")
    return found.command

"""Iteration latency from measured kernels, through NVIDIA's aiconfigurator-core, for the shapes that it tabulates."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moescale.architecture import Architecture, FloatArray, Real, from_config
from moescale.errors import InfeasibleError, InputError
from moescale.hardware import Gpu
from moescale.latency import NUMERIC_FIELDS, common_shape

if TYPE_CHECKING:
    from aiconfigurator_core.sdk.engine import EngineHandle

ROOFLINE = "take the roofline as the latency source; it answers for every shape"
# How far the kernel tables go; beyond, the engine would extrapolate without a word.
MEASURED_DECODE_BATCH = 2048
MEASURED_PREFILL_BATCH = 256
MEASURED_PROMPT_TOKENS = 16384
MEASURED_CONTEXT_TOKENS = 131071
# The engine goes by class; Mistral has the shape of Llama. Other families of from_config are not in its tables.
ENGINE_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}
BANDWIDTH_TOLERANCE = 0.05  # data sheets round; a 40 GB A100 lies 24% below the measured 80 GB part


@dataclass(frozen=True, slots=True)
class Silicon:
    """Measured kernels of the model in `config` (a Hugging Face config.json, its folder, or its content) on `gpu`.

    Sums of kernel times as the engine `backend` runs them, tensor-parallel, with an uneven (power law) load of the
    experts; without the CPU's overhead, which `iteration_overhead_s` adds if wanted. It answers for that model only:
    another model, or a GPU count or size beyond its tables, is NaN. Fractional batches and lengths are interpolated
    between whole ones. fp8 weights mean 128 x 128 blocks by default (`fp8_mode`), as published fp8 checkpoints have.

    Raises InputError when the package or a table for the GPU is missing, InfeasibleError when the shape is not
    measured.
    """

    config: str | Path | Mapping[str, Any]
    gpu: Gpu
    backend: str = "vllm"
    weight_bytes_per_param: float = 2.0
    kv_bytes_per_element: float = 2.0
    fp8_mode: str = "fp8_block"
    iteration_overhead_s: float = 0.0
    architecture: Architecture = field(init=False, repr=False, compare=False)
    _content: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    _engines: dict[int, EngineHandle | str] = field(init=False, repr=False, compare=False, default_factory=dict)
    _seconds: dict[tuple[str, int, int, int], float] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "architecture", from_config(self.config))
        content = _read_config(self.config)
        object.__setattr__(self, "_content", _engine_config(content, self.architecture))
        _check_precision(self.weight_bytes_per_param, "weight_bytes_per_param")
        _check_precision(self.kv_bytes_per_element, "kv_bytes_per_element")
        _check_gpu(self.gpu, fp8=self.weight_bytes_per_param == 1)
        if int(content.get("decoder_sparse_step") or 1) > 1 or content.get("mlp_only_layers"):
            raise InfeasibleError(
                "the kernel engine prices a model with experts in some layers only as if all had them",
                where=_label(self.config),
                next_step=ROOFLINE,
            )
        refusals = []
        for gpus in (1, 2, 4, 8):
            refusal = self.refusal(gpus)
            if refusal is None:
                return
            refusals.append(refusal)
        raise InfeasibleError(
            f"no measured kernels for this model on {self.gpu.name} with {self.backend} ({refusals[0]})",
            where=_label(self.config),
            next_step=ROOFLINE,
        )

    @property
    def name(self) -> str:
        """`silicon`."""
        return "silicon"

    def refusal(self, gpus: int) -> str | None:
        """Why the kernel tables do not hold this model on `gpus` GPUs; None where they do."""
        engine = self._engine(gpus)
        return engine if isinstance(engine, str) else None

    def prefill_s(
        self, model: Architecture, gpus: Real, batch: Real, prompt_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds to process `batch` prompts of `prompt_tokens` tokens each; NaN where not measured."""
        seconds = self._look_up("prefill", model, gpus, batch, prompt_tokens)
        return np.where(np.asarray(expert_parallel) == 1.0, seconds, np.nan)

    def decode_s(
        self, model: Architecture, gpus: Real, batch: Real, context_tokens: Real, *, expert_parallel: Real = 1.0
    ) -> FloatArray:
        """Seconds for one token of each of `batch` requests that hold `context_tokens` tokens; NaN where not measured.

        A decode step is linear in its context, so the mean context gives the mean step.
        """
        seconds = self._look_up("decode", model, gpus, batch, context_tokens)
        return np.where(np.asarray(expert_parallel) == 1.0, seconds, np.nan)

    def mixed_s(
        self,
        model: Architecture,
        gpus: Real,
        batch: Real,
        context_tokens: Real,
        prompts: Real,
        prompt_tokens: Real,
        *,
        expert_parallel: Real = 1.0,
    ) -> FloatArray:
        """NaN: the engine prices separate passes only."""
        shape = common_shape(model, gpus, batch, context_tokens, prompts, prompt_tokens, expert_parallel)
        return np.full(shape, np.nan)

    def _look_up(self, stage: str, model: Architecture, gpus: Real, batch: Real, tokens: Real) -> FloatArray:
        shape = common_shape(model, gpus, batch, tokens)
        flat = (np.broadcast_to(np.asarray(v, dtype=np.float64), shape).ravel() for v in (gpus, batch, tokens))
        same = np.broadcast_to(self._is_measured(model), shape).ravel()
        points = zip(same, *flat, strict=True)
        with _quiet():
            seconds = [self._at(stage, int(g), float(b), float(t)) if s else math.nan for s, g, b, t in points]
        return np.asarray(seconds, dtype=np.float64).reshape(shape)

    def _is_measured(self, model: Architecture) -> FloatArray:
        """Where `model` is the one in the config; the vocabulary may be left out of its counts."""
        same = np.asarray(True)
        for name in NUMERIC_FIELDS:
            if name != "vocab_size":
                same = same & (np.asarray(getattr(model, name)) == getattr(self.architecture, name))
        return same

    def _at(self, stage: str, gpus: int, batch: float, tokens: float) -> float:
        """Bilinear between the whole batches and lengths around (batch, tokens)."""
        most = (MEASURED_PREFILL_BATCH, MEASURED_PROMPT_TOKENS)
        if stage == "decode":
            most = (MEASURED_DECODE_BATCH, MEASURED_CONTEXT_TOKENS)
        if not (1 <= batch <= most[0] and 1 <= tokens <= most[1]):
            return math.nan
        total = self.iteration_overhead_s
        for b, share_b in _neighbours(batch):
            for t, share_t in _neighbours(tokens):
                total += share_b * share_t * self._query(stage, gpus, b, t)
        return total

    def _query(self, stage: str, gpus: int, batch: int, tokens: int) -> float:
        key = (stage, gpus, batch, tokens)
        if key not in self._seconds:
            engine = self._engine(gpus)
            self._seconds[key] = math.nan if isinstance(engine, str) else _seconds(engine, stage, batch, tokens)
        return self._seconds[key]

    def _engine(self, gpus: int) -> EngineHandle | str:
        """The compiled engine for `gpus` GPUs, or the engine's own words why there is none."""
        if gpus not in self._engines:
            self._engines[gpus] = self._compile(gpus)
        return self._engines[gpus]

    def _compile(self, gpus: int) -> EngineHandle | str:
        try:
            from aiconfigurator_core.sdk.engine import EngineHandle
        except ImportError as error:
            raise InputError(
                f"measured kernels need the package aiconfigurator-core, which is not installed ({error})",
                next_step=f"pip install aiconfigurator-core (Linux x86-64 only), or {ROOFLINE}",
            ) from error
        weights = "bfloat16" if self.weight_bytes_per_param == 2 else self.fp8_mode
        cache = "bfloat16" if self.kv_bytes_per_element == 2 else "fp8"
        # The engine remembers configs by path, so every compilation gets a path of its own.
        with tempfile.TemporaryDirectory(prefix="moescale-") as folder, _quiet():
            (Path(folder) / "config.json").write_text(json.dumps(self._content), encoding="utf-8")
            try:
                engine = EngineHandle.compile(
                    folder,
                    str(self.gpu.silicon_system),
                    self.backend,
                    tp_size=gpus,
                    moe_tp_size=gpus,
                    moe_ep_size=1,
                    gemm_quant_mode=weights,
                    moe_quant_mode=weights,
                    kvcache_quant_mode=cache,
                    fmha_quant_mode="bfloat16",
                )
                engine.predict_decode_latency(1, 1024, 2)
                engine.predict_prefill_latency(1, 1024)
            except Exception as error:  # it raises AssertionError, ValueError, RuntimeError and its own kinds alike
                return _one_line(error)
        return engine


def _seconds(engine: EngineHandle, stage: str, batch: int, tokens: int) -> float:
    try:
        if stage == "prefill":
            milliseconds = engine.predict_prefill_latency(batch, tokens)
        else:
            milliseconds = engine.predict_decode_latency(batch, tokens, 2)  # two output tokens are one decode step
    except Exception:  # a shape between whose measured neighbours nothing is known
        return math.nan
    return milliseconds / 1e3 if milliseconds > 0 else math.nan


def _neighbours(value: float) -> tuple[tuple[int, float], ...]:
    """The whole numbers around `value` with their linear shares."""
    low = math.floor(value)
    share = value - low
    return ((low, 1.0),) if share == 0 else ((low, 1.0 - share), (low + 1, share))


def _read_config(config: str | Path | Mapping[str, Any]) -> Mapping[str, Any]:
    """The content of a config that from_config has already read without complaint."""
    if isinstance(config, Mapping):
        return config
    file = Path(config)
    return json.loads((file / "config.json" if file.is_dir() else file).read_text(encoding="utf-8-sig"))


def _engine_config(content: Mapping[str, Any], architecture: Architecture) -> Mapping[str, Any]:
    """The config as the engine reads it: keys that may be absent are filled in, precision is left to the arguments."""
    a = architecture
    filled = {
        "num_key_value_heads": int(a.n_kv_heads),
        "head_dim": int(a.head_dim),
        "max_position_embeddings": content.get("max_position_embeddings") or MEASURED_CONTEXT_TOKENS + 1,
        "architectures": [ENGINE_CLASSES.get(str(content["model_type"]), "unknown")],
    }
    return {key: value for key, value in content.items() if key != "quantization_config"} | filled


def _check_precision(value: float, name: str) -> None:
    if value not in (1, 2):
        raise InputError(
            f"{name} is {value:g}; kernels are measured at 2 (bf16) and 1 (fp8)", where="silicon", next_step=ROOFLINE
        )


def _check_gpu(gpu: Gpu, *, fp8: bool) -> None:
    """Refuse a GPU without kernel tables, or one whose memory is not as fast as the measured part's."""
    if gpu.silicon_system is None:
        raise InputError(f"there are no measured kernels for {gpu.name}", where="silicon", next_step=ROOFLINE)
    measured = gpu.silicon_bandwidth_bytes_per_s
    if measured and abs(gpu.memory_bandwidth_bytes_per_s / measured - 1) > BANDWIDTH_TOLERANCE:
        raise InputError(
            f"{gpu.name} reads {gpu.memory_bandwidth_bytes_per_s / 1e9:.0f} GB/s, but the kernels of "
            f"{gpu.silicon_system} were measured at {measured / 1e9:.0f} GB/s",
            where="silicon",
            next_step=ROOFLINE,
        )
    if fp8 and gpu.fp8_flops_per_s is None:
        raise InputError(
            f"{gpu.name} has no fp8 arithmetic", where="silicon", next_step=f"take bf16 weights, or {ROOFLINE}"
        )


def _label(config: str | Path | Mapping[str, Any]) -> str:
    return "model config" if isinstance(config, Mapping) else str(config)


def _one_line(error: Exception) -> str:
    """The engine's message without its installation paths."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.split(" at /")[0][:300]


@contextlib.contextmanager
def _quiet() -> Generator[None]:
    """Keep the engine's remarks about fallback tables of other model families off standard error."""
    logger = logging.getLogger("aiconfigurator_core")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)

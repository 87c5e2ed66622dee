"""Engine `torch`: transformers' own model with random weights and a static KV cache; run by worker.py, on one device.

Prefill is one pass over `batch` prompts that ends in the logits of their last tokens; decode is one pass with one new token
a request, over a cache that holds `tokens` tokens of each, again and again at that length. On CUDA the decode pass is
replayed as a CUDA graph where the model can be captured.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

WARM_UPS = 2  # passes before the first timed one of a point: allocations, caches, choice of kernels


def start(task: dict[str, Any]) -> tuple[dict[str, str], Callable[[str, int, int, int], list[float]]]:
    """The engine for one model; `task` holds config, dtype and device (cpu, cuda, or none to choose)."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    device = str(task.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    if device == "cuda" and not torch.cuda.is_available():
        raise ImportError("this torch sees no CUDA device")
    dtype = getattr(torch, task["dtype"])
    given: dict[str, Any] = dict(task["config"])
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    # Grouped products of torch; the default loops over the experts.
    experts: dict[str, str] = {"experts_implementation": "grouped_mm"} if "num_experts" in given else {}
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, **experts).eval()
    cuda = device == "cuda"
    chip = torch.cuda.get_device_name() if cuda else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    description = {
        "engine_version": f"{torch.__version__} with transformers {transformers.__version__}",
        "device": chip,
    }
    measure = _Measure(torch, transformers, model, device)
    return description, measure


class _Measure:
    """Times the points of one model; keeps the buffers of the last point, which is asked for in several portions."""

    def __init__(self, torch: Any, transformers: Any, model: Any, device: str) -> None:
        self.torch, self.transformers, self.model, self.device = torch, transformers, model, device
        self.point: tuple[str, int, int] | None = None
        self.once: Callable[[], None] | None = None

    def __call__(self, stage: str, batch: int, tokens: int, repeats: int) -> list[float]:
        with self.torch.inference_mode():
            if self.point != (stage, batch, tokens) or self.once is None:
                self.point = self.once = None  # the memory of the last point goes before that of this one comes
                if self.device == "cuda":
                    self.torch.cuda.empty_cache()
                self.once = (self._prefill if stage == "prefill" else self._decode)(batch, tokens)
                for _ in range(WARM_UPS):
                    self.once()
                self.point = (stage, batch, tokens)
            return [self._seconds(self.once) for _ in range(repeats)]

    def _seconds(self, once: Callable[[], None]) -> float:
        self._wait()
        start = time.perf_counter()
        once()
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def _ids(self, batch: int, tokens: int) -> Any:
        # Different tokens for every request: routers must see what they see in service.
        return self.torch.randint(0, self.model.config.vocab_size, (batch, tokens), device=self.device)

    def _cache(self, tokens: int) -> Any:
        return self.transformers.StaticCache(config=self.model.config, max_cache_len=tokens)

    def _prefill(self, batch: int, tokens: int) -> Callable[[], None]:
        ids, cache = self._ids(batch, tokens), self._cache(tokens)

        def once() -> None:
            _set_length(cache, 0)
            self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

        return once

    def _decode(self, batch: int, tokens: int) -> Callable[[], None]:
        ids, cache = self._ids(batch, 1), self._cache(tokens + 1)

        def step() -> None:
            self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits.argmax(-1)

        step()  # makes the buffers of the cache
        for layer in cache.layers:
            # Zeros would be cheaper than real keys: a GPU's clock depends on the bits that change.
            layer.keys.normal_()
            layer.values.normal_()

        def once() -> None:
            _set_length(cache, tokens)
            step()

        return self._graph(once, step, cache, tokens) if self.device == "cuda" else once

    def _graph(self, once: Callable[[], None], step: Callable[[], None], cache: Any, tokens: int) -> Callable[[], None]:
        """The same pass as a CUDA graph, or as it was where it cannot be captured."""
        cuda = self.torch.cuda
        side = cuda.Stream()
        side.wait_stream(cuda.current_stream())
        with cuda.stream(side):
            for _ in range(WARM_UPS):
                once()
        cuda.current_stream().wait_stream(side)
        graph = cuda.CUDAGraph()
        _set_length(cache, tokens)
        try:
            with cuda.graph(graph):
                step()
        except RuntimeError as error:
            print(f"no CUDA graph ({str(error).splitlines()[0]}): decoding is timed with its launches", flush=True)
            return once

        def replay() -> None:
            _set_length(cache, tokens)
            graph.replay()

        return replay


def _set_length(cache: Any, tokens: int) -> None:
    """Say that the cache holds so many tokens, in place: graphs and compiled code keep its address."""
    for layer in cache.layers:
        if layer.is_initialized:
            layer.cumulative_length.fill_(tokens)

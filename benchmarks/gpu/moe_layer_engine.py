"""Engine of the MoE layer alone, for experiments/profiling/worker.py: the router and experts of one layer, `batch` tokens at a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

WARM_UPS = 3
INNER_S = 2e-3  # a timed portion lasts at least so long: single launches are shorter than the clock is good


def start(task: dict[str, Any]) -> tuple[dict[str, str], Callable[[str, int, int, int], list[float]]]:
    """The first MoE layer of the task's model."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    device = str(task.get("device") or ("cuda" if torch.cuda.is_available() else "cpu"))
    given: dict[str, Any] = dict(task["config"])
    step = int(given["decoder_sparse_step"])
    given.update(num_hidden_layers=step, vocab_size=8)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
    dtype = getattr(torch, task["dtype"])
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype, experts_implementation="grouped_mm")
    layer = model.eval().model.layers[step - 1].mlp

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def measure(stage: str, batch: int, tokens: int, repeats: int) -> list[float]:
        del stage
        x = torch.randn((1, batch * tokens, config.hidden_size), device=device, dtype=dtype)

        def seconds(passes: int) -> float:
            wait()
            begin = time.perf_counter()
            for _ in range(passes):
                layer(x)
            wait()
            return (time.perf_counter() - begin) / passes

        with torch.inference_mode():
            seconds(WARM_UPS)
            passes = max(1, round(INNER_S / seconds(1)))
            return [seconds(passes) for _ in range(repeats)]

    chip = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    version = f"{torch.__version__} with transformers {transformers.__version__}"
    return {"engine_version": version, "device": chip}, measure

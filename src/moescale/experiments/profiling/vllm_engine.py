"""Engine `vllm`: the real vLLM with random weights (load_format dummy); run by worker.py in vLLM's own environment.

Both stages come from the request metrics of one batch of requests that arrive together: prefill is the time from the
scheduling of the first request to the first token of the last, in passes that hold all prompts; decode is the time between
tokens after every request has its first, at `tokens` tokens held in the middle of the measured span.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import shutil
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

DECODED = 16  # tokens of a decode measurement; their mean context is the asked one
WARM_UPS = 1  # batches before the first timed one of a point
GIB = 2**30


def prompt_and_output(stage: str, tokens: int) -> tuple[int, int]:
    """Prompt and output tokens of the requests that measure a stage at `tokens` tokens."""
    if stage == "prefill":
        return tokens, 1
    # Steps 1 to n - 1 after the first token hold p + 1 to p + n - 1 tokens: p + n / 2 on average.
    output = min(DECODED, 2 * max(tokens - 1, 1))
    return max(tokens - output // 2, 1), output


def start(task: dict[str, Any]) -> tuple[dict[str, str], Callable[[str, int, int, int], list[float]]]:
    """The engine for one model on `gpus` GPUs, with room for the largest of the task's points."""
    points = [(stage, batch, *prompt_and_output(stage, tokens)) for stage, batch, tokens in task["points"]]
    on_cuda = task.get("device") != "cpu" and _cuda()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # All requests enter one scheduling step only where the engine's core runs in this process.
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    if not on_cuda:
        _set_up_cpu(task, points)
    vllm: Any = import_module("vllm")
    folder = Path(tempfile.mkdtemp(prefix="moescale-"))
    (folder / "config.json").write_text(json.dumps(task["config"]), encoding="utf-8")
    longest = max(prompt + output for _, _, prompt, output in points)
    llm = vllm.LLM(
        model=str(folder),
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype=task["dtype"],
        tensor_parallel_size=task["gpus"],
        enable_prefix_caching=False,
        enforce_eager=not on_cuda,  # compiling for a CPU takes minutes; on CUDA graphs are what servers run
        disable_log_stats=False,  # the request metrics
        max_model_len=longest + 1,
        max_num_seqs=max(batch for _, batch, _, _ in points),
        max_num_batched_tokens=max(2048, longest + 1, *(batch * prompt for _, batch, prompt, _ in points)),
        seed=0,
    )
    shutil.rmtree(folder, ignore_errors=True)  # every rank has read it
    cuda: Any = import_module("torch").cuda
    chip = cuda.get_device_name() if on_cuda else f"{platform.machine()} CPU, a core for each rank"
    return {"engine_version": str(vllm.__version__), "device": chip}, _Measure(vllm, llm, task["config"]["vocab_size"])


def _cuda() -> bool:
    torch: Any = import_module("torch")
    return bool(torch.cuda.is_available())


def _set_up_cpu(task: dict[str, Any], points: Sequence[tuple[str, int, int, int]]) -> None:
    """Room for the largest point in the KV cache, and a core of its own for each rank."""
    config = task["config"]
    heads = config.get("num_key_value_heads") or config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    element = 4 if task["dtype"] == "float32" else 2
    per_token = 2 * config["num_hidden_layers"] * heads * head_dim * element
    block = 256  # tokens; requests hold whole blocks
    held = max(batch * block * math.ceil((prompt + output) / block) for _, batch, prompt, output in points)
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(math.ceil(1.25 * held * per_token / GIB)))
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "|".join(map(str, range(task["gpus"]))))


class _Measure:
    """Times the points of one model."""

    def __init__(self, vllm: Any, llm: Any, vocab_size: int) -> None:
        self.vllm, self.llm, self.vocab_size = vllm, llm, vocab_size
        self.point: tuple[str, int, int] | None = None
        self.random = random.Random(0)

    def __call__(self, stage: str, batch: int, tokens: int, repeats: int) -> list[float]:
        prompt, output = prompt_and_output(stage, tokens)
        self._check_room(batch, prompt + output)
        warm_ups = WARM_UPS if self.point != (stage, batch, tokens) else 0
        self.point = (stage, batch, tokens)
        return [self._seconds(stage, batch, prompt, output) for _ in range(warm_ups + repeats)][warm_ups:]

    def _check_room(self, batch: int, tokens: int) -> None:
        """Requests that the cache does not hold would wait for each other, and the time would be of another batch."""
        cache = self.llm.llm_engine.vllm_config.cache_config
        needed = batch * math.ceil(tokens / cache.block_size)
        if cache.num_gpu_blocks is not None and needed > cache.num_gpu_blocks:
            raise MemoryError(f"the KV cache holds {cache.num_gpu_blocks} blocks, and the batch needs {needed}")

    def _seconds(self, stage: str, batch: int, prompt: int, output: int) -> float:
        prompts = [
            {"prompt_token_ids": [self.random.randrange(self.vocab_size) for _ in range(prompt)]} for _ in range(batch)
        ]
        sampling = self.vllm.SamplingParams(max_tokens=output, ignore_eos=True, temperature=0, detokenize=False)
        metrics = [out.metrics for out in self.llm.generate(prompts, sampling, use_tqdm=False)]
        if any(m is None for m in metrics):
            raise RuntimeError("vLLM gave no request metrics")
        last_first = max(m.first_token_ts for m in metrics)
        if stage == "prefill":
            return float(last_first - min(m.scheduled_ts for m in metrics))
        # From the last first token on every request decodes in every step.
        return float(max(m.last_token_ts for m in metrics) - last_first) / (output - 1)

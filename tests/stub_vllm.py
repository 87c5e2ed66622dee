"""Stands for the program `vllm`: `bench latency` writes what the formulas below say, and some points go wrong.

    python stub_vllm.py bench latency --model FOLDER --batch-size 1 .. --output-json FILE

It obeys `stub` in the config.json of the model, whose keys are read below."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def prefill_s(batch: int, tokens: int, gpus: int) -> float:
    return 1e-3 * batch * tokens / gpus


def decode_s(batch: int, tokens: float, gpus: int) -> float:
    return (2e-3 + 1e-5 * batch * (1 + tokens)) / gpus


def main() -> int:
    if "--version" in sys.argv:
        print(os.environ.get("STUB_VERSION", "1"))
        return 0
    parser = argparse.ArgumentParser()
    for name in ("batch-size", "input-len", "output-len", "num-iters", "tensor-parallel-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("model", "output-json"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    given, _ = parser.parse_known_args(sys.argv[3:])
    batch, prompt, output, gpus = given.batch_size, given.input_len, given.output_len, given.tensor_parallel_size
    stub = json.loads((given.model / "config.json").read_text()).get("stub", {})
    if stub.get("log"):
        with open(stub["log"], "a") as file:
            file.write(f"{batch} {prompt} {output}\n")
    time.sleep(stub.get("pause", 0.0))
    if batch >= stub.get("does_not_fit", 1e9):
        print("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB")
        return 1
    if batch == stub.get("fails"):
        print("ValueError: an assertion")
        return 1
    if batch == stub.get("exits"):
        return 7
    if batch == stub.get("kills"):
        os.kill(os.getpid(), signal.SIGKILL)
    if stub.get("cache"):
        print(f"INFO GPU KV cache size: {stub['cache']:,} tokens")
    starts = 1
    if stub.get("slower"):
        with open(f"{stub['slower']}-{batch}-{prompt}-{output}", "a+") as file:
            file.write("x")
            starts = file.tell()
    # Steps after the first token hold prompt + 1 .. prompt + output - 1 tokens.
    steps = sum(decode_s(batch, prompt + step, gpus) for step in range(1, output))
    seconds = (prefill_s(batch, prompt, gpus) + steps) * starts
    noise = stub.get("noise", 0.0)
    latencies = [seconds * (1 + noise * (-1) ** i) for i in range(given.num_iters)]
    given.output_json.write_text(json.dumps({"avg_latency": seconds, "latencies": latencies}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What latent attention with experts takes on MI300X beyond the roofline: one constant, chosen on half of what was measured.

`python benchmarks/calibrate_amd.py` prints both candidates' constants and errors; the chosen one is written by hand into
catalogue/measured_overheads.toml.

AMD publishes no kernels of latent attention and of block-scaled fp8 products by size that could be read here, so a constant
is chosen on measured servings (points.csv of $MOESCALE_SHARED/data/measured_serving): the 15 closed loops of DeepSeek-R1 in
fp8 by SGLang on 8 MI300X. Seen before this rule was written: their measured figures, and that the roofline as it was
predicts 0.61 of their times between tokens (spread 1.21) and 0.55 of their first tokens.

The rule, written before any candidate was scored:

- The half to choose on: prompts and outputs of 1,024 tokens, 5 rows of times between tokens. The other ten rows judge.
- A time between tokens is predicted as a pass that decodes c requests of mean context P + n / 2, and c / n of the time of one
  prompt: in a closed loop each output of n tokens makes room for c prompts. Lengths are 0.9 of nominal, as
  benchmarks/measured_servings.py takes them; the roofline answers without the host's time.
- Candidates, one constant each: "launches", per_latent_layer_overhead_s, the time that the kernels of latent attention and
  their quantisation add to a layer; "memory", a factor on the shares of bandwidth that weights, experts and cache reach.
- The value of a candidate makes the geometric mean of predicted over measured 1 on the half to choose on; the candidate with
  the smaller spread there is taken. Nothing else of the GPU changes, and models without latent attention keep their times
  with "launches".
- Its geometric mean and spread on the other ten rows are stated beside it.
"""

from __future__ import annotations

import csv
import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.latency.roofline_constants import MEMORY, constants_of, measured_constants
from moescale.models.published import find_shape

NOMINAL, GPUS = 0.9, 8.0
CHOSEN_ON = ("1024", "1024")
VALUES = {"launches": np.geomspace(1e-5, 1e-3, 400), "memory": np.geomspace(0.05, 1.0, 400)}


def main() -> None:
    path = Path(os.environ["MOESCALE_SHARED"]) / "data" / "measured_serving" / "points.csv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["model"]) == ("mi300x", "deepseek-r1")]
    rows = [row for row in rows if row["metric"] == "tpot_ms"]
    chosen_on = np.array([(row["prompt"], row["output"]) == CHOSEN_ON for row in rows])
    measured = np.array([float(row["measured"]) for row in rows]) / 1e3
    prompt, output = (NOMINAL * np.array([float(row[name]) for row in rows]) for name in ("prompt", "output"))
    clients, gpu = np.array([float(row["concurrency"]) for row in rows]), find_gpu("mi300x")
    model = find_shape("deepseek-v3").architecture
    usual = measured_constants()["default.fp8"].per_latent_layer_overhead_s
    plain = replace(constants_of(gpu, 1.0), per_iteration_overhead_s=0.0, per_latent_layer_overhead_s=usual)

    def log_ratio(name: str, value: float) -> np.ndarray:
        constants = replace(plain, per_latent_layer_overhead_s=value)
        if name == "memory":
            constants = replace(plain, **{key: value * getattr(plain, key) for key in MEMORY})
        source = Roofline(gpu, 1.0, 2.0, constants)
        seconds = source.decode_s(model, GPUS, clients, prompt + output / 2.0)
        return np.log((seconds + clients / output * source.prefill_s(model, GPUS, 1.0, prompt)) / measured)

    for name, values in VALUES.items():
        off = np.array([log_ratio(name, float(value))[chosen_on].mean() for value in values])
        value = float(values[np.argmin(np.abs(off))])
        ratio = log_ratio(name, value)
        for what, part in (("chosen on", chosen_on), ("judged by", ~chosen_on)):
            mean, spread = np.exp(ratio[part].mean()), np.exp(ratio[part].std())
            print(f"{name} {value:.4g}: {what} {part.sum()} rows, ratio {mean:.2f}, spread {spread:.2f}")


if __name__ == "__main__":
    main()

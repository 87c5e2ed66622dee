"""Draw docs/figures/: fits to examples/runs.csv and to the example sweep, the default plan, and what serving costs by size.

python scripts/draw_figures.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from moescale.cli import main as moescale
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.latency.silicon import Silicon
from moescale.planning.candidate import Costs, largest_models, serving_curves
from moescale.reproduction.world import as_in_the_paper
from moescale.scaling_laws import find_law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from moescale.views.figures import cost_figure, largest_figure, save_figure

FIGURES = Path("docs/figures")
SWEEP = (
    "cost", "--config", "examples/configs/mixtral-8x7b.json", "--gpu", "a100-sxm-80gb,h100-sxm", "--sweep",
    "--weights", "bf16", "--kv-cache", "bf16",
)  # fmt: skip
EXPERTS: FloatArray = np.exp2(np.arange(7.0))


def main() -> None:
    """Draw the figures; through the command line where there is a command, so that it is what a reader can type."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=FIGURES)
    folder: Path = parser.parse_args().output
    folder.mkdir(parents=True, exist_ok=True)
    for arguments in (
        ["fit", "examples/runs.csv", "--plot", str(folder / "fit.svg")],
        ["fit", "examples/stdlib-runs.csv", "--plot", str(folder / "stdlib.svg")],
        ["plan", "--budget", "5.15e21", "--plot", str(folder / "plan.svg")],
        [*SWEEP, "--plot", str(folder / "sweep.svg")],
    ):
        moescale(arguments)
    costs = paper_costs()
    save_figure(cost_figure(serving_curves(costs, EXPERTS, np.geomspace(1e8, 2e11, 600))), folder / "cost.svg")
    save_figure(largest_figure(largest_models(costs, EXPERTS, np.geomspace(0.01, 3.0, 300))), folder / "largest.svg")


def paper_costs() -> Costs:
    """The paper's family on its GPUs, ShareGPT traffic, latency from measured kernels."""
    gpu = find_gpu("a100-sxm-40gb")
    usd = price(gpu.name).usd_per_gpu_hour
    deployment = as_in_the_paper(Deployment(gpu=gpu, usd_per_gpu_hour=usd, prompt_tokens=230.0, output_tokens=203.0))
    return Costs(find_law("yun2024-recovered").family, Silicon(gpu), deployment, None)


if __name__ == "__main__":
    main()

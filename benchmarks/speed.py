"""The speed claims, measured: best of five, on the machine at hand.

    python benchmarks/speed.py

Prints a table: what, limit in seconds, best of five. Exits 1 if a limit is missed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PUBLIC = Path(__file__).parents[1] / "tests" / "data" / "public"
RUNS, DENSE_RUNS, ROUTED_RUNS = (
    PUBLIC / f"{name}.csv" for name in ("joint_moe_runs", "gemstones_cool", "routing_S-Base")
)
REPEATS = 5


PLAN = ("plan", "--budget", "5.15e21")  # with draws
COST = (
    "cost",
    "--config",
    "examples/configs/qwen3-30b-a3b.json",
    "--gpu",
    "h100-sxm",
    "--latency",
    "silicon",
    "--max-gpus",
    "128",
    "--json",
)


def best_of(action: Callable[[], object]) -> float:
    """Shortest wall-clock seconds of REPEATS calls."""
    times: list[float] = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def cold(*arguments: str) -> Callable[[], object]:
    """A fresh interpreter with these arguments."""
    return lambda: subprocess.run([sys.executable, *arguments], check=True, capture_output=True)


def warm_plan(gpu: str | None = None, latency: str | None = None) -> Callable[[], object]:
    """The default plan of 5.15e21 FLOPs in this process, after one call that warms it."""
    from moescale import BoundOptions, LawOptions, ServingOptions
    from moescale.options.planned import PlanRequest
    from moescale.options.serving import PLANNED_TPOT_S

    default, bounds = ServingOptions(), BoundOptions(budget=5.15e21)
    serving = ServingOptions(gpu=gpu or default.gpu, latency=latency or default.latency)
    law, deployment = LawOptions().find_law(), serving.deployment(usual_tpot_s=PLANNED_TPOT_S)
    asked = PlanRequest(bounds=bounds, deployment=deployment, latency=serving.open_latency(deployment))

    def call() -> object:
        return asked.plan_of_shape(law)

    call()
    return call


def warm_fit() -> Callable[[], object]:
    """A fit of routed runs by several forms, in this process, after one call that warms it."""
    from moescale import fit_runs, read_runs

    table = read_runs(ROUTED_RUNS)
    fit_runs(table)
    return lambda: fit_runs(table)


def burst_of_requests() -> Callable[[], object]:
    """A simulated burst of 1,000 requests of 1,000 and 200 tokens to one MoE server, its kernel tables read before."""
    from moescale.latency import kernels_alone
    from moescale.models.published import find_shape
    from moescale.options.cost import CostServingOptions
    from moescale.serving.engine import simulate
    from moescale.serving.workload import burst

    options = CostServingOptions(gpu="h100-sxm", prompt=1000, output=200)
    deployment, model = options.deployment(), find_shape("qwen3-30b-a3b").architecture
    source = kernels_alone(options.open_latency(deployment))

    def call() -> object:
        return simulate(model, source, deployment, 1, burst(1000)).answer()

    call()
    return call


def many_latencies() -> Callable[[], object]:
    """A million decode passes of the roofline: batches, contexts and GPU counts of one MoE model."""
    import numpy as np

    from moescale import Roofline, find_gpu
    from moescale.models.family import architecture, find_family

    model = architecture(find_family("yun2024"), 1.5e9, 16.0)
    rng = np.random.default_rng(0)
    batch, context = rng.uniform(1, 512, 10**6), rng.uniform(100, 4000, 10**6)
    gpus = rng.integers(1, 9, 10**6).astype(float)
    roofline = Roofline(find_gpu("h100-sxm"))
    return lambda: roofline.decode_s(model, gpus, batch, context)


def many_deployments(*, limited: bool) -> Callable[[], object]:
    """100,000 deployments in one call: 25 models x 8 GPU counts x 20 batch caps x 25 lengths; `limited` by latency."""
    from dataclasses import replace

    import numpy as np

    from moescale import Deployment, Roofline, find_gpu
    from moescale.models.family import architecture, find_family
    from moescale.serving.steady_state import serve

    sizes = np.geomspace(1e8, 5e9, 25).reshape(-1, 1, 1, 1)
    gpus = np.arange(1.0, 9.0).reshape(-1, 1, 1)
    caps = np.geomspace(1, 1024, 20).reshape(-1, 1)
    prompts = np.geomspace(50, 5000, 25)
    gpu = find_gpu("h100-sxm")
    deployment = Deployment(
        gpu=gpu, usd_per_gpu_hour=3.9, prompt_tokens=prompts, output_tokens=200.0, max_num_seqs=caps
    )
    if limited:
        deployment = replace(deployment, max_tpot_s=0.01, max_ttft_s=0.2)
    model = architecture(find_family("yun2024"), sizes, 16.0)

    def call() -> object:
        served = serve(model, gpus, Roofline(gpu), deployment)
        assert served.batch.size == 100_000
        return served

    return call


def many_servers(*, silicon: bool) -> Callable[[], object]:
    """100,000 ways to serve one model in one call: 8 GPU counts x 12,500 batches.

    The first call reads the kernel tables; it is not measured.
    """
    import numpy as np

    from moescale import Deployment, Roofline, Silicon, find_gpu, serve
    from moescale.models.family import architecture, find_family

    gpu = find_gpu("h100-sxm")
    model, source = architecture(find_family("yun2024"), 1.5e9, 16.0), Silicon(gpu) if silicon else Roofline(gpu)
    caps = np.linspace(1.0, 1042.0, 12_500)
    deployment = Deployment(
        gpu=gpu, usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0, max_num_seqs=caps, batching="largest"
    )

    def call() -> object:
        return serve(model, np.arange(1.0, 9.0)[:, None], source, deployment)

    call()
    return call


def main() -> int:
    """Measure, print, and say by the exit code whether every limit holds."""
    rows: list[tuple[str, float, Callable[[], object]]] = [
        ("import moescale, cold process", 0.3, cold("-c", "import moescale")),
        ("moescale plan, measured kernels, cold process", 1.0, cold("-m", "moescale", *PLAN)),
        ("the same as JSON, with what named laws say", 1.5, cold("-m", "moescale", *PLAN, "--json")),
        ("moescale plan, roofline, cold process", 2.0, cold("-m", "moescale", *PLAN, "--latency", "roofline")),
        ("moescale cost, 8 GPU counts, measured kernels, cold", 1.0, cold("-m", "moescale", *COST)),
        ("plan, measured kernels, warm", 0.3, warm_plan()),
        ("plan on h100-sxm, measured kernels, warm", 0.3, warm_plan("h100-sxm")),
        ("plan, roofline, warm", 0.3, warm_plan(latency="roofline")),
        ("fit_runs, 61 routed runs, warm", 1.0, warm_fit()),
        ("a burst of 1,000 requests, simulated, warm", 0.3, burst_of_requests()),
        ("roofline, 1,000,000 decode passes in process", 1.0, many_latencies()),
        ("serve, 100,000 deployments in one call", 0.1, many_deployments(limited=False)),
        ("the same with latency limits", 0.5, many_deployments(limited=True)),
        ("serve, 100,000 in one call, roofline", 0.2, many_servers(silicon=False)),
        ("the same with measured kernels", 1.0, many_servers(silicon=True)),
    ]  # fmt: skip
    arguments = ("fit", str(RUNS), "--size-column", "n_params_active", "--json")
    where = ("--where", "tokens / n_params_active >= 2")
    rows.insert(1, ("moescale fit of 234 public runs, cold process", 5.0, cold("-m", "moescale", *arguments, *where)))
    rows.insert(
        2,
        ("moescale fit of 199 dense runs, cold process", 1.0, cold("-m", "moescale", "fit", str(DENSE_RUNS), "--json")),
    )
    missed = 0
    print(f"{'what':<56} {'limit':>8} {'best of 5':>10}")
    for what, limit, action in rows:
        seconds = best_of(action)
        missed += seconds > limit
        print(f"{what:<56} {limit:>6.2f} s {seconds:>8.3f} s{'' if seconds <= limit else '  missed'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

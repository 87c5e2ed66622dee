"""The groups of options as a program uses them: checked, and the same question as on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import ROOT, answer_of
from moescale import BoundOptions, LawOptions, ServingOptions, make_plan
from moescale.errors import InputError
from moescale.options.cost import CostServingOptions, ModelOptions
from moescale.options.sweep import SweepOptions

ROOFLINE = ServingOptions(latency="roofline")


@pytest.mark.system
def test_a_program_asks_what_the_command_line_asks() -> None:
    bounds = BoundOptions(budget=5.15e21, experts="1,4,8", max_tokens=2e12, bootstrap=0)
    law, serving = LawOptions(law="yun2024-joint"), replace(ROOFLINE, gpu="h100-sxm", max_tpot=0.05)
    chosen, deployment = law.find_law(), serving.deployment()
    plan = make_plan(chosen, bounds.question(chosen, deployment, law), deployment, serving.open_latency(deployment))
    told = answer_of(
        *("plan", "--budget", "5.15e21", "--experts", "1,4,8", "--max-tokens", "2T", "--bootstrap", 0),
        *("--law", "yun2024-joint", "--latency", "roofline", "--gpu", "h100-sxm", "--max-tpot", "50ms"),
    )
    ours = json.loads(json.dumps(plan.to_dict()))
    assert ours == {name: told[name] for name in ours}


@pytest.mark.parametrize(
    ("group", "options", "place"),
    [
        (ServingOptions, {"max_gpus": 0}, "max_gpus"),
        (ServingOptions, {"memory_fraction": 1.5}, "memory_fraction"),
        (LawOptions, {"sparsity": -0.1}, "sparsity"),
        (BoundOptions, {"budget": float("nan")}, "budget"),
        (BoundOptions, {"budget": 1e21, "match_experts": 2.5}, "match_experts"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(group: type, options: dict[str, float], place: str) -> None:
    with pytest.raises(InputError, match=f"^{place}: must be "):
        group(**options)


def test_what_cannot_be_is_refused_at_its_option() -> None:
    with pytest.raises(InputError, match=r"^--gpu: unknown GPU 'h1000'"):
        ServingOptions(gpu="h1000").deployment()
    with pytest.raises(InputError, match=r"^--power-w: is required"):
        ServingOptions(capital_usd_per_gpu=3e4).deployment()
    with pytest.raises(InputError, match=r"^no.csv: no such file"):
        ServingOptions(trace=Path("no.csv")).deployment()
    with pytest.raises(InputError, match=r"^--convention: "):
        LawOptions(convention="nope").find_law()


def test_remarks_are_made_only_to_who_wants_them() -> None:
    said: list[str] = []
    deployment = ServingOptions(gpu="mi300x").deployment()
    for remark in ({}, {"remark": said.append}):
        assert ServingOptions().open_latency(deployment, **remark).name == "roofline"
    assert len(said) == 1
    assert said[0].startswith("roofline latency, because")


def test_a_sweep_of_ones_own_gpu_takes_the_price_of_its_file() -> None:
    model, _ = ModelOptions(n_params=1e9).model()
    serving = CostServingOptions(gpu=str(ROOT / "examples" / "gpus" / "tpu-v5e.toml"), latency="roofline")
    points = SweepOptions(sweep=True, sweep_batch="1,8", sweep_weights="bf16").points(model, serving)
    assert {platform.usd_per_gpu_hour for platform in points.platforms} == {1.2}

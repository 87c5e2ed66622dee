"""The groups of options as a program uses them: checked, and the same question as on the command line."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from command_line import answer_of
from moescale import BoundOptions, LawOptions, ServingOptions, make_plan
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import usd_per_gpu_hour
from moescale.models.published import shapes
from moescale.options.cost import CostServingOptions
from moescale.serving.deployment import Deployment
from moescale.serving.gpu_counts import cost

ROOFLINE = ServingOptions(latency="roofline")


@pytest.mark.system
def test_a_program_asks_what_the_command_line_asks() -> None:
    bounds = BoundOptions(train_gpus=256, days=2, mfu=0.4, experts="4,8", max_tokens=2e12, bootstrap=0)
    law, serving = LawOptions(shape="mixtral"), replace(ROOFLINE, gpu="h100-sxm", max_tpot=0.05)
    chosen, deployment = law.find_law(), serving.deployment()
    plan = make_plan(chosen, bounds.question(chosen, deployment, law), deployment, serving.open_latency(deployment))
    told = answer_of(
        *(
            "plan", "--train-gpus", 256, "--days", 2, "--mfu", 0.4, "--experts", "4,8", "--max-tokens", "2T",
            "--bootstrap", 0,
        ),
        *("--shape", "mixtral", "--latency", "roofline", "--gpu", "h100-sxm", "--max-tpot", "50ms"),
    )  # fmt: skip
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


def test_a_deployment_has_the_defaults_of_the_command_line() -> None:
    """Of `Deployment` alone: no engine, passes of their own for prompts, no search of groups; cap and reserve are those of the options."""
    gpu, model = find_gpu("h100-sxm"), shapes()["llama-3.1-8b"]
    alone = Deployment(gpu=gpu, usd_per_gpu_hour=usd_per_gpu_hour(gpu), prompt_tokens=230.0, output_tokens=203.0)
    served, priced = ServingOptions(gpu="h100-sxm").deployment(), CostServingOptions(gpu="h100-sxm").deployment()
    plain = {"engine": alone.engine, "scheduling": "separate", "host": alone.host, "searches_groups": False}
    assert replace(served, **plain) == replace(priced, **plain) == alone
    source = ServingOptions(gpu="h100-sxm").open_latency(served)
    found = cost(model, source, served)
    assert (found.reserve_bytes, found.limited_by) == (1.5 * 2**30, "max_num_seqs")
    told = answer_of("cost", "llama-3.1-8b", "--gpu", "h100-sxm")
    assert told["usd_per_mtok"] == found.usd_per_mtok
    # The cap is the GPU's own unless it is stated or lifted.
    asked = {None: 256.0, "none": math.inf, "7": 7.0}
    assert {cap: ServingOptions(max_num_seqs=cap).deployment().batch_cap for cap in asked} == asked
    spread = CostServingOptions(gpu="h200-sxm", attention_dp=8).deployment()
    assert spread.batch_cap == 8 * 1024  # each attention group is an engine


def test_remarks_are_made_only_to_who_wants_them() -> None:
    said: list[str] = []
    deployment = ServingOptions(gpu="mi300x").deployment()
    for remark in ({}, {"remark": said.append}):
        assert ServingOptions().open_latency(deployment, **remark).name == "roofline"  # pyright: ignore[reportArgumentType]
    assert len(said) == 1
    assert said[0].startswith("roofline latency, because")


def test_expert_counts_up_to_one_are_those_of_the_ladder() -> None:
    law = LawOptions(shape="mixtral").find_law()
    counts = [BoundOptions(experts=stated).expert_counts(law) for stated in ("<=16", "<= 16", "<=2000", "<=0.5e1")]
    assert counts == [(1, 4, 8, 16), (1, 4, 8, 16), BoundOptions().expert_counts(law), (1, 4)]
    with pytest.raises(InputError, match="--experts"):
        BoundOptions(experts="<=some").expert_counts(law)

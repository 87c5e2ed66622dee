"""Operating points: the same as one by one, never a dominated one in the Pareto set, and nothing dropped in silence."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import command_line
from families import PAPER
from moescale.errors import InfeasibleError, InputError
from moescale.hardware.gpus import find_gpu, gpus
from moescale.hardware.precisions import find_precision
from moescale.io.frames import as_numbers, as_texts, read_table
from moescale.latency import Pass, PassSource
from moescale.latency.roofline import Roofline
from moescale.models.architecture import Architecture
from moescale.models.family import architecture
from moescale.models.published import shapes
from moescale.runs.table import write_runs
from moescale.serving.deployment import Deployment, degrees
from moescale.serving.gpu_counts import cost
from moescale.serving.operating_points import (
    LeftOut,
    OperatingPoints,
    Platform,
    batch_grid,
    find_platforms,
    operating_points,
)
from moescale.serving.steady_state import LIMITS
from moescale.typing import FloatArray
from reference_data import ROOT

CONFIG = str(ROOT / "examples" / "configs" / "mixtral-8x7b.json")
MODEL = architecture(PAPER, 1.5e9, 16.0)
MIXTRAL = shapes()["mixtral-8x7b"]
PLAIN = Deployment(
    gpu=find_gpu("h100-sxm"), usd_per_gpu_hour=1.0, prompt_tokens=230.0, output_tokens=203.0, max_num_seqs=math.inf
)


def platform(gpu: str = "h100-sxm", weights: str = "bf16", cache: str = "bf16", usd: float = 3.9) -> Platform:
    card, formats = find_gpu(gpu), (find_precision("weights", weights), find_precision("kv_cache", cache))
    latency = Roofline(card, formats[0].bytes_per_element, formats[1].bytes_per_element)
    return Platform(gpu=card, usd_per_gpu_hour=usd, weights=formats[0], kv_cache=formats[1], latency=latency)


PLATFORMS = [platform(g, w, c) for g, w, c in product(("h100-sxm", "l40s"), ("bf16", "fp8", "int4"), ("bf16", "fp8"))]


@dataclass(frozen=True)
class UpTo(PassSource):
    """A roofline that knows no batch above `most`, as a table of measurements ends somewhere."""

    below: Roofline
    most: float
    name: str = "up to"

    def pass_s(self, model: Architecture, a: Pass) -> FloatArray:
        return np.where(
            np.asarray(0.0 if a.batch is None else a.batch) <= self.most, self.below.pass_s(model, a), np.nan
        )


deployments = st.builds(
    Deployment,
    gpu=st.just(PLAIN.gpu),
    usd_per_gpu_hour=st.just(1.0),
    prompt_tokens=st.floats(1, 5000),
    output_tokens=st.floats(1, 2000),
    max_gpus=st.integers(1, 8),
    max_num_seqs=st.one_of(st.none(), st.integers(1, 3000).map(float)),
    memory_fraction=st.floats(0.5, 1),
    utilization=st.floats(0.01, 1),
    reserve_bytes=st.floats(0, 3e9),
    replicas=st.sampled_from([1.0, 2.0, 3.0]),
    scheduling=st.sampled_from(["separate", "chunked"]),
    max_tpot_s=st.one_of(st.none(), st.floats(0.005, 0.5)),
    max_ttft_s=st.one_of(st.none(), st.floats(0.02, 2)),
)
some_platforms = st.lists(st.sampled_from(PLATFORMS), min_size=1, max_size=4, unique_by=lambda p: p.name)
caps_lists = st.one_of(st.none(), st.lists(st.integers(1, 5000), min_size=1, max_size=6))
ways_lists = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=3, unique=True)


def looked_at(
    deployment: Deployment,
    kinds: Sequence[Platform],
    caps: Sequence[int] | None = None,
    ways: Sequence[int] = (1,),
    model: Architecture = MODEL,
) -> OperatingPoints | None:
    """The points, or None where there are none."""
    try:
        return operating_points(model, kinds, deployment, batch_caps=caps, expert_parallel=ways)
    except InfeasibleError:
        return None


def alone(points: OperatingPoints, i: int) -> Deployment:
    """The deployment of one point, by itself."""
    kind = points.platforms[points.platform[i]]
    return replace(
        points.deployment,
        gpu=kind.gpu,
        usd_per_gpu_hour=kind.usd_per_gpu_hour,
        weight_bytes_per_param=kind.weights.bytes_per_element,
        kv_bytes_per_element=kind.kv_cache.bytes_per_element,
        max_num_seqs=float(points.max_num_seqs[i]),
        expert_parallel=float(points.expert_parallel[i]),
    )


# Points.


@given(deployments, some_platforms, caps_lists, ways_lists, st.data())
def test_a_point_is_what_cost_says_alone(
    deployment: Deployment, kinds: list[Platform], caps: list[int] | None, ways: list[int], data: st.DataObject
) -> None:
    points = looked_at(deployment, kinds, caps, ways)
    if points is None:
        return
    i = data.draw(st.integers(0, len(points) - 1))
    one = cost(MODEL, points.platforms[points.platform[i]].latency, alone(points, i), int(points.tensor_parallel[i]))
    for name in ("usd_per_mtok", "batch", "tpot_s", "ttft_s", "prefill_s", "decode_s", "throughput_tok_s"):
        # Bisection for a latency limit ends within a millionth of a millionth, as the search of the array does.
        assert float(getattr(points, name)[i]) == pytest.approx(getattr(one, name), rel=1e-9, abs=1e-12), name
    assert (points.gpus[i], LIMITS[points.limited_by[i]]) == (one.gpus, one.limited_by)
    assert float(points.tok_s_per_user[i]) == pytest.approx(1.0 / (one.tpot_s or 0.0), rel=1e-9)
    assert float(points.weight_bytes_per_gpu[i]) == one.weight_bytes_per_gpu


@given(deployments, some_platforms, caps_lists)
def test_batch_throughput_and_time_grow_with_the_cap(
    deployment: Deployment, kinds: list[Platform], caps: list[int] | None
) -> None:
    points = looked_at(deployment, kinds, caps)
    if points is None:
        return
    for place, count in product(range(len(kinds)), degrees(deployment)):
        mine = (points.platform == place) & (points.tensor_parallel == count)
        batch, cap, tpot_s = points.batch[mine], points.max_num_seqs[mine], points.tpot_s[mine]
        assert np.all(np.diff(cap) > 0)
        assert np.all(np.diff(batch) > 0)  # a cap that changes nothing is no point
        assert np.all(batch <= cap)
        assert np.all(np.diff(tpot_s) >= -1e-12 * tpot_s[1:])
        assert np.all(batch[:-1] == cap[:-1])  # only the last may be limited by anything else
    if deployment.max_num_seqs is not None:
        assert points.max_num_seqs.max() <= deployment.max_num_seqs


@given(deployments, some_platforms, caps_lists, ways_lists)
def test_no_pareto_point_is_dominated_and_all_others_are(
    deployment: Deployment, kinds: list[Platform], caps: list[int] | None, ways: list[int]
) -> None:
    points = looked_at(deployment, kinds, caps, ways)
    if points is None:
        return
    usd, tpot_s = points.usd_per_mtok, points.tpot_s
    as_good = (usd[:, None] <= usd) & (tpot_s[:, None] <= tpot_s)  # row no worse than column in both
    better = as_good & ((usd[:, None] < usd) | (tpot_s[:, None] < tpot_s))
    on_front = np.isin(np.arange(len(points)), points.pareto)
    assert not np.any(better[:, on_front])
    assert np.all(as_good[on_front].any(axis=0))
    assert np.all(np.diff(tpot_s[points.pareto]) > 0)
    assert np.all(np.diff(usd[points.pareto]) < 0)
    for place in range(len(kinds)):
        mine = points.platform == place
        own = points.frontier(mine)
        assert np.all(mine[own])
        assert not np.any(better[np.ix_(mine, np.isin(np.arange(len(points)), own))])
        assert not np.any(better[np.ix_(own, points.pareto)])


@given(st.floats(1, 1e7), st.one_of(st.just(math.inf), st.integers(1, 10**7).map(float)))
def test_the_grid_of_batches_reaches_what_fits(most: float, cap: float) -> None:
    grid = batch_grid(most, cap)
    assert grid[0] == 1
    assert grid[-1] <= cap
    assert grid[-1] >= min(most, cap)
    assert grid.size < 3 or grid[-2] < min(most, cap)
    assert np.all(grid == np.floor(grid))
    assert np.all((np.diff(grid) > 0) & (grid[1:] <= 2 * grid[:-1]))


# What has no answer.


def test_a_batch_beyond_the_source_is_left_out_and_said() -> None:
    card = find_gpu("h100-sxm")
    kind = replace(platform(), latency=UpTo(Roofline(card), 100.0))
    points = operating_points(MODEL, [kind], PLAIN, gpus=[1, 2])
    assert points.batch.max() == 96
    said = [(e.gpu, e.weights, e.kv_cache, e.gpus, e.max_num_seqs) for e in points.left_out]
    assert said == [("h100-sxm", "bf16", "bf16", count, 128) for count in (1, 2)]
    assert "latency source has no answer" in points.left_out[0].reason
    with pytest.raises(InfeasibleError, match="h100-sxm, bf16 weights, bf16 cache: the latency source has no answer"):
        operating_points(MODEL, [kind], PLAIN, gpus=[1], batch_caps=[128])


def test_what_does_not_fit_is_left_out_for_each_platform_and_heads_once() -> None:
    kinds = [platform("h100-sxm", "bf16"), platform("h100-sxm", "fp8")]
    points = operating_points(MIXTRAL, kinds, PLAIN, gpus=[1, 2, 3, 4], expert_parallel=[1, 2])
    heads = [e for e in points.left_out if e.gpu is None]
    assert [(e.gpus, "32 attention heads" in e.reason) for e in heads] == [(3, True)]
    memory = [e for e in points.left_out if e.gpu is not None]
    assert [(e.weights, e.gpus, "weights take 93.4 GB" in e.reason) for e in memory] == [("bf16", 1, True)]
    assert {(int(g), int(w)) for g, w in zip(points.gpus, points.expert_parallel, strict=True)} == {
        (1, 1), (2, 1), (4, 1), (2, 2), (4, 2),
    }  # fmt: skip
    impossible = operating_points(MIXTRAL, kinds, replace(PLAIN, max_gpus=2), expert_parallel=[1, 3])
    assert [(e.expert_parallel, "over 3 GPUs" in e.reason) for e in impossible.left_out if e.expert_parallel] == [
        (3, True)
    ]


@given(deployments, some_platforms, caps_lists)
def test_every_gpu_count_has_points_or_a_reason(
    deployment: Deployment, kinds: list[Platform], caps: list[int] | None
) -> None:
    points = looked_at(deployment, kinds, caps, model=MIXTRAL)
    if points is None:
        return
    replicas = int(np.asarray(deployment.replicas))
    served = set(zip(points.platform.tolist(), points.gpus.tolist(), strict=True))
    for place, each in product(range(len(kinds)), degrees(deployment)):
        kind, count = kinds[place], each * replicas
        reasons = [
            e
            for e in points.left_out
            if e.gpus == count
            and e.gpu in (None, kind.gpu.name)
            and e.weights in (None, kind.weights.name)
            and e.kv_cache in (None, kind.kv_cache.name)
        ]
        assert ((place, count) in served) != bool(reasons)
        assert all(e.reason for e in reasons)


def test_platforms_without_price_or_kernels_are_left_out_with_their_reason() -> None:
    both = [find_precision("weights", name) for name in ("bf16", "fp8")]
    cache = [find_precision("kv_cache", "bf16")]

    def free() -> float:
        return 2.0

    def unknown() -> float:
        raise InputError("no price")

    def source(deployment: Deployment) -> Roofline:
        if deployment.gpu.name == "l4" or (deployment.gpu.name == "l40s" and deployment.weight_bytes_per_param == 1.0):
            raise InfeasibleError("not measured")
        return Roofline(deployment.gpu, float(deployment.weight_bytes_per_param))

    cards = gpus()
    asked = [(cards["h100-sxm"], free), (cards["l40s"], free), (cards["l4"], free), (cards["mi300x"], unknown)]
    found, left_out = find_platforms(asked, both, cache, source, PLAIN)
    assert [(p.gpu.name, p.weights.name) for p in found] == [
        ("h100-sxm", "bf16"),
        ("h100-sxm", "fp8"),
        ("l40s", "bf16"),
    ]
    assert [e.to_dict() for e in left_out] == [
        {"reason": "not measured", "gpu": "l40s", "weights": "fp8", "kv_cache": "bf16"},
        {"reason": "not measured", "gpu": "l4"},
        {"reason": "no price", "gpu": "mi300x"},
    ]
    assert operating_points(MODEL, found, PLAIN, gpus=[1], left_out=left_out).left_out[:3] == left_out
    with pytest.raises(InputError, match="no price"):
        find_platforms(asked[-1:], both, cache, source, PLAIN)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"gpus": [0]}, "gpus: takes whole numbers"),
        ({"gpus": []}, "gpus: takes whole numbers"),
        ({"gpus": [1.5]}, "gpus: takes whole numbers"),
        ({"gpus": [2048]}, "GPU counts must be"),
        ({"expert_parallel": [math.nan]}, "expert_parallel: takes whole numbers"),
        ({"batch_caps": [0.5, 2]}, "batch_caps: caps of the batch must be finite and at least 1"),
        ({"batch_caps": []}, "batch_caps: caps"),
        ({"batch_caps": [math.inf]}, "batch_caps: caps"),
        ({"batch_caps": np.arange(1.0, 300_000.0), "gpus": [1, 2]}, "599,998 configurations, more than 500,000"),
    ],
)
def test_impossible_sweeps_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        operating_points(MODEL, [platform()], PLAIN, **arguments)


def test_no_platform_is_no_answer() -> None:
    with pytest.raises(InfeasibleError, match="h1: none"):
        operating_points(MODEL, [], PLAIN, left_out=[LeftOut(reason="none", gpu="h1")])


# Columns and records.


def test_columns_are_written_and_read_back(tmp_path: Path) -> None:
    points = operating_points(MODEL, PLATFORMS[:4], replace(PLAIN, replicas=2.0), gpus=[1, 3], batch_caps=[1, 7, 64])
    columns = points.columns()
    for suffix in (".csv", ".parquet"):
        read = read_table(write_runs(columns, tmp_path / f"points{suffix}")).columns
        assert list(read) == list(columns)
        for name in ("gpus", "max_num_seqs", "usd_per_mtok", "tpot_s", "tok_s_per_user"):
            np.testing.assert_array_equal(as_numbers(read[name])[0], columns[name].astype(float))
        assert as_texts(read["weights"]).tolist() == columns["weights"].tolist()
    assert set(columns["gpus"].tolist()) == {2, 6}
    assert np.flatnonzero(columns["pareto"]).tolist() == sorted(points.pareto.tolist())


def test_records_are_json_and_the_pareto_set_is_among_them() -> None:
    points = operating_points(MODEL, PLATFORMS, PLAIN, gpus=[1, 2])
    told = json.loads(json.dumps(points.to_dict(), allow_nan=False))
    assert len(told["points"]) == len(points)
    assert [p for p in told["points"] if p["pareto"]] == sorted(told["pareto"], key=told["points"].index)
    assert all(a["tpot_s"] < b["tpot_s"] and a["usd_per_mtok"] > b["usd_per_mtok"] for a, b in pairwise(told["pareto"]))
    assert {p["latency_source"] for p in told["points"]} == {"roofline"}
    assert told["n_configurations"] == points.n_configurations >= len(points)


# The command line.


def run(*arguments: object) -> command_line.Answer:
    return command_line.run("cost", *arguments)


# What limits the batch of one deployment.


@pytest.mark.parametrize(
    ("limits", "which", "words"),
    [
        ({"max_tpot_s": 0.01}, "max_tpot", "TPOT limit"),
        ({"max_ttft_s": 0.02}, "max_ttft", "TTFT limit"),
        ({"max_tpot_s": 0.01, "max_ttft_s": 10.0}, "max_tpot", "TPOT limit"),
        ({"max_tpot_s": 10.0, "max_ttft_s": 0.02}, "max_ttft", "TTFT limit"),
        ({"max_tpot_s": 10.0, "max_ttft_s": 20.0}, None, "memory"),
    ],
)
def test_cost_says_which_latency_limit_binds(limits: dict[str, float], which: str | None, words: str) -> None:
    found = cost(MODEL, Roofline(PLAIN.gpu), replace(PLAIN, **limits), 1)
    assert (found.latency_limit, found.limited_by) == (which, "latency" if which else "memory")
    taken = {"max_tpot": found.tpot_s, "max_ttft": found.ttft_s}
    if which is not None:
        assert taken[which] == pytest.approx(limits[f"{which}_s"], rel=1e-6)
    options = [f"--{name[:-2].replace('_', '-')}={value}" for name, value in limits.items()]
    model = ("--n-params", "1.5B", "--experts", 16, "--latency", "roofline", "--gpu", "h100-sxm", "--gpus", 1)
    code, out, _ = run(*model, *options, "--reserve", 0, "--max-num-seqs", "none")
    assert code == 0
    assert out.splitlines()[-1].removesuffix("<- cheapest").strip().endswith(words)

"""Predictions beside measurements: the gate on a fixed sample, the bands beside an answer, the page and its stored scores."""

from __future__ import annotations

import csv
import importlib.resources
import json
import math
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import LOWEST, run
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.published import find_shape
from moescale.options import priced
from moescale.planning import plan
from moescale.planning.plan_file import read_plan
from moescale.serving import accuracy
from moescale.serving.accuracy import accuracy_of, kind_of, kind_of_served
from moescale.serving.deployment import Deployment
from script_modules import ROOT, imported, load_script, needs_package

DRIFT = 0.05  # of a geometric mean from the stored one; a change on purpose comes with scores stored anew

document = load_script("scripts/document_accuracy.py")
serving_rows, serving_predictions, serving_scores = map(
    imported, ("serving_rows", "serving_predictions", "serving_scores")
)


def deployment(**changes: Any) -> Deployment:
    usual = {"gpu": find_gpu("h100-sxm"), "usd_per_gpu_hour": 1.0, "prompt_tokens": 512.0, "output_tokens": 256.0}
    return Deployment(**(usual | changes))


def drifted(stored: dict[tuple[str, ...], Any], found: list[Any]) -> list[str]:
    """Kinds and metrics whose geometric mean on the sample is not the stored one."""
    now = {(one.name, one.metric): one.geometric_mean for one in found}
    before = {
        (one.name, one.metric): one.geometric_mean for one in stored.values() if one.level == serving_scores.SAMPLE
    }
    return [
        f"{kind}, {metric}: {before.get((kind, metric), math.nan):.3f} -> {now.get((kind, metric), math.nan):.3f}"
        for kind, metric in sorted(before.keys() | now.keys())
        if not abs(math.log(now.get((kind, metric), math.nan) / before.get((kind, metric), math.nan))) <= DRIFT
    ]


@pytest.mark.fuzz
@needs_package
@pytest.mark.system
@pytest.mark.parametrize(
    "kinds", [("dense fp8", "MoE fp8", "latent MoE fp8"), pytest.param((), marks=pytest.mark.fuzz, id="all")]
)
def test_predictions_are_as_far_from_measurements_as_the_stored_scores_say(kinds: tuple[str, ...]) -> None:
    """Whoever changes them on purpose runs scripts/document_accuracy.py --score, and looks at what moved."""
    rows = serving_scores.sample(serving_rows.read_package(serving_rows.DEVELOPMENT))
    rows = [row for row in rows if not kinds or serving_rows.kind(row.case) in kinds]
    found = serving_scores.compare(
        rows, serving_predictions.predict([row.case for row in rows], serving_predictions.Setting())
    )
    results = serving_scores.scores(found, ("kind",))
    assert sum(one.rows for one in results) >= 60
    stored = document.stored(document.NOW)
    assert drifted({key: one for key, one in stored.items() if not kinds or one.name in kinds}, results) == []


@needs_package
def test_the_sample_holds_every_kind_and_stays_the_same() -> None:
    rows = serving_rows.read_package(serving_rows.DEVELOPMENT)
    chosen = serving_scores.sample(rows)
    assert chosen == serving_scores.sample(list(reversed(rows)))[::-1]
    asked = {serving_rows.kind(row.case) for row in rows if row.case.not_in_words is None}
    assert {serving_rows.kind(row.case) for row in chosen} == asked


SHAPES = ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "gpt-oss-120b")
KINDS = ("dense fp8", "MoE fp8", "latent MoE fp8", "gpt-oss fp8")


@pytest.mark.parametrize(("shape", "kind"), list(zip(SHAPES, KINDS, strict=True)))
def test_a_kind_names_family_format_and_parallelism(shape: str, kind: str) -> None:
    model = find_shape(shape).architecture
    assert kind_of(model, "fp8") == kind
    assert kind_of(model, "fp8", attention_dp=8) == f"attention-DP {kind}"
    assert kind_of(model, "fp8", apart=True) == f"{kind}, prefill and decode apart"


@needs_package
@pytest.mark.system
def test_the_benchmark_and_the_product_name_kinds_alike() -> None:
    """Also where this version does not read a config, whose kind the benchmark tells from its text."""
    case = serving_rows.read_package(serving_rows.DEVELOPMENT)[0].case
    folder = importlib.resources.files("aiconfigurator_core") / "model_configs"
    names = [path.name.removesuffix("_config.json").replace("--", "/") for path in folder.iterdir()]
    judged = 0
    for name in (name for name in names if not name.endswith("hf_quant")):
        model = serving_rows._architecture(name)
        if model is None:
            continue
        one = replace(case, model=name, weights="fp8", not_in_words=None)
        told = serving_rows.kind(one)
        text = serving_rows._kind_of_text(one)
        assert told == kind_of(model, "fp8")
        assert told == text, name
        judged += 1
    assert judged > 10


def test_a_format_is_told_by_its_name_or_its_bytes() -> None:
    model = find_shape("llama-3.1-8b").architecture
    assert kind_of_served(model, deployment()) == "dense bf16"
    assert kind_of_served(model, deployment(weight_bytes_per_param=1.0)) == "dense fp8"
    assert kind_of_served(model, deployment(weights="nvfp4", weight_bytes_per_param=0.57)) == "dense nvfp4"
    assert kind_of_served(model, deployment(weight_bytes_per_param=1.37)) is None


def entries() -> list[dict[str, Any]]:
    kind: dict[str, Any] = {"kind": "dense bf16", "sets": 4, "spread": 1.2}
    return [
        kind | {"metric": "output_tok_s", "rows": 40, "geometric_mean": 0.9, "gpus": ["b200-sxm", "h100-sxm"]},
        kind | {"metric": "tpot", "rows": 39, "geometric_mean": 1.1},
        kind | {"metric": "output_tok_s", "rows": 30, "geometric_mean": 0.95, "gpu": "h100-sxm", "gpus": ["h100-sxm"]},
    ]


@needs_package
def test_the_band_of_the_gpu_comes_before_that_of_the_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    read = accuracy.catalogue.read
    stored = {"accuracy.toml": {"held_out": entries()}}
    monkeypatch.setattr(accuracy.catalogue, "read", lambda name: stored.get(name) or read(name))
    accuracy._held_out.cache_clear()
    try:
        model, source = find_shape("llama-3.1-8b").architecture, Silicon(find_gpu("h100-sxm"))
        narrow = accuracy_of(model, deployment(), source)
        assert (narrow.kind, narrow.n, narrow.geometric_mean, narrow.tpot) == ("dense bf16 on h100-sxm", 30, 0.95, None)
        wide = accuracy_of(model, deployment(gpu=find_gpu("h200-sxm")), source)
        assert wide.to_dict() == {
            "kind": "dense bf16", "n": 40, "geometric_mean": 0.9, "spread": 1.2, "sets": 4,
            "gpus": ["b200-sxm", "h100-sxm"], "tpot": {"n": 39, "geometric_mean": 1.1, "spread": 1.2},
        }  # fmt: skip
        assert accuracy_of(model, deployment(weight_bytes_per_param=1.0), source) is None
        assert accuracy_of(model, deployment(), Roofline(find_gpu("h100-sxm"))) is None
    finally:
        accuracy._held_out.cache_clear()


@pytest.mark.system
def test_every_answer_says_how_far_its_kind_lay_or_that_nothing_was_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("cost", "llama-3.1-8b", "--gpu", "h100-sxm", "--latency", "roofline")
    none = "Accuracy: unknown (no held-out measurements of dense bf16 with latency from roofline)"
    assert none in " ".join(run(*asked).out.split())
    assert "accuracy" not in json.loads(run(*asked, "--json").out)
    found = accuracy.Accuracy(
        kind="dense bf16", n=40, geometric_mean=0.9, spread=1.2, sets=4, gpus=("b200-sxm",),
        ttft=accuracy.Band(n=40, geometric_mean=1.5, spread=2.0),
    )  # fmt: skip
    monkeypatch.setattr(priced, "accuracy_of", lambda *_, **__: found)
    told = " ".join(run(*asked).out.split())
    assert (
        "Accuracy: predicted / measured throughput 0.90 (spread 1.20x), TTFT 1.50; 40 published points: dense bf16"
        in told
    )
    assert "dense bf16, none on h100-sxm" in told
    assert json.loads(run(*asked, "--json").out)["accuracy"] == found.to_dict()


def test_catalogue_page_and_tables_are_those_of_the_stored_scores() -> None:
    """Nothing is edited by hand: `python scripts/document_accuracy.py` writes all of them."""
    assert document.CATALOGUE.read_text(encoding="utf-8") == document.catalogue()
    assert (ROOT / "docs" / document.PAGE).read_text(encoding="utf-8") == document.page()
    for name, text in document.csvs().items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, name


def test_the_table_holds_every_stored_score_by_kind_and_says_which_miss_the_target() -> None:
    rows = list(csv.DictReader(document.csvs()["evidence/serving-accuracy.csv"].splitlines()))
    every = [row for row in rows if row["half"] == serving_rows.HELD_OUT]
    assert list(dict.fromkeys(row["version"] for row in every)) == [*document.HELD_OUT_VERSIONS]
    held_out = [row for row in every if row["version"] == document.VERSION]
    scored = document.stored(document.STORED[serving_rows.HELD_OUT][0]).values()
    assert len(held_out) == len(
        [one for one in scored if one.level in ("all", "kind") and one.metric in document.METRICS]
    )
    for row in held_out:
        near = row["metric"] == "ttft" or 0.9 <= float(row["ratio"]) <= 1.1
        share = float(row["within_2x" if row["metric"] == "ttft" else "within_25pct"])
        assert row["meets_target"] == ("" if row["kind"] == "all" else "yes" if near and share >= 0.8 else "no")
    missed = [row for row in held_out if row["meets_target"] == "no"]
    page = (ROOT / "docs" / document.PAGE).read_text(encoding="utf-8")
    for row in missed:  # none of them without its mark on the page
        (line,) = (line for line in page.splitlines() if line.startswith(f"| {row['kind']} | {row['sets']} | "))
        assert "**" in "".join(line.split("|")[4:][2 * list(document.METRICS).index(row["metric"]) :][:2])


def test_bands_come_from_the_half_set_aside_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    score = serving_scores.Score("package", "kind", "dense fp8", "output_tok_s", 3, 30, 0.97, 1.12, 0.9, 0.08)
    narrow = [
        replace(score, level="kind gpu", name="dense fp8 on h100-sxm"),
        replace(score, level="kind gpu", name="dense fp8 on b200-sxm", sets=1, geometric_mean=math.nan),
        replace(score, level="kind engine", name="dense fp8 with vllm"),
    ]
    facts = {"version": "0.2", "commit": "abc", "date": "today"}
    serving_scores.write_scores(tmp_path / document.NOW, [replace(score, geometric_mean=7.0), *narrow], {}, facts)
    assert tomllib.loads(document.catalogue()) == {}
    held_out = document.STORED[serving_rows.HELD_OUT][0]
    serving_scores.write_scores(tmp_path / held_out, [score, *narrow], {}, facts)
    read = tomllib.loads(document.catalogue())
    assert read["scored"] == facts
    band = {
        "kind": "dense fp8", "metric": "output_tok_s", "rows": 30, "sets": 3, "geometric_mean": 0.97, "spread": 1.12,
    }  # fmt: skip
    assert read["held_out"] == [
        band | {"gpus": ["b200-sxm", "h100-sxm"]},
        band | {"gpu": "h100-sxm", "gpus": ["h100-sxm"]},
        band | {"engine": "vllm", "gpus": ["b200-sxm", "h100-sxm"]},
    ]


@needs_package
@pytest.mark.system
def test_of_the_half_set_aside_kinds_alone_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tried with a few rows of the other half in its place."""
    rows = [row for row in serving_rows.read_package(serving_rows.DEVELOPMENT) if row.case.gpu == "h100_sxm"]
    rows = [row for row in serving_scores.sample(rows) if not serving_rows.is_moe(row.case.model)]
    asked: list[str] = []
    monkeypatch.setattr(serving_rows, "read_package", lambda which: asked.append(which) or rows)
    monkeypatch.setattr(document, "RESULTS", tmp_path)
    document.score(serving_rows.HELD_OUT)
    assert asked == [serving_rows.HELD_OUT]
    own, beside = document.STORED[serving_rows.HELD_OUT]
    assert document.facts(own)["half"] == serving_rows.HELD_OUT
    assert {one.level for one in document.stored(own).values()} == set(serving_scores.BY_KIND)
    assert {one.level for one in document.stored(beside).values()} == {"all", "kind"}
    assert not any(row.case.model in (tmp_path / own).read_text(encoding="utf-8") for row in rows)
    bands = tomllib.loads(document.catalogue())["held_out"]
    assert {band["kind"] for band in bands} <= {serving_rows.kind(row.case) for row in rows}
    assert all(band["sets"] >= serving_scores.LEAST_SETS for band in bands if "gpu" in band or "engine" in band)
    page = document.page()
    assert all(f"| {band['kind']} |" in page for band in bands)


@needs_package
@pytest.mark.system
def test_a_plan_states_the_error_of_its_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its screen and in its record, which is read as it was written."""
    asked = (*LOWEST, "--gpu", "h100-sxm", "--details")
    monkeypatch.setattr(plan, "accuracy_of", lambda *_, **__: None)
    none = "unknown (no held-out measurements of MoE models in this format with latency from the roofline)."
    assert f"Accuracy of serving cost: {none}" in " ".join(run(*asked).out.split())
    band = accuracy.Accuracy(
        kind="MoE bf16", n=12, geometric_mean=0.9, spread=1.2, sets=3, gpus=("h100-sxm",),
        tpot=accuracy.Band(n=12, geometric_mean=1.1, spread=1.1),
    )  # fmt: skip
    monkeypatch.setattr(plan, "accuracy_of", lambda *_, **__: band)
    told = " ".join(run(*asked).out.split())
    assert (
        "Accuracy of serving cost: predicted / measured throughput 0.90 (spread 1.20x), TPOT 1.10; 12 published points: MoE"
        in told
    )
    path = tmp_path / "plan.json"
    path.write_text(run(*asked, "--json").out, encoding="utf-8")
    assert json.loads(path.read_text(encoding="utf-8"))["accuracy"] == band.to_dict()
    assert read_plan(str(path)).accuracy == band


def test_a_calibrated_price_is_that_of_the_measured_throughput() -> None:
    found = accuracy_of(
        find_shape("qwen3-30b-a3b").architecture,
        deployment(weights="fp8", weight_bytes_per_param=1.0),
        Silicon(find_gpu("h100-sxm"), weight_bytes_per_param=1.0),
    )
    priced = accuracy.calibrated(2.0, found)
    assert priced.usd_per_mtok == pytest.approx(2.0 * found.geometric_mean)
    low, high = priced.interval
    assert math.log(high / low) == pytest.approx(2 * 1.6449 * math.log(found.spread), rel=1e-4)
    assert accuracy.calibrated(2.0, None) is None
    asked = ("cost", "qwen3-30b-a3b", "--gpu", "h100-sxm", "--gpus", "1", "--weights", "fp8", "--json")
    answer = json.loads(run(*asked).out)
    assert answer["calibrated"]["usd_per_mtok"] == pytest.approx(
        answer["usd_per_mtok"] * answer["accuracy"]["geometric_mean"]
    )

"""benchmarks/measured_servings.py: the split, what a row means, and the scores, on made-up rows."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from command_line import run
from script_modules import imported, load_script, needs_package

serving_rows, serving_predictions, serving_scores = map(
    imported, ("serving_rows", "serving_predictions", "serving_scores")
)

CASE = serving_rows.Case(
    model="qwen3-14b", gpu="h100-sxm", engine="vllm", weights="fp8", kv_cache="bf16", gpus=2, expert_parallel=1,
    prompt_tokens=1000.0, output_tokens=200.0, max_num_seqs=32.0,
)  # fmt: skip
POINT = {
    "id": "X-1", "model": "qwen3-14b", "gpu": "h100-sxm", "n_gpus": "2", "mapping": "TP2", "engine": "trt", "weights": "fp8",
    "kv": "fp8", "prompt": "1000", "output": "200", "concurrency": "32", "n_requests": "", "rate": "", "metric": "tpot_ms",
    "measured": "10", "source": "made up", "notes": "", "set": "made up", "flag": "",
}  # fmt: skip


def measured(value: float = 1.0, metric: str = "tpot", **changes: Any) -> Any:
    return serving_rows.Measured(replace(CASE, **changes), "made up", metric, value)


def test_the_split_is_the_one_that_was_committed() -> None:
    """Another rule would put rows that were looked at into the half that judges."""
    keys = [(f"model-{i}", "h100_sxm", "vllm", precision) for i in range(4) for precision in ("fp8", "")]
    assert [serving_rows.half(*key)[:3] for key in keys] == ["hel", "hel", "dev", "hel", "hel", "dev", "dev", "hel"]
    counted = Counter(serving_rows.half(f"m{i}", "s", "b", "p") for i in range(2000))
    assert abs(counted["development"] - 1000) < 100


def test_a_point_becomes_a_case() -> None:
    found = serving_rows.point(POINT)
    assert (found.case.engine, found.case.max_num_seqs, found.case.n_requests) == ("trtllm", 32.0, None)
    assert (found.metric, found.value) == ("tpot", 0.01)
    burst = serving_rows.point(POINT | {"concurrency": "burst", "n_requests": "500"}).case
    assert (burst.n_requests, burst.max_num_seqs) == (500, None)
    capped = serving_rows.point(POINT | {"concurrency": "max", "n_requests": "500", "notes": "max_num_seqs 300"}).case
    assert capped.max_num_seqs == 300
    short = serving_rows.point(POINT | {"notes": "no MTP; lengths 0.8-1.0 of nominal"}).case
    assert (short.prompt_tokens, short.output_tokens) == (900.0, 180.0)
    spread = serving_rows.point(POINT | {"mapping": "DEP2"}).case
    assert (spread.gpus, spread.attention_dp, spread.expert_parallel, spread.not_in_words) == (2, 2, 2, None)
    assert serving_rows.point(POINT | {"flag": "suspect"}) is None


def test_what_the_program_refuses_is_counted_with_its_reason() -> None:
    rows = [measured(weights="fp3"), measured(gpus=3), measured()]
    found = serving_scores.compare(
        rows, serving_predictions.predict([row.case for row in rows], serving_predictions.Setting("roofline"))
    )
    reasons = [one.reason for one in found]
    assert "fp3" in reasons[0]
    assert reasons[1] is not None
    assert reasons[2] is None


def test_predictions_are_what_the_command_answers(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(serving_rows.QWEN3_14B), encoding="utf-8")
    cases = [CASE, measured(gpus=4, max_num_seqs=7.0, prompt_tokens=3000.0).case]
    predictions = serving_predictions.predict(cases, serving_predictions.Setting("roofline"))
    for case in cases:
        answer = run(
            "cost", "--config", config, "--gpu", case.gpu, "--gpus", case.gpus, "--weights", case.weights, "--prompt",
            int(case.prompt_tokens), "--output", int(case.output_tokens), "--concurrency", int(case.max_num_seqs),
            "--latency", "roofline", "--json",
        )  # fmt: skip
        assert answer.code == 0, answer.err
        told = json.loads(answer.out)["closed_loop"]
        assert predictions[case]["median output_tok_s"] == pytest.approx(told["output_tok_s"])
        assert predictions[case]["tpot"] == pytest.approx(told["tpot_s"])
        assert predictions[case]["ttft"] == pytest.approx(told["ttft_s"])


@needs_package
def test_wide_attention_groups_decode_as_measured() -> None:
    """InferenceX, in aiconfigurator-core: DeepSeek-V3, nvfp4, 32 GB200 apart from prompts; 17, 24, 34 ms a token within 15%."""
    apart = load_script("scripts/document_accuracy.py").disaggregated
    wide = [row for row in apart.rows_of("development") if row["decode_attention_dp_size"] == "32"]
    found = apart.scored_rows(row for row in wide if row["osl"] == "8192" and row["decode_num_workers"])
    assert [round(one.ratio, 1) for one in found if one.measured.metric == "tpot"] == pytest.approx([1.0] * 3, abs=0.15)


def test_a_set_that_computes_faster_than_the_gpu_is_left_out() -> None:
    # 13.2 billion parameters at two FLOPs a token on two GPUs of 1979 TFLOP/s in fp8: at most 150,000 tokens a second, six for
    # each output token; 0.8 of that is plausible.
    fast, slow = measured(22_000.0, "output_tok_s"), measured(18_000.0, "output_tok_s", gpu="h200-sxm")
    assert serving_scores.implausible([slow]) == set()
    left_out = serving_scores.implausible([fast, slow])
    assert left_out == {fast.group}
    same_set = measured(0.01)
    answers = {row.case: {"tpot": 0.01, "output_tok_s": 1.0} for row in (fast, slow)}
    found = serving_scores.compare([fast, slow, same_set], answers, left_out)
    assert [one.reason is None for one in found] == [False, True, False]


def test_scores_are_read_as_they_were_written(tmp_path: Path) -> None:
    rows = [measured(2.0), measured(4.0, gpu="l40s"), measured(1.0, gpu="l40s", metric="ttft"), measured(gpus=3)]
    answers = {row.case: {"tpot": 2.0, "ttft": 2.0} for row in rows[:3]} | {rows[3].case: "no, said the program"}
    found = serving_scores.compare(rows, answers)
    results = serving_scores.scores(found, tuple(serving_scores.LEVELS))
    overall = next(one for one in results if one.level == "all" and one.metric == "tpot")
    assert (overall.sets, overall.rows) == (2, 2)
    assert overall.geometric_mean == pytest.approx(math.sqrt(0.5))
    path = tmp_path / "scores.csv"
    serving_scores.write_scores(path, results, serving_scores.refusals(found), {"version": "0"})
    again = serving_scores.read_scores(path)
    assert list(again) == [(one.source, one.level, one.name, one.metric) for one in results]
    assert again[serving_scores.key_of(overall)].geometric_mean == pytest.approx(overall.geometric_mean, rel=1e-3)
    assert "no, said the program" in path.read_text(encoding="utf-8")
    assert any("1.00 -> 1.00" in line or "0.71 -> 0.71" in line for line in serving_scores.common_sets(results, again))
    told = [one for one in results if math.isfinite(one.geometric_mean)]
    assert len(serving_scores.table(results, again)) == len(told) + 1
    assert {one.level for one in results if one not in told} == set(serving_scores.NARROWED)

"""benchmarks/package_engine.py: what the kernel package's own engine is asked, and how both are compared."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from script_modules import imported, load_script, needs_package

document = load_script("scripts/document_accuracy.py")  # which finds the benchmarks
script = document.engine
serving_rows, serving_scores = map(imported, ("serving_rows", "serving_scores"))

CASE = serving_rows.Case(
    model="Qwen/Qwen3-32B", gpu="h100_sxm", engine="vllm", weights="fp8", kv_cache="bf16", gpus=2, expert_parallel=1,
    prompt_tokens=1000.0, output_tokens=200.0, max_num_seqs=16.0,
)  # fmt: skip


def rows(*ratios: float, **changes: object) -> list[object]:
    row = serving_rows.Measured(replace(CASE, **changes), "made up", "tpot", 1.0)
    return [serving_scores.Scored(row, ratio, "refused" if math.isnan(ratio) else None) for ratio in ratios]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"not_in_words": "no concurrency stated"}, "no concurrency stated"),
        ({"n_requests": 500}, "a burst"),
        ({"model": "made/up"}, "no config.json of made/up at hand"),
        pytest.param({"gpu": "mi300x"}, "no tables of the GPU", marks=needs_package),
        pytest.param({"weights": "fp3"}, "the engine refuses: no kernels of the format", marks=needs_package),
    ],
)
def test_what_the_engine_is_not_asked_is_counted_with_its_reason(changes: dict[str, object], reason: str) -> None:
    case = replace(CASE, **changes)
    assert script.predict([case])[case] == reason


@needs_package
def test_the_checkpoints_own_modes_come_first_where_they_are_of_the_rows_format() -> None:
    own, stated = (None, None), [("fp8", "fp8"), ("fp8", "fp8_block"), ("fp8_block", "fp8_block")]

    def modes(**changes: object) -> list[tuple[str | None, str | None]]:
        return list(dict.fromkeys(tried[:2] for tried in script._modes(replace(CASE, **changes))))

    assert modes() == stated  # the checkpoint is in bf16
    assert modes(weights="bf16") == [own, ("bfloat16", "bfloat16")]
    assert modes(model="deepseek-ai/DeepSeek-V3", engine="sglang") == [own, *stated]
    assert modes(model="openai/gpt-oss-120b", weights="mxfp4")[0] == own
    assert modes(model="deepseek-ai/DeepSeek-V3", weights="nvfp4") == [("nvfp4", "nvfp4")]


@needs_package
@pytest.mark.system
def test_a_closed_loop_is_answered_in_seconds() -> None:
    cases = [replace(CASE, max_num_seqs=float(clients)) for clients in (1, 16, 64)]
    found = script.predict(cases)
    answers = [found[case] for case in cases]
    for case, answer in zip(cases, answers, strict=True):
        loop_s = answer["ttft"] + (case.output_tokens - 1) * answer["tpot"]
        assert answer["e2e"] == pytest.approx(loop_s)
        assert answer["output_tok_s"] == pytest.approx(case.max_num_seqs * case.output_tokens / loop_s, rel=0.15)
    # 32 billion weights of a byte on two GPUs of 3.35 TB/s: 5 ms a token at least.
    assert 5e-3 < answers[0]["tpot"] < answers[1]["tpot"] < answers[2]["tpot"] < 0.1


def test_both_are_scored_on_the_rows_that_both_answer() -> None:
    ours, theirs = rows(2.0, math.nan, 1.0, 1.0), rows(1.0, 1.0, math.nan, 4.0)
    ((a, b),) = [pair for pair in script.beside(ours, theirs) if pair[0].level == "kind"]
    assert (a.rows, b.rows) == (2, 2)
    assert (a.geometric_mean, b.geometric_mean) == pytest.approx((math.sqrt(2.0), 2.0))
    alone = {who: n for (_, _, who), n in script.alone(ours, theirs).items()}
    assert alone == {script.ENGINE_ALONE: 1, script.OURS_ALONE: 1}
    (line,) = [line for line in script.table(script.beside(ours, theirs))[1:] if "dense fp8" in line]
    assert "behind" not in line


def test_a_kind_with_the_larger_median_error_is_behind() -> None:
    (_, line) = script.table([pair for pair in script.beside(rows(2.0), rows(1.5)) if pair[0].level == "kind"])
    assert line.endswith("behind")

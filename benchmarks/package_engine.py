"""The kernel package's own engine on the measured servings, beside this version's predictions.

`python benchmarks/package_engine.py [--held-out] [--mode silicon] [--output CSV]`

Rows, sets, halves and scores are those of measured_servings.py. The engine is aiconfigurator_core's continuous batching,
`run_agg` of its backends, asked in the words of its SDK. What a row does not say was settled here before any score of it:

- The configuration is the package's copy of the model's config.json. Modes of the number formats: those that the package
  reads from the checkpoint where they are of the row's format, else the modes of that name in the order of MODES; the
  cache as the row's case has it, else as the package takes it; attention's as the package takes it, else bfloat16. The
  first that its tables answer (mode SILICON) counts; where none does, the first that mode HYBRID answers, which scales
  rooflines. --mode silicon leaves the latter out.
- The version of an engine is the package's `current` one. A pass takes one prompt of context (ctx_tokens = prompt), as its
  vLLM backend describes; requests a group of attention: concurrency over attention_dp. Its verdict on memory is not
  asked: these servers ran.
- Bursts, servers that measured_servings.py has no words for, and GPUs without tables are counted, not asked.

Both are scored on the rows that both answer.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import serving_predictions
import serving_rows
import serving_scores
from serving_predictions import Prediction
from serving_rows import Case, Measured
from serving_scores import Score, Scored

# (matrix products, experts) by the name of a format; more than one in the order in which they are tried.
MODES: dict[str, tuple[tuple[str, str], ...]] = {
    "bf16": (("bfloat16", "bfloat16"),),
    "fp8": (("fp8", "fp8"), ("fp8", "fp8_block"), ("fp8_block", "fp8_block")),
    "nvfp4": (("nvfp4", "nvfp4"),),
    "mxfp4": (("bfloat16", "w4a16_mxfp4"), ("bfloat16", "w4a8_mxfp4_mxfp8")),
    "int4": (("bfloat16", "int4_wo"), ("int4_wo", "int4_wo")),
}
CACHES = {"bf16": "bfloat16", "fp8": "fp8"}
HYBRID, SILICON = "hybrid", "silicon"
FOLDER = tempfile.TemporaryDirectory(prefix="qwen3-14b-")  # for the one config that the package has no copy of


def predict(cases: Iterable[Case], mode: str = HYBRID) -> dict[Case, Prediction]:
    """What the package's engine answers for every case, or why it does not."""
    logging.getLogger("aiconfigurator_core").setLevel(logging.CRITICAL)
    return {case: _predict(case, mode) for case in dict.fromkeys(cases)}


def _predict(case: Case, mode: str) -> Prediction:
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu

    if case.not_in_words is not None:
        return case.not_in_words
    if case.n_requests is not None:
        return "a burst"
    if serving_rows.config(case.model) is None:
        return f"no config.json of {case.model} at hand"
    try:
        system = find_gpu(case.gpu).silicon_system
    except MoescaleError as error:
        return str(error.what)
    if system is None:
        return "no tables of the GPU"
    reason = "no kernels of the format"
    for database_mode in ("SILICON", "HYBRID")[: 1 if mode == SILICON else 2]:
        for modes in _modes(case):
            try:
                return _run(case, system, database_mode, modes)
            except Exception as error:  # it raises errors of every kind for shapes and formats that its tables lack
                reason = type(error).__name__
    return f"the engine refuses: {reason}"


def _modes(case: Case) -> Iterator[tuple[str | None, str | None, str | None, str | None]]:
    """Modes of matrix products, experts, cache and attention to try, in order; None: as the package reads them."""
    known = MODES.get(case.weights, ())
    own = _checkpoint_modes(_name(case.model), case.engine)
    stated: list[tuple[str | None, str | None]] = [*known]
    if own is not None and own[1 if serving_rows.is_moe(case.model) else 0] in {pair[1] for pair in known}:
        stated.insert(0, (None, None))
    for (gemm, moe), kv_cache, attention in product(stated, (CACHES.get(case.kv_cache), None), (None, "bfloat16")):
        yield gemm, moe, kv_cache, attention


@cache
def _checkpoint_modes(name: str, engine: str) -> tuple[str, str] | None:
    """What the package reads as modes of matrix products and experts; None where it does not read the model."""
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model

    try:
        found: Any = get_model(name, build_model_config(1, 1, 1, 1, 1), engine).config
    except Exception:
        return None
    return found.gemm_quant_mode.name, found.moe_quant_mode.name


@cache
def _name(model: str) -> str:
    """The name, or the folder, under which the package finds a model."""
    if model != "qwen3-14b":
        return serving_rows.CONFIGS.get(model, model)
    folder = str(FOLDER.name)
    content = {"architectures": ["Qwen3ForCausalLM"], "max_position_embeddings": 40960, **serving_rows.QWEN3_14B}
    Path(folder, "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


@cache
def _parts(
    name: str, engine: str, system: str, mode: str, split: tuple[int, int, int, int], modes: tuple[str | None, ...]
) -> tuple[Any, Any, Any]:
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.models import get_model
    from aiconfigurator_core.sdk.perf_database import get_database_view

    tp, attention_dp, moe_tp, moe_ep = split
    gemm, moe, kv_cache, attention = modes
    settings = build_model_config(
        tp, 1, attention_dp, moe_tp, moe_ep, gemm_quant_mode=gemm, moe_quant_mode=moe, kvcache_quant_mode=kv_cache,
        fmha_quant_mode=attention,
    )  # fmt: skip
    database = get_database_view(system, engine, "current", database_mode=mode)
    return get_backend(engine), get_model(name, settings, engine), database


def _run(case: Case, system: str, mode: str, modes: tuple[str | None, ...]) -> Prediction:
    from aiconfigurator_core.sdk.config import RuntimeConfig

    groups = getattr(case, "attention_dp", 1)
    split = (case.gpus // groups, groups, case.gpus // case.expert_parallel, case.expert_parallel)
    split = split if serving_rows.is_moe(case.model) else (*split[:2], 1, 1)
    backend, model, database = _parts(_name(case.model), case.engine, system, mode, split, modes)
    prompt, output = max(round(case.prompt_tokens), 1), max(round(case.output_tokens), 1)
    if case.max_num_seqs is None:
        raise ValueError("no concurrency")
    load = RuntimeConfig(batch_size=max(round(case.max_num_seqs / groups), 1), isl=prompt, osl=output)
    told = backend.run_agg(model, database, load, ctx_tokens=prompt).get_result_dict()
    units = {"output_tok_s": ("tokens/s", 1.0), "tpot": ("tpot", 1e-3), "ttft": ("ttft", 1e-3), "e2e": ("request_latency", 1e-3)}  # fmt: skip
    return {metric: float(told[name]) * unit for metric, (name, unit) in units.items()}


def both(ours: Sequence[Scored], theirs: Sequence[Scored]) -> tuple[list[Scored], list[Scored]]:
    """The rows of two lists of the same rows that have a ratio in both."""
    kept = [(a, b) for a, b in zip(ours, theirs, strict=True) if a.reason is None and b.reason is None]
    return [a for a, _ in kept], [b for _, b in kept]


ENGINE_ALONE, OURS_ALONE = "only the engine answers", "only this version answers"


def alone(ours: Sequence[Scored], theirs: Sequence[Scored]) -> dict[tuple[str, str, str], int]:
    """How many figures one of the two answers alone, by source, kind and which of them."""
    counted: dict[tuple[str, str, str], int] = {}
    for a, b in zip(ours, theirs, strict=True):
        if (a.reason is None) != (b.reason is None):
            key = (
                a.measured.source,
                serving_rows.kind(a.measured.case),
                ENGINE_ALONE if b.reason is None else OURS_ALONE,
            )
            counted[key] = counted.get(key, 0) + 1
    return dict(sorted(counted.items()))


def beside(ours: Sequence[Scored], theirs: Sequence[Scored]) -> list[tuple[Score, Score]]:
    """Scores by kind and metric on the rows that both answer: this version's, and the engine's."""
    a, b = both(ours, theirs)
    levels = ("all", "kind")
    return list(zip(serving_scores.scores(a, levels), serving_scores.scores(b, levels), strict=True))


def table(pairs: Iterable[tuple[Score, Score]]) -> list[str]:
    """A line for each kind and metric."""
    lines = [
        f"{'source':8s} {'kind':40s} {'metric':12s} {'sets':>4s} {'rows':>5s}   ours: ratio  error   engine: ratio  error"
    ]
    for a, b in pairs:
        worse = "  behind" if a.median_error > b.median_error else ""
        lines.append(
            f"{a.source:8s} {a.name:40s} {a.metric:12s} {a.sets:4d} {a.rows:5d} {a.geometric_mean:13.2f} {a.median_error:6.0%}"
            f" {b.geometric_mean:15.2f} {b.median_error:6.0%}{worse}"
        )
    return lines


def judge(
    rows: Sequence[Measured], setting: serving_predictions.Setting, mode: str
) -> tuple[list[Scored], list[Scored]]:
    """Every row beside this version's prediction, and beside the engine's."""
    left_out, cases = serving_scores.implausible(rows), [row.case for row in rows]
    return (
        serving_scores.compare(rows, serving_predictions.predict(cases, setting), left_out),
        serving_scores.compare(rows, predict(cases, mode), left_out),
    )


def main() -> int:
    """Print the scores; the exit code."""
    parser = argparse.ArgumentParser(description="The kernel package's own engine beside this version.")
    parser.add_argument("--src", type=Path, help="the src folder of the version to judge; default: the installed one")
    parser.add_argument("--held-out", action="store_true", help="score the half set aside, by kind only")
    parser.add_argument("--mode", choices=(HYBRID, SILICON), default=HYBRID)
    parser.add_argument("--output", type=Path, metavar="CSV", help="write the engine's scores, by kind")
    parser.add_argument("--rows", type=Path, metavar="CSV", help="write every row with the engine's ratio")
    asked = parser.parse_args()
    if asked.src is not None:
        sys.path.insert(0, str(asked.src.resolve()))
    if asked.held_out and asked.rows is not None:
        raise SystemExit("--held-out is scored by kind only: leave out --rows")
    which = serving_rows.HELD_OUT if asked.held_out else serving_rows.DEVELOPMENT
    rows = (
        serving_rows.read_package(which)
        if asked.held_out
        else serving_rows.read_points() + serving_rows.read_package(which)
    )
    ours, theirs = judge(rows, serving_predictions.Setting(), asked.mode)
    print("\n".join(table(beside(ours, theirs))))
    refused = serving_scores.refusals(theirs)
    print("\nFigures that one of them answers alone")
    for (source, name, who), n in alone(ours, theirs).items():
        print(f"{source:8s} {n:5d}  {name}: {who}")
    print("\nRows without an answer of the engine")
    for (source, name, reason), n in refused.items():
        print(f"{source:8s} {n:5d}  {name}: {reason}")
    if asked.output is not None:
        facts: Mapping[str, str] = serving_scores.about(which, serving_predictions.Setting()) | {"engine": asked.mode}
        serving_scores.write_scores(asked.output, serving_scores.scores(theirs, ("all", "kind")), refused, facts)
    if asked.rows is not None:
        serving_scores.write_rows(asked.rows, theirs)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Scores of predicted over measured servings: what is compared, how sets weigh, tables and files of scores."""

from __future__ import annotations

import csv
import datetime
import hashlib
import math
import subprocess
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from pathlib import Path

import numpy as np

from serving_predictions import Prediction, Setting
from serving_rows import Case, Measured, config, kind

PLAUSIBLE = (
    0.8  # of the data sheet's FLOPs: large products alone reach that, a server with attention and decoding does not
)
IMPLAUSIBLE = f"measured beyond {PLAUSIBLE:.0%} of the data sheet's arithmetic"


@dataclass(frozen=True, slots=True)
class Scored:
    """One measured figure beside its prediction: their ratio, or why there is none."""

    measured: Measured
    ratio: float  # predicted over measured; NaN where there is none
    reason: str | None = None


def implausible(rows: Iterable[Measured]) -> set[str]:
    """The sets with a row of more arithmetic than PLAUSIBLE of the data sheet's; formats without a data sheet pass."""
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu
    from moescale.models.hf_config import from_config
    from moescale.models.parameters import count_parameters

    found: set[str] = set()
    for row in rows:
        case, stated = row.case, config(row.case.model)
        if row.metric != "output_tok_s" or case.weights not in ("bf16", "fp8") or case.not_in_words or stated is None:
            continue
        try:
            gpu, model = find_gpu(case.gpu), from_config(stated)
            active = float(count_parameters(replace(model, vocab_size=0.0)).active)
        except MoescaleError:
            continue
        peak = gpu.bf16_flops_per_s if case.weights == "bf16" else gpu.fp8_flops_per_s or gpu.bf16_flops_per_s
        tokens_per_s = row.value * (1.0 + case.prompt_tokens / case.output_tokens)
        if 2.0 * active * tokens_per_s > PLAUSIBLE * peak * case.gpus:
            found.add(row.group)
    return found


def compare(
    rows: Iterable[Measured], predictions: Mapping[Case, Prediction], left_out: Container[str] = ()
) -> list[Scored]:
    """The ratio of every row, or the reason that there is none; the sets in `left_out` are implausible."""
    found: list[Scored] = []
    for row in rows:
        answer = IMPLAUSIBLE if row.group in left_out else predictions[row.case]
        if isinstance(answer, str):
            found.append(Scored(row, math.nan, answer))
            continue
        predicted = answer.get(row.metric, math.nan)
        if row.source == "points":
            predicted = answer.get(f"median {row.metric}", predicted)
        ratio = predicted / row.value if row.value > 0 else math.nan
        usable = math.isfinite(ratio) and ratio > 0
        found.append(Scored(row, ratio if usable else math.nan, None if usable else "no figure to compare"))
    return found


@dataclass(frozen=True, slots=True)
class Score:
    """The ratios of one slice of the rows and one metric."""

    source: str
    level: str  # of LEVELS, or SAMPLE
    name: str
    metric: str
    sets: int
    rows: int
    geometric_mean: float
    spread: float
    within_25pct: float
    median_error: float
    within_2x: float = math.nan  # NaN where it was not stored yet


def score(ratios_by_set: Mapping[str, Sequence[float]]) -> tuple[float, float, float, float, float]:
    """Geometric mean, spread, share within 25%, median |ratio - 1| and share within a factor 2, every set weighing the same."""
    logs = np.concatenate([np.log(np.asarray(ratios)) for ratios in ratios_by_set.values()])
    weights = np.concatenate([np.full(len(ratios), 1.0 / len(ratios)) for ratios in ratios_by_set.values()])
    weights /= np.sum(weights)
    mean = float(np.sum(weights * logs))
    spread = math.sqrt(float(np.sum(weights * (logs - mean) ** 2)))
    within, within_2x = (float(np.sum(weights[np.abs(logs) <= math.log(most) + 1e-12])) for most in (1.25, 2.0))
    errors = np.abs(np.exp(logs) - 1.0)
    order = np.argsort(errors)
    median = float(errors[order][np.searchsorted(np.cumsum(weights[order]), 0.5 - 1e-12)])
    return math.exp(mean), math.exp(spread), within, median, within_2x


@cache
def gpu_name(gpu: str) -> str:
    """The catalogue's name of a GPU; as the source has it where it has none."""
    from moescale.errors import MoescaleError
    from moescale.hardware.gpus import find_gpu

    try:
        return find_gpu(gpu).name
    except MoescaleError:
        return gpu


LEVELS: dict[str, Callable[[Measured], str]] = {
    "all": lambda row: "all",
    "kind": lambda row: kind(row.case),
    "kind gpu": lambda row: f"{kind(row.case)} on {gpu_name(row.case.gpu)}",
    "kind engine": lambda row: f"{kind(row.case)} with {row.case.engine}",
    "gpu": lambda row: row.case.gpu,
    "engine": lambda row: row.case.engine,
    "set": lambda row: row.group,
}


BY_KIND = ("all", "kind", "kind gpu", "kind engine")  # what may be told of the half set aside
NARROWED = ("kind gpu", "kind engine")
LEAST_SETS = 3  # of a narrowed kind; with fewer its rows are counted, and no figure is given


def scores(found: Iterable[Scored], levels: Sequence[str]) -> list[Score]:
    """The scores of every slice of `levels`, by metric; those of a narrowed kind of fewer than LEAST_SETS are NaN."""
    slices: dict[tuple[str, str, str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in (one for one in found if one.reason is None):
        row = one.measured
        for level in levels:
            slices[row.source, level, LEVELS[level](row), row.metric][row.group].append(one.ratio)
    untold = (math.nan,) * 5
    return [
        Score(
            *key,
            len(sets),
            sum(len(ratios) for ratios in sets.values()),
            *(untold if key[1] in NARROWED and len(sets) < LEAST_SETS else score(sets)),
        )
        for key, sets in sorted(slices.items(), key=lambda item: (item[0][0], levels.index(item[0][1]), item[0][2:]))
    ]


SAMPLE = "sample"
SAMPLED = 4  # cases of a kind


def sample(rows: Iterable[Measured]) -> list[Measured]:
    """The rows of the SAMPLED cases of each kind whose SHA-256 is smallest: a fixed few, for a quick look at all kinds."""
    rows = [row for row in rows if row.source == "package" and row.case.not_in_words is None]
    keys: dict[str, dict[str, None]] = defaultdict(dict)
    for row in rows:
        keys[kind(row.case)][_digest(row.case)] = None
    chosen = {digest for digests in keys.values() for digest in sorted(digests)[:SAMPLED]}
    return [row for row in rows if _digest(row.case) in chosen]


def _digest(case: Case) -> str:
    c = case
    key = (c.model, c.gpu, c.engine, c.weights, c.gpus, c.prompt_tokens, c.output_tokens, c.max_num_seqs)
    return hashlib.sha256("|".join(map(str, key)).encode()).hexdigest()


def sample_scores(found: Iterable[Scored]) -> list[Score]:
    """The scores of the sample by kind, at the level SAMPLE."""
    found = list(found)
    chosen = set(sample(one.measured for one in found))
    return [replace(one, level=SAMPLE) for one in scores((one for one in found if one.measured in chosen), ("kind",))]


def refusals(found: Iterable[Scored]) -> dict[tuple[str, str, str], int]:
    """How many rows have no ratio, by source, kind and reason, most first."""
    counted: dict[tuple[str, str, str], int] = defaultdict(int)
    for one in found:
        if one.reason is not None:
            counted[one.measured.source, kind(one.measured.case), one.reason] += 1
    return dict(sorted(counted.items(), key=lambda item: (item[0][0], -item[1])))


# What is written.


def table(results: Iterable[Score], before: Mapping[tuple[str, ...], Score] | None = None) -> list[str]:
    """A line for each score; with `before`, the former geometric mean and error beside it."""
    head = f"{'source':8s} {'slice':58s} {'metric':12s} {'sets':>4s} {'rows':>5s} {'ratio':>6s} {'spread':>6s} {'in 25%':>6s} {'error':>6s}"
    lines = [head + ("   before: rows  ratio  error" if before is not None else "")]
    for one in (one for one in results if math.isfinite(one.geometric_mean)):
        name = one.name if one.level in ("all", "set", *NARROWED) else f"{one.level} {one.name}"
        line = (
            f"{one.source:8s} {name:58s} {one.metric:12s} {one.sets:4d} {one.rows:5d} {one.geometric_mean:6.2f} "
            f"{one.spread:6.2f} {one.within_25pct:6.0%} {one.median_error:6.0%}"
        )
        old = None if before is None else before.get(key_of(one))
        if before is not None:
            line += (
                "            -"
                if old is None
                else f"          {old.rows:5d} {old.geometric_mean:6.2f} {old.median_error:6.0%}"
            )
        lines.append(line)
    return lines


def common_sets(now: Iterable[Score], before: Mapping[tuple[str, ...], Score]) -> list[str]:
    """Geometric mean and mean |ln| over the sets that both versions answer with the same number of rows."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for one in now:
        old = before.get(key_of(one))
        if one.level == "set" and old is not None and old.rows == one.rows:
            pairs[one.source, one.metric].append((math.log(old.geometric_mean), math.log(one.geometric_mean)))
    lines = ["Sets answered by both with as many rows: geometric mean, and exp of the mean |ln| of the sets' means"]
    for (source, metric), logs in sorted(pairs.items()):
        old, new = np.asarray(logs).T
        lines.append(
            f"{source:8s} {metric:12s} {len(logs):3d} sets: {math.exp(old.mean()):.2f} -> {math.exp(new.mean()):.2f}, "
            f"{math.exp(np.abs(old).mean()):.2f} -> {math.exp(np.abs(new).mean()):.2f}"
        )
    return lines


def key_of(one: Score) -> tuple[str, ...]:
    return one.source, one.level, one.name, one.metric


def about(which: str, setting: Setting) -> dict[str, str]:
    """What made these scores: the version, its commit, the day, the half and the settings."""
    import moescale

    def git(*words: str) -> str:
        where = Path(moescale.__file__).parent
        return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=False).stdout.strip()

    # The last commit that changed the package, not one of this script or of a page.
    changed = " with changes" if git("status", "--porcelain", ".") else ""
    commit = (git("log", "-1", "--format=%H", "--", ".") or "unknown") + changed
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    facts = {"version": moescale.__version__, "commit": commit, "date": day, "half": which}
    return facts | {name: value or "default" for name, value in asdict(setting).items()}


def write_scores(
    path: Path, results: Iterable[Score], refused: Mapping[tuple[str, str, str], int], facts: Mapping[str, str]
) -> None:
    """The scores as CSV, after a line of facts; refused rows have the level `refused` and their reason for a metric."""
    names = [field.name for field in fields(Score)]
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write("# " + ", ".join(f"{name} {value}" for name, value in facts.items()) + "\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(names)
        for one in results:
            values = asdict(one)
            writer.writerow(f"{value:.4g}" if isinstance(value := values[name], float) else value for name in names)
        for (source, name, reason), n in refused.items():
            writer.writerow([source, "refused", name, reason, "", n, "", "", "", "", ""])


def read_scores(path: Path) -> dict[tuple[str, ...], Score]:
    """The scores that `write_scores` wrote."""
    with path.open(newline="", encoding="utf-8") as file:
        lines = [line for line in file if not line.startswith("#")]
    found = [
        Score(
            row["source"], row["level"], row["name"], row["metric"], int(row["sets"]), int(row["rows"]),
            float(row["geometric_mean"]), float(row["spread"]), float(row["within_25pct"]), float(row["median_error"]),
            float(row.get("within_2x") or "nan"),
        )
        for row in csv.DictReader(lines) if row["level"] != "refused"
    ]  # fmt: skip
    return {key_of(one): one for one in found}


def write_rows(path: Path, found: Iterable[Scored]) -> None:
    """Every row with its ratio, to look at; it copies measurements, so it is no file to keep in the repository."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        names = [field.name for field in fields(Case)]
        writer.writerow([*names, "source", "kind", "metric", "measured", "ratio", "reason"])
        for one in found:
            row = one.measured
            values = [getattr(row.case, name) for name in names]
            writer.writerow([*values, row.source, kind(row.case), row.metric, row.value, one.ratio, one.reason or ""])

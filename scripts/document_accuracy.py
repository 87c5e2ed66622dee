"""Score predictions against measured servings, and write what follows: the catalogue's bands, the held-out part of
docs/evidence/serving.md, and its tables docs/evidence/serving-*.csv.

    python scripts/document_accuracy.py                write all again from the stored scores
    python scripts/document_accuracy.py --score        score the development half first
    python scripts/document_accuracy.py --held-out     and the half set aside: by kind only, once a version
    python scripts/document_accuracy.py --apart HALF   score one half's servings with prefill and decode apart

Scores are stored in benchmarks/results (STORED); rows that were measured are not copied. A band that users see comes from
the half set aside alone (moescale.serving.accuracy).
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w

from moescale.io.files import write_atomically
from moescale.serving import accuracy
from pages import csv_text, filled, table, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import disaggregated  # noqa: E402
import package_engine as engine  # noqa: E402
import serving_predictions  # noqa: E402
import serving_rows  # noqa: E402
import serving_scores  # noqa: E402
from serving_scores import Score  # noqa: E402

RESULTS = ROOT / "benchmarks/results"
CATALOGUE = ROOT / "src/moescale/catalogue/accuracy.toml"
PAGE, OWNER = "evidence/serving.md", "accuracy"
VERSION = "0.4"
NOW = f"measured_servings_v{VERSION}.csv"
STORED = {
    serving_rows.DEVELOPMENT: (NOW, f"package_engine_v{VERSION}.csv"),
    serving_rows.HELD_OUT: (f"measured_servings_v{VERSION}_held_out.csv", f"package_engine_v{VERSION}_held_out.csv"),
}
APART = {
    half: f"disaggregated_v0.3{end}.csv"
    for half, end in ((serving_rows.DEVELOPMENT, ""), (serving_rows.HELD_OUT, "_held_out"))
}
METRICS = {"output_tok_s": "output tokens/s", "tpot": "TPOT", "ttft": "TTFT"}
VERSIONS = {  # 0.1.9: before formats, parallelism and load were priced as servers run them; 0.2: before presets of engines
    **{name: f"measured_servings_v{name}.csv" for name in ("0.1", "0.1.9", "0.2", "0.3")},
    VERSION: NOW,
}
HELD_OUT_VERSIONS = ("0.2", "0.3", VERSION)  # that the half set aside was scored for, once each
OURS, THEIRS = "ours", "engine"
TOML_HEAD = """\
# Predicted over measured servings of the half of the kernel package's rows that is set aside (benchmarks/measured_servings.py),
# by kind of server; every set of one model, GPU, engine and format weighs the same. Narrowed to a GPU or an engine where
# three sets or more were measured. Written by scripts/document_accuracy.py; not to be edited.
"""

Scores = Mapping[tuple[str, ...], Score]


def score(which: str) -> None:
    """Score one half, and store it: this version, and beside the package's engine on the rows that both answer."""
    rows = serving_rows.read_package(which)
    held_out = which == serving_rows.HELD_OUT
    rows = rows if held_out else serving_rows.read_points() + rows
    setting = serving_predictions.Setting()
    ours, theirs = engine.judge(rows, setting, engine.HYBRID)
    facts = serving_scores.about(which, setting)
    own, beside = (RESULTS / name for name in STORED[which])
    levels = serving_scores.BY_KIND if held_out else tuple(serving_scores.LEVELS)
    results = serving_scores.scores(ours, levels) + ([] if held_out else serving_scores.sample_scores(ours))
    serving_scores.write_scores(own, results, serving_scores.refusals(ours), facts)
    pairs = engine.beside(ours, theirs)
    named = [_from(OURS, a) for a, _ in pairs] + [_from(THEIRS, b) for _, b in pairs]
    serving_scores.write_scores(beside, named, engine.alone(ours, theirs), facts)


def score_apart(which: str) -> None:
    """Score one half's rows with prefill and decode apart, and store it."""
    found, levels = (
        disaggregated.scored(which),
        serving_scores.BY_KIND if which == serving_rows.HELD_OUT else tuple(serving_scores.LEVELS),
    )
    facts = serving_scores.about(which, serving_predictions.Setting())
    serving_scores.write_scores(
        RESULTS / APART[which], serving_scores.scores(found, levels), serving_scores.refusals(found), facts
    )


def _from(who: str, one: Score) -> Score:
    return replace(one, source=f"{one.source} {who}")


def stored(name: str) -> dict[tuple[str, ...], Score]:
    """The stored scores of a file; nothing where it was not written yet."""
    path = RESULTS / name
    return serving_scores.read_scores(path) if path.exists() else {}


def facts(name: str) -> dict[str, str]:
    """What the first line of stored scores says: version, commit, date .."""
    path = RESULTS / name
    if not path.exists():
        return {}
    line = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return {key: value for key, _, value in (part.partition(" ") for part in line.split(", "))}


def catalogue() -> str:
    """The text of catalogue/accuracy.toml, from the stored scores of the half set aside."""
    name = STORED[serving_rows.HELD_OUT][0]
    found, head = (
        stored(name) | {key: one for key, one in stored(APART[serving_rows.HELD_OUT]).items() if one.level != "all"},
        facts(name),
    )
    entries: list[dict[str, Any]] = []
    for one in (one for one in found.values() if one.source == "package" and one.metric in METRICS):
        if one.level not in ("kind", *serving_scores.NARROWED) or not math.isfinite(one.geometric_mean):
            continue
        words = {"kind gpu": " on ", "kind engine": " with "}.get(one.level)
        kind, _, narrowed = one.name.rpartition(words) if words else (one.name, "", "")
        by = one.level.partition(" ")[2]
        if one.metric == "ttft" and kind.endswith(
            accuracy.APART
        ):  # an equilibrium has no first burst: the page says so
            continue
        entry: dict[str, Any] = {"kind": kind, "metric": one.metric} | ({by: narrowed} if by else {})
        entry |= {"rows": one.rows, "sets": one.sets, "geometric_mean": one.geometric_mean, "spread": one.spread}
        if one.metric == "output_tok_s":
            entry["gpus"] = [narrowed] if by == "gpu" else gpus_of(kind, found)
        entries.append(entry)
    told = {key: head[key] for key in ("version", "commit", "date") if key in head}
    document = {"scored": told, "held_out": entries} if entries else {}
    return TOML_HEAD + ("\n" + tomli_w.dumps(document) if document else "")


def gpus_of(kind: str, found: Scores) -> list[str]:
    """The GPUs on which a kind was measured."""
    named = (one.name.rpartition(" on ") for one in found.values() if one.level == "kind gpu")
    return sorted({gpu for of, _, gpu in named if of == kind})


def by_kind(found: Scores, metric: str, source: str) -> dict[str, Score]:
    """The scores of one metric and source by kind, that of all kinds first."""
    chosen = [one for one in found.values() if (one.source, one.metric) == (source, metric)]
    return {one.name: one for level in ("all", "kind") for one in chosen if one.level == level}


def within(one: Score) -> float:
    """The share of rows that a metric is judged by."""
    return one.within_2x if one.metric == "ttft" else one.within_25pct


WANTED_RATIO, WANTED_WITHIN = (0.9, 1.1), 0.8  # of a kind: geometric mean, and the share of rows


def misses(one: Score) -> tuple[bool, bool]:
    """Whether a score misses the target ratio, and the target share of rows; of TTFT the share alone counts."""
    low, high = WANTED_RATIO
    return one.metric != "ttft" and not low <= one.geometric_mean <= high, not within(one) >= WANTED_WITHIN


def figures(one: Score | None) -> list[str]:
    """Ratio and share of rows within the target distance; bold where a kind misses its target."""
    if one is None:
        return ["", ""]
    cells = (f"{one.geometric_mean:.2f}", f"{within(one):.0%}")
    bold = misses(one) if one.level == "kind" else (False, False)
    return [f"**{cell}**" if missed else cell for cell, missed in zip(cells, bold, strict=True)]


def kinds_table(name: str) -> list[str]:
    """The stored scores of a file by kind, all metrics beside each other."""
    found = {metric: by_kind(stored(name), metric, "package") for metric in METRICS}
    first = found["output_tok_s"]
    if not first:
        return ["Not scored yet."]
    rows = [
        [kind, f"{one.sets}", f"{one.rows}", *(cell for metric in METRICS for cell in figures(found[metric].get(kind)))]
        for kind, one in first.items()
    ]
    head = ["kind", "sets", "rows", "output tok/s", "within 25%", "TPOT", "within 25%", "TTFT", "within 2x"]
    return table(head, rows, numbers=8)


def overall(which: str) -> list[str]:
    """Scores over all kinds on the rows that the package's engine answers as well: ours, and the engine's."""
    found = stored(STORED[which][1])
    rows: list[list[str]] = []
    for metric, words in METRICS.items():
        pair = [by_kind(found, metric, f"package {who}").get("all") for who in (OURS, THEIRS)]
        if all(pair):
            cells = [[f"{s.geometric_mean:.2f}", f"{s.spread:.2f}", f"{s.median_error:.0%}"] for s in pair if s]
            rows.append([words, *cells[0], *cells[1]])
    head = ["metric", "ratio", "spread", "median error", "engine: ratio", "spread", "median error"]
    return table(head, rows, numbers=6) if rows else ["Not scored yet."]


def closer_engine(which: str) -> str:
    """Kinds in which the package's engine has the smaller median error, by metric."""
    found = stored(STORED[which][1])
    parts: list[str] = []
    for metric, words in METRICS.items():
        ours, theirs = (by_kind(found, metric, f"package {who}") for who in (OURS, THEIRS))
        kinds = [k for k, a in ours.items() if a.level == "kind" and theirs[k].median_error < a.median_error]
        parts.append(
            f"{words}: {', '.join(kinds) or 'none'} ({len(kinds)} of {sum(a.level == 'kind' for a in ours.values())})"
        )
    return "; ".join(parts)


def missed(which: str) -> dict[str, list[str]]:
    """Kinds that miss a target, by metric; the number of kinds comes last."""
    found: dict[str, list[str]] = {}
    for metric, words in METRICS.items():
        kinds = [one for one in by_kind(stored(STORED[which][0]), metric, "package").values() if one.level == "kind"]
        found[words] = [*(one.name for one in kinds if any(misses(one))), f"{len(kinds)}"]
    return found


def short(which: str, *, names: bool) -> str:
    """How many kinds miss a target by metric, and which."""
    parts: list[str] = []
    for words, (*kinds, n) in missed(which).items():
        listed = f" ({', '.join(kinds)})" if names and kinds else ""
        parts.append(f"{words} {len(kinds)} of {n}{listed}")
    return "; ".join(parts)


def points() -> str:
    """The points' ratio and share of rows within the target distance, by metric and kind."""
    parts: list[str] = []
    for metric, words in METRICS.items():
        found = by_kind(stored(NOW), metric, "points").values()
        kinds = [f"{one.name} {one.geometric_mean:.2f} ({within(one):.0%})" for one in found if one.level == "kind"]
        parts.append(f"- {words}: {', '.join(kinds) or 'not scored yet'}")
    return "\n".join(parts)


def history() -> str:
    """Median errors over all kinds, by version."""
    parts: list[str] = []
    for source, label in (("package", "development"), ("points", "points")):
        for metric, words in METRICS.items():
            found = [by_kind(stored(name), metric, source).get("all") for name in VERSIONS.values()]
            parts.append(f"{label}, {words} {', '.join(f'{one.median_error:.0%}' for one in found if one)}")
    return "; ".join(parts)


def refused(name: str) -> list[dict[str, str]]:
    """The lines of stored scores that count rows without a score."""
    path = RESULTS / name
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if row["level"] == "refused"
    ]


def reasons(name: str) -> str:
    """How many measured figures have no prediction, by reason."""
    counted: dict[str, int] = {}
    for row in refused(name):
        counted[row["metric"]] = counted.get(row["metric"], 0) + int(row["rows"])
    ranked = sorted(counted.items(), key=lambda pair: -pair[1])
    return "; ".join(f"{reason} {count:,}" for reason, count in ranked) or "none"


def alone(name: str) -> str:
    """How many figures the package's engine answers, and this version does not."""
    return f"{sum(int(row['rows']) for row in refused(name) if row['metric'] == engine.ENGINE_ALONE)}"


def _cell(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4g}"


def csvs() -> dict[str, str]:
    """The tables beside the page, by name: every stored score by kind, those beside the engine, and rows without a score."""
    files = [(serving_rows.HELD_OUT, name, f"measured_servings_v{name}_held_out.csv") for name in HELD_OUT_VERSIONS]
    files += [(serving_rows.DEVELOPMENT, version, name) for version, name in VERSIONS.items()]
    scored = [
        [
            *(half, one.source, one.name, one.metric, version, one.sets, one.rows),
            *map(_cell, (one.geometric_mean, one.spread, one.within_25pct, one.within_2x, one.median_error)),
            ("no" if any(misses(one)) else "yes") if version == VERSION and one.level == "kind" else "",
        ]
        for half, version, name in files
        for source in ("package", "points")
        for metric in METRICS
        for one in by_kind(stored(name), metric, source).values()
    ]
    beside: list[list[object]] = []
    for half, (_, name) in STORED.items():
        found = stored(name)
        for source in ("package", "points"):
            for metric in METRICS:
                ours, theirs = (by_kind(found, metric, f"{source} {who}") for who in (OURS, THEIRS))
                for kind, a in ours.items():
                    errors = (x for s in (a, theirs[kind]) for x in (s.geometric_mean, s.spread, s.median_error))
                    beside.append([half, source, kind, metric, a.sets, a.rows, *map(_cell, errors)])
    none = [
        [half, row["source"], row["name"], row["metric"], row["rows"]]
        for half, (name, _) in STORED.items()
        for row in refused(name)
    ]
    of = ("half", "source", "kind", "metric")
    each = ("ratio", "spread", "median_error")
    return {
        "evidence/serving-accuracy.csv": csv_text(
            (
                *of,
                "version",
                "sets",
                "rows",
                "ratio",
                "spread",
                "within_25pct",
                "within_2x",
                "median_error",
                "meets_target",
            ),
            scored,
        ),
        "evidence/serving-engine.csv": csv_text(
            (*of, "sets", "rows", *each, *(f"engine_{name}" for name in each)), beside
        ),
        "evidence/serving-refused.csv": csv_text(("half", "source", "kind", "reason", "figures"), none),
    }


def scored_by(names: Iterable[str]) -> str:
    """Which commits made the stored scores."""
    told = [(name, facts(name)) for name in names]
    return "; ".join(f"`{name}`: commit {f['commit'][:7]}, {f['date']}" for name, f in told if f)


def page() -> str:
    """docs/evidence/serving.md with its parts of held-out measurements."""
    held_out, development = (STORED[half] for half in (serving_rows.HELD_OUT, serving_rows.DEVELOPMENT))
    parts: dict[str, str | Sequence[str]] = {
        "stored": scored_by((*VERSIONS.values(), held_out[0], *APART.values())),
        "held-out": kinds_table(held_out[0]),
        "apart": kinds_table(APART[serving_rows.DEVELOPMENT]),
        "apart-held-out": kinds_table(APART[serving_rows.HELD_OUT]),
        "points": points(),
        "overall": overall(serving_rows.HELD_OUT),
        "closer-engine": closer_engine(serving_rows.HELD_OUT),
        "short-held-out": short(serving_rows.HELD_OUT, names=False),
        "short-development": short(serving_rows.DEVELOPMENT, names=True),
        "history": history(),
        "alone": alone(development[1]),
        "alone-held-out": alone(held_out[1]),
        "refused": reasons(NOW),
        "refused-held-out": reasons(held_out[0]),
    }
    return filled(PAGE, parts, OWNER)


def main() -> None:
    """Score what is asked for, and write catalogue, tables and page."""
    parser = argparse.ArgumentParser(description="Accuracy of predicted servings.")
    parser.add_argument("--score", action="store_true", help="score the development half")
    parser.add_argument("--held-out", action="store_true", help="score both halves; the one set aside by kind only")
    parser.add_argument("--apart", choices=tuple(APART), help="score rows with prefill and decode apart, of one half")
    asked = parser.parse_args()
    if asked.apart:
        score_apart(asked.apart)
    if asked.score or asked.held_out:
        score(serving_rows.DEVELOPMENT)
    if asked.held_out:
        score(serving_rows.HELD_OUT)
    write_atomically(CATALOGUE, catalogue())
    for name, text in csvs().items():
        write(name, text)
    write(PAGE, page())


if __name__ == "__main__":
    main()

"""Score predictions against measured servings, and write what follows: the catalogue's bands and docs/accuracy.md.

    python scripts/document_accuracy.py                write both again from the stored scores
    python scripts/document_accuracy.py --score        score the development half first
    python scripts/document_accuracy.py --held-out     and the half set aside: by kind only, once a version

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
from pages import filled, table, write

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "benchmarks"))

import measured_servings as servings  # noqa: E402
import package_engine as engine  # noqa: E402
from measured_servings import Score  # noqa: E402

RESULTS = ROOT / "benchmarks/results"
CATALOGUE = ROOT / "src/moescale/catalogue/accuracy.toml"
PAGE = "accuracy.md"
BEFORE = ("measured_servings_v0.1.csv", "measured_servings_v0.1.9.csv")  # before any of it; before issue 19's changes
NOW = "measured_servings_v0.2.csv"
STORED = {
    servings.DEVELOPMENT: (NOW, "package_engine_v0.2.csv"),
    servings.HELD_OUT: ("measured_servings_v0.2_held_out.csv", "package_engine_v0.2_held_out.csv"),
}
METRICS = {"output_tok_s": "output tokens a second", "tpot": "time per output token", "ttft": "time to first token"}
OURS, THEIRS = "ours", "engine"
TOML_HEAD = """\
# Predicted over measured servings of the half of the kernel package's rows that is set aside (benchmarks/measured_servings.py),
# by kind of server; every set of one model, GPU, engine and format weighs the same. Narrowed to a GPU or an engine where
# three sets or more were measured. Written by scripts/document_accuracy.py; not to be edited.
"""

Scores = Mapping[tuple[str, ...], Score]


def score(which: str) -> None:
    """Score one half, and store it: this version, and beside the package's engine on the rows that both answer."""
    rows = servings.read_package(which)
    held_out = which == servings.HELD_OUT
    rows = rows if held_out else servings.read_points() + rows
    setting = servings.Setting()
    ours, theirs = engine.judge(rows, setting, engine.HYBRID)
    facts = servings.about(which, setting)
    own, beside = (RESULTS / name for name in STORED[which])
    levels = servings.BY_KIND if held_out else tuple(servings.LEVELS)
    results = servings.scores(ours, levels) + ([] if held_out else servings.sample_scores(ours))
    servings.write_scores(own, results, servings.refusals(ours), facts)
    pairs = engine.beside(ours, theirs)
    named = [_from(OURS, a) for a, _ in pairs] + [_from(THEIRS, b) for _, b in pairs]
    servings.write_scores(beside, named, engine.alone(ours, theirs), facts)


def _from(who: str, one: Score) -> Score:
    return replace(one, source=f"{one.source} {who}")


def stored(name: str) -> dict[tuple[str, ...], Score]:
    """The stored scores of a file; nothing where it was not written yet."""
    path = RESULTS / name
    return servings.read_scores(path) if path.exists() else {}


def facts(name: str) -> dict[str, str]:
    """What the first line of stored scores says: version, commit, date .."""
    path = RESULTS / name
    if not path.exists():
        return {}
    line = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
    return {key: value for key, _, value in (part.partition(" ") for part in line.split(", "))}


def catalogue() -> str:
    """The text of catalogue/accuracy.toml, from the stored scores of the half set aside."""
    name = STORED[servings.HELD_OUT][0]
    found, head = stored(name), facts(name)
    entries: list[dict[str, Any]] = []
    for one in (one for one in found.values() if one.source == "package" and one.metric in METRICS):
        if one.level not in ("kind", *servings.NARROWED) or not math.isfinite(one.geometric_mean):
            continue
        words = {"kind gpu": " on ", "kind engine": " with "}.get(one.level)
        kind, _, narrowed = one.name.rpartition(words) if words else (one.name, "", "")
        by = one.level.partition(" ")[2]
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


def figures(one: Score | None) -> list[str]:
    """Ratio, share within 25% (first tokens: a factor 2) and median error of a score, as the page shows them."""
    if one is None:
        return ["", "", ""]
    share = within(one)
    return [f"{one.geometric_mean:.2f}", "" if math.isnan(share) else f"{share:.0%}", f"{one.median_error:.0%}"]


def columns(metric: str) -> tuple[str, str, str]:
    """The names of the figures."""
    return "ratio", "within 2x" if metric == "ttft" else "within 25%", "error"


def comparison(metric: str, source: str) -> list[str]:
    """Scores of the development half by kind: before, and now."""
    versions = [by_kind(stored(name), metric, source) for name in (*BEFORE, NOW)]
    now = versions[-1]
    names = list(dict.fromkeys(name for found in (now, *versions) for name in found))
    rows: list[list[str]] = []
    for name in names:
        one = now.get(name) or next(found[name] for found in versions if name in found)
        spread = f"{now[name].spread:.2f}" if name in now else ""
        rows.append(
            [name, f"{one.sets}", f"{one.rows}", *(t for found in versions for t in figures(found.get(name))), spread]
        )
    head = ["kind", "sets", "rows"]
    head += [f"{word}{at}" for at in (" 0.1", " 0.1.9", "") for word in columns(metric)]
    return table([*head, "spread"], rows, numbers=len(head))


def set_aside(metric: str) -> list[str]:
    """Scores of the half set aside, by kind."""
    found = by_kind(stored(STORED[servings.HELD_OUT][0]), metric, "package")
    if not found:
        return ["Not scored yet."]
    rows = [[name, f"{one.sets}", f"{one.rows}", *figures(one), f"{one.spread:.2f}"] for name, one in found.items()]
    return table(["kind", "sets", "rows", *columns(metric), "spread"], rows, numbers=6)


def beside_engine(which: str) -> list[str]:
    """Median errors of both on the rows that both answer, by kind; the smaller one in bold."""
    found = stored(STORED[which][1])
    if not found:
        return ["Not scored yet."]
    rows: list[list[str]] = []
    for source in ("package", "points"):
        for metric, words in METRICS.items():
            ours, theirs = (by_kind(found, metric, f"{source} {who}") for who in (OURS, THEIRS))
            for name, a in ours.items():
                b = theirs[name]
                errors = [f"{one.median_error:.0%}" for one in (a, b)]
                least = 0 if a.median_error <= b.median_error else 1
                errors[least] = f"**{errors[least]}**"
                rows.append(
                    [source, name, words, f"{a.sets}", f"{a.rows}", f"{a.geometric_mean:.2f}", errors[0], f"{b.geometric_mean:.2f}", errors[1]]
                )  # fmt: skip
    head = ["rows of", "kind", "figure", "sets", "rows", "ratio", "error", "its ratio", "its error"]
    return table(head, rows, numbers=6)


WANTED_RATIO, WANTED_WITHIN = (0.9, 1.1), 0.8  # of a kind: geometric mean, and the share of rows


def short(which: str) -> list[str]:
    """Kinds that miss what is wanted: of first tokens the share within a factor 2, of the others the ratio, too."""
    found = stored(STORED[which][0])
    if not found:
        return ["Not scored yet."]
    lines: list[str] = []
    for metric, words in METRICS.items():
        for name, one in by_kind(found, metric, "package").items():
            low, high = WANTED_RATIO
            met = metric == "ttft" or low <= one.geometric_mean <= high
            if one.level == "kind" and not (met and within(one) >= WANTED_WITHIN):
                lines.append(
                    f"- {name}, {words}: ratio {one.geometric_mean:.2f}, {within(one):.0%} {columns(metric)[1]} "
                    f"({_counted(one.sets, 'set')}, {_counted(one.rows, 'row')})"
                )
    return lines or ["None."]


def _counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def refused(name: str) -> list[dict[str, str]]:
    """The lines of stored scores that count rows without a score."""
    path = RESULTS / name
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [
        row for row in csv.DictReader(line for line in lines if not line.startswith("#")) if row["level"] == "refused"
    ]


def reasons(name: str) -> list[str]:
    """A table of them."""
    rows = [[row["source"], row["name"], row["metric"], row["rows"]] for row in refused(name)]
    return table(["rows of", "kind", "why", "figures"], rows, numbers=1) if rows else ["None, or not scored yet."]


def alone(name: str) -> list[str]:
    """A table of the kinds with figures that the package's engine answers, and this version does not."""
    rows = [[r["source"], r["name"], r["rows"]] for r in refused(name) if r["metric"] == engine.ENGINE_ALONE]
    return table(["rows of", "kind", "figures"], rows, numbers=1) if rows else ["None, or not scored yet."]


def scored_by(names: Iterable[str]) -> str:
    """Which commits made the stored scores."""
    told = [(name, facts(name)) for name in names]
    return "; ".join(f"`{name}`: commit {f['commit'][:7]}, {f['date']}" for name, f in told if f)


def page() -> str:
    """docs/accuracy.md with its tables."""
    parts: dict[str, str | Sequence[str]] = {
        "stored": scored_by((*BEFORE, NOW, STORED[servings.HELD_OUT][0])),
        "short-development": short(servings.DEVELOPMENT),
        "short-held-out": short(servings.HELD_OUT),
        "engine-development": beside_engine(servings.DEVELOPMENT),
        "engine-held-out": beside_engine(servings.HELD_OUT),
        "alone": alone(STORED[servings.DEVELOPMENT][1]),
        "alone-held-out": alone(STORED[servings.HELD_OUT][1]),
        "refused": reasons(NOW),
        "refused-held-out": reasons(STORED[servings.HELD_OUT][0]),
    }
    for metric in METRICS:
        parts[f"development-{metric}"] = comparison(metric, "package")
        parts[f"points-{metric}"] = comparison(metric, "points")
        parts[f"held-out-{metric}"] = set_aside(metric)
    return filled(PAGE, parts)


def main() -> None:
    """Score what is asked for, and write catalogue and page."""
    parser = argparse.ArgumentParser(description="Accuracy of predicted servings.")
    parser.add_argument("--score", action="store_true", help="score the development half")
    parser.add_argument("--held-out", action="store_true", help="score both halves; the one set aside by kind only")
    asked = parser.parse_args()
    if asked.score or asked.held_out:
        score(servings.DEVELOPMENT)
    if asked.held_out:
        score(servings.HELD_OUT)
    write_atomically(CATALOGUE, catalogue())
    write(PAGE, page())


if __name__ == "__main__":
    main()

"""Fit benchmark scores to the loss of OLMo 2's model ladder by the rule of docs/evidence/scores.md; write catalogue/scores.toml.

    python scripts/fit_scores.py [--write]

Prints the forms' errors on 3B, and the predictions of 7B and 13B beside what was measured; fills the page where --write is given.
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from numpy.typing import NDArray
from scipy.optimize import least_squares

from moescale.io.files import write_atomically
from moescale.typing import FloatArray
from pages import filled, table, write

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests/data/public/olmo_ladder_scores.csv"
TARGET = ROOT / "src/moescale/catalogue/scores.toml"
ANSWERS = {"piqa": 2, "boolq": 2, "winogrande": 2, "csqa": 5, "socialiqa": 3}  # of a question; else four
SMALL, INNER, JUDGES = ("190M", "370M", "760M", "1B"), "3B", ("7B", "13B")
# MMLU of the released base models, of answers by letters: model card of allenai/OLMo-2-1124-13B (arXiv 2501.00656).
LETTERS = {"mmlu": {"OLMo 2 7B": 0.637, "OLMo 2 13B": 0.675}}
DRAWS, LEAST_DRIFT, EARLY, Z90 = 32, 0.01, 0.1, 1.645
FORMS = tuple(itertools.product(("c4_ce", "bpb"), (True, False)))  # what the curve is in, and whether its ends are free
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Ladder:
    """Checkpoints of the ladder: columns (n,) by name."""

    run: NDArray[np.str_]
    size: NDArray[np.str_]
    numbers: dict[str, FloatArray]

    @property
    def tasks(self) -> list[str]:
        """Names of the tasks."""
        return [name.removesuffix("_acc") for name in self.numbers if name.endswith("_acc")]

    @property
    def final(self) -> Bools:
        """The last checkpoint of each run."""
        return self.numbers["final"] == 1.0

    @property
    def late(self) -> Bools:
        """Checkpoints after the first tenth of their runs."""
        step = self.numbers["step"]
        last = {run: step[self.run == run].max() for run in np.unique(self.run)}
        return step >= EARLY * np.array([last[run] for run in self.run])

    @property
    def flops(self) -> FloatArray:
        """6 N D."""
        return 6.0 * self.numbers["n_params_nonemb"] * self.numbers["tokens"]

    def of(self, *sizes: str) -> Bools:
        """The checkpoints of models of these sizes."""
        return np.isin(self.size, sizes)


def read() -> Ladder:
    """The table of checkpoints."""
    with DATA.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    names = [name for name in rows[0] if name not in ("run", "size")]
    numbers = {name: np.array([float(row[name]) for row in rows]) for name in names}
    return Ladder(np.array([row["run"] for row in rows]), np.array([row["size"] for row in rows]), numbers)


def chance(task: str) -> float:
    """The score of guesses."""
    return 1.0 / ANSWERS.get(task, 4)


def fit_loss(ladder: Ladder, x: FloatArray, rows: NDArray[np.intp]) -> FloatArray:
    """ln E, ln A, alpha, ln B, beta of x = E + A (N/1e9)^-alpha + B (D/2e10)^-beta, by Huber's loss of ln x."""
    n, d, x = ladder.numbers["n_params_nonemb"][rows], ladder.numbers["tokens"][rows], x[rows]

    def missed(p: FloatArray) -> FloatArray:
        return np.log(loss_at(p, n, d)) - np.log(x)

    least = x.min()
    bounds = ([-8, -8, 0.02, -8, 0.02], [np.log(least), 3, 1.5, 3, 1.5])
    found = [
        least_squares(
            missed,
            [np.log(e * least), np.log(0.3 * least), a, np.log(0.3 * least), b],
            loss="huber",
            f_scale=1e-3,
            bounds=bounds,
        )
        for e, a, b in itertools.product((0.5, 0.8), (0.2, 0.4), (0.2, 0.4))
    ]
    return _best(found)


def _best(found: Sequence[Any]) -> FloatArray:
    """The optimum of least cost."""
    return found[int(np.argmin([each.cost for each in found]))].x


def loss_at(p: FloatArray, n: FloatArray, d: FloatArray) -> FloatArray:
    """The loss of dense models, same shape as n."""
    return np.exp(p[0]) + np.exp(p[1]) * (n / 1e9) ** -p[2] + np.exp(p[3]) * (d / 2e10) ** -p[4]


def fit_accuracy(x: FloatArray, accuracy: FloatArray, chance: float, free: bool) -> FloatArray:
    """Top, floor, slope and middle of the logistic curve in x, (4,)."""
    centre, width = float(x.mean()), float(x.std())

    def curve(p: FloatArray) -> FloatArray:
        top, floor = (p[2], p[3]) if free else (1.0, chance)
        return np.array([top, floor, p[0] / width, centre + width * p[1]])

    bounds = ([0.05, -8, chance + 0.02, 0.999 * chance], [20, 8, 1.0, chance + 0.3]) if free else ([0.05, -30], [20, 8])
    starts = [[1.5, -1.0, top, chance] for top in (0.6, 0.9)] if free else [[1.5, -1.0]]

    def missed(p: FloatArray) -> FloatArray:
        return accuracy_at(curve(p), x) - accuracy

    found = [least_squares(missed, start, bounds=bounds) for start in starts]
    return curve(_best(found))


def accuracy_at(p: FloatArray, x: FloatArray) -> FloatArray:
    """The logistic curve."""
    return p[1] + (p[0] - p[1]) / (1.0 + np.exp(p[2] * (x - p[3])))


def fit(
    ladder: Ladder, form: tuple[str, bool], sizes: tuple[str, ...], runs: NDArray[np.str_] | None = None
) -> dict[str, tuple[FloatArray, FloatArray]]:
    """Of each task the coefficients of the loss and of the curve; `runs` may name one several times."""
    kept = ladder.of(*sizes)
    rows = (
        np.flatnonzero(kept)
        if runs is None
        else np.concatenate([np.flatnonzero(kept & (ladder.run == run)) for run in runs])
    )
    final, late = rows[ladder.final[rows]], rows[ladder.late[rows]]
    found: dict[str, tuple[FloatArray, FloatArray]] = {}
    shared: FloatArray | None = None
    for task in ladder.tasks:
        x = ladder.numbers["c4_ce" if form[0] == "c4_ce" else f"{task}_bpb"]
        if shared is None or form[0] != "c4_ce":
            shared = fit_loss(ladder, x, final)
        curve = fit_accuracy(x[late], ladder.numbers[f"{task}_acc"][late], chance(task), form[1])
        found[task] = shared, curve
    return found


def predicted(ladder: Ladder, pair: tuple[FloatArray, FloatArray], rows: Bools) -> FloatArray:
    """Accuracy of checkpoints from N and D alone."""
    return accuracy_at(
        pair[1], loss_at(pair[0], ladder.numbers["n_params_nonemb"][rows], ladder.numbers["tokens"][rows])
    )


def errors(ladder: Ladder, pairs: dict[str, tuple[FloatArray, FloatArray]], rows: Bools) -> FloatArray:
    """Predicted minus measured accuracy, (tasks, rows)."""
    return np.array(
        [predicted(ladder, pairs[task], rows) - ladder.numbers[f"{task}_acc"][rows] for task in ladder.tasks]
    )


def drift(ladder: Ladder, form: tuple[str, bool]) -> float:
    """Standard deviation of accuracy that an e-fold of FLOPs beyond the fit adds, by 3B from the smaller ones."""
    pairs, inside, out = fit(ladder, form, SMALL), ladder.of(*SMALL) & ladder.final, ladder.of(INNER) & ladder.final
    beyond = np.maximum(np.log(ladder.flops[out] / ladder.flops[inside].max()), 0.0)
    squares = (errors(ladder, pairs, inside) ** 2).mean(axis=1)
    missed = errors(ladder, pairs, out) ** 2
    excess = (missed - squares[:, None]).sum() / (len(squares) * (beyond**2).sum())
    return max(float(np.sqrt(max(excess, 0.0))), LEAST_DRIFT)


def main() -> None:
    """Choose, fit, judge, and write."""
    ladder = read()
    held = ladder.of(INNER) & ladder.final
    scored: dict[tuple[str, bool], float] = {}
    for form in FORMS:
        missed = errors(ladder, fit(ladder, form, SMALL), held)
        scored[form] = float(np.sqrt((missed**2).mean(axis=1)).mean())
        print(form, f"{scored[form]:.4f}")
    form = min(scored, key=lambda each: scored[each])
    sizes = (*SMALL, INNER)
    inside, judges = ladder.of(*sizes) & ladder.final, ladder.of(*JUDGES) & ladder.final
    best, slope = fit(ladder, form, sizes), drift(ladder, form)
    residual = np.sqrt((errors(ladder, best, inside) ** 2).mean(axis=1))
    rng, runs = np.random.default_rng(0), np.unique(ladder.run[inside])
    drawn = [best, *(fit(ladder, form, sizes, rng.choice(runs, runs.size)) for _ in range(DRAWS))]
    content = {
        "source": "fitted by scripts/fit_scores.py to allenai/OLMo-ladder (Apache-2.0), commit 67a3f440f787d020da35e3ca8eeae475fae754f5",
        "date": "2026-11-24",
        "fitted_flops": float(ladder.flops[inside].max()),
        "drift": slope,
        "c4": {"draws": [rounded(next(iter(each.values()))[0]) for each in drawn]},
        "task": {
            task: {
                "residual": float(residual[i]),
                "least": min(chance(task), float(ladder.numbers[f"{task}_acc"][ladder.final].min())),
                "draws": [rounded(each[task][1]) for each in drawn],
                "measured": measured_of(ladder, task),
                **({"letters": LETTERS[task]} if task in LETTERS else {}),
            }
            for i, task in enumerate(ladder.tasks)
        },
    }
    beyond = np.log(ladder.flops[judges] / ladder.flops[inside].max())
    lines: list[list[str]] = []
    within = 0
    for i, task in enumerate(ladder.tasks):
        every = np.array([predicted(ladder, each[task], judges) for each in drawn])
        wide = Z90 * np.sqrt(residual[i] ** 2 + (slope * beyond) ** 2 + every[1:].var(axis=0))
        measured = ladder.numbers[f"{task}_acc"][judges]
        within += int((np.abs(every[0] - measured) < wide).sum())
        cells = [f"{p:.3f} ± {w:.3f} ({m:.3f})" for p, w, m in zip(every[0], wide, measured, strict=True)]
        lines.append([task, *cells])
    shown = table(("task", *ladder.run[judges]), lines, numbers=int(judges.sum()))
    error = np.abs(errors(ladder, best, judges))
    summary = f"{within} of {error.size} lie within their interval; the median error is {np.median(error):.3f}, the largest {error.max():.3f}."
    print("\n".join(shown), summary, f"drift {slope:.4f}", sep="\n")
    if "--write" in sys.argv:
        write_atomically(TARGET, tomli_w.dumps(content))
        names = {"c4_ce": "cross entropy of C4", "bpb": "bits per byte of the answer"}
        forms = table(
            ("the curve is in", "ends", "error on 3B"),
            [[names[x], "free" if free else "fixed", f"{scored[x, free]:.4f}"] for x, free in FORMS],
            numbers=1,
        )
        write(
            "evidence/scores.md",
            filled(
                "evidence/scores.md", {"forms": forms, "judges": shown, "summary": summary, "drift": f"{slope:.3f}"}
            ),
        )


def measured_of(ladder: Ladder, task: str) -> dict[str, float]:
    """Accuracy of each released model at its last checkpoint."""
    last = (np.flatnonzero(ladder.of(size))[ladder.numbers["tokens"][ladder.of(size)].argmax()] for size in JUDGES)
    return {f"OLMo 2 {ladder.size[row]}": float(ladder.numbers[f"{task}_acc"][row]) for row in last}


def rounded(values: FloatArray) -> list[float]:
    """Values to six significant digits."""
    return [float(f"{value:.6g}") for value in values]


if __name__ == "__main__":
    main()

"""Benchmark scores of a planned model, and the model that a target score asks for.

A score is two steps away from a dense model (Bhagia et al., arXiv 2412.04403): its cross entropy of C4, E + A/N^alpha + B/D^beta, and a
logistic curve in that. Both were fitted to OLMo 2's model ladder (docs/evidence/scores.md). A model with experts is asked as the dense
model of equal tokens that has its loss by the plan's law.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from moescale import catalogue
from moescale.errors import InfeasibleError, InputError, unknown_name
from moescale.models.coordinates import model_of
from moescale.planning.allocation import Allocation
from moescale.roots import bracket
from moescale.scaling_laws.law import Law, loss
from moescale.typing import FloatArray, Real

AVERAGE = "average"  # of all tasks
Z90 = 1.645  # standard deviations that hold 90% of a normal distribution
SIZES = (1e6, 1e14)  # of dense models that are looked at
FLOOR, MOST_C4_LOSS = 1.02, 6.0  # least loss of a target over its floor, and the most in nats per token
MOST_FLOPS = 1e26  # of a dense model that a target asks for: more than published runs (Llama 3.1 405B: 3.8e25)
# Tasks that models of equal loss solve differently the more experts they have: Nakamura et al., arXiv 2508.18672.
REASONING = frozenset({"gsm8k", "gsm-plus", "math", "humaneval", "mbpp", "bbh", "aime", "gpqa", "drop"})


@dataclass(frozen=True, slots=True)
class Score:
    """An accuracy, and the interval that holds it with a probability of 90%: normal, cut at 1 and at about what guesses score."""

    estimate: float
    interval: tuple[float, float]
    deviation: float | None = None  # before the cut; None in files of before it was there

    def at_least(self, wanted: float) -> float:
        """The probability of a score of `wanted` or more: normal around the estimate, as wide as the interval was before its cut."""
        return 1.0 - NormalDist(self.estimate, self.within / Z90).cdf(wanted)

    @property
    def within(self) -> float:
        """Half the width of the interval before its cut."""
        low, high = self.interval
        return max(self.estimate - low, high - self.estimate) if self.deviation is None else Z90 * self.deviation


def _table() -> dict[str, Any]:
    return catalogue.read("scores.toml")


def _rows(task: str) -> list[dict[str, Any]]:
    """The rows of the table that a task averages."""
    every = _table()["task"]
    return list(every.values()) if task == AVERAGE else [every[task]]


def _mean(task: str, key: str) -> float:
    return float(np.mean([row[key] for row in _rows(task)]))


def tasks() -> tuple[str, ...]:
    """The tasks that have a mapping, and their average."""
    return (*_table()["task"], AVERAGE)


def check_task(task: str) -> str:
    """The task; InputError for one without a mapping, and for reasoning, of which loss does not decide."""
    if task.lower() in REASONING:
        what = f"loss does not decide {task}: models of equal loss reason worse the more experts they have (arXiv 2508.18672)"
        raise InputError(what, where="--target", nearest=", ".join(tasks()), next_step="measure it on small models")
    if task.lower() not in tasks():
        raise unknown_name("task", task, tasks(), where="--target")
    return task.lower()


def stated_score(target: str) -> tuple[str, float]:
    """The task and score of a target such as mmlu=0.45."""
    task, _, wanted = target.partition("=")
    return task, float(wanted)


def _c4_loss(n_params: FloatArray, tokens: FloatArray) -> FloatArray:
    """Cross entropy of C4 in nats per token of dense models (...), by the fit and its draws, (draws, ...)."""
    ln_e, ln_a, alpha, ln_b, beta = np.array(_table()["c4"]["draws"]).T.reshape((5, -1, *(1,) * np.ndim(n_params)))
    return np.exp(ln_e) + np.exp(ln_a) * (n_params / 1e9) ** -alpha + np.exp(ln_b) * (tokens / 2e10) ** -beta


def _accuracy(task: str, x: FloatArray) -> FloatArray:
    """Accuracy at cross entropies (draws, ...), same shape."""
    draws = (np.array(row["draws"]).T.reshape((4, -1, *(1,) * (x.ndim - 1))) for row in _rows(task))
    each = [floor + (top - floor) / (1.0 + np.exp(slope * (x - middle))) for top, floor, slope, middle in draws]
    return np.mean(each, axis=0)


def measured_scores(task: str) -> dict[str, float]:
    """The scores of released models that were measured as the fit's were."""
    every = [row["measured"] for row in _rows(task)]
    return {model: float(np.mean([one[model] for one in every])) for model in every[0]}


def nearest_score(scores: Mapping[str, float], accuracy: float, *, at_least: bool = False) -> tuple[str, float]:
    """The model, and its score, that comes closest to an accuracy; `at_least`: among those that have it, where any do."""
    good = [each for each in scores.items() if each[1] >= accuracy] if at_least else []
    return min(good or scores.items(), key=lambda each: abs(each[1] - accuracy))


def letters(task: str) -> dict[str, float]:
    """Scores of the released models where the answer is a letter, as model cards have it; empty where none were published."""
    return {} if task == AVERAGE else _table()["task"][task].get("letters", {})


def score(task: str, n_params: float, tokens: float) -> Score:
    """The score of a dense model of `n_params` (without embeddings) after `tokens`; the draws' spread, residuals and drift widen it."""
    check_task(task)
    found = _accuracy(task, _c4_loss(np.array(n_params), np.array(tokens)))
    beyond = max(0.0, float(np.log(6.0 * n_params * tokens / _table()["fitted_flops"])))
    # `residual` is the root mean square error of the fit's final checkpoints, `least` what guesses score, or its worst model.
    deviation = float(np.sqrt(found[1:].var() + _mean(task, "residual") ** 2 + (_table()["drift"] * beyond) ** 2))
    estimate = float(found[0])
    low, high = estimate - Z90 * deviation, estimate + Z90 * deviation
    return Score(estimate, (max(low, min(_mean(task, "least"), estimate)), min(high, 1.0)), deviation)


def dense_of_equal_loss(
    law: Law, n_params: ArrayLike, tokens: ArrayLike, experts: ArrayLike, extra: Mapping[str, Real]
) -> FloatArray:
    """Bodies of the dense models that have the law's loss of models (m,) after as many tokens, (m,); NaN where none has."""
    n, d, e = (np.asarray(values, float) for values in (n_params, tokens, experts))
    goal = loss(law, n, d, e, extra=extra)
    low, high = bracket(
        lambda ln_n: goal - loss(law, np.exp(ln_n), d, np.ones_like(ln_n), extra=extra),
        *(np.full(n.shape, np.log(end)) for end in SIZES),
    )
    found = np.exp(0.5 * (low + high))
    return np.where((found > 1.01 * SIZES[0]) & (found < 0.99 * SIZES[1]), model_of(law.family, found, 1.0)[0], np.nan)


def has_scores(law: Law) -> bool:
    """Whether a law has dense models that planned ones are compared with."""
    return law.form.uses_experts and law.form.uses_tokens and law.family.n_counts == "dense"


def scores_of(
    law: Law, n_params: Sequence[float], tokens: Sequence[float], experts: Sequence[float], extra: Mapping[str, Real]
) -> list[dict[str, Score] | None]:
    """The scores of planned models (m,), by task; None where the law has no dense models to compare them with."""
    if not has_scores(law):
        return [None] * len(n_params)
    sizes = dense_of_equal_loss(law, n_params, tokens, experts, extra)
    return [
        {task: score(task, size, float(d)) for task in tasks()} if np.isfinite(size) else None
        for size, d in zip(sizes.tolist(), tokens, strict=True)
    ]


def chances(law: Law, target: str, models: Allocation, extra: Mapping[str, Real]) -> FloatArray:
    """The chances (m,) that planned models have a target score; NaN where there is no dense model of their loss."""
    task, wanted = stated_score(target)
    sizes = dense_of_equal_loss(law, models.n_params, models.tokens, models.experts, extra)
    each = zip(sizes.tolist(), models.tokens.tolist(), strict=True)
    return np.array([score(task, n, d).at_least(wanted) if np.isfinite(n) else np.nan for n, d in each])


def dense_model_for(task: str, target: float) -> tuple[float, float]:
    """Size and tokens of the dense model of least 6 N D whose score is expected to be `target`.

    Raises InfeasibleError where the mapping reaches no such score at any loss.
    """
    check_task(task)
    ln_e, ln_a, alpha, ln_b, beta = _table()["c4"]["draws"][0]

    def expected(ln_x: FloatArray) -> FloatArray:
        return _accuracy(task, np.exp(ln_x)[None])[0]

    def smallest(ln_x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Least N D at a sum of two power terms: their elasticities are equal, alpha a = beta b."""
        above = np.exp(ln_x) - np.exp(ln_e)
        size_term, data_term = above * beta / (alpha + beta), above * alpha / (alpha + beta)
        return 1e9 * (np.exp(ln_a) / size_term) ** (1 / alpha), 2e10 * (np.exp(ln_b) / data_term) ** (1 / beta)

    every = np.linspace(np.log(MOST_C4_LOSS), ln_e + np.log(FLOOR), 2000)
    size, tokens = smallest(every)
    ends = [np.array([end]) for end in (every[6.0 * size * tokens <= MOST_FLOPS][-1], every[0])]
    most, least = (float(expected(end)[0]) for end in ends)
    if not least < target < most:
        scored = f"is expected to have a score in {task} of {least:.2f} to {most:.2f}, not {target:g}"
        convention = (
            "scores are those of ranked continuations, which lie below those of lettered choices on model cards"
        )
        what = f"a dense model of up to {MOST_FLOPS:.0e} FLOPs {scored}; {convention}"
        next_step = "state a lower score, or --match MODEL, or --max-loss"
        raise InfeasibleError(what, where="--target", nearest=f"{most:.2f}", next_step=next_step)
    low, _ = bracket(lambda ln_x: target - expected(ln_x), *ends)  # accuracy falls with loss
    (size,), (tokens,) = smallest(low)
    return float(size), float(tokens)

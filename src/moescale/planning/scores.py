"""Benchmark scores of a planned model, and the model that a target score asks for.

A score is two steps away from a dense model (Bhagia et al., arXiv 2412.04403): its cross entropy of C4, E + A/N^alpha + B/D^beta, and a
logistic curve in that. Both were fitted to OLMo 2's model ladder (docs/evidence/scores.md). A model with experts is asked as the dense
model of equal tokens that has its loss by the plan's law.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.errors import InfeasibleError, InputError, unknown_name
from moescale.roots import bracket
from moescale.scaling_laws.law import Law, loss
from moescale.typing import FloatArray

AVERAGE = "average"  # of all tasks
Z90 = 1.645  # standard deviations that hold 90% of a normal distribution
SIZES = (1e6, 1e14)  # of dense models that are looked at
C4_LOSSES = (1.0, 6.0)  # nats per token
# Tasks that models of equal loss solve differently the more experts they have: Nakamura et al., arXiv 2508.18672.
REASONING = frozenset({"gsm8k", "gsm-plus", "math", "humaneval", "mbpp", "bbh", "aime", "gpqa", "drop"})


@dataclass(frozen=True, slots=True)
class Score:
    """An accuracy between 0 and 1, and the interval that holds it with a probability of 90%."""

    estimate: float
    interval: tuple[float, float]


@cache
def _table() -> dict[str, Any]:
    return catalogue.read("scores.toml")


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


def _c4_loss(n_params: FloatArray, tokens: FloatArray) -> FloatArray:
    """Cross entropy of C4 in nats per token of dense models (...), by the fit and its draws, (draws, ...)."""
    ln_e, ln_a, alpha, ln_b, beta = np.array(_table()["c4"]["draws"]).T.reshape((5, -1, *(1,) * np.ndim(n_params)))
    return np.exp(ln_e) + np.exp(ln_a) * (n_params / 1e9) ** -alpha + np.exp(ln_b) * (tokens / 2e10) ** -beta


def _accuracy(task: str, x: FloatArray) -> FloatArray:
    """Accuracy at cross entropies (draws, ...), same shape."""
    if task == AVERAGE:
        return np.mean([_accuracy(one, x) for one in _table()["task"]], axis=0)
    top, floor, slope, middle = np.array(_table()["task"][task]["draws"]).T.reshape((4, -1, *(1,) * (x.ndim - 1)))
    return floor + (top - floor) / (1.0 + np.exp(slope * (x - middle)))


def _residual(task: str) -> float:
    """Root mean square error of the final checkpoints of the fit."""
    every = _table()["task"]
    if task != AVERAGE:
        return every[task]["residual"]
    return float(np.mean([one["residual"] for one in every.values()]))


def score(task: str, n_params: float, tokens: float) -> Score:
    """The score of a dense model of `n_params` (without embeddings) after `tokens`; the draws' spread, residuals and drift widen it."""
    check_task(task)
    found = _accuracy(task, _c4_loss(np.array(n_params), np.array(tokens)))
    beyond = max(0.0, float(np.log(6.0 * n_params * tokens / _table()["fitted_flops"])))
    width = Z90 * float(np.sqrt(found[1:].var() + _residual(task) ** 2 + (_table()["drift"] * beyond) ** 2))
    estimate = float(found[0])
    return Score(estimate, (max(estimate - width, 0.0), min(estimate + width, 1.0)))


def dense_of_equal_loss(law: Law, n_params: float, tokens: float, experts: float, **extra: float) -> float:
    """The law's N of the dense model that has the loss of (`n_params`, `tokens`, `experts`) after as many tokens."""
    goal = float(loss(law, n_params, tokens, experts, extra=extra))
    low, high = bracket(
        lambda ln_n: goal - loss(law, np.exp(ln_n), tokens, 1.0, extra=extra),
        *(np.log(np.array([end])) for end in SIZES),
    )
    return float(np.exp(0.5 * (low + high))[0])


def dense_model_for(task: str, target: float) -> tuple[float, float]:
    """Size and tokens of the dense model of least 6 N D whose score is expected to be `target`.

    Raises InfeasibleError where the mapping reaches no such score at any loss.
    """
    check_task(task)
    every = _table()["task"]
    curves = every.values() if task == AVERAGE else [every[task]]
    least, most = (float(np.mean([curve["draws"][0][k] for curve in curves])) for k in (1, 0))
    if not least < target < most:
        what = f"{task} of {target:g} lies outside {least:.3f} to {most:.3f}, between which the mapping speaks"
        raise InfeasibleError(what, next_step=f"state a score up to {most - 0.02:.2f}, or a loss")
    ln_c4 = bracket(  # accuracy falls with loss
        lambda ln_x: target - _accuracy(task, np.tile(np.exp(ln_x), (len(_table()["c4"]["draws"]), 1)))[0],
        *(np.log(np.array([end])) for end in C4_LOSSES),
    )
    goal = float(np.exp(ln_c4[0])[0])
    ln_e, ln_a, alpha, ln_b, beta = _table()["c4"]["draws"][0]
    if goal <= np.exp(ln_e):
        what = f"{task} of {target:g} asks for a loss of {goal:.3f}, below the floor of {np.exp(ln_e):.3f}"
        raise InfeasibleError(what, next_step="state a lower score, or a loss")
    # Least N D at a sum of two power terms: their elasticities are equal, alpha a = beta b.
    size_term = (goal - np.exp(ln_e)) * beta / (alpha + beta)
    data_term = (goal - np.exp(ln_e)) * alpha / (alpha + beta)
    return float(1e9 * (np.exp(ln_a) / size_term) ** (1 / alpha)), float(
        2e10 * (np.exp(ln_b) / data_term) ** (1 / beta)
    )

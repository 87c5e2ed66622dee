"""Calibrate a known law to a few runs of one's own: refit what they can tell, keep the rest.

Losses of other tokenizers and datasets differ by a factor and an offset, so a catalogue law's absolute loss misleads. Five
to thirty runs cannot identify ten parameters, but they can set the amplitudes; exponents and the effective experts come from
the law, as firmly as its own draws hold them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moescale.errors import InputError, nearest_names
from moescale.fitting.fit import Fit, describe, fit_range
from moescale.fitting.newton import Penalty, polish
from moescale.fitting.objective import HUBER_DELTA, Problem
from moescale.fitting.scan import project
from moescale.scaling_laws.form import Inputs
from moescale.scaling_laws.law import Law
from moescale.typing import FloatArray

NOISE = 0.003  # of ln L, between seeds: what weighs runs against the law's draws; the public runs of 2502.05172 show 2e-3 to 4e-3
STARTS = 64


def calibrate(law: Law, x: Inputs, ln_loss: FloatArray, *, fix: Sequence[str] | None = None) -> Fit:
    """Refit a law's form to runs with the law as a prior.

    Parameters in `fix` stay at the law's values. Amplitudes are free, because they carry the units of the loss. The other
    parameters are drawn towards the law: by the covariance of its draws where it has any, else they are fixed too. Raises InputError for unknown names and fewer runs than free amplitudes.
    """
    began = time.perf_counter()
    form = law.form
    fixed, pulled = _kept(law, fix)
    amplitudes = [j for j in range(len(form.parameters)) if j not in fixed and j not in pulled]
    if ln_loss.size < (fewest := max(2, len(amplitudes))):
        what = f"{ln_loss.size} runs cannot set the {len(amplitudes)} free parameters of {form.name}"
        raise InputError(what, next_step=f"give at least {fewest} runs, or name more in --fix")
    problem = Problem.of(form, x, ln_loss)
    low, high = problem.box.T
    # The law may lie outside the box that these few runs would have by themselves.
    box = np.stack((np.minimum(low, law.theta), np.maximum(high, law.theta)), axis=-1)
    box[fixed] = law.theta[fixed, None]
    problem = replace(problem, box=box)
    penalty = None
    if pulled:
        spread = np.cov(law.draws[:, pulled], rowvar=False).reshape(len(pulled), len(pulled))
        spread += np.diag(1e-6 * np.diag(spread) + 1e-12)
        precision = np.zeros((box.shape[0], box.shape[0]))
        # Far out a Huber term is delta |r|, while the negative log likelihood of Laplace noise is |r| / noise.
        precision[np.ix_(pulled, pulled)] = HUBER_DELTA * NOISE * np.linalg.inv(spread)
        penalty = Penalty(law.theta, precision)
    found = describe(problem, *polish(problem, _starts(law, problem), penalty=penalty), [])
    kept = {form.names[j] for j in (*fixed, *pulled)}
    # What the law supplies is not a fault of the runs.
    return replace(
        found,
        seconds=time.perf_counter() - began,
        fit_range=fit_range({"n_params": np.exp(x.ln_n), "tokens": np.exp(x.ln_d), "experts": x.experts}),
        at_bound=tuple(name for name in found.at_bound if name not in kept),
        not_identified=tuple(name for name in found.not_identified if name not in kept),
        warnings=(_remark(law, fixed, pulled),),
    )


def _kept(law: Law, fix: Sequence[str] | None) -> tuple[list[int], list[int]]:
    """Columns that stay at the law's values, and columns that are drawn towards it."""
    names = law.form.names
    for name in fix or ():
        if name not in names:
            what, advice = f"{law.form.name} has no parameter {name!r}", f"its parameters: {', '.join(names)}"
            raise InputError(what, where="--fix", nearest=nearest_names(name, names), next_step=advice)
    part = law.form.linear
    shape = list(part.shape) if part else [j for j, p in enumerate(law.form.parameters) if not p.log]
    fixed = [names.index(name) for name in fix or ()]
    others = [j for j in shape if j not in fixed]
    return (fixed, others) if len(law.draws) > len(others) + 1 else (sorted({*fixed, *others}), [])


def _starts(law: Law, problem: Problem) -> FloatArray:
    """The law and its draws, each with the amplitudes that suit the runs best."""
    points, part = problem.clipped(np.concatenate((law.theta[None], law.draws[:STARTS]))), law.form.linear
    return points if part is None else project(problem, part, points[:, part.shape])[0]


def _remark(law: Law, fixed: list[int], pulled: list[int]) -> str:
    names, parts = law.form.names, [f"calibrated from {law.name}"]
    if fixed:
        parts.append(f"kept {', '.join(names[j] for j in fixed)}")
    if pulled:
        parts.append(f"held {', '.join(names[j] for j in pulled)} to its draws")
    return "; ".join(parts)

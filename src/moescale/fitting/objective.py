"""What a fit minimises: the sum over runs of Huber_delta(ln Lhat - ln L), the objective of Yun et al.

It is summed, never averaged: an average would shrink the gradient and stop the search early.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InputError
from moescale.scaling_laws.form import Inputs, LawForm, Observed
from moescale.typing import FloatArray

HUBER_DELTA = 1e-3  # Yun et al. 2024, appendix C; Hoffmann et al. 2022

# Losses in any unit that is used lie well inside; far outside, the boxes of the forms, in nats, are empty.
LOSSES = (1e-2, 1e6)

Progress = Callable[[str, float], None]  # what is being done, and the share of it that is done


def huber(residual: FloatArray, delta: float = HUBER_DELTA) -> FloatArray:
    """Huber terms: r^2 / 2 within delta, delta (|r| - delta / 2) beyond."""
    size = np.abs(residual)
    small = np.minimum(size, delta)
    return small * (size - 0.5 * small)


def objective(form: LawForm, theta: FloatArray, x: Inputs, ln_loss: FloatArray) -> FloatArray:
    """Summed Huber objective at each theta, shape (...)."""
    return huber(form.log_loss(theta, x) - ln_loss).sum(axis=-1)


@dataclass(frozen=True, slots=True)
class Problem:
    """A form to fit to n runs, and the box (p, 2) that theta stays in."""

    form: LawForm
    x: Inputs
    ln_loss: FloatArray  # (n,)
    observed: Observed
    box: FloatArray

    @classmethod
    def of(cls, form: LawForm, x: Inputs, ln_loss: FloatArray) -> Problem:
        """The problem in the form's own box for these runs; InputError for losses that no box holds."""
        low, high = float(np.exp(ln_loss.min())), float(np.exp(ln_loss.max()))
        if not LOSSES[0] <= low <= high <= LOSSES[1]:
            what = f"losses from {low:g} to {high:g} are in no unit that {form.name} can be fitted in"
            advice = "state them in nats per token, or leave rows out with --where"
            raise InputError(what, nearest=f"losses from {LOSSES[0]:g} to {LOSSES[1]:g}", next_step=advice)
        observed = Observed(float(x.experts.max()), low, float(np.exp(x.ln_n.mean())))
        return cls(form, x, ln_loss, observed, form.bounds(observed))

    def thinned(self, most: int) -> Problem:
        """At most so many of the runs, spread evenly over their rows, in the same box."""
        if self.ln_loss.size <= most:
            return self
        rows = np.unique(np.linspace(0, self.ln_loss.size - 1, most).astype(np.intp))
        return replace(self, x=self.x.rows(rows), ln_loss=self.ln_loss[rows])

    def residual(self, theta: FloatArray) -> FloatArray:
        """ln Lhat - ln L of each run, (..., n)."""
        return self.form.log_loss(theta, self.x) - self.ln_loss

    def value(self, theta: FloatArray) -> FloatArray:
        """The objective at each theta, (...)."""
        return huber(self.residual(theta)).sum(axis=-1)

    def clipped(self, theta: FloatArray) -> FloatArray:
        """Each theta moved into the box."""
        return np.clip(theta, self.box[:, 0], self.box[:, 1])

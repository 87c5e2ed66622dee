"""Whether a form as fitted stays within what experts can do, also where a table has none of their counts."""

from __future__ import annotations

import numpy as np

from moescale.fitting.fit import Fit
from moescale.models.coordinates import in_family, model_of
from moescale.models.family import ModelFamily, n_total
from moescale.scaling_laws.form import make_inputs
from moescale.typing import FloatArray

EXPERTS = 2.0 ** np.arange(1, 11)  # up to 1,024 in a layer; published models have up to 512
BEYOND = 0.1  # of ln L: fits miss runs by 0.01, and 512 experts gain 0.12 in the runs of Clark et al. (2202.01169)
# Of the lowest loss measured. The floor of text is most of it: 1.69 of 2.0 nats and more in Hoffmann et al. (2203.15556).
LOWEST = 0.5


def fault(
    found: Fit, family: ModelFamily, n_params: FloatArray, tokens: FloatArray, experts: FloatArray, loss: FloatArray
) -> str | None:
    """What is impossible in the predictions of a fit for the family's models of 2 to 1,024 experts, or None.

    A model with experts is no worse than the dense one of its active size and no better than that of its total size, at
    equal tokens, by the fit's own prediction of both, and no loss is below half of the lowest measured. Looked at where
    sizes and tokens (n,) end. Runs of one expert count, and forms of further inputs or of all parameters, are not judged.
    """
    form = found.form
    if np.ptp(experts) == 0.0 or form.extra_inputs or family.n_counts == "total":
        return None
    ends = ([values.min(), values.max()] for values in (n_params, tokens))
    n, d, e = (grid.ravel() for grid in np.meshgrid(*ends, EXPERTS))
    body, x = model_of(family, n, e)

    def ln_loss(body: FloatArray, x: FloatArray) -> FloatArray:
        size, count = (body, x) if form.of_models else in_family(family, body, x)
        with np.errstate(over="ignore"):
            return form.log_loss(found.theta, make_inputs(size, d, count))

    dense = np.ones_like(x)
    sparse, active = ln_loss(body, x), ln_loss(body, dense)
    total = ln_loss(model_of(family, n_total(family, n, e), dense)[0], dense)
    faults = {
        "worse than a dense model of its active size": sparse > active + BEYOND,
        "better than a dense model of its total size": sparse < total - BEYOND,
        "below half of the lowest loss measured": sparse < np.log(LOWEST * loss.min()),
    }
    first = {what: e[where].min() for what, where in faults.items() if where.any()}
    if not first:
        return None
    what = min(first, key=lambda name: first[name])
    return f"predicts a model of {first[what]:g} experts {what}"

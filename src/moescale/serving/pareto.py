"""The Pareto frontier of two figures that both should be low: loss and cost, or dollars and time per token."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from moescale.typing import FloatArray


def pareto(cost: FloatArray, loss: FloatArray) -> npt.NDArray[np.intp]:
    """Indices of the points that no other point beats in both, by rising cost; along them loss falls strictly.

    Points with a cost or loss that is not finite are left out. Of points with equal cost the lowest loss stays.
    """
    finite = np.flatnonzero(np.isfinite(cost) & np.isfinite(loss))
    order = finite[np.lexsort((loss[finite], cost[finite]))]
    if order.size == 0:
        return order
    lowest_before = np.concatenate(([np.inf], np.minimum.accumulate(loss[order])[:-1]))
    return order[loss[order] < lowest_before]

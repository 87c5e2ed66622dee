"""Types that every room shares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
Real = float | FloatArray
Progress = Callable[[str, float], None]  # what is being done, and the share of it that is done

"""Search coordinates that most laws share: logarithms of positive parameters, and the usual physical box."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from moescale.scaling_laws.form import Parameter
from moescale.typing import FloatArray

# An amplitude of 1e-6 is as good as absent at any size; e^60 is beyond that of any term of a measurable loss.
AMPLITUDE = (float(np.log(1e-6)), 60.0)
EXPONENT = (0.0, 3.0)

Coordinates = Callable[[FloatArray], FloatArray]


def log_coordinates(parameters: tuple[Parameter, ...]) -> tuple[Coordinates, Coordinates]:
    """(encode, decode) for a form whose search moves ln of each parameter with `log` and all others as they are."""
    logs = [column for column, parameter in enumerate(parameters) if parameter.log]

    def encode(public: FloatArray) -> FloatArray:
        theta = np.array(public, dtype=float)
        theta[..., logs] = np.log(theta[..., logs])
        return theta

    def decode(theta: FloatArray) -> FloatArray:
        public = np.array(theta, dtype=float)
        public[..., logs] = np.exp(theta[..., logs])
        return public

    return encode, decode

"""The CPU side of a server: what scheduling, sampling and streaming add to the kernels of a pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from moescale import catalogue
from moescale.errors import unknown_name
from moescale.typing import FloatArray, Real


@dataclass(frozen=True, slots=True, kw_only=True)
class HostOverhead:
    """Time of the server's CPU side; published figures and their sources are in catalogue/servers.toml."""

    per_pass_s: float  # scheduling, sampling, input preparation of one pass
    per_sequence_s: float  # the same, for each running sequence
    gap_s: float  # what stays visible between two passes when the host works on the next one while the GPU runs
    # Whether the host works on the next pass while the GPU runs (vLLM's default since 0.14), so that the longer of the two
    # sets the pace. In line is the default: docs/evidence/serving.md says why.
    asynchronous: bool = False

    def pass_s(self, kernels_s: FloatArray, sequences: Real) -> FloatArray:
        """Seconds of passes whose kernels take `kernels_s` with `sequences` running; the arguments broadcast."""
        host_s = self.per_pass_s + self.per_sequence_s * np.asarray(sequences, dtype=np.float64)
        if self.asynchronous:
            return np.maximum(kernels_s, host_s) + self.gap_s
        return kernels_s + host_s


NO_OVERHEAD = HostOverhead(per_pass_s=0.0, per_sequence_s=0.0, gap_s=0.0)

HOSTS = {
    "none": "kernels alone",
    "in-line": "vLLM's published host times around each pass (as it ran before 0.14)",
    "asynchronous": "the same times while the GPU runs; the longer of the two sets the pace",
}


@cache
def default_overhead() -> HostOverhead:
    """The published host overheads of catalogue/servers.toml, in line with the kernels."""
    figures = {name: float(entry["value"]) for name, entry in catalogue.read("servers.toml")["host_overhead"].items()}
    return replace(NO_OVERHEAD, **figures)


def find_host(name: str) -> HostOverhead:
    """The host called `name` in HOSTS; raises InputError for another."""
    wanted = name.strip().lower()
    if wanted not in HOSTS:
        raise unknown_name("host", name, HOSTS)
    if wanted == "none":
        return NO_OVERHEAD
    return replace(default_overhead(), asynchronous=wanted == "asynchronous")

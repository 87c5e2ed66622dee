"""A closed loop: so many clients, each of which sends its next request when the last one is answered.

Meant is the usual benchmark of a server (vLLM's and InferenceX's): all C clients start at once, each sends R = ROUNDS
requests one after another, and the lengths scatter around their means (SPREAD). Times are means over all of its requests,
the first ones included; `plateau_ttft_s` leaves the first of each client out. Prompts are served in order of arrival, in
passes of at most T tokens (max_num_batched_tokens; where none is stated, the engine's default), of which k = T / p
are one prompt of p tokens each; where prompts ride in passes that decode, k may be below 1: a prompt takes 1/k passes.

    first round     C prompts at once: on average (C/k + max(1, 1/k)) / 2 passes of k prompts go by (one pass where C <= k)
    round r         requests that began together end together. Their ends scatter over w = n sqrt(12 (r - 1)) SPREAD passes
                    beside those of the first prompts, n at most, so that l = (b - 1)/w further prompts come in each pass:
                    TTFT = S + W + Q + own, with
                    S   from the client to the scheduler (REQUEST_S)
                    W   the rest of the pass under way, E[s^2] / 2 E[s] over passes of s seconds
                    Q   prompts ahead that do not fit into the own pass: with u = l/k of a pass's room taken, u / 2k(1 - u)
                        passes (M/D/1), and where more come than fit, half of what is left over at the end
                    own max(1, 1/k) passes of min(1 + l, k) prompts
    C beyond b      what memory and max_num_seqs do not hold queues for a place: (C - b)/X longer, X requests a second, and
                    in the first round (C - b)^2 / 2 C X.

The batch in service is what Little's law leaves of C beside the requests that wait, TPOT is that of `steady_state` at this
batch, and output_tok_s = C n / (TTFT + (n - 1) TPOT), again Little's law. tests/test_closed_loop.py holds all of it against
the simulator, whatever the kernels take.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from moescale.errors import InputError
from moescale.latency import LatencySource
from moescale.models.architecture import Architecture
from moescale.serving.deployment import Deployment
from moescale.serving.simulator import default_max_num_batched_tokens
from moescale.serving.steady_state import Servers, largest_batches
from moescale.typing import FloatArray, Real

# InferenceX (formerly InferenceMAX) sends 10 requests a client; vLLM's documentation starts its serving benchmarks with as
# many.
ROUNDS = 10
# Standard deviation over mean of lengths that are uniform in 0.8 to 1.0 of a nominal one, as InferenceX draws them.
SPREAD = 0.2 / math.sqrt(12.0) / 0.9
# Candidates, written before the formula had a score: 0, 10, 20 and 30 ms. Seen first: 75 development rows against the
# simulator, whose predictions were 0.60 of the measured times without and 0.74 with 10 ms.
REQUEST_S = 0.01
STEPS = 4  # of the batch towards Little's law: it moves by percents


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Figures of closed loops over the common shape of clients and servers; NaN where a server answers nothing."""

    clients: FloatArray
    batch: FloatArray  # in service at a time, of one replica
    output_tok_s: FloatArray  # of the whole deployment
    ttft_s: FloatArray  # means over a benchmark of ROUNDS requests a client
    tpot_s: FloatArray
    e2e_s: FloatArray
    plateau_ttft_s: FloatArray  # without the first request of each client

    def __post_init__(self) -> None: ...

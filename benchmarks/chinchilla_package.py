"""Chinchilla's law against the PyPI package `chinchilla`, on that package's own example.

    python benchmarks/chinchilla_package.py DF.csv --python PYTHON

DF.csv is examples/llm/df.csv of github.com/kyo-takano/chinchilla (235 rows of C, N, D, loss); PYTHON is an interpreter of an
environment that has the package (it pins nothing that this project needs). Both minimise the Huber loss (delta 1e-3) of ln L,
the package over the grid of its example (5 values of each of 5 parameters, BFGS, all cores). The table gives each one's
summed objective and wall-clock seconds.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from moescale import find_form, fit
from moescale.fitting.search import huber
from moescale.scaling_laws import make_inputs

PEER = """
import json, sys, time
from functools import partial
import matplotlib
matplotlib.use("Agg")
import numpy as np
from chinchilla import Chinchilla
from chinchilla._metrics import log_huber
five = lambda low, high: np.linspace(low, high, 5)
cc = Chinchilla(sys.argv[1], param_grid=dict(E=five(1.4, 2.0), a=five(1, 10), b=five(1, 10), alpha=five(0.1, 0.7),
                beta=five(0.1, 0.7)), loss_fn=partial(log_huber, delta=1e-3), log_level=40)
began = time.perf_counter()
cc.fit()
seconds = time.perf_counter() - began
print(json.dumps({"seconds": seconds, **{k: float(v) for k, v in cc.get_params().items()}}))
"""


def main() -> None:
    """Fit with both and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--python", required=True, help="interpreter of an environment with the package chinchilla")
    options = parser.parse_args()
    with options.runs.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    n, d, loss = (np.array([float(row[name]) for row in rows]) for name in ("N", "D", "loss"))
    form, x = find_form("chinchilla"), make_inputs(n, d, 1.0)

    began = time.perf_counter()
    ours = fit(form, n, d, np.ones_like(n), loss)
    ours_s = time.perf_counter() - began

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "df.csv").write_bytes(options.runs.read_bytes())
        done = subprocess.run([options.python, "-c", PEER, folder], capture_output=True, text=True, check=True)
    peer = json.loads(done.stdout.strip().splitlines()[-1])
    theta = form.encode(np.array([peer[name] for name in form.names]))
    peer_objective = float(huber(form.log_loss(theta, x) - np.log(loss)).sum())

    print(f"{len(rows)} runs; summed Huber objective, delta 1e-3")
    print(f"{'':<12}{'objective':>16}{'seconds':>10}   " + "".join(f"{name:>11}" for name in form.names))
    for label, value, seconds, values in (
        ("moescale", ours.objective, ours_s, ours.parameters),
        ("chinchilla", peer_objective, peer["seconds"], peer),
    ):
        print(
            f"{label:<12}{value:>16.9e}{seconds:>10.2f}   " + "".join(f"{values[name]:>11.5g}" for name in form.names)
        )
    print(f"objective {ours.objective / peer_objective - 1:+.1e} relative; {peer['seconds'] / ours_s:.0f} times faster")


if __name__ == "__main__":
    main()

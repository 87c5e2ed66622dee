"""Write examples/runs.csv: SYNTHETIC runs drawn from the catalogue's recovered law with 0.3% noise.

    python scripts/make_example_runs.py

The grid is the paper's sweep (table 1): 4 sizes, 5 token counts, E = 1, 4, 8, 16, 32. No model was trained for this table;
it lets every command of the README run in a fresh clone.
"""

from __future__ import annotations

import argparse
import tomllib
from importlib import resources
from pathlib import Path

import numpy as np

from moescale.models.family import n_active, n_total
from moescale.runs.table import write_runs
from moescale.scaling_laws import find_law, loss

NOISE, SEED = 0.003, 0
EXPERTS = (1.0, 4.0, 8.0, 16.0, 32.0)


def main() -> None:
    """Draw the runs and write them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=Path("examples/runs.csv"))
    options = parser.parse_args()
    text = (resources.files("moescale.catalogue") / "published_yun2024.toml").read_text(encoding="utf-8")
    sweep = tomllib.loads(text)["sweep"]
    n, d, e = (
        grid.ravel().astype(float) for grid in np.meshgrid(sweep["n_params"], sweep["tokens"], EXPERTS, indexing="ij")
    )
    law = find_law("yun2024-recovered")
    noise = np.random.default_rng(SEED).normal(0.0, NOISE, n.size)
    columns = {
        "n_params_dense": n,
        "n_params_active": np.round(n_active(law.family, n, e)),
        "n_params_total": np.round(n_total(law.family, n, e)),
        "n_experts": e,
        "top_k": np.minimum(e, law.family.top_k),
        "tokens": d,
        "loss": np.round(loss(law, n, d, e) * np.exp(noise), 5),
        "origin": np.full(n.size, "synthetic"),
    }
    write_runs(columns, options.output)


if __name__ == "__main__":
    main()

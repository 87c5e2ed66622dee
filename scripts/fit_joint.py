"""Fit equation 4 of Yun et al. 2024, or moescale2026, to the MoE runs of "Joint MoE Scaling Laws" (arXiv 2502.05172).

    python scripts/fit_joint.py RUNS.csv                        writes the catalogue's yun2024-joint.toml
    python scripts/fit_joint.py RUNS.csv --form moescale2026    writes the catalogue's moescale2026-joint.toml

RUNS.csv has a row a run with n_params_active, n_params_total, n_experts, top_k, tokens and loss, taken from
llm-random/llm-random-cemetery at commit 902def74 (Apache-2.0). Under-trained runs (tokens / n_params_active < 2) are left
out: their losses violate monotonicity in E.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from moescale.fitting.bootstrap import bootstrap
from moescale.fitting.fit import fit
from moescale.fitting.workflow import fitted_law
from moescale.io.files import write_atomically
from moescale.models.family import find_family
from moescale.runs.table import read_runs
from moescale.scaling_laws import find_form, law_text, make_inputs

FILTER = "tokens / n_params_active >= 2"
REPLICATES, SEED = 100, 0
DATE = "2026-11-21"
CALLED = {"yun2024": "equation 4", "moescale2026": "moescale2026"}
LAWS = Path("src/moescale/catalogue/laws")


def main() -> None:
    """Fit, resample, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--form", choices=CALLED, default="yun2024")
    parser.add_argument("--law", type=Path, help="the file to write, by default the catalogue's")
    options = parser.parse_args()
    runs = read_runs(options.runs, size_column="n_params_active", where=FILTER)
    found = fit(find_form(options.form), runs.n_params, runs.tokens, runs.experts, runs.loss)
    x = make_inputs(runs.n_params, runs.tokens, runs.experts)
    law = fitted_law(
        found,
        find_family("ludziejewski2025"),
        name=f"{options.form}-joint",
        source=f"{CALLED[options.form]} fitted by scripts/fit_joint.py to the 234 runs of arXiv 2502.05172 with D/N >= 2",
        date=DATE,
        draws=bootstrap(found, x, np.log(runs.loss), REPLICATES, SEED),
        evidence={
            "where": FILTER,
            "size_column": "n_params_active",
            "table_sha256": runs.sha256 or "",
            "bootstrap": REPLICATES,
            "seed": SEED,
        },
    )
    write_atomically(options.law or LAWS / f"{law.name}.toml", law_text(law))
    print(f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, mean Huber {found.huber:.4g}")


if __name__ == "__main__":
    main()

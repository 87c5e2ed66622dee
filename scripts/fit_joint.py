"""Fit equation 4 of Yun et al. 2024, or moescale2026, to the MoE runs of "Joint MoE Scaling Laws" (arXiv 2502.05172).

    python scripts/fit_joint.py RUNS.csv                        writes the catalogue's yun2024-joint.toml
    python scripts/fit_joint.py RUNS.csv --form moescale2026    writes the catalogue's moescale2026-joint.toml

RUNS.csv has a row a run with n_params_active, n_params_total, n_experts, top_k, tokens and loss, taken from
llm-random/llm-random-cemetery at commit 902def74 (Apache-2.0). Under-trained runs (tokens / n_params_active < 2) are left
out: their losses violate monotonicity in E. Equation 4 counts active parameters with both embedding tables; moescale2026 speaks of
models, so its N is the active body (n_params_active_nonemb), its E the expansion, which for top-1 in every layer is n_experts.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np

from moescale.fitting.fit import bootstrap, fit
from moescale.fitting.workflow import fitted_law
from moescale.io.files import write_atomically
from moescale.models.family import find_family
from moescale.runs.table import read_runs
from moescale.scaling_laws import find_form, law_text, make_inputs

FILTER = "tokens / n_params_active >= 2"
REPLICATES, SEED = {"yun2024": 100, "moescale2026": 60}, 0
DATE = {"yun2024": "2026-11-21", "moescale2026": "2026-11-22"}
CALLED = {"yun2024": "equation 4", "moescale2026": "moescale2026"}
LAWS = Path("src/moescale/catalogue/laws")


def main() -> None:
    """Fit, resample, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", type=Path)
    parser.add_argument("--form", choices=CALLED, default="yun2024")
    parser.add_argument("--law", type=Path, help="the file to write, by default the catalogue's")
    options = parser.parse_args()
    form, family = find_form(options.form), find_family("ludziejewski2025")
    size_column = "n_params_active_nonemb" if form.of_models else "n_params_active"
    if form.of_models:
        family = replace(family, name="ludziejewski2025-body", vocab_size=0.0, embedding_matrices=0)
    runs = read_runs(options.runs, size_column=size_column, where=FILTER)
    found = fit(form, runs.n_params, runs.tokens, runs.experts, runs.loss)
    x = make_inputs(runs.n_params, runs.tokens, runs.experts)
    law = fitted_law(
        found,
        family,
        name=f"{options.form}-joint",
        source=f"{CALLED[options.form]} fitted by scripts/fit_joint.py to the 234 runs of arXiv 2502.05172 with D/N >= 2",
        date=DATE[form.name],
        draws=bootstrap(found, x, np.log(runs.loss), REPLICATES[form.name], SEED),
        evidence={
            "where": FILTER,
            "size_column": size_column,
            "table_sha256": runs.sha256 or "",
            "bootstrap": REPLICATES[form.name],
            "seed": SEED,
        },
    )
    # Draws in six digits, far below their spread.
    law = replace(
        law, draws=form.encode(np.array([[float(f"{v:.6g}") for v in row] for row in form.decode(law.draws)]))
    )
    write_atomically(options.law or LAWS / f"{law.name}.toml", law_text(law))
    print(f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, mean Huber {found.huber:.4g}")


if __name__ == "__main__":
    main()

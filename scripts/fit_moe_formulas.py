"""Write catalogue/moe_formulas.toml: the experts' formula fitted to every kernel table that is asked by default.

python scripts/fit_moe_formulas.py [--check]

--check writes nothing and exits 1 where the file does not hold what the fits give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np

from moescale.io.files import write_atomically
from moescale.latency.kernels.formats import KINDS
from moescale.latency.kernels.moe import LOAD, Formula, Rows, formula_s, moe_rows
from moescale.latency.kernels.tables import System, default_version, engines, find_system, measured_formats, systems
from moescale.typing import FloatArray

FILE = Path("src/moescale/catalogue/moe_formulas.toml")
# Of the formula's constants, in their order: where a fit begins, and what it stays in.
START = (20.0, 0.8, 0.4, 2.0, 1.0, 1.0, 0.4, 4.0, 1.0)
LOWEST = (1.0, 0.1, 0.05, 1.0, 0.01, 0.05, 0.01, 0.1, 0.01)
HIGHEST = (300.0, 1.5, 1.2, 8.0, 20.0, 50.0, 1.0, 64.0, 50.0)


def fit_formula(rows: Rows, system: System, kind: str, start: Formula | None = None) -> Formula:
    """Least squares on the logarithms, robust to outlying rows (soft L1 beyond 10%)."""
    from scipy.optimize import least_squares

    measured = np.log(rows.latency_s)

    def off(logs: FloatArray) -> FloatArray:
        return np.log(formula_s(Formula(*np.exp(logs)), rows.shape, system, kind)) - measured

    low, high = np.log(LOWEST), np.log(HIGHEST)
    first = np.clip(np.log(START if start is None else astuple(start)), low, high)
    found = least_squares(off, first, loss="soft_l1", f_scale=0.1, bounds=(low - 1e-9, high + 1e-9))
    return Formula(*np.exp(found.x).tolist())


def fitted() -> Iterator[tuple[str, str, str, str, Formula]]:
    """System, engine, version, number format and formula of every default table."""
    for system in systems():
        measured_on = find_system(system)
        for engine in engines(system):
            version = default_version(system, engine)
            for kind in KINDS:
                if kind in measured_formats("moe", system, engine, version):
                    rows = moe_rows(system, engine, version, kind)
                    yield system, engine, version, kind, fit_formula(rows, measured_on, kind)


def content() -> str:
    """The file's text."""
    names = ", ".join(Formula.__slots__)
    lines = [
        "# Formula of latency/kernels/moe.py, fitted to the kernel tables of aiconfigurator-core 0.12.0; written by",
        "# `python scripts/fit_moe_formulas.py`, so that no command waits for the fit.",
        f"# constants = {names}",
        "",
    ]
    for system, engine, version, kind, formula in fitted():
        values = ", ".join(f"{getattr(formula, name):.9g}" for name in Formula.__slots__)
        lines += [
            "[[formula]]",
            f'system = "{system}"',
            f'engine = "{engine}"',
            f'version = "{version}"',
            f'kind = "{kind}"',
            f'load = "{LOAD}"',
            f"constants = [{values}]",
            "",
        ]
    return "\n".join(lines)


def main() -> int:
    """Write or check."""
    text = content()
    if "--check" in sys.argv[1:]:
        return 0 if FILE.read_text(encoding="utf-8") == text else 1
    write_atomically(FILE, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Write catalogue/moe_formulas.toml: the experts' formula fitted to every kernel table that is asked by default.

python scripts/fit_moe_formulas.py [--check]

--check writes nothing and exits 1 where the file does not hold what the fits give.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from moescale.io.files import write_atomically
from moescale.latency.card import LOAD
from moescale.latency.kernels.formats import KINDS
from moescale.latency.kernels.moe import Formula, fit_formula, moe_rows
from moescale.latency.kernels.tables import default_version, engines, find_system, measured_formats, systems

FILE = Path("src/moescale/catalogue/moe_formulas.toml")


def fitted() -> Iterator[tuple[str, str, str, str, Formula]]:
    """System, engine, version, number format and formula of every default table."""
    for system in systems():
        measured_on = find_system(system)
        for engine in engines(system):
            version = default_version(system, engine)
            for kind in KINDS:
                if kind in measured_formats("moe", system, engine, version):
                    rows = moe_rows(system, engine, version, kind, LOAD)
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

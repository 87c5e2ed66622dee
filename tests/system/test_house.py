"""The picture of the house: the layers in pyproject.toml hold, and importing the package is light."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import moescale
from reference_data import ROOT

# Libraries that `import moescale` must not load: each costs 0.1 s or more, or belongs to an extra.
HEAVY = {
    "scipy", "pandas", "polars", "pyarrow", "matplotlib", "torch", "transformers", "datasets", "fastapi",
    "aiconfigurator_core", "narwhals",
}  # fmt: skip
# What the command line is made of; the library loads it where it reads settings and writes answers.
OF_THE_COMMAND_LINE = {"typer", "rich", "pydantic", "jinja2"}
# Modules that are nothing without such a library.
EAGER = ("moescale.experiments", "moescale.web", "moescale.__main__")


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_layers_hold() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_importing_the_package_loads_no_heavy_library() -> None:
    assert _loaded_by("import moescale") & (HEAVY | OF_THE_COMMAND_LINE) == set()


def test_no_module_loads_a_heavy_library_before_it_is_used() -> None:
    names = [module.name for module in pkgutil.walk_packages(moescale.__path__, "moescale.")]
    light = [name for name in names if not name.startswith(EAGER)]
    assert len(light) > 100
    assert _loaded_by(f"import {', '.join(light)}") & HEAVY == set()

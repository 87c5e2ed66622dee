"""Scripts of the repository as modules, for the tests of several files."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from reference_data import ROOT

NO_PACKAGE = importlib.util.find_spec("aiconfigurator_core") is None
needs_package = pytest.mark.skipif(NO_PACKAGE, reason="needs the rows, configs or engine of the kernel package")

sys.path += [str(ROOT / "scripts"), str(ROOT / "benchmarks")]  # where they find each other


def imported(name: str) -> ModuleType:
    """A module that scripts or benchmarks import, as they have it."""
    return importlib.import_module(name)


def load_script(path: str) -> ModuleType:
    """The script at a path of the repository, under a name of its own: some are called as libraries are."""
    name = "script_" + path.removesuffix(".py").replace("/", "_")
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module

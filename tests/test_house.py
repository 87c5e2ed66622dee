"""The picture of the house: which module may import which, drawn from the source and checked."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "moescale"
SOURCE = Path(__file__).parents[1] / "src" / PACKAGE

# From the ground up. A module imports from its own layer and from those above it in this table (below it in the house);
# a package such as latency/ counts as one module.
LAYERS: dict[str, tuple[str, ...]] = {
    "ground": ("errors", "units", "files", "locks", "interrupts", "toml_table", "expressions"),
    "facts": ("catalogue", "recipe", "architecture", "accounting", "hardware", "hosts", "traffic", "family"),
    "tables": ("tables", "runs", "importers", "latency"),
    "mathematics": (
        "laws",
        "grid",
        "grid_kernel",
        "fitting",
        "calibration",
        "uncertainty",
        "validation",
        "isoflop",
        "serving",
        "frontier",
        "serving_sweep",
        "burst",
    ),
    "decisions": (
        "allocation",
        "lifetime",
        "candidates",
        "spread",
        "buildable",
        "as_built",
        "export",
        "wording",
        "lifetime_plan",
        "planning",
        "second_laws",
        "plan_file",
        "draft",
    ),
    "experiments": ("training", "profiling"),
    "presentation": (
        "answers",
        "figures",
        "notebook",
        "report",
        "reproduce",
        "console",
        "cli",
        "web",
        "__init__",
        "__main__",
    ),
}
# Experiments need libraries that most installs lack: only the command line starts them.
IMPORTERS_OF_EXPERIMENTS = ("cli",)

# Libraries that `import moescale` must not load: each costs 0.1 s or more, or belongs to an extra.
UNLOADED = (
    "scipy",
    "pandas",
    "polars",
    "pyarrow",
    "matplotlib",
    "torch",
    "transformers",
    "fastapi",
    "aiconfigurator_core",
    "numba",
    "typer",
    "rich",
    "pydantic",
    "narwhals",
)
# Of these, the ones that are imported inside the functions that use them, wherever they are used ..
LAZY = tuple(name for name in UNLOADED if name not in ("typer", "rich", "pydantic"))
# .. except in modules that are nothing without them.
EAGER_MODULES = ("training", "profiling", "web", "grid_kernel")


@dataclass(frozen=True)
class Import:
    """One import statement: the file's dotted name within the package, what it imports, and when it runs."""

    importer: str
    imported: str
    line: int
    at_import_time: bool

    def __str__(self) -> str:
        return f"{self.importer} (line {self.line}) imports {self.imported}"


def _room(dotted: str) -> str:
    """The part of the house that a dotted name within the package belongs to."""
    return dotted.split(".", maxsplit=1)[0]


def _dotted(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _statements(node: ast.AST, at_import_time: bool = True) -> Iterable[tuple[ast.Import | ast.ImportFrom, bool]]:
    """Every import statement, and whether it runs when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, at_import_time
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from (
                (statement, False) for part in child.body for statement, _ in _statements(ast.Module([part], []))
            )
            yield from _statements(ast.Module(child.orelse, []), at_import_time)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _statements(child, at_import_time and not in_function)


def _read(root: Path) -> tuple[set[str], list[Import], list[Import]]:
    """The modules under `root`, the imports among them, and the imports of other libraries."""
    files = {_dotted(path, root): path for path in sorted(root.rglob("*.py"))}
    inside: list[Import] = []
    outside: list[Import] = []
    for name, path in files.items():
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for statement, at_import_time in _statements(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(statement, package if package != "__init__" else ""):
                where, line = (inside if target.split(".")[0] == PACKAGE else outside), statement.lineno
                imported = target
                if where is inside:
                    imported = target.partition(".")[2] or "__init__"
                    while imported not in files and "." in imported:  # a name in a module
                        imported = imported.rpartition(".")[0]
                    if imported not in files and not (root / imported).is_dir():  # a name of the package itself
                        imported = "__init__"
                where.append(Import(name, imported, line, at_import_time))
    return set(files), inside, outside


def _targets(statement: ast.Import | ast.ImportFrom, package: str) -> list[str]:
    """The absolute dotted names that a statement imports; `package` is the one that holds it, within moescale."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    base = statement.module or ""
    if statement.level:
        parts = [PACKAGE, *package.split(".")] if package else [PACKAGE]
        base = ".".join([*parts[: len(parts) - statement.level + 1], *([base] if base else [])])
    if base.split(".")[0] != PACKAGE:
        return [base]
    return [f"{base}.{alias.name}" for alias in statement.names]


def _cycle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """Some cycle of a graph, as the list of its nodes, or None."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str] | None:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        for target in sorted(edges.get(node, ())):
            if found := visit(target, [*path, node]):
                return found
        done.add(node)
        return None

    return next((found for node in sorted(edges) if (found := visit(node, []))), None)


def _faults(root: Path) -> list[str]:
    """Everything in the package under `root` that breaks the order of the house, in words."""
    level = {room: height for height, rooms in enumerate(LAYERS.values()) for room in rooms}
    layer = {room: name for name, rooms in LAYERS.items() for room in rooms}
    modules, imports, libraries = _read(root)
    faults = [
        f"{room} has no place in the house: put it in LAYERS"
        for room in sorted({_room(name) for name in modules} - set(level))
    ]
    known = [arrow for arrow in imports if _room(arrow.importer) in level and _room(arrow.imported) in level]
    for arrow in known:
        importer, imported = _room(arrow.importer), _room(arrow.imported)
        if level[imported] > level[importer]:
            faults.append(f"{arrow}: upwards, from {layer[importer]} to {layer[imported]}")
        elif layer[imported] == "experiments" and importer not in (*IMPORTERS_OF_EXPERIMENTS, *LAYERS["experiments"]):
            faults.append(f"{arrow}: only {', '.join(IMPORTERS_OF_EXPERIMENTS)} may import experiments")
    between: dict[str, set[str]] = {}
    within: dict[str, set[str]] = {}
    for arrow in imports:
        if _room(arrow.importer) != _room(arrow.imported):
            between.setdefault(_room(arrow.importer), set()).add(_room(arrow.imported))
        if arrow.at_import_time and arrow.importer != arrow.imported:
            within.setdefault(arrow.importer, set()).add(arrow.imported)
    cycles = (_cycle(graph) for graph in (between, within))
    faults.extend(f"a cycle: {' -> '.join(cycle)}" for cycle in cycles if cycle)
    faults.extend(
        f"{arrow} when it is itself imported: move it into the function that uses it"
        for arrow in libraries
        if arrow.at_import_time and arrow.imported.split(".")[0] in LAZY and _room(arrow.importer) not in EAGER_MODULES
    )
    return faults


@pytest.mark.system
def test_the_house_is_in_order() -> None:
    assert _faults(SOURCE) == []


def test_no_module_stands_in_two_places() -> None:
    rooms = [room for rooms in LAYERS.values() for room in rooms]
    assert len(rooms) == len(set(rooms))


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        ({"errors.py": "from moescale.laws import yun2024", "laws/__init__.py": ""}, "upwards, from ground to mathem"),
        ({"errors.py": "import moescale.cli", "cli.py": ""}, "upwards, from ground to presentation"),
        ({"errors.py": "from moescale import __version__", "__init__.py": ""}, "errors (line 1) imports __init__: up"),
        (
            {"serving.py": "def f():\n    from . import planning", "planning.py": ""},
            "(line 2) imports planning: upwards",
        ),
        (
            {
                "runs.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from moescale.fitting import Fit",
                "fitting.py": "",
            },
            "runs (line 3) imports fitting: upwards",
        ),
        (
            {"latency/table.py": "from ..serving import Cost", "serving.py": ""},
            "latency.table (line 1) imports serving",
        ),
        (
            {"units.py": "import moescale.files", "files.py": "def f():\n    import moescale.units"},
            "cycle: files -> units",
        ),
        ({"laws/a.py": "from moescale.laws import b", "laws/b.py": "from .a import f"}, "a cycle: laws.a -> laws.b"),
        (
            {"web/app.py": "from moescale.training import sweep", "training/sweep.py": ""},
            "only cli may import experiments",
        ),
        ({"helpers.py": ""}, "helpers has no place in the house"),
        ({"runs.py": "import pyarrow.csv as c"}, "runs (line 1) imports pyarrow.csv when it is itself imported"),
        ({"fitting.py": "from scipy import optimize"}, "fitting (line 1) imports scipy"),
    ],
)
def test_disorder_is_noticed(tmp_path: Path, files: dict[str, str], fault: str) -> None:
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    faults = _faults(tmp_path)
    assert len(faults) == 1, faults
    assert fault in faults[0]


def test_order_is_not_mistaken_for_disorder(tmp_path: Path) -> None:
    for name, text in {
        "cli.py": "import typer\nfrom moescale.training import sweep\nfrom moescale import runs, units",
        "runs.py": "import numpy\nfrom moescale.units import parse\ndef f():\n    import pyarrow",
        "units.py": "",
        "training/sweep.py": "import torch\nfrom moescale.profiling import vllm",
        "profiling/vllm.py": "",
        "latency/__init__.py": "def load():\n    from moescale.latency.table import Table",
        "latency/table.py": "from moescale.latency import LatencySource",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert _faults(tmp_path) == []


def test_importing_the_package_loads_no_heavy_library() -> None:
    code = f"import sys, {PACKAGE}; print(*sorted({set(UNLOADED)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

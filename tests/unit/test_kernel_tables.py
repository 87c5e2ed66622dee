"""The catalogue's kernel tables: digit for digit those of the package they were taken from, and enough without it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from moescale.latency.kernels import tables
from moescale.latency.kernels.tables import PackedTable
from moescale.typing import FloatArray
from processes import environment
from script_modules import load_script

KERNELS = {
    (system, key): PackedTable(system, key, entry)
    for system, found in tables.index()["systems"].items()
    for key, entry in found["tables"].items()
}
needs_package = pytest.mark.skipif(not tables.present(), reason="compares with the extra `kernels`")


def sorted_rows(columns: dict[str, FloatArray]) -> FloatArray:
    rows = np.stack([columns[name] for name in sorted(columns)])
    return rows[:, np.lexsort(rows)]


def assert_equal_digits(table: PackedTable) -> int:
    """Every block of the table against the same rows of the package's file; the number of rows."""
    path = tables.root() / "data" / table.entry["from"]
    count = 0
    for block in table.entry["blocks"]:
        equal = dict(zip(table.entry["texts"], block["texts"], strict=True))
        names = (*table.entry["sizes"], *block["units"])
        ours, theirs = (t.read_columns(names, **equal) for t in (table, tables.InstalledTable(path)))
        if table.key.endswith(("mla_context_module_perf", "dsa_context_module_perf")):
            theirs = {name: values[theirs["step"] == 0] for name, values in theirs.items()}
        assert np.array_equal(sorted_rows(ours), sorted_rows(theirs)), (table.system, table.key, equal)
        count += block["rows"]
    return count


@needs_package
def test_systems_engines_and_current_versions_are_the_packages() -> None:
    package = load_script("scripts/make_kernel_tables.py")
    assert tables.systems() == package.systems()
    for system in tables.systems():
        assert tables.find_system(system) == package.find_system(system)
        assert tables.engines(system) == package.engines(system)
        for engine in tables.engines(system):
            assert tables.default_version(system, engine) == package.default_version(system, engine)


@needs_package
@pytest.mark.system
def test_every_digit_of_some_systems_is_the_packages() -> None:
    some = [table for (system, _), table in KERNELS.items() if system in ("a100_sxm", "b60", "l40s")]
    assert sum(map(assert_equal_digits, some)) > 200_000


@needs_package
@pytest.mark.engine  # reads all tables
def test_every_digit_of_every_table_is_the_packages() -> None:
    for table in KERNELS.values():
        assert_equal_digits(table)
        path = tables.root() / "data" / table.entry["from"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == table.entry["sha256"]


@needs_package
@pytest.mark.parametrize("family", ["gemm", "attention", "moe", "comm", "mla", "sparse_attention", "kda"])
def test_a_table_is_found_where_the_package_finds_it(family: str) -> None:
    version = tables.default_version("h100_sxm", "vllm")
    keys = [key for system, key in KERNELS if system == "h100_sxm" and key.startswith(f"{family}/vllm/{version}/")]
    assert keys
    for key in keys:
        stem = key.rpartition("/")[2]
        found = tables.find_installed("h100_sxm", family, "vllm", version, stem)
        assert found.path.as_posix().endswith(KERNELS["h100_sxm", key].entry["from"])


def test_the_tables_say_where_they_come_from() -> None:
    folder = resources.files("moescale.catalogue") / tables.FOLDER
    notice = (folder / "NOTICE").read_text(encoding="utf-8")
    assert "NVIDIA CORPORATION" in notice
    assert "Apache License, Version 2.0" in notice
    assert "aiconfigurator-core 0.12.0" in notice
    assert tables.index()["source"].startswith("aiconfigurator-core 0.12.0")
    assert all(len(table.entry["sha256"]) == 64 for table in KERNELS.values())


def run_without(hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as if these packages were not tables."""
    hide = "".join(f"sys.modules[{name!r}] = None; " for name in hidden.split())
    code = f"import sys; {hide}from moescale.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=120)


ABSENT = "aiconfigurator_core pyarrow pandas yaml narwhals"
MIXTRAL = ("cost", "mixtral-8x7b", "--gpu", "h100-sxm", "--max-gpus", "2", "--json")


@pytest.mark.system
@pytest.mark.parametrize(
    "arguments",
    [MIXTRAL, pytest.param(("plan", "--budget", "1e21", "--bootstrap", "0", "--json"), marks=pytest.mark.fuzz)],
)
def test_measured_kernels_answer_alike_with_and_without_the_package(arguments: tuple[str, ...]) -> None:
    answers = [run_without(hidden, *arguments, "--latency", "silicon") for hidden in (ABSENT, "")]
    assert [done.returncode for done in answers] == [0, 0], answers[0].stderr
    one, other = (json.loads(done.stdout) for done in answers)
    for answer in (one, other):
        answer.pop("made_with", None)
    assert one == other
    assert one["latency_source"] == "silicon"


@pytest.mark.system
def test_another_engine_needs_the_extra() -> None:
    refused = run_without(ABSENT, "cost", "mixtral-8x7b", "--gpu", "h200-sxm", "--latency", "silicon:trtllm")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pip install '.[kernels]'" in refused.stderr
    assert "Traceback" not in refused.stderr

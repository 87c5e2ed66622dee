"""What CONTRIBUTING.md tells is so: its recipes work as they stand, and what it names is there."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from moescale import catalogue
from moescale.fitting.fit import fit
from moescale.hardware import gpus as hardware
from moescale.hardware.gpus import find_gpu, read_gpu
from moescale.latency.roofline import Roofline
from moescale.models.published import shapes
from moescale.scaling_laws import LawForm, find_form, make_inputs
from moescale.scaling_laws import store as law_store
from reference_data import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    """The only block of this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)
    return found


@pytest.fixture
def law(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LawForm:
    """The law of the page as the module it is told to be, and as the row it is told to be."""
    module = ModuleType("moescale.scaling_laws.example2026")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("from __future__ import annotations\n\n" + block("python"), "example2026.py", "exec"), module.__dict__)
    monkeypatch.setitem(law_store.FORMS, module.FORM.name, module.FORM)
    return module.FORM


def test_every_file_and_every_name_of_the_code_is_there() -> None:
    named = set(re.findall(r"(?:src|tests|scripts|docs|examples)/[\w./-]*\w", PAGE))
    assert len(named) > 15
    assert [name for name in sorted(named) if "NAME" not in name and not (ROOT / name).exists()] == []
    for name, file in {
        "FORMS": "scaling_laws/store.py", "open_latency": "latency/open.py", "TRACKERS": "runs/importers/__init__.py",
        "TrackedRun": "runs/importers/tracked_run.py",
        "LatencySource": "latency/__init__.py",
    }.items():  # fmt: skip
        assert f"`{name}`" in PAGE
        assert re.search(rf"\b{name}\b", (ROOT / "src" / "moescale" / file).read_text(encoding="utf-8")), name


def test_every_make_target_is_there_and_every_script_that_writes_a_tracked_file_regenerated_once() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = [
        name
        for names in re.findall(r"^(?:GENERATORS|BY_NAME) := (.*)$", makefile.replace("\\\n", " "), re.MULTILINE)
        for name in names.split()
    ]
    # Parts of the site's build and of `make page`, what scripts share, and a script that takes the runs that it is given.
    others = ["site_hooks", "document_reference", "draw_figures", "store_page", "pages", "modern_experts", "fit_joint"]
    others += ["left_out_kernels", "equal_loss", "walk", "pooling", "leverage"]
    assert sorted([*listed, *others]) == sorted(["page", *(path.stem for path in (ROOT / "scripts").glob("*.py"))])
    assert listed.index("refresh_docs") > max(listed.index(name) for name in listed if name.startswith("document_"))
    for target in set(re.findall(r"^make (\w[\w-]*)", PAGE, flags=re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_law_of_the_page_is_known_and_fits(law: LawForm) -> None:
    assert find_form("example2026") is law
    truth = np.array([400.0, 0.34, 410.0, 0.28])
    n, d = (grid.ravel() for grid in np.meshgrid(np.geomspace(1e8, 1e10, 6), np.geomspace(1e9, 1e11, 6)))
    theta = law.encode(truth)
    measured = np.exp(law.log_loss(theta, make_inputs(n, d, 1.0)))
    np.testing.assert_allclose(measured, 400 / n**0.34 + 410 / d**0.28, rtol=1e-12)
    found = fit(law, n, d, np.ones_like(n), measured, starts=8)
    np.testing.assert_allclose([found.parameters[name] for name in law.names], truth, rtol=1e-4)


def test_the_gpu_of_the_page_is_a_row_of_the_catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = tomllib.loads(block("toml"))["gpu"]
    ((name, row),) = rows.items()
    file = tmp_path / "gpu.toml"
    file.write_text(f'name = "{name}"\n' + block("toml").partition("\n")[2], encoding="utf-8")
    own = read_gpu(file)
    assert own.memory_bytes == row["memory_gib"] * 2**30

    read = catalogue.read
    extended = {**read("gpus.toml"), "gpu": {**read("gpus.toml")["gpu"], **rows}}
    try:
        with monkeypatch.context() as patched:
            patched.setattr(catalogue, "read", lambda file: extended if file == "gpus.toml" else read(file))
            hardware.gpus.cache_clear()
            found = find_gpu(name)
    finally:
        hardware.gpus.cache_clear()
    assert (found.memory_bytes, found.bf16_flops_per_s) == (own.memory_bytes, own.bf16_flops_per_s)
    model = next(iter(shapes().values()))
    assert 0 < Roofline(found).decode_s(model, 8, 16, 512) < Roofline(find_gpu("l4")).decode_s(model, 8, 16, 512)

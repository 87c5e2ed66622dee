"""The package as it is shipped: all data inside, nothing else, and a plan from a clean environment."""

from __future__ import annotations

import email.message
import importlib.util
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import moescale
from reference_data import ROOT

SOURCE = ROOT / "src"
INPUTS = (
    "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff",
    "CONTRIBUTING.md", "Makefile", "constraints.txt", "constraints-ci.txt", "mkdocs.yml",
)  # fmt: skip
FOLDERS = ("benchmarks", "docs", "examples", "scripts", "src", "tests", "web")
MIB = 2**20
# From where the package reads at run time: whatever lies there must travel.
DATA_FOLDERS = ("catalogue", "views/html", "export", "web/static")


def environment(**extra: str) -> dict[str, str]:
    """The environment without this checkout's sources."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | extra


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is built, so that no build output lands in the checkout."""
    folder = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "node_modules")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in INPUTS:
        shutil.copy(ROOT / name, folder)
    # What a checkout in use holds beside its sources.
    for name in ("web/node_modules/vega/index.js", "tests/__pycache__/conftest.pyc", "docs/.cache"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("built", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def built(tree: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, built by the setuptools at hand."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]
    least = next(int(text.partition(">=")[2]) for text in wanted if text.startswith("setuptools"))
    if importlib.util.find_spec("setuptools") is None or int(metadata.version("setuptools").split(".")[0]) < least:
        pytest.skip(f"building needs setuptools >= {least} (extra `test`)")
    code = "from setuptools import build_meta as b; print(b.build_wheel('dist')); print(b.build_sdist('dist'))"
    made = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    (wheel,), (sdist,) = (list((tree / "dist").glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    return wheel, sdist


def files_below(folder: Path) -> set[str]:
    """The files of a folder of the package that are shipped, relative to the sources."""
    return {
        path.relative_to(SOURCE).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_module_and_all_data(built: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(built[0]) as archive:
        shipped = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = SOURCE / "moescale"
    data = {name for folder in DATA_FOLDERS for name in files_below(package / folder)}
    assert {"moescale/catalogue/gpus.toml", "moescale/views/html/page.css"} <= data
    modules = {path.relative_to(SOURCE).as_posix() for path in package.rglob("*.py")}
    assert shipped == modules | data | {"moescale/py.typed", "moescale/__init__.pyi"}


def metadata_of(wheel: Path) -> email.message.Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        return email.message_from_bytes(archive.read(name))


def test_the_wheel_says_what_it_is_and_stays_small(built: tuple[Path, Path]) -> None:
    wheel, said = built[0], str(metadata_of(built[0]))
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (entries,) = (archive.read(name).decode() for name in names if name.endswith("/entry_points.txt"))
    for licence in ("/licenses/LICENSE", "kernels/NOTICE"):
        assert any(name.endswith(licence) and "/licenses/" in name for name in names)
    assert "License-Expression: Apache-2.0" in said
    systems = re.findall(r"^Classifier: Operating System :: (?:.*:: )?(.+)$", said, re.MULTILINE)
    tested = re.search(r"Tested on (\w+) x86-64; macOS and Arm are not tested, nor is Windows", said)
    assert systems == [tested[1]]
    assert "Requires-Python: >=3.11" in said
    assert "moescale = moescale.__main__:main" in entries
    assert wheel.stat().st_size < 8 * MIB  # of code, the page, and 6.2 MiB of kernel tables


def test_the_wheel_asks_for_no_more_than_the_default_path_needs(built: tuple[Path, Path]) -> None:
    told = metadata_of(built[0])
    needed = {re.split(r"[^\w-]", need)[0] for need in told.get_all("Requires-Dist", []) if "extra ==" not in need}
    assert needed == {
        "annotated-types", "numpy", "scipy", "narwhals", "filelock", "typer", "rich", "jinja2", "pydantic",
        "tomli-w",
    }  # fmt: skip
    assert {"kernels", "parquet"} <= set(told.get_all("Provides-Extra", []))
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert told["Version"] == moescale.__version__
    assert f"\nversion: {moescale.__version__}\n" in cited
    assert f"\n## [{moescale.__version__}]" in changes


def test_the_long_description_leads_nowhere_that_is_not_there(built: tuple[Path, Path]) -> None:
    """Away from the repository a relative link or picture is broken."""
    told = metadata_of(built[0])
    page = told.get_payload()
    assert isinstance(page, str)
    assert told["Description-Content-Type"] == "text/markdown"
    assert page.startswith("# moescale\n")
    assert "moescale plan" in page
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    assert "<!--" not in page


@pytest.mark.parametrize(
    ("repository", "read"),
    [
        (None, "See the [paper](https://arxiv.org/abs/1) and fitting, .\n"),
        (
            "https://h/o/r",
            "See the [paper](https://arxiv.org/abs/1) and [fitting](https://h/o/r/blob/main/docs/fit.md#how), "
            "![a plan](https://h/o/r/raw/main/docs/plan.webp).\n",
        ),
    ],
)
def test_relative_links_of_the_readme_become_absolute_or_text(repository: str | None, read: str) -> None:
    made = runpy.run_path(str(ROOT / "setup.py"))["long_description"]
    page = "<!-- not run: why -->\nSee the [paper](https://arxiv.org/abs/1) and [fitting](docs/fit.md#how), ![a plan](docs/plan.webp).\n"
    assert made(page, repository) == read


def test_the_sdist_holds_what_the_repository_does(built: tuple[Path, Path]) -> None:
    wheel, sdist = built
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    with zipfile.ZipFile(wheel) as archive:
        assert {f"src/{name}" for name in archive.namelist() if ".dist-info/" not in name} <= names
    assert set(INPUTS) <= names
    assert sdist.stat().st_size < 9 * MIB  # of which the package has 7
    assert [name for name in names if re.search(r"node_modules|__pycache__|(^|/)\.", name)] == []
    assert [path for path in tracked() if path not in names and not path.startswith(".")] == []


@pytest.mark.fuzz
def test_tests_run_from_the_sdist(built: tuple[Path, Path], tmp_path: Path) -> None:
    """With their helpers, data, examples and scripts, beside no repository."""
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (folder,) = tmp_path.iterdir()
    some = (
        "tests/unit/test_units.py",
        "tests/unit/test_importers.py::test_a_table_that_fit_reads_stays_as_it_is",
        "tests/system/test_snapshot.py::test_answers_are_stored_for_these_questions_alone",
        "tests/fuzz/test_hostile_readers.py::test_an_input_is_made_of_seed_reader_and_number_alone",
        "tests/unit/test_evidence.py::test_designed_sweeps_are_those_of_the_stored_studies",
        "tests/system/test_packaging.py::test_relative_links_of_the_readme_become_absolute_or_text",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *some],
        cwd=folder, env=environment(PYTHONPATH=str(folder / "src")), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(".") > 50


def tracked() -> list[str]:
    """The files of the repository; the test is skipped away from one."""
    git = shutil.which("git")
    if git is None or not (ROOT / ".git").exists():
        pytest.skip("not in a git checkout")
    listed = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:  # such as a checkout of another user
        pytest.skip(f"git lists nothing: {listed.stderr.decode(errors='replace').strip()}")
    return [path.decode("utf-8", "backslashreplace") for path in listed.stdout.split(b"\0") if path]


def test_every_tracked_path_is_printable_ascii() -> None:
    """Other names cannot be checked out everywhere: macOS refuses bytes that are not UTF-8, Windows control characters."""
    paths = tracked()
    assert "pyproject.toml" in paths
    assert [path for path in paths if not (path.isascii() and path.isprintable()) or "\\" in path] == []


# As another system: without the modules and the functions that only POSIX has, and without what the extras bring.
ELSEWHERE = """
import os, signal, sys

BLOCKED = {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "aiconfigurator_core", "pyarrow", "pandas", "yaml"}

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

for name in BLOCKED & set(sys.modules):
    del sys.modules[name]
sys.meta_path.insert(0, Blocker())
for name in (
    "waitid", "killpg", "getpgrp", "getpgid", "setsid", "fork", "getuid", "geteuid", "getgid", "chown", "fchown", "lchown",
    "statvfs", "mkfifo", "pread", "pwrite", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "P_PID", "WNOWAIT", "sched_getaffinity",
):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGALRM", "SIGUSR1", "SIGQUIT"):
    if hasattr(signal, name):
        delattr(signal, name)
from moescale.cli import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("command", "code", "told"),
    [
        ("plan --budget 5.15e21 --bootstrap 0 --shape mixtral --objective loss", 0, " experts "),
        ("fit runs.csv --law chinchilla --starts 2 -o law.toml", 0, "80 runs"),
        ("pack text.txt --tokenizer bytes --validation 0 -o corpus", 0, "training tokens"),
        ("sweep sweep.toml --dry-run", 0, "FLOPs"),
        *(
            pytest.param(*other, marks=pytest.mark.fuzz)
            for other in (
                ("cost --config mixtral.json --gpu h100-sxm", 0, "latency from measured kernels of vllm"),
                ("compare runs.csv --law chinchilla --holdout 'tokens > 1e10'", 0, "chinchilla"),
                ("predict --n-params 1B --tokens 1e11", 0, "nats per token"),
                ("train run.toml --dry-run", 0, "batch_tokens"),
            )
        ),
    ],
    ids=lambda value: value.split()[0] if isinstance(value, str) else None,
)
def test_a_system_without_posix_modules_answers(command: str, code: int, told: str, tmp_path: Path) -> None:
    examples = ROOT / "examples"
    for source, name in (
        ("configs/mixtral-8x7b.json", "mixtral.json"),
        ("sweep.toml", "sweep.toml"),
        ("run.toml", "run.toml"),
    ):
        shutil.copy(examples / source, tmp_path / name)
    lines = (examples / "runs.csv").read_text(encoding="utf-8").splitlines()
    (tmp_path / "runs.csv").write_text("\n".join(lines[:81]) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("some words to train on\n" * 100, encoding="utf-8")
    (tmp_path / "elsewhere.py").write_text(ELSEWHERE, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "elsewhere.py", *shlex.split(command)], cwd=tmp_path,
        env=environment(PYTHONPATH=str(SOURCE)), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.splitlines()[-1].startswith("moescale: ")  # filelock warns of the missing module before


# Stands for the interpreter of the version in the file beside it: answers as that, makes environments as `venv` does (one
# that is there keeps its Python), installs nothing.
STAND_IN = """#!/bin/sh
version=$(cat "$0.version")
case "$1 $2" in
  --version*) echo "Python $version" ;;
  -c*) test "${version#3.}" != "$version" && test "$(echo "$version" | cut -d. -f2)" -ge 11 ;;
  "-m pip") test -e "$(dirname "$0")/moescale" ;;
  "-m venv")
    shift 2
    if test "$1" = --clear; then rm -rf "$2"; shift; fi
    mkdir -p "$1/bin"
    test -e "$1/bin/python" || { cp "$0" "$1/bin/python"; cp "$0.version" "$1/bin/python.version"; }
    printf '#!/bin/sh\\necho planned\\n' > "$1/bin/moescale"
    chmod +x "$1/bin/moescale" ;;
esac
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_asks_the_python_before_it_makes_an_environment(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "bin").mkdir()
    for name, version in {"python3": "3.11.7", "python3.10": "3.10.12", "python3.12": "3.12.1"}.items():
        (tmp_path / "bin" / name).write_text(STAND_IN, encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
        (tmp_path / "bin" / f"{name}.version").write_text(version, encoding="utf-8")
    made = tmp_path / ".venv" / "bin" / "python.version"

    def make(*arguments: str) -> tuple[int, str]:
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        outer = {key: value for key, value in environment(PATH=path).items() if not key.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(
            ["make", *arguments], cwd=tmp_path, env=outer, capture_output=True, text=True, check=False
        )
        return done.returncode, done.stderr

    code, err = make("plan", "PYTHON=python3.10")
    assert code != 0
    assert "moescale needs Python 3.11 or later, and python3.10 is Python 3.10.12; name another: make plan PY" in err
    assert not (tmp_path / ".venv").exists()
    assert make("plan") == make("plan") == (0, "")
    assert make("plan", "PYTHON=python3.12") == (0, ".venv is made anew: its Python is not python3.12\n")
    assert made.read_text() == "3.12.1"
    (tmp_path / ".venv" / "bin" / "python").unlink()
    assert make("plan") == (0, ".venv is made anew: its Python does not run, or is older than 3.11\n")
    assert made.read_text() == "3.11.7"


def interpreters() -> list[str]:
    """This Python and every other supported one on PATH; MOESCALE_PYTHONS names more (separated as PATH is)."""
    asked = [name for name in os.environ.get("MOESCALE_PYTHONS", "").split(os.pathsep) if name]
    found = [path for minor in (11, 12, 13) if (path := shutil.which(f"python3.{minor}"))]
    versions: dict[str, str] = {}
    for python in [sys.executable, *asked, *found]:
        done = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True, check=False
        )
        if done.returncode == 0:  # some are only stand-ins for one that is not chosen
            versions.setdefault(done.stdout.strip(), python)
    return list(versions.values())


@pytest.mark.engine  # installs from the package index
def test_the_wheel_plans_in_a_clean_environment(tree: Path, tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, tree], check=True, env=environment())
    (wheel,) = wheels.glob("*.whl")
    for python in interpreters():
        clean = tmp_path / f"env-{len(list(tmp_path.iterdir()))}"
        subprocess.run([python, "-m", "venv", clean], check=True, env=environment())
        bin_folder = clean / ("Scripts" if os.name == "nt" else "bin")
        install = [bin_folder / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*install, "--constraint", ROOT / "constraints.txt", wheel], check=True, env=environment(), cwd=tmp_path
        )

        def moescale(*arguments: str, bin_folder: Path = bin_folder) -> str:
            done = subprocess.run(
                [bin_folder / "moescale", *arguments],
                cwd=tmp_path, env=environment(COLUMNS="80"), capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode == 0, f"{bin_folder}: {done.stderr}"
            return done.stdout

        assert "Usage: moescale" in moescale("--help")
        plan = json.loads(moescale("plan", "--budget", "5.15e21", "--bootstrap", "0", "--json"))
        assert plan["recommendation"]["usd_per_mtok"] > 0
        assert [law["name"] for law in json.loads(moescale("laws", "--json"))]
        assert "latency from measured kernels of vllm" in moescale("cost", "mixtral-8x7b", "--gpu", "h100-sxm")
        assert "RMSLE" in moescale("fit", str(ROOT / "examples" / "runs.csv"), "--law", "chinchilla", "-o", "law.toml")

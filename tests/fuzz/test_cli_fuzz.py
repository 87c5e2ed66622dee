"""The command line as an adversary meets it: whatever is asked, an answer or one message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import ROOT, RUNS, run
from moescale.cli import COMMANDS, load
from moescale.cli.options import app

load(*COMMANDS)

HOSTILE = [
    "", " ", "x", "5e21x", ",", "1,4", "none", "auto", "paper", "silicon", "--json", "-", "\0", "µ", "[/b]", "-1",
    "0",
]  # fmt: skip
HOSTILE += ["0.5", "1.5", "nan", "inf", "1e308", "1e-308", "yun2024", "hoffmann2022", "h100-sxm", "l4", "exact", RUNS]
HOSTILE += ["EMPTY.csv", "BINARY.csv", "TEXT.csv", "CUT.toml", "LLAMA.json", "TEXT.json", "FOLDER", "no.csv"]
SIZES = ["1e5", "1e6", "900M", "7B", "1e12", "1e18"]
COUNTS = ["1", "2", "3", "8", "64", "1000", "1e6"]
TOKENS = ["1", "1e6", "1e9", "300B", "1e15", "1e24"]
LAWS = ["yun2024-recovered", "yun2024-joint", "hoffmann2022", "besiroglu2024", "STEEP.toml", "MINE.toml", "FLAT.toml"]
SERVED_OPTIONS = {
    "--gpu": ["a100-sxm-40gb", "h100-sxm", "l4", "b200-sxm", "mi300x", "A100_PCIE_80GB", "a100-sxm-80gb,l40s", "gb200"],
    "--max-gpus": ["1", "2", "7", "8", "1024"],
    "--prompt": ["1", "1.5", "2048", "1e6", "1e9"],
    "--output": ["1", "1.5", "203", "1e6", "1e9"],
    "--latency": ["roofline", "auto", "silicon:trtllm"],
    "--usd-per-gpu-hour": ["1e-6", "2", "1e6"],
    "--max-num-seqs": ["none", "1", "256", "1e6"],
    "--memory-fraction": ["1e-6", "0.1", "0.5", "1"],
    "--utilization": ["1e-6", "0.3", "1"],
    "--weights": ["bf16", "fp8", "int4", "int4,fp8", "FP8"],
    "--kv-heads": ["1", "8", "1e6"],
}
PROFILE = str(ROOT / "examples" / "profile.toml")
NOWHERE = "no/python"  # an interpreter that is not there: no engine starts
# For each command its options, each with values that are taken and yet lie at the ends of what is.
TAKEN: dict[str, dict[str, list[str]]] = {
    "fit": {
        "--law": ["chinchilla"],
        "--where": ["n_experts <= 1", "n_experts == 8", "tokens > 1e10", "loss < 2.6 and n_experts == 1"],
        "--starts": ["1", "3"],
        "--bootstrap": ["0", "2", "5"],
        "--seed": ["0", "9007199254740991"],
        "--size-column": ["n_params_dense", "n_params_active", "n_params_total", "n_experts", "top_k"],
        "--loss-column": ["loss", "top_k", "n_params_total"],
        "--family": ["yun2024", "dense", "ludziejewski2025"],
    },
    "laws": {"--json": []},
    "models": {"--json": []},
    "compare": {
        "--holdout": ["tokens > 1e10", "n_experts == 8", "loss < 2.2"],
        "--where": ["n_experts <= 1", "n_experts <= 4", "tokens > 1e10"],
        "--size-column": ["n_params_dense", "n_params_active", "n_params_total", "n_experts", "top_k"],
        "--loss-column": ["loss", "top_k", "n_params_total"],
    },
    "compare-models": {
        "--law": LAWS,
        "--lifetime-tokens": TOKENS,
        "--train-gpu": ["h100-sxm", "l40s"],
        "--mfu": ["1e-6", "0.4", "1"],
        "--train-usd-per-gpu-hour": ["1e-6", "2", "1e6"],
        "--shape": ["paper", "mixtral", "deepseek"],
        **SERVED_OPTIONS,
    },
    "isoflop": {
        "--tolerance": ["0", "0.05", "0.99"],
        "--where": ["n_experts <= 1", "tokens > 1e10"],
        "--size-column": ["n_params_dense", "n_params_active", "n_params_total"],
        "--loss-column": ["loss", "top_k"],
    },
    "predict": {"--n-params": ["1", *SIZES], "--tokens": TOKENS, "--experts": COUNTS, "--law": LAWS},
    "cost": {
        "--n-params": SIZES,
        "--experts": COUNTS,
        "--top-k": COUNTS,
        "--gpus": ["1", "3", "8", "1024"],
        "--replicas": ["1", "2", "8"],
        "--expert-parallel": ["1", "2", "3", "8"],
        "--kv-cache": ["bf16", "fp8", "int4"],
        "--reserve": ["0", "2GiB", "1e15"],
        "--scheduling": ["separate", "chunked"],
        "--max-ttft": ["1e-6", "50ms", "1s", "1e6"],
        "--max-tpot": ["1e-6", "20ms", "1s", "1e6"],
        "--trace": [str(ROOT / "examples" / "requests.csv"), RUNS],
        "--capital-usd-per-gpu": ["1e-6", "3e4", "1e9"],
        "--power-w": ["0", "1275"],
        "--years": ["0.01", "5"],
        "--usd-per-kwh": ["0", "0.08"],
        "--pue": ["1", "1.56"],
        **SERVED_OPTIONS,
    },
    "plan": {
        "--budget": ["1e12", "1e15", "1e18", "5.15e21", "1e24", "1e27", "1e32"],
        "--law": LAWS,
        "--experts": ["1", "4", "64", "1,4,8", "2,3,5,1e6", ",".join(map(str, range(1, 60)))],
        "--match-experts": COUNTS,
        "--against": ["deepseek-v3", "llama-3.1-8b,olmoe-1b-7b:1", "gpt-oss-20b", ",", ":"],
        "--max-loss": ["1e-12", "1", "2", "2.5", "1e6"],
        "--max-usd-per-mtok": ["1e-12", "0.001", "0.05", "1", "1e6"],
        "--max-tokens": TOKENS,
        "--lifetime-tokens": TOKENS,
        "--max-total-usd": ["1e-12", "1", "1000", "1e6", "1e300"],
        "--train-gpu": ["h100-sxm", "l40s"],
        "--mfu": ["1e-6", "0.4", "1"],
        "--train-usd-per-gpu-hour": ["1e-6", "2", "1e6"],
        "--bootstrap": ["0", "1", "2", "10000"],
        "--convention": ["paper", "exact", "dense"],
        "--top-k": ["1", "2"],
        **SERVED_OPTIONS,
    },
    "design": {
        "--budget": ["1e12", "1e18", "1e21", "1e30"],
        "--plan-budget": ["1e15", "1e24", "1e32"],
        "--runs": [RUNS, "EMPTY.csv", "TEXT.csv"],
        "--next": ["1", "1000"],
        "--max-runs": ["1", "100"],
        "--max-run-flops": ["1e-12", "1e18", "1e32"],
        "--max-run-tokens": TOKENS,
        "--min-params": ["1e3", "1e9", "1e18"],
        "--run-noise": ["1e-6", "0.01", "1"],
        "--sequence-tokens": ["2", "4096", "1e9"],
        "--law": LAWS,
        "--experts": ["1", "1,4,8"],
        **SERVED_OPTIONS,
    },
    "profile": {"--python": [NOWHERE], "--rounds": ["1", "3"]},
    "pack": {
        "--tokenizer": ["bytes"], "--validation": ["0", "0.5"], "--text-field": ["text"],
        "--max-tokens": ["1", "1e24"], "--eos": ["<|endoftext|>"], "--seed": ["0", "9007199254740991"],
    },
    "import": {"--unfinished": []},
    "train": {"--no-resume": [], "--resume": []},
    "sweep": {"--jobs": ["1", "64"], "--retries": ["0", "3"], "--max-time": ["9m", "0.5"], "--no-resume": []},
    "report": {},
    "reproduce": {"--law": LAWS, "--gpu": ["a100-sxm-40gb", "h100-sxm", "l4"]},
    "web": {"--port": ["0"], "--law": ["MINE.toml", "CUT.toml"]},
}  # fmt: skip
# What a command always begins with: one of these. A fit is a quick one, nothing is trained, no engine is found.
START: dict[str, list[list[str]]] = {
    "fit": [[RUNS, "--law", "chinchilla", "--starts", "2"]],
    "compare": [[RUNS, "--law", "chinchilla"]],
    "compare-models": [
        ["llama-3.1-8b", "olmoe-1b-7b"], ["deepseek-v3:1", "llama-3.1-8b:1e24", "gpt-oss-20b:5T"],
        ["LLAMA.json:1T", "llama-3.1-8b"], ["llama-3.1-8b", "MINE.toml:quality"], ["CUT.toml", ":", "x:"], [],
    ],
    "design": [["--budget", "1e20"], ["--budget", "1e21", "--plan-budget", "1e23"]],
    "isoflop": [[str(ROOT / "tests" / "data" / "public" / "joint_moe_runs.csv")], [RUNS]],
    "profile": [[PROFILE, "-o", "latencies.csv", "--python", NOWHERE]],
    "pack": [[str(ROOT / "LICENSE"), "-o", f"corpus{n}", "--tokenizer", "bytes"] for n in range(8)],
    "import": [
        [tracker, str(ROOT / "examples" / "trainer")] for tracker in ("trainer", "mlflow", "wandb", "tensorboard")
    ]
    + [["trainer", "FOLDER"], ["trainer", RUNS]],
    "train": [[str(ROOT / "examples" / "run.toml"), "--dry-run"], ["MINE.toml", "--dry-run"]],
    "sweep": [[str(ROOT / "examples" / "sweep.toml"), "--dry-run"], ["MINE.toml", "--dry-run"]],
    "report": [[answer, "-o", "page.html"] for answer in ("MINE.toml", "CUT.toml", "LLAMA.json", "DEEP.json", RUNS)],
    "reproduce": [["--latency", "roofline"]],
    "web": [["--no-open"]],
}  # fmt: skip
NEEDED = {"compare": ["--holdout"], "predict": ["--n-params", "--tokens"], "cost": ["--n-params"], "plan": ["--budget"]}
# Given no value that is not listed above: they write to the path that they are given, install, open a browser, compute
# for hours (every start of the paper's), print help, or would take the place of what START says.
FIXED = {
    *("-o", "--plot", "--log", "--setup", "--export", "--open", "--help", "--help-all", "--config", "--json"),
    *("--starts", "--python", "--dry-run", "--show", "--latency"),
}
EXAMPLES = {"reproduce": 20, "design": 40}  # each takes seconds


def options_of(command: str) -> dict[str, list[str]]:
    """Every option of a command with the values to try; one that TAKEN does not name gets hostile ones alone."""
    group: Any = typer.main.get_command(app)
    parameters = [p for p in group.commands[command].params if p.param_type_name == "option"]
    known = {p.opts[0]: [] if p.is_flag else HOSTILE for p in parameters if p.opts[0] not in FIXED}
    return known | TAKEN[command]


@st.composite
def vectors(draw: st.DrawFn, command: str) -> list[str]:
    """A command with options that are taken and, in one of three, hostile ones."""
    options = options_of(command)
    parts = [command, *draw(st.sampled_from(START.get(command, [[]])))]
    taken = list(TAKEN[command])  # report has none
    chosen = draw(st.lists(st.sampled_from(taken), max_size=6, unique=True)) if taken else []
    for option in dict.fromkeys([*NEEDED.get(command, []), *chosen]):
        parts += [option, *([draw(st.sampled_from(options[option]))] if options[option] else [])]
    if draw(st.integers(0, 2)) == 0:
        for _ in range(draw(st.integers(1, 2))):
            option = draw(st.sampled_from(["--nope", "--config", *(set(options) - FIXED)]))
            if command not in ("fit", "compare") or option != "--law":  # of the paper's law, which takes minutes
                parts += [option, draw(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=8)))]
    if draw(st.booleans()):
        parts.append("--json")
    return parts


@pytest.mark.system
def test_every_command_is_fuzzed() -> None:
    assert set(COMMANDS) <= set(TAKEN)


@pytest.mark.system
@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_fuzzed_are_options_of_the_command(command: str) -> None:
    group: Any = typer.main.get_command(app)
    known = {name for p in group.commands[command].params for name in (*p.opts, *p.secondary_opts)}
    assert {*TAKEN[command], *NEEDED.get(command, [])} <= known
    assert {part for start in START.get(command, []) for part in start if part.startswith("-")} <= known


def constants(text: str) -> list[str]:
    """The constants in a JSON text that JSON does not have."""
    found: list[str] = []
    json.loads(text, parse_constant=found.append)
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_no_arguments_yield_a_traceback(
    command: str, bad_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(bad_files, tmp_path / "bad")
    monkeypatch.chdir(tmp_path / "bad")
    if command == "web":
        monkeypatch.setattr("moescale.web.app.serve", lambda *_, **__: None)

    @settings(max_examples=EXAMPLES.get(command, 300), deadline=None, suppress_health_check=list(HealthCheck))
    @given(vectors(command))
    def check(arguments: list[str]) -> None:
        found = run(*arguments)
        assert found.code in (0, 1, 2)
        messages = [
            line
            for line in found.err.splitlines()
            if line.startswith("moescale: ") and not line.endswith("(Ctrl-C ends it)")
        ]
        assert len(messages) == (found.code > 0), found.err
        if found.code == 0 and "--json" in arguments:
            assert not {"NaN", "Infinity", "-Infinity"} & set(constants(found.out))
        if found.code == 2:
            assert found.out == ""

    check()

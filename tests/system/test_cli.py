"""The command line as a user and as an adversary meet it: answers, messages, tables, interruption, width."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import moescale
from command_line import BUDGET, LOWEST, ONE_LAW, ROOT, RUNS, Answer, answer_of, run, split
from moescale.scaling_laws import find_law
from processes import environment

MIXTRAL = ("--shape", "mixtral")
pytestmark = pytest.mark.usefixtures("plans_made_once")


@cache
def a_plan() -> Any:
    """The plan of the usual question in one shape, computed once; tests only read it."""
    return answer_of(*BUDGET, *MIXTRAL)


@cache
def its_table() -> str:
    """What `plan` prints of it."""
    return run(*BUDGET, *MIXTRAL, "--details").out


def test_predict_gives_an_interval_only_where_the_law_has_draws() -> None:
    found = answer_of("predict", "--n-params", "30B", "--tokens", "20B", "--experts", 8)
    assert found.keys() == {"loss", "interval", "extrapolation"}
    low, high = found["interval"]
    assert low <= found["loss"] <= high
    assert found["extrapolation"].keys() == {"n_params"}
    more = run("predict", "--n-params", "1B", "--tokens", "20B", "--experts", 512)
    assert "is trusted up to X = 128 (256 experts of this shape), and a plan would not recommend 512" in more.err
    dense = answer_of("predict", "--law", "hoffmann2022", "--n-params", "1B", "--tokens", "20B")
    assert dense == {"loss": pytest.approx(2.531, abs=1e-3), "interval": None, "extrapolation": {}}


@pytest.mark.parametrize("error", [MemoryError(), MemoryError("Unable to allocate 7.28 TiB")])
def test_a_lack_of_memory_is_one_message(error: MemoryError, monkeypatch: pytest.MonkeyPatch) -> None:
    def spent(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("moescale.runs.table.read_runs", spent)
    found = run("fit", RUNS)
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("moescale: out of memory")
    assert str(error) in found.err
    assert len(found.err.splitlines()) == 1


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    text = Path(RUNS).read_text(encoding="utf-8")
    for old, new in (("n_params_dense", "N"), ("n_experts", "routed experts"), ("tokens", "D"), ("loss", "nll")):
        text = text.replace(f'"{old}"', f'"{new}"')
    mine, law = tmp_path / "mine.csv", tmp_path / "law.toml"
    mine.write_text(text, encoding="utf-8")
    named = ("--size-column", "N", "--tokens-column", "D", "--experts-column", "routed experts", "--loss-column", "nll")
    quick = ("--law", "chinchilla", "--starts", "2")
    fits = [
        answer_of("fit", RUNS, *quick, "--where", "n_experts == 1 and tokens > 3e9"),
        answer_of("fit", mine, *quick, *named, "--where", "`routed experts` == 1 and D > 3e9", "-o", law),
    ]
    assert fits[0]["parameters"] == fits[1]["parameters"]
    assert fits[0]["n_runs"] == fits[1]["n_runs"]
    scores = [
        answer_of("compare", RUNS, "--law", "chinchilla", "--holdout", "tokens > 1e10", "--where", "n_experts == 1"),
        answer_of("compare", mine, "--law", "chinchilla", "--holdout", "D > 1e10", "--where", "`routed experts` == 1", *named),
    ]  # fmt: skip
    assert scores[0][0]["rmsle_holdout"] == scores[1][0]["rmsle_holdout"]
    for option, words in (("--tokens-column", "no column 'tokens'"), ("--experts-column", "no column 'n_experts'")):
        at = named.index(option)
        found = run("fit", mine, *quick, *named[:at], *named[at + 2 :])
        assert found.code == 2
        assert words in found.err
        assert f"name it with {option}" in found.err


@pytest.mark.parametrize("experts", [1, 8, 32])
def test_cost_of_a_plans_model_is_the_plans_cost(experts: int) -> None:
    row = next(c for c in a_plan()["loss_optimal"] if c["experts"] == experts)
    model = ("--n-params", repr(row["n_params"]), "--experts", experts, "--shape", "mixtral")
    alone = answer_of("cost", *model, "--vocab-size", 32_000)
    for key in ("usd_per_mtok", "gpus", "batch"):
        assert alone[key] == pytest.approx(row[key], rel=1e-12)
    bare = answer_of("cost", *model)
    assert bare["n_params_total"] == pytest.approx(row["n_params_total"], rel=1e-4)  # which leaves out the norms


@pytest.mark.parametrize("name", ["llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2-lite"])
def test_cost_of_a_name_is_that_of_its_config(name: str) -> None:
    asked = ("--gpu", "h200-sxm", "--gpus", 1, "--prompt", 512, "--output", 256)
    path = ROOT / "examples" / "configs" / f"{name}.json"
    config = answer_of("cost", "--config", path, *asked, "--weights", "fp8")
    assert answer_of("cost", path, *asked, "--weights", "fp8") == config  # a path is a NAME, too
    named = answer_of("cost", name.upper(), *asked, "--weights", "fp8")
    assert named.pop("question").items() >= {"model": name, "gpu": "h200-sxm"}.items()
    del config["question"]
    assert named == config
    assert f"\n{name}: " in run("cost", name, *asked).out


def test_models_lists_what_cost_takes_by_name() -> None:
    found = answer_of("models")
    assert all(one.keys() >= {"name", "published_total", "published_active", "source", "date"} for one in found)
    one = next(one for one in found if one["name"] == "deepseek-v3")
    assert (one["published_total"], one["published_active"], one["tokens"]) == (671e9, 37e9, 14.8e12)
    table = run("models").out
    assert "deepseek-v3  (671B parameters, 37B active; 14.8T tokens; 2024-12)" in table
    assert all(f"{one['name']}  (" in table for one in found)


def test_fit_is_the_same_from_the_same_seed() -> None:
    question = ("fit", RUNS, "--law", "chinchilla", "--where", "n_experts == 1", "--bootstrap", 6)
    first, again, other = (answer_of(*question, "--seed", seed) for seed in (3, 3, 4))
    assert first["intervals"] == again["intervals"] != other["intervals"]


def test_warnings_go_to_standard_error_and_each_only_once(tmp_path: Path) -> None:
    found = run("fit", RUNS, "--law", "yun2024", "--starts", 4, "--json")
    assert found.code == 0
    told = [line.removeprefix("warning: ") for line in found.err.splitlines()]
    assert told == json.loads(found.out)["warnings"]
    assert len(set(told)) == len(told)
    dense = run(*BUDGET, "--law", "hoffmann2022", *MIXTRAL, "--latency", "roofline", "--json")
    assert "dense models only" in dense.err
    assert json.loads(dense.out)["warnings"]


def test_a_law_may_have_any_name(saved_law: Path, tmp_path: Path) -> None:
    path = tmp_path / "[bold]µ.toml"
    text = saved_law.read_text(encoding="utf-8")
    path.write_text(text.replace('name = "mine"', 'name = "[bold]µ[/red]"'), encoding="utf-8")
    found = run("predict", "--law", path, "--n-params", "300M", "--tokens", "10B")
    assert found.code == 0
    assert "[bold]µ[/red]" in found.out
    dense = ("--experts", 1, "--match-experts", 1, "--shape", "mixtral", "--latency", "roofline")
    assert "[bold]µ[/red]" in run(*BUDGET, "--law", path, *dense).out


TABLES = [
    ("fit RUNS --law yun2024 --starts 8 --bootstrap 4", ("100 runs", "RMSLE", "alpha", "90% interval", "E_max")),
    ("laws", ("yun2024-recovered", "hoffmann2022", "406.4", "alpha 0.3392", "ln L =")),
    ("predict --n-params 30B --tokens 20B", ("nats per token", "90%", "extrapolated: N")),
    (
        "cost --n-params 1.5B --experts 64 --latency roofline",
        ("$0.148", "4 x a100-sxm-40gb", "61.5 GiB", "weights take"),
    ),
    (
        "plan --budget 5.15e21 --shape mixtral --bootstrap 0",
        ("Train 16 experts", "> recommended", "Decided", "Open", "Training", "Price error", "Next  ", "--details"),
    ),
    (
        "plan --budget 5.15e21 --shape mixtral --latency roofline --lifetime-tokens 1T --max-total-usd 20000 --bootstrap 8 --details",
        ("Train ", "life $", "$20K", "serving 1T tokens: lowest loss within $20K"),
    ),
    (
        "plan --budget 5.15e21 --law yun2024-recovered --latency roofline --bootstrap 0 --details",
        ("Train 32 experts", "Algorithm 1", "Algorithm 2", "Loss-optimal", "Extrapolated"),
    ),
]


@pytest.mark.parametrize(("line", "words"), TABLES, ids=[line.split()[0] for line, _ in TABLES])
def test_tables_hold_the_headline_numbers_and_are_not_too_wide(line: str, words: tuple[str, ...]) -> None:
    found = run(*split(line))
    assert found.code == 0
    assert [word for word in words if word not in found.out] == []
    lines = found.out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Next  ")) <= 132  # a command stays in one line
    assert all(line == line.rstrip() for line in lines)


def test_the_plans_table_says_what_its_json_says() -> None:
    from moescale.units import format_count, format_usd

    best = a_plan()["recommendation"]
    out = its_table()
    active, total = format_count(best["n_params_active"]), format_count(best["n_params_total"])
    still_open = r" \(\d+( to \d+)? still open\)" if a_plan()["recommendation"]["undecided"] else ""
    sizes = f"{active} active of {total}{'' if still_open else ' parameters'}, {format_count(best['tokens'])} tokens"
    assert re.match(f"Train {best['experts']} experts{still_open}: {re.escape(sizes)}", out)
    for c in (row for row in a_plan()["loss_optimal"] if "usd_per_mtok" in row):
        name = "dense" if c["experts"] == 1 else f"E = {c['experts']}"
        table = out.partition("\nLoss-optimal model of each expert count\n")[2]
        row = next(line for line in table.splitlines() if line.startswith(name))
        assert [f"{c['loss']:.4f}", format_usd(c["usd_per_mtok"])] == row.removeprefix(name).split()[4:6]


def process(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """`python -m moescale` with its output in pipes."""
    command = [sys.executable, "-m", "moescale", *arguments]
    return subprocess.run(
        command, env=environment(**extra), capture_output=True, text=True, check=False, encoding="utf-8", timeout=120
    )


def test_the_module_is_the_command() -> None:
    found = process(*LOWEST, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout) == answer_of(*LOWEST)
    refused = process("plan", "--budget", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("moescale: --budget: 'x'")


def test_version_is_the_packages() -> None:
    assert run("--version") == Answer(0, f"{moescale.__version__}\n", "")


@pytest.mark.parametrize("width", [80, 100, 132])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # FORCE_COLOR makes rich take any stream for a terminal, whose width COLUMNS then states.
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    found = run(*BUDGET, *MIXTRAL, "--bootstrap", "0", "--details")
    lines = re.sub("\x1b\\[[0-9;]*m", "", found.out).splitlines()
    assert found.code == 0
    assert found.out != "\n".join(lines)  # bold, as on a terminal
    assert max(len(line) for line in lines if not line.startswith("Next  ")) <= width  # a command stays in one line
    left_out = [line for line in lines if line.startswith("Columns left out for width")]
    assert bool(left_out) == (width < 100)
    decision = "\n".join(lines).partition("\nRegret under each law")[0]
    for head in ("active", "tokens", "loss", "$/Mtok", "GPUs"):
        assert re.search(rf"^.*{re.escape(head)}", decision.partition("\nDecided")[0], re.MULTILINE), head
    assert not re.search("left out for width: .*(regret|loss|active)", decision.partition("\nDecided")[0])


def test_an_ascii_terminal_gets_ascii() -> None:
    for arguments in (LOWEST, ("plan", "--help")):
        found = process(*arguments, PYTHONIOENCODING="ascii")
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.isascii()


def test_planning_on_the_roofline_loads_no_library_that_it_does_not_use() -> None:
    code = "import sys; from moescale.cli import main\ntry: main(['plan', '--budget', '5.15e21', '--latency', 'roofline', '--bootstrap', '20', '--shape', 'mixtral'])\nfinally: print(*sys.modules)"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    loaded = {name.partition(".")[0] for name in found.stdout.splitlines()[-1].split()}
    unused = {"scipy", "pandas", "pyarrow", "polars", "narwhals", "aiconfigurator_core", "torch", "matplotlib"}
    assert "numpy" in loaded
    assert not loaded & unused


def test_a_training_gpu_without_a_price_says_which_option_states_one(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('name = "own"\nmemory_gib = 96\nbandwidth_gb_per_s = 3000\nbf16_tflops = 500\nlink_gb_per_s = 100\n')
    found = run(*LOWEST, "--train-gpu", own)
    assert found.code == 2
    assert "--train-gpu: no price is stated for own; give --train-usd-per-gpu-hour as well" in found.err
    assert a_plan()["training"]["train_gpu"] == "a100-sxm-40gb"  # the one that serves
    assert answer_of(*LOWEST, "--train-gpu", own, "--train-usd-per-gpu-hour", "1.5")["training"]["train_gpu"] == "own"


def test_a_plan_with_experts_on_all_gpus_is_json() -> None:
    asked = ("plan", "--budget", "2e22", "--gpu", "h200-sxm", *MIXTRAL, "--latency", "roofline", "--bootstrap", 0)
    found = answer_of(*asked, "--attention-dp", 2)
    assert found["recommendation"]["attention_dp"] == 2


def test_a_budget_that_is_not_spent_is_said_first() -> None:
    law = ("--law", "yun2024-recovered")  # whose optimum needs the fewest parameters of those that ship
    asked = split("plan --budget 3e24 --max-tokens 15T --bootstrap 0 --details --latency roofline")
    found = run(*asked, *law, *MIXTRAL)
    assert found.code == 0
    words = " ".join(found.out.split())
    assert re.search(
        r"Unspent \d+% of the budget: with --max-tokens 15T .* training \S+ FLOPs \(\d+% of the budget\)", words
    )
    assert "of the budget" not in its_table()


@pytest.mark.fuzz
def test_a_budget_that_nobody_stated_is_not_spoken_of(tmp_path: Path) -> None:
    asked = ("plan", "--match", "llama-3.1-8b", "--max-tokens", "15T", *ONE_LAW[3:], "--gpu", "h100-sxm", *MIXTRAL)
    told, stored = run(*asked, "--details"), run(*asked, "--json")
    assert (told.code, stored.code) == (0, 0)
    plan = json.loads(stored.out)
    share = plan["training"]["budget_share"]
    assert share < 0.99
    assert plan["training"]["budget_of"] == "llama-3.1-8b"
    (tmp_path / "plan.json").write_text(stored.out, encoding="utf-8")
    assert run("report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "plan.html")).code == 0
    words = " ".join(told.out.split())
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    for text in (words, page):
        assert f"({share:.0%} of those of llama-3.1-8b)" in text
        assert "unused" not in text
        assert "of the budget is" not in text


def test_a_law_of_unknown_range_says_so() -> None:
    cheap = ("--latency", "roofline", "--bootstrap", "0")
    asked = ("plan", "--budget", "1e24", "--law", "abnar2025", "--gpu", "h200-sxm", "--experts", "1,4,8")
    told = run(*asked, *cheap, "--details", "--objective", "loss")
    assert "Extrapolated: training FLOPs 1,000 times the largest fitted" in told.out
    assert "abnar2025: the fitted range of N and D is unknown" in told.out
    assert "fitted range of" not in its_table()
    found = run("predict", "--law", "krajewski2024-dense", "--n-params", "1B", "--tokens", "20B")
    assert "krajewski2024-dense: the fitted range of N and D is unknown" in found.err
    assert "fitted range of" not in run("predict", "--n-params", "1B", "--tokens", "20B").err


@pytest.mark.fuzz
def test_a_law_of_few_runs_rests_on_a_prior(tmp_path: Path) -> None:
    runs, saved = ROOT / "examples" / "runs.csv", tmp_path / "mine.toml"
    asked = ("--where", "n_experts <= 4 and tokens <= 3e9 and n_params_dense < 6e8")
    assert run("fit", runs, *asked, "-o", saved).code == 0
    evidence = find_law(str(saved)).evidence
    assert (evidence["n_runs"], evidence["prior"]) == (6, "pooled2026")
    cheap = ("plan", "--budget", "1e21", "--latency", "roofline", "--shape", "mixtral", "--experts", "1,4", "--law")
    found = run(*cheap, saved)
    assert found.code == 0
    assert "no intervals" not in found.err
    alone = tmp_path / "alone.toml"
    assert run("fit", runs, *asked, "--law", "yun2024", "-o", alone).code == 0
    assert "alone carries no draws, so this plan has no intervals" in run(*cheap, alone).err
    assert "intervals" not in run(*cheap, alone, "--bootstrap", "0").err


def test_predict_takes_the_shape_of_a_plan_and_refuses_what_it_would_not_use(tmp_path: Path) -> None:
    one = ("predict", "--n-params", "760M", "--tokens", "2.2T", "--experts", 128)
    usual, fine = (json.loads(run(*one, *more, "--json").out)["loss"] for more in ((), ("--shape", "fine-grained")))
    assert fine > usual
    for option in ("--best-of", "--where=tokens > 1"):
        assert "is of a table of models" in run(*one, option).err
    assert "--experts: each row of the table states it" in run("predict", "--runs", RUNS, "--experts", 8).err


def test_a_law_of_active_sizes_knows_its_own_runs(tmp_path: Path) -> None:
    """Its range is of dense-equivalent sizes, with which the table's active ones were compared."""
    law = tmp_path / "law.toml"
    run("fit", RUNS, "--size-column", "n_params_active", "-o", law)
    found = run("predict", "--law", law, "--runs", RUNS, "--json")
    assert not any(each["extrapolation"] for each in json.loads(found.out))
    one = run("predict", "--law", law, "--n-params", "1B", "--tokens", "40B", "--experts", 16)
    assert "--n-params is dense-equivalent" in one.err
    assert "--size-column n_params_active counts" in run("isoflop", RUNS).err

"""The command line as a user and as an adversary meet it: answers, exit codes, messages, interruption, width."""

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
from command_line import BUDGET, ROOT, RUNS, Answer, answer_of, run
from moescale.cli import COMMANDS
from moescale.scaling_laws import find_law
from processes import environment

pytestmark = pytest.mark.usefixtures("plans_made_once")
# The same question of one law and the roofline, a tenth of the time: for tests of what does not depend on the numbers.
ONE_LAW = (*BUDGET, "--law", "yun2024-recovered", "--latency", "roofline", "--bootstrap", "0")


@cache
def a_plan() -> Any:
    """The plan of the default question, computed once; tests only read it."""
    return answer_of(*BUDGET)


@cache
def its_table() -> str:
    """What `plan` prints of the default question."""
    return run(*BUDGET, "--details").out


# Answers: the keys of the contract.


def test_predict_gives_an_interval_only_where_the_law_has_draws() -> None:
    found = answer_of("predict", "--n-params", "30B", "--tokens", "20B", "--experts", 8)
    assert found.keys() == {"loss", "interval", "extrapolation"}
    low, high = found["interval"]
    assert low <= found["loss"] <= high
    assert found["extrapolation"].keys() == {"n_params"}
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


def test_plan_of_models_that_no_gpu_holds_says_so_and_leaves_their_cost_out() -> None:
    found = answer_of(*BUDGET, "--max-gpus", 1, "--max-usd-per-mtok", "0.05")
    largest = found["loss_optimal"][-1]
    assert "do not fit" in largest["infeasible"]
    assert not {"usd_per_mtok", "gpus", "batch"} & largest.keys()
    assert {"loss", "n_params"} <= largest["intervals"].keys()  # the law knows them, served or not
    assert not {"usd_per_mtok", "cost_ratio"} & largest["intervals"].keys()
    assert found["recommendation"]["usd_per_mtok"] <= 0.05


# Answers that hang together.


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


def test_a_gpu_without_a_price_has_all_figures_but_dollars() -> None:
    """gb200 has no list price: the throughput is answered, with a warning; `plan` needs the price and says so."""
    asked = ("cost", "--n-params", "1.5B", "--experts", 16, "--gpu", "gb200", "--latency", "roofline", "--burst", 20)
    free, priced = run(*asked, "--json"), run(*asked, "--json", "--usd-per-gpu-hour", 5)
    assert free.code == priced.code == 0
    assert free.err.startswith("warning: no dollars, because no on-demand price is recorded for gb200")
    assert "--usd-per-gpu-hour" in free.err
    ours, theirs = json.loads(free.out), json.loads(priced.out)
    assert "usd" not in free.out
    for record in (theirs, theirs["question"], theirs["burst"], *theirs["candidates"]):
        for name in [name for name in record if name.startswith("usd")]:
            del record[name]
    assert ours == theirs
    table = run(*asked)
    assert table.code == 0
    assert "$" not in table.out
    assert "output tokens/s on" in table.out.splitlines()[0]
    refused = run("plan", "--budget", "5e21", "--gpu", "gb200", "--latency", "roofline")
    assert refused.code == 2
    assert "--usd-per-gpu-hour" in refused.err


LLAMA = ("cost", "llama-3.1-8b", "--gpu", "h100-sxm")


def test_a_closed_loop_is_answered_beside_the_plateau() -> None:
    asked = (*LLAMA, "--prompt", 1024, "--output", 256, "--concurrency", 32)
    chosen, told = answer_of(*asked), run(*asked).out
    loop = chosen["closed_loop"]
    assert loop["usd_per_mtok"] == min(one["closed_loop"]["usd_per_mtok"] for one in chosen["candidates"])
    assert loop["e2e_s"] == pytest.approx(loop["ttft_s"] + 255 * loop["tpot_s"], rel=0.01)
    assert loop["usd_per_mtok"] > chosen["usd_per_mtok"]  # fewer clients than the server could hold
    assert "for 32 clients" in told.splitlines()[0]
    assert "Closed loop of 32 clients" in " ".join(told.split())


def test_an_open_loop_finds_the_replicas() -> None:
    one = " ".join(run(*LLAMA, "--gpus", 1, "--request-rate", 1, "--prompt", 100, "--output", 20).out.split())
    assert "1 request per second: 1 x h100-sxm (1 replica of 1)" in one
    assert "% of their maximum rate (the table is of full load); TTFT" in one
    assert one.endswith("host: in-line (default of --request-rate).")
    rate = answer_of(*LLAMA, "--gpus", 1, "--request-rate", 1, "--prompt", 100, "--output", 20)["open_loop"]
    assert rate["usd_per_mtok"] == pytest.approx(rate["usd_per_hour"] / (3600 * 20) * 1e6)  # of 20 tokens a second
    assert one.startswith(
        f"${rate['usd_per_mtok']:.2f} per million output tokens on 1 x h100-sxm at 1 request a second"
    )


def test_a_limit_that_the_known_error_breaks_is_named() -> None:
    asked = (
        "cost", "llama-3.3-70b", "--gpu", "h200-sxm", "--max-ttft", "1s", "--max-tpot", "33.3ms", "--concurrency",
        100,
    )  # fmt: skip
    found = answer_of(*asked)
    late = found["limits_missed_by_error"]
    assert set(late) == {"TTFT"}
    assert late["TTFT"] == pytest.approx(found["closed_loop"]["ttft_s"] / found["accuracy"]["ttft"]["geometric_mean"])
    assert late["TTFT"] > 1.0 > found["closed_loop"]["ttft_s"]
    assert "would miss the limit of TTFT" in " ".join(run(*asked).out.split())
    assert "limits_missed_by_error" not in answer_of(*asked, "--gpus", 8)
    unpriced = run("cost", "llama-3.3-70b", "--gpu", "gb200", "--max-ttft", "500ms", "--concurrency", 100).out
    assert "the cheapest that would keep it: 4 GPUs." in " ".join(unpriced.split())
    assert "$" not in unpriced
    at_rate = answer_of(*asked[:-2], "--request-rate", 13)  # whose TTFT is far below that of full load
    assert "limits_missed_by_error" not in at_rate


def test_the_cheapest_server_that_keeps_a_limit_despite_the_known_error_may_have_a_smaller_batch() -> None:
    asked = ("cost", "llama-3.1-405b", "--gpu", "h200-sxm", "--weights", "fp8")
    found = answer_of(*asked, "--max-tpot", "50ms")
    kept = found["limits_kept_by_error"]
    assert (found["gpus"], kept["gpus"], kept["replicas"]) == (8, 8, 1)
    assert kept["max_tpot_s"] == pytest.approx(0.05 * found["accuracy"]["tpot"]["geometric_mean"], rel=0.01)
    again = answer_of(*asked, "--max-tpot", f"{kept['max_tpot_s'] * 1e3:g}ms")
    assert (again["gpus"], again["usd_per_mtok"]) == (8, kept["usd_per_mtok"])
    assert kept["usd_per_mtok"] < min(c["usd_per_mtok"] for c in found["candidates"] if c["gpus"] == 4)
    said = " ".join(run(*asked, "--max-tpot", "50ms").out.split())
    assert f"the cheapest that would keep it: 8 GPUs at --max-tpot 47.4ms, ${kept['usd_per_mtok']:.2f}." in said


def test_a_server_of_a_table_that_keeps_its_limits_needs_no_stricter_ones() -> None:
    asked = ("cost", "llama-3.3-70b", "--gpu", "h200-sxm", "--max-ttft", "1s", "--max-tpot", "33.3ms")
    kept = answer_of(*asked, "--concurrency", 100)["limits_kept_by_error"]
    assert kept.keys() == {"gpus", "replicas", "usd_per_mtok"}
    assert kept["gpus"] == 4


def test_at_a_rate_the_server_that_keeps_a_limit_despite_the_known_error_is_found_by_asking_again() -> None:
    asked = ("cost", "llama-3.1-8b", "--gpu", "l40s", "--weights", "fp8", "--request-rate", 2, "--max-tpot", "60ms")
    kept = answer_of(*asked, "--max-ttft", "37ms")["limits_kept_by_error"]
    again = answer_of(*asked, "--max-ttft", f"{kept['max_ttft_s'] * 1e3:g}ms")["open_loop"]
    assert {name: again[name] for name in ("gpus", "replicas", "usd_per_mtok")} == {
        name: kept[name] for name in ("gpus", "replicas", "usd_per_mtok")
    }
    assert again["ttft_s"] < kept["max_ttft_s"] < 0.037


def test_fit_is_the_same_from_the_same_seed() -> None:
    question = ("fit", RUNS, "--law", "chinchilla", "--where", "n_experts == 1", "--bootstrap", 6)
    first, again, other = (answer_of(*question, "--seed", seed) for seed in (3, 3, 4))
    assert first["intervals"] == again["intervals"] != other["intervals"]


# Refusals: one message that names the option, and the exit code.

ALONE = " ".join(ONE_LAW)
# Loads and what speeds a server up, each with the option that its refusal names.
LOADS = [
    ("speculative 1.5 --draft-tokens 1", "exceed 1 draft tokens"),
    ("draft-tokens 1", "--draft-tokens"),
    ("prefix-hit 2", "--prefix-hit"),
    ("burst 0", "--burst"),
    ("percentile 99", "--percentile"),
    ("percentile 99 --burst 10", "--percentile"),
    ("request-rate 20 --replicas 2", "--replicas"),
]
# (arguments, exit code, words that the message must hold). NAME stands for the file of that name in `bad_files`.
REFUSALS: list[tuple[str, int, tuple[str, ...]]] = [
    # What typer itself refuses.
    ("nope", 2, ("No such command 'nope'", "moescale --help")),
    ("pln", 2, ("No such command 'pln'", "Did you mean 'plan'")),
    ("--nope", 2, ("No such option: --nope", "moescale --help")),
    ("plan --buget 1e20", 2, ("--buget", "--budget", "moescale plan --help")),
    ("plan", 2, ("--budget: no budget", "--train-gpus N --days X")),
    ("plan --budget -1e22", 2, ("--budget: '-1e22' is not a number from 1e+12", "nearest: 1e+12", "in total")),
    ("plan --budget 5e9", 2, ("--budget: '5e9' is not a number from 1e+12", "not per second")),
    ("plan --budget 1e21 --budget-usd 5", 2, ("--budget and --budget-usd state a budget each",)),
    ("plan --days 3", 2, ("--days: needs a number of GPUs", "--train-gpus")),
    ("plan --budget 1e21 --match gtp-oss", 2, ("--match: unknown", "gpt-oss-20b")),
    ("plan --budget 1e21 --match gpt-oss-20b", 2, ("--match", "tokens of gpt-oss-20b are not published")),
    ("plan --budget 1e21 --shape mixtrall", 2, ("--shape: unknown shape 'mixtrall'; nearest: mixtral",)),
    ("plan --budget 1e21 --objective cheap", 2, ("--objective: unknown objective 'cheap'", "serve")),
    ("plan --budget 1e21 --confidence 1.5", 2, ("--confidence", "from 1e-06 to 1")),
    ("fit", 2, ("Missing argument", "RUNS")),
    ("fit a.csv b.csv", 2, ("b.csv", "moescale fit --help")),
    ("laws --jsn", 2, ("--jsn", "--json")),
    ("cost --n-params 1B --json=yes", 2, ("--json",)),
    # Tables of runs.
    ("fit no.csv", 2, ("no.csv", "no such file")),
    ("fit FOLDER", 2, ("FOLDER", "folder")),
    ("fit TEXT.csv", 2, ("TEXT.csv", "row 1", "'tokens'", "'abc'")),
    ("fit TYPO.csv", 2, ("TYPO.csv", "'tokens'", "nearest: token")),
    ("fit ''", 2, ("RUNS", "empty")),
    # Options of fit.
    ("fit RUNS --law nope", 2, ("--law", "'nope'", "yun2024, chinchilla")),
    ("fit RUNS --law hoffmann2022", 2, ("--law", "coefficient set")),
    ("fit RUNS --family nope", 2, ("--family", "'nope'", "ludziejewski2025")),
    ("fit RUNS --where 'tokens /'", 2, ("--where", "ends too early")),
    ("fit RUNS --where 'tokenz > 1'", 2, ("--where", "'tokenz'", "nearest: tokens")),
    ("fit RUNS --where ''", 2, ("--where", "empty")),
    ("""fit RUNS --where '__import__("os").system("true")'""", 2, ("--where", "unexpected '.'")),
    ("fit RUNS --where 'tokens > 1e99'", 2, ("filter", "none of 100 runs")),
    ("fit RUNS --size-column nope", 2, ("size column 'nope'", "n_params_dense")),
    ("fit RUNS --size-column loss", 2, ("'loss'", "two columns")),
    ("fit RUNS --starts 0", 2, ("--starts", "auto, paper")),
    ("fit RUNS --bootstrap 1", 2, ("--bootstrap", "nearest: 0, or 2")),
    ("fit RUNS --bootstrap 1000000000000", 2, ("--bootstrap", "nearest: 10000")),
    ("fit RUNS --seed -1", 2, ("--seed", "'-1'")),
    ("fit RUNS -o missing/law.toml", 2, ("missing", "does not exist")),
    ("fit RUNS -o FOLDER", 2, ("FOLDER", "is a folder")),
    ("fit RUNS -o ''", 2, ("-o", "empty")),
    ("fit RUNS --prior yun2024-recovered", 2, ("--prior: yun2024-recovered says nothing of how coefficients differ",)),
    ("fit RUNS --prior nope", 2, ("--prior",)),
    ("fit RUNS --prior pooled2026 --law chinchilla", 2, ("--prior: only pooled2026 is fitted under a prior",)),
    # Comparisons.
    ("compare RUNS", 2, ("--holdout", "moescale compare --help")),
    ("compare RUNS --holdout 'tokenz > 1'", 2, ("--holdout", "'tokenz'", "nearest: tokens")),
    ("compare RUNS --holdout 'tokens > 1e99'", 2, ("--holdout", "0 of 100 runs")),
    ("compare RUNS --holdout 'tokens > 1e10' --law nope", 2, ("--law", "'nope'", "chinchilla")),
    # Laws.
    ("predict --n-params 1B --tokens 1B --law nope", 2, ("--law", "'nope'", "yun2024-recovered")),
    ("predict --n-params 1B --tokens 1B --law yun2024", 2, ("--law", "nearest: yun2024-")),
    ("predict --n-params 1B --tokens 1B --law no.toml", 2, ("no.toml", "no such file")),
    ("predict --n-params 1B --tokens 1B --law ''", 2, ("--law", "''")),
    ("predict --n-params 1B --tokens 1B --law EMPTY.toml", 2, ("EMPTY.toml", "moescale fit -o")),
    ("predict --n-params 1B --tokens 1B --law CUT.toml", 2, ("CUT.toml", "damaged", "moescale fit -o")),
    ("predict --n-params 1B --tokens 1B --law STEEP.toml", 2, ("--law", "no finite loss")),
    ("predict --n-params 1B --tokens 1B --law RUNS", 2, ("runs.csv", "not a law file")),
    # Quantities of predict.
    ("predict --n-params 1B --tokens 1B --experts 0.5", 2, ("--experts", "nearest: 1")),
    ("predict --tokens 1B", 2, ("--n-params", "is missing", "--runs")),
    ("predict --runs RUNS --n-params 1B", 2, ("--n-params", "leave out this option or --runs")),
    ("predict --runs TYPO.csv", 2, ("TYPO.csv", "no column 'tokens'", "nearest: token")),
    ("predict --runs RUNS --where nope", 2, ("nope",)),
    ("predict --runs RUNS --law STEEP.toml", 2, ("data row 1", "no finite loss")),
    ("predict --runs RUNS --law muennighoff2023 --unique-tokens 0", 2, ("--unique-tokens",)),
    ("predict --runs RUNS --last-point", 2, ("no column names the run", "run_id")),
    ("fit RUNS --seed 0.5", 2, ("--seed", "whole number")),
    ("predict --n-params 1e308 --tokens 1B", 2, ("--n-params", "nearest: 1e+18")),
    # Models of cost.
    ("cost", 2, ("NAME", "--config", "--n-params")),
    ("cost llama-3.1-8b --n-params 1B", 2, ("NAME and --n-params each name a model",)),
    ("cost lama-3.1-8b", 2, ("NAME: ", "'lama-3.1-8b'", "nearest: llama-3.1-8b,", "deepseek-v3", "--config")),
    ("cost no-such/config.json", 2, ("no such file",)),
    ("cost llama-3.1-8b --experts 4", 2, ("--experts", "--n-params", "published model")),
    ("cost llama-3.1-8b --kv-heads 2", 2, ("--kv-heads", "--n-params")),
    ("cost --config no.json", 2, ("no.json", "no such file")),
    ("cost --config ''", 2, ("--config", "empty")),
    ("cost --config EMPTY.json", 2, ("EMPTY.json", "not JSON")),
    ("cost --config GPT2.json", 2, ("GPT2.json", "'gpt2'", "mixtral")),
    ("cost --config SHORT.json", 2, ("SHORT.json", "hidden_size is missing")),
    ("cost --config LLAMA.json --kv-heads 2", 2, ("--kv-heads", "--n-params")),
    ("cost --n-params 1e4", 2, ("--n-params", "nearest: 100000")),
    # Deployments, whose options `plan` shares.
    ("plan --budget 5.15e21 --gpu nope", 2, ("--gpu", "'nope'", "a100-sxm-40gb")),
    *(
        (f"cost --n-params 1B {arguments}", 2, words)
        for arguments, words in [
            ("--gpu nope", ("--gpu", "'nope'", "a100-sxm-40gb")),
            ("--gpu h100", ("--gpu", "nearest: h100-sxm")),
            ("--max-gpus 0", ("--max-gpus", "nearest: 1")),
            ("--max-gpus 1000000000", ("--max-gpus", "nearest: 1024")),
            ("--memory-fraction 0", ("--memory-fraction", "to 1")),
            ("--utilization 0", ("--utilization", "to 1")),
            ("--prompt 0", ("--prompt", "nearest: 1")),
            ("--kv-heads 0", ("--kv-heads", "nearest: 1")),
            ("--max-num-seqs 0", ("--max-num-seqs", "nearest: 1")),
            ("--max-num-seqs x", ("--max-num-seqs", "'x'")),
            ("--usd-per-gpu-hour 0", ("--usd-per-gpu-hour", "'0'")),
            ("--weights int3", ("--weights", "bf16, fp8")),
            ("--latency nope", ("--latency", "silicon, roofline")),
            ("--latency silicon:vlm", ("--latency: unknown engine 'vlm'; nearest: vllm", "a100_sxm")),
            ("--latency silicon:vllm@0.1", ("--latency: unknown version '0.1' of vllm on a100_sxm; nearest: 0.",)),
            ("--latency silicn", ("--latency: unknown latency source 'silicn'; nearest: silicon;",)),
            ("--latency no.csv", ("no.csv", "no such file")),
            ("--kv-cache int2", ("--kv-cache", "bf16, fp8")),
            ("--reserve -1", ("--reserve: '-1' is not a number from 0 to 1e+15; nearest: 0",)),
            ("--speculative -1", ("--speculative: '-1' is not a number from 0 to 64; nearest: 0",)),
            ("--concurrency -5", ("--concurrency: '-5' is not a whole number from 1 to 100000; nearest: 1",)),
            ("--prompt -5K", ("--prompt: '-5K' is not a number from 1 to 1e+09; nearest: 1",)),
            ("--prompt -many", ("--prompt: '-many' is not a quantity",)),
            (
                "--scheduling separate --max-num-batched-tokens 2K",
                ("--max-num-batched-tokens", "add --scheduling chunked"),
            ),
            ("--gpu h200", ("--gpu: unknown GPU 'h200'; nearest: h200-sxm,",)),
            ("--reserve much", ("--reserve", "'much'")),
            ("--expert-parallel 0", ("--expert-parallel", "nearest: 1")),
            ("--replicas 1.5", ("--replicas", "whole number")),
            ("--replicas 9", ("--max-gpus", "9 replicas")),
            ("--gpus 5 --replicas 2", ("--gpus", "nearest: 4")),
            ("--gpus 1 --replicas 2", ("--gpus: 1 GPU cannot be shared",)),
            ("--scheduling mixed", ("--scheduling", "separate, chunked")),
            ("--max-ttft 0", ("--max-ttft", "seconds")),
            ("--max-tpot 5x", ("--max-tpot", "'5x'")),
            ("--years 3", ("--years", "--capital-usd-per-gpu")),
            ("--capital-usd-per-gpu 3e4", ("--power-w", "DGX")),
            ("--capital-usd-per-gpu 3e4 --power-w 700 --pue 0.9", ("--pue", "nearest: 1")),
            ("--capital-usd-per-gpu 3e4 --power-w 700 --usd-per-gpu-hour 2", ("--usd-per-gpu-hour", "give one")),
            ("--weights bf16,fp8", ("--weights",)),
            ("--host inline", ("--host", "in-line")),
            *((f"--{given}", (name,)) for given, name in LOADS),
            ("--trace no.csv", ("no.csv", "no such file")),
            ("--trace EMPTY.json", ("EMPTY.json", "empty")),
            ("--trace TEXT.csv", ("TEXT.csv", "prompt tokens")),
            ("--trace TEXT.csv --prompt 5", ("--prompt", "--trace")),
        ]
    ),
    # Questions of plan.
    *(
        (f"plan --budget {text}", 2, ("--budget", shown))
        for text, shown in [
            ("abc", "'abc'"),
            ("inf", "'inf'"),
            ("''", "empty"),
            ("0", "nearest: 1e+12"),
            ("1e40", "nearest: 1e+32"),
            ("5.15e12GB", "number of bytes, and a count is needed; nearest: 5.15e12G"),
        ]
    ),
    ("plan --budget 5e21 --experts 1.5", 2, ("--experts", "whole number")),
    ("plan --budget 5e21 --experts a,b", 2, ("--experts", "'a'")),
    ("plan --budget 5e21 --experts ,,,", 2, ("--experts", "1,4,8,16")),
    (f"plan --budget 5e21 --experts {','.join(map(str, range(1, 301)))}", 2, ("--experts", "300 expert counts", "256")),
    (
        "plan --budget 5e21 --experts 1024 --match-experts 100",
        1,
        ("--experts", "up to X = 128 (256 experts", "nearest: 256"),
    ),
    ("plan --budget 5e21 --match-experts 0", 2, ("--match-experts", "nearest: 1")),
    ("plan --budget 5e21 --top-k 1", 2, ("--top-k", "top-2", "top-1")),
    (
        "plan --budget 5e21 --max-total-usd 9",
        2,
        ("--max-total-usd: total dollars cover", "give --lifetime-tokens as well"),
    ),
    ("plan --budget 5e21 --convention nope", 2, ("--convention", "paper, exact, dense")),
    ("plan --budget 5e21 --max-loss 0", 2, ("--max-loss: '0' is not a number from 1e-12 to 1000",)),
    ("plan --budget 5e21 --max-total-usd 1e16", 2, ("--max-total-usd: '1e16' is not a number from 1e-12 to 1e+15",)),
    (
        "plan --budget 5e21 --max-usd-per-mtok 1e7",
        2,
        ("--max-usd-per-mtok: '1e7' is not a number from 1e-12 to 1e+06",),
    ),
    ("plan --budget 5e21 --lifetime-tokens 1e308", 2, ("--lifetime-tokens", "nearest: 1e+24")),
    # What a newcomer types.
    ("plan --budget 5,15e21", 2, ("--budget", "decimals take a point")),
    ("plan --budget 5e21 --law chinchilla", 2, ("form of a law", "hoffmann2022", "moescale fit RUNS --law chinchilla")),
    ("plan --budget 5e21 --gpu rtx4090", 2, ("unknown GPU", "docs/serving.md")),
    ("cost --n-params 7 --experts 8", 2, ("--n-params", "7B", "7M")),
    ("cost --n-params 7GB --experts 8", 2, ("--n-params", "number of bytes", "nearest: 7G")),
    ("cost --n-params 7B --max-tpot 1GB", 2, ("--max-tpot", "is not a time")),
    (f"train {ROOT}/examples/sweep.toml --dry-run", 2, ("holds a [grid]", "moescale sweep")),
    (f"sweep {ROOT}/examples/run.toml --dry-run", 2, ("no [grid] and no [[runs]]", "moescale train")),
    ("cost --n-params 1B --memory-fraction 90", 2, ("--memory-fraction", "nearest: 0.9", "90% is 0.9")),
    # Files that are exported, and other commands.
    *(
        (f"plan --budget 5.15e21 --bootstrap 0 {arguments}", 2, (words,))
        for arguments, words in [
            ("--export hf", "--export: needs a folder; add -o FOLDER"),
            ("--export megatrno -o x", "--export: unknown format 'megatrno'; nearest: megatron"),
            ("-o x", "-o: goes with --export only"),
            ("--peak-lr 1e-3", "--peak-lr: goes with --export only"),
            ("--schedule wsd", "--schedule: goes with --export only"),
            ("--export hf -o x --recipe deepsek", "--recipe: unknown recipe 'deepsek'; nearest: deepseek"),
            ("--export hf -o x --schedule wds", "--schedule: unknown schedule 'wds'; nearest: wsd"),
            ("--export hf -o x --train-gpu h10-sxm", "--train-gpu: unknown GPU"),
            ("--export hf -o TEXT.csv", "is a file, not a folder"),
        ]
    ),
    *(
        (f"compare-models llama-3.1-8b {models} --latency roofline", 2, (words,))
        for models, words in [
            ("", "one model cannot be compared"),
            ("llama-3.1-8b", "named twice"),
            ("lama-3.1-8b", "nearest: llama-3.1-8b"),
            ("mixtral-8x7b", "as mixtral-8x7b:15T"),
            ("LLAMA.json", "needs its training tokens"),
            ("nothing.json:quality", "no such file"),
            ("olmoe-1b-7b:x", "'x' is not a quantity"),
        ]
    ),
    *(
        (f"reproduce {arguments}", 2, (words,))
        for arguments, words in [
            ("--latency silicn", "silicon"),
            ("--law hoffmann2022", "dense models"),
            ("--gpu a100", "a100"),
            ("--moe-execution all-expert", "all-experts"),
            ("--server yun", "yun2024"),
            ("--figure 7", "shows a layer"),
            ("--host-times 1ms", "not two times"),
            ("--convention papers", "paper"),
            ("-o TEXT.csv", "not a folder"),
        ]
    ),
    ("profile", 2, ("GRID",)),
    ("profile no.toml", 2, ("-o",)),
    ("profile no.toml -o t.csv", 2, ("no.toml", "no such file")),
    # Good questions without an answer.
    ("cost --n-params 671B --experts 256", 1, ("N = 671B with 256 experts (57.7T total parameters)",)),
    ("plan --budget 5.15e21 --max-tokens 300", 1, ("300 tokens", "allow more than 300 training tokens")),
    ("cost --n-params 100B --experts 64 --max-gpus 1", 1, ("weights take", "a100-sxm-40gb", "more GPUs")),
    ("cost --n-params 1B --prompt 1e9", 1, ("one request", "KV cache")),
    ("cost --n-params 100B --max-gpus 1 --reserve 3GB", 1, ("weights take", "+ reserve 3.0 GB", "38.7 GB usable")),
    ("cost --n-params 1B --max-tpot 0.01ms", 1, ("batch of 1", "per output token", "allowed 0.01 ms")),
    ("cost --n-params 1B --experts 8 --expert-parallel 3 --gpus 4", 1, ("expert parallelism over 3 GPUs",)),
    (f"{ALONE} --max-loss 1.5", 1, ("a loss of at most 1.5", "--max-loss")),
    (f"{ALONE} --max-usd-per-mtok 1e-9", 1, ("$1e-9", "--max-usd-per-mtok")),
    (f"{ALONE} --max-loss 2.2 --max-usd-per-mtok 1e-4", 1, ("a loss of at most 2.2", "--max-usd-per-mtok")),
    (f"{ALONE} --max-gpus 1 --memory-fraction 0.001", 1, ("do not fit", "1 x a100-sxm-40gb")),
]


UNLIKELY = [
    (
        "predict --n-params 1.5 --tokens 100B",
        "--n-params 1.5 means 1.5 parameters; if that is short for more, write 1.5B",
    ),
    ("predict --n-params 1.5B --tokens 100", "--tokens 100 means 100 tokens; if that is short for more, write 100B"),
    ("cost --n-params 1B --reserve 2", "--reserve 2 means 2 bytes; if that is short for more, write 2GiB"),
    ("cost --n-params 1B --max-tpot 30", "--max-tpot 30 means 30 s; write 30ms if milliseconds are meant"),
    ("cost --n-params 1B --max-ttft 500", "--max-ttft 500 means 500 s; write 500ms if milliseconds are meant"),
]


@pytest.mark.parametrize(("line", "warning"), UNLIKELY, ids=[line for line, _ in UNLIKELY])
def test_a_number_in_an_unlikely_unit_is_taken_as_it_stands_and_warned_of(line: str, warning: str) -> None:
    found = run(*split(line))
    assert found.code == 0
    assert f"warning: {warning}\n" in found.err


def test_the_same_numbers_in_a_usual_unit_are_not_warned_of() -> None:
    assert run(*split("predict --n-params 1.5B --tokens 100B --experts 8")).err == ""
    assert run(*split("cost --n-params 1B --reserve 2GiB --max-tpot 0.03 --max-ttft 500ms")).err == ""


def split(line: str) -> list[str]:
    """The arguments of a line of the table above."""
    import shlex

    return [RUNS if part == "RUNS" else part for part in shlex.split(line)]


@pytest.mark.parametrize(("line", "code", "words"), REFUSALS, ids=[line[:60] for line, _, _ in REFUSALS])
def test_refusals_give_one_message_and_the_exit_code(
    line: str, code: int, words: tuple[str, ...], bad_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bad_files)
    before = sorted(bad_files.rglob("*"))
    found = run(*split(line))
    assert (found.code, found.out) == (code, ""), found
    messages = [text for text in found.err.splitlines() if not text.startswith("warning: ")]
    assert len(messages) == 1, found.err
    assert messages[0].startswith("moescale: ")
    missing = [word for word in words if word not in messages[0]]
    assert not missing, messages[0]
    assert "Traceback" not in found.err
    assert sorted(bad_files.rglob("*")) == before
    if code == 2 and not line.startswith("predict"):  # what all commands do alike is asked of one
        return
    as_json = run(*split(line), "--json")
    assert (as_json.code, as_json.err.splitlines()[-1]) == (code, messages[0])
    assert as_json.out == "" or json.loads(as_json.out) == {"infeasible": messages[0].removeprefix("moescale: ")}
    assert bool(as_json.out) == (code == 1)


def test_a_refused_fit_leaves_the_law_that_was_there(tmp_path: Path) -> None:
    kept = tmp_path / "law.toml"
    kept.write_text("precious", encoding="utf-8")
    assert run("fit", RUNS, "--where", "tokens > 1e99", "-o", kept).code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["law.toml"]
    assert kept.read_text(encoding="utf-8") == "precious"


def test_warnings_go_to_standard_error_and_each_only_once(tmp_path: Path) -> None:
    found = run("fit", RUNS, "--law", "yun2024", "--starts", 4, "--json")
    assert found.code == 0
    told = [line.removeprefix("warning: ") for line in found.err.splitlines()]
    assert told == json.loads(found.out)["warnings"]
    assert len(set(told)) == len(told)
    dense = run(*BUDGET, "--law", "hoffmann2022", "--latency", "roofline", "--json")
    assert "dense models only" in dense.err
    assert json.loads(dense.out)["warnings"]


def test_a_law_may_have_any_name(saved_law: Path, tmp_path: Path) -> None:
    path = tmp_path / "[bold]µ.toml"
    text = saved_law.read_text(encoding="utf-8")
    path.write_text(text.replace('name = "mine"', 'name = "[bold]µ[/red]"'), encoding="utf-8")
    found = run("predict", "--law", path, "--n-params", "300M", "--tokens", "10B")
    assert found.code == 0
    assert "[bold]µ[/red]" in found.out
    assert "[bold]µ[/red]" in run(*BUDGET, "--law", path, "--latency", "roofline").out


# What people read.


def test_no_arguments_print_the_help() -> None:
    found = run()
    assert (found.code, found.err) == (0, "")
    assert "Usage: moescale" in found.out
    assert all(command in found.out for command in COMMANDS)


def test_help_begins_with_the_decision_and_groups_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    words = re.findall(r"^│ ([a-z][a-z-]*) ", run("--help").out, re.MULTILINE)
    assert words == list(COMMANDS)
    assert words[0] == "plan"
    for command in ("plan", "cost"):
        head, *panels = re.split(r"^╭─ ", run(command, "--help-all").out, flags=re.MULTILINE)[1:]
        assert len(re.findall(r"--[a-z]", head)) < 25, "what a first question needs stands alone at the top"
        assert {panel.split(" ─")[0] for panel in panels} >= {"Server", "Price"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_names_every_option(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    short, whole = run(command, "--help"), run(command, "--help-all")
    assert (short.code, short.err) == (whole.code, whole.err) == (0, "")
    assert len(short.out.splitlines()) <= 46
    assert max(len(line) for text in (short, whole) for line in text.out.splitlines()) <= 80
    assert all(len(word) < 40 for word in whole.out.partition("Examples:")[2].split())

    def options(text: str) -> set[str]:
        return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text.partition("Example")[0]))

    everything = {name for parameter in parameters(command) for name in parameter.opts if name.startswith("--")}
    assert everything <= options(whole.out)
    assert everything <= options(short.out)
    assert f"moescale {command} --" in short.out or len(whole.out.splitlines()) < 46


def parameters(command: str) -> list[Any]:
    """The options and arguments of a command."""
    import typer

    from moescale.cli.options import app

    commands: dict[str, Any] = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - typer's group is untyped
    return list(commands[command].params)


def test_version_is_the_packages() -> None:

    assert run("--version") == Answer(0, f"{moescale.__version__}\n", "")


# In an example of the help: files and environments of the reader's own, or a tokenizer to be trained.
OF_THE_READER = (
    *("mixtral/", " runs.csv", " run.toml", " sweep.toml", " profile.toml", "envs/", "--show corpus"),
    *("--vocab-size", "plan.json:", "tokenizer.json", "web_text_document"),
)


# One law and the roofline in place of 400 draws and the measured kernels, one form in place of all.
QUICK = {
    "plan": ONE_LAW[3:],
    "fit": ("--law", "chinchilla"),
    "cost": ("--latency", "roofline"),
    "design": ("--law", "public-2026", "--latency", "roofline"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    examples = [line.strip() for line in run(command, "--help-all").out.partition("Examples:")[2].splitlines()]
    assert f"moescale {command}" in " ".join(examples)
    monkeypatch.chdir(ROOT)
    for example in filter(None, examples):
        if command == "report" or any(name in example for name in OF_THE_READER):
            continue
        if command in ("web", "reproduce"):  # test_page.py starts the one, test_snapshot.py asks the other
            continue
        arguments = [
            str(tmp_path / part) if part in ("law.toml", "corpus", "launch") else part for part in split(example)[1:]
        ]
        assert run(*arguments, *QUICK.get(command, ())).code == 0, example


TABLES = [
    (
        ("fit", RUNS, "--law", "yun2024", "--starts", 8, "--bootstrap", 4),
        ("100 runs", "RMSLE", "alpha", "90% interval", "E_max"),
    ),
    (("laws",), ("yun2024-recovered", "hoffmann2022", "406.4", "alpha 0.3392", "ln L =")),
    (("predict", "--n-params", "30B", "--tokens", "20B"), ("nats per token", "90%", "extrapolated: N")),
    (
        ("cost", "--n-params", "1.5B", "--experts", 64, "--latency", "roofline"),
        ("$0.148", "4 x a100-sxm-40gb", "61.5 GiB", "weights take"),
    ),
    (
        (*BUDGET, "--bootstrap", "0"),
        ("Train 16 experts", "> recommended", "Decided", "Open", "Training", "Price error", "Next  ", "--details"),
    ),
    (
        (*BUDGET, "--lifetime-tokens", "1T", "--max-total-usd", "20000", "--bootstrap", "8", "--details"),
        ("Train ", "life $", "$20K", "serving 1T tokens: lowest loss within $20K"),
    ),
    (
        (*ONE_LAW, "--bootstrap", "0", "--details"),
        ("Train 32 experts", "Algorithm 1", "Algorithm 2", "Frontier", "Extrapolated"),
    ),
]


@pytest.mark.parametrize(("arguments", "words"), TABLES, ids=[str(a[0]) for a, _ in TABLES])
def test_tables_hold_the_headline_numbers_and_are_not_too_wide(
    arguments: tuple[object, ...], words: tuple[str, ...]
) -> None:
    found = run(*arguments)
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
    assert out.startswith(
        f"Train {best['experts']} experts: {active} active of {total} parameters, {format_count(best['tokens'])} tokens"
    )
    for c in (row for row in a_plan()["loss_optimal"] if "usd_per_mtok" in row):
        name = "dense" if c["experts"] == 1 else f"E = {c['experts']}"
        table = out.partition("\nLoss-optimal model of each expert count\n")[2]
        row = next(line for line in table.splitlines() if line.startswith(name))
        assert [f"{c['loss']:.4f}", format_usd(c["usd_per_mtok"])] == row.removeprefix(name).split()[4:6]


# As a process.


def process(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """`python -m moescale` with its output in pipes."""
    command = [sys.executable, "-m", "moescale", *arguments]
    return subprocess.run(
        command, env=environment(**extra), capture_output=True, text=True, check=False, encoding="utf-8", timeout=120
    )


def test_the_module_is_the_command() -> None:
    found = process(*BUDGET, "--json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout) == a_plan()
    refused = process("plan", "--budget", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith("moescale: --budget: 'x'")


@pytest.mark.parametrize("width", [80, 100, 132])
def test_tables_fit_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # FORCE_COLOR makes rich take any stream for a terminal, whose width COLUMNS then states.
    for name, value in {"COLUMNS": str(width), "FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    found = run(*BUDGET, "--bootstrap", "0", "--details")
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
    for arguments in (ONE_LAW, ("plan", "--help")):
        found = process(*arguments, PYTHONIOENCODING="ascii")
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout.isascii()


def test_planning_on_the_roofline_loads_no_library_that_it_does_not_use() -> None:
    code = "import sys; from moescale.cli import main\ntry: main(['plan', '--budget', '5.15e21', '--latency', 'roofline'])\nfinally: print(*sys.modules)"
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
    found = run(*ONE_LAW, "--train-gpu", own)
    assert found.code == 2
    assert "--train-gpu: no price is stated for own; give --train-usd-per-gpu-hour as well" in found.err
    assert a_plan()["training"]["train_gpu"] == "a100-sxm-40gb"  # the one that serves
    assert answer_of(*ONE_LAW, "--train-gpu", own, "--train-usd-per-gpu-hour", "1.5")["training"]["train_gpu"] == "own"


def test_a_budget_that_is_not_spent_is_said_first() -> None:
    law = ("--law", "yun2024-recovered")  # whose optimum needs the fewest parameters of those that ship
    found = run("plan", "--budget", "3e24", "--max-tokens", "15T", "--bootstrap", "0", "--details", *law)
    assert found.code == 0
    words = " ".join(found.out.split())
    assert re.search(r"training \S+ FLOPs \(\d+% of the budget\) .*--max-tokens limits training to 15T tokens", words)
    assert "of the budget" not in its_table()


def test_a_budget_that_nobody_stated_is_not_spoken_of(tmp_path: Path) -> None:
    asked = ("plan", "--match", "llama-3.1-8b", "--max-tokens", "15T", *ONE_LAW[3:], "--gpu", "h100-sxm")
    told, stored = run(*asked, "--details"), run(*asked, "--json")
    assert (told.code, stored.code) == (0, 0)
    plan = json.loads(stored.out)
    share = plan["training"]["budget_share"]
    assert share < 0.99
    assert plan["training"]["budget_of"] == "llama-3.1-8b"
    assert f"({share:.0%} of those of llama-3.1-8b)" in plan["recommendation"]["why"]
    (tmp_path / "plan.json").write_text(stored.out, encoding="utf-8")
    assert run("report", str(tmp_path / "plan.json"), "-o", str(tmp_path / "plan.html")).code == 0
    words = " ".join(told.out.split())
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    for text in (words, page):
        assert f"({share:.0%} of those of llama-3.1-8b)" in text
        assert "unused" not in text
        assert "of the budget is" not in text
    stated = run(*asked, "--budget", f"{plan['budget_flops']:g}", "--json")
    assert "of the budget is unused: --max-tokens" in json.loads(stated.out)["recommendation"]["why"]


def test_a_law_of_unknown_range_says_so() -> None:
    cheap = ("--latency", "roofline", "--bootstrap", "0")
    asked = (
        "plan", "--budget", "1e24", "--law", "abnar2025", "--gpu", "h200-sxm", "--experts", "1,4,8,16", "--details",
    )  # fmt: skip
    told = run(*asked, *cheap)
    assert "Extrapolated: training FLOPs 1,000 times the largest fitted" in told.out
    assert "abnar2025: the fitted range of N and D is unknown" in told.out
    assert "fitted range of" not in its_table()
    found = run("predict", "--law", "krajewski2024-dense", "--n-params", "1B", "--tokens", "20B")
    assert "krajewski2024-dense: the fitted range of N and D is unknown" in found.err
    assert "fitted range of" not in run("predict", "--n-params", "1B", "--tokens", "20B").err


def test_a_law_of_few_runs_rests_on_a_prior(tmp_path: Path) -> None:
    runs, saved = ROOT / "examples" / "runs.csv", tmp_path / "mine.toml"
    asked = ("--where", "n_experts <= 4 and tokens <= 3e9 and n_params_dense < 6e8")
    assert run("fit", runs, *asked, "-o", saved).code == 0
    evidence = find_law(str(saved)).evidence
    assert (evidence["n_runs"], evidence["prior"]) == (6, "pooled2026")
    cheap = ("plan", "--budget", "1e21", "--latency", "roofline", "--law")
    found = run(*cheap, saved)
    assert found.code == 0
    assert "no intervals" not in found.err
    alone = tmp_path / "alone.toml"
    assert run("fit", runs, *asked, "--law", "yun2024", "-o", alone).code == 0
    assert "alone carries no draws, so this plan has no intervals" in run(*cheap, alone).err
    assert "intervals" not in run(*cheap, alone, "--bootstrap", "0").err


def test_a_burst_is_simulated_beside_the_plateau(tmp_path: Path) -> None:
    model = ("cost", "--n-params", "1B", "--experts", 8, "--gpu", "h100-sxm", "--latency", "roofline")
    burst = answer_of(*model, "--gpus", 1, "--burst", 200)["burst"]
    assert burst["peak_running"] == 200
    assert burst["usd_per_mtok"] == pytest.approx(3.9 / 3600 / burst["output_tok_s"] * 1e6)
    assert "Simulated: 200 requests" in run(*model, "--burst", 200).out
    trace = tmp_path / "requests.csv"
    trace.write_text("prompt_tokens,output_tokens\n100,10\n2000,30\n")
    found = answer_of(*model, "--trace", trace, "--burst", 5)["burst"]
    assert found["output_tok_s"] * found["makespan_s"] == pytest.approx(10 + 30 + 10 + 30 + 10)


@pytest.mark.parametrize(
    ("model", "gpu", "says", "leaves_out"),
    [
        ("deepseek-v3", "mi300x", "latent layers carry 196 us each, from servings of DeepSeek-R1 on MI300X", "no m"),
        ("deepseek-v3", "mi325x", "on MI300X; no measurement of mi325x was compared", "mi300x"),
        ("deepseek-v3", "mi355x", "no measurement of mi355x was compared", "latent layers"),
        ("llama-3.1-8b", "mi300x", "lowered to 45% of its arithmetic and 81% of its bandwidth\n", "latent layers"),
        ("llama-3.1-8b", "h100-sxm", "", "roofline with"),
    ],
)
def test_a_gpu_without_measured_kernels_says_what_its_times_rest_on(
    model: str, gpu: str, says: str, leaves_out: str
) -> None:
    asked = ("cost", model, "--gpu", gpu, "--usd-per-gpu-hour", 2, "--latency", "roofline", "--weights", "fp8")
    found = run(*asked, "--gpus", 8)
    assert found.code == 0
    assert found.err.count(f"{gpu}: roofline with") == bool(says)
    assert says in found.err
    assert leaves_out not in found.err

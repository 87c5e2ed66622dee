"""What the first screen of a plan says of other shapes and expert counts, and of other laws."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import split

import pytest

from command_line import FAST, answer_of, run

pytestmark = pytest.mark.usefixtures("plans_made_once")


@pytest.mark.fuzz
def test_every_shape_is_planned_against_one_baseline() -> None:
    asked = ("plan", "--budget", "1e22", "--gpu", "h100-sxm", *FAST, "--bootstrap", "20")
    found, alone = (answer_of(*asked, "--shape", name) for name in ("all", "mixtral"))
    models = {choice["shape"]: choice["model"] for choice in found["shapes"]}
    prices = [model["usd_per_mtok"] for model in models.values()]
    assert models.keys() == {"deepseek", "fine-grained", "mixtral", "paper"}
    assert [found["recommendation"]["usd_per_mtok"], *sorted(prices[1:])] == prices
    assert models["mixtral"]["usd_per_mtok"] == pytest.approx(alone["recommendation"]["usd_per_mtok"], rel=0.05)
    base = found.get("base_as_built", found["base"])  # which is built where another shape is planned
    assert base["usd_per_mtok"] == pytest.approx(alone["base_as_built"]["usd_per_mtok"], rel=1e-6)


@pytest.mark.fuzz
def test_the_better_shape_is_planned_where_none_is_stated(tmp_path: Path) -> None:
    asked = ("plan", "--budget", "1e23", "--gpu", "h100-sxm", *FAST, "--bootstrap", "40")
    plan, named = answer_of(*asked), {name: answer_of(*asked, "--shape", name) for name in ("deepseek", "mixtral")}
    best, other = plan["shapes"]
    assert plan["asked"]["family"] == best["shape"] == "deepseek"
    assert plan["recommendation"] == named["deepseek"]["recommendation"]
    assert best["model"]["usd_per_mtok"] < 0.95 * other["model"]["usd_per_mtok"]
    assert other["model"]["usd_per_mtok"] == pytest.approx(named["mixtral"]["recommendation"]["usd_per_mtok"], rel=0.1)
    trained_on = other["model"]["tokens"] * other["usd_at_loss"] / other["training_usd"]
    size = ("--n-params", other["model"]["n_params"], "--experts", other["model"]["experts"])
    assert answer_of("predict", *size, "--tokens", trained_on)["loss"] == pytest.approx(best["model"]["loss"], rel=1e-6)
    assert best["usd_at_loss"] == best["training_usd"] < other["usd_at_loss"]
    assert all("shapes" not in each for each in named.values())
    unmeasured = answer_of("plan", "--budget", "1e22")  # of an A100 no kernels of latent attention are known
    assert {choice["shape"] for choice in unmeasured["shapes"]} == {"fine-grained", "mixtral"}
    own = tmp_path / "own.toml"  # without a price, which an export does not need
    own.write_text('name = "own"\nmemory_gib = 96\nbandwidth_gb_per_s = 3000\nbf16_tflops = 500\nlink_gb_per_s = 100\n')
    found = run(*asked, "--train-gpu", own, "--export", "megatron", "-o", tmp_path / "launch")
    assert found.code == 0, found.err
    assert "\nShapes       deepseek" in found.out


def test_a_lower_loss_for_the_price_of_another_shape_is_worth_its_training() -> None:
    best, other = answer_of("plan", "--budget", "1e22", "--gpu", "h100-sxm", *FAST)["shapes"]
    assert (best["shape"], other["shape"]) == ("deepseek", "mixtral")
    assert best["model"]["loss"] < other["model"]["loss"]
    assert best["training_usd"] > other["training_usd"]


@pytest.mark.fuzz
def test_stated_expert_counts_are_set_against_all_counts_of_all_shapes() -> None:
    asked = ("plan", "--budget", "1e23", "--gpu", "h100-sxm", *FAST, "--bootstrap", "40")
    free, stated = answer_of(*asked), answer_of(*asked, "--experts", "32")
    assert stated["unbounded"]["usd_per_mtok"] == pytest.approx(free["recommendation"]["usd_per_mtok"], rel=0.05)
    assert stated["unbounded_shape"] == free["shapes"][0]["shape"]
    matched = [answer_of(*asked, "--match", "llama-3.1-8b", *more) for more in ((), ("--experts", "32"))]
    assert matched[1]["unbounded"]["loss"] == pytest.approx(matched[0]["recommendation"]["loss"], abs=0.02)
    assert re.search(
        r"^All counts   \d+ experts of deepseek, .*: cost -\d+%, loss", run(*asked, "--experts", "32").out, re.M
    )


@pytest.mark.fuzz
def test_stated_expert_counts_are_planned_in_the_better_shape_that_can_have_them() -> None:
    asked = ("plan", "--budget", "1e23", "--gpu", "h100-sxm", *FAST, "--bootstrap", "40", "--experts")
    plan = answer_of(*asked, "128")
    named = {name: answer_of(*asked, "128", "--shape", name) for name in ("deepseek", "mixtral")}
    best = plan["shapes"][0]
    assert {choice["model"]["experts"] for choice in plan["shapes"]} == {128}
    assert plan["recommendation"] == named[best["shape"]]["recommendation"]
    prices = {name: each["recommendation"]["usd_per_mtok"] for name, each in named.items()}
    assert best["shape"] == "mixtral" or prices["deepseek"] < 0.95 * prices["mixtral"]
    # More than the law allows of mixtral, against whose baseline the other shape is set all the same.
    many = run(*asked, "512")
    assert "shape mixtral is left out: pooled2026 was fitted up to X = 128" in many.err
    assert "shape deepseek" in many.out
    assert "dense baseline (mixtral)" in many.out


@pytest.mark.fuzz
def test_a_fitted_law_knows_the_errors_of_the_default_law_on_its_runs(tmp_path: Path) -> None:
    law = tmp_path / "own.toml"
    told = run("fit", "examples/runs.csv", "-o", law)
    assert re.search(
        r"Error on these runs around the bias: 1\.5% of pooled2026, 0\.28% of this law; 0\.45% of this", told.out
    )
    asked = ("plan", "--budget", "1e22", "--gpu", "h100-sxm", "--law", law, *FAST, "--bootstrap", 20)
    answer = answer_of(*asked)
    errors, beyond = answer["errors_on_runs"], answer["recommendation"]["over_fitted"]
    assert 2.0 < beyond["tokens"] == pytest.approx(answer["recommendation"]["tokens"] / 2e10, rel=1e-9)
    assert {name: round(error, 3) for name, error in errors.items()} == {
        "pooled2026": 0.015, "own": 0.003, "own held out": 0.005,
    }  # fmt: skip
    words = " ".join(run(*asked).out.split())
    assert "errors on these runs: pooled2026 1.5%, own 0.28%, own held out 0.45%" in words
    # Runs as the paper has them: FLOPs are of what a token meets, and the shape is one that is served.
    assert answer["convention"] == "exact"
    assert {choice["shape"] for choice in answer["shapes"]} == {"mixtral", "deepseek", "paper"}
    assert any("own: not identified by these runs: B, beta" in note for note in answer["warnings"])
    assert "Fitted on dense-equivalent N 81.4M to 679M, D 2.5B to 20B, E 1 to 32; X up to 11." in told.out
    assert "Decided      16 experts (X 8; 32 have more X than the law's runs)" in run(*asked, "--shape", "mixtral").out
    default = answer_of("plan", *asked[1:5], *asked[7:])["recommendation"]
    assert {name: answer["default_law"][name] for name in ("experts", "tokens")} == {
        name: default[name] for name in ("experts", "tokens")
    }
    kept = answer_of(*asked, "--shape", "paper")
    assert answer["recommendation"]["usd_per_mtok"] < kept["recommendation"]["usd_per_mtok"]


@pytest.mark.fuzz
def test_own_runs_that_the_default_law_goes_beyond_are_fitted_beside_other_labs_runs_next(tmp_path: Path) -> None:
    law, part, both = (tmp_path / f"{name}.toml" for name in ("own", "part", "both"))
    run("fit", "examples/runs.csv", "-o", law)
    asked = ("--budget", "1e23", "--gpu", "h100-sxm", *FAST)
    out, default = run("plan", *asked, "--law", law).out, answer_of("plan", *asked, "--law", law)["default_law"]
    words = " ".join(out.split())
    told = "beyond the runs of both: Next takes both as evidence"
    assert re.search(rf"Default law {default['experts']} experts of deepseek, .*; {told}", words)
    assert re.search(
        r"Chance \d+% for the baseline's loss, the most that \d laws can show \(8\d% of their draws\)", words
    )
    (command,) = re.findall(r"^Next +moescale (fit examples/runs.csv --prior pooled2026) -o both.toml$", out, re.M)
    assert run(*split(command), "-o", both).code == 0
    united = answer_of("plan", *asked, "--law", both)
    assert united["recommendation"]["experts"] == default["experts"]
    out = " ".join(run("plan", *asked, "--law", both).out.split())
    assert "other labs' runs decide" in out
    assert " --export megatron" in out
    own = run("design", "--budget", "1e21", "--max-runs", 2, "--plan-budget", *asked[1:], "--law", law)
    told = "own speaks of its own expert counts alone, and so does this sweep; one that tests more: moescale design --budget 1e21 "
    assert f"{told}--max-runs 2 --plan-budget {' '.join(asked[1:])} --runs examples/runs.csv\n" in own.err
    run("fit", "examples/runs.csv", "--where", "n_experts <= 16", "-o", part)
    assert re.search(r"^Next .* fit RUNS\.csv ", run("plan", *asked, "--law", part).out, re.M)

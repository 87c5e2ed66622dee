"""The first screen of a plan, and the defaults that it says."""

from __future__ import annotations

import re
from pathlib import Path
from shlex import split

import pytest

from command_line import FAST, MIXTRAL, answer_of, run
from moescale.options.law import LawOptions, in_shape
from moescale.scaling_laws import predict
from moescale.units import format_count, format_seconds, format_usd
from moescale.views.tables.screen import of_design

pytestmark = pytest.mark.usefixtures("plans_made_once")
DEEPSEEK = "--gpu h200-sxm --weights fp8 --shape deepseek --prompt 2000 --output 500"
LIFE = "--budget 1e24 --gpu h100-sxm --lifetime-tokens 10T --law yun2024-recovered --bootstrap 40"
APART = "--budget 1e24 --gpu h200-sxm --max-tpot 25ms --max-ttft 1s --prompt 8000 --output 500 --disaggregated"
UNLIMITED = "--budget 5.15e21 --law yun2024-recovered --max-tpot none"
ASKED = [
    "--budget 5.15e21",
    "--budget 1e22 --gpu h100-sxm --match olmoe-1b-7b",
    f"--budget 3e24 --max-tokens 15T --against deepseek-v3,qwen3-30b-a3b,olmoe-1b-7b,deepseek-v2 {DEEPSEEK}",
    pytest.param("--budget 1e23 --gpu h100-sxm --max-active-params 3B", marks=pytest.mark.fuzz),
    *(pytest.param(asked, marks=pytest.mark.fuzz) for asked in (LIFE, APART, UNLIMITED)),
    f"{LIFE} --shape mixtral",
    pytest.param(f"{APART} --shape deepseek", marks=pytest.mark.fuzz),
]


def physical(out: str, width: int = 100) -> int:
    """Lines of a terminal so wide."""
    return sum(1 + max(len(line) - 1, 0) // width for line in out.splitlines())


@pytest.mark.parametrize("asked", ASKED)
def test_a_screen_has_eighteen_lines_and_one_probability(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    found = run("plan", *split(asked), *FAST)
    assert found.code == 0
    assert physical(found.out) <= 18
    assert max(len(line) for line in found.out.splitlines() if not line.startswith("Next ")) <= 100
    named = [line.split("  ")[0] for line in found.out.splitlines()]
    assert [named.count(name) for name in ("Decided", "Training", "Price error", "Next", "More")] == [1] * 5
    facts = [line for line in found.out.splitlines() if re.match(r"[A-Z]\w+", line)]
    assert len([line for line in facts if line.startswith("Chance")]) <= 1
    assert "of draws" not in found.out
    assert "> recommended" in found.out


def test_the_next_command_runs_as_it_is_printed() -> None:
    asked = "--budget=5.15e21 --bootstrap 20 --max-tpot 60ms --shape fine-grained"
    out = run("plan", *split(asked), *FAST).out
    (line,) = (line for line in out.splitlines() if line.startswith("Next "))
    command = split(line.removeprefix("Next"))
    assert command[:2] == ["moescale", "design"]
    assert "--plan-budget=5.15e21" in command
    found = run(*command[1:], "--json")
    assert found.code == 0, found.err
    # a trainer's options are none of a design
    trained = "--budget 1e21 --recipe step-law --peak-lr=1e-3 --gpu h100-sxm"
    assert list(of_design(trained)) == ["--plan-budget", "1e21", "--gpu", "h100-sxm"]


def test_a_plan_serves_twenty_tokens_a_second_unless_it_is_said_otherwise() -> None:
    dense = ("--law", "hoffmann2022", "--experts", 1, "--match-experts", 1)
    question = (*MIXTRAL, "--budget", "1e24", "--bootstrap", 0, *dense, *FAST)
    usual, stated, free = (answer_of(*question, *more) for more in ((), ("--max-tpot", "50ms"), ("--max-tpot", "none")))
    assert usual["recommendation"] == stated["recommendation"]
    assert usual["asked"]["max_tpot_s"] == 0.05
    assert usual["recommendation"]["tpot_s"] <= 0.05 * (1 + 1e-6)
    assert "max_tpot_s" not in free["asked"]
    assert free["recommendation"]["tpot_s"] > 0.05
    assert "TPOT <= 50 ms (20 tok/s a user)" in run(*question).out.splitlines()[1]
    assert "no limit of TPOT" in run(*question, "--max-tpot", "none").out.splitlines()[1]


def test_where_no_model_is_fast_enough_the_nearest_limit_is_taken_or_named() -> None:
    asked = "--budget 5.7e22 --max-tokens 500B --bootstrap 0 --law hoffmann2022 --experts 1 --match-experts 1"
    slow = ("plan", *split(asked), "--gpu", "l40s", "--max-gpus", 1, "--shape", "mixtral", *FAST)
    usual = answer_of(*slow)
    assert usual["asked"].get("max_tpot_s", 1.0) > 0.05
    assert "no model serves within 50 ms per output token" in usual["warnings"][0]
    nearest = re.search(r"--max-tpot (\S+)", usual["warnings"][0])
    assert nearest
    refused = run(*slow, "--max-tpot", "50ms")
    assert refused.code == 1
    assert f"nearest: --max-tpot {nearest[1]}" in refused.err


@pytest.mark.fuzz
@pytest.mark.parametrize(
    ("gpu", "shape", "most"),
    [
        # Days buy more FLOPs than the budget, at an MFU that the model misses.
        ("h100-sxm", "deepseek", ("--max-days", 10)),
        ("a100-sxm-40gb", "fine-grained", ("--max-days", 9.99)),
        ("a100-sxm-40gb", "mixtral", ("--max-days", 10)),
    ],
)
def test_a_stated_bound_on_days_holds_as_printed(gpu: str, shape: str, most: tuple[str, float]) -> None:
    asked = ("plan", "--budget", 8.65e21, "--train-gpus", 64, *most, "--gpu", gpu, "--shape", shape)
    training = answer_of(*asked, *FAST, "--bootstrap", 0)["training"]
    assert float(format_count(training["days"])) <= most[1]
    assert training["days"] > 0.85 * most[1]


@pytest.mark.fuzz
def test_a_limit_of_ttft_says_what_it_is_of_and_which_command_gives_percentiles(tmp_path: Path) -> None:
    served = ("--gpu", "h200-sxm", "--max-ttft", "1s", "--max-tpot", "25ms", "--prompt", 8000, "--output", 500, *FAST)
    asked, file = (*split("plan --budget 1e23 --bootstrap 0 --shape deepseek"), *served), tmp_path / "plan.json"
    out, plan = run(*asked).out, answer_of(*asked)
    model = plan["recommendation"]
    price = answer_of(*asked, "--disaggregated")["recommendation"]["usd_per_mtok"]  # of a model chosen for that
    assert price <= 1.02 * plan["apart_usd_per_mtok"] < 0.9 * model["usd_per_mtok"]
    apart = re.escape(format_usd(plan["apart_usd_per_mtok"]))
    assert re.search(rf"^This model +{apart} with prefill and decode|^More .*--disaggregated {apart}", out, re.M)
    file.write_text(run(*asked, "--json").out)
    slow = answer_of("cost", f"{file}:recommendation", *served, "--max-tpot", "50ms", "--max-ttft", "1s")
    assert plan["slower_usd_per_mtok"] == pytest.approx(slow["usd_per_mtok"], rel=1e-6)
    in_fp8 = answer_of("cost", f"{file}:recommendation", *served, "--weights", "fp8")
    assert plan["fp8_usd_per_mtok"] == pytest.approx(in_fp8["usd_per_mtok"], rel=1e-6)
    assert "fp8_usd_per_mtok" not in answer_of(*asked, "--weights", "bf16")
    seconds = re.escape(format_seconds(model["ttft_s"]))
    assert re.search(rf"GPUs +TTFT +TPOT .*\n(?:.*\n)*> recommended .* {seconds}  ", out)
    assert re.search(r"GPUs +TTFT +epochs", run(*asked, "--unique-tokens", "5T").out)
    said = r"Limits means at full load; for 99% of requests \$(\S+), apart \$(\S+) \((\d+) \+ (\d+) GPUs\): (.* auto)"
    ((usd, apart_usd, prefill, decode, line),) = re.findall(said, " ".join(out.split()))
    command = split(line.replace("plan.json", str(file)))
    assert command[2] == ".."
    usual, loaded = answer_of(*command[:2], *served), answer_of(*command[:2], *served, *command[3:])
    assert usual["usd_per_mtok"] == pytest.approx(model["usd_per_mtok"], rel=1e-6)
    assert loaded["open_loop"]["percentile"] == 99
    assert loaded["open_loop"]["usd_per_mtok"] == pytest.approx(plan["open_loop"]["usd_per_mtok"], rel=1e-9)
    assert format_usd(loaded["open_loop"]["usd_per_mtok"]) == f"${usd}"
    assert loaded["open_loop"]["usd_per_mtok"] > usual["usd_per_mtok"]
    apart = loaded["disaggregated"]
    assert apart["usd_per_mtok"] == pytest.approx(plan["open_loop_apart"]["usd_per_mtok"], rel=1e-9)
    assert format_usd(apart["usd_per_mtok"]) == f"${apart_usd}"
    assert (apart["prefill"]["gpus"], apart["decode"]["gpus"]) == (int(prefill), int(decode))
    out = " ".join(run(*asked, "--disaggregated").out.split())
    said = r"Limits TTFT of a full pass; for 99% of requests (?:\S+, apart )?(\S+) \((\d+ \+ \d+) GPUs\): (.* auto)"
    ((usd, gpus, line),) = re.findall(said, out)
    command = split(line.replace("plan.json", str(alone := tmp_path / "apart.json")))
    alone.write_text(run(*asked, "--disaggregated", "--json").out)
    told = " ".join(run(*command[:2], *served, *command[3:]).out.split())
    assert f"Separate prefill and decode: {gpus} x " in told
    assert f", {usd} per million output tokens" in told
    assert not re.search(r"^Limits|TTFT", run(*MIXTRAL, "--budget", "1e23", "--bootstrap", 0, *FAST).out, re.M)
    missing = run("cost", f"{tmp_path / 'none.json'}:recommendation", *served)
    assert "moescale plan .. --json" in missing.err


def test_a_loss_that_costs_nothing_is_taken() -> None:
    found = answer_of("plan", "--budget", "3e20", "--gpu", "h200-sxm", "--shape", "mixtral")
    model, base = found["recommendation"], found["base_as_built"]
    assert model["usd_per_mtok"] <= 1.02 * base["usd_per_mtok"]
    assert model["loss"] < base["loss"] - 0.05
    assert model["probability_at_least_base"] >= 0.8


@pytest.mark.fuzz
def test_unique_tokens_are_repeated_four_times_at_most_unless_more_are_stated() -> None:
    asked = (*MIXTRAL, *FAST, "--budget", "1e23", "--unique-tokens", "300B", "--bootstrap", 0)
    few, out = answer_of(*asked), run(*asked).out
    model, others = few["recommendation"], few["more_epochs"]
    rows = [model, few["base"], *few["built"], *few["loss_optimal"]]
    assert max(row["tokens"] for row in rows) <= 1.2e12 * (1 + 1e-6) < others["tokens"]
    assert few["repeats_loss"] > 0.0
    assert few["asked"]["max_epochs"] == 4
    words = " ".join(out.split())
    assert f"{format_usd(others['usd_per_mtok'])}, loss {others['loss']:.4f}, training " in words
    assert f"{others['tokens'] / 3e11:.3g} epochs (--max-tokens 40T): " in words
    assert "1.2T tokens (4 epochs)" in out
    assert "<= 1.2T tokens" not in out
    assert few["training"]["unused_because"] == "with 4 epochs (more: --max-tokens)"
    epochs = f"{model['tokens'] / 3e11:.3g}"
    assert re.search(rf"GPUs  epochs .*\n(?:.*\n)*> recommended .* {re.escape(epochs)} +\$", out)
    stated = answer_of(*asked, "--max-tokens", "40T")
    assert {"more_epochs", "max_epochs"}.isdisjoint(stated.keys() | stated["asked"].keys())
    assert stated["recommendation"]["experts"] == others["experts"]
    assert stated["recommendation"]["tokens"] == pytest.approx(others["tokens"], rel=0.05)
    assert stated["fresh_usd_per_mtok"] == pytest.approx(few["fresh_usd_per_mtok"], rel=0.02)
    twenty = answer_of(*asked, "--max-tokens", "2T")["recommendation"]
    assert 1.2e12 < twenty["tokens"] <= 2e12 * (1 + 1e-6)
    refused = run(*asked, "--max-loss", stated["recommendation"]["loss"] * 0.99)
    assert (refused.code, "allow more than 4 epochs (--max-tokens)" in refused.err) == (1, True)
    life = answer_of(*asked, "--lifetime-tokens", "50T")
    assert life["lifetime"]["recommendation"]["tokens"] > 1.2e12
    assert "max_epochs" not in life["asked"]


@pytest.mark.fuzz
def test_no_lower_loss_is_left_at_a_price_that_does_not_depend_on_the_size() -> None:
    asked = ("plan", "--gpu", "h100-sxm", "--shape", "deepseek", "--experts", "1,512", "--bootstrap", 0, "--budget")
    found = [answer_of(*asked, budget)["recommendation"] for budget in ("2.2e22", "3e22")]
    assert found[1]["loss"] < found[0]["loss"]
    assert any("512 experts (X 57; labs varied sizes up to X 43)" in note for note in found[1]["caveats"])
    assert found[1]["usd_per_mtok"] == pytest.approx(found[0]["usd_per_mtok"], rel=0.02)
    other = answer_of(*asked, "3e22", "--max-usd-per-mtok", found[1]["usd_per_mtok"] * 1.005)["recommendation"]
    assert other["loss"] > found[1]["loss"] - 0.005


@pytest.mark.fuzz
def test_a_step_of_the_price_names_what_would_be_chosen_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("planning.beside", "views.tables.screen"):  # any higher price is a step
        monkeypatch.setattr(f"moescale.{module}.PRICE_STEP", 1.0)
    asked = (*MIXTRAL, "--budget", "1.3e23", "--max-tpot", "20ms", *FAST, "--bootstrap", 20)
    step, there = answer_of(*asked)["faster_choice"], answer_of(*asked, "--max-tpot", "18ms")["recommendation"]
    names = ("experts", "n_params", "tokens", "usd_per_mtok")
    assert [step[name] for name in names] == pytest.approx([there[name] for name in names], rel=1e-6)
    assert f"at a TPOT of 18 ms, where {step['experts']} experts, " in " ".join(run(*asked).out.split())


@pytest.mark.fuzz
def test_the_baseline_is_one_whatever_the_precision_and_within_the_bounds() -> None:
    """Dollars buy the dense baseline what they buy in bf16, whatever the others are trained in; sizes bound it, too."""
    asked = (*MIXTRAL, "--budget-usd", "100K", *FAST, "--bootstrap", 0, "--experts", 16)
    plain, fp8 = (answer_of(*asked, *more) for more in ((), ("--train-precision", "fp8")))
    assert fp8["base"]["loss"] == pytest.approx(plain["base"]["loss"], rel=1e-9)
    assert fp8["base_as_built"]["tokens"] == pytest.approx(plain["base_as_built"]["tokens"], rel=1e-9)
    assert fp8["base_as_built"]["training_usd"] == pytest.approx(1e5, rel=1e-4)
    assert fp8["budget_flops"] > 1.1 * plain["budget_flops"]
    out = run(*asked, "--train-precision", "fp8").out
    assert "dense baseline in bf16" in out
    few = ("plan", "--budget", "1e23", "--max-active-params", "1B", "--shape", "mixtral", "--experts", 16)
    small = answer_of(*few, *FAST, "--bootstrap", 0)
    assert small["base_as_built"]["n_params_active"] <= 1e9
    assert small["base"]["n_params_active"] == pytest.approx(1e9, rel=1e-6)


def test_an_output_layer_as_large_as_the_model_is_said() -> None:
    asked = ("plan", "--budget", "1e20", "--shape", "deepseek", *FAST, "--bootstrap", 0, "--experts", 64)
    shape = answer_of(*asked)["recommendation"]["architecture"]
    added = format_count(shape["vocab_size"] * shape["d_model"])
    assert f"Vocabulary   129,280 rows: the output layer adds {added} " in run(*asked).out
    assert "\nVocabulary" not in run(*asked, "--vocab-size", 8000).out


def test_a_bound_on_sizes_asks_for_the_lowest_loss_and_says_what_it_leaves_out() -> None:
    free = (*MIXTRAL, "--budget", "1e22", *FAST, "--bootstrap", 40, "--experts", "8,32")
    asked = (*free, "--max-active-params", "1B")
    found = answer_of(*asked)
    assert found["objective"] == "loss"
    assert found["recommendation"]["n_params_active"] <= 1e9
    left_out = found["without_bounds"]
    assert left_out["model"]["n_params_active"] > 1e9
    assert 0.0 <= left_out["chance"] <= 1.0
    assert f"{left_out['model']['n_params_active'] / 1e9:.3g}B active" in run(*asked).out.partition("No bound")[2]
    assert "without_bounds" not in answer_of(*free)


@pytest.mark.fuzz
def test_a_bound_on_sizes_beside_a_match_asks_for_its_loss() -> None:
    asked = (*MIXTRAL, "--budget", "1e23", *FAST, "--bootstrap", 40, "--experts", "8,32", "--max-active-params", "1B")
    assert answer_of(*asked, "--match", "olmoe-1b-7b", "--confidence", 0.1)["objective"] == "serve"


def test_training_in_fp8_is_cheaper_and_says_up_to_which_loss_it_pays() -> None:
    in_bf16 = (*MIXTRAL, "--budget", "1e22", "--bootstrap", 0, "--experts", "8,32", *FAST)
    asked = (*in_bf16, "--train-precision", "fp8")
    plain, fp8 = (answer_of(*question) for question in (in_bf16, asked))
    model, usd, use = plain["recommendation"], plain["training"]["usd"], fp8["training"]
    assert 1.1 < usd / use["usd"] < 2.0
    assert (plain["training"].get("precision"), use["precision"]) == (None, "fp8")
    assert use["bf16_usd"] == pytest.approx(usd, rel=1e-9)
    out = " ".join(run(*asked).out.split())
    assert re.search(rf"\(bf16 {re.escape(format_usd(usd))} in \S+ days: fp8 pays where it costs < ", out)
    ends = f"{100 * use['fp8_worth_loss']:.2g}% to {100 * use['fp8_worth_loss_published']:.2g}%"
    assert f"fp8 pays where it costs < {ends} of loss, DeepSeek-V3's < 0.25%)" in out
    assert " is safer" not in out
    assert use["fp8_worth_loss_published"] > use["fp8_worth_loss"]  # fp8 gained MoE runs more than is predicted
    law, longer = in_shape(LawOptions().find_law(), "mixtral"), model["tokens"] * use["bf16_usd"] / use["usd"]
    losses = [predict(law, model["n_params"], tokens, model["experts"]).loss for tokens in (longer, model["tokens"])]
    assert use["fp8_worth_loss"] == pytest.approx(1.0 - losses[0] / losses[1], rel=0.05)
    assert re.search(r"in \S+ days 90% \(routing: ", out)
    assert "Next moescale plan" in out
    assert "--train-precision" not in out.partition("Next ")[2].partition("More ")[0]  # files for a trainer are in bf16
    assert "--export" not in out.rpartition("More")[2]
    for more, said in ((("--train-gpu", "a100-sxm-80gb"), "has no fp8 arithmetic"), (("--mfu", 0.3), "stated --mfu")):
        refused = run(*asked, *more)
        assert refused.code == 2
        assert said in refused.err


@pytest.mark.fuzz
def test_prefill_and_decode_apart_have_gpus_of_their_own() -> None:
    asked = ("plan", "--budget", "1e22", *split(DEEPSEEK), *FAST, "--bootstrap", "20", "--experts", "64")
    together, apart = answer_of(*asked), answer_of(*asked, "--disaggregated")
    model = apart["recommendation"]
    assert model["prefill_gpus"] >= 1
    assert together["apart_usd_per_mtok"] > together["recommendation"]["usd_per_mtok"]  # so that no screen names it
    assert not re.search("^This model", run(*asked).out, re.M)
    assert "apart_usd_per_mtok" not in apart
    assert "prefill_gpus" not in together["recommendation"]
    out = run(*asked, "--disaggregated").out
    assert re.search(rf" {model['prefill_gpus']} \+ {model['gpus']} ", out)
    assert apart.get("accuracy") is None or "prefill and decode apart" in apart["accuracy"]["kind"]


@pytest.mark.fuzz
def test_prefill_and_decode_apart_are_planned_in_the_shapes_that_are_served() -> None:
    found = answer_of("plan", "--budget", "1e22", "--gpu", "h100-sxm", "--disaggregated", *FAST, "--bootstrap", "0")
    assert {choice["shape"] for choice in found["shapes"]} == {"mixtral", "deepseek"}

"""Models side by side, and known models beside a plan."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import command_line
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.coordinates import in_family
from moescale.models.published import find_shape
from moescale.options.known import stated_model
from moescale.planning.allocation import Budget
from moescale.planning.compare_models import ComparedModel, compare_models
from moescale.planning.plan import Plan, Question, make_plan
from moescale.planning.plan_file import parse_plan
from moescale.planning.question import KnownModel
from moescale.planning.training_price import TrainingPrice
from moescale.scaling_laws import find_law, loss
from moescale.serving.deployment import Deployment
from moescale.views.figures import plan_figure
from moescale.views.terminal.plan import show_plan
from reference_data import ROOT

GPU = find_gpu("h100-sxm")
SERVED = Deployment(gpu=GPU, usd_per_gpu_hour=3.9, prompt_tokens=230.0, output_tokens=203.0, max_num_seqs=256.0)
PRICE = TrainingPrice(gpu=GPU, usd_per_gpu_hour=3.9, mfu=0.4)
LAW = find_law("public-2026")
CONFIG = str(ROOT / "examples" / "configs" / "mixtral-8x7b.json")
NAMES = ("llama-3.1-8b", "olmoe-1b-7b", "llama-4-scout")


def known(name: str) -> KnownModel:
    return stated_model(name, "MODEL..")


@cache
def compared(*names: str, life: float | None = 1e12) -> dict[str, ComparedModel]:
    rows = compare_models(
        [known(name) for name in names], LAW, SERVED, Roofline(GPU), training=PRICE, lifetime_tokens=life
    )
    return {row.name: row for row in rows}


@cache
def plan(*against: str) -> Plan:
    question = Question(budget=Budget(1e23), against=tuple(known(name) for name in against), training=PRICE)
    return make_plan(LAW, question, SERVED, Roofline(GPU))


def test_training_is_six_flops_for_each_active_parameter_and_token() -> None:
    row = compared(*NAMES)["llama-3.1-8b"]
    assert row.n_params_active == row.n_params_total
    assert row.n_params_active == pytest.approx(6.98e9, rel=0.01)  # 8.03B less two tables of 128256 x 4096
    assert row.expansion == 1.0
    assert row.training_flops == pytest.approx(6.0 * row.n_params_active * 15e12)
    hours = row.training_flops / (989e12 * 0.4) / 3600.0
    assert row.gpu_days == pytest.approx(hours / 24.0)
    assert row.training_usd == pytest.approx(3.9 * hours)


def test_losses_are_the_laws_and_their_intervals_its_draws() -> None:
    rows = compared(*NAMES)
    drawn: dict[str, np.ndarray] = {}
    for name, row in rows.items():
        n, e = in_family(LAW.family, row.n_params_active, row.expansion)
        assert row.loss == pytest.approx(float(loss(LAW, n, row.tokens, e)), rel=1e-3)  # active counts norms
        drawn[name] = loss(LAW, n, row.tokens, e, theta=LAW.draws)
        assert row.loss_interval == pytest.approx(tuple(np.percentile(drawn[name], [5, 95])), rel=1e-3)
    first = drawn[NAMES[0]]
    for name in NAMES[1:]:
        row = rows[name]
        assert row.loss_change == pytest.approx(math.log(row.loss / rows[NAMES[0]].loss))
        assert row.probability_better == pytest.approx(float(np.mean(drawn[name] < first)), abs=0.02)
    assert (rows[NAMES[0]].loss_change, rows[NAMES[0]].probability_better) == (None, None)


def test_after_the_break_even_tokens_both_have_cost_the_same() -> None:
    names = ("llama-3.1-8b", "llama-3.1-8b:20T", "olmoe-1b-7b", "qwen3-30b-a3b", "mistral-7b:40T", "qwen3-0.6b")
    rows = compared(*names, life=None)
    found = [(row.name, other, t) for row in rows.values() for other, t in (row.break_even_tokens or {}).items()]
    assert found
    for name, other, tokens in found:
        lives = compared(*names, life=tokens)
        assert lives[name].total_usd == pytest.approx(lives[other].total_usd)
        assert (rows[name].training_usd or 0.0) > (rows[other].training_usd or 0.0)


def test_after_the_repaid_tokens_a_trained_model_has_cost_what_serving_a_released_one_has() -> None:
    names = ("llama-3.1-8b:1T", "llama-3.1-8b", "qwen3-30b-a3b", "olmoe-1b-7b")
    rows = compared(*names)
    own, *others = (rows[name] for name in names)
    assert [row.released for row in rows.values()] == [False, True, True, True]
    assert own.total_usd_as_released is None
    for other in others:
        assert other.repaid_tokens_as_released is None
        assert other.total_usd_as_released == pytest.approx((other.usd_per_mtok or 0.0) * 1e6)
    repaid = own.repaid_tokens_as_released or {}
    assert set(repaid) == {row.name for row in others if (row.usd_per_mtok or 0.0) > (own.usd_per_mtok or 0.0)} != set()
    for name, tokens in repaid.items():
        lives = compared(*names, life=tokens)
        assert lives[own.name].total_usd == pytest.approx(lives[name].total_usd_as_released)
    assert "qwen3-30b-a3b" not in (own.break_even_tokens or {})  # dearer to train and to serve, if it had to be trained


def test_a_plans_model_repays_its_training_against_models_that_are_trained_already(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan().to_dict()), encoding="utf-8")
    asked = ("--gpu", "h100-sxm", "--latency", "roofline", "--lifetime-tokens", "1T")
    shown = command_line.run("compare-models", f"{path}:recommendation", "qwen3-32b", "qwen3-0.6b", *asked).out
    said = " ".join(shown.split())
    told = r"recommendation repays all of its training against a released model: qwen3-32b after \S+ output tokens;"
    assert re.search(told + r" qwen3-0\.6b never \(no dearer to serve\)\.", said)
    assert re.search(r"^total \$ +\$\S+ +\$\S+ +\$\S+\n  as released +- +\$\S+ +\$\S+$", shown, re.M)


def test_a_loss_beyond_what_the_law_was_fitted_on_is_marked() -> None:
    rows = compared("llama-3.1-8b", "deepseek-v3")
    assert rows["llama-3.1-8b"].beyond_law is None
    assert "X = 11" in (rows["deepseek-v3"].beyond_law or "")
    assert rows["deepseek-v3"].infeasible  # in bf16 on 8 H100
    assert rows["deepseek-v3"].usd_per_mtok is None
    dense = compare_models(
        [known("llama-3.1-8b"), known("olmoe-1b-7b")], find_law("hoffmann2022"), SERVED, Roofline(GPU)
    )
    assert dense[0].beyond_law is None
    assert dense[1].beyond_law == "hoffmann2022 knows dense models only"
    assert dense[0].training_usd is None


def test_a_row_of_a_plan_is_the_model_that_the_plan_means_or_is_refused(tmp_path: Path) -> None:
    answer, path = plan(), tmp_path / "plan.json"
    path.write_text(json.dumps(answer.to_dict()), encoding="utf-8")
    model = answer.recommendation.model
    others = {"quality": answer.choices.quality, "lower-loss": answer.choices.quality, "knee": answer.choices.balanced}
    others |= {"cheapest": answer.choices.cheapest, "least-spend": answer.least_training[0]}
    rows = compared(*(f"{path}:{name}" for name in ("recommendation", *others)), "llama-3.1-8b")
    row = rows["plan.json:recommendation"]
    assert row.usd_per_mtok == pytest.approx(model.usd_per_mtok, rel=0.02)  # at the cheapest batch
    for name in ("n_params_active", "n_params_total", "training_flops", "tokens"):  # without norms and routers
        assert getattr(row, name) == pytest.approx(getattr(model, name), rel=1e-9)
    assert row.loss == pytest.approx(model.loss, rel=0.003)  # norms and routers counted
    for name, other in others.items():  # the shape that the plan built, and not another one of its size
        assert rows[f"plan.json:{name}"].usd_per_mtok == pytest.approx(other.usd_per_mtok, rel=0.02)
        assert rows[f"plan.json:{name}"].training_usd == pytest.approx(other.training_usd, rel=1e-9)
    record = answer.to_dict()
    del record["choices"]["quality"]["architecture"]
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(InputError, match="how its quality row is built"):
        known(f"{path}:quality")
    path.write_text(json.dumps(record | {"choices": {}}), encoding="utf-8")
    with pytest.raises(InputError, match="no balanced row"):
        known(f"{path}:balanced")


def test_the_command_prints_a_column_a_model_or_json() -> None:
    asked = ("compare-models", "llama-3.1-8b", f"{CONFIG}:15T", "--gpu", "h100-sxm", "--lifetime-tokens", "1T")
    shown = command_line.run(*asked).out
    for words in ("mixtral-8x7b.json:15T", "training $", "precision", "P(loss <= the first)", "total $"):
        assert words in shown
    records = json.loads(command_line.run(*asked, "--json").out)
    assert [record["name"] for record in records] == ["llama-3.1-8b", "mixtral-8x7b.json:15T"]
    assert records[1]["n_params_total"] == pytest.approx(46.4e9, rel=0.01)
    assert records[1]["total_usd"] == pytest.approx(records[1]["training_usd"] + records[1]["usd_per_mtok"] * 1e6)
    assert "break_even_tokens" not in records[1]


def test_known_models_lie_beside_a_plan_and_change_nothing_of_it() -> None:
    answer = plan("llama-3.1-8b", "olmoe-1b-7b", "deepseek-v3")
    assert [row.name for row in answer.known] == ["llama-3.1-8b", "olmoe-1b-7b", "deepseek-v3"]
    assert "weights priced as released: deepseek-v3 in fp8; --weights sets one format for all models" in answer.warnings
    assert replace(answer, known=(), warnings=plan().warnings) == plan()
    rows = compared("llama-3.1-8b", "olmoe-1b-7b")
    for row in answer.known[:2]:
        alone = rows[row.name]
        assert row.loss == pytest.approx(alone.loss, rel=1e-12)
        assert row.usd_per_mtok == pytest.approx(alone.usd_per_mtok)
        assert row.training_flops == alone.training_flops
        assert row.n_params_active == alone.n_params_active
        cheap = [c.loss for c in answer.frontier if c.usd_per_mtok <= row.usd_per_mtok]
        assert row.loss_ratio_to_frontier == pytest.approx(row.loss / min(cheap))
        good = [c.usd_per_mtok for c in answer.frontier if c.loss <= row.loss]
        assert row.cost_ratio_to_frontier == (pytest.approx(row.usd_per_mtok / min(good)) if good else None)
    giant = answer.known[2]
    assert giant.infeasible
    assert giant.beyond_law
    assert giant.loss_ratio_to_frontier is None


def test_known_models_go_to_json_and_back_to_the_screen_and_the_figure() -> None:
    answer = plan("llama-3.1-8b", "olmoe-1b-7b", "deepseek-v3")
    record = json.loads(json.dumps(answer.to_dict(), allow_nan=False))
    assert [row["name"] for row in record["known"]] == ["llama-3.1-8b", "olmoe-1b-7b", "deepseek-v3"]
    assert parse_plan(record, where="plan").known == answer.known
    assert "known" not in plan().to_dict()
    out = io.StringIO()
    show_plan(Console(file=out, width=100), answer)
    assert "  llama-3.1-8b" in out.getvalue()
    assert "* deepseek-v3: public-2026 is trusted up to X = 11 and is not trusted at 27.2" in out.getvalue()
    (ax,) = plan_figure(answer).get_axes()
    words = [text.get_text() for text in ax.texts]
    assert "llama-3.1-8b 6.3x" in words  # its training FLOPs over the budget
    assert not any("deepseek-v3" in word for word in words)  # it cannot be served


def test_against_takes_a_list_with_tokens_and_tells_what_is_unknown() -> None:
    question = "plan --budget 1e22 --gpu h100-sxm --shape mixtral --latency roofline --bootstrap 0 --json --against"
    plain = question.split()
    record = json.loads(command_line.run(*plain, "llama-3.1-8b:2T,gpt-oss-20b:10T").out)
    assert [row["tokens"] for row in record["known"]] == [2e12, 1e13]
    assert [row["name"] for row in record["known"]] == ["llama-3.1-8b:2T", "gpt-oss-20b:10T"]
    refused = command_line.run(*plain, "gpt-oss-20b")
    assert (refused.code, "--against" in refused.err) == (2, True)
    assert find_shape("gpt-oss-20b").tokens is None


@pytest.mark.fuzz
def test_a_known_models_loss_is_that_of_its_own_experts_in_every_shape() -> None:
    asked = ("--gpu", "h100-sxm", "--latency", "roofline", "--json")
    names = ("olmoe-1b-7b", "qwen3-30b-a3b")
    alone = {row["name"]: row["loss"] for row in json.loads(command_line.run("compare-models", *names, *asked).out)}
    for shape in ("paper", "fine-grained"):
        told = command_line.run("plan", "--budget", "1e22", "--shape", shape, "--against", ",".join(names), *asked).out
        # beside the baseline
        found = {row["name"]: row["loss"] for row in json.loads(told)["known"] if row["name"] in names}
        assert found == pytest.approx(alone, rel=1e-9)


def test_compared_models_that_have_no_room_follow_in_a_second_table() -> None:
    names = ["llama-3.1-8b", "olmoe-1b-7b", "qwen3-30b-a3b", "olmo-2-7b", "deepseek-v3", "olmo-2-13b"]
    shown = command_line.run("compare-models", *names, "--gpu", "h100-sxm", "--latency", "roofline").out
    heads = re.findall(r"^( +\S.*)\n─", shown, re.M)
    assert [name for line in heads for name in line.split() if name in names] == names

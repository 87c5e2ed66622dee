"""The promises of docs/formats.md and docs/plan.md: the JSON keys that are fixed are in the answers, and defaults are as stated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from command_line import BUDGET, ROOT, RUNS, answer_of
from moescale.models.recipe import most_trained_tokens
from moescale.planning.question import CONFIDENCE
from moescale.scaling_laws import find_law
from moescale.units import format_count

FORMATS = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
PLAN = " ".join((ROOT / "docs" / "plan.md").read_text(encoding="utf-8").split())
MIXTRAL = ("--config", ROOT / "examples" / "configs" / "mixtral-8x7b.json", "--gpu", "h100-sxm")
# Keys that only some answers have: of a closed loop, of measured kinds of server, of the choice among forms.
SOMETIMES = {"closed_loop", "accuracy", "chosen"}
BOUNDED = {"size_ratio", "size_ratio_to_base", "active_ratio_to_base", "cost_ratio"}


def fixed_keys() -> dict[str, set[str]]:
    """By the first cell of each row of the table of JSON keys: the names of the second."""
    table = FORMATS.partition("## JSON of each command")[2].partition("\n\n`bounded_loss`")[0]
    rows = [
        line.strip("|").split("|") for line in table.splitlines() if line.startswith("| `") or line.startswith("| ")
    ]
    cells = {row[0].strip().replace("`", ""): row[1] for row in rows[1:]}
    return {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in cells.items()}


FIXED = fixed_keys()


def missing(answer: Mapping[str, Any], row: str) -> set[str]:
    """Keys of a row that an answer lacks, and those of which it has null."""
    return FIXED[row] - SOMETIMES - {key for key, value in answer.items() if value is not None}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return answer_of(
        *BUDGET, "--match-experts", "4", "--shape", "mixtral", "--latency", "roofline", "--train-gpu", "h100-sxm"
    )


def test_the_table_of_keys_is_read() -> None:
    assert {"plan", "cost", "fit", "predict", "compare", "laws", "design", "reproduce"} <= FIXED.keys()
    assert {"budget_flops", "recommendation", "confidence"} <= FIXED["plan"]
    assert set().union(*FIXED.values()) >= SOMETIMES
    assert FIXED["a model of a plan"] >= BOUNDED


def test_a_plan_has_the_keys_that_are_fixed(plan: dict[str, Any]) -> None:
    assert missing(plan, "plan") == set()
    assert missing(plan["recommendation"], "recommendation") == set()
    assert missing(plan["training"], "training of a plan") == set()
    assert all(missing(law, "each of laws of a plan") == set() for law in plan["laws"])
    assert plan["decided_by"] == "recommendation"


def test_the_models_of_a_plan_have_the_keys_that_are_fixed(plan: dict[str, Any]) -> None:
    def models() -> Iterator[tuple[Mapping[str, Any], set[str]]]:
        yield plan["recommendation"], set()
        yield from ((row, BOUNDED) for row in plan["loss_optimal"] if "infeasible" not in row)
        for part in ("bounded_loss", "bounded_cost"):
            yield from ((row, set[str]()) for row in plan[part]["plans"] if "infeasible" not in row)

    assert all(missing(row, "a model of a plan") <= allowed for row, allowed in models())
    assert {"base_experts", "loss", "plans"} == plan["bounded_loss"].keys()
    assert {"base_experts", "usd_per_mtok", "plans"} == plan["bounded_cost"].keys()
    infeasible = [row for row in plan["bounded_loss"]["plans"] if "infeasible" in row]
    assert infeasible
    assert all(row.keys() == {"experts", "infeasible"} for row in infeasible)


def test_a_cost_has_the_keys_that_are_fixed() -> None:
    found = answer_of("cost", *MIXTRAL, "--latency", "roofline", "--concurrency", "16")
    assert missing(found, "cost") == set()
    assert {"output_tok_s", "ttft_s", "tpot_s", "e2e_s"} <= found["closed_loop"].keys()


def test_answers_about_laws_have_the_keys_that_are_fixed() -> None:
    fitted = answer_of("fit", RUNS, "--law", "chinchilla", "--where", "n_experts == 1")
    assert missing(fitted, "fit") == {"intervals"}
    assert fitted["intervals"] is None
    assert "chosen" in answer_of("fit", RUNS, "--where", "n_experts == 1")
    one = ("predict", "--law", "hoffmann2022", "--n-params", "7B", "--tokens", "2T")
    assert missing(answer_of(*one), "predict") == {"interval"}
    compared = answer_of("compare", RUNS, "--law", "yun2024", "--law", "chinchilla", "--holdout", "tokens >= 2e10")
    assert all(missing(record, "compare") == set() for record in compared)
    known = answer_of("laws")
    assert all(missing(law, "laws") <= {"parameters", "fit_range"} for law in known)
    assert all("parameters" in law or law["laws"] for law in known)


def test_a_design_has_the_keys_that_are_fixed() -> None:
    found = answer_of("design", "--budget", "1e18", "--latency", "roofline", "--law", "public-2026", "--max-runs", "4")
    assert (FIXED["design"] - found["runs"][0].keys() - found.keys()) == set()
    assert {"n_params", "tokens", "experts", "flops"} <= found["runs"][0].keys()


def test_the_defaults_of_plan_are_as_its_page_states_them() -> None:
    assert f"`--max-tokens D`; default {format_count(most_trained_tokens())}," in PLAN
    assert f"`--confidence` is {CONFIDENCE:g} by default" in PLAN
    assert f"`pooled2026` has {len(find_law('pooled2026').draws)} draws" in PLAN

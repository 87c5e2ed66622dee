"""Laws with further inputs: unique tokens, granularity, sparsity; from tables and options to fits, predictions and plans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import answer_of, run, split
from families import DENSE
from moescale.errors import InfeasibleError, InputError
from moescale.fitting.fit import fit
from moescale.fitting.workflow import fitted_law
from moescale.models.family import law_size, n_total
from moescale.planning.allocation import Budget, loss_optimal
from moescale.scaling_laws import FORMS, find_law, loss, predict
from moescale.scaling_laws.form import further_inputs
from moescale.scaling_laws.law import extrapolation
from moescale.typing import FloatArray

PUBLISHED = {
    "yun2024": "yun2024-recovered", "chinchilla": "hoffmann2022", "kaplan2020": "kaplan2020",
    "clark2022": "clark2022-s-base", "muennighoff2023": "muennighoff2023", "frantar2023": "frantar2023-t5",
    "krajewski2024": "krajewski2024", "ludziejewski2025": "ludziejewski2025", "abnar2025": "abnar2025",
    "zhao2025": "zhao2025",
}  # fmt: skip
# Forms of this project, which no publication has coefficients for.
OWN = {"yun2024-centred", "moescale2026", "moescale2026-late", "pooled2026"}


def study(name: str) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, dict[str, FloatArray]]:
    """120 runs without noise, widely spread, of a published law: N, D, E, loss and further inputs."""
    law, rng = find_law(PUBLISHED[name]), np.random.default_rng(3)
    n, d = 10 ** rng.uniform(7.5, 10.0, 120), 10 ** rng.uniform(9.0, 11.7, 120)
    e = rng.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0], 120)
    known = {
        "unique_tokens": d * rng.choice([np.inf, 0.3, 0.03], 120),
        "granularity": rng.choice([1.0, 2.0, 4.0, 8.0, 16.0], 120),
        "sparsity": rng.choice([0.0, 0.5, 0.75, 0.875], 120),
        "activated_experts": rng.choice([1.0, 4.0, 8.0, 16.0], 120),
        "shared_ratio": rng.choice([0.0, 0.25, 0.5, 0.75], 120),
    }
    extra = {variable: known[variable] for variable in law.form.extra_inputs}
    if law.form.implied_inputs:
        extra |= law.form.implied_inputs(e, law.family.top_k)
    return n, d, e, loss(law, n, d, e, extra=extra), extra


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_fit_to_runs_without_noise_predicts_and_plans_as_the_law(name: str) -> None:
    law = find_law(PUBLISHED[name])
    n, d, e, measured, extra = study(name)
    found = fit(law.form, n, d, e, measured, extra=extra, starts=32)
    assert found.rmsle < 1e-7
    ours = fitted_law(found, law.family, name="ours", source="a test", date="2026-01-01")
    np.testing.assert_allclose(loss(ours, n, d, e, extra=extra), measured, rtol=1e-6)
    experts = np.array([1.0, 8.0, 64.0]) if law.form.uses_experts or law.form.implied_inputs else np.array([64.0])
    stated = {"muennighoff2023": {"unique_tokens": 5e9}, "zhao2025": {"activated_experts": 7.0}}
    budget = Budget(1e21, extra=stated.get(name, {}))
    if law.form.no_allocation:
        with pytest.raises(InfeasibleError, match=r"ours gives no loss-optimal size .*plan with another law"):
            loss_optimal(ours, budget, experts)
        return
    truth, again = loss_optimal(law, budget, experts), loss_optimal(ours, budget, experts)
    np.testing.assert_allclose(again.n_params, truth.n_params, rtol=1e-3)
    np.testing.assert_allclose(again.loss, truth.loss, rtol=1e-6)


def test_every_published_form_is_covered() -> None:
    assert set(PUBLISHED) == set(FORMS) - OWN
    assert all(find_law(law).form.name == form for form, law in PUBLISHED.items())


def test_defaults_are_filled_in_and_mistakes_named() -> None:
    assert further_inputs(FORMS["muennighoff2023"], None) == {"unique_tokens": np.inf}
    assert further_inputs(FORMS["frantar2023"], {"sparsity": 0.5}) == {"sparsity": 0.5}
    assert further_inputs(FORMS["chinchilla"], {}) == {}
    for form, given, message in (
        ("abnar2025", {}, "abnar2025 needs sparsity.*give --sparsity, or a column 'sparsity'"),
        ("frantar2023", {"sparsty": 0.5}, "frantar2023 has no input 'sparsty'; nearest: sparsity"),
        ("chinchilla", {"sparsity": 0.5}, "chinchilla has no input 'sparsity'.*none"),
        ("frantar2023", {"sparsity": 1.0}, "sparsity is 1; give a number from 0 and below 1"),
        ("frantar2023", {"sparsity": np.array([0.1, -0.5])}, "sparsity is -0.5"),
        ("frantar2023", {"sparsity": np.nan}, "sparsity is nan"),
        ("krajewski2024", {"granularity": 0.0}, "granularity is 0; give a number above 0"),
        ("muennighoff2023", {"unique_tokens": -1.0}, "unique_tokens is -1"),
    ):
        with pytest.raises(InputError, match=message):
            further_inputs(FORMS[form], given)


def test_further_inputs_broadcast_in_a_prediction() -> None:
    law = find_law("krajewski2024")
    values = loss(law, np.array([1e9, 1e10])[:, None], 2e10, 64.0, extra={"granularity": np.array([1.0, 4.0, 16.0])})
    assert values.shape == (2, 3)
    assert np.all(np.diff(values, axis=0) < 0)
    assert np.all(np.diff(values, axis=1) < 0)
    outside = predict(law, 2e9, 2e10, 64.0, extra={"granularity": 32.0})
    assert outside.extrapolation == pytest.approx({"granularity": 2.0})
    assert extrapolation(find_law("muennighoff2023"), 1e9, 1e10, 1.0, {"unique_tokens": np.inf}) == {}


def test_fits_warn_about_inputs_that_do_not_vary() -> None:
    n, d, e, measured, extra = study("krajewski2024")
    rows = extra["granularity"] == 4.0
    one = fit(FORMS["krajewski2024"], n[rows], d[rows], e[rows], measured[rows], extra={"granularity": 4.0}, starts=8)
    assert any("all runs have the same granularity (4)" in note for note in one.warnings)
    assert one.fit_range["granularity"] == (4.0, 4.0)
    routed = fit(FORMS["clark2022"], n, d, e, measured, starts=8)
    assert any("clark2022 has no term in tokens, but the runs vary it" in note for note in routed.warnings)
    with pytest.raises(InputError, match="abnar2025 needs sparsity"):
        fit(FORMS["abnar2025"], n, d, e, measured)


def test_a_law_of_all_parameters_is_asked_for_them() -> None:
    family = replace(DENSE, n_counts="total")
    e = np.array([1.0, 8.0])
    np.testing.assert_allclose(law_size(family, 1e9, e), n_total(family, 1e9, e))
    np.testing.assert_allclose(law_size(DENSE, 1e9, e), 1e9)
    law = find_law("abnar2025")
    best = loss_optimal(law, Budget(1e21), e)
    total = n_total(law.family, best.n_params, e)
    sparsity = {"sparsity": 1.0 - 1.0 / e}
    np.testing.assert_allclose(best.loss, loss(law, total, best.tokens, e, extra=sparsity), rtol=1e-12)
    for share in (0.97, 1.03):
        n = best.n_params * share
        flops_per_token = 1e21 / best.tokens
        tokens = best.tokens * flops_per_token / (6.0 * n)
        assert np.all(loss(law, n_total(law.family, n, e), tokens, e, extra=sparsity) > best.loss)
    with pytest.raises(InputError, match="takes sparsity from the expert counts"):
        loss_optimal(law, Budget(1e21, extra={"sparsity": 0.5}), e)


def refused(words: str, *arguments: str, code: int = 2) -> None:
    found = run(*arguments)
    assert (found.code, words in found.err) == (code, True), found.err


def test_predict_takes_further_inputs() -> None:
    asked = ("predict", "--law", "muennighoff2023", "--n-params", "6.34B", "--tokens", "242B")
    assert answer_of(*asked, "--unique-tokens", "25B")["loss"] == pytest.approx(2.2256440889984477, rel=1e-12)
    assert answer_of(*asked)["loss"] < 2.2256
    refused("give --sparsity", "predict", "--law", "abnar2025", "--n-params", "1B", "--tokens", "20B")
    refused("no input 'granularity'", *asked, "--granularity", "2")
    shared = ("predict", "--law", "zhao2025", "--n-params", "9B", "--tokens", "100B", "--sparsity", "0.8")
    with_seven = answer_of(*shared, "--activated-experts", "7", "--shared-ratio", "0.3")["loss"]
    assert with_seven < answer_of(*shared, "--activated-experts", "7")["loss"]
    for command in (shared, ("plan", "--law", "zhao2025", "--budget", "1e21")):
        refused("zhao2025 needs activated_experts", *command)


def test_fit_and_compare_read_columns(tmp_path: Path) -> None:
    n, d, e, measured, extra = study("krajewski2024")
    header = "n_params_total,tokens,n_experts,loss,granularity,blank"
    rows = [",".join(map(repr, map(float, x))) + "," for x in zip(n, d, e, measured, extra["granularity"], strict=True)]
    table = tmp_path / "runs.csv"
    table.write_text("\n".join([header, *rows]) + "\n")
    law = tmp_path / "law.toml"
    asked = ("fit", str(table), "--law", "krajewski2024", "--size-column", "n_params_total", "--starts", "16")
    found = answer_of(*asked, "-o", str(law), "--bootstrap", "2", "--family", "krajewski2024")
    assert found["rmsle"] == pytest.approx(0.0, abs=1e-6)
    assert find_law(str(law)).fit_range["granularity"] == (1.0, 16.0)
    refused("the table has a column 'granularity'", *asked, "--granularity", "2")
    refused("chinchilla has no input 'sparsity'", *asked[:3], "chinchilla", *asked[4:], "--sparsity", "0.5")
    laws = ("--law", "krajewski2024", "--law", "chinchilla", "--holdout", "tokens > 3e11")
    fine, plain = answer_of("compare", str(table), "--size-column", "n_params_total", *laws)
    assert fine["rmsle_holdout"] < 1e-5 < plain["rmsle_holdout"]
    table.write_text("\n".join([header, *rows[:-1], rows[-1].replace(rows[-1].split(",")[4], "x")]) + "\n")
    refused("column 'granularity'", *asked)


@pytest.mark.fuzz
def test_plan_takes_further_inputs() -> None:
    asked = ("plan", "--budget", "9e21", "--law", "muennighoff2023", "--latency", "roofline")
    free, bound = answer_of(*asked), answer_of(*asked, "--unique-tokens", "25B")
    losses = [plan["loss_optimal"][0]["loss"] for plan in (free, bound)]
    assert losses[0] < losses[1]
    fine = answer_of(*asked[:2], "1e21", "--law", "krajewski2024", *asked[5:], *split("--granularity 16 --max-gpus 16"))
    assert [row["experts"] for row in fine["loss_optimal"]] == [64]
    refused("no term in the training tokens", "plan", "--budget", "1e21", "--law", "clark2022-hash", code=1)

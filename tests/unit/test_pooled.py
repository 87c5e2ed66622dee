"""The pooled law: a form whose coefficients differ between sources, its fit, and what a plan does with its draws."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import answer_of, run
from moescale.fitting.prior import Source, fit_source, posterior
from moescale.scaling_laws import find_law, make_inputs
from moescale.scaling_laws.form import Inputs
from moescale.scaling_laws.pooled2026 import COUNT, FORM, RUNS_X, ln_multiplier, log_loss
from script_modules import load_script

pooling = load_script("scripts/pooling.py")
flat_prior, pool = pooling.flat_prior, pooling.pool
SHAPE = {"granularity": 2.0, "shared_ffn": 0.1}
PLAN = ("plan", "--latency", "roofline", "--shape", "mixtral", "--budget")
DRAWS = flat_prior().draws(40, 0)


def models(seed: int, count: int = 30, unique: float = np.inf) -> Inputs:
    """Models of all sizes, tokens and expansions up to those of the runs."""
    rng = np.random.default_rng(seed)
    n, d = 10 ** rng.uniform(6.5, 12, count), 10 ** rng.uniform(8.5, 13.5, count)
    return make_inputs(n, d, rng.choice([1.0, 1.5, 8.0, RUNS_X], count), SHAPE | {"unique_tokens": unique})


@given(st.integers(0, 10_000), st.sampled_from([np.inf, 1e9, 1e11]))
def test_slopes_are_the_derivatives(seed: int, unique: float) -> None:
    x = models(seed, unique=unique)
    for own, name in zip(FORM.slopes(DRAWS, x), ("ln_n", "ln_d"), strict=True):
        above, below = (log_loss(DRAWS, replace(x, **{name: getattr(x, name) + h})) for h in (1e-6, -1e-6))
        np.testing.assert_allclose(own, (above - below) / 2e-6, rtol=1e-3, atol=1e-6)


@given(st.integers(0, 10_000))
def test_experts_are_worth_no_more_than_the_total_size_and_no_less_than_the_active(seed: int) -> None:
    x = models(seed)
    gain = ln_multiplier(DRAWS, x)
    assert (gain >= -1e-12).all()
    assert (gain <= np.log(x.experts) + 1e-12).all()


def test_repeated_data_are_worth_less_than_fresh_and_more_than_once() -> None:
    fresh, repeated, once = (
        make_inputs(1e9, tokens, 1.0, SHAPE | {"unique_tokens": unique})
        for tokens, unique in ((4e10, np.inf), (4e10, 1e10), (1e10, np.inf))
    )
    assert (log_loss(DRAWS, fresh) < log_loss(DRAWS, repeated)).all()
    assert (log_loss(DRAWS, repeated) < log_loss(DRAWS, once)).all()


def made(seed: int, lab: str, theta: np.ndarray, noise: float = 0.002, x: float = 8.0) -> Source:
    """A table that a lab of these coefficients would measure."""
    rng = np.random.default_rng(seed)
    n, d = 10 ** rng.uniform(7.5, 9.5, 60), 10 ** rng.uniform(9, 11.5, 60)
    inputs = make_inputs(n, d, np.where(rng.random(60) < 0.5, 1.0, x), SHAPE | {"unique_tokens": np.inf})
    values = log_loss(theta, inputs) + 0.7 + noise * rng.standard_normal(60)
    return Source(name=lab, lab=lab, x=inputs, values=values, group=np.zeros(60, np.intp))


@pytest.mark.system
def test_a_table_recovers_its_source_and_its_noise() -> None:
    truth = DRAWS[3]
    own, found = fit_source(made(0, "a", truth), flat_prior())
    assert own.noise == pytest.approx(0.003, abs=1e-9)  # as little as is believed
    assert float(np.abs(own.errors(found.theta)).max()) < 0.01
    larger = make_inputs(3e10, 2e12, 8.0, SHAPE | {"unique_tokens": np.inf})
    drawn = log_loss(posterior(own, found, 200, 0), larger)[:, 0]
    assert abs(drawn[0] - (log_loss(truth, larger)[0] + 0.7)) < 3.0 * drawn.std()


@pytest.mark.system
def test_alike_labs_leave_less_doubt_than_unlike_ones() -> None:
    alike = pool([made(k, f"lab {k}", DRAWS[0]) for k in range(5)], iterations=6).prior
    unlike = pool([made(k, f"lab {k}", DRAWS[k]) for k in range(5)], iterations=6).prior
    assert np.trace(alike.covariance) < np.trace(unlike.covariance)


def test_the_shipped_law_agrees_with_its_unit_in_every_draw() -> None:
    law = find_law("pooled2026")
    (member,) = law.members
    reference = make_inputs(1e9, 2e10, 1.0, {"granularity": 1.0, "shared_ffn": 0.0, "unique_tokens": np.inf})
    assert len(law.draws) >= 400
    assert member.law.theta.size == COUNT == len(FORM.parameters)
    np.testing.assert_allclose(np.exp(log_loss(member.law.draws, reference)), 2.576947, rtol=1e-4)
    assert member.law.max_experts == 128.0


@pytest.mark.usefixtures("plans_made_once")
def test_a_plan_promises_by_the_draws_and_shows_named_laws_without_a_vote() -> None:
    found = answer_of(*PLAN, "5.15e21")
    assert found["law"] == "pooled2026"
    assert found["confidence"] == 0.8
    assert found["recommendation"]["probability_at_least_base"] >= 0.8 - 1e-9
    assert len(found["laws"]) >= 3
    assert {view["weight"] for view in found["laws"]} == {0.0}
    experts, x = found["recommendation"]["experts"], found["recommendation"]["expansion"]
    assert x == pytest.approx(experts / 2.0)  # top-2 in every layer
    assert experts < max(found["asked"]["experts"])  # an optimum inside what was asked about
    told = " ".join(run(*PLAN, "5.15e21", "--details").out.split())
    undecided = found["recommendation"]["undecided"]
    assert "(80% of draws)" in undecided
    low, high = (word for word in undecided.split() if word.isdigit())
    assert f"Open {low} or {high} experts" in told or f"Open {low} to {high} experts" in told


@pytest.mark.fuzz
def test_repeated_data_are_asked_of_the_default_law() -> None:
    few, many = (
        answer_of(*PLAN, "1e22", "--bootstrap", 0, "--unique-tokens", tokens)["recommendation"]
        for tokens in ("20B", "2T")
    )
    assert few["loss"] > many["loss"]
    assert few["tokens"] < many["tokens"]

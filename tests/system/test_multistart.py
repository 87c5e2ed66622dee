"""The search of the published grid: the factorised objective is the form's, and it finds the optimum of the default search."""

from __future__ import annotations

import numpy as np
import pytest

from moescale.fitting import multistart
from moescale.fitting.fit import SAME_OPTIMUM, fit
from moescale.fitting.search import HUBER_DELTA, Problem
from moescale.scaling_laws import LawForm, find_form, find_law, loss, make_inputs, yun2024
from moescale.scaling_laws.form import Observed
from moescale.typing import FloatArray

Runs = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def _runs(law: str = "yun2024-recovered", seed: int = 0) -> Runs:
    """60 synthetic runs with 0.3% noise."""
    axes = [1e8, 3e8, 1e9], [2e9, 5e9, 1e10, 2e10, 5e10], [1.0, 4.0, 8.0, 32.0]
    n, d, e = (v.ravel() for v in np.meshgrid(*axes, indexing="ij"))
    return n, d, e, loss(find_law(law), n, d, e) * np.exp(3e-3 * np.random.default_rng(seed).normal(size=n.size))


def _thin_axes(form: LawForm, observed: Observed) -> tuple[FloatArray, ...]:
    """Every other value of the published grid, or fewer: 864 starts."""
    exponents, amplitudes = (yun2024.ALPHA, yun2024.BETA, yun2024.GAMMA), (yun2024.A, yun2024.C, yun2024.F)
    return tuple(
        axis[1:3] if i in exponents else axis[:5:2] if i in amplitudes else axis[::3]
        for i, axis in enumerate(PUBLISHED(form, observed))
    )


PUBLISHED = multistart.published_axes


def _problem(form: LawForm, runs: Runs) -> Problem:
    return Problem.of(form, make_inputs(*runs[:3]), np.log(runs[3]))


def _silent(step: str, share: float) -> None:
    """Report to nobody."""


@pytest.mark.parametrize("form", [yun2024.FORM, yun2024.CENTRED], ids=lambda form: form.name)
def test_the_factorised_objective_is_the_objective(form: LawForm) -> None:
    problem = _problem(form, _runs())
    axes = _thin_axes(form, problem.observed)
    spots = multistart.starts_at(axes, np.arange(0, int(np.prod([axis.size for axis in axes])), 7))
    spots = problem.clipped(spots + 0.05 * np.random.default_rng(1).normal(size=spots.shape))
    value, gradient = multistart.factorised(problem)(np.ascontiguousarray(spots.T))
    np.testing.assert_allclose(value, problem.value(spots), rtol=1e-9)
    pull = np.clip(problem.residual(spots), -HUBER_DELTA, HUBER_DELTA)
    expected = (pull[:, None, :] @ form.jacobian(spots, problem.x))[:, 0, :].T
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)


def test_searches_descend_inside_the_box() -> None:
    problem = _problem(yun2024.FORM, _runs())
    axes = _thin_axes(yun2024.FORM, problem.observed)
    theta, value, sharing = multistart.search_grid(problem, axes, progress=_silent)
    starts = problem.clipped(multistart.starts_at(axes, np.arange(value.size)))
    np.testing.assert_array_equal(theta, problem.clipped(theta))
    assert (value < problem.value(starts)).all()
    assert sharing.sum() == 864
    np.testing.assert_allclose(problem.value(theta), value, rtol=1e-9)


@pytest.mark.fuzz  # ten seconds
def test_the_default_search_finds_the_optimum_of_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multistart, "published_axes", _thin_axes)
    runs, said = _runs("yun2024-joint", 1), list[str]()
    by_grid = fit(yun2024.FORM, *runs, starts="paper", progress=lambda step, share: said.append(step))
    assert by_grid.objective == pytest.approx(fit(yun2024.FORM, *runs).objective, rel=SAME_OPTIMUM)
    assert by_grid.starts_at_optimum > 1
    assert by_grid.starts == 864
    assert said[0] == "published grid"


def test_the_published_grid_has_810000_starts() -> None:
    axes = multistart.published_axes(yun2024.FORM, Observed(32.0, 2.0))
    assert np.prod([axis.size for axis in axes]) == 810_000
    first, last = yun2024.FORM.decode(multistart.starts_at(axes, np.array([0, 809_999])))
    np.testing.assert_allclose(first, [1, 0, 1, 0, 1, 0, np.exp(-1), 0, 2, 64], rtol=1e-12)
    np.testing.assert_allclose(last, [*[np.exp(25), 2] * 3, np.e, 25, 2, 64], rtol=1e-12)
    centred = multistart.published_axes(yun2024.CENTRED, Observed(32.0, 2.0, 3e8))
    np.testing.assert_allclose(centred[-1], np.log([3e8]))


def test_starts_that_the_box_makes_equal_are_searched_once_and_counted_all() -> None:
    problem = _problem(yun2024.FORM, _runs())
    published = enumerate(multistart.published_axes(yun2024.FORM, problem.observed))
    axes = [axis[:2] if i == yun2024.ALPHA else axis[-3:] if i == yun2024.D else axis[:1] for i, axis in published]
    _, value, sharing = multistart.search_grid(problem, axes, progress=_silent)
    assert (value.size, sharing.tolist()) == (2, [3, 3])


@pytest.mark.fuzz
def test_only_the_centred_law_fits_alike_in_every_unit_of_size() -> None:
    n, *others = (v[::2] for v in _runs("yun2024-joint", 2))

    def objective(law: str, unit: float) -> float:
        return fit(find_form(law), n / unit, *others).objective

    published, published_in_millions = (objective("yun2024", unit) for unit in (1.0, 1e6))
    centred, centred_in_millions = (objective("yun2024-centred", unit) for unit in (1.0, 1e6))
    assert abs(published_in_millions / published - 1.0) > 1e-2
    assert centred_in_millions == pytest.approx(centred, rel=SAME_OPTIMUM)
    assert centred <= min(published, published_in_millions) * (1.0 + SAME_OPTIMUM)

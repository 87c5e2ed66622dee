"""The search of a published grid: same arithmetic factorised and not, same optimum as the default search, honest when cut short."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from moescale.errors import InputError
from moescale.fitting import multistart
from moescale.fitting.fit import SAME_OPTIMUM, Fit, fit
from moescale.fitting.objective import Problem
from moescale.scaling_laws import LawForm, Observed, find_form, find_law, loss, make_inputs, yun2024
from moescale.typing import FloatArray

MIDDLE = "n_params_active >= 1e8 and n_params_active <= 7.3e8 and tokens >= 2.4e9 and tokens <= 2.1e10"
Runs = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def _runs(law: str = "yun2024-recovered", seed: int = 0) -> Runs:
    """60 synthetic runs with 0.3% noise."""
    axes = [1e8, 3e8, 1e9], [2e9, 5e9, 1e10, 2e10, 5e10], [1.0, 4.0, 8.0, 32.0]
    n, d, e = (v.ravel() for v in np.meshgrid(*axes, indexing="ij"))
    return n, d, e, loss(find_law(law), n, d, e) * np.exp(3e-3 * np.random.default_rng(seed).normal(size=n.size))


def _thin_axes(observed: Observed, form: LawForm = yun2024.FORM) -> tuple[FloatArray, ...]:
    """Every other value of the published grid, or fewer: 864 starts."""
    axes = multistart.published_axes(form, observed)
    exponents = (yun2024.ALPHA, yun2024.BETA, yun2024.GAMMA)
    return tuple(
        axis[1:3] if i in exponents else axis[:5:2] if i in (yun2024.A, yun2024.C, yun2024.F) else axis[::3]
        for i, axis in enumerate(axes)
    )


def _thin(form: LawForm = yun2024.FORM) -> LawForm:
    return replace(form, published_grid=lambda observed: _thin_axes(observed, form))


def _problem(form: LawForm, runs: Runs) -> Problem:
    observed = Observed(float(runs[2].max()), float(runs[3].min()))
    return Problem(form, make_inputs(*runs[:3]), np.log(runs[3]), observed, form.bounds(observed))


def _silent(step: str, share: float) -> None:
    """Report to nobody."""


FORMS = (yun2024.FORM, yun2024.CENTRED)


@pytest.mark.system
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_the_factorised_objective_is_the_objective(form: LawForm) -> None:
    problem = _problem(form, _runs())
    axes = _thin_axes(problem.observed, form)
    spots = multistart.starts_at(axes, np.arange(0, multistart.grid_size(axes), 7))
    spots = problem.clipped(spots + 0.05 * np.random.default_rng(1).normal(size=spots.shape))
    factorised, plain = multistart.factorised(problem)(spots.T), multistart.evaluate(problem, spots.T)
    for found, expected in zip(factorised, plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(factorised[0], problem.value(spots), rtol=1e-12)


@pytest.mark.system
def test_searches_descend_inside_the_box() -> None:
    problem = _problem(yun2024.FORM, _runs())
    axes = _thin_axes(problem.observed)
    found = multistart.search_grid(problem, axes, progress=_silent)
    starts = problem.clipped(multistart.starts_at(axes, np.arange(found.total)))
    np.testing.assert_array_equal(found.theta, problem.clipped(found.theta))
    assert (found.value < problem.value(starts)).all()
    np.testing.assert_allclose(problem.value(found.theta), found.value, rtol=1e-9)


@pytest.mark.system
@pytest.mark.parametrize(("law", "seed"), [("yun2024-recovered", 0), ("yun2024-joint", 1)])
def test_the_default_search_finds_the_optimum_of_the_grid(law: str, seed: int) -> None:
    runs = _runs(law, seed)
    by_grid, auto = fit(_thin(), *runs, starts="paper"), fit(yun2024.FORM, *runs)
    assert auto.objective <= by_grid.objective * (1.0 + SAME_OPTIMUM)
    assert by_grid.objective <= auto.objective * (1.0 + SAME_OPTIMUM)
    assert by_grid.starts_at_optimum > 1
    assert by_grid.starts == 864


def test_the_published_grid_has_810000_starts() -> None:
    axes = multistart.published_axes(yun2024.FORM, Observed(32.0, 2.0))
    assert multistart.grid_size(axes) == 810_000
    first, last = yun2024.FORM.decode(multistart.starts_at(axes, np.array([0, 809_999])))
    np.testing.assert_allclose(first, [1, 0, 1, 0, 1, 0, np.exp(-1), 0, 2, 64], rtol=1e-12)
    np.testing.assert_allclose(last, [*[np.exp(25), 2] * 3, np.e, 25, 2, 64], rtol=1e-12)


def test_starts_that_the_box_makes_equal_are_searched_once_and_counted_all() -> None:
    problem = _problem(yun2024.FORM, _runs())
    axes = tuple(axis[:2] if i == yun2024.ALPHA else axis[-3:] if i == yun2024.D else axis[:1] for i, axis in enumerate(
        multistart.published_axes(yun2024.FORM, problem.observed)))  # fmt: skip
    found = multistart.search_grid(problem, axes, progress=_silent)
    assert (found.total, found.done, found.value.size) == (6, 6, 2)
    assert (
        multistart.grid_size(
            multistart.distinct_axes(multistart.published_axes(yun2024.FORM, problem.observed), problem.box)[0]
        )
        == 270_000
    )


@pytest.mark.system
def test_interruption_keeps_the_best_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multistart, "NUMBERS", 20 * 100)
    seen: list[float] = []

    def impatient(step: str, share: float) -> None:
        seen.append(share)
        if step == "published grid" and share > 0.1:
            raise KeyboardInterrupt

    runs = tuple(v[::3] for v in _runs())
    found = fit(_thin(), *runs, starts="paper", progress=impatient)
    assert found.starts == 100
    assert "interrupted: 100 of 864 starts searched; the best so far is reported" in found.warnings
    assert found.objective < 1e-3
    assert 0.1 < seen[1] < 0.2  # one report a slab

    def at_once(step: str, share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # nothing to keep yet
        fit(_thin(), *runs, starts="paper", progress=at_once)


@pytest.mark.system
def test_a_second_interruption_aborts() -> None:
    def insistent(step: str, share: float) -> None:
        if share > 0.1 or step == "polish":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(_thin(), *_runs(), starts="paper", progress=insistent)


def test_a_long_search_tells_beforehand_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multistart.os, "cpu_count", lambda: 2)
    assert multistart.slow_notice(yun2024.FORM, 270, 270_000) is None
    notice = multistart.slow_notice(yun2024.FORM, 2000, 270_000)
    assert notice is not None
    assert "about 3 minutes on 2 cores" in notice
    monkeypatch.setattr(multistart, "SLOW_S", 0.0)
    said: list[str] = []
    found = fit(_thin(), *_runs(), starts="paper", progress=lambda step, _: said.append(step))
    assert said[0] in found.warnings  # before the search
    assert said[0].startswith("the search of the published grid takes ")


def test_a_law_without_a_grid_is_refused() -> None:
    form = replace(find_form("chinchilla"), published_grid=None)
    with pytest.raises(InputError, match="chinchilla has no published grid"):
        fit(form, *_runs(), starts="paper")


def test_any_law_with_a_grid_can_be_searched() -> None:
    amplitude, exponent = np.arange(0.0, 25.1, 12.5), np.arange(0.5, 1.1, 0.5)
    axes = (np.array([0.0, 0.5]), amplitude, amplitude, exponent, exponent)
    form = replace(find_form("chinchilla"), published_grid=lambda _: axes)
    n, d, e, lo = (v[:60:4] for v in _runs())  # E = 1 only
    by_grid, auto = fit(form, n, d, e, lo, starts="paper"), fit(form, n, d, e, lo)
    assert by_grid.objective == pytest.approx(auto.objective, rel=SAME_OPTIMUM)


@pytest.mark.system
def test_the_default_fit_loads_no_compiler() -> None:
    code = (
        "import sys, numpy as np; from moescale.fitting.fit import fit; from moescale.scaling_laws import find_form;"
        "n, d = (v.ravel() for v in np.meshgrid([1e8, 3e8, 1e9], [1e9, 1e10, 1e11]));"
        "fit(find_form('chinchilla'), n, d, np.ones(9), 1.7 + 400 / n**0.34 + 400 / d**0.28);"
        "print('numba' in sys.modules, 'scipy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def _fit_in_units(law: str, runs: Runs, unit: float) -> Fit:
    return fit(find_form(law), runs[0] / unit, *runs[1:])


@pytest.mark.system
def test_only_the_centred_law_fits_alike_in_every_unit_of_size() -> None:
    n, d, e, lo = (v[::2] for v in _runs("yun2024-joint", 2))
    runs = n, d, e, lo
    published, published_in_millions = (_fit_in_units("yun2024", runs, unit).objective for unit in (1.0, 1e6))
    centred, centred_in_millions = (_fit_in_units("yun2024-centred", runs, unit) for unit in (1.0, 1e6))
    assert abs(published_in_millions / published - 1.0) > 1e-2
    assert centred_in_millions.objective == pytest.approx(centred.objective, rel=SAME_OPTIMUM)
    assert centred.objective <= min(published, published_in_millions) * (1.0 + SAME_OPTIMUM)

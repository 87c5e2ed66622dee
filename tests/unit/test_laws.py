"""Laws: derivatives against differences, batches against single calls, and files that survive or refuse."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from families import DENSE, JOINT, PAPER, YUN, law_of
from moescale.errors import InputError
from moescale.models.family import ModelFamily
from moescale.scaling_laws import (
    FORMS,
    Law,
    LawForm,
    catalogue_names,
    find_form,
    find_law,
    law_text,
    loss,
    make_inputs,
    predict,
    save_law,
    yun2024,
)
from moescale.scaling_laws.clark2022 import effective_experts
from moescale.scaling_laws.form import Inputs, Observed, Parameter, complex_jacobian
from moescale.scaling_laws.law import extrapolation, interval
from moescale.scaling_laws.power_laws import power_law
from moescale.scaling_laws.store import parse_law
from moescale.typing import FloatArray

OBSERVED = Observed(experts_max=32.0, loss_min=2.2)
SHIPPED = (
    "besiroglu2024", "hoffmann2022", "moescale2026-joint", "pooled2026", "public-2026", "yun2024-joint",
    "yun2024-recovered",
)  # fmt: skip
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


# Ranges of the further variables of forms that have any: what their own runs spanned.
EXTRA_RANGES: dict[str, tuple[float, float]] = {
    "unique_tokens": (5e8, 2e12), "granularity": (1.0, 32.0), "sparsity": (0.0, 0.95),
    "activated_experts": (1.0, 16.0), "shared_ratio": (0.0, 0.9), "shared_ffn": (0.0, 0.9),
}  # fmt: skip
# Parameters with which size or data may lose their worth at some expert count.
INTERACTIONS = {
    "yun2024": ["d"],
    "yun2024-centred": ["d"],
    "clark2022": ["c"],
    "ludziejewski2025": ["gamma", "zeta"],
    "moescale2026": ["g"],
    "pooled2026": ["a", "nu", "g", "s", "w_x", "w_n", "w_d", "ln_R"],
}


def some_inputs(form: LawForm, n: int = 12, seed: int = 0) -> Inputs:
    rng = np.random.default_rng(seed)
    n_params, tokens = 10 ** rng.uniform(7.5, 10.5, n), 10 ** rng.uniform(8.5, 12.5, n)
    extra = {name: rng.uniform(*EXTRA_RANGES[name], n) for name in form.extra_inputs}
    return make_inputs(n_params, tokens, rng.choice([1.0, 2.0, 4.0, 8.0, 16.0, 32.0], n), extra)


def some_theta(form: LawForm, count: int, seed: int = 1) -> FloatArray:
    """Points of the box: half anywhere, half where a search looks, amplitudes such that the terms are of one order."""
    rng = np.random.default_rng(seed)
    low, high = form.bounds(OBSERVED).T
    anywhere = low + (high - low) * rng.uniform(0.01, 0.99, (count, low.size))
    region = form.region(OBSERVED)
    looked_at = np.empty_like(anywhere)
    shape = region[:, 0] + (region[:, 1] - region[:, 0]) * rng.uniform(0.02, 0.98, (count, len(region)))
    looked_at[:, form.shape] = shape
    if form.parts:
        typical = form.basis(shape, some_inputs(form)).mean(axis=-2)
        looked_at[:, form.amplitudes] = np.log(rng.uniform(0.3, 2.0, typical.shape) / typical)
    return np.concatenate((anywhere[: count // 2], np.clip(looked_at, low, high)[count // 2 :]))


@every_form
def test_first_derivatives_are_those_of_a_complex_step(form: LawForm) -> None:
    x, theta = some_inputs(form), some_theta(form, 100)
    exact = complex_jacobian(form.log_loss, theta, x)
    np.testing.assert_allclose(form.jacobian(theta, x), exact, rtol=1e-9, atol=1e-12 * np.abs(exact).max())


@every_form
def test_a_batch_equals_one_at_a_time(form: LawForm) -> None:
    x = some_inputs(form)
    theta = some_theta(form, 6).reshape(2, 3, -1)

    def answers(at: FloatArray) -> tuple[FloatArray, ...]:
        roundabout = form.encode(form.decode(at))
        return form.log_loss(at, x), form.jacobian(at, x), *form.slopes(at, x), roundabout

    together = answers(theta)
    for index in np.ndindex(2, 3):
        alone = answers(theta[index])
        for batch, single in zip(together, alone, strict=True):
            np.testing.assert_allclose(batch[index], single, rtol=1e-12, atol=1e-12)


@every_form
def test_inputs_may_differ_between_coefficient_sets(form: LawForm) -> None:
    """What allocation asks: sizes and tokens of shape (k, n) for k coefficient sets, expert counts of shape (n,)."""
    x, theta = some_inputs(form), some_theta(form, 4)
    shift = np.linspace(-0.5, 0.5, 4)[:, None]
    wide = replace(x, ln_n=x.ln_n + shift, ln_d=x.ln_d - shift)
    answers, slopes = form.log_loss(theta, wide), form.slopes(theta, wide)
    assert answers.shape == slopes[0].shape == slopes[1].shape == (4, x.ln_n.size)
    for k in range(4):
        row = replace(x, ln_n=wide.ln_n[k], ln_d=wide.ln_d[k])
        np.testing.assert_allclose(answers[k], form.log_loss(theta[k], row), rtol=1e-13)
        for batch, single in zip(slopes, form.slopes(theta[k], row), strict=True):
            np.testing.assert_allclose(batch[k], single, rtol=1e-12, atol=1e-15)


@every_form
def test_search_coordinates_and_public_units_are_inverse(form: LawForm) -> None:
    theta = some_theta(form, 200)
    np.testing.assert_allclose(form.encode(form.decode(theta)), theta, rtol=1e-12, atol=1e-13)
    public = form.decode(theta)
    np.testing.assert_allclose(form.decode(form.encode(public)), public, rtol=1e-11)
    # A product of the parameter with others moves in its place, for a form that is linear in amplitudes.
    in_a_product = {"muennighoff2023": ["B"], "frantar2023": ["a_D"]}.get(form.name, ["B"] if form.of_models else [])
    for column, parameter in enumerate(form.parameters):
        if parameter.log and parameter.name not in in_a_product:
            np.testing.assert_allclose(theta[:, column], np.log(public[:, column]), rtol=1e-12, atol=1e-13)


@every_form
def test_the_linear_part_is_the_law(form: LawForm) -> None:
    x, theta = some_inputs(form), some_theta(form, 50)
    assert sorted((*form.amplitudes, *form.shape)) == list(range(len(form.parameters)))
    if form.parts:
        terms = form.basis(theta[:, form.shape], x) @ np.exp(theta[:, form.amplitudes])[..., None]
        np.testing.assert_allclose(np.log(terms[..., 0]), form.log_loss(theta, x), rtol=1e-12)
    region, box = form.region(OBSERVED), form.bounds(OBSERVED)[form.shape]
    assert np.all(region[:, 0] >= box[:, 0])
    assert np.all(region[:, 1] <= box[:, 1])


@every_form
def test_loss_falls_with_size_and_tokens_without_interaction(form: LawForm) -> None:
    theta = some_theta(form, 50)
    for name in INTERACTIONS.get(form.name, ()):
        theta[:, form.names.index(name)] = 0.0
    in_n, in_d = form.slopes(theta, some_inputs(form))
    assert np.all(in_n <= 0)
    assert np.all(in_d <= 0)


def ranged(form: str, values: dict[str, float], family: ModelFamily | None = None) -> Law:
    usual = PAPER if FORMS[form].uses_experts else DENSE
    ranges = {"n_params": (1e8, 7e8), "tokens": (2e9, 2e10), "experts": (1.0, 32.0)}
    return law_of(form, values, family or usual, fit_range=ranges)


def made_up(form: str, draws: int = 3) -> Law:
    """A law with every optional part filled in."""
    ours = {"yun2024": YUN, "yun2024-centred": YUN | {"N0": 3e8}}
    shipped = {law.form.name: law.parameters for law in map(find_law, catalogue_names())}
    ours["pooled2026"] = find_law("pooled2026").members[0].law.parameters
    ours["moescale2026-late"] = shipped["moescale2026"] | {"E_start": 1.5}
    law = ranged(form, (shipped | ours)[form])
    spread = 1.0 + 0.01 * np.random.default_rng(0).normal(size=(draws, law.theta.size))
    return replace(
        law,
        draws=law.theta * spread,
        notes=("one note", 'another "quoted" note\nof two lines, Δ'),
        max_experts=32.0,
        evidence={"starts": 24, "rmsle": 0.0043, "nested": {"table": [1, 2]}},
    )


def test_equation_4_as_it_is_written() -> None:
    """Without logarithms."""
    law, p = ranged("yun2024", YUN), YUN
    n, d, e = np.array([1e8, 1e9])[:, None, None], np.array([3e9, 1e12])[:, None], np.array([1.0, 4.0, 64.0])
    ours = loss(law, n, d, e)
    assert ours.shape == (2, 2, 3)
    reach = 1 / (e - 1 + 1 / (1 / p["E_start"] - 1 / p["E_max"])) + 1 / p["E_max"]
    terms = p["A"] / n ** p["alpha"] + p["B"] * reach ** p["beta"] + p["C"] / d ** p["gamma"] + p["F"]
    assert ours == pytest.approx(terms * np.exp(p["d"] * np.log(n) * np.log(1 / reach)), rel=1e-13)
    assert law.parameters == pytest.approx(YUN, rel=1e-13)


@given(st.floats(1.0, 50.0), st.floats(1.001, 1e3), st.lists(st.floats(1.0, 1e5), min_size=2, max_size=5))
def test_effective_experts_run_from_start_to_ceiling(start: float, factor: float, counts: list[float]) -> None:
    ceiling = start * factor
    ln_start, ln_max = np.array(np.log(start)), np.array(np.log(ceiling))
    reach = effective_experts(ln_start, ln_max, np.array([1.0, *sorted(counts), 1e30]))
    assert reach[0] == pytest.approx(start, rel=1e-12)
    assert reach[-1] == pytest.approx(ceiling, rel=1e-9)
    assert np.all(np.diff(reach) >= -1e-12 * ceiling)
    assert np.all(reach <= ceiling * (1 + 1e-12))


def test_effective_experts_at_the_limits() -> None:
    counts = np.array([1.0, 2.0, 8.0, 512.0])
    # No saturation and a dense model that counts as one: E itself.
    np.testing.assert_allclose(effective_experts(np.array(0.0), np.array(700.0), counts), counts, rtol=1e-12)
    # A dense model that is already at the ceiling: experts change nothing, and every derivative is finite.
    x = make_inputs(1e9, 1e10, counts)
    theta = FORMS["yun2024"].encode(np.array([*YUN.values()]))
    for ratio in (1 - 1e-6, 1 - 1e-12, 1.0):
        theta[yun2024.START] = ratio
        at_ceiling = effective_experts(theta[yun2024.START] * theta[yun2024.MAX], theta[yun2024.MAX], counts)
        np.testing.assert_allclose(at_ceiling, YUN["E_max"], rtol=6 * (1 - ratio) + 1e-12)
        losses = np.exp(FORMS["yun2024"].log_loss(theta, x))
        assert np.ptp(losses) <= 10 * (1 - ratio) + 1e-12
        assert np.isfinite(FORMS["yun2024"].jacobian(theta, x)).all()


def test_predictions_carry_intervals_distance_from_the_runs_and_the_experts_of_the_law() -> None:
    law = made_up("yun2024", draws=200)
    inside = predict(law, 3e8, 1e10, 8.0)
    assert inside.extrapolation == {}
    low, high = inside.interval
    draws = loss(law, 3e8, 1e10, 8.0, theta=law.draws)
    assert draws.shape == (200,)
    assert np.mean((draws >= low) & (draws <= high)) == pytest.approx(0.9, abs=0.01)
    assert inside.to_dict() == {"loss": inside.loss, "interval": [low, high], "extrapolation": {}}
    outside = extrapolation(law, 7e9, 1e9, 64.0)
    assert outside == pytest.approx({"n_params": 10.0, "tokens": 0.5, "experts": 2.0})
    assert extrapolation(law, 1e8, 2e10, 32.0) == {}
    assert extrapolation(replace(law, fit_range={}), 1e20, 1.0, 1e6) == {}
    bare = predict(replace(law, draws=law.draws[:0]), 3e8, 1e10)
    assert bare.interval is None
    assert bare.to_dict()["interval"] is None
    values = np.append(np.arange(101.0), np.nan)
    low, high = interval(values[:, None], 0.9)
    assert (float(low[0]), float(high[0])) == pytest.approx((5.0, 95.0))
    low, high = interval(values[:, None], 0.5)
    assert (float(low[0]), float(high[0])) == pytest.approx((25.0, 75.0))
    assert law.allows(np.array([1.0, 32.0, 33.0])).tolist() == [True, True, False]
    assert replace(law, max_experts=None).allows(1e6)


def same_law(one: Law, other: Law) -> None:
    for f in fields(Law):
        if f.name in ("theta", "draws"):
            np.testing.assert_allclose(getattr(one, f.name), getattr(other, f.name), rtol=1e-14, atol=1e-15)
        else:
            assert getattr(one, f.name) == getattr(other, f.name)


@pytest.mark.parametrize("form", FORMS)
def test_a_law_file_reads_back(form: str, tmp_path: Path) -> None:
    for law in (made_up(form), ranged(form, made_up(form).parameters, JOINT)):
        same_law(parse_law(law_text(law), where="here"), law)
        save_law(law, tmp_path / "law.toml")
        same_law(find_law(str(tmp_path / "law.toml")), law)


def test_every_law_of_the_catalogue_reads() -> None:
    assert set(SHIPPED) <= set(catalogue_names())
    for name in catalogue_names():
        law = find_law(name.upper())
        assert law.name == name
        assert law.source
        assert law.date
        needed = {"sparsity": 0.5, "activated_experts": 7.0}
        extra = {name: value for name, value in needed.items() if law.form.extra_inputs.get(name, 0.0) is None}
        dense, routed = loss(law, 1e9, 2e10, np.array([1.0, 8.0]), extra=extra)
        assert np.isfinite([dense, routed]).all()
        assert (dense != routed) == law.form.uses_experts, name
        assert set(law.fit_range) <= {"n_params", "tokens", "experts", "training_flops", *law.form.extra_inputs}
        assert any("ranscription" in note or "Coefficients as" in note for note in law.notes) or name in SHIPPED
        if law.form.uses_experts:
            assert law.max_experts <= law.fit_range["experts"][1]
        for alone in [member.law for member in law.members] or [law]:  # an ensemble's file: tests/unit/test_ensemble.py
            same_law(parse_law(law_text(alone), where=name), alone)


GOOD = law_text(made_up("yun2024"))
NUMBERS = "9" * 5000


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("format = 1", "format = 2", "law file of format 2, this program reads 1; update moescale"),
        ("format = 1", "", "damaged law file at format: Field required"),
        ("format = 1", 'format = "one"', "damaged law file at format"),
        ("format = 1", "format = 0", "format"),
        ("format = 1", f"format = {NUMBERS}", "law file"),
        ("format = 1", "format = = 1", "not a law file: Invalid value .*line 1"),
        ('law = "yun2024"', 'law = "yun2042"', "unknown law 'yun2042'.*nearest: yun2024"),
        ('law = "yun2024"', 'law = "chinchilla"', "parameters .*E_max.* are not those of chinchilla.*expected E, A, B"),
        ("alpha = ", "alpa = ", "not those of yun2024.*expected A, alpha"),
        ("alpha = ", "alpha = nan #", "parameters.alpha: Input should be a finite number"),
        ("gamma = ", "gamma = inf #", "parameters.gamma: Input should be a finite number"),
        ("gamma = ", f"gamma = {NUMBERS} #", "law file"),
        ("gamma = ", "gamma = 1e999 #", "parameters.gamma"),
        ("gamma = ", 'gamma = "steep" #', "parameters.gamma: Input should be a valid number"),
        ("\nA = ", "\nA = -1.0 #", "outside the domain"),
        ("\nA = ", "\nA = 0.0 #", "outside the domain"),
        ("E_start = ", "E_start = 1000.0 #", "outside the domain"),
        ("E_start = ", "E_start = 0.5 #", "outside the domain"),
        ("E_max = ", "E_max = 0.5 #", "outside the domain"),
        ("draws = [", "draws = [[1.0, 2.0],", "draws"),
        ("draws = [", 'draws = ["a",', "draws.0"),
        ("top_k = 2", "top_k = 0", "family.top_k: Input should be greater than or equal to 1"),
        ("top_k = 2", "topk = 2", "family.top"),
        ("head_dim = ", "head_dim = 1e-308 #", "family.head_dim: Input should be greater than or equal to 1"),
        ("d_model_per_layer = ", "d_model_per_layer = 1e-308 #", "family.d_model_per_layer: Input should be greater"),
        ("ffn_ratio = ", "ffn_ratio = 1e-308 #", "family.ffn_ratio: Input should be greater than or equal to 0.001"),
        ("moe_every = 2", "moe_every = 1.5", "family.moe_every"),
        ('convention = "paper"', 'convention = "papr"', "family.convention: .*'paper', 'exact' or 'dense'"),
        ("tokens = [", "tokens = [[1.0], ", "fit_range.tokens"),
        ("tokens = [", "tokens = [9e99, ", "fit_range.tokens"),
        ("max_experts = 32.0", "max_experts = 0", "max_experts"),
        ("[parameters]", "[parametres]", "damaged law file at parameters"),
        ("date = ", "date = 2026-01-01 #", "damaged law file at date: .*string"),
        ("date = ", "date = 2026-13-41 #", "not a law file"),
        ("name = ", "nom = ", "damaged law file at name"),
        ("notes = [", 'notes = "one"\nother = [', "damaged law file at"),
    ],
)
def test_damage_is_named_with_its_place(old: str, new: str, message: str, tmp_path: Path) -> None:
    assert old in GOOD
    path = tmp_path / "damaged.toml"
    path.write_text(GOOD.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(InputError, match=rf"(?s)damaged\.toml: .*{message}"):
        find_law(str(path))


@pytest.mark.system
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged law file at format"),
        (b"\x00\x01\xff\xfe", "UTF-8"),
        (b"\x00", "not a law file"),
        (b"a = " + b"[" * 100_000, "not a law file"),
        (GOOD.encode("utf-16"), "UTF-16"),
        (GOOD.encode()[: len(GOOD) // 2], "law file"),
        (b"# nothing\n" * 7_000_000, "larger than"),
    ],
    ids=["empty", "binary", "nul", "nested", "utf-16", "half", "huge"],
)
def test_files_that_are_no_law(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"other\.toml: .*{message}"):
        find_law(str(path))


def test_unknown_names_name_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown law 'chinchila'; nearest: chinchilla.*known: .*yun2024"):
        find_form("chinchila")
    with pytest.raises(InputError, match=r"unknown law 'yun2024-recoverd'; nearest: yun2024-recovered"):
        find_law("yun2024-recoverd")
    with pytest.raises(InputError, match=r"no such file"):
        find_law("absent/law.toml")
    for hostile in ("", "a\0b", "x" * 5000, ".", "a\0b.toml", "x" * 5000 + ".toml", "~"):
        with pytest.raises(InputError):
            find_law(hostile)
    with pytest.raises(InputError, match=r"unknown law 'yun2024-recovered'.*coefficient set.*plan and predict"):
        find_form("yun2024-recovered")
    assert find_form("YUN2024") is find_form("moe") is FORMS["yun2024"]


def test_a_law_that_could_not_be_written_again_is_refused() -> None:
    # Without an exponent of tokens their amplitude is not to be told from its encoded form.
    text = law_text(find_law("frantar2023-t5"))
    line = next(line for line in text.splitlines() if line.startswith("b_D = "))
    with pytest.raises(InputError, match="outside the domain"):
        parse_law(text.replace(line, "b_D = 0"), where="law.toml")


def test_a_sum_of_power_terms_may_be_one_of_experts() -> None:
    parameters = tuple(
        Parameter(name, name.isupper(), name, None if name.isupper() else (0.1, 1.0)) for name in ("A", "a", "C", "c")
    )
    about = {"name": "test", "title": "t", "equation": "e", "source": "s"}
    form = power_law(parameters=parameters, terms={"A": {"n": "a"}, "C": {"e": "c"}}, **about)
    assert form.uses_experts
    theta = form.encode(np.array([400.0, 0.3, 2.0, 0.5]))
    x = make_inputs(1e9, 1e10, np.array([1.0, 4.0]))
    np.testing.assert_allclose(np.exp(form.log_loss(theta, x)), 400 / 1e9**0.3 + 2 / np.sqrt([1.0, 4.0]), rtol=1e-12)


# Equation 4 in all its coordinates: nesting of the laws, units of N.

POINT = np.array([30.0, 0.2, 2.5, 0.4, 80.0, 0.24, 0.5, 0.006, 3.0, 200.0, 2e9])


def points() -> Inputs:
    n, d, e = np.meshgrid([1e8, 4e8, 2e9], [2e9, 2e10], [1.0, 4.0, 16.0, 64.0], indexing="ij")
    return make_inputs(n.ravel(), d.ravel(), e.ravel())


def theta_of(form: LawForm, public: np.ndarray = POINT) -> np.ndarray:
    return form.encode(public[: len(form.parameters)])


def test_centred_at_one_parameter_is_the_published_law() -> None:
    public = POINT.copy()
    public[yun2024.CENTRE] = 1.0
    x = points()
    centred = yun2024.CENTRED.log_loss(yun2024.CENTRED.encode(public), x)
    np.testing.assert_array_equal(centred, yun2024.FORM.log_loss(theta_of(yun2024.FORM), x))


@given(unit=st.floats(1e-9, 1e9))
def test_only_the_centred_interaction_is_free_of_the_unit_of_size(unit: float) -> None:
    """Counting N in other units changes A and N0 of the centred law; no A and d make up for it in the published one."""
    form, x = yun2024.CENTRED, points()
    other = Inputs(x.ln_n - np.log(unit), x.ln_d, x.experts)
    public = POINT.copy()
    public[yun2024.A] /= unit ** public[yun2024.ALPHA]
    public[yun2024.CENTRE] /= unit
    np.testing.assert_allclose(form.log_loss(form.encode(public), other), form.log_loss(theta_of(form), x), rtol=1e-11)
    published = yun2024.FORM.log_loss(yun2024.FORM.encode(public[:10]), other)
    change = published - yun2024.FORM.log_loss(theta_of(yun2024.FORM), x)
    ln_e = np.log(effective_experts(np.log(POINT[8]), np.log(POINT[9]), x.experts))
    np.testing.assert_allclose(change, -POINT[yun2024.D] * np.log(unit) * ln_e, atol=1e-9)

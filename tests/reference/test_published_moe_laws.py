"""The catalogue's laws beyond Chinchilla's give the numbers that their papers, or their authors' code, print."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar

from moescale.fitting.fit import fit
from moescale.models.family import n_active, n_total
from moescale.planning.allocation import Budget, loss_optimal
from moescale.runs.table import RunTable
from moescale.scaling_laws import Law, find_law, loss
from moescale.scaling_laws.clark2022 import effective_experts
from moescale.scaling_laws.ludziejewski2025 import SHIFT
from script_modules import load_script

efficiency_leverage = load_script("scripts/leverage.py").efficiency_leverage
TIGHT = {"xatol": 1e-9}  # of a search for an optimum, in its own unit


def same_loss(of: Callable[[float], float], target: float) -> float:
    """The size between 1e5 and 1e14 at which a falling loss takes a value."""
    return float(np.exp(brentq(lambda ln_n: of(float(np.exp(ln_n))) - target, np.log(1e5), np.log(1e14), xtol=1e-13)))


def test_exponentials_of_published_logarithms() -> None:
    for name, logs in {
        "hoffmann2022": {"E": 0.5267228, "A": 6.0073404, "B": 6.0179186},
        "besiroglu2024": {"E": 0.59711196, "A": 6.17795598, "B": 7.64273236},
        "muennighoff2023": {"E": 0.6254804, "A": 6.255414, "B": 7.3049974},
        "ludziejewski2025": {"E_start": 0.729077, "E_max": 5.671439},
    }.items():
        parameters = find_law(name).parameters
        for parameter, ln in logs.items():
            assert parameters[parameter] == pytest.approx(np.exp(ln), rel=2e-9, abs=5e-8), (name, parameter)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("hoffmann2022", {"E": "1.69", "A": "406.4", "B": "410.7", "alpha": "0.34", "beta": "0.28"}),
        ("besiroglu2024", {"A": "482.01", "B": "2085.43", "alpha": "0.3478", "beta": "0.3659"}),
        (
            "ludziejewski2025",
            {"a": "35.91", "alpha": "-0.1889", "delta": "-0.2285", "gamma": "0.0098", "b": "35.98", "beta": "-0.1775",
             "omega": "0.5529", "zeta": "-0.0259", "c": "1.3637", "E_start": "2.0732", "E_max": "290.4522"},
        ),
    ],
)  # fmt: skip
def test_full_precision_rounds_to_what_is_printed(name: str, printed: dict[str, str]) -> None:
    parameters = find_law(name).parameters
    for parameter, text in printed.items():
        unit = 10.0 ** -len(text.partition(".")[2])
        assert parameters[parameter] == pytest.approx(float(text), abs=0.5001 * unit), parameter


# Kaplan et al. 2020.


def test_kaplan_values() -> None:
    law = find_law("kaplan2020")
    assert float(loss(law, 1e9, 22e9, 1.0)) == pytest.approx(2.369316, abs=5e-7)
    assert float(loss(law, 1.5e9, 22e9, 1.0)) == pytest.approx(2.312548, abs=5e-7)
    # Equation 4.4: overfitting depends on N^0.74 / D.
    assert law.parameters["alpha_N"] / law.parameters["alpha_D"] == pytest.approx(0.74, abs=0.005)


# Clark et al. 2022.


def test_clark_equals_equation_1_as_it_is_written_and_the_effective_size() -> None:
    for name in ("clark2022-s-base", "clark2022-rl-r", "clark2022-hash"):
        p, law = find_law(name).parameters, find_law(name)
        for n, e in ((1.5e7, 1.0), (3.7e8, 64.0), (1.3e9, 512.0)):
            reach = 1 / (1 / (e - 1 + 1 / (1 / p["E_start"] - 1 / p["E_max"])) + 1 / p["E_max"])
            log_n, log_e = np.log10(n), np.log10(reach)
            log_loss = p["a"] * log_n + p["b"] * log_e + p["c"] * log_n * log_e + p["d"]
            assert float(loss(law, n, 1.3e11, e)) == pytest.approx(10**log_loss, rel=1e-12)
    # The paper says that 5M parameters with 128 experts are worth about 55M; its rounded coefficients give 51.83M.
    law = find_law("clark2022-s-base")
    dense = same_loss(lambda n: float(loss(law, n, 1.3e11, 1.0)), float(loss(law, 5e6, 1.3e11, 128.0)))
    assert dense / 1e6 == pytest.approx(51.83, abs=0.005)


# Muennighoff et al. 2023: the README of huggingface/datablations, and cell 8 of its notebook.


@pytest.mark.parametrize(
    ("n", "d", "printed"), [(6.34e9, 242e9, 2.2256440889984477), (8.67e9, 178e9, 2.2269634075087867)]
)
def test_muennighoff_losses(n: float, d: float, printed: float) -> None:
    ours = float(loss(find_law("muennighoff2023"), n, d, 1.0, extra={"unique_tokens": 25e9}))
    assert ours == pytest.approx(printed, rel=1e-12)


def test_muennighoff_repeats_and_saturates_and_the_optimum_of_endless_data() -> None:
    law = find_law("muennighoff2023")
    budget = 9.3e21  # that of the README's models, about: they have 25e9 distinct tokens
    free = loss_optimal(law, Budget(budget), 1.0)
    bound = loss_optimal(law, Budget(budget, extra={"unique_tokens": 25e9}), 1.0)
    # The paper's advice: with repeated data, more epochs and a smaller model than Chinchilla's; the loss is higher.
    assert bound.n_params[0] < free.n_params[0]
    assert bound.loss[0] > free.loss[0]
    epochs = np.array([1.0, 4.0, 40.0, 400.0])
    repeated = loss(law, 1e9, 25e9 * epochs, 1.0, extra={"unique_tokens": 25e9})
    fresh = loss(law, 1e9, 25e9 * epochs, 1.0)
    assert np.all(np.diff(repeated) <= 0)
    assert repeated[0] == fresh[0]
    gains = (repeated[0] - repeated[1:]) / (fresh[0] - fresh[1:])
    assert gains[0] > 0.9  # up to 4 epochs are almost as good as new data
    # Endless repetition is worth 1 + R_D times the distinct data, and no more.
    worth = float(loss(law, 1e9, 25e9 * (1.0 + law.parameters["R_D"]), 1.0))
    endless = float(loss(law, 1e9, 25e9 * 1e6, 1.0, extra={"unique_tokens": 25e9}))
    assert endless == pytest.approx(worth, rel=1e-12)
    found = loss_optimal(find_law("muennighoff2023"), Budget(5.76e23), 1.0)
    assert found.n_params[0] == pytest.approx(69962173313.52132, rel=1e-9)
    assert found.tokens[0] == pytest.approx(1372170066384.2363, rel=1e-9)


# Frantar et al. 2023.


@pytest.mark.parametrize(
    ("name", "multiples"),
    [("frantar2023-t5", {0.5: 1.587, 0.75: 2.16, 0.875: 2.635}), ("frantar2023-vit", {0.5: 1.596, 0.75: 2.172, 0.875: 2.633})],
)  # fmt: skip
def test_frantar_size_of_the_equal_dense_model(name: str, multiples: dict[float, float]) -> None:
    law = find_law(name)
    for sparsity, printed in multiples.items():
        target = float(loss(law, 2e7, 1e11, 1.0, extra={"sparsity": sparsity}))
        dense = same_loss(lambda n: float(loss(law, n, 1e11, 1.0)), target)
        assert dense / 2e7 == pytest.approx(printed, abs=0.005 if printed == 2.16 else 5e-4)


# Krajewski et al. 2024, table 2: N is 43 times the active size, 64 experts of which one is active.


@pytest.mark.parametrize(
    ("n_active", "tokens", "granularity", "printed", "ours"),
    [
        (1e8, 4.37e9, 8.0, 3.133, 3.1097), (1e9, 28.94e9, 16.0, 2.491, 2.4714), (3e9, 72.90e9, 16.0, 2.245, 2.2264),
        (7e9, 137.60e9, 32.0, 2.076, 2.0596), (70e9, 941.07e9, 32.0, 1.694, 1.6802),
    ],
)  # fmt: skip
def test_krajewski_table_2(n_active: float, tokens: float, granularity: float, printed: float, ours: float) -> None:
    law = find_law("krajewski2024")
    value = float(loss(law, 43.0 * n_active, tokens, 64.0, extra={"granularity": granularity}))
    assert value == pytest.approx(printed, rel=0.01)
    assert value == pytest.approx(ours, abs=5.5e-5)  # what the rounded coefficients give


def test_krajewski_optimum_counts_all_experts() -> None:
    law = find_law("krajewski2024")
    budget = Budget(1e21, extra={"granularity": 16.0})
    best = loss_optimal(law, budget, 64.0)
    n, d = float(best.n_params[0]), float(best.tokens[0])
    assert 6.0 * n * d == pytest.approx(1e21, rel=1e-9)  # one of 64 experts is active
    assert best.loss[0] == pytest.approx(float(loss(law, 43.0 * n, d, 64.0, extra=budget.extra)), rel=1e-12)
    near = [float(loss(law, 43.0 * n * s, d / s, 64.0, extra=budget.extra)) for s in (0.97, 1.03)]
    assert min(near) > best.loss[0]


# Ludziejewski et al. 2025.


@pytest.mark.parametrize(("split", "rmsle"), [("train", 6.0468e-3), ("test", 4.8482e-3)])
def test_ludziejewski_errors_on_its_own_runs(joint_runs: RunTable, split: str, rmsle: float) -> None:
    runs = joint_runs.select(joint_runs.columns["split"] == split)
    assert len(runs) == {"train": 260, "test": 10}[split]
    predicted = loss(find_law("ludziejewski2025"), runs.n_params, runs.tokens, runs.experts)
    error = np.log(predicted / runs.loss)
    assert np.sqrt(np.mean(error**2)) == pytest.approx(rmsle, abs=5e-8)


@pytest.mark.system
def test_ludziejewski_refit_beats_the_published_coefficients(joint_runs: RunTable) -> None:
    runs = joint_runs.where("tokens / n_params_active >= 2")
    law = find_law("ludziejewski2025")
    found = fit(law.form, runs.n_params, runs.tokens, runs.experts, runs.loss)
    published = np.log(loss(law, runs.n_params, runs.tokens, runs.experts) / runs.loss)
    assert found.n_runs == 234
    assert found.rmsle < 0.9 * np.sqrt(np.mean(published**2))
    assert found.rmsle <= 3.52e-3


def test_ludziejewski_table_4() -> None:
    law = find_law("ludziejewski2025")
    p, counts = law.parameters, np.array([1.0, 8.0, 32.0])
    e = np.log(effective_experts(np.log(p["E_start"]), np.log(p["E_max"]), counts, SHIFT))
    size, data = p["a"] * np.exp(p["delta"] * e), p["b"] * np.exp(p["omega"] * e)
    found = np.stack((size, p["alpha"] + p["gamma"] * e, data, p["beta"] + p["zeta"] * e), axis=-1)
    printed = [
        (30.3640, -0.1817, 53.9838, -0.1965),
        (21.8330, -0.1676, 119.9126, -0.2338),
        (16.5424, -0.1557, 234.6726, -0.2652),
    ]
    np.testing.assert_allclose(found, printed, atol=5.1e-5)
    for (m, mu, n, nu), e in zip(found, counts, strict=True):
        direct = m * 1e9**mu + n * 2e10**nu + law.parameters["c"]
        assert float(loss(law, 1e9, 2e10, e)) == pytest.approx(direct, rel=1e-13)


@pytest.mark.parametrize(
    ("flops", "experts", "printed", "ours"),
    [
        (1e20, 1.0, ("1.7e9", "9.7e9"), (1.720e9, 9.688e9)),
        (1e20, 8.0, ("9.9e8", "1.7e10"), (9.845e8, 1.693e10)),
        (1e21, 4.0, ("4.4e9", "3.8e10"), (4.370e9, 3.814e10)),
        (1e22, 32.0, ("1.22e10", "1.369e11"), (1.217e10, 1.369e11)),
    ],
)
def test_ludziejewski_table_1(
    flops: float, experts: float, printed: tuple[str, str], ours: tuple[float, float]
) -> None:
    law = find_law("ludziejewski2025")
    best = loss_optimal(law, Budget(flops), experts)
    for value, text, digits in zip((best.n_params[0], best.tokens[0]), printed, ours, strict=True):
        assert value == pytest.approx(digits, rel=6e-4)
        mantissa = text.partition("e")[0]
        assert value == pytest.approx(float(text), rel=1.01 * 10.0 ** -len(mantissa.partition(".")[2]) / 2)


# Abnar et al. 2025: no worked number is published; these are the formula by hand.


@pytest.mark.parametrize(
    ("n", "sparsity", "value"), [(1e9, 0.0, 2.565681), (1e9, 0.9, 2.701872), (1e10, 0.98, 2.479958)]
)
def test_abnar_values(n: float, sparsity: float, value: float) -> None:
    assert float(loss(find_law("abnar2025"), n, 2e10, 1.0, extra={"sparsity": sparsity})) == pytest.approx(
        value, abs=5e-7
    )


def test_abnar_sparser_models_win_at_equal_flops() -> None:
    law: Law = find_law("abnar2025")
    best = loss_optimal(law, Budget(1e21), np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert np.all(np.diff(best.loss) < 0)  # the paper's finding within its range of sparsity


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("krajewski2024", {"a": 18.1, "alpha": 0.115, "b": 30.8, "beta": 0.147, "g": 2.1, "gamma": 0.58, "c": 0.47}),
        ("krajewski2024-dense", {"A": 16.3, "alpha": 0.126, "B": 26.7, "beta": 0.127, "E": 0.47}),
        (
            "abnar2025",
            {"a": 16612.50, "alpha": 0.5962, "b": 5455.67, "beta": 0.3954, "c": 0.4598, "lam": -0.1666, "d": 17.26,
             "delta": 0.1603, "gamma": 0.1595, "e": 0.94},
        ),
    ],
)  # fmt: skip
def test_coefficients_are_those_that_are_printed(name: str, printed: dict[str, float]) -> None:
    assert find_law(name).parameters == pytest.approx(printed, rel=1e-12)


def test_ranges_are_those_that_are_printed() -> None:
    fine, sparse = find_law("krajewski2024"), find_law("abnar2025")
    assert fine.fit_range == {
        "n_params": (129e6, 3.7e9), "tokens": (16e9, 130e9), "experts": (64.0, 64.0), "granularity": (1.0, 16.0)
    }  # fmt: skip
    assert sparse.fit_range == {"sparsity": (0.0, 0.95), "training_flops": (3e19, 1e21)}  # 0.98 was held out
    experts = np.array([1.0, 20.0])
    assert sparse.form.implied_inputs is not None
    np.testing.assert_allclose(sparse.form.implied_inputs(experts, 1)["sparsity"], [0.0, 0.95], rtol=1e-12)
    assert sparse.max_experts == 20.0


# Zhao et al. 2025: the optima that the paper states, with the digits that its coefficients give.

BEST_MIX = {"activated_experts": 6.778, "shared_ratio": 0.3148}


def test_zhao_best_experts() -> None:
    law = find_law("zhao2025")

    def at(**mix: float) -> float:
        return float(loss(law, 3e10, 1e11, 1.0, extra={"sparsity": 0.8, **BEST_MIX, **mix}))

    best_g = minimize_scalar(lambda g: at(activated_experts=g), bounds=(1.0, 100.0), method="bounded", options=TIGHT).x
    best_s = minimize_scalar(lambda s: at(shared_ratio=s), bounds=(0.0, 0.99), method="bounded", options=TIGHT).x
    assert best_g == pytest.approx(6.778, abs=5e-4)
    assert round(best_g) == 7  # as printed
    assert best_s == pytest.approx(0.3148, abs=5e-5)
    assert round(best_s, 2) == 0.31


@pytest.mark.parametrize(("n", "ours", "printed"), [(30e9, 0.4007, 0.40), (671e9, 0.2204, 0.22)])
def test_zhao_best_active_share(n: float, ours: float, printed: float) -> None:
    law = find_law("zhao2025")

    def at(share: float) -> float:
        return float(loss(law, n, 1e12, 1.0, extra={"sparsity": 1.0 - share, **BEST_MIX}))

    best = minimize_scalar(at, bounds=(0.01, 0.999), method="bounded", options=TIGHT).x
    assert best == pytest.approx(ours, abs=5e-5)
    assert round(best, 2) == printed


def test_zhao_as_it_is_written_and_with_the_share_of_its_family() -> None:
    law, p = find_law("zhao2025"), find_law("zhao2025").parameters
    n, d, share, g, s = 5e9, 6e10, 0.17, 9.0, 1 / 9
    mix = p["e"] * g + p["f"] / g + p["m"] * s**2 + p["n"] * s
    size = n ** -p["alpha"] + p["k"] * (share * n) ** -p["alpha"] + p["h"] * share
    plain = p["a"] * n ** -p["alpha"] + p["b"] * d ** -p["beta"] + p["c"] * (share * n) ** -p["alpha"] + p["eps"]
    extra = {"sparsity": 1.0 - share, "activated_experts": g, "shared_ratio": s}
    assert float(loss(law, n, d, 1.0, extra=extra)) == pytest.approx(mix * size + plain, rel=1e-13)
    experts = np.array([1.0, 4.0, 29.0])
    assert law.form.implied_inputs is not None
    for k in (1, 2):
        family = replace(law.family, top_k=k)
        share = n_active(family, 1e9, experts) / n_total(family, 1e9, experts)
        np.testing.assert_allclose(law.form.implied_inputs(experts, k)["sparsity"], 1.0 - share, rtol=0, atol=1e-14)
    assert law.max_experts == 29.0
    assert 1.0 - law.form.implied_inputs(np.array([29.0]), 1)["sparsity"][0] > 0.05  # the paper: 5 to 9%


# Tian et al. 2025.


def test_tian_leverage() -> None:
    value = float(efficiency_leverage(0.031, 12.0, 1e22))
    assert value > 7  # as printed
    assert value == pytest.approx(7.245, abs=5e-4)
    best = minimize_scalar(lambda g: -float(efficiency_leverage(0.031, g, 1e22)), bounds=(1.0, 100.0), method="bounded",
                           options=TIGHT).x  # fmt: skip
    assert best == pytest.approx(11.3, abs=0.05)
    assert 8 < best < 12.5  # the paper: about 12, 8 to 12 in its summary

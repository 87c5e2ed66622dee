"""The catalogue's laws beyond Chinchilla's give the numbers that their papers, or their authors' code, print."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq

from moescale.fitting.fit import fit
from moescale.planning.allocation import Budget, loss_optimal
from moescale.runs.table import RunTable
from moescale.scaling_laws import Law, find_law, loss
from moescale.scaling_laws.effective_experts import effective_experts
from moescale.scaling_laws.ludziejewski2025 import SHIFT


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


def test_clark_equals_equation_1_as_it_is_written() -> None:
    for name in ("clark2022-s-base", "clark2022-rl-r", "clark2022-hash"):
        p, law = find_law(name).parameters, find_law(name)
        for n, e in ((1.5e7, 1.0), (3.7e8, 64.0), (1.3e9, 512.0)):
            reach = 1 / (1 / (e - 1 + 1 / (1 / p["E_start"] - 1 / p["E_max"])) + 1 / p["E_max"])
            log_n, log_e = np.log10(n), np.log10(reach)
            log_loss = p["a"] * log_n + p["b"] * log_e + p["c"] * log_n * log_e + p["d"]
            assert float(loss(law, n, 1.3e11, e)) == pytest.approx(10**log_loss, rel=1e-12)


def test_clark_effective_size() -> None:
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


def test_muennighoff_optimum_of_endless_data() -> None:
    found = loss_optimal(find_law("muennighoff2023"), Budget(5.76e23), 1.0)
    assert found.n_params[0] == pytest.approx(69962173313.52132, rel=1e-9)
    assert found.tokens[0] == pytest.approx(1372170066384.2363, rel=1e-9)


def test_muennighoff_repeats_and_saturates() -> None:
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
        (1e8, 4.37e9, 8.0, 3.133, 3.1097),
        (1e9, 28.94e9, 16.0, 2.491, 2.4714),
        (3e9, 72.90e9, 16.0, 2.245, 2.2264),
        (7e9, 137.60e9, 32.0, 2.076, 2.0596),
        (70e9, 941.07e9, 32.0, 1.694, 1.6802),
    ],
)
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

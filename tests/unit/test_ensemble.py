import io
import itertools
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from moescale.errors import InputError, MoescaleError
from moescale.fitting.prior import prior_of
from moescale.models.coordinates import model_of
from moescale.models.family import families, find_family
from moescale.scaling_laws import Law, find_law, law_text, loss, make_inputs, predict
from moescale.scaling_laws.ensemble import EnsembleForm, combine, restate
from moescale.scaling_laws.law import Member
from moescale.scaling_laws.store import parse_law
from moescale.views.terminal.fits import show_laws
from script_modules import load_script

PAPER, TOP_1 = find_family("yun2024"), find_family("ludziejewski2025")
EXPERTS = np.array([1.0, 4.0, 8.0, 32.0])


def ensemble(*weights: float) -> Law:
    names = ("yun2024-recovered", "ludziejewski2025", "yun2024-joint")
    members = [Member(find_law(name), weight) for name, weight in zip(names, weights, strict=False)]
    return combine(members, name="test", family=PAPER, source="a test", date="2026-11-22")


def test_the_loss_is_the_weighted_geometric_mean() -> None:
    both, parts = ensemble(1.0, 3.0), [restate(find_law(n), PAPER) for n in ("yun2024-recovered", "ludziejewski2025")]
    each = [np.log(loss(law, 1e9, 2e10, EXPERTS)) for law in parts]
    np.testing.assert_allclose(np.log(loss(both, 1e9, 2e10, EXPERTS)), 0.25 * each[0] + 0.75 * each[1], rtol=1e-12)


def test_draws_are_of_one_law_each_as_weighted_and_may_have_models_of_their_own() -> None:
    law = ensemble(1.0, 3.0)
    shares = law.draws[:, :2]
    assert np.all(np.sort(shares, axis=1) == [0.0, 1.0])
    assert shares.mean(axis=0) == pytest.approx([0.25, 0.75])
    ours = loss(law, 1e9, 2e10, 8, theta=law.draws)
    member = restate(find_law("yun2024-recovered"), PAPER)
    assert np.isin(
        np.round(ours[shares[:, 0] == 1.0], 9), np.round(loss(member, 1e9, 2e10, 8, theta=member.draws), 9)
    ).all()
    law = ensemble(1.0, 1.0, 1.0)
    sizes = np.geomspace(1e8, 1e10, len(law.draws))[:, None] * np.ones(3)
    x = replace(make_inputs(np.ones(3), 2e10, np.array([1.0, 4.0, 16.0])), ln_n=np.log(sizes))
    together = law.form.log_loss(law.draws, x)
    for k in (0, 150, 399):
        alone = law.form.log_loss(law.draws[k], replace(x, ln_n=np.log(sizes[k])))
        np.testing.assert_allclose(together[k], alone, rtol=1e-12)


def test_derivatives_are_those_of_finite_differences() -> None:
    law = ensemble(1.0, 2.0, 3.0)
    x = make_inputs(np.array([3e8, 2e9]), np.array([2e10, 1e11]), np.array([4.0, 16.0]))
    h = 1e-5
    in_n, in_d = law.form.slopes(law.theta, x)
    for name, slope in (("ln_n", in_n), ("ln_d", in_d)):
        up, down = (law.form.log_loss(law.theta, replace(x, **{name: getattr(x, name) + s})) for s in (h, -h))
        np.testing.assert_allclose(slope, (up - down) / (2 * h), rtol=1e-6)
    jacobian = law.form.jacobian(law.theta, x)
    for j in range(law.theta.size):
        step = h * np.eye(law.theta.size)[j]
        change = law.form.log_loss(law.theta + step, x) - law.form.log_loss(law.theta - step, x)
        np.testing.assert_allclose(jacobian[:, j], change / (2 * h), rtol=1e-5, atol=1e-8)


def test_a_size_grows_with_that_of_another_family_as_finite_differences_say() -> None:
    law, h = find_law("ludziejewski2025"), 1e-4
    x = make_inputs(np.tile(np.geomspace(1e6, 1e13, 12), 4), 2e10, np.repeat([1.0, 2.0, 8.0, 256.0], 12))
    asked = [family for family in families().values() if family.n_counts == "dense"]
    for family, own in itertools.product(asked, families().values()):
        form = combine([Member(replace(law, family=own), 1.0)], name="one", family=family, source="", date="").form
        assert isinstance(form, EnsembleForm)
        up, down = (form.members[0].ln_size(replace(x, ln_n=x.ln_n + step)) for step in (h, -h))
        np.testing.assert_allclose(form.members[0].elasticity(x) * np.ones(48), (up - down) / (2.0 * h), rtol=1e-6)


def test_a_file_reads_back_and_more_draws_than_a_plan_can_hold_are_refused() -> None:
    law = ensemble(1.0, 3.0)
    again = parse_law(law_text(law), where="law.toml")
    ours, theirs = (predict(one, 1e9, 2e10, 8) for one in (law, again))
    assert theirs.loss == pytest.approx(ours.loss, rel=1e-12)
    assert theirs.interval == pytest.approx(ours.interval, rel=1e-12)
    assert (again.max_experts, again.fit_range) == (law.max_experts, law.fit_range)
    np.testing.assert_allclose(again.draws, law.draws, rtol=1e-12)
    with pytest.raises(InputError, match=r"n_draws: Input should be less than or equal to 10000"):
        parse_law(law_text(law).replace("n_draws = ", "n_draws = 100000 #", 1), where="law.toml")


def test_experts_that_every_law_speaks_of() -> None:
    assert ensemble(1.0, 3.0).max_experts == pytest.approx(32.0)
    top_1 = restate(find_law("ludziejewski2025"), PAPER)
    assert top_1.max_experts == pytest.approx(95.0)  # 32 of top-1 in every layer


def test_tables_count_where_a_law_counts_them() -> None:
    body = float(model_of(TOP_1, 78_726_144, 8)[0])  # the smallest model of the public runs: 512 wide, 8 blocks
    assert body == pytest.approx(27_262_976)


@pytest.mark.parametrize("weights", [(), (1.0, 0.0), (1.0, -1.0)])
def test_weights_that_are_none_are_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(MoescaleError, match="positive weights"):
        ensemble(*weights)


def test_the_public_ensemble_is_one_unit_and_equal_weights() -> None:
    law, script = find_law("public-2026"), load_script("scripts/make_public_ensemble.py")
    assert [member.law.name for member in law.members] == list(script.MEMBERS)
    assert [member.weight for member in law.members] == pytest.approx([0.25] * 4)
    each = [script.reference_loss(member.law) * np.exp(member.unit) for member in law.members]
    assert each == pytest.approx([script.reference_loss(find_law("ludziejewski2025"))] * 4, rel=1e-6)
    assert float(loss(law, 1e9, 2e10, 1)) == pytest.approx(each[0], rel=1e-6)  # the dense model's N is its body


def test_views_show_members_and_no_coefficients() -> None:
    law, console = find_law("public-2026"), Console(file=io.StringIO(), width=100)
    show_laws(console, [law])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "25% yun2024-recovered" in text
    assert "alpha" not in text
    assert all(member.law.name in text for member in law.members)


def test_an_ensemble_of_others_is_no_prior() -> None:
    with pytest.raises(MoescaleError, match="says nothing of how coefficients differ between labs; give pooled2026"):
        prior_of(find_law("public-2026"))

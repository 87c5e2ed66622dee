"""The paper's claims: every one is evaluated, inputs are never confirmed, the same question has the same answer."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moescale.cli import main
from moescale.errors import InputError
from moescale.hardware.gpus import find_gpu
from moescale.latency.roofline import Roofline
from moescale.models.family import architecture, find_family
from moescale.planning.allocation import Budget, loss_optimal
from moescale.planning.candidate import Costs
from moescale.reproduction import Outcome, claims, find_claim, host_times, publish, reproduce, series, summary
from moescale.reproduction import figures as draw
from moescale.reproduction.claims import settings as all_settings
from moescale.reproduction.claims import settings_of
from moescale.reproduction.evaluate import kernels_alone
from moescale.reproduction.page import FIGURES
from moescale.reproduction.quantities import NEEDS_COSTS, QUANTITIES
from moescale.reproduction.tables import (
    host_table,
    outcome_table,
    sensitivity_table,
    show_outcomes,
    under,
    verdict_table,
)
from moescale.reproduction.world import ExactPricing, HostBound
from moescale.scaling_laws import find_law, restate
from moescale.serving.deployment import Deployment
from moescale.views.figures import save_figure
from moescale.views.terminal import terminal

pytestmark = pytest.mark.system

# The ids of the list of the paper's quantities.
IDS = ["fit.rmsle", "fit.huber", "flops.16v4", "flops.few", "few.serve", "dense.opt", "e8.opt", "e8.over.dense", "e8.active.dense", "e8.active.e4", "cost.e8.dense", "cost.e8.e4", "cost.e16.e4", "size.bounded.dense", "size.bounded.e4", "size.comment", "cost.many", "saturate", "ratio.constant", "no.DE", "mfu", "flops.e4.match8", "budget.saved", "recommend", "deq.e8", "deq.e16", "lr"]  # fmt: skip
# What scripts/recover_yun2024.py uses, and quotients of it.
USED = {"dense.opt", "e8.opt", "e8.over.dense", "e8.active.dense", "e8.active.e4", "saturate", "deq.e8", "deq.e16"}

GPU = find_gpu("a100-sxm-40gb")
DEPLOYMENT = Deployment(gpu=GPU, usd_per_gpu_hour=1.45, prompt_tokens=230.0, output_tokens=203.0)
LAW = find_law("yun2024-recovered")


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, ...]:
    return reproduce(LAW, DEPLOYMENT, Roofline(GPU))


def _by_id(found: tuple[Outcome, ...]) -> dict[str, Outcome]:
    return {o.claim.id: o for o in found}


def test_every_claim_is_evaluated_once(outcomes: tuple[Outcome, ...]) -> None:
    assert sorted(o.claim.id for o in outcomes) == sorted(IDS)
    for o in outcomes:
        assert len(o.parts) == len(o.claim.parts)
        if o.claim.cannot is None:
            assert all(part.ours is not None for part in o.parts), o.claim.id
        assert o.reason


def test_every_claim_can_be_judged() -> None:
    for claim in claims():
        judged = [part for part in claim.parts if part.judged]
        assert judged
        assert claim.line > 0
        if claim.cannot is not None:
            continue
        ordered = claim.falling or claim.rising or claim.below is not None or claim.above is not None
        for part in judged:
            assert part.quantity in QUANTITIES, part.label
            assert part.paper is None or part.tolerance is not None, part.label
            assert part.paper is not None or ordered, part.label
            assert part.tolerance is None or part.tolerance.why


def test_inputs_are_never_confirmed(outcomes: tuple[Outcome, ...]) -> None:
    inputs = {o.claim.id for o in outcomes if o.role == "input"}
    assert inputs == USED | {"no.DE"}  # the form was chosen on the last
    assert all(o.holds is None for o in outcomes if o.role == "input")
    told = summary(outcomes)
    assert told["hold"] == sum(o.holds is True and o.role == "prediction" for o in outcomes)
    assert told["hold"] + told["fail"] + told["inputs"] + told["not computable"] == len(outcomes)


def test_another_law_has_no_inputs_but_its_form() -> None:
    law = find_law("yun2024-joint")
    found = _by_id(reproduce(replace(law, draws=law.draws[:2]), DEPLOYMENT, Roofline(GPU), sensitivity=False))
    assert [name for name, o in found.items() if o.role == "input"] == ["no.DE"]
    assert found["deq.e8"].holds is None  # another corpus
    assert found["saturate"].holds is not None


def test_the_recovered_law_keeps_its_stated_errors(outcomes: tuple[Outcome, ...]) -> None:
    found = _by_id(outcomes)
    both = [found[name].parts[0].ours or 1.0 for name in ("deq.e8", "deq.e16")]
    assert np.sqrt(np.mean(np.square(both))) <= 0.0025
    for name in ("dense.opt", "e8.opt", "e8.over.dense"):
        assert all(part.within for part in found[name].parts), name
        assert all(part.tolerance == 0.05 for part in found[name].parts)


def test_a_claim_holds_only_with_direction_and_size(outcomes: tuple[Outcome, ...]) -> None:
    for o in outcomes:
        if o.holds:
            assert o.direction_holds is not False
            assert all(part.within is not False for part in o.parts if part.judged)
        if o.holds is False:
            assert o.direction_holds is False or any(part.within is False for part in o.parts if part.judged)


def test_relations_between_claims(outcomes: tuple[Outcome, ...]) -> None:
    found = _by_id(outcomes)
    forwards, backwards = found["flops.16v4"].parts[0].ours, found["flops.few"].parts[0].ours
    assert forwards is not None
    assert backwards is not None
    assert forwards * backwards == pytest.approx(1.0, rel=1e-9)
    small, large, ratio = (found[n].parts[0].ours for n in ("e8.over.dense", "dense.opt", "e8.active.dense"))
    assert ratio == pytest.approx(5.0 / 3.0 * (small or 0.0) / (large or 1.0), rel=1e-9)


def test_intervals_hold_most_draws_around_the_best(outcomes: tuple[Outcome, ...]) -> None:
    for o in outcomes:
        for part in o.parts:
            if part.interval is not None:
                assert part.interval[0] <= part.interval[1]
    spread = _by_id(outcomes)["dense.opt"].parts[0]
    assert spread.interval is not None
    assert spread.interval[0] < (spread.ours or 0.0) < spread.interval[1]


def test_price_cancels_in_every_claim(outcomes: tuple[Outcome, ...]) -> None:
    bare = replace(LAW, draws=LAW.draws[:0])  # its intervals are not looked at
    dearer = reproduce(bare, replace(DEPLOYMENT, usd_per_gpu_hour=4.35), Roofline(GPU), sensitivity=False)
    for a, b in zip(outcomes, dearer, strict=True):
        for x, y in zip(a.parts, b.parts, strict=True):
            assert x.ours == y.ours or x.ours == pytest.approx(y.ours, rel=1e-9)


def test_only_claims_that_involve_cost_are_varied(outcomes: tuple[Outcome, ...]) -> None:
    for o in outcomes:
        involved = any(part.quantity in NEEDS_COSTS for part in o.claim.parts)
        assert bool(o.sensitivity) == involved
    cost = _by_id(outcomes)["cost.e8.e4"]
    assert len({w.ours for w in cost.sensitivity}) == len(cost.sensitivity)


def test_every_setting_has_a_row_and_a_verdict(outcomes: tuple[Outcome, ...]) -> None:
    varied = [o for o in outcomes if o.sensitivity]
    assert all([w.setting for w in o.sensitivity] == [s.name for s in all_settings()] for o in varied)
    assert {s.moe_execution for s in all_settings()} == {None, "all-experts", "all-experts-grouped"}
    told = verdict_table(outcomes, all_settings())
    assert told[-1].startswith("| claims that hold |")
    held = [int(cell) for cell in told[-1].strip("| ").split(" | ")[1:]]
    for count, setting in zip(held[1:], all_settings(), strict=True):
        assert count == sum(under(o, setting).holds is True for o in varied)
    for o in varied:
        for w in o.sensitivity:
            if w.holds is not None:
                assert w.holds == (w.direction_holds is not False and w.magnitude_holds is not False)


def test_every_expert_on_every_token_leaves_dense_models_and_the_law_as_they_are(
    outcomes: tuple[Outcome, ...],
) -> None:
    bare = replace(LAW, draws=LAW.draws[:0])
    looped = reproduce(bare, DEPLOYMENT, Roofline(GPU, moe_execution="all-experts"), sensitivity=False)
    (setting,) = (s for s in all_settings() if s.name == "all experts")
    for a, b in zip(outcomes, looped, strict=True):
        ours = [part.ours for part in b.parts]
        if not a.sensitivity:
            assert ours == [part.ours for part in a.parts]
        else:
            assert ours == pytest.approx(under(a, setting).ours)
            assert b.inputs["moe_execution"] == "all-experts"
            assert a.inputs["moe_execution"] == "fused"
    fused, every = _by_id(outcomes), _by_id(looped)
    assert fused["mfu"].parts[0].ours == every["mfu"].parts[0].ours  # of a dense model
    for name in ("cost.e8.dense", "cost.many"):  # more experts are computed
        for x, y in zip(fused[name].parts, every[name].parts, strict=True):
            assert (y.ours or 0.0) > (x.ours or np.inf)


def test_launches_of_a_loop_are_paid_for_each_whole_expert_of_a_gpu() -> None:
    roofline = Roofline(GPU, moe_execution="all-experts")
    eager = HostBound(roofline, 0.0, 0.0, 5e-5)
    model = architecture(LAW.family, 1e9, np.array([1.0, 4.0, 32.0]))
    added = eager.decode_s(model, 4, 64, 300) - roofline.decode_s(model, 4, 64, 300)
    layers = np.asarray(model.n_moe_layers)
    np.testing.assert_allclose(added, 5e-5 * layers * [0, 1, 8], rtol=1e-6, atol=1e-12)
    added = eager.prefill_s(model, 4, 2, 300) - roofline.prefill_s(model, 4, 2, 300)
    np.testing.assert_allclose(added, 5e-5 * layers * [0, 1, 8], rtol=1e-6, atol=1e-12)


def test_a_measured_table_is_asked_only_what_it_can_answer() -> None:
    class Measured(HostBound):
        """A source that knows nothing of how its experts ran."""

    names = {s.name for s in settings_of(Measured(Roofline(GPU), 0.0, 0.0))}
    assert names == {s.name for s in all_settings() if s.moe_execution is None}
    assert names < {s.name for s in settings_of(Roofline(GPU))}


def test_dense_laws_are_refused() -> None:
    with pytest.raises(InputError, match="dense models"):
        reproduce(find_law("hoffmann2022"), DEPLOYMENT, Roofline(GPU))


def test_unknown_claims_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"cost\.e8\.e4"):
        find_claim("cost.e8.e5")


def test_the_hosts_time_reproduces_the_ratio_that_it_was_found_for() -> None:
    found = host_times(LAW, DEPLOYMENT, Roofline(GPU))
    assert any(h.per_sequence_s for h in found)
    world = series.world_of(LAW, Costs(LAW.family, Roofline(GPU), DEPLOYMENT, None))
    for h in found:
        if h.max_num_seqs is not None or not h.per_sequence_s:
            continue
        claim = find_claim(h.claim)
        part = next(p for p in claim.parts if p.label == h.label)
        hosted = replace(world.costs, latency=HostBound(kernels_alone(Roofline(GPU)), 0.0, h.per_sequence_s))
        ours = QUANTITIES["cost_ratio_at_base_loss"](replace(world, pricing=ExactPricing(hosted), costs=hosted), part)
        assert ours[0] == pytest.approx(h.paper, rel=1e-6)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.01, 1.0), st.sampled_from([1.0, 4.0, 8.0, 32.0]))
def test_the_size_within_a_cost_costs_no_more_and_the_next_one_does(usd: float, experts: float) -> None:
    pricing = ExactPricing(Costs(LAW.family, Roofline(GPU), DEPLOYMENT, None))
    e = np.array([experts])
    size = pricing.size_within(np.array([usd]), e)
    assert np.isfinite(size).all()
    assert pricing.usd_per_mtok(size, e)[0, 0] <= usd
    assert not pricing.usd_per_mtok(size * 1.0001, e)[0, 0] <= usd


def test_bounded_models_meet_their_bound() -> None:
    world = series.world_of(LAW, Costs(LAW.family, Roofline(GPU), DEPLOYMENT, None))
    budgets = np.array([1e21, 5e21])
    at_loss = series.bounded(world, "loss", 4.0, budgets_flops=budgets)
    np.testing.assert_allclose(at_loss.loss, np.broadcast_to(at_loss.base_loss, at_loss.loss.shape), rtol=1e-9)
    at_cost = series.bounded(world, "cost", 4.0, budgets_flops=budgets)
    assert (at_cost.cost_ratio <= 1.0 + 1e-12).all()
    assert (at_cost.cost_ratio > 0.999).all()
    assert (at_cost.loss < at_cost.base_loss).all()


def test_figures_draw_any_law_and_gpu(tmp_path: Path) -> None:
    gpu, law = find_gpu("h100-sxm"), find_law("yun2024-joint")
    deployment = Deployment(gpu=gpu, usd_per_gpu_hour=3.9, prompt_tokens=512.0, output_tokens=128.0)
    world = series.world_of(law, Costs(law.family, Roofline(gpu), deployment, None))
    budgets = np.geomspace(1e21, 1e22, 4)
    at_loss = [series.bounded(world, "loss", base, budgets_flops=budgets) for base in (1.0, 4.0)]
    at_cost = [series.bounded(world, "cost", base, budgets_flops=budgets) for base in (1.0, 4.0)]
    curves = [series.budget_curves(world, 3e21)]
    trade = series.trade_off(world, budgets_flops=budgets)
    fitted, layers = series.fitted_losses(law, points=()), series.hidden_layers()
    drawn = {
        "loss": draw.bounded_loss_figure(at_loss),
        "cost": draw.bounded_cost_figure(at_cost),
        "curves": draw.curves_figure(curves),
        "trade": draw.trade_off_figure(trade),
        "fitted": draw.fitted_figure(fitted),
        "layers": draw.hidden_layers_figure(layers),
    }
    for name, figure in drawn.items():
        assert save_figure(figure, tmp_path / f"{name}.svg").stat().st_size > 5000
    for rows in (at_loss[0].rows(), curves[0].rows(), trade.rows(), fitted.rows(), layers.rows()):
        assert rows
        assert all(row.keys() == rows[0].keys() for row in rows)


def test_width_times_depth_follows_the_catalogues_constant() -> None:
    layers = series.hidden_layers()
    assert layers.mu == pytest.approx(0.03967, abs=5e-6)  # families.toml
    assert layers.names


def test_tables_have_a_row_for_each_number(outcomes: tuple[Outcome, ...]) -> None:
    numbers = sum(len(o.parts) for o in outcomes)
    assert len(outcome_table(outcomes, latency="roofline")) == numbers + 2
    varied = [p for o in outcomes for p in o.claim.parts if p.quantity in NEEDS_COSTS]
    assert len(sensitivity_table(outcomes, all_settings())) == len(varied) + 2
    assert len(host_table(host_times(LAW, DEPLOYMENT, Roofline(GPU)))) == 2 * 6 + 2


def test_json_is_the_contracts(
    outcomes: tuple[Outcome, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command computes is held by test_snapshot.py; here it is given what the library computed."""
    asked: list[object] = []

    def evaluate(*given: object) -> tuple[Outcome, ...]:
        asked.extend(given)
        return outcomes

    monkeypatch.setattr("moescale.reproduction.reproduce", evaluate)
    main(["reproduce", "--latency", "roofline", "--json"])
    records = json.loads(capsys.readouterr().out)
    law, deployment, source, others = asked
    assert (getattr(law, "name"), getattr(source, "name"), others) == (LAW.name, "roofline", [])  # noqa: B009
    assert getattr(deployment, "gpu") == GPU  # noqa: B009
    assert records == json.loads(json.dumps([o.to_dict() for o in outcomes]))
    assert [r["claim"] for r in records] == [c.id for c in claims()]
    for r in records:
        assert {"claim", "paper", "ours", "rel_error", "direction_holds", "holds", "role", "inputs", "note"} <= r.keys()
        assert r["holds"] in (True, False, None)
        assert r["role"] in ("input", "prediction")
        assert r["role"] == "prediction" or r["holds"] is None
        assert r["inputs"]["law"] == "yun2024-recovered"
        assert ("gpu" in r["inputs"]) == any(p.quantity in NEEDS_COSTS for p in find_claim(r["claim"]).parts)


@pytest.mark.usefixtures("one_setting")
def test_the_command_runs_experts_as_it_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    main(["reproduce", "--latency", "roofline", "--moe-execution", "all-experts", "--json"])
    for record in json.loads(capsys.readouterr().out):
        if "gpu" in record["inputs"]:
            assert record["inputs"]["moe_execution"] == "all-experts"
            assert {"setting", "direction_holds", "magnitude_holds", "holds"} <= record["sensitivity"][0].keys()


def test_the_table_fits_a_page(outcomes: tuple[Outcome, ...], capsys: pytest.CaptureFixture[str]) -> None:
    show_outcomes(terminal(), outcomes)
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 100
    for name in IDS:
        assert name in shown


def test_a_folder_holds_the_report_and_every_figure_with_its_data(
    outcomes: tuple[Outcome, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publish, "SUFFIXES", (".svg",))  # one kind is enough to see that each figure is there
    folder, few = tmp_path / "out", np.array([1e21, 3e21, 9e21])
    written = publish.publish(folder, LAW, DEPLOYMENT, Roofline(GPU), outcomes, budgets_flops=few, trained=few)
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in written}
    assert names == {f"{n}{s}" for n in FIGURES for s in (".svg", ".csv")} | {"claims.json", "report.md"}
    assert json.loads((folder / "claims.json").read_text())[0]["claim"] == "fit.rmsle"
    for name in FIGURES:
        rows = list(csv.reader(io.StringIO((folder / f"{name}.csv").read_text())))
        assert len(rows) > 5
        assert len({len(row) for row in rows}) == 1
    page = (folder / "report.md").read_text()
    assert all(f"`{name}`" in page for name in IDS)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--latency", "silicn"], "silicon"),
        (["--law", "hoffmann2022"], "dense models"),
        (["--gpu", "a100"], "a100"),
        (["--moe-execution", "all-expert"], "all-experts"),
    ],
)
def test_bad_input_has_one_message(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", *arguments])
    assert stop.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


def test_a_file_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "-o", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert (tmp_path / "out").read_text() == "mine"
    assert "not a folder" in capsys.readouterr().err


def test_another_law_is_asked_about_the_papers_models() -> None:
    law = find_law("ludziejewski2025")
    law = replace(law, draws=law.draws[:2])
    found = _by_id(reproduce(law, DEPLOYMENT, Roofline(GPU), sensitivity=False))
    size = found["dense.opt"].parts[0].ours or 0.0
    assert found["deq.e8"].reason == "losses on FineWeb-Edu are not those on SlimPajama"
    assert found["flops.16v4"].inputs == {"law": law.name, "convention": "exact"}
    of_dense = restate(law, replace(find_family("yun2024"), convention="exact"))
    assert size == pytest.approx(loss_optimal(of_dense, Budget(2.12e21), 1.0).n_params[0])

"""The paper's claims: every one is evaluated, inputs are never confirmed, the same question has the same answer."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import split
from examples import daily
from moescale.cli import main
from moescale.errors import InputError
from moescale.models.family import find_family
from moescale.options.reproduction import ReproductionOptions, servers
from moescale.planning.allocation import Budget, loss_optimal
from moescale.reproduction import figures
from moescale.reproduction.claims import claims, find_claim
from moescale.reproduction.evaluate import Outcome, reproduce, score
from moescale.reproduction.figures import FIGURES, VERDICT, drawn
from moescale.reproduction.quantities import OF_COSTS, QUANTITIES
from moescale.reproduction.tables import show_outcomes
from moescale.reproduction.world import World, of_the_papers_models, world_of
from moescale.scaling_laws import find_law
from moescale.scaling_laws.ensemble import restate
from moescale.views.figures import save_figure
from moescale.views.terminal.text import terminal
from reference_data import ROOT

# The ids of the list of the paper's quantities.
IDS = ["fit.rmsle", "fit.huber", "flops.16v4", "flops.few", "few.serve", "dense.opt", "e8.opt", "e8.over.dense", "e8.active.dense", "e8.active.e4", "cost.e8.dense", "cost.e8.e4", "cost.e16.e4", "size.bounded.dense", "size.bounded.e4", "size.comment", "cost.many", "saturate", "fig2.size", "fig3.loss", "fig3.cost", "fig4.e16", "fig5.cheapest", "fig6.loss", "ratio.constant", "no.DE", "mfu", "flops.e4.match8", "budget.saved", "recommend", "deq.e8", "deq.e16", "lr"]  # fmt: skip
# What scripts/recover_yun2024.py uses, and quotients of it.
USED = {"dense.opt", "e8.opt", "e8.over.dense", "e8.active.dense", "e8.active.e4", "saturate", "deq.e8", "deq.e16"}

LAW = find_law("yun2024-recovered")
BARE = replace(LAW, draws=LAW.draws[:0])
ROOFLINE = ReproductionOptions(latency="roofline")


@pytest.fixture(scope="module")
def outcomes() -> tuple[Outcome, ...]:
    return reproduce(LAW, ROOFLINE.costs())


@pytest.fixture(scope="module")
def world() -> World:
    return world_of(LAW, ROOFLINE.costs())


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
        for part in judged:
            assert part.quantity in QUANTITIES, part.label
            assert part.paper is None or part.tolerance is not None, part.label
            assert part.paper is not None or claim.ordered, part.label
            assert part.tolerance is None or part.tolerance.why


def test_inputs_are_never_confirmed(outcomes: tuple[Outcome, ...]) -> None:
    inputs = {o.claim.id for o in outcomes if o.role == "input"}
    assert inputs == USED | {"no.DE"}  # the form was chosen on the last
    assert all(o.holds is None for o in outcomes if o.role == "input")


def test_numbers_are_counted_by_the_written_rules(outcomes: tuple[Outcome, ...]) -> None:
    found, own = score(outcomes), _by_id(outcomes)
    errors = [
        abs((p.ours or np.inf) / p.paper - 1) for o in outcomes if o.counts for p in o.parts if p.judged and p.paper
    ]
    assert found.numbers.printed == len(errors) == 21
    assert found.numbers.within_15 == sum(e <= 0.15 for e in errors) >= 14
    assert found.numbers.within_25 == sum(e <= 0.25 for e in errors) >= 18
    assert found.numbers.median_error == pytest.approx(np.median(errors))
    assert found.first_count.printed == 26  # with the reciprocals and three ends that the paper does not print
    assert found.first_count.within_15 >= 16
    assert own["mfu"].parts[0].paper is None
    assert own["ratio.constant"].claim.below == 1.193


@pytest.mark.fuzz
def test_draws_are_judged_as_the_law_itself_is(outcomes: tuple[Outcome, ...]) -> None:
    alone = replace(LAW, draws=LAW.theta[None])
    drawn_alike = score(reproduce(alone, ROOFLINE.costs()))
    assert drawn_alike.drawn_held == (drawn_alike.held,)
    assert drawn_alike.drawn_within == (drawn_alike.numbers.within_15,)
    assert len(score(outcomes).drawn_held) == len(LAW.draws)


def test_what_cannot_be_served_is_judged_and_does_not_hold() -> None:
    found = score(reproduce(BARE, ReproductionOptions(latency="roofline", gpu_counts="8").costs()))
    assert found.numbers.printed == 21  # eight GPUs cannot split four whole experts
    assert found.numbers.median_error is None
    assert found.judged == 20


def test_the_papers_server_explains_more_than_todays(outcomes: tuple[Outcome, ...]) -> None:
    """The finding of the page, on a latency source that was not used there."""
    today = score(reproduce(BARE, ReproductionOptions(server="today", latency="roofline").costs()))
    paper = score(outcomes)
    assert paper.numbers.within_15 > 1.5 * today.numbers.within_15
    assert paper.held > today.held
    for name in ("fig3.cost", "few.serve"):
        assert name in paper.which
        assert name not in today.which


def test_a_server_is_its_parts_but_for_what_is_stated() -> None:
    paper, today = servers().values()
    assert all(part["source"] for server in (paper, today) for part in server.values())
    own = ROOFLINE.deployment()
    assert (own.prompt_tokens, own.output_tokens) == (161.31, 337.99)
    assert own.max_num_seqs == np.inf
    assert own.reserve_bytes == 0.0
    stated = ReproductionOptions(server="today", prompt=100.0, max_num_seqs="256", memory_fraction=0.8).deployment()
    assert (stated.prompt_tokens, stated.output_tokens, stated.max_num_seqs) == (100.0, 203.0, 256.0)
    assert stated.memory_fraction == 0.8
    traced = ReproductionOptions(trace=ROOT / "examples" / "requests.csv").deployment()
    assert traced.context_tokens is not None
    assert traced.prompt_tokens != 161.31


def test_options_beyond_a_plans_reach_the_costs() -> None:
    changed = ReproductionOptions(
        latency="roofline", moe_execution="fused", gpu_counts="1,2", gpu_memory=80e9, context=600.0, vocab_size=32000,
        layer_width=64.0, host_times="1ms,0.1ms",
    ).costs()  # fmt: skip
    d = changed.deployment
    assert d.tensor_parallel_degrees == (1, 2)
    assert (d.gpu.memory_bytes, d.context_tokens, d.longest_request_tokens) == (80e9, 600.0, 600.0)
    assert (d.host.per_pass_s, d.host.per_sequence_s) == (1e-3, 1e-4)
    assert (changed.vocab_size, changed.family.d_model_per_layer) == (32000, 64.0)
    assert world_of(LAW, changed).costs.family.d_model_per_layer == 64.0
    usual = world_of(LAW, ROOFLINE.costs())
    assert world_of(LAW, changed).usd(np.array([[1e9]]), 8.0) != usual.usd(np.array([[1e9]]), 8.0)


def test_the_recovered_law_keeps_its_stated_errors(outcomes: tuple[Outcome, ...]) -> None:
    found = _by_id(outcomes)
    both = [found[name].parts[0].ours or 1.0 for name in ("deq.e8", "deq.e16")]
    assert np.sqrt(np.mean(np.square(both))) <= 0.0025
    for name in ("dense.opt", "e8.opt", "e8.over.dense"):
        assert all(part.within for part in found[name].parts), name
        assert all(part.tolerance == 0.05 for part in found[name].parts)


def test_intervals_hold_most_draws_around_the_best(outcomes: tuple[Outcome, ...]) -> None:
    for o in outcomes:
        for part in o.parts:
            if part.interval is not None:
                assert part.interval[0] <= part.interval[1]
    spread = _by_id(outcomes)["dense.opt"].parts[0]
    assert spread.interval[0] < (spread.ours or 0.0) < spread.interval[1]


def test_price_cancels_in_every_claim(outcomes: tuple[Outcome, ...]) -> None:
    dearer = reproduce(BARE, ReproductionOptions(latency="roofline", usd_per_gpu_hour=4.35).costs())
    for a, b in zip(outcomes, dearer, strict=True):
        for x, y in zip(a.parts, b.parts, strict=True):
            assert x.ours == y.ours or x.ours == pytest.approx(y.ours, rel=1e-9)


def test_every_expert_on_every_token_leaves_dense_models_and_the_law_as_they_are(outcomes: tuple[Outcome, ...]) -> None:
    fused = _by_id(reproduce(BARE, ReproductionOptions(latency="roofline", moe_execution="fused").costs()))
    for a in outcomes:
        if not any(part.quantity in OF_COSTS for part in a.claim.parts):
            assert [p.ours for p in a.parts] == [p.ours for p in fused[a.claim.id].parts]
        else:
            assert (a.inputs["moe_execution"], fused[a.claim.id].inputs["moe_execution"]) == ("all-experts", "fused")
    every = _by_id(outcomes)
    assert fused["mfu"].parts[0].ours == every["mfu"].parts[0].ours  # of a dense model
    for name in ("cost.e8.dense", "cost.many"):  # more experts are computed
        for x, y in zip(fused[name].parts, every[name].parts, strict=True):
            assert (y.ours or 0.0) > (x.ours or np.inf)


def test_figures_and_claims_about_them_agree_and_the_verdicts_have_every_number_that_is_counted(
    outcomes: tuple[Outcome, ...], world: World
) -> None:
    _, rows = figures.trade_off_figure(world, np.array([1e21]))
    found = _by_id(outcomes)
    for name, column, extreme in (("fig3.loss", "loss", max), ("fig3.cost", "usd_per_mtok", min)):
        values = [row[column] for row in rows]
        assert found[name].parts[1].ours == pytest.approx(extreme(b / a for a, b in pairwise(values)), rel=1e-9)
    _, rows = figures.verdict_figure(outcomes, outcomes)
    assert len(rows) == score(outcomes).numbers.printed
    assert all(row["beside"] == row["ours"] for row in rows)


def test_unknown_claims_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"cost\.e8\.e4"):
        find_claim("cost.e8.e5")


def test_dense_laws_are_refused() -> None:
    with pytest.raises(InputError, match="dense models"):
        reproduce(find_law("hoffmann2022"), ROOFLINE.costs())


@daily(6)
@given(st.floats(0.01, 1.0), st.sampled_from([1.0, 4.0, 8.0, 32.0]))
def test_the_size_within_a_cost_costs_no_more_and_the_next_one_does(usd: float, experts: float) -> None:
    world = world_of(LAW, ROOFLINE.costs())
    e = np.array([experts])
    size = world.size_within(np.array([usd]), e)
    assert np.isfinite(size).all()
    assert world.usd(size, e)[0, 0] <= usd
    assert not world.usd(size * 1.0001, e)[0, 0] <= usd


@pytest.mark.parametrize(
    "names", [("1", "4", "8", VERDICT), pytest.param(("2", "3", "5", "6"), marks=pytest.mark.fuzz)], ids=" ".join
)
def test_figures_draw_any_law_and_gpu(names: tuple[str, ...], tmp_path: Path, outcomes: tuple[Outcome, ...]) -> None:
    assert {"1", "2", "3", "4", "5", "6", "8"} == {*FIGURES}
    law = of_the_papers_models(find_law("ludziejewski2025"))
    world = world_of(law, ReproductionOptions(gpu="h100-sxm", latency="roofline", server="today").costs())
    for name, figure, rows in drawn(names, world, outcomes, ()):
        if name != "figure-1":  # which has the law's losses and printed ones
            assert all(row.keys() == rows[0].keys() for row in rows)
        assert save_figure(figure, tmp_path / f"{name}.svg").stat().st_size > 5000


def test_json_is_the_contracts(
    outcomes: tuple[Outcome, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command computes is held by test_snapshot.py; here it is given what the library computed."""
    asked: list[object] = []

    def evaluate(*given: object) -> tuple[Outcome, ...]:
        asked.extend(given)
        return outcomes

    monkeypatch.setattr("moescale.reproduction.evaluate.reproduce", evaluate)
    main(["reproduce", "--latency", "roofline", "--json"])
    records = json.loads(capsys.readouterr().out)
    assert asked == [LAW, ROOFLINE.costs()]
    main(split("reproduce --server today --latency roofline --max-num-seqs 256 --convention exact --json"))
    capsys.readouterr()
    differs = ReproductionOptions(server="today", latency="roofline", max_num_seqs="256")
    assert asked[2:] == [replace(LAW, family=replace(LAW.family, convention="exact")), differs.costs()]
    assert (differs.costs().latency.moe_execution, differs.deployment().prompt_tokens) == ("fused", 230.0)
    assert records == json.loads(json.dumps([o.to_dict() for o in outcomes]))
    assert [r["claim"] for r in records] == [c.id for c in claims()]
    for r in records:
        assert {"claim", "paper", "ours", "rel_error", "direction_holds", "holds", "role", "inputs", "note"} <= r.keys()
        assert r["holds"] in (True, False, None)
        assert r["role"] in ("input", "prediction")
        assert r["role"] == "prediction" or r["holds"] is None
        assert r["inputs"]["law"] == "yun2024-recovered"
        assert ("gpu" in r["inputs"]) == any(p.quantity in OF_COSTS for p in find_claim(r["claim"]).parts)
    main(["reproduce", "--summary", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["server"] == "yun2024"
    assert told["numbers"].keys() == {"printed", "within_15", "within_25", "median_error"}
    assert {"judged", "held", "trends", "trends_held"} <= told["claims"].keys()
    assert told["draws"]["n"] == len(told["draws"]["held"]) == len(LAW.draws)


def test_the_table_fits_a_page(outcomes: tuple[Outcome, ...], capsys: pytest.CaptureFixture[str]) -> None:
    show_outcomes(terminal(), outcomes, score(outcomes), "yun2024")
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 100
    for name in IDS:
        assert name in shown


def test_a_folder_holds_the_claims_and_every_figure_with_its_data(
    outcomes: tuple[Outcome, ...], world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "SUFFIXES", (".svg",))  # one kind is enough to see that each figure is there
    folder = tmp_path / "out"
    written = figures.publish(folder, drawn(["8", VERDICT], world, outcomes, ()), outcomes)
    names = {path.name for path in folder.iterdir()}
    assert names == {path.name for path in written}
    assert names == {f"{n}{s}" for n in ("figure-8", "verdict") for s in (".svg", ".csv")} | {"claims.json"}
    assert json.loads((folder / "claims.json").read_text())[0]["claim"] == "fit.rmsle"
    for name in ("figure-8", "verdict"):
        rows = list(csv.reader(io.StringIO((folder / f"{name}.csv").read_text())))
        assert len(rows) > 5
        assert len({len(row) for row in rows}) == 1


@pytest.mark.fuzz
def test_another_law_is_asked_about_the_papers_models() -> None:
    law = find_law("ludziejewski2025")
    law = replace(law, draws=law.draws[:0])
    found = _by_id(reproduce(law, ROOFLINE.costs()))
    size = found["dense.opt"].parts[0].ours or 0.0
    assert found["deq.e8"].reason == "losses on FineWeb-Edu are not those on SlimPajama"
    assert found["flops.16v4"].inputs == {"law": law.name, "convention": "exact"}
    of_dense = restate(law, replace(find_family("yun2024"), convention="exact"))
    assert size == pytest.approx(loss_optimal(of_dense, Budget(2.12e21), 1.0).n_params[0])

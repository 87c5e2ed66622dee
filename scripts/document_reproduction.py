"""Compute what docs/evidence/reproduction.md and independent.md state, and draw the figures of the first.

python scripts/document_reproduction.py

Every row of the table of servers is the command that it names. The CSV files of TABLES hold every number.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from moescale import catalogue
from moescale.cli import main as moescale
from moescale.hardware.gpus import find_gpu
from moescale.latency import ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED, with_moe_execution
from moescale.latency.silicon import Silicon
from moescale.models.coordinates import experts_at, model_of
from moescale.models.family import find_family
from moescale.models.published import published_shapes
from moescale.options.reproduction import ReproductionOptions, servers
from moescale.reproduction.evaluate import Outcome, Score, judge, reproduce, score
from moescale.reproduction.figures import FIGURES, VERDICT, drawn
from moescale.reproduction.tables import printed, quantity, verdict
from moescale.reproduction.world import World, world_of
from moescale.scaling_laws import Law, find_law
from moescale.typing import FloatArray
from moescale.views.figures.style import figure_bytes
from pages import filled, table, write, write_csv

ASSETS = Path(__file__).resolve().parents[1] / "docs" / "assets" / "reproduction"
# The paper's own law, then those of other people's runs.
LAWS = ("yun2024-recovered", "yun2024-joint", "moescale2026-joint", "ludziejewski2025")
TURNED = {
    "today": ReproductionOptions(server="today"),
    "today, 256 requests": ReproductionOptions(server="today", max_num_seqs="256"),
}

LINES: dict[str, str] = catalogue.read("claims.toml")["settings"]
SHOWN = {"cost.e8.dense": "E8/dense", "cost.e8.e4": "E8/E4", "cost.e16.e4": "E16/E4"}

# What each claim says, for readers who decide and do not reproduce: the page on independent runs is ordered by these.
CONCLUSIONS = {
    "More experts lower the loss at every training budget": ("fig3.loss",),
    "More experts cost more to serve at the same training budget": ("fig3.cost",),
    "More experts need fewer training FLOPs for the same loss, and the more so the larger the budget": ("flops.16v4",),
    "The gain of further experts shrinks from 16 to 32": ("saturate",),
    "The gain of experts does not depend on training tokens": ("no.DE",),
    "Among loss-optimal models of equal loss, 4 or 8 experts are the cheapest to serve": ("few.serve",),
    "An over-trained 16-expert model beats the 4- and 8-expert optima in loss and cost": ("fig4.e16",),
    "At equal loss an over-trained model with more experts is cheaper to serve": tuple(SHOWN),
    "At the dense loss 8 experts are the cheapest": ("fig5.cheapest",),
    "At equal loss 32 experts cost more to serve than 8 or 16": ("cost.many",),
    "That over-trained model is much smaller than the baseline": ("size.comment",),
    "Its size relative to the loss-optimal N hardly depends on the budget": ("ratio.constant",),
    "At equal cost more experts have the lower loss": ("fig6.loss",),
    "At equal cost models with more experts are smaller than the E = 4 optimum": ("size.bounded.e4",),
    "At the dense optimum's cost E = 8 has 84% of its activated size, other counts 37 to 125%": ("size.bounded.dense",),
    "At equal cost an over-trained model saves training budget": ("budget.saved", "flops.e4.match8"),
    "Train well below the loss-optimal size (32 experts at 30% for quality, 16 at 16% for cost)": ("recommend",),
    "Utilisation varies at least tenfold with the batch": ("mfu",),
}
TABLES = {
    "reproduction-claims": (
        *("law", "claim", "line", "statement", "role", "trend_holds", "share_of_draws", "size_holds", "holds"),
        *("reason", "note"),
    ),
    "reproduction-numbers": (
        "law",
        "claim",
        "number",
        "judged",
        "paper",
        "ours",
        "p5",
        "p95",
        "relative_error",
        "tolerance",
    ),
    "reproduction-tolerances": ("tolerance", "relative", "why"),
    "reproduction-settings": (
        *("options", "meaning", "within_15", "within_25", "of", "median_error", "claims_held", "trends_held"),
        *("first_count_within_15", "first_count_within_25", "draws_median", "which"),
    ),
    "reproduction-settings-numbers": ("number", *(options or "--server yun2024" for options in LINES)),
    "reproduction-draws": ("draw", "claims_held", "within_15"),
    "reproduction-loop": (
        *("batch", "loop_measured_s", "loop_predicted_s", "predicted_over_measured", "grouped_predicted_s"),
        *("grouped_over_measured", "loop_over_fused_measured", "loop_over_fused_predicted"),
    ),
    "independent-settings": ("server", "law", "trends_gained", "trends_lost"),
}
Found = Mapping[str, Mapping[str, Outcome]]  # outcomes by law and claim


def main() -> None:
    """Evaluate, write and draw."""
    laws = [find_law(name) for name in LAWS]
    costs = ReproductionOptions().costs()
    found = {law.name: {o.claim.id: o for o in reproduce(law, costs)} for law in laws}
    turned = {
        name: {law.name: {o.claim.id: o for o in reproduce(law, options.costs())} for law in laws}
        for name, options in TURNED.items()
    }
    own, today = found[LAWS[0]], turned["today"][LAWS[0]]
    answers = {options: _asked(options) for options in LINES}
    world = world_of(laws[0], costs)
    parts = {
        "reproduction": reproduction(own, today, answers, world),
        "independent": independent(laws, found, turned),
    }
    for page, computed in parts.items():
        write(f"evidence/{page}.md", filled(f"evidence/{page}.md", computed))
    of_own = score(list(own.values()))
    rows: dict[str, list[list[Any]]] = {
        "reproduction-claims": [_claim_row(law, o) for law, each in found.items() for o in each.values()],
        "reproduction-numbers": [
            row for law, each in found.items() for o in each.values() for row in _number_rows(law, o)
        ],
        "reproduction-tolerances": _tolerances(own),
        "reproduction-settings": [_setting_row(options, answer) for options, answer in answers.items()],
        "reproduction-settings-numbers": [
            [number, *(_plain(a["values"][number]) for a in answers.values())] for number in answers[""]["values"]
        ],
        "reproduction-draws": [
            list(row) for row in zip(range(64), of_own.drawn_held, of_own.drawn_within, strict=True)
        ],
        "reproduction-loop": _loop_rows(),
        "independent-settings": _turned(found, turned),
    }
    for name, columns in TABLES.items():
        write_csv(f"evidence/{name}.csv", columns, rows[name])
    _draw(world, list(own.values()), list(today.values()))


def _asked(options: str) -> dict[str, Any]:
    """What `moescale reproduce OPTIONS --summary --json` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        moescale(["reproduce", *options.split(), "--summary", "--json"])
    return json.loads(out.getvalue())


def _draw(world: World, outcomes: Sequence[Outcome], today: Sequence[Outcome]) -> None:
    """Every figure as a picture of few colours: pages show them without drawing anything."""
    from PIL import Image

    ASSETS.mkdir(parents=True, exist_ok=True)
    for name, figure, _ in drawn([*FIGURES, VERDICT], world, outcomes, today):
        picture = Image.open(io.BytesIO(figure_bytes(figure, "png"))).convert("RGB").quantize(64).convert("RGB")
        picture.save(ASSETS / f"{name}.webp", lossless=True, quality=100, method=6)


def reproduction(
    own: Mapping[str, Outcome], today: Mapping[str, Outcome], answers: Mapping[str, Any], world: World
) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under the recovered law."""
    found, other = score(list(own.values())), score(list(today.values()))
    ratios = [float(row[3]) for row in _loop_rows()]
    best = max(answers, key=lambda options: [answers[options]["numbers"][name] for name in ("within_15", "within_25")])
    return {
        "counts": counts(list(own.values()), found),
        "verdict": _verdicts({"yun2024": found, "today": other}),
        "first": f"{found.first_count.within_15} of {found.first_count.printed} are within 15% and {found.first_count.within_25} within 25%",
        "numbers": f"{found.numbers.within_15} of {found.numbers.printed} printed numbers are within 15% and {found.numbers.within_25} within 25%",
        "claims": _claims_table(own, today),
        "server": [f"- `{name}` {part['value']}: {part['source']}." for name, part in servers()["yun2024"].items()],
        "settings": _settings_table(answers),
        "best": f"`{best}`: {answers[best]['numbers']['within_15']} and {answers[best]['numbers']['within_25']}",
        "apart": _never_together(answers),
        "needed": _needed(world),
        "loop-low": f"{min(ratios):.2f}",
        "loop-high": f"{max(ratios):.2f}",
        "reached": f"{_budget_where(world, 0.237):.2g}",
        "e8-e4": f"{_ours(own, 'cost.e8.e4', 0):.1%}",
        "e8-e4-elements": f"{_value(answers, '--gpu-memory 80GiB'):.1%}",
        "e8-e4-chunked": f"{_value(answers, '--scheduling chunked'):.1%}",
        "few-low": f"{_ours(own, 'flops.few', 0):.2f}",
        "few-high": f"{_ours(own, 'flops.few', 1):.2f}",
        "constant-16": f"{_ours(own, 'ratio.constant', 1):.2f}",
        "constant-32": f"{_ours(own, 'ratio.constant', 2):.2f}",
        "constant-cost": f"{_ours(own, 'ratio.constant', 3):.2f}",
    }


def counts(outcomes: Sequence[Outcome], found: Score) -> str:
    """How many claims hold, in sentences."""
    in_size = sum(o.holds is False and o.direction_holds is True for o in outcomes)
    return (
        f"Of {found.claims} claims, {found.held} hold and {found.judged - found.held} fail; for {in_size} of those that fail the "
        f"trend is reproduced and only the size is off. {found.inputs} were used to fit the law, so they are not tests. "
        f"{sum(o.claim.same_as is not None for o in outcomes)} states a fact twice. {found.unknown} cannot be computed."
    )


def _verdicts(found: Mapping[str, Score]) -> list[str]:
    """A row a server."""
    head = ("server", "within 15%", "within 25%", "median error", "claims that hold", "trends", "claims over the draws")
    rows = [
        [
            f"`{name}`",
            f"{s.numbers.within_15} of {s.numbers.printed}",
            f"{s.numbers.within_25} of {s.numbers.printed}",
            f"{s.numbers.median_error:.0%}",
            f"{s.held} of {s.judged}",
            f"{s.trends_held} of {s.trends}",
            f"{min(s.drawn_held)} to {max(s.drawn_held)}, median {np.median(s.drawn_held):g}",
        ]
        for name, s in found.items()
    ]
    return table(head, rows)


def _claims_table(own: Mapping[str, Outcome], today: Mapping[str, Outcome]) -> list[str]:
    """A row for each claim that is judged: definition, the judged numbers of the paper and ours, verdicts, share of draws."""
    rows: list[list[str]] = []
    for o in (o for o in own.values() if o.counts):
        judged = [part for part in o.parts if part.judged]
        paper = ", ".join(dict.fromkeys(printed(o, part) for part in judged))
        ours = ", ".join(quantity(part.ours, o.claim.unit) for part in judged)
        share = "" if o.drawn is None else f"{np.mean([judge(o.claim, row).holds is True for row in o.drawn]):.0%}"
        rows.append([f"`{o.claim.id}`", o.claim.statement, paper, ours, _result(o), share, _result(today[o.claim.id])])
    return table(("claim", "definition", "paper", "ours", "result", "of the draws", "under `today`"), rows)


def _result(outcome: Outcome) -> str:
    if outcome.holds:
        return "holds"
    return "trend only" if outcome.direction_holds and not outcome.magnitude_holds else "fails"


def _settings_table(answers: Mapping[str, Any]) -> list[str]:
    """A row a command: what it stands for, counts, and the ratios of cost that remain off."""
    head = (
        "options of `moescale reproduce --summary`",
        "stands for",
        "15%",
        "25%",
        "claims",
        "trends",
        *SHOWN.values(),
    )
    rows: list[list[str]] = []
    for options, a in answers.items():
        ratios = [_plain(a["values"][f"{claim}, at 5.15e21"], 3) or "-" for claim in SHOWN]
        n, c = a["numbers"], a["claims"]
        numbers = (n["within_15"], n["within_25"], c["held"], c["trends_held"])
        rows.append([f"`{options}`" if options else "", LINES[options], *map(str, numbers), *ratios])
    rows.append(["", "as printed", "", "", "", "", "0.381", "0.51", "0.52"])
    return table(head, rows, numbers=7)


def _never_together(answers: Mapping[str, Any]) -> str:
    """Pairs of claims about the serving ratios of which each holds under some of the commands, and never both."""
    asked = ("few.serve", "size.bounded.dense", "size.bounded.e4", *SHOWN, "cost.many")
    held = {c: {options for options, a in answers.items() if c in a["claims"]["which"]} for c in asked}
    pairs = [(a, b) for a, b in combinations(asked, 2) if held[a] and held[b] and not held[a] & held[b]]
    return "; ".join(f"`{a}` and `{b}`" for a, b in pairs) or "none"


def _needed(world: World) -> list[str]:
    """How many experts the law's models would need for each printed number that involves E = 4, or E = 32, to be met."""
    dense, late, middle = 2.12e21, 8.18e21, 5.15e21

    def n(budget: float, e: float, base: float) -> float:
        return float(world.at_base_loss(budget, e, base).n_params[0, 0])

    def best(budget: float, e: float) -> float:
        return float(world.optimum(budget, e).n_params[0, 0])

    def cost(budget: float, e: float, x: float) -> float:
        over, base = (
            world.usd(np.array([[size]]), of)[0, 0] for size, of in ((n(budget, e, x), e), (best(budget, x), 4.0))
        )
        return float(over / base)

    at_cost = float(world.size_at_base_cost(middle, 32.0, 4.0)[0, 0])
    asked: list[tuple[int, str, float, bool, Callable[[float], float]]] = [
        (4, "FLOPs of E = 16 over E = 4, 1e21", 0.428, False, lambda x: _flops(world, 1e21, x)),
        (4, "FLOPs of E = 16 over E = 4, 8.18e21", 0.237, False, lambda x: _flops(world, late, x)),
        (4, "E = 16 at its loss over E = 16, 5.15e21", 0.16, False, lambda x: n(middle, 16.0, x) / best(middle, 16.0)),
        (4, "E = 8 at its loss over E = 4, 2.12e21", 0.264, False, lambda x: n(dense, 8.0, x) / best(dense, x)),
        (4, "E = 4 at dense's loss over dense, 2.12e21", 0.244, False, lambda x: n(dense, x, 1.0) / best(dense, 1.0)),
        (4, "cost of E = 8 over E = 4, 5.15e21", 0.51, True, lambda x: cost(middle, 8.0, x)),
        (4, "cost of E = 8 over E = 4, 8.18e21", 0.477, True, lambda x: cost(late, 8.0, x)),
        (4, "cost of E = 16 over E = 4, 5.15e21", 0.52, True, lambda x: cost(middle, 16.0, x)),
        (4, "cost of E = 16 over E = 4, 8.18e21", 0.47, True, lambda x: cost(late, 16.0, x)),
        (32, "E = 32 at dense's loss over dense, 2.12e21", 0.073, False, lambda x: n(dense, x, 1.0) / best(dense, 1.0)),
        (32, "E = 32 at E = 4's loss over E = 4, 2.12e21", 0.108, False, lambda x: n(dense, x, 4.0) / best(dense, 4.0)),
        (32, "E = 32 at E = 4's cost over E = 32, 5.15e21", 0.3, True, lambda x: at_cost / best(middle, x)),
    ]
    grids = {4: np.geomspace(2.0, 7.8, 100), 32: np.geomspace(17.0, 128.0, 100)}
    rows = [
        [f"E = {e}", what, f"{value:g}", "law and server" if served else "law", _crossing(f, value, grids[e])]
        for e, what, value, served, f in asked
    ]
    return table(("of", "printed", "value", "rests on", "met at"), rows, numbers=1)


def _flops(world: World, budget: float, base: float) -> float:
    """Training FLOPs of E = 16 at the loss of the base's optimum over the budget; 10 is 6 times 5/3."""
    found = world.optimal_at_base_loss(budget, 16.0, base)
    return float(10.0 * found.n_params[0, 0] * found.tokens[0, 0]) / budget


def _crossing(function: Callable[[float], float], target: float, grid: FloatArray) -> str:
    """Where a function of experts meets a value within the grid."""
    off = np.array([function(x) for x in grid.tolist()]) - target
    met = np.flatnonzero((np.diff(np.sign(off)) != 0) & np.isfinite(np.diff(off)))
    if not met.size:
        return "none"
    at = int(met[0])
    return f"E = {grid[at] + (grid[at + 1] - grid[at]) * off[at] / (off[at] - off[at + 1]):.1f}"


def _claim_row(law: str, o: Outcome) -> list[str]:
    share = "" if o.direction_share is None else f"{o.direction_share:.2f}"
    verdicts = (_flag(o.direction_holds), share, _flag(o.magnitude_holds), verdict(o))
    return [law, o.claim.id, str(o.claim.line), o.claim.statement, o.role, *verdicts, o.reason, o.claim.note]


def _number_rows(law: str, o: Outcome) -> list[list[str]]:
    rows: list[list[str]] = []
    for part in o.parts:
        numbers = (part.ours, *(part.interval or (None, None)), part.rel_error, part.tolerance)
        paper = o.claim.bound if part.paper is None else _plain(part.paper)
        rows.append([law, o.claim.id, part.label, _flag(part.judged), paper, *map(_plain, numbers)])
    return rows


def _tolerances(own: Mapping[str, Outcome]) -> list[list[str]]:
    used = {p.tolerance.name: p.tolerance for o in own.values() for p in o.claim.parts if p.tolerance is not None}
    return [[name, f"{t.value:.3g}", t.why] for name, t in used.items()]


def _setting_row(options: str, a: Mapping[str, Any]) -> list[Any]:
    n, first, c = a["numbers"], a["numbers_first_count"], a["claims"]
    numbers = (n["within_15"], n["within_25"], n["printed"], _plain(n["median_error"]), c["held"], c["trends_held"])
    rest = (first["within_15"], first["within_25"], f"{np.median(a['draws']['held']):g}", " ".join(c["which"]))
    return [options, LINES[options].replace("`", ""), *numbers, *rest]


def _flag(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[holds]


def _plain(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}g}"


def _loop_rows() -> list[list[str]]:
    """What vLLM measured before and after it fused its experts, beside what the two ways to run experts predict."""
    m = catalogue.read("claims.toml")["loop_measurement"]
    model, gpu, batch = published_shapes()["mixtral-8x7b"].architecture, find_gpu(m["gpu"]), np.array(m["batch"], float)

    def seconds(execution: str) -> FloatArray:
        source = with_moe_execution(Silicon(gpu), execution)
        context = m["prompt_tokens"] + m["output_tokens"] / 2
        decode_s = source.decode_s(model, m["gpus"], batch, context)
        return source.prefill_s(model, m["gpus"], batch, m["prompt_tokens"]) + (m["output_tokens"] - 1.0) * decode_s

    looped_s, grouped_s, fused_s = (seconds(name) for name in (ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED))
    loop, fused = np.array(m["all_experts_s"]), np.array(m["fused_s"])
    columns = (loop, looped_s, looped_s / loop, grouped_s, grouped_s / loop, loop / fused, looped_s / fused_s)
    digits = (3, 3, 2, 3, 2, 2, 2)
    return [
        [f"{b:g}", *(f"{value:.{n}f}" for value, n in zip(values, digits, strict=True))]
        for b, *values in zip(m["batch"], *columns, strict=True)
    ]


def _budget_where(world: World, target: float) -> float:
    """E = 4's budget at which the FLOPs of E = 16 fall to a share of it."""
    low, high = 1e20, 1e24
    for _ in range(60):
        middle = (low * high) ** 0.5
        above = _flops(world, middle, 4.0) > target
        low, high = (middle, high) if above else (low, middle)
    return high


def _value(answers: Mapping[str, Any], options: str) -> float:
    return answers[options]["values"]["cost.e8.e4, at 5.15e21"]


def _ours(found: Mapping[str, Outcome], claim: str, part: int) -> float:
    value = found[claim].parts[part].ours
    assert value is not None
    return value


def independent(laws: Sequence[Law], found: Found, turned: Mapping[str, Found]) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under several laws, the paper's own first, all asked about the paper's models."""
    verdicts = {c: [_conclusion(own, ids) for own in found.values()] for c, ids in CONCLUSIONS.items()}
    held = ["claims that hold", *(str(score(list(own.values())).held) for own in found.values())]
    known = {name for ids in CONCLUSIONS.values() for name in ids}
    inputs = sorted({o.claim.id for own in found.values() for o in own.values() if o.role == "input"} & known)
    alike = [{"no" in told, "yes" in told} for told in verdicts.values()]
    _, *fitted = laws
    most = max(law.max_experts for law in fitted if law.max_experts is not None)
    _, expansion = model_of(fitted[0].family, 1e9, most)
    changes = _turned(found, turned)
    return {
        "conclusions": table(("conclusion of the paper", *found), [*([c, *v] for c, v in verdicts.items()), held]),
        "conclusions-count": str(len(verdicts)),
        "under-all": str(sum("yes" in told and "no" not in told for told in verdicts.values())),
        "under-some": str(sum(both == {True} for both in alike)),
        "under-none": str(sum("yes" not in told for told in verdicts.values())),
        "inputs": ", ".join(f"`{name}`" for name in inputs),
        "in-size": "; ".join(
            f"{law} {', '.join(f'`{name}`' for name in score(list(own.values())).which)}" for law, own in found.items()
        ),
        "lost-today": "; ".join(f"{row[1]} {_names(row[3])}" for row in changes if row[0] == "today" and row[3]),
        "largest": f"{fitted[0].fit_range['n_params'][1] / 1e9:.1f}B",
        "longest": f"{fitted[0].fit_range['tokens'][1] / 1e9:.0f}B",
        "most-experts": f"{experts_at(find_family('yun2024'), expansion):.0f}",
        "expansion": f"{most:g}",
    }


def _names(ids: str) -> str:
    return ", ".join(f"`{name}`" for name in ids.split())


def _conclusion(own: Mapping[str, Outcome], ids: Sequence[str]) -> str:
    """Whether the trends of a conclusion's claims hold under a law (of a claim without one: its size); input if all are."""
    told = [
        o.magnitude_holds if o.direction_holds is None else o.direction_holds
        for o in (own[name] for name in ids)
        if o.role != "input"
    ]
    return ("yes" if all(told) else "no") if told else "input"


def _turned(found: Found, turned: Mapping[str, Found]) -> list[list[str]]:
    """For other servers and each law, the claims whose trend is another than under the paper's server."""
    rows: list[list[str]] = []
    for server, laws in turned.items():
        for law, there in laws.items():
            pairs = [
                (name, found[law][name].direction_holds, o.direction_holds) for name, o in there.items() if o.counts
            ]
            gained = [name for name, before, now in pairs if now is True and before is not True]
            lost = [name for name, before, now in pairs if now is not True and before is True]
            rows.append([server, law, " ".join(gained), " ".join(lost)])
    return rows


if __name__ == "__main__":
    main()

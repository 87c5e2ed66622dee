"""Compute what docs/evidence/reproduction.md and independent.md state: the paper's claims under the recovered law, and under other people's runs.

python scripts/document_reproduction.py

The pages hold the results; every number, setting and verdict is in the CSV files of TABLES beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.latency import ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED, with_moe_execution
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.coordinates import experts_at, model_of
from moescale.models.family import find_family, with_convention
from moescale.models.published import published_shapes
from moescale.options.serving import DEFAULT_GPU, DEFAULT_TRAFFIC
from moescale.planning.candidate import Costs
from moescale.reproduction import Outcome, find_claim, host_times, reproduce, summary
from moescale.reproduction.claims import Part, loop_measurement, settings
from moescale.reproduction.evaluate import Elsewhere, HostTime
from moescale.reproduction.quantities import NEEDS_COSTS, flops_ratio_at_equal_loss
from moescale.reproduction.series import world_of
from moescale.reproduction.tables import printed, quantity, under, verdict
from moescale.reproduction.world import World, as_in_the_paper
from moescale.scaling_laws import Law, find_law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from pages import filled, table, write, write_csv

# The paper's own law, then those of other people's runs.
LAWS = ("yun2024-recovered", "yun2024-joint", "moescale2026-joint", "ludziejewski2025")
TURNED = ("max_num_seqs 256", "all experts", "all experts, 256")  # settings under which the other laws are judged again
COST_RATIOS = ("cost.e8.dense", "cost.e8.e4", "cost.e16.e4")
SIZES = ("size.bounded.dense", "size.bounded.e4")

# What each claim says, for readers who decide and do not reproduce: the page on independent runs is ordered by these.
CONCLUSIONS = {
    "More experts need fewer training FLOPs for the same loss, and the more so the larger the budget": (
        "flops.16v4",
        "flops.few",
    ),
    "The gain of further experts shrinks from 16 to 32": ("saturate",),
    "The gain of experts does not depend on training tokens": ("no.DE",),
    "Among loss-optimal models of equal loss, 4 or 8 experts are the cheapest to serve": ("few.serve",),
    "At equal loss an over-trained model with more experts is cheaper to serve": (
        "cost.e8.dense",
        "cost.e8.e4",
        "cost.e16.e4",
    ),
    "At equal loss 32 experts cost more to serve than 8 or 16": ("cost.many",),
    "That over-trained model is much smaller than the baseline": ("size.comment",),
    "Its size relative to the loss-optimal N hardly depends on the budget": ("ratio.constant",),
    "At equal cost models with more experts are smaller than the E = 4 optimum": ("size.bounded.e4",),
    "At the dense optimum's cost E = 8 has 84% of its activated size, other counts 37 to 125%": ("size.bounded.dense",),
    "At equal cost an over-trained model saves training budget": ("budget.saved", "flops.e4.match8"),
    "Train well below the loss-optimal size (32 experts at 30% for quality, 16 at 16% for cost)": ("recommend",),
    "Utilisation varies tenfold with the batch": ("mfu",),
}
CLAIMS = [name for ids in CONCLUSIONS.values() for name in ids]


# The CSV files beside the pages, and their columns.
TABLES = {
    "reproduction-claims": (
        *("law", "claim", "line", "statement", "role", "trend_holds", "share_of_draws", "size_holds", "holds"),
        *("reason", "note"),
    ),
    "reproduction-numbers": (
        *("law", "claim", "number", "judged", "paper", "ours", "p5", "p95", "relative_error", "tolerance", "roofline"),
    ),
    "reproduction-tolerances": ("tolerance", "relative", "why"),
    "reproduction-settings": (
        *("setting", "cost_ratio_over_paper_min", "cost_ratio_over_paper_max", "e32_over_dearer_of_e8_e16_min"),
        *(
            "e32_over_dearer_of_e8_e16_max",
            "least_size_at_e4_cost",
            "most_size_at_e4_cost",
            "claims_held",
            "which",
            "why",
        ),
    ),
    "reproduction-settings-numbers": (
        *("law", "setting", "claim", "number", "paper", "ours", "trend_holds", "size_holds", "holds"),
    ),
    "reproduction-conventions": ("convention", "claim", "number", "paper", "ours"),
    "reproduction-loop": (
        *("batch", "loop_measured_s", "loop_predicted_s", "predicted_over_measured", "grouped_predicted_s"),
        *("grouped_over_measured", "loop_over_fused_measured", "loop_over_fused_predicted"),
    ),
    "reproduction-host-times": (
        *("claim", "number", "batch_limited_by", "paper", "kernels_alone", "us_per_sequence", "or_ms_per_pass"),
    ),
    "independent-settings": ("setting", "law", "trends_gained", "trends_lost"),
}


def main() -> None:
    """Evaluate and write."""
    gpu = find_gpu(DEFAULT_GPU)
    prompt, output = DEFAULT_TRAFFIC
    usd = price(gpu.name).usd_per_gpu_hour
    deployment = as_in_the_paper(Deployment(gpu=gpu, usd_per_gpu_hour=usd, prompt_tokens=prompt, output_tokens=output))
    latency, roofline = Silicon(gpu), Roofline(gpu)
    laws = [find_law(name) for name in LAWS]
    outcomes = [reproduce(law, deployment, latency, (roofline,)) for law in laws]
    own = laws[0]
    counted = {
        convention: reproduce(
            replace(own, family=with_convention(own.family, convention)), deployment, latency, sensitivity=False
        )
        for convention in ("paper", "exact", "dense")
    }
    hosts = host_times(own, deployment, latency)
    world = world_of(own, Costs(own.family, latency, deployment, None))
    found = {law.name: {o.claim.id: o for o in each} for law, each in zip(laws, outcomes, strict=True)}
    parts = {"reproduction": reproduction(outcomes[0], hosts, world), "independent": independent(laws, found)}
    for page, computed in parts.items():
        write(f"evidence/{page}.md", filled(f"evidence/{page}.md", computed))
    rows = {
        "reproduction-claims": [_claim_row(law, o) for law, each in found.items() for o in each.values()],
        "reproduction-numbers": [
            row for law, each in found.items() for o in each.values() for row in _number_rows(law, o)
        ],
        "reproduction-tolerances": _tolerances(outcomes[0]),
        "reproduction-settings": _setting_rows(found[own.name]),
        "reproduction-settings-numbers": [
            row for law in found for row in _varied_rows(law, found[law], None if law == own.name else TURNED)
        ],
        "reproduction-conventions": _convention_rows(counted),
        "reproduction-loop": _loop_rows(),
        "reproduction-host-times": [_host_row(h) for h in hosts],
        "independent-settings": _turned(found),
    }
    for name, columns in TABLES.items():
        write_csv(f"evidence/{name}.csv", columns, rows[name])


def reproduction(outcomes: Sequence[Outcome], hosts: Sequence[HostTime], world: World) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under the recovered law."""
    times = sorted(h.per_sequence_s for h in hosts if h.per_sequence_s)
    ratios = [float(row[3]) for row in _loop_rows()]
    return {
        "counts": counts(outcomes),
        "conditions": conditions(outcomes),
        "claims": _claims_table(outcomes),
        **_summary(outcomes, world),
        "loop-low": f"{min(ratios):.2f}",
        "loop-high": f"{max(ratios):.2f}",
        "host-low": f"{1e6 * times[0]:.0f}",
        "host-high": f"{1e6 * times[-1]:.0f}",
        "passes": _passes(hosts),
    }


def counts(outcomes: Sequence[Outcome]) -> str:
    """How many claims hold, in sentences."""
    n = summary(outcomes)
    return (
        f"Of {len(outcomes)} claims, {n['hold']} {'holds' if n['hold'] == 1 else 'hold'} and {n['fail']} fail; for "
        f"{n['fail in size only']} of those that fail the trend is reproduced and only the size is off. {n['inputs']} were "
        f"used to fit the law, so they are not tests. {n['not computable']} cannot be computed."
    )


def _result(outcome: Outcome) -> str:
    """The verdict on a prediction."""
    if outcome.holds:
        return "holds"
    return "trend only" if outcome.direction_holds else "fails"


def _claims_table(outcomes: Sequence[Outcome]) -> list[str]:
    """A row for each prediction that was judged: its definition, the judged numbers of the paper and ours, the verdict."""
    rows: list[list[str]] = []
    for o in outcomes:
        if o.holds is None:
            continue
        judged = [part for part in o.parts if part.judged]
        paper = list(dict.fromkeys(printed(o, part) for part in judged))
        ours = [quantity(part.ours, o.claim.unit) for part in judged]
        rows.append([f"`{o.claim.id}`", o.claim.statement, ", ".join(paper), ", ".join(ours), _result(o)])
    return table(("claim", "definition", "paper", "ours", "result"), rows)


def _summary(outcomes: Sequence[Outcome], world: World) -> dict[str, str | list[str]]:
    """What was found, from the numbers of this run alone."""
    found = {o.claim.id: o for o in outcomes}
    judged = _judged(found)
    held = {s.name: [o.claim.id for o in judged if under(o, s).holds] for s in settings()}
    base = [o.claim.id for o in judged if o.holds]
    ever = [o.claim.id for o in judged if o.holds or any(o.claim.id in ids for ids in held.values())]
    experts = [s for s in settings() if s.moe_execution == ALL_EXPERTS]
    counted = [len(held[s.name]) for s in experts]
    sizes, many = "size.bounded.e4", "cost.e8.e4"
    by_name = {s.name: s for s in settings()}
    return {
        "error-low": _error(found, "flops.16v4", 0),
        "error-high": _error(found, "flops.16v4", 1),
        "reached": f"{_budget_where(world, find_claim('flops.16v4').parts[1]):.2g}",
        "recommended": f"{_ours(found, 'recommend', 1):.1%}",
        "judged": str(len(judged)),
        "judged-2": str(len(judged)),
        "base": f"{len(base)} {'holds' if len(base) == 1 else 'hold'}",
        "roofline": str(sum(o.other_latencies[0].holds is True for o in judged)),
        "batch-8": f"{_batch(world, 8.0):,.0f}",
        "batch-32": f"{_batch(world, 32.0):,.0f}",
        "ratios-fused": _range(_over_printed(found)),
        "held": f"{min(counted)} to {max(counted)}",
        "settings-count": str(len(experts)),
        "dearest": str(sum(under(found["cost.many"], s).direction_holds is True for s in experts)),
        "sizes": _range([_least_size(under(found[sizes], s)) for s in experts]),
        "fused-size": f"{_ours(found, sizes, 0):.2f}",
        "paper-size": f"{find_claim(sizes).parts[0].paper:g}",
        "where": _where(held, SIZES),
        "ever": str(len(ever)),
        "never": _names([o.claim.id for o in judged if o.claim.id not in ever]),
        "e8-e4": f"{_ours(found, many, 0):.1%}",
        "e8-e4-elements": f"{_first(under(found[many], by_name['KV and weights in elements'])):.1%}",
        "e8-e4-chunked": f"{_first(under(found[many], by_name['one pass (chunked)'])):.1%}",
        "few-low": f"{_ours(found, 'flops.few', 0):.2f}",
        "few-high": f"{_ours(found, 'flops.few', 1):.2f}",
        "constant-16": f"{_ours(found, 'ratio.constant', 1):.2f}",
        "constant-32": f"{_ours(found, 'ratio.constant', 2):.2f}",
        "constant-cost": f"{_ours(found, 'ratio.constant', 3):.2f}",
    }


def conditions(outcomes: Sequence[Outcome]) -> str:
    """What the claims were computed with."""
    inputs = next(o.inputs for o in outcomes if "latency" in o.inputs)
    return ", ".join(f"{name} {value}" for name, value in inputs.items() if value is not None)


def _judged(found: Mapping[str, Outcome]) -> list[Outcome]:
    """The predictions that involve cost."""
    return [o for o in found.values() if o.sensitivity and o.holds is not None]


def _over_printed(world: Mapping[str, Outcome | Elsewhere]) -> list[float]:
    """The ratios of costs over the printed ones."""
    paper = [p.paper for name in COST_RATIOS for p in find_claim(name).parts]
    ours = [v for name in COST_RATIOS for v in _numbers(world[name])]
    return [v / p for v, p in zip(ours, paper, strict=True) if v is not None and p is not None]


def _claim_row(law: str, o: Outcome) -> list[str]:
    share = "" if o.direction_share is None else f"{o.direction_share:.2f}"
    verdicts = (_flag(o.direction_holds), share, _flag(o.magnitude_holds), verdict(o.holds, o.role, o.claim.cannot))
    return [law, o.claim.id, str(o.claim.line), o.claim.statement, o.role, *verdicts, o.reason, o.claim.note]


def _number_rows(law: str, o: Outcome) -> list[list[str]]:
    rows: list[list[str]] = []
    beside = o.other_latencies[0].ours if o.other_latencies else (None,) * len(o.parts)
    for part, other in zip(o.parts, beside, strict=True):
        numbers = (part.ours, *(part.interval or (None, None)), part.rel_error, part.tolerance, other)
        paper = o.claim.bound if part.paper is None else _plain(part.paper)
        rows.append([law, o.claim.id, part.label, _flag(part.judged), paper, *map(_plain, numbers)])
    return rows


def _tolerances(outcomes: Sequence[Outcome]) -> list[list[str]]:
    used = {p.tolerance.name: p.tolerance for o in outcomes for p in o.claim.parts if p.tolerance is not None}
    return [[name, f"{t.value:.3g}", t.why] for name, t in used.items()]


def _setting_rows(found: Mapping[str, Outcome]) -> list[list[str]]:
    """A row for the base case and one a setting: ratios of costs, sizes at equal cost, and which claims hold."""
    judged = _judged(found)
    worlds: list[tuple[str, str, Mapping[str, Outcome | Elsewhere]]] = [
        ("base: fused experts", "experts as today's servers run them; the batch that memory holds", found),
        *((s.name, s.why, {n: under(o, s) for n, o in found.items() if o.sensitivity}) for s in settings()),
    ]
    rows: list[list[str]] = []
    for name, why, world in worlds:
        off, many, sizes = _over_printed(world), _numbers(world["cost.many"]), _numbers(world["size.bounded.e4"])
        known = [v for v in many if v is not None]
        ids = [o.claim.id for o in judged if world[o.claim.id].holds]
        numbers = (min(off), max(off), min(known), max(known), *sizes)
        rows.append([name, *map(_plain, numbers), str(len(ids)), " ".join(ids), why])
    return rows


def _varied_rows(law: str, found: Mapping[str, Outcome], names: Sequence[str] | None) -> list[list[str]]:
    """Each number that involves cost under each setting (of these names)."""
    rows: list[list[str]] = []
    for s in settings():
        if names is not None and s.name not in names:
            continue
        for o in found.values():
            if not o.sensitivity:
                continue
            there = under(o, s)
            verdicts = (_flag(there.direction_holds), _flag(there.magnitude_holds), _flag(there.holds))
            for i, part in enumerate(o.parts):
                if o.claim.parts[i].quantity in NEEDS_COSTS:
                    paper = o.claim.bound if part.paper is None else _plain(part.paper)
                    rows.append([law, s.name, o.claim.id, part.label, paper, _plain(there.ours[i]), *verdicts])
    return rows


def _convention_rows(counted: Mapping[str, Sequence[Outcome]]) -> list[list[str]]:
    """Each number by how activated parameters are counted, with the same coefficients."""
    return [
        [
            convention,
            o.claim.id,
            part.label,
            o.claim.bound if part.paper is None else _plain(part.paper),
            _plain(part.ours),
        ]
        for convention, outcomes in counted.items()
        for o in outcomes
        for part in o.parts
        if part.ours is not None
    ]


def _host_row(h: HostTime) -> list[str]:
    limit = "memory" if h.max_num_seqs is None else f"{h.max_num_seqs:g} sequences"
    alone = "" if h.kernels_alone is None else f"{h.kernels_alone:.3f}"
    sequence = "" if h.per_sequence_s is None else f"{1e6 * h.per_sequence_s:.3g}"
    whole = "" if h.per_pass_s is None else f"{1e3 * h.per_pass_s:.3g}"
    return [h.claim, h.label, limit, f"{h.paper:.3f}", alone, sequence, whole]


def _flag(holds: bool | None) -> str:
    return {True: "yes", False: "no", None: ""}[holds]


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _loop_rows() -> list[list[str]]:
    """What vLLM measured before and after it fused its experts, beside what the two ways to run experts predict."""
    m = loop_measurement()
    model, gpu, batch = published_shapes()["mixtral-8x7b"].architecture, find_gpu(m.gpu), np.array(m.batch)

    def seconds(execution: str) -> FloatArray:
        source = with_moe_execution(Silicon(gpu), execution)
        context = m.prompt_tokens + m.output_tokens / 2
        decode_s = source.decode_s(model, m.gpus, batch, context)
        return source.prefill_s(model, m.gpus, batch, m.prompt_tokens) + (m.output_tokens - 1.0) * decode_s

    looped_s, grouped_s, fused_s = (seconds(name) for name in (ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED))
    loop, fused = np.array(m.all_experts_s), np.array(m.fused_s)
    columns = (loop, looped_s, looped_s / loop, grouped_s, grouped_s / loop, loop / fused, looped_s / fused_s)
    digits = (3, 3, 2, 3, 2, 2, 2)
    return [
        [f"{b:g}", *(f"{value:.{n}f}" for value, n in zip(values, digits, strict=True))]
        for b, *values in zip(m.batch, *columns, strict=True)
    ]


def _numbers(world: Outcome | Elsewhere) -> tuple[float | None, ...]:
    return world.ours if isinstance(world, Elsewhere) else tuple(p.ours for p in world.parts)


def _first(world: Elsewhere) -> float:
    value = world.ours[0]
    assert value is not None
    return value


def _least_size(world: Elsewhere) -> float:
    return min(v for v in world.ours if v is not None)


def _range(values: Sequence[float | None]) -> str:
    known = [v for v in values if v is not None]
    low, high = f"{min(known):.2f}", f"{max(known):.2f}"
    return low if low == high else f"{low} to {high}"


def _names(ids: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in ids) if ids else "none"


def _where(held: dict[str, list[str]], ids: Sequence[str]) -> str:
    """The settings under which each of some claims holds, in sentences."""
    told: list[str] = []
    for name in ids:
        where = [f"*{setting}*" for setting, claims in held.items() if name in claims]
        told.append(f"`{name}` holds with {', '.join(where)}." if where else f"`{name}` holds in no setting.")
    return " ".join(told)


def _passes(hosts: Sequence[HostTime]) -> str:
    alone = [h for h in hosts if h.max_num_seqs is None]
    count = sum(h.per_pass_s is not None for h in alone)
    return f"{count} of {len(alone)}" if count else "none"


def _budget_where(world: World, part: Part) -> float:
    """The base's budget at which a ratio of FLOPs falls to its printed value."""
    assert part.paper is not None
    low, high = 1e20, 1e24
    for _ in range(60):
        middle = (low * high) ** 0.5
        above = flops_ratio_at_equal_loss(world, replace(part, budgets_flops=(middle,)))[0] > part.paper
        low, high = (middle, high) if above else (low, middle)
    return high


def _batch(world: World, experts: float) -> float:
    """Concurrent requests of the model at E = 4's loss and 5.15e21 FLOPs."""
    n = world.at_base_loss(5.15e21, experts, 4.0).n_params[0]
    return float(world.costs.serving(n, np.array([experts])).batch[0])


def _error(found: dict[str, Outcome], claim: str, part: int) -> str:
    error = found[claim].parts[part].rel_error
    assert error is not None
    return f"{abs(error):.0%}"


def _ours(found: dict[str, Outcome], claim: str, part: int) -> float:
    value = found[claim].parts[part].ours
    assert value is not None
    return value


def independent(laws: Sequence[Law], found: Found) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under several laws, the paper's own first, all asked about the paper's models."""
    verdicts = {
        conclusion: [_conclusion(own, ids) for own in found.values()] for conclusion, ids in CONCLUSIONS.items()
    }
    held = ["claims within tolerance, of 27", *(str(summary(list(own.values()))["hold"]) for own in found.values())]
    inputs = sorted({o.claim.id for own in found.values() for o in own.values() if o.role == "input"} & set(CLAIMS))
    alike = [{"no" in told, "yes" in told} for told in verdicts.values()]
    _, *fitted = laws
    most = max(law.max_experts for law in fitted if law.max_experts is not None)
    _, expansion = model_of(fitted[0].family, 1e9, most)
    lost = {row[1]: row[3] for row in _turned(found) if row[0] == TURNED[0] and row[3]}
    return {
        "conclusions": table(("conclusion of the paper", *found), [*([c, *v] for c, v in verdicts.items()), held]),
        "conclusions-count": str(len(verdicts)),
        "under-all": str(sum("yes" in told and "no" not in told for told in verdicts.values())),
        "under-some": str(sum(both == {True} for both in alike)),
        "under-none": str(sum("yes" not in told for told in verdicts.values())),
        "inputs": _names(inputs),
        "in-size": "; ".join(f"{law} {_names([n for n in CLAIMS if own[n].holds])}" for law, own in found.items()),
        "lost-256": "; ".join(f"{law} {_names(ids.split())}" for law, ids in lost.items()),
        "largest": f"{fitted[0].fit_range['n_params'][1] / 1e9:.1f}B",
        "longest": f"{fitted[0].fit_range['tokens'][1] / 1e9:.0f}B",
        "most-experts": f"{experts_at(find_family('yun2024'), expansion):.0f}",
        "expansion": f"{most:g}",
    }


Found = dict[str, dict[str, Outcome]]  # outcomes by law and claim


def _conclusion(own: Mapping[str, Outcome], ids: Sequence[str]) -> str:
    """Whether the trends of a conclusion's claims hold under a law (of a claim without one: its size); input if all are."""
    told = [
        o.magnitude_holds if o.direction_holds is None else o.direction_holds
        for o in (own[name] for name in ids)
        if o.role != "input"
    ]
    return ("yes" if all(told) else "no") if told else "input"


def _turned(found: Found) -> list[list[str]]:
    """For some settings of the server and each law, the claims whose trend is another than in the base case."""
    rows: list[list[str]] = []
    for setting in (s for s in settings() if s.name in TURNED):
        for law, own in found.items():
            varied = [o for o in own.values() if o.sensitivity and o.role != "input"]
            now = {o.claim.id: under(o, setting).direction_holds for o in varied}
            gained = [o.claim.id for o in varied if now[o.claim.id] is True and o.direction_holds is not True]
            lost = [o.claim.id for o in varied if now[o.claim.id] is not True and o.direction_holds is True]
            rows.append([setting.name, law, " ".join(gained), " ".join(lost)])
    return rows


if __name__ == "__main__":
    main()

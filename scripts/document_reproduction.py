"""Compute the tables of docs/reproduction.md and docs/independent.md: the paper's claims under the recovered law, and under other people's runs.

python scripts/document_reproduction.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.latency import ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED, with_moe_execution
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.coordinates import experts_at, model_of
from moescale.models.family import find_family
from moescale.models.published import published_shapes
from moescale.options.serving import DEFAULT_GPU, DEFAULT_TRAFFIC
from moescale.planning.candidate import Costs
from moescale.reproduction import Outcome, find_claim, host_times, reproduce, summary
from moescale.reproduction.claims import Part, loop_measurement, settings
from moescale.reproduction.evaluate import Elsewhere, HostTime
from moescale.reproduction.page import counts, legend, reasons, sensitivity_section
from moescale.reproduction.quantities import flops_ratio_at_equal_loss
from moescale.reproduction.series import world_of
from moescale.reproduction.tables import host_table, outcome_table, printed, quantity, under, verdict
from moescale.reproduction.world import World, as_in_the_paper
from moescale.scaling_laws import Law, find_law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from pages import filled, table, write

# The paper's own law, then those of other people's runs.
LAWS = ("yun2024-recovered", "yun2024-joint", "moescale2026-joint", "ludziejewski2025")
TURNED = ("max_num_seqs 256", "all experts", "all experts, 256")  # settings under which directions are told again
# The settings of the summary; the whole table is below it.
SUMMARISED = (
    "max_num_seqs 256, host of mid 2024",
    "all experts",
    "all experts, 256",
    "all experts, host of mid 2024",
    "all experts, 256, host of mid 2024",
    "all experts, 256, eager 50 µs",
    "grouped, top_k = E",
    "grouped, top_k = E, 256, eager 50 µs",
)
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
    "An over-trained model with more experts serves more cheaply at equal loss": (
        "cost.e8.dense",
        "cost.e8.e4",
        "cost.e16.e4",
    ),
    "32 experts cost more to serve than 8 or 16 at equal loss": ("cost.many",),
    "It is much smaller than the base": ("size.comment",),
    "Its share of its own optimum hardly depends on the budget": ("ratio.constant",),
    "At equal cost models with more experts are smaller than the E = 4 optimum": ("size.bounded.e4",),
    "At the dense optimum's cost E = 8 has 84% of its activated size, other counts 37 to 125%": ("size.bounded.dense",),
    "At equal cost it saves training budget": ("budget.saved", "flops.e4.match8"),
    "Train models well below their own optimum (32 experts at 30% for quality, 16 at 16% for cost)": ("recommend",),
    "Utilisation varies tenfold with the batch": ("mfu",),
}
CLAIMS = [name for ids in CONCLUSIONS.values() for name in ids]


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
    hosts = host_times(own, deployment, latency)
    world = world_of(own, Costs(own.family, latency, deployment, None))
    write("reproduction.md", filled("reproduction.md", reproduction(outcomes[0], hosts, world)))
    write("independent.md", filled("independent.md", independent(laws, outcomes)))


def reproduction(outcomes: Sequence[Outcome], hosts: Sequence[HostTime], world: World) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under the recovered law."""
    times = sorted(h.per_sequence_s for h in hosts if h.per_sequence_s)
    return {
        "counts": counts(outcomes),
        **_summary(outcomes, world),
        "claims": outcome_table(outcomes, latency="silicon"),
        "legend": legend(outcomes),
        "why": reasons(outcomes),
        "sensitivity": sensitivity_section(outcomes),
        **_loop_check(),
        "hosts": host_table(hosts),
        "host-low": f"{1e6 * times[0]:.0f}",
        "host-high": f"{1e6 * times[-1]:.0f}",
        "passes": _passes(hosts),
    }


def _summary(outcomes: Sequence[Outcome], world: World) -> dict[str, str | list[str]]:
    """What was found, from the numbers of this run alone."""
    found = {o.claim.id: o for o in outcomes}
    judged = [o for o in outcomes if o.sensitivity and o.holds is not None]
    held = {s.name: [o.claim.id for o in judged if under(o, s).holds] for s in settings()}
    base = [o.claim.id for o in judged if o.holds]
    ever = [o.claim.id for o in judged if o.holds or any(o.claim.id in ids for ids in held.values())]
    experts = [s for s in settings() if s.moe_execution == ALL_EXPERTS]
    counted = [len(held[s.name]) for s in experts]
    most_with = [f"*{s.name}*" for s, n in zip(experts, counted, strict=True) if n == max(counted)]
    sizes = "size.bounded.e4"
    return {
        "error-low": _error(found, "flops.16v4", 0),
        "error-high": _error(found, "flops.16v4", 1),
        "reached": f"{_budget_where(world, find_claim('flops.16v4').parts[1]):.2g}",
        "recommended": f"{_ours(found, 'recommend', 1):.1%}",
        "judged": str(len(judged)),
        "base": f"{len(base)} {'holds' if len(base) == 1 else 'hold'}",
        "roofline": str(sum(o.other_latencies[0].holds is True for o in judged)),
        "batch-8": f"{_batch(world, 8.0):,.0f}",
        "batch-32": f"{_batch(world, 32.0):,.0f}",
        "settings": _summary_table(found, judged),
        "held": f"{min(counted)} to {max(counted)}",
        "settings-count": str(len(experts)),
        "dearest": str(sum(under(found["cost.many"], s).direction_holds is True for s in experts)),
        "most-with": "; ".join(most_with),
        "sizes": _range([_least_size(under(found[sizes], s)) for s in experts]),
        "fused-size": f"{_ours(found, sizes, 0):.2f}",
        "paper-size": f"{find_claim(sizes).parts[0].paper:g}",
        "where": _where(held, SIZES),
        "ever": str(len(ever)),
        "never": _names([o.claim.id for o in judged if o.claim.id not in ever]),
    }


def _summary_table(found: dict[str, Outcome], judged: Sequence[Outcome]) -> list[str]:
    """A row for fused experts as in the table of claims, then one a setting that SUMMARISED names."""
    chosen = [next(s for s in settings() if s.name == name) for name in SUMMARISED]
    worlds = [
        ("fused experts", found),
        *((s.name, {n: under(o, s) for n, o in found.items() if o.sensitivity}) for s in chosen),
    ]
    paper = [p.paper for n in COST_RATIOS for p in find_claim(n).parts]
    sizes = find_claim("size.bounded.e4").parts
    rows = [["the paper", "1", "> 1", f"{sizes[0].paper}, {sizes[1].paper}", ""]]
    for name, world in worlds:
        ratios = [v for n in COST_RATIOS for v in _numbers(world[n])]
        off = [v / p for v, p in zip(ratios, paper, strict=True) if v is not None and p is not None]
        ends = ", ".join(quantity(v, "1") for v in _numbers(world["size.bounded.e4"]))
        ids = [o.claim.id for o in judged if world[o.claim.id].holds]
        rows.append([name, _range(off), _range(_numbers(world["cost.many"])), ends, f"{len(ids)}: {_names(ids)}"])
    head = ("setting", "ratios of costs over the printed ones", "E=32 over the dearer of E=8, 16")
    return table((*head, "least and most size at E=4's cost", "hold"), rows)


def _loop_check() -> dict[str, str | list[str]]:
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
    rows = [
        [f"{b:g}", *(f"{value:.{n}f}" for value, n in zip(values, digits, strict=True))]
        for b, *values in zip(m.batch, *columns, strict=True)
    ]
    head = ("batch", "loop, measured", "predicted", "over measured", "as grouped, top_k = E", "over measured")
    share = looped_s / loop
    return {
        "loop": table((*head, "loop over fused, measured", "predicted"), rows),
        "loop-low": f"{share.min():.2f}",
        "loop-high": f"{share.max():.2f}",
    }


def _numbers(world: Outcome | Elsewhere) -> tuple[float | None, ...]:
    return world.ours if isinstance(world, Elsewhere) else tuple(p.ours for p in world.parts)


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


def independent(laws: Sequence[Law], outcomes: Sequence[Sequence[Outcome]]) -> dict[str, str | list[str]]:
    """The parts of the page of the claims under several laws, the paper's own first, all asked about the paper's models."""
    found = {law.name: {o.claim.id: o for o in own} for law, own in zip(laws, outcomes, strict=True)}
    told = ("hold", "fail", "fail in size only", "inputs", "not computable")
    rows = [[law.name, *(str(summary(own)[key]) for key in told)] for law, own in zip(laws, outcomes, strict=True)]
    conclusions: list[str] = []
    for conclusion, ids in CONCLUSIONS.items():
        numbers = table(("claim", "number", "paper", *found), (row for name in ids for row in _rows(found, name)))
        verdicts = [f"- `{n}`: {'; '.join(f'{law} {_told(own[n])}' for law, own in found.items())}." for n in ids]
        conclusions += [f"**{conclusion}.**", "", *numbers, "", *verdicts, ""]
    every = [o.claim.id for o in outcomes[0]]
    rest = [row for name in every if name not in CLAIMS for row in _rows(found, name)]
    verdicts = [
        [f"`{name}`", *(verdict(own[name].holds, own[name].role, own[name].claim.cannot) for own in found.values())]
        for name in every
    ]
    _, *fitted = laws
    most = max(law.max_experts for law in fitted if law.max_experts is not None)
    _, expansion = model_of(fitted[0].family, 1e9, most)
    return {
        "short-answer": short_answer(found),
        "laws": table(("law", "hold", "fail", "of these in size only", "inputs", "not computable"), rows),
        "conclusions": conclusions,
        "rest": table(("claim", "number", "paper", *found), rest),
        "verdicts": table(("claim", *found), verdicts),
        "turned": table(("served with", "law", "now in the claim's direction", "no longer"), _turned(found)),
        "largest": f"{fitted[0].fit_range['n_params'][1] / 1e9:.1f}B",
        "longest": f"{fitted[0].fit_range['tokens'][1] / 1e9:.0f}B",
        "most-experts": f"{experts_at(find_family('yun2024'), expansion):.0f}",
        "expansion": f"{most:g}",
    }


Found = dict[str, dict[str, Outcome]]  # outcomes by law and claim


def short_answer(found: Found) -> list[str]:
    """The conclusions sorted by the laws under which their directions hold."""
    sorted_: dict[str, list[str]] = {"all": [], "some": [], "none": []}
    for conclusion, ids in CONCLUSIONS.items():
        judged = {
            law: [
                o.magnitude_holds if o.direction_holds is None else o.direction_holds
                for o in (own[name] for name in ids)
                if o.role != "input"
            ]
            for law, own in found.items()
        }
        holds = [law for law, told in judged.items() if told and all(told)]
        fails = [law for law, told in judged.items() if told and not all(told)]
        which = "some" if holds and fails else "all" if holds else "none"
        sorted_[which].append(f"*{conclusion}*" + (f" (not under {', '.join(fails)})" if which == "some" else ""))
    said = {"all": "under all laws", "some": "under some laws", "none": "under none"}
    inputs = sorted({o.claim.id for own in found.values() for o in own.values() if o.role == "input"} & set(CLAIMS))
    return [
        "A conclusion holds under a law where its direction does (where it has none: its size). A law is not asked about "
        f"claims that it was made from or cannot but agree with ({_names(inputs)}).",
        "",
        *(
            f"- {len(which)} of {len(CONCLUSIONS)} hold {said[key]}: {'; '.join(which)}."
            for key, which in sorted_.items()
            if which
        ),
        "- In size too, so within the tolerance: "
        + "; ".join(f"{law} {_names([n for n in CLAIMS if own[n].holds])}" for law, own in found.items())
        + ".",
    ]


def _turned(found: Found) -> list[list[str]]:
    """For some settings of the server and each law, the claims whose direction is another than with the base's."""
    rows: list[list[str]] = []
    for setting in (s for s in settings() if s.name in TURNED):
        for law, own in found.items():
            varied = [o for o in own.values() if o.sensitivity and o.role != "input"]
            now = {o.claim.id: under(o, setting).direction_holds for o in varied}
            gained = [o.claim.id for o in varied if now[o.claim.id] is True and o.direction_holds is not True]
            lost = [o.claim.id for o in varied if now[o.claim.id] is not True and o.direction_holds is True]
            rows.append([setting.name, law, _names(gained), _names(lost)])
    return rows


def _rows(found: Found, name: str) -> list[list[str]]:
    """A row for each number of a claim: what the paper prints, and each law's with the interval of 90% of its draws."""
    outcomes = [own[name] for own in found.values()]
    first, unit, rows = outcomes[0], outcomes[0].claim.unit, list[list[str]]()
    for i, part in enumerate(first.parts):
        label = part.label if part.judged else f"({part.label})"
        ours = [_with_span(o.parts[i].ours, o.parts[i].interval, unit) for o in outcomes]
        rows.append([f"`{name}`" if i == 0 else "", label, printed(first, part), *ours])
    return rows


def _with_span(value: float | None, span: tuple[float, float] | None, unit: str) -> str:
    text = quantity(value, unit)
    return text if span is None else f"{text} ({' to '.join(quantity(v, unit) for v in span)})"


def _told(outcome: Outcome) -> str:
    """What becomes of a claim's direction and size, in words."""
    if outcome.role == "input":
        return "made from it"
    share = "" if outcome.direction_share is None else f" ({outcome.direction_share:.0%} of draws)"
    direction = {True: f"direction holds{share}", False: f"direction fails{share}", None: ""}
    size = {True: "size within tolerance", False: "size beyond tolerance", None: ""}[outcome.magnitude_holds]
    return ", ".join(text for text in (direction[outcome.direction_holds], size) if text) or "no number"


if __name__ == "__main__":
    main()

"""Write docs/reproduction.md and docs/independent.md: the paper's claims under the recovered law, and under other people's runs.

python scripts/document_reproduction.py
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from moescale.cli.options import DEFAULT_GPU, DEFAULT_LAW, DEFAULT_TRAFFIC
from moescale.hardware.gpus import find_gpu
from moescale.hardware.prices import price
from moescale.io.files import write_atomically
from moescale.latency import ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED, with_moe_execution
from moescale.latency.roofline import Roofline
from moescale.latency.silicon import Silicon
from moescale.models.published import published_shapes
from moescale.planning.candidate import Costs
from moescale.planning.plan import SECOND_LAWS
from moescale.reproduction import Outcome, find_claim, reproduce, summary
from moescale.reproduction.claims import Part, loop_measurement, settings
from moescale.reproduction.evaluate import Elsewhere, HostTime
from moescale.reproduction.page import counts, figure_section, legend, reasons, sensitivity_section
from moescale.reproduction.publish import draw, hosts_of
from moescale.reproduction.quantities import flops_ratio_at_equal_loss
from moescale.reproduction.series import world_of
from moescale.reproduction.tables import host_table, outcome_table, printed, quantity, under, verdict
from moescale.reproduction.world import World, as_in_the_paper
from moescale.scaling_laws import Law, find_law
from moescale.serving.deployment import Deployment
from moescale.typing import FloatArray
from moescale.views.figures import save_figure

DOCS = Path("docs")
SECOND_LAW, THIRD_LAW = SECOND_LAWS
FIGURES = "figures/reproduction"  # within the docs
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


def main() -> None:
    """Evaluate, draw, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=DOCS)
    docs: Path = parser.parse_args().output
    gpu = find_gpu(DEFAULT_GPU)
    prompt, output = DEFAULT_TRAFFIC
    usd = price(gpu.name).usd_per_gpu_hour
    deployment = as_in_the_paper(Deployment(gpu=gpu, usd_per_gpu_hour=usd, prompt_tokens=prompt, output_tokens=output))
    latency, roofline = Silicon(gpu), Roofline(gpu)
    own, other = find_law(DEFAULT_LAW), find_law(SECOND_LAW)
    (docs / FIGURES).mkdir(parents=True, exist_ok=True)
    for name, (figure, _) in draw(own, Costs(own.family, latency, deployment, None)).items():
        save_figure(figure, docs / FIGURES / f"{name}.svg")
    recovered = reproduce(own, deployment, latency, (roofline,))
    joint = reproduce(other, deployment, latency, (roofline,))
    third = reproduce(find_law(THIRD_LAW), deployment, latency)
    hosts = hosts_of(own, deployment, latency)
    world = world_of(own, Costs(own.family, latency, deployment, None))
    write_atomically(docs / "reproduction.md", reproduction(recovered, hosts, world))
    write_atomically(docs / "independent.md", independent(own, recovered, other, joint, third))


def reproduction(outcomes: Sequence[Outcome], hosts: Sequence[HostTime], world: World) -> str:
    """The page of the claims under the recovered law."""
    times = sorted(h.per_sequence_s for h in hosts if h.per_sequence_s)
    ends = [f"{1e6 * times[0]:.0f}", f"{1e6 * times[-1]:.0f}"]
    return "\n".join(
        [
            "# The paper's claims, computed again",
            "",
            "Written by `python scripts/document_reproduction.py`; do not edit. `moescale reproduce` prints the same, for any",
            "law with experts and any GPU; `-o DIR` adds every figure as SVG, PDF, PNG and its data as CSV.",
            "",
            "The authors of arXiv 2404.02852 published neither coefficients nor code nor runs. What follows rests on the",
            "coefficients [recovered](recovery.md) from numbers that they print; those numbers are inputs here and confirm",
            "nothing. Where the paper disagrees with itself, [errata](errata.md) says what was chosen. Which conclusions survive",
            "on other people's runs is on [a page of its own](independent.md).",
            "",
            *counts(outcomes),
            "",
            "## Summary",
            "",
            *_summary(outcomes, world),
            "",
            "## Every claim",
            "",
            *outcome_table(outcomes, latency="silicon"),
            "",
            *legend(outcomes),
            "",
            "A range may leave out the value beside it: the family's members are drawn with E_max from 16 to 4000 and not around",
            "the best fit, whose E_max is 174 ([recovery](recovery.md#the-coefficients-and-how-little-is-known-of-some)).",
            "",
            "## Why",
            "",
            *reasons(outcomes),
            "",
            "## Sensitivity to serving",
            "",
            *sensitivity_section(outcomes),
            "",
            "## The loop over experts, predicted and measured",
            "",
            *_loop_check(),
            "",
            "## The host's time that would bring the printed cost ratios",
            "",
            "Early vLLM left the GPU idle while the host scheduled and sampled. How much time beside the kernels, fused experts, would",
            "make our ratio the printed one? A sensitivity, never a setting.",
            "",
            *host_table(hosts),
            "",
            f"No single time does it for all: it takes {ends[0]} to {ends[1]} microseconds a sequence. Published figures of that",
            "era: output processing alone took 3.4 ms for 32 sequences and 0.2 ms for one, about 103 microseconds a sequence",
            "(vLLM issue 6913, July 2024); the GPU idled 5 to 13 ms a decoding pass (issue 6854); of the time of an 8B model on",
            "an H100, 33% was the HTTP server and 29% scheduling (vLLM's post on v0.6.0, September 2024); 21 microseconds a",
            "sequence after that release (issue 10634). With time a pass alone, memory as the only limit, "
            f"{_passes(hosts)} of the ratios are reached: large batches share it.",
            "",
            "## Figures",
            "",
            "Drawn with the recovered law, silicon latency, fused experts and 8 x A100-SXM-40GB.",
            "",
            *figure_section(FIGURES),
        ]
    )


def _summary(outcomes: Sequence[Outcome], world: World) -> list[str]:
    """What was found, from the numbers of this run alone."""
    found = {o.claim.id: o for o in outcomes}
    judged = [o for o in outcomes if o.sensitivity and o.holds is not None]
    held = {s.name: [o.claim.id for o in judged if under(o, s).holds] for s in settings()}
    base = [o.claim.id for o in judged if o.holds]
    ever = [o.claim.id for o in judged if o.holds or any(o.claim.id in ids for ids in held.values())]
    never = [o.claim.id for o in judged if o.claim.id not in ever]
    experts = [s for s in settings() if s.moe_execution == ALL_EXPERTS]
    best = max(len(held[s.name]) for s in experts)
    dearest = sum(under(found["cost.many"], s).direction_holds is True for s in experts)
    sizes = [_least_size(under(found["size.bounded.e4"], s)) for s in experts]
    reached = _budget_where(world, find_claim("flops.16v4").parts[1])
    batches = [_batch(world, e) for e in (8.0, 32.0)]
    roofline = sum(o.other_latencies[0].holds is True for o in judged)
    return [
        f"- The law: FLOPs at equal loss are {_error(found, 'flops.16v4', 0)} off at the lowest budget that the paper names and "
        f"{_error(found, 'flops.16v4', 1)} at the highest. Ours fall to",
        f"  its 23.7% at {reached:.2g} FLOPs; the paper does not say at which. The size of 16 experts for cost (16% of their optimum)",
        f"  comes out at {_ours(found, 'recommend', 1):.1%}.",
        f"- The cost: of the {len(judged)} predictions that involve it {len(base)} {_hold(base)} with the fused experts of today's servers"
        f" ({roofline} with the",
        f"  roofline, so the latency source is not the reason). Memory then holds {batches[0]:,.0f} (E = 8) to {batches[1]:,.0f} (E = 32)"
        " requests of the",
        "  models at E = 4's loss, 5.15e21 FLOPs. What other servers of the time would change:",
        "",
        *_summary_table(found, judged),
        "",
        f"- With every expert on every token, as vLLM ran Mixtral until 0.2.7, {min(len(held[s.name]) for s in experts)} to {best}"
        f" claims hold in {len(experts)} settings, and 32 experts are",
        f"  dearer than 8 and 16 in {dearest} of them. Most hold with {'; '.join(f'*{s.name}*' for s in experts if len(held[s.name]) == best)}.",
        f"- Sizes at equal cost: the least activated size at E = 4's cost is {_range(sizes)} with every expert on every token,"
        f" {_ours(found, 'size.bounded.e4', 0):.2f} with",
        f"  fused experts, and {find_claim('size.bounded.e4').parts[0].paper:g} in the paper. {_where(held, SIZES)}",
        f"- No setting makes every claim hold. {len(ever)} of {len(judged)} hold in one setting or another; in none: {_names(never)}.",
        "- The paper names vLLM and 8 x A100 40 GB, but no version, no limit on requests, and nothing of CUDA graphs. Nothing here was",
        "  fitted to its numbers, and no setting is confirmed by them. The loop over experts and the host of the time are likely",
        "  reasons: each raises the ratios of costs.",
    ]


def _summary_table(found: dict[str, Outcome], judged: Sequence[Outcome]) -> list[str]:
    """A row for fused experts as in the table of claims, then one a setting that SUMMARISED names."""
    chosen = [next(s for s in settings() if s.name == name) for name in SUMMARISED]
    worlds = [
        ("fused experts", found),
        *((s.name, {n: under(o, s) for n, o in found.items() if o.sensitivity}) for s in chosen),
    ]
    paper = [p.paper for n in COST_RATIOS for p in find_claim(n).parts]
    sizes = find_claim("size.bounded.e4").parts
    lines = [
        "| setting | ratios of costs over the printed ones | E=32 over the dearer of E=8, 16 | least and most size at E=4's cost | hold |",
        "|---|---|---|---|---|",
        f"| the paper | 1 | > 1 | {sizes[0].paper}, {sizes[1].paper} | |",
    ]
    for name, world in worlds:
        ratios = [v for n in COST_RATIOS for v in _numbers(world[n])]
        off = [v / p for v, p in zip(ratios, paper, strict=True) if v is not None and p is not None]
        least, most = (quantity(v, "1") for v in _numbers(world["size.bounded.e4"]))
        ids = [o.claim.id for o in judged if world[o.claim.id].holds]
        lines.append(
            f"| {name} | {_range(off)} | {_range(_numbers(world['cost.many']))} | {least}, {most} | {len(ids)}: {_names(ids)} |"
        )
    return lines


def _loop_check() -> list[str]:
    """What vLLM measured before and after it fused its experts, beside what the two ways to run experts predict."""
    m = loop_measurement()
    model, gpu, batch = published_shapes()["mixtral-8x7b"].architecture, find_gpu(m.gpu), np.array(m.batch)
    silicon = Silicon(gpu)

    def seconds(execution: str) -> FloatArray:
        source = with_moe_execution(silicon, execution)
        context = m.prompt_tokens + m.output_tokens / 2
        decode_s = source.decode_s(model, m.gpus, batch, context)
        return source.prefill_s(model, m.gpus, batch, m.prompt_tokens) + (m.output_tokens - 1.0) * decode_s

    looped_s, grouped_s, fused_s = (seconds(name) for name in (ALL_EXPERTS, ALL_EXPERTS_GROUPED, FUSED))
    share = looped_s / np.array(m.all_experts_s)
    lines = [
        f"{m.source} ({m.date}): prompts of {m.prompt_tokens:g} tokens, {m.output_tokens:g} output tokens, seconds of a batch. Predicted is",
        f"silicon on {m.gpus} x {gpu.name}; the last columns say how much longer the loop takes than fused experts. A check; nothing",
        "was fitted to it.",
        "",
        "| batch | loop, measured | predicted | over measured | as grouped, top_k = E | over measured | loop over fused, measured | predicted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for i, b in enumerate(m.batch):
        loop, fused = m.all_experts_s[i], m.fused_s[i]
        lines.append(
            f"| {b:g} | {loop:.3f} | {looped_s[i]:.3f} | {share[i]:.2f} | {grouped_s[i]:.3f} | {grouped_s[i] / loop:.2f} "
            f"| {loop / fused:.2f} | {looped_s[i] / fused_s[i]:.2f} |"
        )
    return [
        *lines,
        "",
        f"The loop is predicted at {share.min():.2f} to {share.max():.2f} of what was measured, at every batch: kernels of today and an idle host",
        "against a server of January 2024. A common factor cancels in ratios of models that both have experts, and not in those to",
        "a dense model. The loop over fused experts is judged less well (last columns): the tables time later fused kernels than",
        "those of that month, which were tuned for this model later (pull request 3389, March 2024).",
    ]


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


def _hold(ids: Sequence[str]) -> str:
    return "holds" if len(ids) == 1 else "hold"


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


def independent(
    own: Law, recovered: Sequence[Outcome], other: Law, joint: Sequence[Outcome], third: Sequence[Outcome]
) -> str:
    """The page of the claims under two laws of other people's runs; `joint` is of the paper's form."""
    first, second, last = ({o.claim.id: o for o in found} for found in (recovered, joint, third))
    lines = [
        "# Which conclusions survive on independent data?",
        "",
        "Written by `python scripts/document_reproduction.py`; do not edit. `moescale reproduce --law yun2024-joint` prints it.",
        "",
        f"The same claims under `{other.name}`: equation 4 {other.source.removeprefix('equation 4 ')}. These are runs of other",
        f"people on {other.family.dataset} (the paper: {own.family.dataset}), top-{other.family.top_k} with experts in every layer (the paper: top-{own.family.top_k}, every other",
        f"layer), with another tokenizer; N counts both embeddings, and FLOPs follow the `{other.family.convention}` convention. No number of the",
        "paper went into them, so nothing is an input here but the form of the law. Absolute sizes and losses are not",
        "comparable; orders, trends and ratios are. Serving is the same in all: silicon latency with fused experts,",
        "8 x A100-SXM-40GB, ShareGPT.",
        "",
        "In short:",
        "",
        *short_answer(second, last),
        "",
        "| law | hold | fail | of these in size only | inputs | not computable |",
        "|---|---|---|---|---|---|",
    ]
    for law, found in ((own, recovered), (other, joint), (find_law(THIRD_LAW), third)):
        told = summary(found)
        lines.append(
            f"| {law.name} | {told['hold']} | {told['fail']} | {told['fail in size only']} | {told['inputs']} | "
            f"{told['not computable']} |"
        )
    lines += ["", "## Conclusion by conclusion", ""]
    for conclusion, ids in CONCLUSIONS.items():
        lines += [
            f"**{conclusion}.**",
            "",
            "| claim | number | paper | recovered | joint | 90% of draws | moescale2026 |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [row for name in ids for row in _rows(first[name], second[name], last[name])]
        lines += ["", _survives([first[n] for n in ids], [second[n] for n in ids], [last[n] for n in ids]), ""]
    lines += [
        "## Every claim",
        "",
        *outcome_table(joint, latency="silicon"),
        "",
        "The tolerances are those of [the reproduction](reproduction.md).",
        "",
        "## What to keep in mind",
        "",
        "- Of the three laws fitted to these runs equation 4 extrapolates worst, and moescale2026 best: [their",
        "  comparison](moescale2026.md). The column `moescale2026` is therefore a second opinion from the same data. It lets the",
        "  gain of experts grow with tokens for each parameter, where the form of the paper has none of that.",
        f"- The joint runs reach {other.fit_range['n_params'][1] / 1e9:.1f}B parameters and {other.fit_range['tokens'][1] / 1e9:.0f}B tokens; the budgets of the claims are beyond both laws' runs.",
        "",
    ]
    return "\n".join(lines)


def short_answer(second: dict[str, Outcome], last: dict[str, Outcome]) -> list[str]:
    """The conclusions sorted by what becomes of their directions under the two laws of the joint runs."""
    both, one, none = "survive", "are judged differently by the two laws", "do not survive"
    sorted_: dict[str, list[str]] = {both: [], none: [], one: []}
    for conclusion, ids in CONCLUSIONS.items():
        judged = [o for name in ids for o in (second[name], last[name]) if o.role != "input"]
        told = [o.magnitude_holds if o.direction_holds is None else o.direction_holds for o in judged]
        sorted_[both if all(told) else one if any(told) else none].append(conclusion)
    return [
        "A conclusion survives where its direction does (where it has none: its size) under both laws of the joint runs.",
        "",
        *(
            f"- {len(found)} of {len(CONCLUSIONS)} {which}: {'; '.join(f'*{c}*' for c in found)}."
            for which, found in sorted_.items()
            if found
        ),
        "- Sizes rarely survive: the numbers and their tolerances are below.",
        "- With every expert on every token in place of fused experts"
        " ([what that is](reproduction.md#every-expert-on-every-token)) these directions change:",
        f"  {'; '.join(_turned(second, 'joint') + _turned(last, 'moescale2026')) or 'none'}.",
    ]


def _turned(found: dict[str, Outcome], law: str) -> list[str]:
    """The claims whose direction is another with every expert on every token."""
    (looped,) = (s for s in settings() if s.name == "all experts")
    turned: list[str] = []
    for name, o in found.items():
        if o.sensitivity and o.role != "input":
            now = under(o, looped).direction_holds
            if now != o.direction_holds:
                turned.append(f"`{name}` {'holds' if now else 'fails'} ({law})")
    return turned


def _rows(first: Outcome, second: Outcome, last: Outcome) -> list[str]:
    rows: list[str] = []
    for i, (a, b) in enumerate(zip(first.parts, second.parts, strict=True)):
        unit = first.claim.unit
        span = "" if b.interval is None else " to ".join(quantity(v, unit) for v in b.interval)
        name = f"`{first.claim.id}`" if i == 0 else ""
        label = a.label if a.judged else f"({a.label})"
        rows.append(
            f"| {name} | {label} | {printed(first, a)} | {quantity(a.ours, unit)} | {quantity(b.ours, unit)} | {span} | {quantity(last.parts[i].ours, unit)} |"
        )
    return rows


def _survives(first: Sequence[Outcome], second: Sequence[Outcome], last: Sequence[Outcome]) -> str:
    """What becomes of each claim's direction and size under the other laws."""
    lines: list[str] = []
    for a, b, c in zip(first, second, last, strict=True):
        told = f"- `{a.claim.id}`: recovered {verdict(a.holds, a.role)}; joint {_told(b)}; moescale2026 {_told(c)}."
        lines.append(told)
    return "\n".join(lines)


def _told(outcome: Outcome) -> str:
    """Direction and size in words."""
    if outcome.role == "input":
        return "an input of its form"
    share = "" if outcome.direction_share is None else f" ({outcome.direction_share:.0%} of draws)"
    direction = {True: f"direction survives{share}", False: f"direction does not survive{share}", None: ""}
    size = {True: "size within tolerance", False: "size beyond tolerance", None: ""}[outcome.magnitude_holds]
    return ", ".join(text for text in (direction[outcome.direction_holds], size) if text)


if __name__ == "__main__":
    main()

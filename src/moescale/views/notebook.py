"""Answers in notebooks: HTML of a plan, a fit, a law, a cost and a comparison, which IPython asks for by their types.

Formatters are registered by name, so that nothing is loaded before an answer is shown: by `import moescale` inside IPython,
and by `%load_ext moescale`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moescale.units import format_bytes, format_count, format_usd, plural
from moescale.views.tables import (
    bounded_loss_table,
    build_sentence,
    cost_table,
    fit_remarks,
    law_table,
    parameter_table,
    plan_headline,
    range_text,
)

if TYPE_CHECKING:
    from moescale.fitting.fit import Fit
    from moescale.planning.plan import Plan
    from moescale.scaling_laws import Law
    from moescale.serving.gpu_counts import Cost

# A notebook's own style holds around it; this only keeps numbers apart and figures within the cell.
STYLE = (
    "<style>.moescale table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0}"
    ".moescale th,.moescale td{padding:.15em .6em;text-align:right}.moescale caption,.moescale .text,.moescale tbody th"
    "{text-align:left}.moescale caption{font-weight:600;white-space:nowrap}.moescale tr.chosen{font-weight:600}"
    ".moescale svg{max-width:100%;height:auto;background:#fff}.moescale .note{opacity:.7;margin:.1em 0}"
    ".moescale .unseen{position:absolute;clip-path:inset(50%);width:1px;height:1px;overflow:hidden}</style>"
)


def plan_html(plan: Plan) -> str:
    """The recommendation, why, the models of equal loss and, where matplotlib is there, the curves."""
    from moescale.views.html.markup import html_table, tag

    best = plan.recommendation
    headline = plan_headline(plan)
    parts: list[object] = [
        tag("p", tag("strong", headline[0].upper() + headline[1:] + ".")),
        tag("p", best.why),
        tag("p", build_sentence(best.architecture)),
        html_table(bounded_loss_table(plan), emphasised=best.model.experts),
    ]
    if importlib.util.find_spec("matplotlib") is not None:
        from moescale.views.figures import plan_figure
        from moescale.views.html.plan import figure_text
        from moescale.views.html.svg import inline_svg

        parts.append(inline_svg(plan_figure(plan), "moescale-plan", figure_text(plan)))
    return _cell(*parts)


def fit_html(found: Fit) -> str:
    """The form, how good the fit is, and its coefficients."""
    from moescale.views.html.markup import html_table, tag

    return _cell(
        tag("p", tag("strong", found.form.title), f": {found.form.equation}"),
        tag(
            "p",
            f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, {found.starts_at_optimum} of {found.starts} starts at the "
            f"optimum; {range_text(found.fit_range, found.form)}",
        ),
        html_table(parameter_table(found.form, found.parameters, remarks=fit_remarks(found)), title="Coefficients"),
        *(tag("p", warning, class_="note") for warning in found.warnings),
    )


def law_html(law: Law) -> str:
    """The form of a law, its source and its coefficients."""
    from moescale.views.html.markup import html_table, linked, tag

    return _cell(
        tag("p", tag("strong", law.name), f": {law.form.equation}"),
        tag("p", linked(law.source)),
        html_table(law_table(law), title="Laws" if law.members else "Coefficients"),
        tag("p", f"Fitted on {range_text(law.fit_range, law.form)}.", class_="note") if law.fit_range else "",
    )


def cost_html(cost: Cost) -> str:
    """Dollars per million tokens, and each GPU count that was looked at."""
    from moescale.views.html.markup import html_table, tag

    lead = (
        f"{format_usd(cost.usd_per_mtok)} per million output tokens on {plural(cost.gpus, 'GPU')}"
        if cost.usd_per_mtok is not None
        else f"cannot be served: {cost.infeasible}"
    )
    table = cost_table(cost)
    return _cell(
        tag("p", tag("strong", lead)),
        tag(
            "p",
            f"{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
            f"{format_bytes(cost.weight_bytes)}; KV cache {format_bytes(cost.kv_bytes_per_token)} per token; latency from "
            f"{cost.latency_source}",
        ),
        html_table(table) if table.rows else "",
    )


FORMATTERS: dict[tuple[str, str], Callable[[Any], str]] = {
    ("moescale.planning.plan", "Plan"): plan_html,
    ("moescale.fitting.fit", "Fit"): fit_html,
    ("moescale.scaling_laws.law", "Law"): law_html,
    ("moescale.serving.gpu_counts", "Cost"): cost_html,
}


def load_ipython_extension(ipython: Any) -> None:
    """Teach an IPython shell how to show the answers; what `%load_ext moescale` calls."""
    formatter = ipython.display_formatter.formatters["text/html"]
    for (module, name), html in FORMATTERS.items():
        formatter.for_type_by_name(module, name, html)


def _cell(*parts: object) -> str:
    from moescale.views.html.markup import Html, joined, tag

    return tag("div", Html(STYLE), joined(*parts), class_="moescale")

"""Answers in notebooks: HTML of a plan, a fit, a law, a cost and a comparison, which IPython asks for by their types.

Formatters are registered by name, so that nothing is loaded before an answer is shown: by `import moescale` inside IPython,
and by `%load_ext moescale`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from moescale.units import format_bytes, format_count, format_usd, plural
from moescale.views.blocks import Answer, Block, Bullets, Facts, Text
from moescale.views.tables import range_text
from moescale.views.tables.decision import decision_facts, plan_headline
from moescale.views.tables.fit import fit_remarks, law_table, parameter_table
from moescale.views.tables.plan import bounded_loss_table
from moescale.views.tables.serving import cost_table

if TYPE_CHECKING:
    from moescale.fitting.fit import Fit
    from moescale.planning.plan import Plan
    from moescale.scaling_laws import Law
    from moescale.serving.gpu_counts import Cost


def plan_html(plan: Plan) -> str:
    """The recommendation, its facts, the models of equal loss and, where matplotlib is there, the curves."""
    from moescale.views.html.reports import plan_picture

    drawn = [plan_picture(plan)] if importlib.util.find_spec("matplotlib") is not None else []
    return _cell(Answer(f"{plan_headline(plan)}."), Facts(decision_facts(plan)), bounded_loss_table(plan), *drawn)


def fit_html(found: Fit) -> str:
    """The form, how good the fit is, and its coefficients."""
    quality = (
        f"{found.n_runs} runs, RMSLE {found.rmsle:.4g}, {found.starts_at_optimum} of {found.starts} starts at the "
        f"optimum; {range_text(found.fit_range, found.form)}"
    )
    table = parameter_table(found.form, found.parameters, remarks=fit_remarks(found))
    return _cell(Text(found.form.equation, lead=found.form.title), Text(quality), table, Bullets(found.warnings))


def law_html(law: Law) -> str:
    """The form of a law, its source and its coefficients."""
    fitted = [Text(f"Fitted on {range_text(law.fit_range, law.form)}.")] if law.fit_range else []
    return _cell(Text(law.form.equation, lead=law.name), Text(law.source), law_table(law), *fitted)


def cost_html(cost: Cost) -> str:
    """Dollars per million tokens, and each GPU count that was looked at."""
    lead = f"cannot be served: {cost.infeasible}"
    if cost.usd_per_mtok is not None:
        lead = f"{format_usd(cost.usd_per_mtok)} per million output tokens on {plural(cost.gpus, 'GPU')}"
    sizes = (
        f"{format_count(cost.n_params_total)} parameters, {format_count(cost.n_params_active)} active; weights "
        f"{format_bytes(cost.weight_bytes)}; KV cache {format_bytes(cost.kv_bytes_per_token)} per token; latency from "
        f"{cost.latency_source}"
    )
    return _cell(Answer(lead), Text(sizes), cost_table(cost))


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


def _cell(*blocks: Block) -> str:
    from moescale.views.html.render import cell

    return cell(blocks)

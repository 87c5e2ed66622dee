"""A plan as a page to send: one HTML file with its figure inside."""

from __future__ import annotations

from moescale.views.html.reports import NO_FIGURE, Origin, plan_report, read_plan

__all__ = ["NO_FIGURE", "Origin", "plan_report", "read_plan"]

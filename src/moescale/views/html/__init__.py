"""A plan as a page to send: one HTML file with its figure inside."""

from __future__ import annotations

from moescale.views.html.reports import Origin, plan_report, read_plan

__all__ = ["Origin", "plan_report", "read_plan"]

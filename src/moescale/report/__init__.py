"""Answers as pages to send: one HTML file of a plan, a law or a comparison of laws, with its figures inside."""

from __future__ import annotations

from moescale.report.page import Origin
from moescale.report.plan import plan_report

__all__ = ["Origin", "plan_report"]

"""Answers as pages to send: one HTML file of a plan, a law or a comparison of laws, with its figures inside."""

from __future__ import annotations

from moescale.views.html.reading import read_answer
from moescale.views.html.reports import Origin, comparison_report, law_report, plan_report

__all__ = ["Origin", "comparison_report", "law_report", "plan_report", "read_answer"]

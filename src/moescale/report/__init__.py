"""Answers as pages to send: one HTML file of a plan, a law or a comparison of laws, with its figures inside."""

from __future__ import annotations

from moescale.report.comparison import comparison_report
from moescale.report.law import law_report
from moescale.report.page import Origin
from moescale.report.plan import plan_report
from moescale.report.reading import read_answer

__all__ = ["Origin", "comparison_report", "law_report", "plan_report", "read_answer"]

"""Answers as pages to send: one HTML file of a plan, a law or a comparison of laws, with its figures inside."""

from __future__ import annotations

from moescale.views.html.comparison import comparison_report
from moescale.views.html.law import law_report
from moescale.views.html.page import Origin
from moescale.views.html.plan import plan_report
from moescale.views.html.reading import read_answer

__all__ = ["Origin", "comparison_report", "law_report", "plan_report", "read_answer"]

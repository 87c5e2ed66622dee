"""Answers as pages to send: one HTML file of a plan or a law, with its figures inside."""

from __future__ import annotations

from moescale.views.html.reading import read_answer
from moescale.views.html.reports import Origin, law_report, plan_report

__all__ = ["Origin", "law_report", "plan_report", "read_answer"]

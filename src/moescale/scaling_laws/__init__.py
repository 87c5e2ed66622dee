"""Scaling laws: forms (formula and derivatives), and laws (a form with coefficients and the family it is about)."""

from moescale.scaling_laws.form import LawForm, make_inputs
from moescale.scaling_laws.law import Law, loss, predict
from moescale.scaling_laws.store import FORMS, catalogue_names, find_form, find_law, law_text, save_law

__all__ = [
    "FORMS",
    "Law",
    "LawForm",
    "catalogue_names",
    "find_form",
    "find_law",
    "law_text",
    "loss",
    "make_inputs",
    "predict",
    "save_law",
]

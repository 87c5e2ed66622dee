"""Scaling laws: forms (formula and derivatives), and laws (a form with coefficients and the family it is about)."""

from moescale.scaling_laws.covariates import FURTHER_INPUTS, further_inputs
from moescale.scaling_laws.ensemble import combine, restate
from moescale.scaling_laws.form import Inputs, LawForm, Observed, Parameter, make_inputs
from moescale.scaling_laws.law import Law, Member, Prediction, extrapolation, interval, loss, predict, predict_many
from moescale.scaling_laws.store import FORMS, catalogue_names, find_form, find_law, law_text, parse_law, save_law

__all__ = [
    "FORMS",
    "FURTHER_INPUTS",
    "Inputs",
    "Law",
    "LawForm",
    "Member",
    "Observed",
    "Parameter",
    "Prediction",
    "catalogue_names",
    "combine",
    "extrapolation",
    "find_form",
    "find_law",
    "further_inputs",
    "interval",
    "law_text",
    "loss",
    "make_inputs",
    "parse_law",
    "predict",
    "predict_many",
    "restate",
    "save_law",
]

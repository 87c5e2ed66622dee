"""Scaling laws: forms (formula and derivatives), and laws (a form with coefficients and the family it is about)."""

from moescale.scaling_laws.form import LawForm as LawForm
from moescale.scaling_laws.form import make_inputs as make_inputs
from moescale.scaling_laws.law import Law as Law
from moescale.scaling_laws.law import loss as loss
from moescale.scaling_laws.law import predict as predict
from moescale.scaling_laws.store import FORMS as FORMS
from moescale.scaling_laws.store import catalogue_names as catalogue_names
from moescale.scaling_laws.store import find_form as find_form
from moescale.scaling_laws.store import find_law as find_law
from moescale.scaling_laws.store import law_text as law_text
from moescale.scaling_laws.store import save_law as save_law

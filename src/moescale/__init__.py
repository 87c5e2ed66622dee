"""Plan the pre-training of Mixture-of-Experts language models: scaling law, serving cost, and the model to train.

The public names, which `__init__.pyi` lists, load their modules on first use, so that `import moescale` costs nothing.
"""

from __future__ import annotations

import importlib
import re
import sys
from pkgutil import get_data

__version__ = "0.4.0"

_STUB = (get_data(__name__, "__init__.pyi") or b"").decode()
_HOME = {name: module for module, name in re.findall(r"^from (\S+) import (\S+) as", _STUB, re.MULTILINE)}
__all__ = ["__version__", *_HOME]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'moescale' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


# In a notebook answers show themselves as in the terminal; moescale.views.notebook says how.
if "IPython" in sys.modules and (_shell := getattr(sys.modules["IPython"], "get_ipython", lambda: None)()) is not None:
    importlib.import_module("moescale.views.notebook").load_ipython_extension(_shell)

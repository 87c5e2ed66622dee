"""Predicted over measured servings.

The rule that sets rows aside was written, and committed, before any error of these rows was computed.

Rows of the kernel package (aiconfigurator_core's systems/silicon_sample.csv) that belong to one set are not independent, so whole
sets go to one half. A set is (model_path, system, backend, precision) as the file spells them; its key is those four joined by
"|"; the half is `development` where the last byte of the SHA-256 of the key (UTF-8) is even, else `held_out`. Work on the
program looks at `development` alone. `held_out` is scored, by kind only, with an explicit --held-out.
"""

from __future__ import annotations

import hashlib

DEVELOPMENT, HELD_OUT = "development", "held_out"


def half(model: str, system: str, backend: str, precision: str) -> str:
    """The half that a set of the kernel package's measured rows belongs to."""
    digest = hashlib.sha256("|".join((model, system, backend, precision)).encode()).digest()
    return HELD_OUT if digest[-1] % 2 else DEVELOPMENT

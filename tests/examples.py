"""How often a property is drawn: a few times each day, and in proportion more often by `make test-fuzz`."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 20  # examples of a property each day
LONG = 300  # and by `make test-fuzz`


def daily(count: int, **more: Any) -> settings:
    """Settings of a property that is drawn so often each day, and at night as many times more as the usual ones are."""
    return settings(max_examples=max(1, count * settings.default.max_examples // USUAL), **more)

"""An answer in plain words."""

from __future__ import annotations

from moescale.views.tables import answer


def test_a_multiple_from_two_on_and_else_a_share() -> None:
    assert [answer.cheaper(ratio) for ratio in (6.04, 2.0, 1.25)] == ["6x cheaper", "2x cheaper", "20% cheaper"]

"""An answer in plain words."""

from __future__ import annotations

import pytest

from moescale.views.tables import answer


@pytest.mark.parametrize(
    ("caveat", "words"),
    [
        ("Extrapolated: D 2.69 times the largest fitted.", "2.69 times the most training tokens."),
        (
            "Extrapolated: dense-equivalent N (40.5B) 17 times the largest fitted, E 0.5 times the smallest fitted.",
            "17 times the most parameters, 0.5 times the fewest experts.",
        ),
        ("Extrapolated: training FLOPs 1,234 times the largest fitted.", "1,234 times the most training FLOPs."),
    ],
)
def test_how_far_a_law_reaches_is_told_without_its_letters(caveat: str, words: str) -> None:
    assert answer.plain(caveat) == f"The prediction reaches beyond the training runs that it was fitted to: {words}"


def test_a_multiple_from_two_on_and_else_a_share() -> None:
    assert [answer.cheaper(ratio) for ratio in (6.04, 2.0, 1.25)] == ["6x cheaper", "2x cheaper", "20% cheaper"]


def test_other_caveats_stay_as_they_are() -> None:
    assert answer.plain("Sizes exclude embeddings.") == "Sizes exclude embeddings."

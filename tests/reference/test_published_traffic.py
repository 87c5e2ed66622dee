"""Mean lengths of requests as their sources state them, in tokens."""

from __future__ import annotations

import pytest

from moescale.serving.traffic import find_traffic, traffics

PRINTED = {
    "sharegpt": (230, 203),  # the paper's traffic: ShareGPT as vLLM's serving benchmark samples it
    "splitwise-conversation": (1155, 211),  # Azure's trace of 2023 (arXiv 2311.18677)
    "splitwise-code": (2048, 28),
}


@pytest.mark.parametrize("name", PRINTED)
def test_mean_lengths(name: str) -> None:
    found = find_traffic(name)
    assert (found.prompt_tokens, found.output_tokens) == PRINTED[name]


def test_every_traffic_of_the_catalogue_is_held() -> None:
    assert set(traffics()) == set(PRINTED)

"""Mean lengths of requests as their sources state them, in tokens."""

from __future__ import annotations

from moescale import catalogue
from moescale.options.serving import DEFAULT_TRAFFIC

PRINTED = {
    "sharegpt": (230, 203),  # the paper's traffic: ShareGPT as vLLM's serving benchmark samples it
    "splitwise-conversation": (1155, 211),  # Azure's trace of 2023 (arXiv 2311.18677)
    "splitwise-code": (2048, 28),
}


def test_every_traffic_of_the_catalogue_is_as_printed() -> None:
    held = catalogue.read("traffic.toml")["traffic"]
    assert {name: (entry["prompt_tokens"], entry["output_tokens"]) for name, entry in held.items()} == PRINTED
    assert PRINTED["sharegpt"] == DEFAULT_TRAFFIC

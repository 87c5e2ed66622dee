"""Write the catalogue's public-2026.toml: four laws of public numbers as one, each asked about the same model, of equal weight.

    python scripts/make_public_ensemble.py

Equal weights are the rule: no public run tells which of the four is nearest in what plans ask. Each member's unit makes its
loss of one dense reference model that of ludziejewski2025, in nats on FineWeb-Edu. To be run again when a member changes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tomli_w

from moescale.io.records import record
from moescale.models.coordinates import in_family
from moescale.models.family import find_family, with_convention
from moescale.scaling_laws import Law, find_law, loss
from moescale.scaling_laws.store import FORMAT

MEMBERS = ("yun2024-recovered", "yun2024-joint", "moescale2026-joint", "ludziejewski2025")
UNIT_OF = "ludziejewski2025"
REFERENCE_BODY, REFERENCE_TOKENS = 1e9, 20e9  # dense, 20 tokens a parameter: inside all members' runs or near them
DRAWS = 100  # 25 of each member: what intervals of 90% need; a plan's time grows with them
DIGITS = 6  # of ln of a unit
TARGET = Path(__file__).resolve().parents[1] / "src/moescale/catalogue/laws/public-2026.toml"


def main() -> None:
    """Compute the units and write."""
    target = reference_loss(find_law(UNIT_OF))
    units = [float(np.log(target / reference_loss(find_law(name)))) for name in MEMBERS]
    document = {
        "format": FORMAT,
        "name": "public-2026",
        "source": f"average of {', '.join(MEMBERS)}: numbers printed in arXiv 2404.02852 and runs of arXiv 2502.05172",
        "date": "2026-11-22",
        # The shapes are the paper's; FLOPs are counted exactly, as the runs of three members were.
        "family": record(with_convention(find_family("yun2024"), "exact")),
        "n_draws": DRAWS,
        "notes": [
            "Weights are equal by rule, not fitted.",
            "Three of the four laws rest on the same runs, those of arXiv 2502.05172; the fourth on numbers printed in arXiv "
            "2404.02852.",
            f"Losses are those of {UNIT_OF} (nats a token on FineWeb-Edu, GPT-2 tokenizer): the members are scaled to agree on a "
            f"dense model of {REFERENCE_BODY:.0e} parameters without embeddings and {REFERENCE_TOKENS:.0e} tokens.",
            "Intervals hold the members' disagreement; they are no test on other people's runs.",
            "Sizes leave embeddings out.",
        ],
        "members": [
            {"law": name, "weight": 1.0 / len(MEMBERS), "unit": round(unit, DIGITS)}
            for name, unit in zip(MEMBERS, units, strict=True)
        ],
    }
    TARGET.write_text(tomli_w.dumps(document), encoding="utf-8")


def reference_loss(law: Law) -> float:
    """A law's loss of the reference model, in its own unit."""
    n, experts = in_family(law.family, REFERENCE_BODY, 1.0)
    return float(loss(law, n, REFERENCE_TOKENS, experts))


if __name__ == "__main__":
    main()

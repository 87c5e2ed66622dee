"""What Yun et al. 2024 claim, computed again: every claim with its error, and every figure."""

from __future__ import annotations

from moescale.reproduction.claims import Claim, claims, find_claim
from moescale.reproduction.evaluate import Outcome, PartOutcome, Score, reproduce, score

__all__ = ["Claim", "Outcome", "PartOutcome", "Score", "claims", "find_claim", "reproduce", "score"]

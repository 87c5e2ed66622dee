"""What Yun et al. 2024 claim, computed again: every claim with its error, and every figure."""

from __future__ import annotations

from moescale.reproduction.claims import Claim, claims, find_claim
from moescale.reproduction.evaluate import HostTime, Outcome, PartOutcome, host_times, reproduce, summary

__all__ = ["Claim", "HostTime", "Outcome", "PartOutcome", "claims", "find_claim", "host_times", "reproduce", "summary"]

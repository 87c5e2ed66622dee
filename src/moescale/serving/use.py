"""Latencies beyond which a server is of little use to a reader who waits: said of every answer that no limit was stated for."""

from __future__ import annotations

from moescale.serving.deployment import Deployment
from moescale.units import format_seconds

# Ten tokens a second are some 450 words a minute, about twice the reading speed (238 words a minute; Brysbaert, How many
# words do we read per minute?, Journal of Memory and Language 109, 2019).
MOST_TPOT_S = 0.1
# What keeps a user's attention on the dialogue (Nielsen, Usability Engineering, 1993, section 5.5).
MOST_TTFT_S = 10.0


def slow_for_use(deployment: Deployment, ttft_s: float | None, tpot_s: float | None, what: str = "") -> list[str]:
    """A warning for latencies above MOST_TTFT_S and MOST_TPOT_S that no limit was stated for; `what` names the server."""
    d = deployment
    kinds = (
        ("TPOT", tpot_s, MOST_TPOT_S, d.max_tpot_s, "--max-tpot 100ms"),
        ("TTFT", ttft_s, MOST_TTFT_S, d.max_ttft_s, "--max-ttft 10s"),
    )
    late = [
        (name, took, most, option)
        for name, took, most, limit, option in kinds
        if limit is None and (took or 0.0) > most
    ]
    if not late:
        return []
    times = ", ".join(
        f"{name} {format_seconds(took or 0.0)} (above {format_seconds(most)})" for name, took, most, _ in late
    )
    return [f"Too slow for interactive use{what}: {times}; {' '.join(option for *_, option in late)} sets a limit."]

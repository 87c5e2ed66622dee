"""Public tables that the tests check against; tests/data/public/README.md says where they come from."""

from __future__ import annotations

from pathlib import Path

PUBLIC = Path(__file__).parent / "data" / "public"
JOINT_MOE_RUNS = PUBLIC / "joint_moe_runs.csv"

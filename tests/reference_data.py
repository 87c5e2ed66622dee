"""Where the repository is, and public tables that the tests check against; tests/data/public/README.md says where they come from."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ROOT / "tests"
PUBLIC = TESTS / "data" / "public"
JOINT_MOE_RUNS = PUBLIC / "joint_moe_runs.csv"

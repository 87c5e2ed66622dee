"""The text that starts a trainer on every server of a run."""

from __future__ import annotations

from moescale import catalogue
from moescale.training.parallelism import Split
from moescale.units import plural


def torchrun_script(split: Split, about: tuple[str, str], before: str, program: str) -> str:
    """The text of run.sh, to be started on each server: `about` are the comments around the servers, `program` what runs."""
    per_server = min(split.gpus, int(catalogue.read("export.toml")["choice"]["gpus_per_server"]))
    servers = plural(-(-split.gpus // per_server), "server")
    several = int(servers.split()[0]) > 1
    meet = ': "${RENDEZVOUS:?HOST:PORT where the servers meet}"\n' if several else ""
    return f"""#!/usr/bin/env bash
# {about[0]}, on each of {servers} of {per_server} GPUs.
# {about[1]}
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
{before}
{meet}torchrun --nnodes {servers.split()[0]} --nproc-per-node {per_server} --rdzv-backend c10d \\
  --rdzv-endpoint "${{RENDEZVOUS:-localhost:29500}}" --rdzv-id "${{RUN_ID:-moescale}}" \\
  {program} "$@"
"""

"""Started by torchrun for test_training_engine.py: trains one small model under several layouts, and prints what it found.

`training_layouts.py SETTINGS.json`, where the file holds a list of RUN.toml's tables as JSON; the first process prints
{"losses": [..], "validation": .., "placements": {name: text}} for each on a line.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from moescale.experiments.data.pack import open_corpus
from moescale.experiments.training import parallel
from moescale.experiments.training.settings import settings_of
from moescale.experiments.training.trainer import Run


def main() -> None:
    """Train each."""
    torch.set_num_threads(1)
    device = torch.device("cpu")
    dist.init_process_group("gloo")
    for tables in json.loads(Path(sys.argv[1]).read_text()):
        settings = settings_of(tables)
        run: Any = Run(settings, open_corpus(settings.data.corpus), parallel.place(settings.parallel, device), print)
        losses: list[float] = []
        run._after = lambda _leg, loss, *_rest, losses=losses: losses.append(loss)
        run.report = lambda _event: None
        (row,) = run.rows(resume=False)
        placements = {
            name: f"{parameter.device_mesh.mesh_dim_names} {parameter.placements} {tuple(parameter.to_local().shape)}"
            if isinstance(parameter, DTensor)
            else "whole"
            for name, parameter in run.model.named_parameters()
        }
        if dist.get_rank() == 0:
            print(json.dumps({"losses": losses, "validation": row["loss"], "placements": placements}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

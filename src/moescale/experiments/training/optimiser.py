"""AdamW over tensors and DTensors of several meshes, and the norm of all their gradients together."""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from moescale.experiments.training.settings import TrainingSettings
from moescale.models.recipe import defaults


def adamw(model: nn.Module, training: TrainingSettings) -> torch.optim.AdamW:
    """AdamW with weight decay on matrices alone; parameters of one mesh share a group, as fused kernels need it."""
    groups: dict[Any, list[nn.Parameter]] = {}
    for parameter in model.parameters():
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault((mesh, parameter.ndim > 1), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": training.weight_decay if decayed else 0.0}
            for (_, decayed), parameters in groups.items()
        ],
        lr=0.0, betas=(training.beta1, training.beta2), eps=defaults().adam_eps, fused=True,
    )  # fmt: skip


def local(tensor: Tensor) -> Tensor:
    """This process's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def clip(parameters: Iterable[nn.Parameter], most: float) -> float:
    """Scale all gradients so that their common norm is at most `most`; returns the norm before."""
    by_mesh: dict[Any, list[Tensor]] = {}
    gradients = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        key = (gradient.device_mesh, gradient.placements) if isinstance(gradient, DTensor) else None
        by_mesh.setdefault(key, []).append(local(gradient))
    total = torch.zeros((), dtype=torch.float64, device=local(gradients[0]).device)
    for key, parts in by_mesh.items():
        norms = torch.stack(_foreach("norm")(parts, 2)).double()
        squares = norms.square().sum()
        if key is not None:
            mesh, placements = key
            for dimension, placement in enumerate(placements):
                if placement.is_shard():
                    dist.all_reduce(squares, group=mesh.get_group(dimension))
        total += squares
    norm = float(total.sqrt())
    if norm > most:
        _foreach("mul_")([local(gradient) for gradient in gradients], most / norm)
    return norm


def _foreach(name: str) -> Any:
    """One of torch's functions over many tensors, as its own clip_grad_norm_ uses them."""
    return getattr(torch, f"_foreach_{name}")

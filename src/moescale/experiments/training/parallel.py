"""How a model is laid out over processes: data, FSDP, tensor and expert parallelism over one mesh of devices."""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import os
import platform
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

from moescale.errors import InputError
from moescale.experiments.training.model import layers_of
from moescale.experiments.training.settings import ParallelSettings

COPIES, FSDP, TENSOR = AXES = ("copies", "fsdp", "tensor")  # from the slowest links to the fastest
DATA, EXPERT = ("data", "expert")  # what `copies` is made of


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where this process stands."""

    parallel: ParallelSettings
    device: torch.device
    rank: int = 0
    mesh: DeviceMesh | None = None  # (copies, fsdp, tensor); None: one process
    expert_mesh: DeviceMesh | None = None  # (data, expert, fsdp, tensor), where `copies` is data x expert

    @property
    def stream(self) -> int:
        """Which of `parallel.streams` shares of a batch this process sees."""
        return self.rank // self.parallel.tensor


def device_of(settings: ParallelSettings) -> torch.device:
    """The device of this process; InputError where CUDA is asked for and not there."""
    kind = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("this torch sees no CUDA device", where="[parallel], device", nearest="cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if kind == "cuda" else torch.device("cpu")


def describe(device: torch.device) -> str:
    """The name of the device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"


@contextmanager
def joined(settings: ParallelSettings, device: torch.device) -> Generator[Layout]:
    """This process's place among `settings.processes`, with torchrun's process group open where there are several."""
    if settings.processes == 1:
        yield Layout(parallel=settings, device=device)
        return
    if int(os.environ.get("WORLD_SIZE", "1")) != settings.processes:
        raise InputError(
            f"{settings.processes} processes are set, but torchrun started {os.environ.get('WORLD_SIZE', '1')}",
            where="[parallel], processes",
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield place(settings, device)
    finally:
        dist.destroy_process_group()


def place(p: ParallelSettings, device: torch.device) -> Layout:
    """This process's place in the layout, where the process group is open."""
    mesh = init_device_mesh(device.type, (p.data * p.expert, p.fsdp, p.tensor), mesh_dim_names=AXES)
    # One mesh seen twice: FSDP refuses weights that are split on another.
    split: Any = mesh._unflatten(0, (p.data, p.expert), (DATA, EXPERT)) if p.expert > 1 else None
    return Layout(parallel=p, device=device, rank=dist.get_rank(), mesh=mesh, expert_mesh=split)


def lay_out(model: nn.Module, layout: Layout, dtype: str) -> None:
    """Turn the weights of a model on the meta device into DTensors over the mesh.

    Tensor parallelism splits heads, FFN widths, the vocabulary, and of MoE layers whole experts; expert parallelism splits
    whole experts over processes that see different tokens; FSDP splits what is left on another axis of each weight. All
    gradients are summed, never averaged: losses are divided by the tokens of the whole batch.
    """
    mesh, p = layout.mesh, layout.parallel
    assert mesh is not None
    bf16 = dtype == "bfloat16"
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else MixedPrecisionPolicy()
    )
    common: dict[str, Any] = {
        "mp_policy": policy, "reshard_after_forward": p.fsdp > 1, "shard_placement_fn": _other_axis,
    }  # fmt: skip
    whole = mesh[COPIES, FSDP]
    if p.tensor > 1:
        _split_tensors(model, mesh[TENSOR])
    wrapped: list[Any] = []
    for layer in layers_of(model):
        if hasattr(layer.mlp, "experts"):
            if p.expert * p.tensor > 1:
                _split_experts(layer.mlp.experts, layout)
                if layout.expert_mesh is not None:  # their copies are fewer
                    wrapped.append(fully_shard(layer.mlp.experts, mesh=layout.expert_mesh[DATA, FSDP], **common))
            elif bf16:
                _use_own_experts(layer.mlp.experts, None)
        wrapped.append(fully_shard(layer, mesh=whole, **common))
    wrapped.append(fully_shard(model, mesh=whole, **common))
    for module in wrapped:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum


def reshard(model: nn.Module) -> None:
    """Let go of the whole weights that passes without a backward leave in place: checkpoints want each process's part."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def cast_experts(model: nn.Module) -> None:
    """Let experts multiply in bf16: autocast does not know grouped products."""
    for layer in layers_of(model):
        if hasattr(layer.mlp, "experts"):
            _use_own_experts(layer.mlp.experts, None)


def _other_axis(parameter: nn.Parameter) -> Shard:
    """The axis that FSDP splits: the first that is whole, as tensor or expert parallelism may have split the first."""
    if isinstance(parameter, DTensor):
        split = {placement.dim for placement in parameter.placements if isinstance(placement, Shard)}
        return Shard(next(axis for axis in range(parameter.ndim) if axis not in split))
    return Shard(0)


def _split_tensors(model: nn.Module, mesh: DeviceMesh) -> None:
    for layer in layers_of(model):
        plan: dict[str, Any] = {
            "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(),
            "self_attn.v_proj": ColwiseParallel(), "self_attn.o_proj": RowwiseParallel(),
            # Each process sees its own heads (axis 2), so that gradients of these norms are to be summed.
            "self_attn.q_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
            "self_attn.k_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        }  # fmt: skip
        if not hasattr(layer.mlp, "experts"):
            plan |= {
                "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
            }  # fmt: skip
        parallelize_module(layer, mesh, plan)
    ends: dict[str, Any] = {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate()),
        "lm_head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)


def _split_experts(experts: nn.Module, layout: Layout) -> None:
    mesh = layout.mesh if layout.expert_mesh is None else layout.expert_mesh
    assert mesh is not None
    split = mesh[tuple(axis for axis in (EXPERT, TENSOR) if getattr(layout.parallel, axis) > 1)]
    for name, parameter in list(experts.named_parameters()):
        part = distribute_tensor(parameter.detach(), split, [Shard(0)] * split.ndim, src_data_rank=None)
        setattr(experts, name, nn.Parameter(part))
    _use_own_experts(experts, split)


def _use_own_experts(experts: Any, mesh: DeviceMesh | None) -> None:
    """Replace the forward pass of an experts module by one over this process's experts.

    Processes along `expert` gather each other's tokens and reduce-scatter the sums; those along `tensor` hold the same
    tokens and all-reduce them. Only pairs of a token and a local expert are computed, by transformers' grouped product.
    """
    from transformers.integrations.moe import grouped_mm_experts_forward

    axes = (mesh.mesh_dim_names or ()) if mesh is not None else ()
    tokens: list[Placement] = [Shard(0) if axis == EXPERT else Replicate() for axis in axes]
    everywhere: list[Placement] = [Replicate()] * len(tokens)
    sums: list[Placement] = [Partial()] * len(tokens)

    def gathered(value: Tensor) -> Tensor:
        if mesh is None:
            return value
        whole = DTensor.from_local(value, mesh, tokens, run_check=False).redistribute(placements=everywhere)
        # Each process finds the part of the gradient that comes through its own experts.
        return whole.to_local(grad_placements=sums)

    def forward(hidden: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        parts = {name: _local(parameter) for name, parameter in experts.named_parameters()}
        count = parts["down_proj"].shape[0]
        first = count * _place(mesh)
        hidden_all, weights_all = gathered(hidden), gathered(weights)
        with torch.no_grad():
            index_all = gathered(index) - first
            here = (index_all >= 0) & (index_all < count)
            rows, slots = here.nonzero(as_tuple=True)
            if not rows.numel():  # a product needs a row: one that counts nothing
                rows, slots = torch.zeros_like(index_all[:1, 0]), torch.zeros_like(index_all[:1, 0])
            experts_of_rows = torch.where(here[rows, slots], index_all[rows, slots], 0)[:, None]
        view = _View(experts, {**parts, "num_experts": count})
        chosen = hidden_all[rows].to(parts["down_proj"].dtype)
        shares = torch.where(here[rows, slots], weights_all[rows, slots], 0.0)[:, None]
        done = grouped_mm_experts_forward(cast("Any", view), chosen, experts_of_rows, shares)
        summed = torch.zeros_like(hidden_all).index_add(0, rows, done.to(hidden_all.dtype))
        if mesh is None:
            return summed
        return DTensor.from_local(summed, mesh, sums, run_check=False).redistribute(placements=tokens).to_local()

    experts.forward = forward


def _local(parameter: Tensor) -> Tensor:
    part = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    device = part.device.type
    return part.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else part


def _place(mesh: DeviceMesh | None) -> int:
    """This process's number along the axes of a mesh, the first axis slowest."""
    return 0 if mesh is None else int(np.ravel_multi_index(mesh.get_coordinate() or (), mesh.shape))


class _View:
    """A module with other values for some of its attributes; FSDP's modules cannot be copied."""

    def __init__(self, module: nn.Module, values: dict[str, Any]) -> None:
        self._module = module
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

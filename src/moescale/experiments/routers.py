"""The experts of a model while it is trained: the loss that balances them, what each was sent, and their products in bf16."""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.stateless import _reparametrize_module


class Routers:
    """The routers of a model: the loss that balances them, and how many tokens each expert was sent.

    The balancing loss is that of Switch Transformers (arXiv 2101.03961, equation 4), E sum_i f_i P_i a layer, the mean
    over layers, with P_i the mean probability of expert i over the whole batch and f_i its share of the tokens of the
    step before (even before the first). f has no gradient, so that loss and gradient add up over tokens: they are those of
    the global batch in one process or in many, whatever its micro-batches.
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        modules = [layer.mlp.gate for layer in layers_of(model) if hasattr(layer.mlp, "experts")]
        self.n_experts = int(modules[0].num_experts) if modules else 1
        shape, self.on = (len(modules), self.n_experts), False
        self.shares = torch.full(shape, 1.0 / self.n_experts, device=device)  # f: (layers, experts)
        self.counts = torch.zeros(shape, dtype=torch.float64, device=device)  # tokens by layer and expert since `take`
        self.probabilities: list[Tensor] = []  # sums over the tokens of one pass, a layer each
        for layer, module in enumerate(modules):
            module.register_forward_hook(partial(self._hook, layer))

    def _hook(self, layer: int, _module: nn.Module, _given: Any, answer: tuple[Tensor, Tensor, Tensor]) -> None:
        if self.on:
            logits, _, chosen = answer
            tokens = torch.ones_like(chosen, dtype=self.counts.dtype).flatten()
            self.counts[layer].scatter_add_(0, chosen.flatten(), tokens)
            if torch.is_grad_enabled():
                self.probabilities.append(torch.softmax(logits.float(), dim=-1).sum(dim=0))

    def loss(self, batch_tokens: int) -> Tensor | float:
        """The part of the balancing loss that the tokens of the last pass make up, in a batch of `batch_tokens`."""
        found, self.probabilities = self.probabilities, []
        if not found:
            return 0.0
        return self.n_experts / len(found) / batch_tokens * (self.shares * torch.stack(found)).sum()

    def take(self) -> Tensor:
        """The counts (layers, experts) since they were last taken."""
        taken = self.counts.clone()
        self.counts.zero_()
        return taken

    def use(self, counts: Tensor) -> None:
        """Let the shares of these counts (layers, experts) be the f of what follows."""
        self.shares = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)).to(self.shares)


def layers_of(model: nn.Module) -> Iterator[Any]:
    """The decoder layers."""
    yield from cast("Any", model).model.layers


def cast_experts(model: nn.Module) -> None:
    """Let experts multiply in bf16: autocast does not know grouped products."""

    def cast_forward(experts: Any, forward: Callable[..., Tensor], *given: Tensor) -> Tensor:
        with _reparametrize_module(experts, {name: weight.bfloat16() for name, weight in experts.named_parameters()}):
            return forward(*given)

    for layer in layers_of(model):
        if hasattr(layer.mlp, "experts"):
            layer.mlp.experts.forward = partial(cast_forward, layer.mlp.experts, layer.mlp.experts.forward)

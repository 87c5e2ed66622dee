"""The model of a run as transformers builds it, its initial weights, its losses, and what its routers do."""

# Where torch is not installed, nothing is known of its types; where it is, the strict rules hold in full.
# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from moescale.experiments.training.settings import RunSettings
from moescale.models.recipe import defaults

IGNORED = -100  # the label of a position that has no next token
GROUPED = "grouped_mm"  # torch's grouped matrix product; the default loops over the experts


def build(settings: RunSettings, vocab_size: int) -> nn.Module:
    """The model without storage (on the meta device): it is laid out first and filled by `materialise` after."""
    import transformers

    given = settings.model.config(vocab_size)
    config = transformers.AutoConfig.for_model(given.pop("model_type"), **given, use_cache=False)
    options = {"experts_implementation": GROUPED} if "num_experts" in given else {}
    with torch.device("meta"):
        return cast("nn.Module", transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options))


def materialise(model: nn.Module, device: torch.device, seed: int) -> None:
    """Give the model storage and its initial weights, which depend on the seed and each weight's name alone.

    So they are the same however the model is laid out over processes. Weights are drawn whole on the CPU, one at a time,
    and each process keeps its part.
    """
    model.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            whole = torch.ones(parameter.shape)
            if parameter.ndim > 1:
                digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
                generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
                whole.normal_(0.0, defaults().init_std, generator=generator)
            fill(parameter, whole)
    whole_model = cast("Any", model)  # frequencies of positions are computed when their module is made, and no weights
    whole_model.model.rotary_emb = type(whole_model.model.rotary_emb)(config=whole_model.config).to(device)


def fill(target: Tensor, whole: Tensor) -> None:
    """Copy a whole tensor, which every process holds, into a tensor or into this process's part of a DTensor."""
    if isinstance(target, DTensor):
        moved = whole.to(target.device)
        part = distribute_tensor(moved, target.device_mesh, target.placements, src_data_rank=None)
        target.to_local().copy_(part.to_local())
    else:
        target.copy_(whole)


@dataclass(eq=False)
class Routers:
    """Listens to the routers of a model: the loss that balances them, and how many tokens each expert was sent.

    The balancing loss is that of Switch Transformers (arXiv 2101.03961, equation 4), E sum_i f_i P_i a layer, the mean
    over layers, with P_i the mean probability of expert i over the whole batch and f_i its share of the tokens of the
    step before (even before the first). f has no gradient, so that loss and gradient add up over tokens: they are those of
    the global batch in one process or in many, whatever its micro-batches.
    """

    n_experts: int
    modules: list[nn.Module]
    shares: Tensor  # f: (layers, experts)
    counts: Tensor  # tokens by layer and expert since `take`
    on: bool = False
    probabilities: list[Tensor] = field(default_factory=list[Tensor])  # sums over the tokens of one pass, a layer each

    def listen(self) -> None:
        """Attach to the routers."""
        for layer, module in enumerate(self.modules):
            module.register_forward_hook(self._hook(layer))

    def _hook(self, layer: int) -> Any:
        def heard(_module: nn.Module, _given: Any, answer: tuple[Tensor, Tensor, Tensor]) -> None:
            if self.on:
                logits, _, chosen = answer
                tokens = torch.ones_like(chosen, dtype=self.counts.dtype).flatten()
                self.counts[layer].scatter_add_(0, chosen.flatten(), tokens)
                if torch.is_grad_enabled():
                    self.probabilities.append(torch.softmax(logits.float(), dim=-1).sum(dim=0))

        return heard

    def loss(self, batch_tokens: int) -> Tensor | float:
        """The part of the balancing loss that the tokens of the last pass make up, in a batch of `batch_tokens`."""
        found, self.probabilities = self.probabilities, []
        if not found:
            return 0.0
        return self.n_experts / len(found) / batch_tokens * (self.shares * torch.stack(found)).sum()

    def take(self) -> Tensor:
        """The counts (layers, experts) since it was last asked for."""
        taken = self.counts.clone()
        self.counts.zero_()
        return taken

    def use(self, counts: Tensor) -> None:
        """Let the shares of these counts (layers, experts) be the f of what follows."""
        self.shares = (counts / counts.sum(dim=1, keepdim=True).clamp(min=1.0)).to(self.shares)


def routers_of(model: nn.Module, device: torch.device) -> Routers:
    """The listener of a model's routers; for a dense model it hears nothing."""
    modules = [layer.mlp.gate for layer in layers_of(model) if hasattr(layer.mlp, "experts")]
    experts = int(modules[0].num_experts) if modules else 1
    shape = (len(modules), experts)
    routers = Routers(
        n_experts=experts, modules=modules, shares=torch.full(shape, 1.0 / experts, device=device),
        counts=torch.zeros(shape, dtype=torch.float64, device=device),
    )  # fmt: skip
    routers.listen()
    return routers


def layers_of(model: nn.Module) -> Iterator[Any]:
    """The decoder layers."""
    yield from cast("Any", model).model.layers


def token_losses(model: nn.Module, ids: Tensor) -> Tensor:
    """The summed cross entropy (nats) of each sequence of `ids` (sequences, length), float32 (sequences,)."""
    logits = model(input_ids=ids).logits.float()
    labels = nn.functional.pad(ids, (0, 1), value=IGNORED)[:, 1:]
    each = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="none")
    return each.view_as(ids).sum(dim=1)

"""Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon): momentum, made orthogonal, for matrices.

PyTorch has one, but it iterates in bfloat16, which processors without bfloat16 instructions do at a crawl.
"""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

# coefficients of the quintic iteration, from the source
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ITERATIONS = 5


class Muon(torch.optim.Optimizer):
    """Updates of matrices, scaled to the size of AdamW's (0.2 a root-mean-square element, arXiv 2502.16982)."""

    def __init__(
        self, parameters: Iterable[Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[Parameter, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    momentum.lerp_(parameter.grad, 1 - group["momentum"])
                    update = parameter.grad.lerp(momentum, group["momentum"])
                    by_shape[tuple(update.shape)].append((parameter, update))
            for shape, pairs in by_shape.items():
                updates = orthogonal(torch.stack([update for _, update in pairs]))
                for (parameter, _), update in zip(pairs, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.add_(update, alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)


def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest (semi-)orthogonal matrix of each, roughly: [number, rows, columns], singular values near 1."""
    wide = matrices if matrices.shape[1] <= matrices.shape[2] else matrices.mT
    wide = wide / (wide.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(_ITERATIONS):
        gram = wide @ wide.mT
        wide = _A * wide + (_B * gram + _C * gram @ gram) @ wide
    return wide if matrices.shape[1] <= matrices.shape[2] else wide.mT

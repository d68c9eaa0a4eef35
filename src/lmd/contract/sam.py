"""Sharpness-aware perturbation: how far and where to move the parameters, there and back again.

Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


def ascent(gradients: Sequence[Tensor], radius: float | Tensor) -> list[Tensor]:
    """``radius · g / ‖g‖`` with one norm over all gradients (Foret et al., Eq. 2).

    A gradient of zero has no direction: its offset is zero.

    >>> ascent([torch.tensor([3.0]), torch.tensor([4.0])], radius=0.5)
    [tensor([0.3000]), tensor([0.4000])]
    """
    norm = torch.stack([g.norm() for g in gradients]).norm()
    factor = torch.where(norm > 0, radius / norm.clamp_min(torch.finfo(norm.dtype).tiny), 0)
    return [g * factor for g in gradients]


@torch.no_grad()
def perturb(parameters: Sequence[Tensor], offsets: Sequence[Tensor]) -> list[Tensor]:
    """Add each offset to its parameter in place, and return the values from before."""
    saved = [p.clone() for p in parameters]
    for parameter, offset in zip(parameters, offsets, strict=True):
        parameter.add_(offset)
    return saved


@torch.no_grad()
def restore(parameters: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Put the values that ``perturb`` returned back, bit by bit."""
    for parameter, value in zip(parameters, saved, strict=True):
        parameter.copy_(value)


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Within it, the running statistics of normalisation layers stay as they are.

    The second forward pass of a sharpness-aware step runs at weights that are never shipped, so
    its batch statistics must not enter the averages that evaluation uses.
    """
    # Without running statistics a layer in train mode still normalises by the batch, as it should.
    names = ("running_mean", "running_var", "num_batches_tracked")
    layers = [m for m in module.modules() if isinstance(m, _NormBase) and m.training]
    saved = [[getattr(layer, name) for name in names] for layer in layers]
    for layer in layers:
        for name in names:
            setattr(layer, name, None)
    try:
        yield
    finally:
        for layer, buffers in zip(layers, saved, strict=True):
            for name, buffer in zip(names, buffers, strict=True):
                setattr(layer, name, buffer)

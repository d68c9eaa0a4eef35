"""Sharpness-aware steps: gradients at the worst point nearby.

Foret et al., Sharpness-Aware Minimization for Efficiently Improving Generalization, ICLR 2021.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lmd.methods.stage import Batch, Stage, Terms

NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def ascent(gradients: Sequence[Tensor], radius: float | Tensor) -> list[Tensor]:
    """``radius · g / ‖g‖`` with one norm over all gradients (Foret et al., Eq. 2).

    The offset of a zero gradient is zero.

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
    torch.clear_autocast_cache()  # it may hold half-precision copies of the values from before
    return saved


@torch.no_grad()
def restore(parameters: Sequence[Tensor], saved: Sequence[Tensor]) -> None:
    """Put the values that ``perturb`` returned back, bit by bit."""
    for parameter, value in zip(parameters, saved, strict=True):
        parameter.copy_(value)
    torch.clear_autocast_cache()


@contextmanager
def still_statistics(module: nn.Module) -> Iterator[None]:
    """Within it, layers in train mode normalise by the batch and keep their running statistics.

    Batches at weights that are never shipped, or of distorted images, must not enter the averages
    that evaluation uses.
    """
    norms = [m for m in module.modules() if isinstance(m, NORMS) and m.training]
    tracking = [norm for norm in norms if norm.track_running_stats]
    for norm in tracking:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracking:
            norm.track_running_stats = True


def sharp_backward(
    stage: Stage, model: nn.Module, optimizer: Optimizer, radius: float, *batches: Batch
) -> Terms:
    """Replace the gradients of the model by those within ``radius`` of it, where they lead.

    BatchNorm statistics stay: they come from the pass at the weights themselves.
    """
    moved = [p for p in model.parameters() if p.grad is not None]
    saved = perturb(moved, ascent([p.grad for p in moved if p.grad is not None], radius))
    optimizer.zero_grad(set_to_none=True)
    with still_statistics(model):
        terms: Terms = stage(*batches)
    stage.backward(terms["loss"])
    restore(moved, saved)
    return terms

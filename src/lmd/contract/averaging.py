"""A running average of a module's weights, and how fast it follows.

Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992; the ramp is that
of Tarvainen and Valpola, Mean Teachers, NeurIPS 2017.
"""

import copy

import torch
from torch import Tensor, nn


def averaging_decay(t: int, limit: float, *, ramp: bool = True) -> float:
    """Decay of the t-th update, t from 0: ``min(1 - 1/(t+1), limit)``, or ``limit`` at once.

    >>> [averaging_decay(t, 0.6) for t in range(4)]
    [0.0, 0.5, 0.6, 0.6]
    """
    return min(1 - 1 / (t + 1), limit) if ramp else limit


def horizon_limit(horizon: float, total: int) -> float:
    """The decay that averages over a share ``horizon`` of ``total`` steps: ``1 - 1/(share · n)``.

    A horizon of less than one step is one step: nothing is averaged.

    >>> horizon_limit(0.1, 1000)
    0.99
    """
    return 1 - 1 / max(horizon * total, 1)


class RunningAverage(nn.Module):
    """``model`` is an averaged copy of a module; all state is in it and in ``inside``.

    ``exchange`` puts the average into the module itself, where validation, checkpoints and the
    shipped model find it, and keeps the module's own weights until ``restore``.
    """

    inside: Tensor

    def __init__(self, source: nn.Module) -> None:
        super().__init__()
        self.model = copy.deepcopy(source)
        self.register_buffer("inside", torch.tensor(False))

    def restart(self, source: nn.Module) -> None:
        """Become a copy of the module."""
        self.model.load_state_dict(source.state_dict())

    @torch.no_grad()
    def follow(self, source: nn.Module, decay: float, *, buffers: bool = True) -> None:
        """``average ← decay · average + (1 - decay) · source``; buffers are copied, if at all.

        BatchNorm statistics are averages already.
        """
        goals: list[Tensor] = list(self.model.parameters())
        torch._foreach_lerp_(goals, [p.data for p in source.parameters()], 1 - decay)
        if buffers:
            torch._foreach_copy_(list(self.model.buffers()), list(source.buffers()))

    def exchange(self, source: nn.Module) -> None:
        """Put the average into the module, unless it is there already."""
        if not self.inside:
            self._swap(source)

    def restore(self, source: nn.Module) -> None:
        """Give the module its own weights back, if the average is in it."""
        if self.inside:
            self._swap(source)

    @torch.no_grad()
    def _swap(self, source: nn.Module) -> None:
        own = [*self.model.parameters(), *self.model.buffers()]
        other = [*source.parameters(), *source.buffers()]
        saved = [tensor.clone() for tensor in own]
        for mine, theirs, value in zip(own, other, saved, strict=True):
            mine.copy_(theirs)
            theirs.copy_(value)
        self.inside.logical_not_()

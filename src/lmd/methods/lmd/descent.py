"""One pass of SGD over virtual features without making them (LMD paper, Eq. 8).

A linear classifier sees only the K logits of a virtual feature, and the gradient of a batch has K
rows. Given the logits, the residual of a feature is Gaussian, and so is a sum of n residuals of a
class with known coefficients, with rank K - 1 at most. So a batch needs K - 1 coloured rows for
each class instead of n, and its updates have the same distribution as those on drawn features.

The covariance of the logits may be that of a classifier up to ``STALE`` ago; their mean is exact.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from lmd.methods.lmd.gaussians import ClassGaussians, mixed_counts, small_cholesky

# Batches for which noise is drawn at a time.
BLOCK = 32
# Relative change of the classifier (its norm) after which the covariances are computed again.
STALE = 3e-3
# With fewer channels, drawing the features costs less than the small matrices here.
LEAST_CHANNELS = 128


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent as in torch, on gradients that are written out.

    ``weight (K, C)``, ``bias (K,)`` and their ``velocity`` are changed in place.
    """

    weight: Tensor
    bias: Tensor
    velocity: tuple[Tensor, Tensor]
    lr: float
    momentum: float
    weight_decay: float

    def update(self, *gradients: Tensor) -> None:
        """Move weight, bias and their velocities."""
        for value, speed, gradient in zip(
            (self.weight, self.bias), self.velocity, gradients, strict=True
        ):
            speed.mul_(self.momentum).add_(gradient.add_(value, alpha=self.weight_decay))
            value.add_(speed, alpha=-self.lr)


def sgd_pass(batches: Iterable[tuple[Tensor, Tensor]], sgd: SGD) -> float:
    """Make one pass over ``(B, C)``, ``(B,)`` and return the mean cross-entropy before each update.

    The gradient is written out: autograd would cost more than the batch itself.
    """
    # A tensor: reading the loss of each batch would wait for the device.
    total, seen = torch.zeros((), dtype=torch.float64, device=sgd.weight.device), 0
    for features, labels in batches:
        n = len(labels)
        log_p = torch.addmm(sgd.bias, features, sgd.weight.T).log_softmax(1)
        total -= log_p.gather(1, labels[:, None]).sum()
        seen += n
        error = log_p.exp_()
        error[torch.arange(n, device=error.device), labels] -= 1
        error /= n
        sgd.update(error.T @ features, error.sum(0))
    return total.item() / max(seen, 1)


def pays(classes: int, channels: int, batch: int) -> bool:
    """Whether this is cheaper than drawing: K (K - 1) rows, counted twice, against ``batch``."""
    return channels >= LEAST_CHANNELS and 2 * classes * (classes - 1) <= batch


@dataclass(frozen=True)
class _Seen:
    """How features and logits of each class vary together, for logits ``U x``.

    Logits are relative to the last one (a softmax sees only differences): ``u (K - 1, C)``,
    ``factor (K, K - 1, K - 1)`` of ``U Sigma U^T``, ``gain (K, K - 1, C)`` from white noise of the
    logits to the feature, and ``look (K, C, K - 1)`` back.
    """

    u: Tensor
    factor: Tensor
    gain: Tensor
    look: Tensor

    @classmethod
    def of(cls, covariance: Tensor, u: Tensor) -> Self:
        half = torch.stack([u @ each for each in covariance])
        factor = small_cholesky((half @ u.T).double())
        # float64 where a nearly singular factor is inverted.
        gain = torch.linalg.solve_triangular(factor, half.double(), upper=False)
        look = torch.linalg.solve_triangular(factor, u.double().expand_as(half), upper=False)
        return cls(u.clone(), factor.to(u), gain.to(u), look.mT.to(u).contiguous())


@torch.no_grad()
def virtual_pass(
    gaussians: ClassGaussians, per_class: int, batch: int, generator: torch.Generator, sgd: SGD
) -> float:
    """Do what ``sgd_pass`` does over ``gaussians.batches``, and return the mean loss."""
    weight, bias = sgd.weight, sgd.bias
    batches = mixed_counts(len(bias), per_class, batch, generator)
    seen = _Seen.of(gaussians.covariance, weight[:-1] - weight[-1])
    total = weight.new_zeros(())
    while counts := list(islice(batches, BLOCK)):
        drawn = _block(gaussians, torch.tensor(counts, device=bias.device), generator)
        for used, white, rest in zip(*drawn, strict=True):
            u = weight[:-1] - weight[-1]
            if (u - seen.u).norm() > STALE * seen.u.norm():
                seen = _Seen.of(gaussians.covariance, u)
            centre = torch.addmm(bias[:-1] - bias[-1], gaussians.mean, u.T)
            loss, *grads = _gradient(gaussians.mean, centre, seen, used, white, rest)
            total += loss
            sgd.update(*grads)
    return total.item() / (len(bias) * per_class)


def _block(
    gaussians: ClassGaussians, counts: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Noise for M batches with ``counts (M, K)``; n is the largest of them.

    Which columns are used ``(M, K, 1, n)``, white noise of the logits ``(M, K, K - 1, n)`` and M
    times coloured noise of the features ``(K, K - 1, C)``.
    """
    classes, rows = len(gaussians.mean), len(gaussians.mean) - 1
    most = int(counts.max())
    used = (torch.arange(most, device=counts.device) < counts[..., None]).to(gaussians.mean)
    white = torch.randn(len(counts), classes, rows, most, generator=generator).to(used)
    coloured = [gaussians.noise(k, rows * len(counts), generator) for k in range(classes)]
    rest = torch.stack([each.view(len(counts), rows, -1) for each in coloured], dim=1)
    return used[:, :, None], white, list(rest)


def _gradient(
    mean: Tensor, centre: Tensor, seen: _Seen, used: Tensor, white: Tensor, rest: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Summed loss of a batch and gradients of its mean; ``centre (K, K - 1)`` is of the logits.

    A feature is ``mean + white gain + rest``, where the rest does not change the logits.
    """
    d = centre.shape[1]
    logits = torch.baddbmm(centre[..., None], seen.factor, white)
    log_p = F.pad(logits, (0, 0, 0, 1)).log_softmax(1).mul_(used)
    # Every feature of a class has that class as its label.
    loss = -log_p.diagonal().sum()
    error = log_p.exp_()
    error.diagonal().sub_(1)
    error *= used / used.sum()
    sums = error.sum(2)
    error = error[:, :-1]
    # The sum of the rests, weighted by the errors, has rows with covariance error error^T.
    root = torch.linalg.qr(error.mT, mode="r").R.mT
    rest = rest[:, : root.shape[2]]
    along = torch.baddbmm(error @ white.mT, root, rest @ seen.look, alpha=-1)
    parts = (sums[:, :-1, None], mean[:, None]), (along, seen.gain), (root, rest)
    grad = sum(
        left.transpose(0, 1).reshape(d, -1) @ right.reshape(-1, mean.shape[1])
        for left, right in parts
    )
    assert isinstance(grad, Tensor)
    return loss, torch.cat([grad, -grad.sum(0, keepdim=True)]), sums.sum(0)

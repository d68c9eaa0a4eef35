"""One pass of SGD over virtual features that are never made (LMD paper, Eq. 8).

A linear classifier sees of a virtual feature only its logits, K numbers, and the gradient of a
batch has K rows. Given the logits, what is left of the features of a class is Gaussian, and a sum
of n such rests with known coefficients is Gaussian too, of rank K - 1 at most. So a batch needs
K - 1 coloured rows for each class in place of n, and its updates have the distribution that those
on drawn features have: nothing is averaged away.

The covariance of the logits is that of a classifier at most ``STALE`` behind; their mean is not.
"""

from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from lmd.methods.lmd.calibrate import small_cholesky
from lmd.methods.lmd.gaussians import ClassGaussians, mixed_counts

# Batches whose noise is coloured at a time.
BLOCK = 32
# The classifier's part (in length) that may have changed before all covariances are read again.
STALE = 3e-3
# Below so many channels the features themselves cost less than the small matrices here.
LEAST_CHANNELS = 128


def pays(classes: int, channels: int, batch: int) -> bool:
    """Is this way cheaper: K (K - 1) rows to colour, and as many small ones, or ``batch`` ones."""
    return channels >= LEAST_CHANNELS and 2 * classes * (classes - 1) <= batch


@dataclass(frozen=True)
class _Seen:
    """How features and logits of each class vary together, for logits ``U x``.

    All is relative to the last logit (a softmax knows only differences): ``u (K - 1, C)``,
    ``factor (K, K - 1, K - 1)`` of ``U Sigma U^T``, ``gain (K, K - 1, C)``: what one unit of white
    noise in the logits means for the feature, ``look (K, C, K - 1)``: from feature to white noise.
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
    gaussians: ClassGaussians,
    per_class: int,
    batch: int,
    generator: torch.Generator,
    weight: Tensor,
    bias: Tensor,
    velocity: tuple[Tensor, Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> float:
    """As ``sgd_pass`` over ``gaussians.batches``: in place, returns the mean loss.

    ``weight (K, C)``, ``bias (K,)`` and their ``velocity``.
    """
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
            for value, speed, grad in zip((weight, bias), velocity, grads, strict=True):
                speed.mul_(momentum).add_(grad.add_(value, alpha=weight_decay))
                value.add_(speed, alpha=-lr)
    return total.item() / (len(bias) * per_class)


def _block(
    gaussians: ClassGaussians, counts: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Noise of M batches with ``counts (M, K)``, of which the largest is n.

    Which columns are used ``(M, K, 1, n)``, white noise of the logits ``(M, K, K - 1, n)`` and
    coloured noise of the features ``(M) of (K, K - 1, C)``.
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
    """Summed loss, and gradient of the mean loss, of one batch; ``centre (K, K - 1)`` of logits.

    A feature is ``mean + white gain + rest``, the rest without what it would add to the logits.
    """
    d = centre.shape[1]
    logits = torch.baddbmm(centre[..., None], seen.factor, white)
    log_p = torch.nn.functional.pad(logits, (0, 0, 0, 1)).log_softmax(1).mul_(used)
    # Every feature of a class has that class as its label.
    loss = -log_p.diagonal().sum()
    error = log_p.exp_()
    error.diagonal().sub_(1)
    error *= used / used.sum()
    sums = error.sum(2)
    error = error[:, :-1]
    # The rests, weighted by the errors and summed, have rows with covariance error error^T.
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

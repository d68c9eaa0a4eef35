"""One pass of SGD over virtual features without making them (LMD paper, Eq. 8).

A linear classifier sees only the K logits of a virtual feature, and the gradient of a batch has K
rows. Given the logits, the residual of a feature is Gaussian, and so is a sum of n residuals of a
class with known coefficients, with rank K - 1 at most. So a batch needs K - 1 coloured rows for
each class instead of n, and its updates have the same distribution as those on drawn features.

The covariance of the logits may be that of a classifier up to ``STALE`` ago; their mean is exact.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lmd.methods.lmd.gaussians import ClassGaussians, cholesky, mixed_counts

Objective = Callable[[Tensor, Tensor], Tensor]

# Quasi-random draws of each class, and of all classes. More do not change the solution noticeably,
# and the cost of an evaluation is their number times K squared.
DRAWS, ALL_DRAWS = 4096, 2**17
# Logits in memory at a time, 8 bytes each and in a few copies.
LOGITS = 2**22
# Rows of real features in float64 at a time.
ROWS = 8192
# Curvature of the softmax for classes that overlap somewhat. It balances features against penalty
# in the metric of the solver, which changes its speed, not its solution.
CURVATURE = 0.1


@dataclass(frozen=True)
class Solution:
    """Classifier ``weight (K, C)``, ``bias (K,)`` in float64, and how well it was solved for.

    ``loss`` is without the penalty, ``grad_norm`` the norm of the gradient with it, and
    ``evaluations`` the number of evaluations.
    """

    weight: Tensor
    bias: Tensor
    loss: float
    grad_norm: float
    evaluations: int


def sgd_pass(
    batches: Iterable[tuple[Tensor, Tensor]],
    weight: Tensor,
    bias: Tensor,
    velocity: tuple[Tensor, Tensor],
    *,
    lr: float,
    momentum: float,
    weight_decay: float,
) -> float:
    """One pass of SGD with cross-entropy, in place; returns the mean loss before each update.

    ``weight (K, C)``, ``bias (K,)`` and their ``velocity``; batches of ``(B, C)`` and ``(B,)``.
    The gradient is written out: autograd would cost more than the batch itself.
    """
    # A tensor: reading the loss of each batch would wait for the device.
    total, seen = torch.zeros((), dtype=torch.float64, device=weight.device), 0
    for features, labels in batches:
        n = len(labels)
        log_p = torch.addmm(bias, features, weight.T).log_softmax(1)
        total -= log_p.gather(1, labels[:, None]).sum()
        seen += n
        error = log_p.exp_()
        error[torch.arange(n, device=error.device), labels] -= 1
        error /= n
        for value, speed, grad in (
            (weight, velocity[0], error.T @ features),
            (bias, velocity[1], error.sum(0)),
        ):
            speed.mul_(momentum).add_(grad.add_(value, alpha=weight_decay))
            value.add_(speed, alpha=-lr)
    return total.item() / max(seen, 1)


def enough_draws(classes: int) -> int:
    """Number of draws of each class: a power of two, as Sobol sequences need."""
    return min(DRAWS, 1 << max(1, ALL_DRAWS // classes).bit_length() - 1)


def normal_draws(count: int, dimensions: int, generator: torch.Generator) -> Tensor:
    """Scrambled Sobol draws of the standard normal ``(count, dimensions)`` in float64.

    Neighbours are pairs of opposite sign, so the mean is zero.
    """
    seed = int(torch.randint(2**31, (), generator=generator))
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed)
    uniform = engine.draw((count + 1) // 2, dtype=torch.float64)
    half = torch.special.ndtri(uniform.clamp(1e-9, 1 - 1e-9))
    return torch.stack([half, -half], dim=1).flatten(0, 1)[:count]


def expected_cross_entropy(mean: Tensor, covariance: Tensor, draws: Tensor) -> Objective:
    """Cross-entropy of virtual features, averaged over classes, as a function of weight and bias.

    ``mean (K, C)``, ``covariance (K, C, C)`` (float32 is enough), standard normal ``draws
    (R, K - 1)``: they become logits, relative to the last one (a softmax sees only differences), so
    no virtual feature is ever made.
    """
    classes, width = mean.shape
    rows = covariance.reshape(classes * width, width)

    def objective(weight: Tensor, bias: Tensor) -> Tensor:
        w = weight[:-1] - weight[-1]
        centre = mean @ w.T + (bias[:-1] - bias[-1])
        # Reading the covariances is nearly all of the cost. So they keep their own precision, and
        # the product is written so that the gradient of W Sigma W^T reuses W Sigma.
        half = (rows @ w.detach().to(rows.dtype).T).to(mean.dtype)
        product = half.view(classes, width, classes - 1).mT @ w.T
        both = product + product.mT
        factor = small_cholesky(both - both.detach() / 2)
        some = max(1, LOGITS // (classes * len(draws)))
        if some >= classes:
            return _entropy(centre, factor, draws)
        # To save memory, compute the logits of some classes at a time, and again for the gradient.
        losses = []
        for first in range(0, classes, some):
            part = centre[first : first + some], factor[first : first + some]
            loss = checkpoint(_entropy, *part, draws, first, use_reentrant=False)
            losses.append(len(part[0]) / classes * loss)
        return torch.stack(losses).sum()

    return objective


def _entropy(centre: Tensor, factor: Tensor, draws: Tensor, first: int = 0) -> Tensor:
    """Mean cross-entropy of the draws of n classes, starting with the class ``first``.

    ``centre (n, K - 1)`` and ``factor (n, K - 1, K - 1)`` are of logits relative to the last one.
    """
    logits = centre[..., None] + factor @ draws.T
    logits = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1)
    own = logits[:, first:].diagonal(dim1=0, dim2=1).mean()
    loss: Tensor = logits.logsumexp(1).mean() - own
    return loss


def small_cholesky(matrices: Tensor) -> Tensor:
    """Differentiable factors of ``(K, K - 1, K - 1)``, jittered as much as float32 errors need."""
    scale = matrices.detach().diagonal(dim1=1, dim2=2).mean(1) + 1e-30
    jitter = 1e-6
    while True:
        shifted = matrices + torch.diag_embed((jitter * scale)[:, None].expand(matrices.shape[:2]))
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not failed.any() or jitter > 1:
            return factor
        jitter *= 10


def mean_cross_entropy(features: Tensor, labels: Tensor) -> Objective:
    """Cross-entropy of real features ``(N, C)`` as a function of weight and bias."""

    def objective(weight: Tensor, bias: Tensor) -> Tensor:
        total = weight.new_zeros(())
        for x, y in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            total = total + F.cross_entropy(x.double() @ weight.T + bias, y, reduction="sum")
        return total / len(labels)

    return objective


def minimise(
    objective: Objective,
    weight: Tensor,
    bias: Tensor,
    centre: Tensor,
    metric: Tensor,
    *,
    penalty: float,
    anchor: Tensor | None = None,
    iterations: int = 200,
    change: float = 1e-10,
) -> Solution:
    """The argmin of ``objective(W, b) + penalty/2 |W - anchor|^2`` by L-BFGS.

    It starts from ``weight (K, C)`` and ``bias (K,)``; without an ``anchor (K, C)`` that is zero.
    ``objective`` sees features minus ``centre (C,)``. ``metric (C, C)`` is the covariance of all
    features: in its coordinates the curvature is about the same in every direction. It ends when
    the value changes by less than ``change``.
    """
    weight, bias = weight.double().cpu(), bias.double().cpu()
    pull = torch.zeros_like(weight) if anchor is None else anchor.double().cpu()
    metric = CURVATURE * metric
    metric.diagonal().add_(penalty)
    factor = cholesky(metric)
    v = (weight @ factor).requires_grad_()
    b = (bias + weight @ centre).requires_grad_()
    solver = torch.optim.LBFGS(
        [v, b],
        max_iter=iterations,
        max_eval=2 * iterations,
        tolerance_grad=1e-6,
        tolerance_change=change,
        history_size=20,
        line_search_fn="strong_wolfe",
    )
    count = 0

    def closure() -> Tensor:
        nonlocal count
        count += 1
        solver.zero_grad()
        w = torch.linalg.solve_triangular(factor, v, upper=False, left=False)
        loss: Tensor = objective(w, b) + penalty / 2 * (w - pull).square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    with torch.no_grad():
        weight = torch.linalg.solve_triangular(factor, v, upper=False, left=False)
    weight.requires_grad_()
    loss = objective(weight, b)
    grads = torch.autograd.grad(loss + penalty / 2 * (weight - pull).square().sum(), [weight, b])
    norm = torch.cat([g.flatten() for g in grads]).norm().item()
    weight = weight.detach()
    return Solution(weight, b.detach() - weight @ centre, loss.item(), norm, count)


# Batches for which noise is drawn at a time.
BLOCK = 32
# Relative change of the classifier (its norm) after which the covariances are computed again.
STALE = 3e-3
# With fewer channels, drawing the features costs less than the small matrices here.
LEAST_CHANNELS = 128


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
    """Like ``sgd_pass`` over ``gaussians.batches``: in place, returns the mean loss.

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
    log_p = torch.nn.functional.pad(logits, (0, 0, 0, 1)).log_softmax(1).mul_(used)
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

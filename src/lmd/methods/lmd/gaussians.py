"""Honest moments of rare classes, and features of several levels on one scale.

The encoder was trained on the images of a rare class, so their mean lies too far from the other
classes, and their covariance has few directions. Both are shrunk, the more the fewer images there
are.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lmd.base.errors import LmdError

T = TypeVar("T")
Adjust = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Distance = Literal["mahalanobis", "literal"]

# A class has no spread if its total variance is below this share of the largest one: copies of one
# image differ only by rounding.
NO_SPREAD = 1e-6

# Rows of virtual features made at a time.
BLOCK = 4096
# numpy draws without replacement from fewer than this many.
MOST_VIRTUAL_FEATURES = 10**9


def cholesky(matrix: Tensor) -> Tensor:
    """Lower factor of a covariance ``(C, C)``; a singular one gets the least jitter that works.

    The jitter starts at the rounding error of the mean variance and grows tenfold.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not failed:
        return factor
    scale = matrix.diagonal().mean().item() or 1.0
    jitter = 10 * torch.finfo(matrix.dtype).eps * scale
    while failed:
        if not jitter < scale:
            raise LmdError(
                "covariance: must be finite and positive semi-definite, but it has no Cholesky "
                "factor; look for NaN or infinite features (a diverged encoder: lower its lr)"
            )
        shifted = matrix.clone()
        shifted.diagonal().add_(jitter)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        jitter *= 10
    return factor


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


def class_moments(
    features: Tensor, labels: Tensor, classes: int, ridge: float = 0.0
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean ``(K, C)``, unbiased covariance + ridge I ``(K, C, C)`` and counts ``(K,)`` (Eq. 6).

    A class without spread (one image, however often drawn) gets the pooled within-class covariance.
    So does a class that was not drawn, around the mean of the other means.
    """
    counts = torch.bincount(labels, minlength=classes)
    order = labels.argsort(stable=True)
    mean = features.new_zeros(classes, features.shape[1])
    covariance = features.new_zeros(classes, features.shape[1], features.shape[1])
    start = 0
    for k, n in enumerate(counts.tolist()):
        if n:
            # A copy of one class at a time, not of all features.
            rows = features[order[start : start + n]]
            mean[k] = rows.mean(0)
            rows -= mean[k]
            torch.mm(rows.T, rows, out=covariance[k])
            covariance[k] /= max(n - 1, 1)
        start += n
    spread = covariance.diagonal(dim1=1, dim2=2).sum(1)
    spreads = spread > NO_SPREAD * spread.max()
    # Copies of one image tell nothing about the spread within classes, however many there are.
    freedom = (counts - 1).clamp(min=0).to(mean) * spreads
    pooled = torch.tensordot(freedom, covariance, 1) / freedom.sum().clamp(min=1)
    covariance[~spreads] = pooled
    mean[counts == 0] = mean[counts > 0].mean(0)
    covariance.diagonal(dim1=1, dim2=2).add_(ridge)
    return mean, covariance, counts


def mixed_counts(
    classes: int, per_class: int, batch: int, generator: torch.Generator
) -> Iterator[list[int]]:
    """How many of each class ``(K,)`` are in each batch of a shuffled ``per_class`` of every class.

    Batch by batch without replacement, so that no order of all of them is ever held.
    """
    rng = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    left = np.full(classes, per_class)
    while (total := int(left.sum())) > 0:
        taken = rng.multivariate_hypergeometric(left, min(batch, total), method="marginals")
        left -= taken
        yield taken.tolist()


@dataclass(frozen=True)
class Forms:
    """The K quadratic forms of a distance, around the mean of the means, and their sum."""

    centre: Tensor  # (C,)
    means: Tensor  # (K, C), minus the centre
    matrices: Tensor  # (K, C, C)
    total: Tensor  # (C, C): sum of the matrices
    linear: Tensor  # (C,): sum of matrix @ mean
    constant: Tensor  # (): sum of mean @ matrix @ mean


class _OwnAndTotal(torch.autograd.Function):
    """Distance to the own class and sum over all classes; the gradient is a by-product."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, labels: Tensor, forms: Forms) -> tuple[Tensor, Tensor]:
        # Centred, so that large feature means do not cancel in float32.
        z = features - forms.centre
        total_half = z @ forms.total - forms.linear
        total = torch.linalg.vecdot(total_half - forms.linear, z) + forms.constant
        # Grouped by class: one product for each class on rows that lie together.
        order = labels.argsort()
        counts = torch.bincount(labels, minlength=len(forms.means)).tolist()
        away = z[order] - forms.means[labels[order]]
        pulled = torch.empty_like(away)
        start = 0
        for k, n in enumerate(counts):
            if n:
                rows = slice(start, start + n)
                torch.mm(away[rows], forms.matrices[k], out=pulled[rows])
            start += n
        own_half = torch.empty_like(z)
        own_half[order] = pulled
        own = z.new_empty(len(z))
        own[order] = torch.linalg.vecdot(pulled, away)
        ctx.save_for_backward(own_half, total_half)
        return own, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_own: Tensor, grad_total: Tensor) -> tuple[Tensor, None, None]:
        own_half, total_half = ctx.saved_tensors
        grad = grad_own.unsqueeze(1) * own_half + grad_total.unsqueeze(1) * total_half
        return 2 * grad, None, None


class ClassGaussians(nn.Module):
    """``mean (K, C)`` and ``covariance (K, C, C)`` of each class, kept in buffers.

    Factors and inverses are computed on demand, and again after the moments have changed (by an
    update, a loaded checkpoint or another device).
    """

    mean: Tensor
    covariance: Tensor

    def __init__(
        self, classes: int, features: int, *, ridge: float = 1e-2, decay: float = 0.999
    ) -> None:
        super().__init__()
        self.ridge, self.decay = ridge, decay
        self.register_buffer("mean", torch.zeros(classes, features))
        self.register_buffer("covariance", torch.eye(features).repeat(classes, 1, 1))
        self._derived: dict[str, Any] = {}

    @torch.no_grad()
    def update(
        self, features: Tensor, labels: Tensor, step: int = 0, adjust: Adjust | None = None
    ) -> Self:
        """Average over EM iterations with decay min(1 - 1/(step+1), 0.999).

        Step 0 takes the moments of ``features (N, C)``, ``labels (N,)``; the first 1000
        steps are a running mean. A class that was not drawn this time keeps its moments. ``adjust``
        may change new means and covariances before they are averaged.
        """
        rows = features.to(self.mean), labels.to(self.mean.device)
        mean, covariance, counts = class_moments(*rows, len(self.mean), self.ridge)
        if adjust is not None:
            mean, covariance = adjust(mean, covariance)
        decay = min(1 - 1 / (step + 1), self.decay)
        drawn = counts > 0 if step else torch.ones_like(counts, dtype=torch.bool)
        weight = torch.where(drawn, 1 - decay, 0.0).to(mean)
        if decay:
            self.mean.lerp_(mean, weight[:, None])
            self.covariance.lerp_(covariance, weight[:, None, None])
        else:
            # Replaced rather than averaged, so that not even a NaN of before stays.
            self.mean.copy_(torch.where(drawn[:, None], mean, self.mean))
            self.covariance.copy_(torch.where(drawn[:, None, None], covariance, self.covariance))
        return self

    def _cached(self, name: str, make: Callable[[], T]) -> T:
        key = [(moments, moments._version) for moments in (self.mean, self.covariance)]
        old = self._derived.get("key") or [(None, 0)] * 2
        if any(a is not b or v != w for (a, v), (b, w) in zip(key, old, strict=True)):
            self._derived = {"key": key}
        if name not in self._derived:
            self._derived[name] = make()
        derived: T = self._derived[name]
        return derived

    @torch.no_grad()
    def factors(self) -> Tensor:
        """Lower Cholesky factors of the covariances ``(K, C, C)``."""
        # Class by class: batched factorisations of large matrices fail in some LAPACKs.
        return self._cached("factors", lambda: torch.stack([cholesky(c) for c in self.covariance]))

    @torch.no_grad()
    def precision(self) -> Tensor:
        """Inverse covariances ``(K, C, C)``, from the Cholesky factors."""

        def invert() -> Tensor:
            # Factors that are not there yet are not kept: they are as large as the inverses.
            factors = self._derived.get("factors", map(cholesky, self.covariance))
            precision = torch.empty_like(self.covariance)
            for factor, inverse in zip(factors, precision, strict=True):
                torch.cholesky_inverse(factor, out=inverse)
            return precision

        return self._cached("precision", invert)

    @torch.no_grad()
    def forms(self, distance: Distance) -> Forms:
        """The quadratic forms of a distance; making them waits for the device."""

        def make() -> Forms:
            matrices = self.precision() if distance == "mahalanobis" else self.covariance
            centre = self.mean.mean(0)
            means = self.mean - centre
            linear = torch.einsum("kcd,kd->kc", matrices, means)
            constant = (linear * means).sum()
            return Forms(centre, means, matrices, matrices.sum(0), linear.sum(0), constant)

        return self._cached(distance, make)

    def own_and_total(
        self, features: Tensor, labels: Tensor, distance: Distance = "mahalanobis"
    ) -> tuple[Tensor, Tensor]:
        """Squared distance to the own class ``(B,)`` and the sum over all classes ``(B,)``.

        The labels are read: on the CPU, that waits for no device.
        The sum of K quadratic forms is one quadratic form with the sum of the matrices.
        ``literal`` puts the covariance itself in place of its inverse, as Eq. 10-11 are printed.
        """
        return _OwnAndTotal.apply(  # type: ignore[no-any-return, no-untyped-call]
            features, labels, self.forms(distance)
        )

    @torch.no_grad()
    def noise(self, k: int, rows: int, generator: torch.Generator) -> Tensor:
        """Draws of ``N(0, Sigma_k)``: ``(rows, C)``."""
        size = (rows, self.mean.shape[1])
        white = torch.randn(size, generator=generator, dtype=self.mean.dtype)
        return white.to(self.mean.device) @ self.factors()[k].T

    @torch.no_grad()
    def batches(
        self, per_class: int, batch: int, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """``per_class`` virtual features of every class in mixed batches ``(batch, C)``.

        They are made on demand, so the memory does not grow with ``per_class``. Within a batch
        they are sorted by class.
        """
        classes = torch.arange(len(self.mean), device=self.mean.device)
        planned = mixed_counts(len(self.mean), per_class, batch, generator)
        while block := list(islice(planned, max(BLOCK // batch, 1))):
            by_class = [
                self.noise(k, sum(counts), generator).add_(self.mean[k]).split(counts)
                for k, counts in enumerate(map(list, zip(*block, strict=True)))
            ]
            for counts, parts in zip(block, zip(*by_class, strict=True), strict=True):
                repeats = torch.tensor(counts, device=classes.device)
                yield torch.cat(parts), classes.repeat_interleave(repeats)


def pooled_covariance(covariance: Tensor, counts: Tensor) -> Tensor:
    """The mean ``(C, C)`` of ``(K, C, C)`` with weights ``n_k - 1``, from counts ``(K,)``."""
    freedom = (counts.to(covariance) - 1).clamp(min=0)
    freedom = freedom if freedom.sum() > 0 else torch.ones_like(freedom)
    pooled: Tensor = torch.tensordot(freedom / freedom.sum(), covariance, 1)
    return pooled


def shrunk_moments(
    mean: Tensor,
    covariance: Tensor,
    counts: Tensor,
    *,
    mean_images: float = 0.0,
    covariance_images: float = 0.0,
    mean_error: bool = False,
) -> tuple[Tensor, Tensor]:
    """Means moved to their centre by ``kappa/(n + kappa)``, covariances to the pooled one.

    ``mean (K, C)``, ``covariance (K, C, C)``, ``counts (K,)`` are of training images. ``kappa`` is
    ``mean_images``; the covariances move by ``nu/(n + nu)`` with ``nu = covariance_images``;
    ``mean_error`` adds ``Sigma_k / n_k``, the uncertainty of the mean.
    """
    n = counts.to(mean).clamp(min=1)
    if mean_images:
        centre = mean.mean(0)
        mean = centre + (n / (n + mean_images))[:, None] * (mean - centre)
    if covariance_images:
        share = (covariance_images / (n + covariance_images))[:, None, None]
        covariance = torch.lerp(covariance, pooled_covariance(covariance, n), share)
    if mean_error:
        covariance = covariance * (1 + 1 / n)[:, None, None]
    return mean, covariance


def level_scale(features: Tensor, widths: Sequence[int]) -> Tensor:
    """Factors ``(C,)`` that give every level of ``features (N, C)`` the variance of the first.

    ``widths`` belong to the levels; the factors of the first are 1. A constant level gets 1 too.
    """
    totals = [part.var(0).sum() for part in features.split(list(widths), dim=1)]
    factors = [torch.where(t > 0, (totals[0] / t).sqrt(), 1.0) for t in totals]
    return torch.cat([f.expand(w) for f, w in zip(factors, widths, strict=True)])


def discriminant(mean: Tensor, pooled: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Weight ``(K, C)`` and bias ``(K,)`` of the logits ``-d_k / 2T``, up to a common term.

    ``d_k`` is the squared Mahalanobis distance to ``mean (K, C)`` under one covariance ``pooled
    (C, C)``, so the logits are linear in the features.
    """
    centre = mean.mean(0)
    away = mean - centre
    weight = torch.cholesky_solve(away.T, cholesky(pooled)).T / temperature
    bias = -(weight * away).sum(1) / 2 - weight @ centre
    return weight, bias

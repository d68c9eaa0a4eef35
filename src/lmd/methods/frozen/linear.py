"""Linear classifiers, and the scale on which they are fitted."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from lmd.methods.lmd.moments import level_scale

# Rows of features in one product.
ROWS = 8192


@dataclass(frozen=True)
class Linear:
    """Logits ``weight (K, C) @ feature + bias (K,)``, both in float64."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> Self:
        """From tensors of any precision; without a bias it is zero."""
        weight = weight.detach().double().cpu()
        return cls(weight, weight.new_zeros(len(weight)) if bias is None else bias.double().cpu())

    def logits(self, features: Tensor) -> Tensor:
        """``(N, C) → (N, K)`` in float64; the product has the precision of the features."""
        weight = self.weight.to(features.dtype).T
        found = [(rows @ weight).double() for rows in features.split(ROWS)]
        return torch.cat(found) + self.bias


@dataclass(frozen=True)
class Scaling:
    """Features minus ``centre (C,)``, times ``scale (C,)``: mean 0 and a mean variance of 1.

    Penalties and ridges then mean the same for every encoder. One factor for all features of a
    level keeps their relative spread, which is information.
    """

    centre: Tensor
    scale: Tensor

    @classmethod
    def of(cls, features: Tensor, widths: Sequence[int] | None = None) -> Self:
        """From training features ``(N, C)``; ``widths`` are those of the levels of the encoder."""
        total = torch.zeros(2, features.shape[1], dtype=torch.float64)
        for rows in features.split(ROWS):
            total[0] += rows.sum(0, dtype=torch.float64)
        centre = total[0] / len(features)
        for rows in features.split(ROWS):
            total[1] += (rows - centre.to(rows)).square().sum(0, dtype=torch.float64)
        variance = (total[1] / max(len(features) - 1, 1)).mean().item()
        factors = torch.ones_like(centre)
        if widths is not None and len(widths) > 1:
            factors = level_scale(features, widths).double()
            variance = (total[1] / max(len(features) - 1, 1) * factors.square()).mean().item()
        return cls(centre, factors / (variance**0.5 or 1.0))

    def apply(self, features: Tensor) -> Tensor:
        """A scaled copy ``(N, C)`` in float32."""
        found = torch.empty(features.shape, dtype=torch.float32)
        centre, scale = self.centre.float(), self.scale.float()
        for out, rows in zip(found.split(ROWS), features.split(ROWS), strict=True):
            torch.mul(rows.float() - centre, scale, out=out)
        return found

    def fold(self, classifier: Linear) -> Linear:
        """The classifier of scaled features as one of features as they are."""
        weight = classifier.weight * self.scale
        return Linear(weight, classifier.bias - weight @ self.centre)

    def unfold(self, classifier: Linear) -> Linear:
        """The classifier of features as they are as one of scaled features."""
        bias = classifier.bias + classifier.weight @ self.centre
        return Linear(classifier.weight / self.scale, bias)

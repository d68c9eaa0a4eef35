"""Stage 2 of LMD written straight from the formulas, regardless of cost.

All virtual features are drawn in float64 and held at once, the classifier takes shuffled batches of
them through autograd, and every distance of FDC solves its own system.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

Array = NDArray[np.float64]


def moments(features: Array, labels: NDArray[np.int64], classes: int, ridge: float):
    """Mean ``(K, C)`` and covariance ``(K, C, C)`` of each class."""
    mean = np.stack([features[labels == k].mean(0) for k in range(classes)])
    covariance = np.stack([np.cov(features[labels == k], rowvar=False) for k in range(classes)])
    return mean, covariance + ridge * np.eye(features.shape[1])


def average(old: Array, new: Array, step: int, limit: float = 0.999) -> Array:
    """The average over EM iterations."""
    decay = min(1 - 1 / (step + 1), limit)
    return decay * old + (1 - decay) * new


def virtual_features(mean: Array, covariance: Array, per_class: int, seed: int):
    """All of them: ``(K R, C)`` in float32, made in float64 by SVD, and labels ``(K R,)``."""
    rng = np.random.default_rng(seed)
    drawn = np.stack(
        [rng.multivariate_normal(m, c, per_class) for m, c in zip(mean, covariance, strict=True)]
    )
    labels = np.repeat(np.arange(len(mean)), per_class)
    return torch.from_numpy(drawn.reshape(len(labels), -1)).float(), torch.from_numpy(labels)


def sgd_epoch(
    features: Tensor, labels: Tensor, layer: nn.Linear, optimizer: torch.optim.Optimizer, batch: int
) -> float:
    """Shuffled batches through autograd; the mean loss."""
    total = 0.0
    for rows in torch.randperm(len(labels)).split(batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(layer(features[rows]), labels[rows])
        loss.backward()
        optimizer.step()
        total += loss.item() * len(rows)
    return total / len(labels)


def fdc(features: Tensor, labels: Tensor, mean: Tensor, covariance: Tensor) -> Tensor:
    """Psi - Phi of ``(B, C)``: a Cholesky solve for each sample and class."""
    psi = phi = features.new_zeros(())
    classes = len(mean)
    for x, y in zip(features, labels.tolist(), strict=True):
        for k in range(classes):
            away = (x - mean[k])[:, None]
            solved = torch.cholesky_solve(away, torch.linalg.cholesky(covariance[k]))
            distance = (away * solved).sum()
            if k == y:
                psi = psi + distance
            else:
                phi = phi + distance / (classes - 1)
    return (psi - phi) / len(features)

"""Linear classifiers in closed form: class priors, norms of weights and class means."""

import torch
from torch import Tensor
from torch.nn import functional as F

KANG = "Kang et al., ICLR 2020"
MENON = "Menon et al., Long-tail learning via logit adjustment, ICLR 2021"
REN = "Ren et al., Balanced meta-softmax for long-tailed visual recognition, NeurIPS 2020"
TAUS = tuple(step / 10 for step in range(21))


def tau_normalise(weight: Tensor, tau: float) -> Tensor:
    """``w_k / ‖w_k‖^τ`` (Kang et al., section 4): ``(K, C) → (K, C)``; a zero row stays zero."""
    norm: Tensor = torch.linalg.vector_norm(weight, dim=1, keepdim=True)
    return torch.where(norm > 0, weight / norm.pow(tau), 0)


def log_priors(counts: Tensor) -> Tensor:
    """Return ``ln π`` with ``π = n / Σn``, where no image counts as one: ``(K,) → (K,)``."""
    return torch.log_softmax(counts.clamp(min=1).log(), dim=0)


def nearest_mean_classifier(
    features: Tensor, labels: Tensor, classes: int
) -> tuple[Tensor, Tensor]:
    """Weight ``(K, C)`` and bias ``(K,)`` that rank as the nearest class mean does.

    Kang et al., section 4 (NCM): features are centred on the training mean μ and L2-normalised, and
    so is each class mean m_k of them; the nearest mean wins. For unit vectors this is the largest
    inner product, and the length of f − μ is the same for all classes, so ``m_k · (f − μ)``, which
    is linear in f, ranks as the distance does. The logits are divided by the mean of ‖f − μ‖ over
    the images: they are the cosine for a feature of mean length.
    """
    centre = features.mean(0)
    length = (features - centre).norm(dim=1).mean()
    unit = F.normalize(features - centre, dim=1)
    sums = unit.new_zeros(classes, unit.shape[1]).index_add_(0, labels, unit)
    weight = F.normalize(sums, dim=1) / length.clamp_min(torch.finfo(length.dtype).tiny)
    return weight, -weight @ centre

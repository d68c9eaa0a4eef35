"""The losses of the E step: numbers, naive loops, limits and gradients."""

import pytest
import torch
from torch.nn import functional as F
from toys import LABELS, LOGITS, fdc_loss

from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.icc import attraction_and_repulsion, gce_loss


def reference_gaussians():
    gaussians = ClassGaussians(3, 2)
    gaussians.mean.copy_(torch.tensor([[1.0, 0.2], [0.0, 1.0], [-0.5, 0.3]]))
    gaussians.covariance.copy_(
        torch.tensor(
            [[[0.5, 0.1], [0.1, 0.4]], [[0.3, 0.0], [0.0, 0.6]], [[0.8, -0.2], [-0.2, 0.5]]]
        )
    )
    features = torch.tensor([[0.8, 0.1], [0.1, 1.2], [-0.4, 0.6], [0.9, 0.5]])
    return gaussians, features, torch.tensor([0, 1, 2, 0])


def test_fdc_numbers():
    gaussians, features, labels = reference_gaussians()
    psi, phi = attraction_and_repulsion(features, labels, gaussians)
    close = {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(psi.item(), 0.1815424, **close)
    torch.testing.assert_close(phi.item(), 3.2488122, **close)
    torch.testing.assert_close(fdc_loss(features, labels, gaussians).item(), -3.0672698, **close)
    psi, phi = attraction_and_repulsion(features, labels, gaussians, "literal")
    torch.testing.assert_close(psi.item(), 0.03275, **close)
    torch.testing.assert_close(phi.item(), 0.775125, **close)


@pytest.mark.parametrize("distance", ["mahalanobis", "literal"])
def test_fdc_against_a_naive_loop_with_gradients(distance):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(60, 5, generator=g, dtype=torch.float64) + 2
    y = torch.arange(60) % 4
    gaussians = ClassGaussians(4, 5).double().update(x, y)
    z = x[:10].clone().requires_grad_()
    loss = fdc_loss(z, y[:10], gaussians, distance)
    (fast,) = torch.autograd.grad(loss, z)
    psi = phi = 0
    for i in range(10):
        for k in range(4):
            away = z[i] - gaussians.mean[k]
            sigma = gaussians.covariance[k]
            form = torch.linalg.inv(sigma) if distance == "mahalanobis" else sigma
            if k == y[i]:
                psi = psi + away @ form @ away / 10
            else:
                phi = phi + away @ form @ away / (10 * 3)
    torch.testing.assert_close(loss, psi - phi)
    (slow,) = torch.autograd.grad(psi - phi, z)
    torch.testing.assert_close(fast, slow)


def test_fdc_falls_when_a_feature_moves_to_its_own_mean():
    gaussians, features, labels = reference_gaussians()
    gaussians.covariance.copy_(gaussians.covariance.mean(0).expand(3, 2, 2))
    before = [fdc_loss(features[i : i + 1], labels[i : i + 1], gaussians) for i in range(4)]
    x = features.clone().requires_grad_()
    fdc_loss(x, labels, gaussians).backward()
    towards = gaussians.mean[labels] - features
    psi, _ = attraction_and_repulsion(gaussians.mean[labels], labels, gaussians)
    assert psi.abs() < 1e-6
    away = features - 0.5 * towards
    for i in range(4):
        closer = features[i] + 0.5 * towards[i]
        own = [
            attraction_and_repulsion(f[None], labels[i : i + 1], gaussians)[0]
            for f in (closer, features[i], away[i])
        ]
        assert own[0] < own[1] < own[2]
    # With one covariance for all classes Psi - Phi is linear and falls along (own - other means).
    others = (gaussians.mean.sum(0) - gaussians.mean[labels]) / 2
    nearer = features + 0.1 * (gaussians.mean[labels] - others)
    for i in range(4):
        assert fdc_loss(nearer[i : i + 1], labels[i : i + 1], gaussians) < before[i]
    assert ((x.grad * (gaussians.mean[labels] - others)).sum(1) < 0).all()


def test_gce_number_and_limits():
    labels = LABELS
    torch.testing.assert_close(gce_loss(LOGITS, labels).item(), 0.7469335, rtol=1e-5, atol=1e-6)
    p = LOGITS.double().softmax(1)
    naive = sum((1 - p[i, labels[i]] ** 0.4) / 0.4 for i in range(5)) / 5
    torch.testing.assert_close(gce_loss(LOGITS.double(), labels, q=0.4), naive)
    near = gce_loss(LOGITS.double(), labels, q=1e-6)
    torch.testing.assert_close(near, F.cross_entropy(LOGITS.double(), labels), rtol=1e-5, atol=0)


def test_gce_has_a_gradient_where_the_probability_underflows():
    logits = torch.tensor([[0.0, 120.0, 3.0]], requires_grad=True)
    gce_loss(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()

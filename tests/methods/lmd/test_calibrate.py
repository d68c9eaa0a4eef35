"""The M step's objective and its pass of SGD."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from toys import overlapping, virtual_sample

from lmd.methods.lmd import vfc
from lmd.methods.lmd.descent import SGD, sgd_pass
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.vfc import DRAWS, enough_draws, expected_cross_entropy, normal_draws


def test_sgd_pass_is_torchs_sgd():
    features, labels = overlapping()
    batches = list(zip(features.split(64), labels.split(64), strict=True))
    layer = nn.Linear(8, 4)
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    for _ in range(2):  # the second pass needs the velocity of the first
        losses = []
        for x, y in batches:
            optimizer.zero_grad()
            loss = F.cross_entropy(layer(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item() * len(y))
        mean = sgd_pass(batches, SGD(weight, bias, velocity, 0.05, 0.9, 0.01))
        assert mean == pytest.approx(sum(losses) / 400, rel=1e-5)
    torch.testing.assert_close(weight, layer.weight.detach())
    torch.testing.assert_close(bias, layer.bias.detach())


def test_normal_draws_are_normal_and_follow_the_generator():
    draws = normal_draws(4096, 5, torch.Generator().manual_seed(0))
    assert draws.mean(0).abs().max() < 1e-12
    assert (draws.T.cov() - torch.eye(5)).abs().max() < 0.02
    assert abs((draws < 1).double().mean() - 0.841345) < 0.002
    assert torch.equal(draws, normal_draws(4096, 5, torch.Generator().manual_seed(0)))
    assert not torch.equal(draws, normal_draws(4096, 5, torch.Generator().manual_seed(1)))
    assert normal_draws(5, 1, torch.Generator()).shape == (5, 1)


def test_expected_cross_entropy_is_that_of_virtual_features():
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).double().update(features, labels)
    g = torch.Generator().manual_seed(1)
    weight = (0.5 * torch.randn(4, 8, generator=g)).double().requires_grad_()
    bias = torch.randn(4, generator=g).double().requires_grad_()
    draws = normal_draws(4096, 3, g)
    expected = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)(weight, bias)
    virtual, y = virtual_sample(gaussians, 50_000, g)
    each = F.cross_entropy(virtual @ weight.T + bias, y, reduction="none")
    error = each.std().item() / 200_000**0.5
    assert abs(expected - each.mean()) < 5 * error + 1e-3
    gradient = torch.autograd.grad(expected, [weight, bias])
    sampled = torch.autograd.grad(each.mean(), [weight, bias])
    for ours, theirs in zip(gradient, sampled, strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_gradient_of_the_expected_cross_entropy_is_exact():
    features, labels = overlapping(dim=5)
    gaussians = ClassGaussians(4, 5).double().update(features, labels)
    draws = normal_draws(64, 3, torch.Generator().manual_seed(0))
    objective = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)
    g = torch.Generator().manual_seed(1)
    weight = torch.randn(4, 5, generator=g).double().requires_grad_()
    bias = torch.randn(4, generator=g).double().requires_grad_()
    gradient = torch.autograd.grad(objective(weight, bias), weight)[0]
    for k, c in ((0, 0), (3, 4), (2, 1)):
        step = torch.zeros_like(weight)
        step[k, c] = 1e-5
        with torch.no_grad():
            slope = (objective(weight + step, bias) - objective(weight - step, bias)) / 2e-5
        # The jitter on the diagonal follows the scale without a derivative: 1e-6 relative.
        torch.testing.assert_close(gradient[k, c], slope, rtol=1e-4, atol=1e-6)


def test_many_classes_take_turns_with_the_same_result(monkeypatch):
    features, labels = overlapping(dim=5)
    gaussians = ClassGaussians(4, 5).double().update(features, labels)
    draws = normal_draws(64, 3, torch.Generator().manual_seed(0))
    objective = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).double()
    found = []
    for held in (2**22, 3 * 4 * 64, 1):  # all four classes, three and one, one at a time
        monkeypatch.setattr(vfc, "LOGITS", held)
        w, b = weight.clone().requires_grad_(), torch.zeros(4).double().requires_grad_()
        loss = objective(w, b)
        found.append((loss, *torch.autograd.grad(loss, [w, b])))
    for other in found[1:]:
        for ours, expected in zip(other, found[0], strict=True):
            torch.testing.assert_close(ours, expected)


def test_many_classes_need_fewer_draws_of_each():
    assert [enough_draws(k) for k in (2, 32, 33, 100, 10**6)] == [4096, 4096, 2048, 1024, 1]
    g = torch.Generator().manual_seed(0)
    classes, dim = 100, 16
    weight = torch.randn(classes, dim, generator=g).double().requires_grad_()
    bias = torch.zeros(classes).double()
    half = torch.randn(classes, dim, dim, generator=g).double() / dim**0.5
    moments = torch.randn(classes, dim, generator=g).double(), half @ half.mT
    found = []
    for count in (enough_draws(classes), DRAWS):
        objective = expected_cross_entropy(*moments, normal_draws(count, classes - 1, g))
        loss = objective(weight, bias)
        found.append((loss, torch.autograd.grad(loss, weight)[0]))
    (loss, gradient), (true, slope) = found
    torch.testing.assert_close(loss, true, rtol=2e-3, atol=0)
    assert (gradient - slope).norm() < 0.05 * slope.norm()

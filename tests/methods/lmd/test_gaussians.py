"""Moments, draws and distances of class Gaussians against naive loops, closed forms and numbers."""

import copy
import io
import subprocess
import sys

import pytest
import torch
from toys import virtual_sample

from lmd.base.errors import LmdError
from lmd.methods.lmd.gaussians import ClassGaussians, cholesky, class_moments


def clouds(classes=4, dim=6, n=200, seed=0, dtype=torch.float64, offset=0.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    shape = torch.randn(classes, dim, dim, generator=generator, dtype=dtype)
    mean = 2 * torch.randn(classes, dim, generator=generator, dtype=dtype) + offset
    noise = torch.randn(n, dim, generator=generator, dtype=dtype)
    features = mean[labels] + torch.einsum("ncd,nd->nc", shape[labels], noise)
    return features, labels


def fitted(**kwargs):
    features, labels = clouds(**kwargs)
    gaussians = ClassGaussians(int(labels.max()) + 1, features.shape[1]).double()
    return gaussians.update(features, labels), features, labels


def mahalanobis(gaussians, features):
    """Distances ``(B, K)`` to every class."""
    of_class = [torch.full((len(features),), k) for k in range(len(gaussians.mean))]
    return torch.stack([gaussians.own_and_total(features, k)[0] for k in of_class], dim=1)


def test_moments_are_those_of_the_released_code():
    x = torch.tensor([[1.0, 2.0], [1.5, 1.0], [0.5, 2.5], [3.0, 0.0], [2.0, 1.0]])
    y = torch.tensor([0, 0, 0, 1, 1])
    gaussians = ClassGaussians(2, 2).update(x, y)
    torch.testing.assert_close(gaussians.mean, torch.tensor([[1.0, 1.8333333], [2.5, 0.5]]))
    expected = torch.tensor([[[0.26, -0.375], [-0.375, 0.5933333]], [[0.51, -0.5], [-0.5, 0.51]]])
    torch.testing.assert_close(gaussians.covariance, expected)


def test_moments_against_a_naive_loop_in_any_order():
    features, labels = clouds()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    gaussians = ClassGaussians(4, 6, ridge=0.3).double().update(features[order], labels[order])
    for k in range(4):
        rows = features[labels == k]
        mean = sum(rows) / len(rows)
        outer = sum(torch.outer(r - mean, r - mean) for r in rows) / (len(rows) - 1)
        torch.testing.assert_close(gaussians.mean[k], mean)
        torch.testing.assert_close(gaussians.covariance[k], outer + 0.3 * torch.eye(6).double())


@pytest.mark.parametrize("copies", [1, 37])
def test_a_class_with_one_image_has_the_pooled_covariance(copies):
    features, labels = clouds(classes=3)
    lone = features[:1].repeat(copies, 1) + 1e-9 * torch.randn(copies, 6).double()
    features = torch.cat([features, lone])
    labels = torch.cat([labels, torch.full((copies,), 3)])
    mean, covariance, counts = class_moments(features, labels, 4, ridge=0.01)
    scatter = sum(
        (features[labels == k] - mean[k]).T @ (features[labels == k] - mean[k]) for k in range(3)
    )
    pooled = scatter / (counts[:3] - 1).sum()  # copies of one image tell nothing about spread
    torch.testing.assert_close(covariance[3], pooled + 0.01 * torch.eye(6).double())
    torch.testing.assert_close(mean[3], features[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("decay", [0.999, 0.0])
def test_a_class_that_was_not_drawn(decay):
    features, labels = clouds(classes=3)
    gaussians = ClassGaussians(4, 6, decay=decay).double().update(features, labels)
    torch.testing.assert_close(gaussians.mean[3], gaussians.mean[:3].mean(0))
    assert torch.linalg.eigvalsh(gaussians.covariance[3]).min() > 0
    before = copy.deepcopy(gaussians)
    gaussians.update(features[labels != 1] + 1, labels[labels != 1], step=1)
    assert torch.equal(gaussians.mean[1], before.mean[1])
    assert torch.equal(gaussians.covariance[1], before.covariance[1])
    torch.testing.assert_close(gaussians.mean[0], before.mean[0] + (0.5 if decay else 1))


def test_the_average_is_a_running_mean_and_then_decays_with_0_999():
    parts = [clouds(seed=s) for s in range(3)]
    gaussians = ClassGaussians(4, 6).double()
    for step, (features, labels) in enumerate(parts):
        gaussians.update(features, labels, step)
    each = [class_moments(f, y, 4, 1e-2) for f, y in parts]
    torch.testing.assert_close(gaussians.mean, sum(m for m, _, _ in each) / 3)
    torch.testing.assert_close(gaussians.covariance, sum(c for _, c, _ in each) / 3)
    before = gaussians.mean.clone()
    gaussians.update(*parts[0], step=5000)
    torch.testing.assert_close(gaussians.mean, 0.999 * before + 0.001 * each[0][0])


def test_draws_have_the_fitted_mean_and_covariance():
    gaussians, _, _ = fitted(classes=3, dim=4)
    count = 20_000
    features, labels = virtual_sample(gaussians, count, torch.Generator().manual_seed(0))
    assert labels.bincount().tolist() == [count] * 3
    for k in range(3):
        rows = features[labels == k]
        sigma = gaussians.covariance[k]
        error = (rows.mean(0) - gaussians.mean[k]) / (sigma.diagonal() / count).sqrt()
        assert error.abs().max() < 4.5
        # The sampling variance of a covariance of Gaussians is (s_ij^2 + s_ii s_jj) / n.
        d = sigma.diagonal()
        spread = ((sigma.square() + d[:, None] * d) / count).sqrt()
        assert ((rows.T.cov() - sigma) / spread).abs().max() < 4.5


def test_batches_are_mixed_and_hold_each_class_equally_often():
    gaussians, _, _ = fitted(classes=3, dim=4)
    batches = list(gaussians.batches(5000, 352, torch.Generator().manual_seed(0)))
    assert [len(y) for _, y in batches[:-1]] == [352] * (len(batches) - 1)
    features = torch.cat([x for x, _ in batches])
    labels = torch.cat([y for _, y in batches])
    assert labels.bincount().tolist() == [5000] * 3
    assert all(len(y.unique()) == 3 for _, y in batches)
    for k in range(3):
        error = features[labels == k].mean(0) - gaussians.mean[k]
        assert (error / (gaussians.covariance[k].diagonal() / 5000).sqrt()).abs().max() < 4.5
        whitened = torch.linalg.solve_triangular(
            gaussians.factors()[k], (features[labels == k] - gaussians.mean[k]).T, upper=False
        )
        assert (whitened.cov() - torch.eye(4).double()).abs().max() < 0.08


def test_the_same_generator_gives_the_same_draws():
    gaussians, _, _ = fitted()
    first = virtual_sample(gaussians, 5, torch.Generator().manual_seed(3))[0]
    again = virtual_sample(gaussians, 5, torch.Generator().manual_seed(3))[0]
    other = virtual_sample(gaussians, 5, torch.Generator().manual_seed(4))[0]
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_mahalanobis_against_a_naive_loop():
    gaussians, features, _ = fitted()
    distances = mahalanobis(gaussians, features[:7])
    assert distances.shape == (7, 4)
    for i in range(7):
        for k in range(4):
            away = features[i] - gaussians.mean[k]
            naive = away @ torch.linalg.solve(gaussians.covariance[k], away)
            torch.testing.assert_close(distances[i, k], naive)


@pytest.mark.parametrize("distance", ["mahalanobis", "literal"])
def test_own_and_total_against_a_naive_loop_with_gradients(distance):
    gaussians, features, labels = fitted(offset=3.0)
    x = features[:9].clone().requires_grad_()
    y = labels[:9].clone()
    y[:4] = 2  # one class several times, others absent
    forms = [torch.linalg.inv(c) if distance == "mahalanobis" else c for c in gaussians.covariance]
    own, total = gaussians.own_and_total(x, y, distance)
    (3 * own.sum() - (total * torch.arange(9.0)).sum()).backward()
    fast, x.grad = x.grad, None
    naive = torch.stack(
        [
            torch.stack(
                [
                    (x[i] - gaussians.mean[k]) @ forms[k] @ (x[i] - gaussians.mean[k])
                    for k in range(4)
                ]
            )
            for i in range(9)
        ]
    )
    naive_own = naive[torch.arange(9), y]
    torch.testing.assert_close(own, naive_own)
    torch.testing.assert_close(total, naive.sum(1))
    (3 * naive_own.sum() - (naive.sum(1) * torch.arange(9.0)).sum()).backward()
    torch.testing.assert_close(fast, x.grad)
    torch.autograd.gradcheck(lambda z: gaussians.own_and_total(z, y, distance), (x,))


def test_large_means_do_not_cancel_in_float32():
    features, labels = clouds(offset=1000.0)
    exact = ClassGaussians(4, 6).double().update(features, labels)
    rough = ClassGaussians(4, 6).update(features.float(), labels)
    # The same moments, so that only the arithmetic of the distances differs.
    rough.mean.copy_(exact.mean)
    rough.covariance.copy_(exact.covariance)
    x = rough.mean[labels[:20]].double() + 0.5
    own, total = rough.own_and_total(x.float(), labels[:20])
    exact.mean.copy_(rough.mean)
    own64, total64 = exact.own_and_total(x, labels[:20])
    torch.testing.assert_close(own.double(), own64, rtol=2e-3, atol=1e-3)
    torch.testing.assert_close(total.double(), total64, rtol=2e-3, atol=1e-3)


def test_derived_matrices_follow_every_change_of_the_moments():
    gaussians, features, labels = fitted()
    first = mahalanobis(gaussians, features)
    assert gaussians.precision() is gaussians.precision()  # kept while nothing changes
    gaussians.covariance.mul_(4)
    torch.testing.assert_close(mahalanobis(gaussians, features), first / 4)
    other = ClassGaussians(4, 6).double()
    mahalanobis(other, features)
    buffer = io.BytesIO()
    torch.save(gaussians.state_dict(), buffer)
    buffer.seek(0)
    other.load_state_dict(torch.load(buffer))
    torch.testing.assert_close(mahalanobis(other, features), first / 4)
    twin = copy.deepcopy(gaussians)
    twin.update(features + 1, labels)
    torch.testing.assert_close(mahalanobis(twin, features + 1), first)
    torch.testing.assert_close(mahalanobis(gaussians, features), first / 4)
    assert gaussians.float().precision().dtype == torch.float32
    assert set(gaussians.state_dict()) == {"mean", "covariance"}


def test_a_singular_covariance_still_has_a_factor():
    direction = torch.tensor([1.0, 2.0, -1.0]).double()
    singular = torch.outer(direction, direction)
    factor = cholesky(singular)
    torch.testing.assert_close(factor @ factor.T, singular, rtol=1e-5, atol=1e-5)
    assert torch.isfinite(cholesky(torch.zeros(3, 3))).all()
    gaussians = ClassGaussians(2, 5, ridge=0.0)
    features = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    gaussians.update(features, torch.tensor([0, 0, 0, 1, 1, 1]))  # rank 2 in 5 dimensions
    assert torch.isfinite(virtual_sample(gaussians, 10, torch.Generator().manual_seed(0))[0]).all()
    assert (mahalanobis(gaussians, features) >= 0).all()


def test_features_that_are_not_finite_are_refused_with_a_reason():
    with pytest.raises(LmdError, match=r"covariance: must be finite.*NaN"):
        cholesky(torch.full((2, 2), float("nan")))


MEMORY = """
import resource, torch
torch.set_num_threads(1)
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.vfc import virtual_features
R, K, C = 50_000, 23, 512
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
base = peak()
g = torch.Generator().manual_seed(0)
x, y = torch.randn(2300, C, generator=g), torch.arange(2300) % K
gaussians = ClassGaussians(K, C).update(x, y)
gaussians.own_and_total(x[:8], y[:8])
seen = 0
for features, labels in gaussians.batches(R, 352, g):
    seen += len(labels)
    if seen > 9_000:
        break
problem = virtual_features(gaussians, torch.full((K,), 100), min(R, 4096), g)
weight = torch.zeros(K, C).normal_(generator=g)
problem.solve(weight, torch.zeros(K), 10.0, shrinkage=0.5, iterations=2)
print(peak() - base)
"""


def test_fifty_thousand_virtual_features_of_23_classes_need_less_than_a_gigabyte():
    # All of them at once would be 2.4 GB in float32. What is held does not depend on how far the
    # pass has gone, so the first part of it is enough.
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 1000

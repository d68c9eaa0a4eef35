"""The argmin of the M step, and the choice of its regularisers."""

import copy
from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F
from toys import overlapping, virtual_sample

from lmd.methods.lmd.descent import SGD, sgd_pass
from lmd.methods.lmd.gaussians import ClassGaussians, pooled_covariance
from lmd.methods.lmd.vfc import (
    Solution,
    balanced_score,
    choose,
    mean_cross_entropy,
    real_features,
    virtual_features,
)


@pytest.mark.parametrize("penalty", [0.0, 0.05])
def test_the_argmin_is_one_and_no_worse_than_long_sgd(penalty):
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).update(features, labels)
    g = torch.Generator().manual_seed(2)
    problem = virtual_features(gaussians, torch.full((4,), 100), 4096, g)
    solution = problem.solve(torch.zeros(4, 8).normal_(generator=g), torch.zeros(4), penalty)
    # The covariances are float32: where exactly the search ends is up to the last bits of a CPU.
    assert solution.grad_norm < 1e-3
    weight, bias = torch.zeros(4, 8), torch.zeros(4)
    velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    for lr in (0.2, 0.05, 0.01):
        for _ in range(3):
            descent = SGD(weight, bias, velocity, lr, momentum=0.9, weight_decay=0.0)
            sgd_pass(gaussians.batches(8000, 352, g), descent)
    virtual, y = virtual_sample(gaussians, 100_000, torch.Generator().manual_seed(77))
    ours = F.cross_entropy(virtual @ solution.weight.float().T + solution.bias.float(), y)
    sgd = F.cross_entropy(virtual @ weight.T + bias, y)
    if penalty == 0:
        assert ours <= sgd + 1e-3
        assert sgd < ours + 0.05  # the descent did go far: the comparison means something
    else:
        assert solution.weight.norm() < weight.norm()


def test_the_argmin_does_not_depend_on_where_it_starts():
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).update(features, labels)
    g = torch.Generator().manual_seed(2)
    problem = virtual_features(gaussians, torch.full((4,), 100), 2048, g)
    first = problem.solve(torch.randn(4, 8, generator=g), torch.zeros(4), 0.01)
    again = problem.solve(first.weight, first.bias, 0.01)
    other = problem.solve(3 * torch.randn(4, 8, generator=g), torch.ones(4), 0.01)
    assert abs(first.loss - other.loss) < 1e-4
    assert (first.weight - other.weight).norm() < 0.01 * first.weight.norm()
    assert again.evaluations < first.evaluations / 2


def test_real_features_are_solved_like_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    features, labels = overlapping()
    solution = real_features(features, labels).solve(torch.zeros(4, 8), torch.zeros(4), 0.05)
    theirs = LogisticRegression(C=1 / (0.05 * 400), tol=1e-8, max_iter=1000).fit(features, labels)
    torch.testing.assert_close(
        solution.weight, torch.from_numpy(theirs.coef_).double(), rtol=1e-3, atol=1e-4
    )
    value = mean_cross_entropy(features, labels)(solution.weight, solution.bias)
    assert value.item() == pytest.approx(solution.loss, abs=1e-5)


def test_shrinkage_moves_towards_the_pooled_covariance():
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).update(features, labels)
    counts = torch.tensor([101, 51, 11, 1])
    pooled = sum(w * gaussians.covariance[k] for k, w in enumerate((100, 50, 10, 0))) / 160
    torch.testing.assert_close(pooled_covariance(gaussians.covariance, counts), pooled)
    problem = virtual_features(gaussians, counts, 64, torch.Generator())
    assert problem.variance == pytest.approx(pooled.trace().item())
    moved = copy.deepcopy(gaussians)
    moved.covariance.copy_(0.75 * gaussians.covariance + 0.25 * pooled)
    expected, metric = virtual_features(moved, counts, 64, torch.Generator()).at(0.0, False)
    shrunk, within = problem.at(0.25, False)
    torch.testing.assert_close(within, metric, rtol=1e-5, atol=1e-5)
    weight, bias = torch.eye(4, 8).double(), torch.zeros(4).double()
    torch.testing.assert_close(shrunk(weight, bias), expected(weight, bias), rtol=1e-4, atol=1e-5)


def test_balanced_score_counts_classes_equally():
    solution = Solution(torch.eye(3).double(), torch.zeros(3).double(), 0, 0, 0)
    features = torch.eye(3)[[0, 0, 0, 1, 0]]
    labels = torch.tensor([0, 0, 0, 1, 1])  # class 2 is absent
    score = balanced_score(solution, features, labels)
    assert score.accuracy == pytest.approx((1 + 0.5) / 2)
    log_p = features.log_softmax(1)
    naive = -(log_p[0, 0] + (log_p[3, 1] + log_p[4, 1]) / 2) / 2
    assert score.entropy == pytest.approx(naive.item(), rel=1e-6)
    assert score.error == pytest.approx((0.8 * 0.2 / 5 + 0.5 * 0.5 / 4) ** 0.5 / 2)


@dataclass
class Table:
    """Solutions known beforehand: how many images of each class are right, how sure they are."""

    hits: dict[tuple[float, float], tuple[int, float]]
    variance: float = 1.0

    def solve(self, weight, bias, penalty, anchor, *, shrinkage, trial):
        # Image i has the feature e_i and class i % 2: its column says what is predicted.
        hits, sure = self.hits.get((shrinkage, penalty), (0, 1.0))
        predicted = [(i % 2) if i // 2 < hits else 1 - i % 2 for i in range(200)]
        return Solution(sure * torch.eye(2)[predicted].T.double(), torch.zeros(2).double(), 0, 0, 1)


def chosen_from(hits):
    validation = torch.eye(200), torch.arange(200) % 2
    return choose(
        Table(hits), (torch.zeros(2, 200), torch.zeros(2)), validation,
        shrinkages=(0.0, 0.5, 0.9), penalties=(1.0, 0.1, 0.01),
    )  # fmt: skip


def test_regularisers_are_chosen_by_balanced_accuracy():
    # Of 100 images of each class; one standard error is about 3.
    middle = {(0.0, 0.1): (60, 1.0), (0.5, 0.1): (70, 1.0), (0.9, 0.1): (60, 9.0)}
    assert chosen_from(middle | {(0.5, 1.0): (60, 1.0), (0.5, 0.01): (90, 1.0)}) == (0.5, 0.01)
    assert chosen_from(middle | {(0.5, 1.0): (80, 1.0)}) == (0.5, 1.0)
    assert chosen_from(middle) == (0.5, 0.1)


def test_equal_accuracies_are_decided_by_balanced_cross_entropy():
    middle = {(0.5, 0.1): (70, 1.0)}
    # One image better but far too sure: within the standard error, and worse in cross-entropy.
    assert chosen_from(middle | {(0.5, 1.0): (71, 50.0)}) == (0.5, 0.1)
    assert chosen_from(middle | {(0.5, 1.0): (69, 0.9)}) == (0.5, 0.1)
    assert chosen_from(middle | {(0.5, 1.0): (71, 1.0)}) == (0.5, 1.0)

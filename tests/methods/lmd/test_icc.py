"""ICC: its formulas, its two M-step solvers, and who moves in which step."""

import copy
import math
from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lmd.base.errors import LmdError
from lmd.contract.stage import Batch, Task, prepare
from lmd.methods.lmd import calibrate
from lmd.methods.lmd.calibrate import (
    DRAWS,
    Solution,
    enough_draws,
    expected_cross_entropy,
    mean_cross_entropy,
    normal_draws,
    sgd_pass,
)
from lmd.methods.lmd.gaussians import ClassGaussians
from lmd.methods.lmd.icc import ICC, attraction_and_repulsion, fdc_loss, gce_loss
from lmd.methods.lmd.selection import RealFeatures, VirtualFeatures, balanced_score, choose
from lmd.model import CosineClassifier, Model

COUNTS = (40, 12, 5)
CHOOSE = {"shrinkage": "validation", "weight_penalty": "validation"}


@dataclass
class SmallRun:
    """A real run in small: images in memory, features by the model in ``eval`` mode."""

    model: Model
    images: torch.Tensor
    labels: torch.Tensor
    validation: tuple[torch.Tensor, torch.Tensor]
    epoch: int = 0
    epochs: int = 3
    steps: int = 2
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))
    val_recall: torch.Tensor | None = None
    asked: list[tuple[str, str]] = field(default_factory=list)

    def features(self, drawn="natural", part="train"):
        self.asked.append((drawn, part))
        images, labels = (self.images, self.labels) if part == "train" else self.validation
        if drawn == "balanced":
            weight = 1 / labels.bincount()[labels].float()
            rows = torch.multinomial(weight, len(labels), True, generator=self.generator)
            images, labels = images[rows], labels[rows]
        modes = [(m, m.training) for m in self.model.modules()]
        self.model.eval()
        with torch.inference_mode():
            features = self.model.features(images)
        for module, mode in modes:
            module.training = mode
        return features, labels


def small_model(classes=3):
    torch.manual_seed(0)
    encoder = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()
    )
    return Model(encoder, nn.Linear(16, classes))


def images(counts, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    shift = torch.randn(len(counts), 3, 1, 1, generator=torch.Generator().manual_seed(9))
    return torch.randn(len(labels), 3, 8, 8, generator=g) + shift[labels], labels


def setup(counts=COUNTS, validation=(6, 6, 6), **settings):
    settings = {"shrinkage": 0.5, "weight_penalty": 0.01} | settings
    model = small_model(len(counts))
    stage = ICC(model, Task(torch.tensor(counts), 16), **settings)
    groups = prepare(stage)
    run = SmallRun(model, *images(counts), validation=images(validation, seed=1))
    batch = Batch({"weak": run.images}, run.labels)
    return stage, groups, run, batch


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(before, module):
    after = module.state_dict()
    return [name for name in before if not torch.equal(before[name], after[name])]


# Formulas.


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
    gaussians = ClassGaussians(4, 5).double().fit(x, y)
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


LOGITS = torch.tensor(
    [
        [2.0, 0.5, -1.0, 0.1],
        [0.3, 1.2, 0.0, -0.7],
        [1.5, 0.2, 0.4, -0.3],
        [0.8, -0.2, 0.1, 0.6],
        [-0.5, 0.9, 0.3, 0.2],
    ]
)


def test_gce_number_and_limits():
    labels = torch.tensor([0, 1, 2, 3, 0])
    torch.testing.assert_close(gce_loss(LOGITS, labels).item(), 0.7469335, rtol=1e-5, atol=1e-6)
    p = LOGITS.double().softmax(1)
    naive = sum((1 - p[i, labels[i]] ** 0.4) / 0.4 for i in range(5)) / 5
    torch.testing.assert_close(gce_loss(LOGITS.double(), labels, q=0.4), naive)
    near = gce_loss(LOGITS.double(), labels, q=1e-6)
    torch.testing.assert_close(near, F.cross_entropy(LOGITS.double(), labels), rtol=1e-5, atol=0)


# Solvers of the M step.


def overlapping(classes=4, dim=8, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(400) % classes
    mean = torch.randn(classes, dim, generator=g)
    shape = torch.randn(classes, dim, dim, generator=g) * torch.logspace(0.3, -1.2, dim)
    noise = torch.einsum("ncd,nd->nc", shape[labels], torch.randn(400, dim, generator=g))
    return mean[labels] + noise + 3, labels


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
        mean = sgd_pass(batches, weight, bias, velocity, lr=0.05, momentum=0.9, weight_decay=0.01)
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
    gaussians = ClassGaussians(4, 8).double().fit(features, labels)
    g = torch.Generator().manual_seed(1)
    weight = (0.5 * torch.randn(4, 8, generator=g)).double().requires_grad_()
    bias = torch.randn(4, generator=g).double().requires_grad_()
    draws = normal_draws(4096, 3, g)
    expected = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)(weight, bias)
    virtual, y = gaussians.sample(50_000, g)
    each = F.cross_entropy(virtual @ weight.T + bias, y, reduction="none")
    error = each.std().item() / 200_000**0.5
    assert abs(expected - each.mean()) < 5 * error + 1e-3
    gradient = torch.autograd.grad(expected, [weight, bias])
    sampled = torch.autograd.grad(each.mean(), [weight, bias])
    for ours, theirs in zip(gradient, sampled, strict=True):
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_gradient_of_the_expected_cross_entropy_is_exact():
    features, labels = overlapping(dim=5)
    gaussians = ClassGaussians(4, 5).double().fit(features, labels)
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
    gaussians = ClassGaussians(4, 5).double().fit(features, labels)
    draws = normal_draws(64, 3, torch.Generator().manual_seed(0))
    objective = expected_cross_entropy(gaussians.mean, gaussians.covariance, draws)
    weight = torch.randn(4, 5, generator=torch.Generator().manual_seed(1)).double()
    found = []
    for held in (2**22, 3 * 4 * 64, 1):  # all four classes, three and one, one at a time
        monkeypatch.setattr(calibrate, "LOGITS", held)
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


@pytest.mark.parametrize("penalty", [0.0, 0.05])
def test_the_argmin_is_one_and_no_worse_than_long_sgd(penalty):
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).fit(features, labels)
    g = torch.Generator().manual_seed(2)
    problem = VirtualFeatures.of(gaussians, torch.full((4,), 100), 4096, g)
    solution = problem.solve(torch.zeros(4, 8).normal_(generator=g), torch.zeros(4), penalty)
    # The covariances are float32: where exactly the search ends is up to the last bits of a CPU.
    assert solution.grad_norm < 1e-3
    weight, bias = torch.zeros(4, 8), torch.zeros(4)
    velocity = torch.zeros_like(weight), torch.zeros_like(bias)
    for lr in (0.2, 0.05, 0.01):
        for _ in range(3):
            sgd_pass(
                gaussians.batches(8000, 352, g),
                weight, bias, velocity, lr=lr, momentum=0.9, weight_decay=0.0,
            )  # fmt: skip
    virtual, y = gaussians.sample(100_000, torch.Generator().manual_seed(77))
    ours = F.cross_entropy(virtual @ solution.weight.float().T + solution.bias.float(), y)
    sgd = F.cross_entropy(virtual @ weight.T + bias, y)
    if penalty == 0:
        assert ours <= sgd + 1e-3
        assert sgd < ours + 0.05  # the descent did go far: the comparison means something
    else:
        assert solution.weight.norm() < weight.norm()


def test_the_argmin_does_not_depend_on_where_it_starts():
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).fit(features, labels)
    g = torch.Generator().manual_seed(2)
    problem = VirtualFeatures.of(gaussians, torch.full((4,), 100), 2048, g)
    first = problem.solve(torch.randn(4, 8, generator=g), torch.zeros(4), 0.01)
    again = problem.solve(first.weight, first.bias, 0.01)
    other = problem.solve(3 * torch.randn(4, 8, generator=g), torch.ones(4), 0.01)
    assert abs(first.loss - other.loss) < 1e-4
    assert (first.weight - other.weight).norm() < 0.01 * first.weight.norm()
    assert again.evaluations < first.evaluations / 2


def test_real_features_are_solved_like_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    features, labels = overlapping()
    solution = RealFeatures.of(features, labels).solve(torch.zeros(4, 8), torch.zeros(4), 0.05)
    theirs = LogisticRegression(C=1 / (0.05 * 400), tol=1e-8, max_iter=1000).fit(features, labels)
    torch.testing.assert_close(
        solution.weight, torch.from_numpy(theirs.coef_).double(), rtol=1e-3, atol=1e-4
    )
    value = mean_cross_entropy(features, labels)(solution.weight, solution.bias)
    assert value.item() == pytest.approx(solution.loss, abs=1e-5)


def test_shrinkage_moves_towards_the_pooled_covariance():
    features, labels = overlapping()
    gaussians = ClassGaussians(4, 8).fit(features, labels)
    counts = torch.tensor([101, 51, 11, 1])
    problem = VirtualFeatures.of(gaussians, counts, 8, torch.Generator())
    pooled = sum(w * gaussians.covariance[k] for k, w in enumerate((100, 50, 10, 0))) / 160
    torch.testing.assert_close(problem.pooled, pooled)
    torch.testing.assert_close(
        problem.shrunk(0.25).covariance, 0.75 * gaussians.covariance + 0.25 * pooled
    )
    assert problem.shrunk(0.0) is problem


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
    shrinkage: float = 0.0
    variance: float = 1.0

    def shrunk(self, shrinkage):
        return Table(self.hits, shrinkage)

    def solve(self, weight, bias, penalty, *, trial=False):
        # Image i has the feature e_i and class i % 2: its column says what is predicted.
        hits, sure = self.hits.get((self.shrinkage, penalty), (0, 1.0))
        predicted = [(i % 2) if i // 2 < hits else 1 - i % 2 for i in range(200)]
        return Solution(sure * torch.eye(2)[predicted].T.double(), torch.zeros(2).double(), 0, 0, 1)


def chosen_from(hits):
    validation = torch.eye(200), torch.arange(200) % 2
    return choose(
        Table(hits), torch.zeros(2, 200), torch.zeros(2), validation,
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


# The stage.


def test_the_m_step_moves_the_classifier_and_nothing_of_the_encoder():
    for settings in ({}, {"m_step": "sgd", "m_lr": 0.1, "virtual_features": 50}, {"vfc": False}):
        stage, _, run, _ = setup(**settings)
        before = snapshot(stage.model)
        numbers = stage.start_epoch(run, None)
        assert moved(before, stage.model) == ["classifier.weight", "classifier.bias"], settings
        assert all(math.isfinite(v) for v in numbers.values())
        assert all(p.grad is None for p in stage.parameters())


def test_the_e_step_moves_the_encoder_and_nothing_of_the_classifier():
    stage, groups, run, batch = setup(encoder_lr=0.01)
    optimizer = torch.optim.SGD(groups, lr=1.0)
    stage.start_epoch(run, optimizer)
    before = snapshot(stage.model)
    moments = snapshot(stage.gaussians)
    stage.step(optimizer, batch)
    changed = moved(before, stage.model)
    assert {n.split(".")[0] for n in changed} == {"encoder"}
    assert {f"encoder.{n}" for n, _ in stage.model.encoder.named_parameters()} <= set(changed)
    assert moved(moments, stage.gaussians) == []
    assert all(p.grad is None for p in stage.model.classifier.parameters())


def test_cross_entropy_reaches_the_encoder_through_the_frozen_classifier():
    stage, _, run, batch = setup(lambda_e=0.0)
    stage.start_epoch(run, None)
    terms = stage.loss(batch)
    assert set(terms) == {"loss", "ce"}
    terms["loss"].backward()
    twin = copy.deepcopy(stage.model)
    twin.zero_grad()
    twin.encoder.train()
    F.cross_entropy(twin(batch.views["weak"]), batch.labels).backward()
    for ours, plain in zip(
        stage.model.encoder.parameters(), twin.encoder.parameters(), strict=True
    ):
        assert ours.grad.abs().sum() > 0
        torch.testing.assert_close(ours.grad, plain.grad)


def test_the_loss_is_cross_entropy_plus_weighted_fdc():
    stage, _, run, batch = setup(lambda_e=0.3)
    stage.start_epoch(run, None)
    terms = stage.loss(batch)
    assert set(terms) == {"loss", "ce", "psi", "phi"}
    torch.testing.assert_close(terms["loss"], terms["ce"] + 0.3 * (terms["psi"] - terms["phi"]))
    assert terms["psi"] > 0
    assert terms["phi"] > 0


def test_calibration_once_has_one_epoch_and_no_batches():
    stage, groups, run, _ = setup(e_step=False)
    assert list(groups) == []
    assert stage.epochs == 1
    assert stage.class_weights(run) == []
    assert not any(m.training for m in stage.model.modules())
    assert stage.start_epoch(run, None)["m_loss"] > 0


def test_the_m_step_calibrates():
    stage, _, run, _ = setup(counts=(60, 20, 12))
    before = F.cross_entropy(stage.model.classifier(run.features()[0].clone()), run.labels)
    stage.start_epoch(run, None)
    after = F.cross_entropy(stage.model.classifier(run.features()[0].clone()), run.labels)
    assert after < before


def test_regularisers_are_settled_once_and_kept():
    stage, _, run, _ = setup(**CHOOSE)
    numbers = stage.start_epoch(run, None)
    assert run.asked.count(("natural", "validation")) == 1
    again = stage.start_epoch(run, None)
    assert run.asked.count(("natural", "validation")) == 1
    assert numbers["shrinkage"] == again["shrinkage"] == stage.chosen()["shrinkage"]
    assert numbers["weight_penalty"] == again["weight_penalty"] == stage.chosen()["weight_penalty"]


def test_regularisers_without_validation_images_or_as_given():
    empty = torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)
    stage, _, run, _ = setup(**CHOOSE)
    run.validation = empty
    numbers = stage.start_epoch(run, None)
    assert numbers["shrinkage"] == 0.5
    assert numbers["weight_penalty"] > 0
    stage, _, run, _ = setup(shrinkage=0.25, weight_penalty=0.125)
    numbers = stage.start_epoch(run, None)
    assert (numbers["shrinkage"], numbers["weight_penalty"]) == (0.25, 0.125)
    assert stage.chosen() == {}
    assert ("natural", "validation") not in run.asked


def test_sampling_of_both_steps():
    stage, _, run, _ = setup(m_sampling="natural", e_sampling="balanced")
    stage.start_epoch(run, None)
    assert run.asked[0] == ("natural", "train")
    (weights,) = stage.class_weights(run)
    torch.testing.assert_close(weights * torch.tensor(COUNTS), torch.ones(3))
    stage, _, run, _ = setup()
    stage.start_epoch(run, None)
    assert run.asked[0] == ("balanced", "train")
    assert stage.class_weights(run) == [None]


def test_a_first_draw_that_misses_a_class_takes_its_images():
    stage, _, run, _ = setup()
    draw = run.features

    def unlucky(drawn="natural", part="train"):
        features, labels = draw(drawn, part)
        kept = (labels != 2) | (drawn == "natural")
        return features[kept], labels[kept]

    run.features = unlucky
    stage.start_epoch(run, None)
    features, labels = draw("natural")
    torch.testing.assert_close(stage.gaussians.mean[2], features[labels == 2].mean(0))


@pytest.mark.parametrize("m_step", ["argmin", "sgd"])
def test_a_checkpoint_in_the_middle_changes_nothing(m_step):
    settings = {"m_step": m_step, "m_lr": 0.01, "virtual_features": 64, "encoder_lr": 0.01}

    def epoch(stage, groups, run, batch, number):
        optimizer = torch.optim.SGD(groups, lr=1.0)
        run.epoch, run.generator = number, torch.Generator().manual_seed(number)
        stage.start_epoch(run, optimizer)
        stage.step(optimizer, batch)

    stage, groups, run, batch = setup(**settings)
    epoch(stage, groups, run, batch, 0)
    other, other_groups, other_run, _ = setup(**settings)
    assert set(other.state_dict()) == set(stage.state_dict())
    other.load_state_dict(stage.state_dict())
    epoch(stage, groups, run, batch, 1)
    epoch(other, other_groups, other_run, batch, 1)
    for a, b in zip(stage.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_half_precision_keeps_distances_in_float32():
    stage, _, run, batch = setup()
    stage.start_epoch(run, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = stage.loss(batch)
    assert terms["psi"].dtype == terms["loss"].dtype == torch.float32
    terms["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in stage.model.encoder.parameters())


def test_only_a_linear_classifier_will_do():
    model = Model(small_model().encoder, CosineClassifier(16, 3))
    with pytest.raises(LmdError, match=r"^model.classifier: LMD needs a linear classifier"):
        ICC(model, Task(torch.tensor(COUNTS), 16))


@pytest.mark.parametrize(
    ("name", "value"),
    [("m_step", "newton"), ("shrinkage", "auto"), ("shrinkage", 2.0), ("ridge", -1.0),
     ("distance", "cosine"), ("virtual_features", 0), ("e_sampling", "x"), ("iterations", 0)],
)  # fmt: skip
def test_a_wrong_setting_is_named(name, value):
    with pytest.raises(LmdError, match=rf"^{name}: must .* but is {value!r}"):
        setup(**{name: value})

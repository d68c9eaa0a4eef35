"""CB+WD+Max: MaxNorm, the class-balanced loss, and weight decays of its own."""

import math

import pytest
import torch
from torch.nn import functional as F
from toys import COUNTS, LABELS, LOGITS, WEIGHT, World, close, gradient, optimise

from lmd.methods import weight_balancing
from lmd.methods.stage import Batch, Rate
from lmd.methods.supervised import class_balanced_weights
from lmd.methods.weight_balancing import max_norm, max_norm_radius, softmax_bce_loss


def test_max_norm_naively_and_at_its_limits():
    radius = max_norm_radius(WEIGHT, 0.1)
    norms = [math.hypot(*row) for row in WEIGHT.tolist()]
    assert radius.item() == pytest.approx(min(norms) + 0.1 * (max(norms) - min(norms)))
    assert radius.item() == pytest.approx(0.7012461, abs=1e-6)
    naive = [
        [w * min(1, radius.item() / norm) for w in row]
        for row, norm in zip(WEIGHT.tolist(), norms, strict=True)
    ]
    close(max_norm(WEIGHT, radius), naive)
    close(max_norm(WEIGHT, radius)[0], [0.4207477, 0.5609969])
    # Threshold 1 is the longest row: nothing moves; nor do rows of one length, nor zeros.
    assert torch.equal(max_norm(WEIGHT, max_norm_radius(WEIGHT, 1.0)), WEIGHT)
    equal = F.normalize(WEIGHT)
    close(max_norm(equal, max_norm_radius(equal, 0.1)), equal)
    assert torch.equal(max_norm(torch.zeros(2, 3), torch.tensor(0.0)), torch.zeros(2, 3))


def test_max_norm_of_the_authors(vectors):
    reference = vectors["maxnorm_pgd"]
    close(max_norm(WEIGHT, max_norm_radius(WEIGHT, 0.1)), reference["W_after"])


def test_the_class_balanced_loss_of_the_authors_is_not_weighted_cross_entropy():
    weight = class_balanced_weights(COUNTS, 0.9999)
    loss = softmax_bce_loss(LOGITS, LABELS, weight)
    assert loss.item() == pytest.approx(0.4396516, abs=1e-5)
    assert F.cross_entropy(LOGITS, LABELS, weight).item() != pytest.approx(loss.item(), abs=0.1)

    naive = 0.0
    for z, y in zip(LOGITS, LABELS, strict=True):
        p = z.softmax(0)
        for k in range(4):
            naive -= float(weight[y] * torch.log(p[k] if k == y else 1 - p[k]))
    assert loss.item() == pytest.approx(naive / LOGITS.numel(), abs=1e-5)


def test_softmax_bce_with_two_classes_is_cross_entropy_gradients_included():
    logits = LOGITS[:, :2].clone().requires_grad_()
    labels = LABELS % 2
    ours = softmax_bce_loss(logits, labels, torch.ones(2))
    theirs = F.cross_entropy(logits, labels)
    close(ours, theirs)
    close(gradient(ours, logits), gradient(theirs, logits))


def test_softmax_bce_stays_finite_where_probabilities_round_to_one():
    logits = torch.tensor([[200.0, 0.0, -50.0], [200.0, 0.0, 0.0]], requires_grad=True)
    loss = softmax_bce_loss(logits, torch.tensor([0, 1]), torch.ones(3))
    assert loss.isfinite()
    assert gradient(loss, logits).isfinite().all()


def test_weight_decay_is_the_method_s_own():
    world = World([9, 3])
    decays = []
    for stage in world.start("cb_wd_max"):
        (group,) = optimise(stage).param_groups
        decays.append((group["weight_decay"], len(group["params"])))
    assert decays == [(5e-3, 6), (0.1, 2)]


def test_rows_are_projected_at_the_end_of_an_epoch_onto_a_radius_that_stays():
    world = World([14, 5, 3])
    stage = world.to_stage("cb_wd_max", 1)
    classifier = world.model.classifier
    expected = weight_balancing.max_norm_radius(classifier.weight.detach(), 0.1)
    optimizer = optimise(stage)
    epoch = world.at(0)
    assert stage.start_epoch(epoch) == {"radius": pytest.approx(expected.item())}
    with torch.no_grad():
        classifier.bias.mul_(0).add_(50)
    longest = []
    for batches in world.batches(stage, stage.class_weights(epoch)):
        stage.step(optimizer, *batches)
        longest.append(classifier.weight.norm(dim=1).max().item())
    assert len(longest) == epoch.steps
    assert all(norm > expected for norm in longest[:-1])
    assert longest[-1] == pytest.approx(expected.item(), rel=1e-5)
    assert classifier.bias.min() > 40
    world.train_epoch(stage, optimizer, 1)
    assert stage.radius == expected


def test_the_class_balanced_loss_can_be_weighted_cross_entropy():
    world = World([9, 3, 1])
    stage = world.to_stage("cb_wd_max", 1, cb_loss="cross_entropy")
    images, labels = world.train
    weight = class_balanced_weights(world.task.class_counts, 0.9999)
    stage.eval()
    loss = stage.loss(Batch({"label": images}, labels))["loss"]
    torch.testing.assert_close(loss, F.cross_entropy(world.model(images), labels, weight))


def test_stage_two_balances_the_norms_that_stage_one_has_pulled_apart():
    world = World([60, 12, 3], batch_size=16, epochs=25)
    stages = world.start("cb_wd_max")
    world.train_stage(next(stages))
    ratios = [norm_ratio(world)]
    stage = next(stages)
    assert (stage.epochs, stage.lr) == (10, Rate(0.01, 64))
    world.train_stage(stage)
    ratios.append(norm_ratio(world))
    assert ratios[0] > 1.25
    assert ratios[1] - 1 < 0.6 * (ratios[0] - 1)


def norm_ratio(world: World) -> float:
    norms = world.model.classifier.weight.detach().norm(dim=1)
    return float(norms.max() / norms.min())

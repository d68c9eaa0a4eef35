"""Post-hoc logit adjustment: the prior, the choice of τ, the bias."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from toys import World, inputs

from lmd.methods.logit_adjustment import PosthocAdjustment, adjust_logits, choose_tau
from lmd.methods.stage import Stage, prepare


def test_posthoc_adjustment_is_the_recorded_one() -> None:
    logits, _, counts = inputs()
    adjusted = adjust_logits(logits.detach(), counts, 1.0)
    expected = [[2.4317825, 1.8480731, 1.7343676, 3.750658]]
    torch.testing.assert_close(adjusted[:1], torch.tensor(expected))
    assert adjusted.argmax(1).tolist() == [3, 3, 3, 3, 3]


def test_posthoc_adjustment_with_tau_one_balances_exact_posteriors() -> None:
    likelihood = torch.tensor([[0.3, 0.1, 0.6], [0.2, 0.5, 0.4]])
    counts = torch.tensor([90, 9, 1])
    posterior = likelihood * counts
    logits = (posterior / posterior.sum(1, keepdim=True)).log()
    found = adjust_logits(logits, counts, 1.0).softmax(1)
    torch.testing.assert_close(found, likelihood / likelihood.sum(1, keepdim=True))


def test_tau_is_the_best_of_the_grid_and_among_equals_nearest_to_one() -> None:
    counts = torch.tensor([1000, 1])
    gap = math.log(1000)
    # Class 1 needs more than 0.55 of the prior's gap, class 0 less than 1.45 of it.
    logits = torch.tensor([[1.45 * gap, 0.0], [0.55 * gap, 0.0]])
    labels = torch.tensor([0, 1])
    assert choose_tau(logits, labels, counts, [0.0, 0.5, 1.0, 1.5]) == 1.0
    assert choose_tau(logits, labels, counts, [0.0, 0.6, 1.3, 1.5]) == 1.3
    assert choose_tau(logits, labels, counts, [0.0, 0.5, 1.5]) in (0.5, 1.5)
    assert choose_tau(logits[1:], labels[1:], counts, [0.0, 2.5]) == 2.5
    assert choose_tau(logits[:0], labels[:0], counts, [0.5]) == 0.5
    assert choose_tau(logits[:0], labels[:0], counts, [0.0, 1.0, 2.0]) == 1.0


def posthoc(counts: list[int], **settings: Any) -> tuple[World, Stage]:
    world = World(counts)
    _, stage = world.start("logit_adjust_posthoc", **settings)
    assert prepare(stage) == []
    return world, stage


def test_posthoc_adjustment_changes_the_bias_and_nothing_else() -> None:
    world, stage = posthoc([40, 4, 1], grid=(0.7,))
    before = copy.deepcopy(world.model.state_dict())
    epoch = world.at()
    assert stage.epochs == 1
    assert stage.class_weights(epoch) == []
    assert stage.start_epoch(epoch) == {"tau": 0.7}
    assert stage.chosen() == {"tau": 0.7}
    after = world.model.state_dict()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"classifier.bias"}
    priors = torch.tensor([40, 4, 1]) / 45
    torch.testing.assert_close(
        after["classifier.bias"], before["classifier.bias"] - 0.7 * priors.log()
    )
    assert not any(p.requires_grad for p in world.model.parameters())


def test_posthoc_adjustment_twice_is_once() -> None:
    world, stage = posthoc([40, 4, 1], grid=(1.3,))
    stage.start_epoch(world.at())
    once = world.model.classifier.state_dict()["bias"].clone()
    resumed = PosthocAdjustment(world.model, torch.tensor([40, 4, 1]), (1.3,))
    resumed.load_state_dict(stage.state_dict())
    resumed.start_epoch(world.at())
    torch.testing.assert_close(world.model.classifier.state_dict()["bias"], once)


def test_posthoc_adjustment_without_validation_takes_tau_one() -> None:
    world, stage = posthoc([40, 4, 1], grid=(0.0, 1.0, 2.0))
    world.validation = (world.train[0][:0], world.train[1][:0])
    epoch = world.at()
    assert stage.start_epoch(epoch) == {"tau": 1.0}
    bias = world.model.classifier.bias
    assert isinstance(bias, Tensor)
    assert bias.isfinite().all()


def test_posthoc_adjustment_finds_the_tail_that_cross_entropy_missed() -> None:
    world, stage = posthoc([60, 3])
    model, (images, labels) = world.model, world.validation

    def recalls() -> list[float]:
        right = (model(images).argmax(1) == labels).float()
        return [right[labels == k].mean().item() for k in range(2)]

    # Nearest class means, then a bias under which every image is class 0: skewed data do that.
    assert isinstance(model.classifier, nn.Linear)
    with torch.no_grad():
        features = model.eval().features(images)
        means = torch.stack([features[labels == k].mean(0) for k in range(2)])
        model.classifier.weight.copy_(means)
        model.classifier.bias.copy_(-0.5 * means.square().sum(1))
        logits = model.classifier(features)
        model.classifier.bias[1] -= (logits[:, 1] - logits[:, 0]).max() + 0.5
    assert recalls() == [1.0, 0.0]
    stage.start_epoch(world.at())
    assert sum(recalls()) > 1.9

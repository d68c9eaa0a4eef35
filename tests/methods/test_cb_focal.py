"""Class-balanced focal loss: its limits, its weights and where its sigmoids start."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import SGD
from toys import World, gradient, inputs

from lmd.methods.cb_focal import sigmoid_focal_loss
from lmd.methods.stage import prepare
from lmd.methods.supervised import class_balanced_weights


def test_cb_focal_without_focus_and_weights_is_binary_cross_entropy() -> None:
    logits, labels, _ = inputs()
    found = sigmoid_focal_loss(logits, labels, torch.ones(4), 0.0)
    target = F.one_hot(labels, 4).float()
    expected = F.binary_cross_entropy_with_logits(logits, target, reduction="sum") / len(labels)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient(found, logits), gradient(expected, logits))


def test_cb_focal_weights_stay_out_of_the_focusing_factor() -> None:
    logits, labels, counts = inputs()
    weights = class_balanced_weights(counts, 0.9999)
    once = sigmoid_focal_loss(logits, labels, weights, 2.0)
    torch.testing.assert_close(sigmoid_focal_loss(logits, labels, 3 * weights, 2.0), 3 * once)


def test_cb_focal_pulls_the_true_output_up_and_all_others_down() -> None:
    logits, labels, counts = inputs()
    weights = class_balanced_weights(counts, 0.9999)
    slope = gradient(sigmoid_focal_loss(logits, labels, weights, 0.0), logits)
    true = F.one_hot(labels, 4).bool()
    assert (slope[true] < 0).all()
    assert (slope[~true] > 0).all()


def test_softmax_of_sigmoid_logits_is_the_exclusive_event() -> None:
    logits = torch.tensor([0.7, -1.1, 2.0])
    p = torch.sigmoid(logits)
    alone = torch.stack([p[k] * (1 - p[torch.arange(3) != k]).prod() for k in range(3)])
    torch.testing.assert_close(torch.softmax(logits, 0), alone / alone.sum())


@pytest.mark.parametrize("classes", [2, 5])
def test_every_sigmoid_starts_at_one_in_k_and_its_bias_is_not_decayed(classes: int) -> None:
    world = World([3] * classes)
    (stage,) = world.start("cb_focal")
    bias = world.model.classifier.bias
    assert isinstance(bias, Tensor)
    torch.testing.assert_close(bias.detach().sigmoid(), torch.full((classes,), 1 / classes))
    optimizer = SGD(prepare(stage), lr=0.1, weight_decay=0.5)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert decay[id(bias)] == 0
    assert {decay[id(p)] for p in world.model.parameters() if p is not bias} == {0.5}

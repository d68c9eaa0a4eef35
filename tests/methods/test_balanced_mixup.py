"""Balanced-MixUp: the share, the mixed loss and the two streams."""

import pytest
import torch
from torch.nn import functional as F
from toys import World, gradient, inputs

from lmd.methods.balanced_mixup import draw_share, mix, mixed_cross_entropy
from lmd.methods.stage import Batch, prepare


def test_mixup_share_is_the_balanced_batch_s() -> None:
    instance, balanced = torch.zeros(2, 3), torch.ones(2, 3)
    torch.testing.assert_close(mix(instance, balanced, 0.25), torch.full((2, 3), 0.25))


def test_mixed_cross_entropy_is_soft_cross_entropy() -> None:
    logits, labels, _ = inputs()
    other = torch.tensor([2, 3, 1, 0, 3])
    soft = 0.75 * F.one_hot(labels, 4) + 0.25 * F.one_hot(other, 4)
    expected = F.cross_entropy(logits, soft)
    found = mixed_cross_entropy(logits, labels, other, 0.25)
    assert found.item() == pytest.approx(1.4218708, rel=1e-6)  # a recorded number
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient(found, logits), gradient(expected, logits))


@pytest.mark.parametrize("alpha", [0.1, 0.3, 1.0])
def test_share_is_beta_distributed(alpha: float) -> None:
    generator = torch.Generator().manual_seed(3)
    shares = torch.tensor([draw_share(alpha, generator) for _ in range(20000)])
    assert float(shares.mean()) == pytest.approx(alpha / (1 + alpha), abs=0.01)
    for point in (0.01, 0.3, 0.8):
        assert float((shares < point).float().mean()) == pytest.approx(point**alpha, abs=0.015)


def test_balanced_mixup_mixes_the_second_stream_by_the_share_and_cuts_to_the_shorter() -> None:
    world = World([12, 3])
    (stage,) = world.start("bal_mixup", alpha=0.7)
    natural, balanced = stage.class_weights(world.at())
    assert natural is None
    assert balanced is not None
    torch.testing.assert_close(balanced * world.task.class_counts, torch.ones(2))
    prepare(stage)
    stage.start_epoch(world.at())
    share = draw_share(0.7, torch.Generator().manual_seed(0))
    assert 0.05 < share < 0.95
    images, labels = world.train
    first = images[:6].clone().requires_grad_()
    second = images[-4:].clone().requires_grad_()
    batches = Batch({"label": first}, labels[:6]), Batch({"label": second}, labels[-4:])
    loss = stage.loss(*batches)["loss"]
    loss.backward()
    assert first.grad is not None
    assert second.grad is not None
    assert first.grad[4:].abs().sum() == 0
    assert second.grad.abs().sum() > 0
    # The gradient tells the two streams apart: it scales with their shares.
    torch.testing.assert_close(second.grad * (1 - share), first.grad[:4] * share)
    soft = (1 - share) * F.one_hot(labels[:4], 2) + share * F.one_hot(labels[-4:], 2)
    mixed = (1 - share) * first[:4] + share * second
    torch.testing.assert_close(loss, F.cross_entropy(world.model(mixed), soft))


def test_balanced_mixup_repeats_an_epoch_from_its_generator_alone() -> None:
    world = World([12, 3])
    (stage,) = world.start("bal_mixup")
    prepare(stage)
    batch = Batch({"label": world.train[0]}, world.train[1])
    other = Batch({"label": world.train[0].flip(0)}, world.train[1].flip(0))
    found = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        stage.start_epoch(world.at(5))
        found.append([stage.loss(batch, other)["loss"].item() for _ in range(3)])
    assert found[0] == found[1]
    assert len(set(found[0])) == 3

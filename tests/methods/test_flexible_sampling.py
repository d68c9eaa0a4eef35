"""FS: weights from the recall of each class."""

import pytest
import torch
from toys import World, close, same, state

from lmd.methods import METHODS
from lmd.methods.flexible_sampling import difficulty_weights
from lmd.methods.stage import Rate


def test_difficulty_weights():
    recall = torch.tensor([0.9, 0.5, 0.1])
    inverse = [1 / (r + 0.05) for r in recall.tolist()]
    close(difficulty_weights(recall, 0.05), [i / sum(inverse) for i in inverse])
    # Equal recalls: equal weights.
    close(difficulty_weights(torch.full((4,), 0.3), 0.05), torch.full((4,), 0.25))
    # A recall of zero is finite, and of NaN is average.
    hard = difficulty_weights(torch.tensor([0.0, 1.0]), 0.05)
    close(hard, [21 / 22, 1 / 22])
    missing = difficulty_weights(torch.tensor([0.8, torch.nan, 0.4]), 0.05)
    assert missing.isfinite().all()
    assert missing[0] < missing[1] < missing[2]
    close(difficulty_weights(torch.full((3,), torch.nan), 0.05), torch.full((3,), 1 / 3))


def test_fs_follows_validation_recall_once_there_is_one():
    world = World([12, 3])
    stage = world.to_stage("fs", 0)
    epoch = world.at()
    assert stage.class_weights(epoch) == [None]
    epoch.val_recall = torch.tensor([1.0, 0.0], dtype=torch.float64)
    (weights,) = stage.class_weights(epoch)
    assert weights.tolist() == pytest.approx([1 / 22, 21 / 22])
    # The weights are per image: a class that is hard alike is drawn by its number …
    epoch.val_recall = torch.tensor([0.5, 0.5])
    (weights,) = stage.class_weights(epoch)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(4)
    # … unless it is divided by it.
    stage = world.to_stage("fs", 0, combine_with_inverse_count=True)
    (weights,) = stage.class_weights(epoch)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(1)
    assert "unverified" in METHODS["fs"].note


def test_fs_crt_draws_class_balanced_first_and_then_by_recall_for_the_classifier_alone():
    world = World([12, 3])
    stages = world.start("fs_crt")
    first = next(stages)
    assert first.class_weights(world.at()) == [None]
    world.train_stage(first)
    trained = state(world.model.classifier)
    stage = next(stages)
    assert not same(state(world.model.classifier), trained)
    assert stage.part is world.model.classifier
    budget = (stage.epochs, stage.lr, stage.schedule, stage.weight_decay)
    assert budget == (10, Rate(0.2, 512), "cosine", 5e-4)
    recall = torch.tensor([1.0, 0.0], dtype=torch.float64)
    drawn = []
    for index in (0, 1):
        epoch = world.at(index)
        epoch.val_recall = recall
        drawn += stage.class_weights(epoch)
    torch.testing.assert_close(drawn[0] * world.task.class_counts, torch.ones(2))
    close(drawn[1], difficulty_weights(recall, 0.05))
    # Without a validation part there is no recall to follow: images come as they are.
    assert stage.class_weights(world.at(1)) == [None]

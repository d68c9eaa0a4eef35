"""FS: weights from the recall of each class."""

import pytest
import torch
from toys import World, close

from lmd.methods import METHODS
from lmd.methods.flexible_sampling import difficulty_weights


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
    run = world.run()
    assert stage.class_weights(run) == [None]
    run.val_recall = torch.tensor([1.0, 0.0], dtype=torch.float64)
    (weights,) = stage.class_weights(run)
    assert weights.tolist() == pytest.approx([1 / 22, 21 / 22])
    # The weights are per image: a class that is hard alike is drawn by its number …
    run.val_recall = torch.tensor([0.5, 0.5])
    (weights,) = stage.class_weights(run)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(4)
    # … unless it is divided by it.
    stage = world.to_stage("fs", 0, combine_with_inverse_count=True)
    (weights,) = stage.class_weights(run)
    drawn = weights * world.task.class_counts
    assert (drawn[0] / drawn[1]).item() == pytest.approx(1)
    assert "unverified" in METHODS["fs"].note

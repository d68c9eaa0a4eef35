"""Seesaw loss: no gradient through the compensation, and counts that are kept."""

import pytest
import torch
from torch.nn import functional as F
from toys import COUNTS, LABELS, LOGITS, World, gradient, inputs

from lmd.base.errors import LmdError
from lmd.methods.seesaw import Seesaw, seesaw_loss
from lmd.methods.supervised import Supervised
from lmd.model import CosineClassifier


def test_seesaw_compensation_sends_no_gradient() -> None:
    logits, labels, counts = inputs()
    found = gradient(seesaw_loss(logits, labels, counts, 0.8, 2.0), logits)
    # With both factors held fixed the slope is that of cross-entropy at the shifted logits.
    n, p = COUNTS.float(), logits.detach().softmax(1)
    shift = (n / n[labels][:, None]).clamp(max=1).pow(0.8)
    shift = shift * (p / p.gather(1, labels[:, None]).clamp(min=0.01)).clamp(min=1).pow(2)
    expected = ((logits + shift.log()).softmax(1) - F.one_hot(labels, 4)) / len(labels)
    torch.testing.assert_close(found, expected.detach())


def test_seesaw_counts_a_batch_before_it_is_used() -> None:
    criterion = Seesaw(4, 0.8, 2.0)
    # Recorded numbers: the counts start at 0, and twice the batch has the same ratios.
    assert criterion(LOGITS, LABELS).item() == pytest.approx(1.8984209, rel=1e-5)
    assert criterion(LOGITS, LABELS).item() == pytest.approx(1.8984209, rel=1e-5)
    assert criterion.counts.tolist() == [4, 2, 2, 2]
    criterion.eval()
    criterion(LOGITS, LABELS)
    assert criterion.counts.tolist() == [4, 2, 2, 2]


def test_seesaw_counts_are_in_the_checkpoint_and_never_saturate() -> None:
    (stage,) = World([5, 1]).start("seesaw")
    assert isinstance(stage, Supervised)
    assert isinstance(stage.criterion, Seesaw)
    assert stage.state_dict()["criterion.counts"].tolist() == [0, 0]
    # Single precision cannot count beyond 2^24.
    stage.criterion.counts.fill_(2**24)
    stage.criterion(torch.zeros(1, 2), torch.tensor([1]))
    assert stage.state_dict()["criterion.counts"].tolist() == [2**24, 2**24 + 1]


def test_the_normalised_head_has_temperature_20_and_needs_cosines() -> None:
    world = World([9, 3, 1])
    (stage,) = world.start("seesaw_norm")
    assert isinstance(world.model.classifier, CosineClassifier)
    assert world.model.classifier.scale == 20
    assert isinstance(stage.criterion, Seesaw)
    assert (stage.criterion.p, stage.criterion.q) == (0.8, 2.0)
    with pytest.raises(LmdError, match=r"Linear: leave 'temperature' out.*'seesaw_norm'"):
        next(world.start("seesaw", temperature=20.0))

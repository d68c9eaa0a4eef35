"""Balanced Softmax: the prior, the one row with logit adjustment, and its controls."""

import pytest
import torch
from torch.nn import functional as F
from toys import MakeTrainer, World, assert_same, inputs, weights_of

from lmd.methods import METHODS, find_method, related
from lmd.methods.logit_adjustment import adjust_logits
from lmd.methods.stage import Batch, prepare
from lmd.methods.supervised import balanced_softmax_loss


def test_training_adds_the_prior_and_does_not_subtract_it() -> None:
    logits, labels, counts = inputs()
    assert balanced_softmax_loss(logits, labels, counts).item() == pytest.approx(1.8161812, 1e-5)
    wrong = F.cross_entropy(adjust_logits(logits, counts, 1.0), labels)
    assert wrong.item() == pytest.approx(1.7672924, rel=1e-5)


def test_logit_adjustment_is_the_same_training_and_no_row_of_its_own(
    make_trainer: MakeTrainer,
) -> None:
    assert "logit_adjust" not in METHODS
    also = find_method("logit_adjust")
    assert also.title == "Logit adjustment"
    assert also.settings() == METHODS["balanced_softmax"].settings()
    assert not related("logit_adjust", "lmd")
    found = []
    for method, tau in ((also, 1.0), (METHODS["balanced_softmax"], 1.0), (also, 0.5)):
        trainer = make_trainer(method, folder=f"{method.key}{tau}", settings={"tau": tau}, epochs=1)
        trainer.fit()
        found.append(weights_of(trainer.model))
    assert_same(found[0], found[1])
    assert any(not torch.equal(found[0][k], found[2][k]) for k in found[0])


CONTROLS = {
    "ce_strong": ("ce", "strong", None),
    "rs_strong": ("rs", "strong", None),
    "balanced_softmax_strong": ("balanced_softmax", "strong", None),
    "balanced_softmax_ema": ("balanced_softmax", "label", 0.1),
    "balanced_softmax_strong_ema": ("balanced_softmax", "strong", 0.1),
    "balanced_softmax_two_views_ema": ("balanced_softmax", "both", 0.1),
}


@pytest.mark.parametrize("key", CONTROLS)
def test_a_control_is_its_family_with_another_view_or_an_average(key: str) -> None:
    family, view, average = CONTROLS[key]
    row, plain = METHODS[key], METHODS[family]
    assert row.family == family
    assert row.title.startswith(plain.title)
    assert row.note.startswith("A control")
    assert row.mix({}) == plain.mix({})
    assert row.settings() == plain.settings() | {"view": view, "average": average}
    stage = World([9, 3]).to_stage(key, 0)
    assert stage.views == (("weak", "strong") if view == "both" else (view,))


def test_two_views_have_half_the_loss_each_and_weak_ones_the_statistics() -> None:
    world = World([9, 3, 1])
    stage = world.to_stage("balanced_softmax_two_views_ema", 0)
    prepare(stage)
    images, labels = world.train
    weak, strong = images, images.flip(3) + 1
    counts = world.task.class_counts
    by_view = [balanced_softmax_loss(world.model(v), labels, counts) for v in (strong, weak)]
    encoder = world.model.encoder[1]
    encoder.reset_running_stats()
    world.model(weak)
    expected = encoder.running_mean.clone()
    encoder.reset_running_stats()
    terms = stage.loss(Batch({"weak": weak, "strong": strong}, labels))
    torch.testing.assert_close(terms["loss"], sum(by_view) / 2)
    torch.testing.assert_close(encoder.running_mean, expected)

"""LDAM: margins, the weighted second phase, its three rules and what ships."""

import pytest
import torch
from torch import Tensor
from toys import COSINE, COUNTS, World, inputs, small_model

from lmd.base.errors import LmdError
from lmd.methods import METHODS
from lmd.methods.ldam import LDAM, ldam_loss, ldam_margins
from lmd.methods.stage import Task
from lmd.methods.supervised import class_balanced_weights
from lmd.model import CosineClassifier


def loss(weighted: bool, cosine: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    weight = class_balanced_weights(counts.to(cosine), 0.9999) if weighted else None
    return ldam_loss(cosine, labels, ldam_margins(counts, 0.5).to(cosine), 30.0, weight)


def test_ldam_margins_are_the_recorded_ones_and_largest_for_the_rarest() -> None:
    margins = ldam_margins(COUNTS, 0.5)
    torch.testing.assert_close(margins, torch.tensor([0.2236068, 0.2811707, 0.3976354, 0.5]))
    torch.testing.assert_close(ldam_margins(torch.tensor([16, 1]), 0.5), torch.tensor([0.25, 0.5]))
    # A class without images takes the largest margin and leaves the others theirs.
    torch.testing.assert_close(
        ldam_margins(torch.tensor([64, 0, 4]), 0.5), torch.tensor([0.25, 0.5, 0.5])
    )


def test_ldam_second_phase_is_a_weighted_mean() -> None:
    cosine, labels, counts = inputs(COSINE)
    assert loss(True, cosine, labels, counts).item() == pytest.approx(15.7578344, rel=1e-5)
    # The same from single images: Σ w l / Σ w.
    weight = class_balanced_weights(counts, 0.9999)[labels]
    single = torch.stack(
        [loss(False, cosine[i : i + 1], labels[i : i + 1], counts) for i in range(5)]
    )
    expected = (weight * single).sum() / weight.sum()
    torch.testing.assert_close(loss(True, cosine, labels, counts), expected)


def test_ldam_refuses_a_linear_head_whose_logits_would_overflow_it() -> None:
    with pytest.raises(LmdError, match="needs a cosine classifier; it has Linear: build"):
        next(METHODS["ldam_rs"].start(small_model(2), Task(torch.tensor([5, 1]), 16), {}))


def test_ldam_ships_its_scale_inside_the_classifier() -> None:
    world = World([20, 5, 1], epochs=40)
    world.train_stage(world.to_stage("ldam_rs", 0))
    model, images = world.model.eval(), world.train[0]
    assert isinstance(model.classifier, CosineClassifier)
    with torch.no_grad():
        cosine = model.classifier.cosine(model.features(images))
        logits = model(images)
    torch.testing.assert_close(logits, 30 * cosine)
    assert model.state_dict()["classifier.scale"] == 30
    # Bare cosines would leave the softmax nearly uniform: at most e² between two classes.
    assert logits.softmax(1).max(1).values.mean() > 0.95
    assert cosine.softmax(1).max(1).values.max() < 0.8


@pytest.mark.parametrize("rule", ["rs", "drs", "drw"])
def test_ldam_balances_by_sampler_or_by_weights_but_never_by_both(rule: str) -> None:
    world = World([100, 10, 1], epochs=10)
    (stage,) = world.start("ldam_rs", rule=rule)
    assert isinstance(stage, LDAM)
    for index in range(10):
        epoch = world.at(index)
        stage.start_epoch(epoch)
        (drawn,) = stage.class_weights(epoch)
        second = index >= 8
        resampled = drawn is not None and bool((drawn.std() > 0.5).item())
        weighted = bool((stage.weight.std() > 0.5).item())
        assert (resampled, weighted) == {
            "rs": (True, False),
            "drs": (second, False),
            "drw": (False, second),
        }[rule]
        if drawn is not None:
            share = drawn * world.task.class_counts
            torch.testing.assert_close(
                share / share.sum(), torch.full((3,), 1 / 3), rtol=0.02, atol=0
            )


def test_the_two_rows_of_ldam_differ_in_their_rule() -> None:
    assert METHODS["ldam_rs"].settings({})["rule"] == "rs"
    assert METHODS["ldam_drw"].settings({})["rule"] == "drw"

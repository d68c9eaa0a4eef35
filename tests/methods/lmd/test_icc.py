"""ICC as a stage: who moves in which step, what is chosen once, what a checkpoint has."""

import copy
import math

import pytest
import torch
from torch.nn import functional as F
from toys import FakeEpoch, small_model

from lmd.base.errors import LmdError
from lmd.methods.lmd.icc import ICC, ICCSettings, check_model
from lmd.methods.stage import Batch, Task, prepare
from lmd.model import CosineClassifier, Model

COUNTS = (40, 12, 5)
# The M and E steps as the paper has them; tests of our own steps say what they change.
PUBLISHED = {
    "classifier": "fresh",
    "m_views": "eval",
    "mean_images": 0.0,
    "e_tau": 0.0,
    "e_statistics": True,
    "fdc_form": "difference",
}
CHOOSE = {"shrinkage": "validation", "weight_penalty": "validation"}


def images(counts, seed=0):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    shift = torch.randn(len(counts), 3, 1, 1, generator=torch.Generator().manual_seed(9))
    return torch.randn(len(labels), 3, 8, 8, generator=g) + shift[labels], labels


def setup(counts=COUNTS, validation=(6, 6, 6), vfc=True, e_step=True, **settings):
    settings = PUBLISHED | {"shrinkage": 0.5, "weight_penalty": 0.01} | settings
    model = small_model(len(counts))
    task = Task(torch.tensor(counts), 16)
    stage = ICC(model, task, ICCSettings(**settings), vfc=vfc, e_step=e_step)
    groups = prepare(stage)
    epoch = FakeEpoch(
        model, *images(counts), validation=images(validation, seed=1), total=3, steps=2
    )
    batch = Batch({"label": epoch.images}, epoch.labels)
    return stage, groups, epoch, batch


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def moved(before, module):
    after = module.state_dict()
    return [name for name in before if not torch.equal(before[name], after[name])]


def test_the_m_step_moves_the_classifier_and_nothing_of_the_encoder():
    for settings in ({}, {"m_step": "sgd", "m_lr": 0.1, "virtual_features": 50}, {"vfc": False}):
        stage, _, epoch, _ = setup(**settings)
        before = snapshot(stage.model)
        numbers = stage.start_epoch(epoch)
        assert moved(before, stage.model) == ["classifier.weight", "classifier.bias"], settings
        assert all(math.isfinite(v) for v in numbers.values())
        assert all(p.grad is None for p in stage.parameters())


def test_the_e_step_moves_the_encoder_and_nothing_of_the_classifier():
    stage, groups, epoch, batch = setup(encoder_lr=0.01)
    optimizer = torch.optim.SGD(groups, lr=1.0)
    stage.start_epoch(epoch)
    before = snapshot(stage.model)
    moments = snapshot(stage.gaussians)
    stage.step(optimizer, batch)
    changed = moved(before, stage.model)
    assert {n.split(".")[0] for n in changed} == {"encoder"}
    assert {f"encoder.{n}" for n, _ in stage.model.encoder.named_parameters()} <= set(changed)
    assert moved(moments, stage.gaussians) == []
    assert all(p.grad is None for p in stage.model.classifier.parameters())


def test_cross_entropy_reaches_the_encoder_through_the_frozen_classifier():
    stage, _, epoch, batch = setup(lambda_e=0.0)
    stage.start_epoch(epoch)
    terms = stage.loss(batch)
    assert set(terms) == {"loss", "ce"}
    terms["loss"].backward()
    twin = copy.deepcopy(stage.model)
    twin.zero_grad()
    twin.encoder.train()
    F.cross_entropy(twin(batch.views["label"]), batch.labels).backward()
    for ours, plain in zip(
        stage.model.encoder.parameters(), twin.encoder.parameters(), strict=True
    ):
        assert ours.grad.abs().sum() > 0
        torch.testing.assert_close(ours.grad, plain.grad)


def test_the_loss_is_cross_entropy_plus_weighted_fdc():
    stage, _, epoch, batch = setup(lambda_e=0.3)
    stage.start_epoch(epoch)
    terms = stage.loss(batch)
    assert set(terms) == {"loss", "ce", "psi", "phi"}
    torch.testing.assert_close(terms["loss"], terms["ce"] + 0.3 * (terms["psi"] - terms["phi"]))
    assert terms["psi"] > 0
    assert terms["phi"] > 0


def test_calibration_once_has_one_epoch_and_no_batches():
    stage, groups, epoch, _ = setup(e_step=False)
    assert list(groups) == []
    assert stage.epochs == 1
    assert stage.class_weights(epoch) == []
    assert not any(m.training for m in stage.model.modules())
    assert stage.start_epoch(epoch)["m_loss"] > 0


def test_the_m_step_calibrates():
    stage, _, epoch, _ = setup(counts=(60, 20, 12))
    before = F.cross_entropy(stage.model.classifier(epoch.features()[0].clone()), epoch.labels)
    stage.start_epoch(epoch)
    after = F.cross_entropy(stage.model.classifier(epoch.features()[0].clone()), epoch.labels)
    assert after < before


def test_regularisers_are_chosen_once_and_kept():
    stage, _, epoch, _ = setup(**CHOOSE)
    numbers = stage.start_epoch(epoch)
    assert epoch.asked.count(("natural", "validation")) == 1
    again = stage.start_epoch(epoch)
    assert epoch.asked.count(("natural", "validation")) == 1
    assert numbers["shrinkage"] == again["shrinkage"] == stage.chosen()["shrinkage"]
    assert numbers["weight_penalty"] == again["weight_penalty"] == stage.chosen()["weight_penalty"]


def test_regularisers_without_validation_images_or_as_given():
    empty = torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)
    stage, _, epoch, _ = setup(**CHOOSE)
    epoch.validation = empty
    numbers = stage.start_epoch(epoch)
    assert numbers["shrinkage"] == 0.5
    assert numbers["weight_penalty"] > 0
    stage, _, epoch, _ = setup(shrinkage=0.25, weight_penalty=0.125)
    numbers = stage.start_epoch(epoch)
    assert (numbers["shrinkage"], numbers["weight_penalty"]) == (0.25, 0.125)
    assert stage.chosen() == {}
    assert ("natural", "validation") not in epoch.asked


def test_sampling_of_both_steps():
    stage, _, epoch, _ = setup(m_sampling="natural", e_sampling="balanced")
    stage.start_epoch(epoch)
    assert epoch.asked[0] == ("natural", "train")
    (weights,) = stage.class_weights(epoch)
    torch.testing.assert_close(weights * torch.tensor(COUNTS), torch.ones(3))
    stage, _, epoch, _ = setup()
    stage.start_epoch(epoch)
    assert epoch.asked[0] == ("balanced", "train")
    assert stage.class_weights(epoch) == [None]


def test_moments_of_all_views():
    stage, _, epoch, _ = setup(m_views="all", m_sampling="natural")
    draw, seen = epoch.features, []

    def shifted(drawn="natural", part="train", view="eval"):
        features, labels = draw(drawn, part)
        if part == "train":
            seen.append(view)
        return features + {"eval": 0.0, "weak": 1.0, "strong": 2.0}[view], labels

    epoch.features = shifted
    stage.start_epoch(epoch)
    assert seen == ["eval", "weak", "strong"]
    plain, labels = draw()
    expected = torch.stack([plain[labels == k].mean(0) + 1 for k in range(3)])
    torch.testing.assert_close(stage.gaussians.mean, expected)


def test_a_first_draw_that_misses_a_class_takes_its_images():
    stage, _, epoch, _ = setup()
    draw = epoch.features

    def unlucky(drawn="natural", part="train", view="eval"):
        features, labels = draw(drawn, part)
        kept = (labels != 2) | (drawn == "natural")
        return features[kept], labels[kept]

    epoch.features = unlucky
    stage.start_epoch(epoch)
    features, labels = draw("natural")
    torch.testing.assert_close(stage.gaussians.mean[2], features[labels == 2].mean(0))


@pytest.mark.parametrize("m_step", ["argmin", "sgd"])
def test_a_checkpoint_in_the_middle_changes_nothing(m_step):
    settings = {"m_step": m_step, "m_lr": 0.01, "virtual_features": 64, "encoder_lr": 0.01}

    def train_epoch(stage, groups, epoch, batch, number):
        optimizer = torch.optim.SGD(groups, lr=1.0)
        epoch.index, epoch.generator = number, torch.Generator().manual_seed(number)
        stage.start_epoch(epoch)
        stage.step(optimizer, batch)

    stage, groups, epoch, batch = setup(**settings)
    train_epoch(stage, groups, epoch, batch, 0)
    other, other_groups, other_run, _ = setup(**settings)
    assert set(other.state_dict()) == set(stage.state_dict())
    other.load_state_dict(stage.state_dict())
    train_epoch(stage, groups, epoch, batch, 1)
    train_epoch(other, other_groups, other_run, batch, 1)
    for a, b in zip(stage.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_half_precision_keeps_distances_in_float32():
    stage, _, epoch, batch = setup()
    stage.start_epoch(epoch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        terms = stage.loss(batch)
    assert terms["psi"].dtype == terms["loss"].dtype == torch.float32
    terms["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in stage.model.encoder.parameters())


def test_only_a_linear_classifier_will_do():
    model = Model(small_model().encoder, CosineClassifier(16, 3))
    with pytest.raises(LmdError, match=r"^model.classifier: LMD needs a linear classifier"):
        check_model(model, ICCSettings())


def test_too_many_virtual_features_are_refused():
    with pytest.raises(LmdError, match=r"must be at most 333333333 with 3 classes"):
        check_model(small_model(3), ICCSettings(virtual_features=10**9))


def test_the_views_of_a_single_image_are_not_the_spread_of_its_class():
    stage, _, epoch, _ = setup(m_views="all", m_sampling="natural")
    stage.class_counts[2] = 1
    draw = epoch.features

    def one_image(drawn="natural", part="train", view="eval"):
        features, labels = draw(drawn, part)
        rows = (labels != 2) | (torch.cumsum(labels == 2, 0) == 1)
        return features[rows] + {"eval": 0.0, "weak": 0.01, "strong": -0.01}[view], labels[rows]

    epoch.features = one_image
    stage.start_epoch(epoch)
    own = [float(c.trace()) for c in stage.gaussians.covariance]
    assert min(own[:2]) < own[2] < max(own[:2])

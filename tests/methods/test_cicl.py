"""CICL: the contrastive loss, and a probe that leaves the encoder alone."""

import math

import pytest
import torch
from toys import World, close, gradient, optimise, same, state

from lmd.methods.cicl import supervised_contrastive_loss
from lmd.methods.stage import Batch, Rate, prepare

VIEWS = torch.tensor(
    [
        [[1.0, 0.2, 0.0], [0.9, 0.1, 0.3]],
        [[0.8, 0.5, 0.1], [1.0, 0.0, 0.2]],
        [[-0.2, 1.0, 0.4], [0.1, 0.9, -0.3]],
        [[0.0, -0.4, 1.0], [0.3, 0.2, 0.8]],
    ]
)


VIEW_LABELS = torch.tensor([0, 0, 1, 2])


def naive_supervised_contrastive_loss(features, labels, temperature, base) -> float:
    points = [(v / v.norm(), int(y)) for f, y in zip(features, labels, strict=True) for v in f]
    losses = []
    for i, (a, y) in enumerate(points):
        others = [(b, z) for j, (b, z) in enumerate(points) if j != i]
        positives = [b for b, z in others if z == y]
        if not positives:
            continue
        denominator = sum(math.exp(float(a @ b) / temperature) for b, _ in others)
        terms = [float(a @ b) / temperature - math.log(denominator) for b in positives]
        losses.append(-sum(terms) / len(terms))
    return temperature / base * sum(losses) / len(losses)


@pytest.mark.parametrize(
    ("temperature", "base", "expected"),
    [(0.1, 0.07, 0.9728632), (0.07, 0.07, 0.6650541), (0.1, 0.1, 0.6810042)],
)
def test_supervised_contrastive_loss(temperature, base, expected):
    loss = supervised_contrastive_loss(VIEWS, VIEW_LABELS, temperature, base)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    naive = naive_supervised_contrastive_loss(VIEWS, VIEW_LABELS, temperature, base)
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_supervised_contrastive_loss_of_the_authors(vectors):
    reference = vectors["supcon"]
    features = torch.tensor(reference["features_before_l2norm[B=4,V=2,D=3]"])
    labels = torch.tensor(reference["labels"])
    loss = supervised_contrastive_loss(features, labels, 0.1, 0.07)
    assert loss.item() == pytest.approx(reference["temp0.1_base0.07(CICL default)"], abs=1e-5)
    # Without labels every image is a class of its own.
    loss = supervised_contrastive_loss(features, torch.arange(4), 0.1, 0.1)
    expected = reference["simclr_temp0.1_base0.1(no labels)"]
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_contrastive_limits_and_gradients():
    # One image, two views: the only other point is the positive.
    pair = VIEWS[:1].clone().requires_grad_()
    loss = supervised_contrastive_loss(pair, torch.tensor([0]), 0.1, 0.07)
    assert loss.item() == pytest.approx(0, abs=1e-6)
    close(gradient(loss, pair), torch.zeros_like(pair), atol=1e-5, rtol=0)
    # A batch of one class only: finite, and the gradient too.
    views = VIEWS.clone().requires_grad_()
    loss = supervised_contrastive_loss(views, torch.zeros(4, dtype=torch.long), 0.1, 0.07)
    naive = naive_supervised_contrastive_loss(VIEWS, torch.zeros(4), 0.1, 0.07)
    assert loss.item() == pytest.approx(naive, abs=1e-5)
    assert gradient(loss, views).isfinite().all()
    # The length of a projection does not count: the gradient is orthogonal to it.
    loss = supervised_contrastive_loss(views, VIEW_LABELS, 0.1, 0.07)
    close((gradient(loss, views) * views).sum(2), torch.zeros(4, 2), atol=1e-5, rtol=0)


def test_anchors_without_a_positive_are_left_out():
    single = VIEWS[:, :1].clone().requires_grad_()
    loss = supervised_contrastive_loss(single, VIEW_LABELS, 0.1, 0.07)
    naive = naive_supervised_contrastive_loss(single.detach(), VIEW_LABELS, 0.1, 0.07)
    assert loss.item() == pytest.approx(naive, abs=1e-5)
    for chosen, labels in ((single, torch.arange(4)), (single[:1], torch.tensor([2]))):
        loss = supervised_contrastive_loss(chosen, labels, 0.1, 0.07)
        assert loss.item() == 0
        assert torch.equal(gradient(loss, single), torch.zeros_like(single))


def test_cicl_sees_two_views_and_its_probe_does_not_reach_the_encoder():
    world = World([9, 3, 1])
    stage = world.to_stage("cicl", 0)
    assert stage.views == ("strong", "strong2")
    prepare(stage)
    images, labels = world.train
    views = {name: images[:6].clone().requires_grad_() for name in stage.views}
    terms = stage.loss(Batch(views, labels[:6]))
    encoder = list(world.model.encoder.parameters())
    grads = torch.autograd.grad(
        terms["contrastive"], [*views.values(), *encoder], retain_graph=True
    )
    assert all(g.abs().sum() > 0 for g in grads[:2])
    unused = torch.autograd.grad(terms["probe"], encoder, retain_graph=True, allow_unused=True)
    assert all(g is None for g in unused)
    none = torch.autograd.grad(
        terms["contrastive"], list(world.model.classifier.parameters()), allow_unused=True
    )
    assert all(g is None for g in none)
    # Both stages draw the classes alike.
    contrastive, _, probe = world.start("cicl")
    for one in (contrastive, probe):
        (weights,) = one.class_weights(world.at(0))
        torch.testing.assert_close(weights * world.task.class_counts, torch.ones(3))


def test_cicl_probes_with_a_fresh_classifier():
    world = World([9, 3, 1])
    stages = world.start("cicl")
    world.train_stage(next(stages))
    beside = state(world.model.classifier)
    next(stages)
    assert same(state(world.model.classifier), beside)
    next(stages)
    assert not same(state(world.model.classifier), beside)


def test_cicl_takes_the_statistics_from_undistorted_images_once_each():
    world = World([9, 3, 1])
    stages = world.start("cicl")
    world.train_stage(next(stages))
    stage = next(stages)
    assert (stage.views, stage.epochs, stage.updates) == (("eval",), 1, False)
    assert stage.class_weights(world.at(0)) == [None]
    before = state(world.model)
    optimizer = optimise(stage)
    stage.start_epoch(world.at(0))
    images, labels = world.train
    cuts = torch.arange(len(labels)).split(4)
    for rows in cuts:
        terms = stage.step(optimizer, Batch({"eval": images[rows]}, labels[rows]))
        assert terms["loss"] == 0
    norm = world.model.encoder[1]
    assert norm.momentum == 0.1
    after = state(world.model)
    moved = {key for key in after if not torch.equal(after[key], before[key])}
    assert moved == {f"encoder.1.{k}" for k in ("running_mean", "running_var")} | {
        "encoder.1.num_batches_tracked"
    }
    with torch.no_grad():
        maps = world.model.encoder[0](images)
    torch.testing.assert_close(norm.running_mean, maps.mean((0, 2, 3)))
    variances = [len(rows) / len(labels) * maps[rows].var((0, 2, 3)) for rows in cuts]
    torch.testing.assert_close(norm.running_var, sum(variances))


def test_cicl_s_probe_has_its_own_budget():
    *_, probe = World([9, 3, 1]).start("cicl")
    assert (probe.epochs, probe.lr, probe.schedule) == (100, Rate(1.0, 512), "cosine")

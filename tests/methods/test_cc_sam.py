"""CC-SAM: flat and shifted losses against loops, limits and the authors' numbers; its stages."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from toys import COUNTS, LABELS, World, close, gradient

from lmd.methods import cc_sam
from lmd.methods.cc_sam import (
    class_radius,
    draw_mixup,
    flat_loss,
    shift_strengths,
    shifted_loss,
)
from lmd.methods.stage import Batch, Rate, prepare

FEATURES = torch.tensor([[1.0, 0.2], [0.4, 0.9], [-0.3, 0.7], [0.5, -0.6], [0.8, 0.1]])


@pytest.fixture
def classifier() -> nn.Linear:
    linear = nn.Linear(2, 4)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[0.5, 0.1], [0.2, 0.4], [-0.1, 0.3], [0.0, -0.2]]))
        linear.bias.copy_(torch.tensor([0.1, 0.0, -0.1, 0.05]))
    return linear


def of_parameters(loss: Tensor, classifier: nn.Linear) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(classifier.parameters())))


def test_flat_loss_of_the_authors(classifier, vectors):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    loss = 0.5 * ce + 0.5 * flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05)
    reference = vectors["ccsam_step"]["result"]["stage1"]
    assert loss.item() == pytest.approx(reference["loss"], abs=1e-6)
    weight, bias = of_parameters(loss, classifier)
    close(weight, reference["gradW"])
    close(bias, reference["gradb"])


def test_shifted_loss_of_the_authors(classifier, vectors):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    loss = 0.5 * ce + 0.5 * shifted_loss(classifier, FEATURES, LABELS, shift_strengths(COUNTS))
    reference = vectors["ccsam_step"]["result"]["stage2"]
    assert loss.item() == pytest.approx(reference["loss"], abs=1e-6)
    weight, bias = of_parameters(loss, classifier)
    close(weight, reference["gradW"])
    close(bias, reference["gradb"])
    close(shift_strengths(COUNTS), vectors["ccsam_class_weights"]["value"])


def test_cc_sam_reference_numbers(classifier):
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    flat = flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05)
    shifted = shifted_loss(classifier, FEATURES, LABELS, shift_strengths(COUNTS))
    assert (0.5 * ce + 0.5 * flat).item() == pytest.approx(1.1848347, abs=1e-6)
    assert (0.5 * ce + 0.5 * shifted).item() == pytest.approx(1.1394680, abs=1e-6)
    close(shift_strengths(COUNTS), [0.0049752, 0.4601414, 1.1517923, 1.6096379])


def test_flat_loss_is_the_loss_at_weights_moved_in_place(classifier):
    features = FEATURES.clone().requires_grad_()
    loss = flat_loss(classifier, features, LABELS, COUNTS, 0.05)
    ours = [
        *of_parameters(loss, classifier),
        gradient(flat_loss(classifier, features, LABELS, COUNTS, 0.05), features),
    ]

    size, total = 12, 0.0
    norm = torch.cat([p.flatten() for p in classifier.parameters()]).norm().item()
    sums = [torch.zeros_like(p) for p in (*classifier.parameters(), features)]
    for k in range(4):
        rows = [i for i, y in enumerate(LABELS.tolist()) if y == k]
        moved = copy.deepcopy(classifier)
        grads = of_parameters(F.cross_entropy(moved(FEATURES[rows]), LABELS[rows]), moved)
        with torch.no_grad():
            for p, g in zip(moved.parameters(), grads, strict=True):
                rho = 0.05 * math.sqrt(norm / g.norm().item() / 2) * (COUNTS[k].item() - 1) ** -0.25
                p.add_(rho / size**0.25 * size**0.5 * g / g.norm())
        part = F.cross_entropy(moved(features[rows]), LABELS[rows], reduction="sum") / 5
        total += part.item()
        for s, g in zip(
            sums, torch.autograd.grad(part, [*moved.parameters(), features]), strict=True
        ):
            s.add_(g)
    assert loss.item() == pytest.approx(total, abs=1e-6)
    for a, b in zip(ours, sums, strict=True):
        close(a, b)


def test_flat_loss_without_a_radius_is_cross_entropy_gradients_included(classifier):
    features = FEATURES.clone().requires_grad_()
    flat = flat_loss(classifier, features, LABELS, COUNTS, 0.0)
    ce = F.cross_entropy(classifier(features), LABELS)
    close(flat, ce)
    for p in (*classifier.parameters(), features):
        close(
            torch.autograd.grad(flat, p, retain_graph=True)[0],
            torch.autograd.grad(ce, p, retain_graph=True)[0],
        )


def test_flat_loss_is_above_cross_entropy_and_leaves_the_classifier_alone(classifier):
    before = copy.deepcopy(classifier.state_dict())
    ce = F.cross_entropy(classifier(FEATURES), LABELS)
    assert flat_loss(classifier, FEATURES, LABELS, COUNTS, 0.05) > ce
    assert all(torch.equal(v, classifier.state_dict()[k]) for k, v in before.items())
    assert all(p.grad is None for p in classifier.parameters())


def test_a_class_of_one_image_moves_like_one_of_two_and_rarer_ones_further():
    g, norm = torch.tensor([0.3, 0.4]), torch.tensor(2.0)
    radii = [class_radius(g, norm, 12, torch.tensor(n), 0.05).item() for n in (1, 2, 3, 100)]
    assert radii[0] == radii[1] > radii[2] > radii[3] > 0
    assert radii[3] == pytest.approx(0.05 * math.sqrt(2 / 0.5 / 2) * 99**-0.25 * 12**0.25)


def test_gradients_below_rounding_do_not_throw_the_classifier_away(classifier):
    # Probabilities of 1 − 6e-16: what is left of the gradient is 2e-14.
    features = 35 * F.one_hot(torch.tensor([0, 1])).float()
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [-1, -1], [-2, -2]]))
    loss = flat_loss(classifier, features, torch.tensor([0, 1]), torch.tensor([9, 1, 1, 1]), 1e-6)
    assert loss.item() < 1e-3
    assert all(g.isfinite().all() for g in of_parameters(loss, classifier))
    shifted = shifted_loss(classifier, features, torch.tensor([0, 1]), torch.ones(4))
    assert all(g.isfinite().all() for g in of_parameters(shifted, classifier))


def test_shifted_loss_naively_and_the_head_nearly_vanishes(classifier):
    strengths = shift_strengths(COUNTS)
    total = 0.0
    for k in range(4):
        rows = [i for i, y in enumerate(LABELS.tolist()) if y == k]
        f = FEATURES[rows].clone().requires_grad_()
        g = gradient(F.cross_entropy(classifier(f), LABELS[rows]), f)
        for i, row in enumerate(rows):
            moved = FEATURES[row] + strengths[k] * g[i] / g.square().sum().sqrt()
            total += (strengths[k] * F.cross_entropy(classifier(moved), LABELS[row])).item()
    loss = shifted_loss(classifier, FEATURES, LABELS, strengths)
    assert loss.item() == pytest.approx(total / 5, abs=1e-6)
    assert strengths[0] < 0.005 < strengths[1]
    # Balanced counts: everyone is a head class; a class of one image is finite.
    close(shift_strengths(torch.tensor([5, 5])), torch.full((2,), math.log(1.01) / 2))
    assert shift_strengths(torch.tensor([1000, 1])).isfinite().all()


def test_mixup_keeps_the_larger_share_of_the_image_whose_label_it_bears(monkeypatch):
    world = World([9, 3, 1])
    stage = world.to_stage("cc_sam", 0, mixup=1.0)
    images, labels = world.train
    order = torch.arange(len(labels)).flip(0)
    losses = []
    for share in (0.2, 0.8):
        monkeypatch.setattr(cc_sam, "draw_mixup", lambda _alpha, _batch, s=share: (s, order))
        losses.append(stage.loss(Batch({"label": images}, labels))["loss"].item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_mixup_draws_any_share_and_a_partner_for_each_image():
    torch.manual_seed(0)
    draws = [draw_mixup(1.0, 6) for _ in range(400)]
    assert sum(share for share, _ in draws) / 400 == pytest.approx(0.5, abs=0.05)
    assert all(sorted(order.tolist()) == list(range(6)) for _, order in draws)


def test_cc_sam_terms_and_reach_of_stage_one():
    world = World([9, 3, 1])
    stage = world.to_stage("cc_sam", 0, rho=0.05)
    prepare(stage)
    images, labels = world.train
    terms = stage.loss(Batch({"label": images}, labels))
    assert terms["flat"] > terms["ce"]
    torch.testing.assert_close(terms["loss"], 0.7 * terms["ce"] + 0.3 * terms["flat"])
    grads = torch.autograd.grad(terms["flat"], list(world.model.parameters()))
    # All but the bias of the convolution, which BatchNorm cancels.
    assert all(g.abs().sum() > 0 for i, g in enumerate(grads) if i != 1)


def test_cc_sam_alpha_grows_to_its_limit():
    world = World([9, 3], epochs=4)
    stage = world.to_stage("cc_sam", 1, limit=0.6)
    assert (stage.epochs, stage.lr) == (30, Rate(0.01, 64))
    alphas = [stage.start_epoch(world.at(e))["alpha"] for e in range(4)]
    assert alphas == pytest.approx([0.25, 0.5, 0.6, 0.6])
    images, labels = world.train
    terms = stage.loss(Batch({"label": images}, labels))
    torch.testing.assert_close(terms["loss"], 0.6 * terms["shifted"] + 0.4 * terms["ce"])


def test_cc_sam_mixup_has_mixed_labels_in_ce_and_own_labels_in_the_flat_term():
    world = World([9, 3, 1])
    stage = world.to_stage("cc_sam", 0, mixup=1.0, rho=0.0)
    prepare(stage)
    images, labels = world.train
    torch.manual_seed(5)
    share, order = draw_mixup(1.0, len(labels))
    share = max(share, 1 - share)
    torch.manual_seed(5)
    terms = stage.loss(Batch({"label": images}, labels))
    logits = world.model(share * images + (1 - share) * images[order])
    own, other = F.cross_entropy(logits, labels), F.cross_entropy(logits, labels[order])
    torch.testing.assert_close(terms["ce"], share * own + (1 - share) * other)
    torch.testing.assert_close(terms["flat"], own)

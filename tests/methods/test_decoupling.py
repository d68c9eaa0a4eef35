"""Decoupling: τ-normalisation, nearest means, and who moves in stage 2."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from toys import WEIGHT, World, close, same, state

from lmd.methods import decoupling
from lmd.methods.decoupling import choose_tau
from lmd.methods.linear import nearest_mean_classifier, tau_normalise
from lmd.methods.stage import Rate, prepare
from lmd.scoring.metrics import mean_recall


def test_tau_normalisation_naively_and_at_its_limits():
    for tau in (0.0, 0.3, 1.0, 2.0):
        naive = [[w / math.hypot(*row) ** tau for w in row] for row in WEIGHT.tolist()]
        close(tau_normalise(WEIGHT, tau), naive)
    close(tau_normalise(WEIGHT, 0.0), WEIGHT)
    close(tau_normalise(WEIGHT, 1.0).norm(dim=1), torch.ones(4))
    close(tau_normalise(WEIGHT, 0.5)[0], [1.3416407, 1.7888544])
    assert torch.equal(tau_normalise(torch.zeros(2, 3), 1.0), torch.zeros(2, 3))


def test_tau_normalisation_of_the_authors(vectors):
    reference = vectors["tau_norm"]
    close(tau_normalise(WEIGHT, 0.5), reference["tau_0.5"])
    close(tau_normalise(WEIGHT, 1.0), reference["tau_1"])


def test_tau_is_the_one_with_the_best_mean_recall_not_accuracy():
    # The long row wins everything (accuracy 4/5) until it is normalised (3/5, mean recall 3/4).
    weight = torch.tensor([[100.0, 0.0], [0.6, 0.8]])
    features = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.5, 0.6], [0.5, 0.7], [0.1, 1.0]])
    labels = torch.tensor([0, 0, 0, 0, 1])
    assert choose_tau(weight, features, labels, (0.0, 0.5, 1.0)) == (1.0, 0.75)
    # Equals: the smallest, whatever the order.
    assert choose_tau(weight, features[:2], labels[:2], (1.0, 0.5, 0.0)) == (0.0, 1.0)
    # A class of which there is no image does not count.
    found = choose_tau(torch.eye(3), torch.eye(3)[[0, 0, 1]], torch.tensor([0, 0, 2]), (0.0,))
    assert found == (0.0, 0.5)


def test_the_linear_nearest_mean_predicts_what_distances_predict():
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(60, 6, generator=generator).abs() * 3
    labels = torch.arange(60) % 4
    labels[labels == 3] = torch.tensor([3] + [0] * 14)  # one image of the last class
    weight, bias = nearest_mean_classifier(features, labels, 4)

    centre = features.mean(0)
    unit = [(f - centre) / (f - centre).norm() for f in features]
    means = []
    for k in range(4):
        mean = torch.stack([u for u, y in zip(unit, labels, strict=True) if y == k]).mean(0)
        means.append(mean / mean.norm())
    queries = torch.randn(200, 6, generator=generator) * 4
    naive = []
    for q in queries:
        u = (q - centre) / (q - centre).norm()
        naive.append(min(range(4), key=lambda k: (u - means[k]).norm()))
    assert (queries @ weight.T + bias).argmax(1).tolist() == naive
    assert len(set(naive)) == 4
    # Logits are the cosine for a feature of mean length.
    length = (features - centre).norm(dim=1).mean()
    query = centre + length * unit[0]
    close(query @ weight.T + bias, torch.stack([unit[0] @ m for m in means]))


def test_stage_two_has_the_authors_budget():
    for key, epochs in (("decoupling", 10), ("lws", 5)):
        _, stage = World([12, 2]).start(key)
        budget = (stage.epochs, stage.lr, stage.schedule, stage.weight_decay)
        assert budget == (epochs, Rate(0.2, 512), "cosine", 5e-4)
    _, stage = World([12, 2]).start("decoupling", classifier_epochs=3, classifier_lr=0.1)
    assert (stage.epochs, stage.lr) == (3, Rate(0.1, 512))


def test_crt_resets_the_classifier_and_balances():
    world = World([12, 2])
    stages = world.start("decoupling")
    world.train_stage(next(stages))
    trained = state(world.model.classifier)
    stage = next(stages)
    assert not same(state(world.model.classifier), trained)
    (weights,) = stage.class_weights(world.at(0))
    assert (weights * world.task.class_counts).tolist() == [1, 1]


def test_tau_norm_writes_the_best_tau_and_drops_the_bias():
    world = World([14, 5, 3])
    stage = world.to_stage("tau_norm", 1)
    weight = world.model.classifier.weight.detach().clone()
    assert stage.trainable() == []
    assert stage.class_weights(world.at(0)) == []
    prepare(stage)
    report = stage.start_epoch(world.at(0))
    features, labels = world.at(0).features(part="validation")
    expected = decoupling.choose_tau(weight, features, labels, decoupling.TAUS)
    assert (report["tau"], report["tau_recall"]) == expected
    assert stage.chosen() == {"tau": expected[0]}
    shipped = world.model.classifier
    torch.testing.assert_close(shipped.weight.detach(), tau_normalise(weight, report["tau"]))
    assert torch.equal(shipped.bias, torch.zeros(3))
    predictions = shipped(features).argmax(1)
    recall = mean_recall(labels.numpy(), predictions.numpy())
    assert recall == pytest.approx(report["tau_recall"])
    # Doing it twice is doing it once.
    once = state(shipped)
    stage.start_epoch(world.at(0))
    assert same(state(shipped), once)


def test_tau_can_be_given():
    world = World([14, 5, 3])
    world.validation = (world.validation[0][:0], world.validation[1][:0])
    stage = world.to_stage("tau_norm", 1, tau=1.0)
    assert stage.start_epoch(world.at(0)) == {"tau": 1.0}
    assert stage.chosen() == {}
    lengths = world.model.classifier.weight.norm(dim=1)
    torch.testing.assert_close(lengths.detach(), torch.ones(3))


def test_lws_scales_the_whole_logit_while_it_trains_and_afterwards():
    world = World([14, 5, 3])
    stages = world.start("lws")
    world.train_stage(next(stages))
    before = state(world.model.classifier)
    stage = next(stages)
    assert torch.equal(world.model.classifier.weight, before["weight"])  # factors start at 1
    world.train_stage(stage)
    ((factor,),) = (group["params"] for group in stage.trainable())
    assert (factor != 1).all()
    features = torch.randn(5, 6)
    expected = factor.detach() * F.linear(features, before["weight"], before["bias"])
    torch.testing.assert_close(world.model.classifier(features).detach(), expected)
    assert next(stages, None) is None
    torch.testing.assert_close(world.model.classifier(features).detach(), expected)
    assert set(world.model.classifier.state_dict()) == {"weight", "bias"}
    assert type(world.model.classifier) is nn.Linear


def test_ncm_ships_probabilities_whose_scale_changes_no_prediction():
    found = []
    for scale in (1.0, 10.0):
        world = World([14, 5, 1])
        world.train_stage(world.to_stage("ncm", 1, scale=scale))
        found.append(world.model.eval()(world.validation[0]).detach())
    torch.testing.assert_close(found[1], 10 * found[0], rtol=1e-4, atol=1e-4)
    assert torch.equal(found[0].argmax(1), found[1].argmax(1))

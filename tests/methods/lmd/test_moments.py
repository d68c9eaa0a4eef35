"""Shrunk moments, features of several levels on one scale, and the bounded distances of FDC."""

import torch
from torch.nn import functional as F
from toys import FakeEpoch, small_model

from lmd.methods.lmd.gaussians import discriminant, level_scale, pooled_covariance, shrunk_moments
from lmd.methods.lmd.icc import ICC, ICCSettings
from lmd.methods.stage import Batch, Task, prepare

COUNTS = torch.tensor([30, 10, 1])


def moments(seed=0):
    g = torch.Generator().manual_seed(seed)
    root = torch.randn(3, 4, 4, generator=g, dtype=torch.float64)
    return torch.randn(3, 4, generator=g, dtype=torch.float64), root @ root.mT


def test_the_pooled_covariance_weighs_classes_by_their_degrees_of_freedom():
    _, covariance = moments()
    expected = (29 * covariance[0] + 9 * covariance[1]) / 38
    torch.testing.assert_close(pooled_covariance(covariance, COUNTS), expected)
    alone = pooled_covariance(covariance, torch.ones(3))
    torch.testing.assert_close(alone, covariance.mean(0))


def test_shrunk_moments_against_a_loop():
    mean, covariance = moments()
    pooled, centre = pooled_covariance(covariance, COUNTS), mean.mean(0)
    found = shrunk_moments(
        mean, covariance, COUNTS, mean_images=30, covariance_images=300, mean_error=True
    )
    for k, n in enumerate(COUNTS.tolist()):
        expected = centre + n / (n + 30) * (mean[k] - centre)
        torch.testing.assert_close(found[0][k], expected)
        mixed = n / (n + 300) * covariance[k] + 300 / (n + 300) * pooled
        torch.testing.assert_close(found[1][k], mixed * (1 + 1 / n))


def test_without_shrinkage_the_moments_stay_as_they_are():
    mean, covariance = moments()
    found = shrunk_moments(mean, covariance, COUNTS)
    assert torch.equal(found[0], mean)
    assert torch.equal(found[1], covariance)


def test_every_level_gets_the_variance_of_the_first():
    g = torch.Generator().manual_seed(0)
    features = torch.randn(50, 7, generator=g) * torch.tensor([1.0, 1, 1, 20, 20, 0, 0])
    scale = level_scale(features, [3, 2, 2])
    assert torch.equal(scale[:3], torch.ones(3))
    assert torch.equal(scale[5:], torch.ones(2))  # a constant level
    scaled = (features * scale).split([3, 2, 2], dim=1)
    torch.testing.assert_close(scaled[0].var(0).sum(), scaled[1].var(0).sum())


def test_the_discriminant_ranks_by_mahalanobis_distance():
    mean, covariance = moments()
    features = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight, bias = discriminant(mean, covariance[0], 2.0)
    away = features[:, None] - mean
    distance = torch.einsum("nkc,cd,nkd->nk", away, covariance[0].inverse(), away)
    logits = F.linear(features, weight, bias)
    torch.testing.assert_close(logits.log_softmax(1), (-distance / 4).log_softmax(1))


def test_the_e_step_with_bounded_fdc_and_still_statistics():
    model = small_model(3)
    settings = ICCSettings(
        lambda_e=0.5,
        fdc_form="bounded",
        e_statistics=False,
        shrinkage=0.5,
        weight_penalty=0.01,
        encoder_lr=0.01,
    )
    stage = ICC(model, Task(COUNTS, 16), settings)
    groups = prepare(stage)
    labels = torch.arange(3).repeat_interleave(COUNTS)
    images = torch.randn(41, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    epoch = FakeEpoch(model, images, labels, total=3, steps=1)
    optimizer = torch.optim.SGD(groups, lr=1.0)
    stage.start_epoch(epoch)
    statistics = [b.clone() for b in model.encoder.buffers()]
    terms = stage.step(optimizer, Batch({"label": images}, labels))
    torch.testing.assert_close(terms["loss"], terms["ce"] + 0.5 * terms["fdc"])
    assert all(map(torch.equal, statistics, model.encoder.buffers()))
    assert all(p.grad.abs().sum() > 0 for p in model.encoder.parameters())


def test_the_e_step_sees_the_prior():
    model = small_model(3)
    settings = {"lambda_e": 0.0, "shrinkage": 0.5, "weight_penalty": 0.01}
    settings |= {"e_tau": 1.0, "e_statistics": False}
    images = torch.randn(41, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(3).repeat_interleave(COUNTS)
    stage = ICC(model, Task(COUNTS, 16), ICCSettings(**settings))
    prepare(stage)
    stage.start_epoch(FakeEpoch(model, images, labels, total=3, steps=1))
    with torch.no_grad():
        found = stage.loss(Batch({"label": images}, labels))["loss"]
        logits = model.classifier(model.encoder(images)) + (COUNTS / 41).log()
    torch.testing.assert_close(found, F.cross_entropy(logits, labels))

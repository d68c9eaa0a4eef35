"""GCL: both forms against loops, limits and the authors' numbers; its stages."""

import math

import pytest
import torch
from torch.nn import functional as F
from toys import COSINE, COUNTS, LABELS, World, close, gradient, small_model

from lmd.base.errors import LmdError
from lmd.methods import METHODS
from lmd.methods.gcl import cloud_sizes, clouded_angle, clouded_cosine, draw_noise, focal_loss
from lmd.methods.stage import Batch, Rate, prepare

NOISE = torch.tensor(
    [
        [0.3, -0.1, 0.5, -0.2],
        [-0.6, 0.2, 0.1, 0.4],
        [0.0, -0.3, 0.25, 0.7],
        [0.15, 0.45, -0.35, -0.05],
        [0.9, -0.8, 0.05, 0.6],
    ]
)


def gcl_loss(cosine, labels, counts, noise, margin, scale, noise_mul, gamma):
    clouded = clouded_cosine(cosine, labels, counts, noise, margin, noise_mul)
    return focal_loss(scale * clouded, labels, gamma)


def gcl_angular_loss(
    cosine, labels, counts, noise, *, margin, scale, epsilon, gamma, easy_margin=False
):
    clouded = clouded_angle(cosine, labels, counts, noise, margin, epsilon, easy_margin)
    return focal_loss(scale * clouded, labels, gamma)


def test_cloud_sizes():
    close(cloud_sizes(COUNTS), [0.0, 0.2846617, 0.7153383, 1.0])
    assert torch.equal(cloud_sizes(torch.tensor([7, 7, 7])), torch.zeros(3))
    close(cloud_sizes(torch.tensor([9, 1])), [0.0, 1.0])


def test_noise_is_clamped_and_has_the_deviation_of_a_third():
    torch.manual_seed(0)
    noise = draw_noise(torch.empty(1000, 40))
    assert noise.abs().max() == 1
    assert noise.abs().mean().item() == pytest.approx(0.2659615, abs=0.003)


@pytest.mark.parametrize(
    ("margin", "scale", "gamma", "expected"), [(0.0, 30, 0, 6.3233962), (0.1, 20, 1, 5.3871098)]
)
def test_gcl_cosine_form(margin, scale, gamma, expected):
    loss = gcl_loss(COSINE, LABELS, COUNTS, NOISE, margin, scale, 0.5, gamma)
    assert loss.item() == pytest.approx(expected, abs=1e-5)
    sizes = [math.log(100 / n) / math.log(25) for n in COUNTS.tolist()]
    naive = 0.0
    for c, e, y in zip(COSINE.tolist(), NOISE.tolist(), LABELS.tolist(), strict=True):
        z = [scale * (c[k] - 0.5 * abs(e[k]) * sizes[k] - margin * (k == y)) for k in range(4)]
        ce = math.log(sum(math.exp(v) for v in z)) - z[y]
        naive += (1 - math.exp(-ce)) ** gamma * ce / 5
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_gcl_angular_form():
    options = {"margin": 0.1, "scale": 30.0, "epsilon": 0.1, "gamma": 0.0}
    loss = gcl_angular_loss(COSINE, LABELS, COUNTS, NOISE, **options)
    assert loss.item() == pytest.approx(8.0720873, abs=1e-5)
    sizes = [math.log(100 / n) / math.log(25) for n in COUNTS.tolist()]
    naive = 0.0
    for c, e, y in zip(COSINE.tolist(), NOISE.tolist(), LABELS.tolist(), strict=True):
        z = []
        for k in range(4):
            wide = abs(math.pi / 2 * 0.1 * sizes[k] * e[k]) + 0.1 * (k == y)
            z.append(30 * math.cos(math.acos(c[k]) + wide))
        naive += (math.log(sum(math.exp(v) for v in z)) - z[y]) / 5
    assert loss.item() == pytest.approx(naive, abs=1e-5)


def test_gcl_of_the_authors(vectors):
    cosine = COSINE.clone().requires_grad_()
    losses = {
        "gcl_stage1": gcl_loss(cosine, LABELS, COUNTS, NOISE, 0.0, 30, 0.5, 0),
        "gcl_stage2": gcl_loss(cosine, LABELS, COUNTS, NOISE, 0.1, 20, 0.5, 1),
        "gcl_angular": gcl_angular_loss(
            cosine, LABELS, COUNTS, NOISE, margin=0.1, scale=30, epsilon=0.1, gamma=0
        ),
    }
    for key, loss in losses.items():
        assert loss.item() == pytest.approx(vectors[key]["mean"], abs=1e-5)
        close(gradient(loss, cosine), vectors[key]["grad_cosine"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("counts", [COUNTS, torch.tensor([7, 7, 7, 7])])
def test_gcl_without_clouds_is_scaled_cross_entropy_gradients_included(counts):
    # No noise, or balanced classes: both forms are plain.
    noise = NOISE if counts[0] == 7 else torch.zeros_like(NOISE)
    cosine = COSINE.clone().requires_grad_()
    plain = F.cross_entropy(30 * cosine, LABELS)
    expected = gradient(plain, cosine)
    form = gcl_loss(cosine, LABELS, counts, noise, 0.0, 30, 0.5, 0)
    angular = gcl_angular_loss(
        cosine, LABELS, counts, noise, margin=0, scale=30, epsilon=0.1, gamma=0
    )
    for loss in (form, angular):
        close(loss, plain)
        close(gradient(loss, cosine), expected)


def test_angular_form_beyond_pi_keeps_falling_and_is_smooth_at_the_poles():
    # A widening of ½: the angle passes π where the cosine is below cos(π − ½).
    line = torch.linspace(-1, 1, 401)[:, None].expand(-1, 2).clone().requires_grad_()
    labels = torch.zeros(401, dtype=torch.long)
    noise, counts = torch.zeros(401, 2), torch.tensor([5, 5])
    losses = []
    for c in line.detach():
        pair = torch.stack([c[0], torch.tensor(0.0)])[None]
        losses.append(
            gcl_angular_loss(
                pair, labels[:1], counts, noise[:1], margin=0.5, scale=5, epsilon=0.1, gamma=0
            )
        )
    steps = torch.stack(losses).diff()
    assert (steps <= 1e-6).sum() >= 399  # one upward jump at most, where the fallback begins
    total = gcl_angular_loss(
        line, labels, counts, noise, margin=0.5, scale=30, epsilon=0.1, gamma=0
    )
    assert gradient(total, line).isfinite().all()
    below = torch.tensor([[-0.99, 0.3]])
    expected = F.cross_entropy(
        5 * torch.tensor([[-0.99 - math.sin(math.pi - 0.5), 0.3]]), labels[:1]
    )
    loss = gcl_angular_loss(
        below, labels[:1], counts, noise[:1], margin=0.5, scale=5, epsilon=0.1, gamma=0
    )
    close(loss, expected)


@pytest.mark.parametrize("form", ["angular", "cosine"])
def test_gcl_noise_is_seeded_and_only_in_training_and_its_scale_ships(form):
    world = World([9, 3, 1])
    scales = []
    for stage in world.start("gcl", form=form, stage2_scale=25.0, classifier_epochs=2):
        prepare(stage)
        images, labels = world.train
        losses = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            losses.append(stage.loss(Batch({"label": images}, labels))["loss"].item())
        assert losses[0] == losses[1] != losses[2]
        world.train_stage(stage)
        scales.append(world.model.classifier.scale.item())
    assert scales == [30, 25]
    world.model.eval()
    assert torch.equal(world.model(images), world.model(images))
    cosine = world.model.classifier.cosine(world.model.features(images))
    torch.testing.assert_close(world.model(images), 25 * cosine)


def test_gcl_balances_stage_two_and_keeps_the_classifier():
    world = World([9, 3, 1])
    stages = world.start("gcl")
    first = next(stages)
    assert first.class_weights(world.at(0)) == [None]
    world.train_stage(first)
    weight = world.model.classifier.weight.detach().clone()
    second = next(stages)
    assert torch.equal(world.model.classifier.weight, weight)
    (weights,) = second.class_weights(world.at(0))
    torch.testing.assert_close(weights * world.task.class_counts, torch.ones(3))


def test_gcl_with_mixup_trains_and_needs_a_cosine_classifier():
    world = World([9, 3, 1])
    authors = METHODS["gcl"].settings({}, profile="authors")
    assert (authors["mixup"], authors["stage2_mixup"]) == (1, 1)
    cosine = METHODS["gcl"].settings({}, profile="cosine")
    assert [cosine[f"stage2_{k}"] for k in ("margin", "scale", "mixup")] == [0.1, 20, 0]
    cifar = METHODS["gcl"].settings({}, profile="cifar")
    assert cifar == cosine | {"mixup": 1, "stage2_mixup": 1}
    both = {"mixup": 1.0, "stage2_mixup": 1.0, "classifier_epochs": 2}
    for index in (0, 1):
        stage = world.to_stage("gcl", index, **both)
        assert stage.mixup == 1
        for row in world.train_stage(stage):
            assert torch.tensor(row["loss"]).isfinite()
    with pytest.raises(LmdError, match=r"cosine classifier.*Linear"):
        next(METHODS["gcl"].start(small_model(), world.task, {}))


def test_the_profile_cifar_is_the_authors_script_for_it():
    world = World([9, 3, 1])
    stages = list(world.start("gcl", **METHODS["gcl"].settings({}, profile="cifar")))
    values = [(0.0, 30, 0.5, 0.0), (0.1, 20, 0.5, 1.0)]
    for stage, (margin, scale, noise, gamma) in zip(stages, values, strict=True):
        assert stage.mixup == 1
        expected = clouded_cosine(COSINE, LABELS, COUNTS, NOISE, margin, noise)
        assert torch.equal(stage.cloud(COSINE, LABELS, COUNTS, NOISE), expected)
        assert (stage.scale, stage.gamma) == (scale, gamma)
    assert (stages[1].epochs, stages[1].lr, stages[1].schedule) == (30, Rate(0.002, 64), "cosine")


def test_the_easy_margin_leaves_cosines_up_to_zero_alone():
    cosine = COSINE.clone().requires_grad_()
    options = {"margin": 0.2, "scale": 30.0, "epsilon": 0.5, "gamma": 1.0}
    loss = gcl_angular_loss(cosine, LABELS, COUNTS, NOISE, easy_margin=True, **options)
    sizes = [math.log(100 / n) / math.log(25) for n in COUNTS.tolist()]
    naive = 0.0
    for c, e, y in zip(COSINE.tolist(), NOISE.tolist(), LABELS.tolist(), strict=True):
        z = []
        for k in range(4):
            wider = abs(math.pi / 2 * 0.5 * sizes[k] * e[k]) + 0.2 * (k == y)
            z.append(30 * (math.cos(math.acos(c[k]) + wider) if c[k] > 0 else c[k]))
        ce = math.log(sum(math.exp(v) for v in z)) - z[y]
        naive += (1 - math.exp(-ce)) * ce / 5
    assert loss.item() == pytest.approx(naive, abs=1e-4)
    assert gradient(loss, cosine).isfinite().all()
    hard = gcl_angular_loss(COSINE, LABELS, COUNTS, NOISE, **options)
    assert hard.item() != pytest.approx(loss.item(), abs=1e-3)


def test_gcl_has_the_values_of_its_scripts_for_the_angular_form():
    defaults = METHODS["gcl"].settings()
    expected = {"epsilon": 0.5, "easy_margin": True, "form": "angular", "stage2_gamma": 1}
    expected |= {"margin": 0, "scale": 30, "stage2_margin": 0, "stage2_scale": 30}
    assert {key: defaults[key] for key in expected} == expected
    first, second = World([9, 3, 1]).start("gcl")
    assert (first.epochs, first.lr, first.schedule) == (None, None, None)
    assert (second.epochs, second.lr, second.schedule) == (30, Rate(0.002, 64), "cosine")
    for stage in (first, second):
        assert stage.cloud.func is clouded_angle
        assert stage.cloud.keywords["easy_margin"] is True

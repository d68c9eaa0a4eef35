"""Heat maps show what decides: exact where theory says so, and a planted patch is found."""

import importlib.util
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.explain.heat_map import evidence, heat
from lmd.model import Model, build_model

SIDE, PATCH = 24, 7


def planted(n: int, seed: int) -> tuple[Tensor, Tensor, list[tuple[int, int]]]:
    """Noise with one square whose colour is the class, at a random place (top, left)."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 3
    images = rng.normal(0, 0.5, (n, 3, SIDE, SIDE)).astype(np.float32)
    places = [tuple(map(int, rng.integers(0, SIDE - PATCH, 2))) for _ in range(n)]
    for image, label, (top, left) in zip(images, labels, places, strict=True):
        image[label, top : top + PATCH, left : left + PATCH] += 2.5
    return torch.from_numpy(images), torch.from_numpy(labels), places


@lru_cache(maxsize=1)
def trained() -> Model:
    """A small residual network that reads the colour of the square."""
    torch.set_num_threads(1)
    model, _ = build_model("resnet8", "none", 3, image_size=SIDE, seed=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        images, labels, _ = planted(15, seed=100 + step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def test_a_planted_patch_is_found() -> None:
    model, (images, labels, places) = trained(), planted(30, seed=0)
    right = model(images).argmax(1) == labels
    assert right.float().mean() > 0.8
    maps = evidence(model, images, labels[:, None]).numpy()
    hits = []
    for one, (top, left) in zip(maps, places, strict=True):
        hot = heat(one, (SIDE, SIDE))[0]
        y, x = np.unravel_index(hot.argmax(), hot.shape)
        hits.append(top <= y < top + PATCH and left <= x < left + PATCH)
    # By chance it would be one in twelve.
    assert np.mean(hits) > 0.7


def test_random_weights_change_the_map() -> None:
    # Adebayo et al. 2018, "Sanity Checks for Saliency Maps".
    images, labels, _ = planted(12, seed=0)
    random, _ = build_model("resnet8", "none", 3, image_size=SIDE, seed=2)
    first = evidence(trained(), images, labels[:, None]).flatten(1).numpy()
    again = evidence(trained(), images, labels[:, None]).flatten(1).numpy()
    other = evidence(random.eval(), images, labels[:, None]).flatten(1).numpy()
    assert np.array_equal(first, again)
    correlations = [np.corrcoef(a, b)[0, 1] for a, b in zip(first, other, strict=True)]
    assert abs(np.mean(correlations)) < 0.5


def test_with_a_mean_and_a_linear_classifier_it_is_cam() -> None:
    model, images = trained(), planted(4, seed=3)[0]
    seen: list[Tensor] = []
    handle = model.encoder.layer3.register_forward_hook(lambda *a: seen.append(a[2].detach()))
    logits = model(images).detach()
    handle.remove()
    weight = model.classifier.weight.detach()
    weight = weight - weight.mean(0)
    expected = torch.einsum("kc,bchw->bkhw", weight, seen[0]) / seen[0][0, 0].numel()
    classes = torch.arange(3).expand(4, 3)
    found = evidence(model, images, classes)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    bias = (model.classifier.bias - model.classifier.bias.mean()).detach()
    centred = logits - logits.mean(1, keepdim=True)
    torch.testing.assert_close(found.sum((2, 3)) + bias, centred, rtol=1e-3, atol=1e-4)


def test_what_changes_no_probability_changes_no_map() -> None:
    images, labels, _ = planted(3, seed=4)
    model, _ = build_model("resnet8", "none", 3, image_size=SIDE, seed=5)
    before = evidence(model.eval(), images, labels[:, None])
    with torch.no_grad():
        model.classifier.weight += torch.randn(128, generator=torch.Generator().manual_seed(0))
    after = evidence(model, images, labels[:, None])
    torch.testing.assert_close(after, before, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("backbone", "size", "grid"),
    [
        ("resnet8", 16, (4, 4)),
        ("resnet18", 64, (2, 2)),
        ("resnet34", 64, (2, 2)),
        ("resnet50", 64, (2, 2)),
        ("efficientnet_lite0", 64, (2, 2)),
        ("resnet18", 32, (2, 2)),  # its last map has one position, so it is the one before
        ("timm/mobilenetv3_small_050", 64, (2, 2)),
        ("timm/vit_tiny_patch16_224", 224, (14, 14)),
        ("timm/swin_tiny_patch4_window7_224", 224, (7, 7)),
    ],
)
def test_every_backbone_has_maps(
    backbone: str, size: int, grid: tuple[int, int], head: str
) -> None:
    if backbone.startswith("timm/") and importlib.util.find_spec("timm") is None:
        pytest.skip("the extra 'timm' is not installed")
    if backbone == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'lite' is not installed")
    model, _ = build_model(backbone, "none", 3, head, image_size=size)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
    model.requires_grad_(False).eval()
    with torch.inference_mode(False), torch.no_grad():
        found = evidence(model, images, torch.tensor([[0, 2], [1, 0]]))
    assert found.shape == (2, 2, *grid)
    assert found.isfinite().all()
    assert (found.flatten(2).std(2) > 0).all()
    assert not any(module._forward_hooks for module in model.modules())


def test_a_model_without_a_map_is_refused() -> None:
    model = Model(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)), nn.Linear(5, 2))
    with pytest.raises(LmdError, match="has no feature map"):
        evidence(model, torch.zeros(1, 3, 4, 4), torch.zeros(1, 1, dtype=torch.int64))


def test_heat_is_smooth_and_lies_between_0_and_1() -> None:
    maps = np.zeros((2, 4, 4), np.float32)
    maps[0, 1, 2], maps[1, 2, 1], maps[1, 0, 0] = 4, 2, -5
    found = heat(maps, (40, 80))
    assert found.shape == (2, 40, 80)
    assert found.min() == 0
    assert found[0].max() == 1
    assert found[1].max() == pytest.approx(0.5, abs=0.06)
    assert np.abs(np.diff(found, axis=2)).max() < 0.2
    y, x = np.unravel_index(found[0].argmax(), (40, 80))
    assert (10 <= y < 20, 40 <= x < 60) == (True, True)
    assert found[1, :10, :10].max() < 0.01  # negative evidence is left out
    assert not heat(-np.ones((1, 2, 2), np.float32), (8, 8)).any()


@pytest.mark.parametrize("backbone", ["resnet8", "resnet18", "efficientnet_lite0"])
def test_inner_levels_among_the_features_are_in_the_map(backbone: str) -> None:
    if backbone == "efficientnet_lite0":
        pytest.importorskip("efficientnet_lite_pytorch", reason="the extra 'lite' is not installed")
    torch.manual_seed(0)
    model, _ = build_model(backbone, "none", 3, image_size=48)
    model.widen(list(model.inner))
    nn.init.normal_(model.classifier.weight)
    images = torch.randn(2, 3, 48, 40)
    classes = torch.arange(3).expand(2, 3)
    found = evidence(model.eval(), images, classes)
    with torch.no_grad():
        logits = model(images) - model.classifier.bias
    centred = logits - logits.mean(1, keepdim=True)
    torch.testing.assert_close(found.sum((2, 3)), centred, rtol=1e-3, atol=1e-3)
    # Finer than the last map, and without it the levels alone.
    with torch.no_grad():
        model.classifier.weight[:, : model.widths[0]] = 0
        levels = evidence(model, images, classes)
        logits = model(images) - model.classifier.bias
    assert levels.shape[2:] == found.shape[2:] > (4, 4)
    centred = logits - logits.mean(1, keepdim=True)
    torch.testing.assert_close(levels.sum((2, 3)), centred, rtol=1e-3, atol=1e-3)
    assert not any(module._forward_hooks for module in model.modules())

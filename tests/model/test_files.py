"""The files of a model: exact round trips, and every way a file can be wrong."""

import hashlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from lmd.base.errors import LmdError
from lmd.model import Model, backbones, build_model
from lmd.model.files import ModelSpec, load_model, save_model

CLASSES = ("nævus", "melanoma", "dermatofibroma")


def make(
    head: str = "linear", backbone: str = "resnet8", weights: str = "none"
) -> tuple[Model, ModelSpec]:
    model, preprocessing = build_model(backbone, weights, len(CLASSES), head, image_size=32, seed=0)
    spec = ModelSpec(
        classes=CLASSES,
        backbone=backbone,
        head=head,  # type: ignore[arg-type]
        feature_dim=model.classifier.in_features,
        preprocessing=preprocessing,
        method="Cross-entropy",
        class_counts=(500, 50, 5),
        temperature=1.25,
    )
    model(torch.rand(4, 3, 32, 32))  # moves the BatchNorm statistics
    return model, spec


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, spec = make()
    save_model(model, tmp_path / "run", spec)
    return tmp_path / "run"


def edit(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    content |= changes
    content = {key: value for key, value in content.items() if value is not ...}
    (folder / "model.json").write_text(json.dumps(content), encoding="utf-8")


@pytest.mark.parametrize("head", ["linear", "cosine"])
@pytest.mark.parametrize("backbone", ["resnet8", "resnet18", "efficientnet_lite0"])
def test_round_trip_is_exact(tmp_path: Path, head: str, backbone: str) -> None:
    model, spec = make(head, backbone)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    save_model(model, tmp_path, spec)
    generator = torch.get_rng_state()
    for path in (tmp_path, tmp_path / "model.json", tmp_path / "model.safetensors"):
        loaded, read = load_model(path)
        assert read == spec
        assert not any(m.training for m in loaded.modules())
        state = loaded.state_dict()
        assert state.keys() == model.state_dict().keys()
        for key, tensor in model.state_dict().items():
            assert torch.equal(state[key], tensor), key
            assert state[key].dtype == tensor.dtype
    assert torch.equal(generator, torch.get_rng_state())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(images), model.eval()(images), rtol=1e-5, atol=1e-5)


def test_file_is_plain_float32_and_readable_by_others(tmp_path: Path) -> None:
    model, spec = make("cosine")
    half = {k: t.half() if t.is_floating_point() else t for k, t in model.state_dict().items()}
    save_model(model.half(), tmp_path, spec)
    tensors = load_file(tmp_path / "model.safetensors")
    assert tensors["classifier.scale"].item() == 30
    assert all(
        torch.equal(tensors[k], t.float() if t.is_floating_point() else t) for k, t in half.items()
    )
    content = json.loads((tmp_path / "model.json").read_text(encoding="utf-8"))
    assert content["classes"] == list(CLASSES)
    assert content["preprocessing"] == {
        "image_size": 32,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "resize": "v2",
    }
    assert content["class_counts"] == [500, 50, 5]
    assert content["temperature"] == 1.25
    assert content["format"] == 1


def test_model_file_serves_as_weights_of_a_backbone(saved: Path) -> None:
    encoder = backbones.build("resnet8", str(saved / "model.safetensors")).encoder
    model, _ = load_model(saved)
    mine, theirs = encoder.state_dict(), model.encoder.state_dict()
    assert all(torch.equal(mine[key], theirs[key]) for key in theirs)


def test_loading_needs_neither_network_nor_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("something asked for a host")

    model, spec = make(backbone="resnet18")
    save_model(model, tmp_path, spec)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setenv("LMD_CACHE", str(tmp_path / "cache"))
    assert load_model(tmp_path)[1] == spec
    assert not (tmp_path / "cache").exists()
    with pytest.raises(AssertionError, match="asked for a host"):
        backbones.build("resnet18", "imagenet")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2, "lmd_version": "9.9"}, "format 2 .written by lmd 9.9.*reads format 1"),
        ({"format": ...}, "not a model description of lmd"),
        ({"sha256": ...}, "'sha256' of the weights is missing"),
        ({"sha256": "0" * 64}, "its SHA-256 differs"),
        ({"classes": ...}, "'classes': Field required"),
        ({"classes": ["a", "b"]}, "class_counts has 3 entries for 2 classes"),
        ({"classes": ["a", "a", "b"]}, "classes must differ"),
        ({"classes": list("abcd"), "class_counts": [1] * 4}, r"classifier.bias is float32 \(3,\)"),
        ({"temperature": 0}, "'temperature': Input should be greater than"),
        ({"temperature": float("nan")}, "'temperature'"),
        ({"temprature": 2.0}, "'temprature'"),
        ({"preprocessing": {"image_size": 32}}, "'preprocessing.mean': Field required"),
        (
            {"preprocessing": {"image_size": "32", "mean": [0, 0, 0], "std": [1, 1, 1]}},
            "'preprocessing.image_size': Input should be a valid integer",
        ),
        (
            {"preprocessing": {"image_size": 32, "mean": [0, 0, 0], "std": [1, 0, 1]}},
            "'preprocessing.std.1': Input should be greater than 0",
        ),
        (
            {"preprocessing": {"image_size": 30000, "mean": [0, 0, 0], "std": [1, 1, 1]}},
            "'preprocessing.image_size': Input should be less than or equal to 4096",
        ),
        (
            {"preprocessing": {"image_size": 32, "mean": [0, 0, 1e30], "std": [1, 1, 1]}},
            "'preprocessing.mean.2': Input should be less",
        ),
        ({"feature_dim": 10**9}, "'feature_dim': Input should be less"),
        ({"class_counts": [1, 2, 10**30]}, "'class_counts.2': Input should be"),
        ({"temperature": 1e300}, "'temperature': Input should be less"),
        ({"feature_dim": 64}, "'feature_dim' is 64, but resnet8 has 128"),
        ({"backbone": "resnet7"}, "unknown backbone 'resnet7'"),
        ({"backbone": "resnet18", "feature_dim": 512}, "should be"),
        ({"head": "cosine"}, "classifier.bias is float32 .* and should be absent"),
        ({"head": "mlp"}, "'head'"),
    ],
)
def test_a_wrong_description_is_explained(
    saved: Path, changes: dict[str, Any], problem: str
) -> None:
    edit(saved, **changes)
    with pytest.raises(LmdError, match=problem):
        load_model(saved)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"null", b"\xff\xfe\x00", b"[" * 100_000, b'{"a": 1}']
)
def test_a_foreign_json_is_refused(saved: Path, content: bytes) -> None:
    (saved / "model.json").write_bytes(content)
    with pytest.raises(LmdError, match=r"model\.json"):
        load_model(saved)


def test_damaged_or_foreign_weights_are_refused(saved: Path) -> None:
    weights = saved / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(LmdError, match="SHA-256 differs"):
        load_model(saved)
    weights.unlink()
    with pytest.raises(LmdError, match=r"model\.safetensors does not exist"):
        load_model(saved)


def test_weights_with_a_right_hash_are_still_checked(saved: Path) -> None:
    weights = saved / "model.safetensors"
    tensors = load(weights.read_bytes())  # not load_file: the file is about to be overwritten
    torch.save(tensors, weights)  # a pickle under the right name and hash
    edit(saved, sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
    with pytest.raises(LmdError, match="not a safetensors file"):
        load_model(saved)
    for changed, problem in (
        (tensors | {"encoder.conv1.weight": torch.zeros(2)}, r"is float32 \(2,\) and should be"),
        (tensors | {"more": torch.zeros(2)}, r"more is float32 \(2,\) and should be absent"),
        ({k: t for k, t in tensors.items() if k != "classifier.bias"}, "bias is absent"),
        (tensors | {"classifier.bias": tensors["classifier.bias"].half()}, "is float16"),
    ):
        save_file(changed, weights)
        edit(saved, sha256=hashlib.sha256(weights.read_bytes()).hexdigest())
        with pytest.raises(LmdError, match=problem):
            load_model(saved)


def test_places_without_a_model(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(LmdError, match=r"pickle files .* are never loaded"):
        load_model(tmp_path / "model.pt")
    with pytest.raises(LmdError, match=r"model\.json does not exist"):
        load_model(tmp_path)


def test_a_spec_of_another_model_is_not_saved(tmp_path: Path) -> None:
    _, spec = make()
    model, _ = build_model("resnet8", "none", 4, image_size=32)
    with pytest.raises(LmdError, match="the classifier is 4×128, but there are 3 class names"):
        save_model(model, tmp_path, spec)
    assert list(tmp_path.iterdir()) == []


LIMITED = """
import pathlib, resource, sys, torch
from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.model.files import load_model, save_model
folder = pathlib.Path(sys.argv[1])
model, spec = load_model(folder)
torch.nn.init.zeros_(model.classifier.weight)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
big = bytes(50_000)
for action in (
    lambda: save_model(model, folder, spec),
    lambda: atomic_write(folder / "checkpoint", lambda file: [*map(file.write, [big] * 4)]),
    lambda: atomic_write(folder / "record", b"x" * 200_000),
):
    try:
        action()
    except LmdError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on file sizes")
def test_no_room_on_disk_is_said_and_the_old_files_stay(saved: Path) -> None:
    before = {p.name: p.read_bytes() for p in saved.iterdir()}
    out = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIMITED, str(saved)],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = out.stdout.splitlines()
    assert [line.split(":")[0].rsplit("/")[-1] for line in lines] == [
        "model.safetensors",
        "checkpoint",
        "record",
    ]
    assert all("the file would exceed the size limit" in line for line in lines)
    assert out.stderr == ""
    assert {p.name: p.read_bytes() for p in saved.iterdir()} == before

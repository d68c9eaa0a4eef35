"""One image has one answer, however it is given: file, array or Pillow image, torch or ONNX."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from documentation import blocks
from PIL import Image
from toys import SHARED

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.cache import decode
from lmd.data.images import read_image, resize
from lmd.data.sources import open_table
from lmd.model import build_model
from lmd.model.files import ModelSpec, save_model
from lmd.predict.predictor import load

HAM = SHARED / "data" / "ham10000" / "images"
SIZE = 24


def photograph(path: Path, seed: int, size: tuple[int, int] = (200, 150)) -> Path:
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3), dtype=np.uint8)
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(path, quality=90)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    network, preprocessing = build_model("resnet8", "none", 3, image_size=SIZE, seed=3)
    with torch.no_grad():  # answers that differ between images
        network.classifier.weight.mul_(30)
    width = network.classifier.in_features
    spec = ModelSpec(("a", "b", "c"), "resnet8", "linear", width, preprocessing, "CE", (9, 5, 2))
    save_model(network, folder, spec)
    return folder


@pytest.fixture(scope="module")
def exported(model) -> Path:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the extra 'onnx' is not installed")
    from lmd.export.export import export_onnx

    return export_onnx(model, model / "model.onnx")


@pytest.fixture
def forms(tmp_path) -> Iterator[dict[str, object]]:
    """One picture as a JPEG file, and its decoded pixels in other forms."""
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
    jpeg = photograph(tmp_path / "data" / "a" / "0.jpg", 1)
    with Image.open(jpeg) as opened:
        pixels = np.asarray(opened)
        Image.fromarray(pixels).save(tmp_path / "data" / "b" / "0.png")
        yield {
            "jpeg": jpeg,
            "png": tmp_path / "data" / "b" / "0.png",
            "array": pixels,
            "alpha": np.dstack([pixels, np.full(pixels.shape[:2], 255, np.uint8)]),
            "pillow": Image.fromarray(pixels),
            "opened": opened,
            "deep": pixels.astype(np.uint16) * 257,
        }


def test_training_predict_and_arrays_have_the_same_pixels(forms, tmp_path, model):
    table = open_table(tmp_path / "data")
    _, images, _ = decode(table, SIZE, Display(quiet=True), folder=tmp_path / "cache")
    expected = resize(forms["array"], SIZE)
    np.testing.assert_array_equal(images[:], [expected, expected])
    np.savez(tmp_path / "a.npz", images=np.stack([forms["array"]] * 2), labels=[0, 1])
    _, images, _ = decode(open_table(tmp_path / "a.npz"), SIZE, Display(quiet=True))
    np.testing.assert_array_equal(images[:], [expected, expected])
    predictor, seen = load(model), []
    inner = predictor.engine.answer
    predictor.engine.answer = lambda pixels: seen.append(pixels) or inner(pixels)
    predictor.predict(list(forms.values()))
    np.testing.assert_array_equal(seen[0], [expected] * len(forms))


def test_all_forms_get_equal_answers(forms, model):
    predictor = load(model)
    found = predictor.predict(list(forms.values())).probabilities
    np.testing.assert_array_equal(found, np.repeat(found[:1], len(forms), axis=0))
    for name, image in forms.items():
        alone = predictor.predict(image).probabilities
        np.testing.assert_allclose(alone, found[:1], atol=1e-5, err_msg=name)


def test_the_graph_gives_the_answers_of_predict_for_any_size(forms, model, exported):
    import onnxruntime

    session = onnxruntime.InferenceSession(exported, providers=["CPUExecutionProvider"])
    array = forms["array"]
    expected = load(model).predict(array).probabilities
    for images in (array[None], np.stack([array, array]), resize(array, SIZE)[None]):
        (found,) = session.run(None, {"images": images})
        np.testing.assert_allclose(found, np.repeat(expected, len(images), 0), atol=1e-4)
    np.testing.assert_allclose(load(exported).predict(array).probabilities, expected, atol=1e-4)


def test_one_path_a_folder_and_grey_arrays(tmp_path, model):
    first, second = (photograph(tmp_path / f"{i}.jpg", i) for i in range(2))
    predictor = load(model)
    both = predictor.predict([first, second])
    for images in (tmp_path, str(tmp_path), [tmp_path], [str(first), second]):
        again = predictor.predict(images)
        assert again.names == both.names
        np.testing.assert_array_equal(again.probabilities, both.probabilities)
    assert predictor.predict(str(first)).names == (str(first),)
    grey = read_image(first)[:, :, 0]
    stacked = np.stack([grey] * 3, axis=-1)
    found = predictor.predict([grey, grey[:, :, None], stacked, Image.fromarray(grey)])
    assert found.names == ("image 0", "image 1", "image 2", "image 3")
    np.testing.assert_array_equal(found.probabilities, [found.probabilities[0]] * 4)
    alone = predictor.predict(grey).probabilities
    np.testing.assert_allclose(alone, found.probabilities[:1], atol=1e-5)
    assert len(predictor.predict(np.stack([stacked, stacked])).names) == 2


@pytest.mark.parametrize(
    ("image", "reason"),
    [
        (np.zeros((4, 4, 3), np.float32), r"an array of float32 with shape \(4, 4, 3\)"),
        (np.zeros((3, 4, 5), np.uint8), r"an array of uint8 with shape \(3, 4, 5\)"),
        (np.zeros((0, 4), np.uint8), r"an array of uint8 with shape \(0, 4\)"),
        (np.zeros(4, np.uint8), r"an array of uint8 with shape \(4,\)"),
        (None, "of type NoneType"),
        (b"bytes", "of type bytes"),
    ],
)
def test_anything_else_is_refused_in_one_line(model, image, reason):
    with pytest.raises(LmdError, match=rf"^image 0 is {reason}: give a path, a Pillow image, or"):
        load(model).predict(image)


def agrees(model: Path, exported: Path, paths: list[Path], folder: Path) -> None:
    """The script of docs/export.md, run as a user would, against ``predict``."""
    (script,) = blocks("export.md")
    assert len(script.splitlines()) <= 20
    (folder / "script.py").write_text(script)
    command = [sys.executable, str(folder / "script.py"), str(exported), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = load(model).predict(paths)
    assert tuple(row[0] for row in rows) == expected.names
    found = np.array([row[2] for row in rows])
    np.testing.assert_allclose(found, expected.probabilities, atol=1e-4)
    assert tuple(row[1] for row in rows) == expected.labels
    assert np.ptp(found, axis=0).max() > 0.01  # else equality would be cheap


def test_the_script_of_the_docs_agrees(model, exported, tmp_path):
    sizes = [(200, 150), (60, 90), (SIZE, SIZE), (10, 12)]
    paths = [photograph(tmp_path / f"{i}.jpg", i, size) for i, size in enumerate(sizes)]
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(paths[0]) as image:
        image.save(tmp_path / "turned.jpg", exif=exif)
    agrees(model, exported, [*paths, tmp_path / "turned.jpg"], tmp_path)


@pytest.mark.skipif(not HAM.is_dir(), reason="the HAM10000 images are not on this machine")
def test_the_script_of_the_docs_agrees_on_real_images(model, exported, tmp_path):
    agrees(model, exported, sorted(HAM.glob("*.jpg"))[::50][:200], tmp_path)

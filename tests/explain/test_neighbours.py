"""The nearest training images, and the file that has them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.explain.neighbours import (
    FILE,
    Neighbours,
    load_neighbours,
    size_line,
)
from lmd.model import build_model
from lmd.model.files import ModelSpec, save_model, weights_digest

CLASSES = ("nevus", "mélanome")


def training(n: int = 40, width: int = 128) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    features = rng.normal(3, np.logspace(-2, 2, width), (n, width)).astype(np.float32)
    return features, np.arange(n) % 2


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model, preprocessing = build_model("resnet8", "none", 2, image_size=16)
    spec = ModelSpec(CLASSES, "resnet8", "linear", 128, preprocessing, "CE", (20, 20))
    digest = save_model(model, tmp_path, spec)
    Neighbours.of(*training(), CLASSES).save(tmp_path, digest)
    return tmp_path


def test_the_nearest_are_those_of_a_naive_loop() -> None:
    features, labels = training()
    found = Neighbours.of(features, labels, CLASSES, [f"{i}.jpg" for i in range(40)])
    new = features[7] + np.float32(0.3) * features.std(0)
    z = (features - features.mean(0)) / features.std(0)
    own = (new - features.mean(0)) / features.std(0)
    distances = [np.sqrt(np.mean((row - own) ** 2)) for row in z]
    order = np.argsort(distances)[:5]
    nearest = found.nearest(new)
    assert [near.row for near in nearest] == order.tolist()
    assert nearest[0].row == 7
    assert nearest[0].name == "7.jpg"
    assert [near.label for near in nearest] == [CLASSES[labels[i]] for i in order]
    np.testing.assert_allclose(
        [near.distance for near in nearest], np.array(distances)[order], rtol=1e-2
    )


def test_the_scale_of_distances_is_as_documented() -> None:
    features, labels = training(200)
    found = Neighbours.of(features, labels, CLASSES)
    assert found.nearest(features[3], 1)[0].distance < 0.01
    others = [near.distance for near in found.nearest(features[3], 200)[1:]]
    assert np.mean(others) == pytest.approx(1.4, abs=0.1)


def test_the_size_of_the_file_is_announced(tmp_path: Path) -> None:
    features, labels = training(4000)
    path = Neighbours.of(features, labels, CLASSES).save(tmp_path, "")
    assert f"about {path.stat().st_size / 1e6:.1f} MB" in size_line(4000, 128)


def test_features_that_never_change_count_for_nothing() -> None:
    features, labels = training()
    features[:, :100] = 5
    found = Neighbours.of(features, labels, CLASSES)
    new = features[9].copy()
    new[:100] = 1e6
    assert found.nearest(new, 1)[0].row == 9
    assert found.nearest(new, 1)[0].distance < 0.01


def test_the_file_gives_the_same_and_has_no_names_unless_asked(folder: Path) -> None:
    made = Neighbours.of(*training(), CLASSES)
    read = load_neighbours(folder, CLASSES, 128)
    assert read.names is None
    assert read.features.dtype == np.float16
    new = training()[0][3] + 1
    assert read.nearest(new) == made.nearest(new)
    named = Neighbours.of(*training(), CLASSES, ["ü.jpg"] * 40)
    named.save(folder, weights_digest(folder))
    assert load_neighbours(folder, CLASSES, 128).names == ("ü.jpg",) * 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones((40, 64), np.float16)}, r"shape \(40, 64\).*128 features"),
        ({"features": np.full((40, 128), np.nan, np.float16)}, "not finite"),
        ({"labels": np.full(40, 2)}, "its labels must be from 0 to 1"),
        ({"labels": np.zeros(39, int)}, r"its labels has the shape \(39,\), not \(40,\)"),
        ({"labels": np.zeros(40)}, "not of the expected types"),
        ({"classes": np.array(["a", "b"])}, "other classes than the model"),
        ({"names": np.array(["a"])}, r"its names has the shape \(1,\), not \(40,\)"),
        ({"scale": None}, "it has no scale"),
        ({"model_sha256": np.array("0")}, "belongs to another model"),
        ({"features": np.array([{}])}, "cannot be read"),  # would need pickle
    ],
)
def test_a_file_that_does_not_fit_is_named(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    with np.load(folder / FILE) as file:
        arrays = {k: v for k, v in (dict(file) | change).items() if v is not None}
    np.savez(folder / FILE, **arrays)
    with pytest.raises(LmdError, match=message) as caught:
        load_neighbours(folder, CLASSES, 128)
    assert "lmd index" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_or_damaged_file_is_named(folder: Path) -> None:
    path = folder / FILE
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(LmdError, match=r"neighbours\.npz cannot be read"):
        load_neighbours(folder, CLASSES, 128)
    path.unlink()
    with pytest.raises(LmdError, match="does not exist: make it with `lmd index"):
        load_neighbours(folder, CLASSES, 128)

"""An explanation from Python: arrays, nearest cases, and clear refusals."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from explained import SIZE, endoscopy, skin, skin_run
from PIL import Image

import lmd
from lmd.base.errors import LmdError
from lmd.predict.onnx_files import OnnxEngine
from lmd.predict.predictor import Predictor
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("explain"), keep_features=True)


def test_the_answers_are_those_of_predict(run: Run) -> None:
    predictor, image = lmd.load(run.path), skin(2, 1, 300)[0]
    predicted = predictor.predict([image])
    found = predictor.explain(image)
    assert found.classes[0] == predicted.labels[0]
    order = np.argsort(-predicted.probabilities[0])[:2]
    assert found.classes == tuple(predictor.classes[k] for k in order)
    np.testing.assert_allclose(found.probabilities, predicted.probabilities[0][order], atol=1e-6)
    assert found.unlike_training is False
    assert predictor.explain(endoscopy(1)[0]).unlike_training is True


@pytest.mark.parametrize(
    ("shape", "shown"),
    [((16, 16), (256, 256)), ((300, 200), (300, 200)), ((500, 2000), (192, 768))],
)
def test_maps_have_the_size_of_the_image_within_bounds(
    run: Run, shape: tuple[int, int], shown: tuple[int, int]
) -> None:
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3)).astype(np.uint8)
    found = lmd.load(run.path).explain(image)
    assert found.picture.shape == (*shown, 3)
    assert found.picture.dtype == np.uint8
    assert found.heat.shape == (2, *shown)
    assert found.evidence.shape == (2, SIZE // 4, SIZE // 4)
    assert found.heat.min() >= 0
    assert found.heat.max() == 1
    best = int(found.heat.max((1, 2)).argmax())
    x, y = found.peak(best)
    assert found.heat[best, int(y * shown[0]), int(x * shown[1])] == 1


def test_files_are_explained_as_they_are_predicted(run: Run, tmp_path: Path) -> None:
    # A large JPEG is decoded at a fraction of its size, in both.
    large = Image.fromarray(skin(0, 1)[0]).resize((1200, 900))
    large.save(tmp_path / "large.jpg")
    predictor = lmd.load(run.path)
    found = predictor.explain(tmp_path / "large.jpg")
    expected = predictor.predict([tmp_path / "large.jpg"]).probabilities.max()
    assert found.probabilities[0] == pytest.approx(expected, abs=1e-6)
    assert found.picture.shape == (576, 768, 3)
    assert found.name == str(tmp_path / "large.jpg")


def test_a_training_image_is_its_own_nearest_case(run: Run) -> None:
    with np.load(run.path.parent / "skin.npz") as data:
        images, labels = data["train_images"], data["train_labels"][:, 0]
    predictor = lmd.load(run.path)
    for row in (0, 45, 70):
        nearest = predictor.explain(images[row]).neighbours
        assert len(nearest) == 5
        assert nearest[0].row == row
        assert nearest[0].distance < 0.01
        assert nearest[0].label == predictor.classes[labels[row]]
        assert nearest[0].name is None
        assert [near.distance for near in nearest] == sorted(near.distance for near in nearest)
    assert len(predictor.explain(images[0], neighbours=2).neighbours) == 2
    assert predictor.explain(images[0], neighbours=0).neighbours == ()


def test_without_the_file_there_are_no_cases_unless_they_are_asked_for(
    run: Run, tmp_path: Path
) -> None:
    folder = shutil.copytree(run.path, tmp_path / "copy")
    (folder / "neighbours.npz").unlink()
    predictor = lmd.load(folder / "model.json")
    assert predictor.explain(skin(0, 1)[0]).neighbours == ()
    with pytest.raises(LmdError, match="does not exist: make it with `lmd index"):
        predictor.explain(skin(0, 1)[0], neighbours=3)


def test_wrong_arguments_are_named(run: Run, tmp_path: Path) -> None:
    predictor = lmd.load(run.path)
    with pytest.raises(LmdError, match="classes must be at least 1; it is 0"):
        predictor.explain(skin(0, 1)[0], classes=0)
    with pytest.raises(LmdError, match="neighbours must be at least 0; it is -1"):
        predictor.explain(skin(0, 1)[0], neighbours=-1)
    with pytest.raises(LmdError, match="does not exist"):
        predictor.explain(tmp_path / "nowhere.png")
    assert len(predictor.explain(skin(0, 1)[0], classes=9).classes) == 3
    # Making a real ONNX file takes half a minute; the engine's type is what counts here.
    engine = OnnxEngine.__new__(OnnxEngine)
    engine.classes, engine.image_size = predictor.classes, SIZE
    with pytest.raises(LmdError, match="heat maps need the run folder"):
        Predictor(engine).explain(skin(0, 1)[0])

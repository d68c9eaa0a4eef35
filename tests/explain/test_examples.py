"""A run keeps pictures of a few test images, unless it is told not to."""

from pathlib import Path

import numpy as np
import pytest
from explained import LABELS, skin, skin_run
from typer.testing import CliRunner

from lmd.cli.commands import app
from lmd.explain.examples import read_examples
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("examples"))


def test_they_are_the_test_images_with_heat_maps_of_the_prediction(run: Run) -> None:
    import lmd

    found, of = read_examples(run.path), run.read_predictions().parts["test"]
    assert found is not None
    assert found.heat is not None
    assert len(found.ids) == len(set(found.ids.tolist())) <= 16
    images = np.concatenate([skin(label, 20) for label in LABELS])
    predictor = lmd.load(run.path)
    for name, picture, heat in zip(found.ids, found.pictures, found.heat, strict=True):
        place = of.ids.tolist().index(name)
        own = [i for i, image in enumerate(images) if np.array_equal(image, picture)]
        assert int(of.labels[place]) in {i // 20 for i in own}
        again = predictor.explain(picture, classes=1)
        assert again.classes[0] == predictor.classes[int(of.probabilities[place].argmax())]
        if again.heat.max() > 0:
            assert heat.max() == 255
    report = (run.path / "report.html").read_text(encoding="utf-8")
    assert report.count("<img") == 2 * len(found.ids)


def test_no_images_leaves_no_picture_anywhere(tmp_path: Path) -> None:
    quiet = skin_run(tmp_path, images=False)
    assert not (quiet.path / "examples.npz").exists()
    assert "<img" not in (quiet.path / "report.html").read_text(encoding="utf-8")
    record = quiet.record
    assert record.request.images is False
    assert " --no-images" in record.command


def test_commands_write_pages_with_and_without(run: Run, tmp_path: Path) -> None:
    def written(*words: str) -> str:
        found = CliRunner().invoke(app, list(words))
        assert found.exit_code == 0, found.exception or found.output
        return Path(words[-1]).read_text(encoding="utf-8")

    page = str(tmp_path / "page.html")
    assert "<img" in written("report", str(run.path), "--out", page)
    assert "<img" not in written("report", str(run.path), "--no-images", "--out", page)
    CliRunner().invoke(app, ["evaluate", str(run.path), "--no-images"])
    assert "<img" not in (run.path / "report.html").read_text(encoding="utf-8")
    before = (run.path / "examples.npz").read_bytes()
    (run.path / "examples.npz").unlink()
    assert "<img" not in written("report", str(run.path), "--out", page)
    data = str(run.path.parent / "skin.npz")
    assert "<img" in written("report", str(run.path), "--data", data, "--out", page)
    assert (run.path / "examples.npz").read_bytes() == before

"""`lmd calibrate` from a file, a run, a backbone and an ONNX file; the page's code and commands."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documentation import page, run_python
from PIL import Image
from toys import toy_images
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.cli.commands import app
from lmd.data.dataset import plan_data
from lmd.data.source import Columns, Source
from lmd.evaluation.evaluate import compare_runs, evaluate_tta, rescore
from lmd.export.export import export_onnx
from lmd.frozen.calibrate import calibrate_run, mix_of
from lmd.frozen.choose import Chosen, Linear
from lmd.frozen.encode import Encoding
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol

PAGE = page("calibrate.md")
QUICK = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 1}
QUICK |= {"batch_size": 16, "workers": 0, "split": (0.5, 0.25, 0.25)}
PARTS = {"train": (120, 40, 8), "validation": (20, 12, 8), "test": (20, 20, 20)}


def arrays(parts: dict[str, tuple[int, ...]] = PARTS) -> dict[str, Any]:
    """Three overlapping classes in six dimensions, far from the origin."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 6))
    rows = [(part, k) for part, counts in parts.items() for k, n in enumerate(counts)
            for _ in range(n)]  # fmt: skip
    labels = np.array([k for _, k in rows])
    features = centres[labels] + rng.normal(size=(len(rows), 6)) + 10
    names = np.array(["nv", "mel", "df"])
    return {"features": features, "labels": names[labels], "split": np.array([p for p, _ in rows])}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrate") / "skin"
    found = toy_images((48, 24, 12))
    for i, (pixels, label) in enumerate(zip(found.pixels, found.labels, strict=True)):
        path = folder / ("nv", "mel", "df")[label] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


def test_the_python_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run_python("calibrate.md")
    classifier, features = names["classifier"], names["features"]
    np.testing.assert_allclose(names["p"], classifier.predict_proba(features))
    np.testing.assert_array_equal(
        names["same"].predict_proba(features), classifier.predict_proba(features)
    )
    right = classifier.predict(features) == names["labels"]
    assert right[names["labels"] == "dermatofibroma"].mean() > 0.6
    command = re.search(r"lmd (calibrate features\.npz.*)", PAGE)
    assert command is not None
    done = CliRunner().invoke(app, command[1].split(), catch_exceptions=False)
    assert done.exit_code == 0
    assert "cross-validation" in done.output
    assert "There is no test part" in done.output
    assert "Class Gaussians" in done.output
    shipped = lmd.load_classifier("runs/skin-calibrated")
    np.testing.assert_allclose(shipped.predict_proba(features), classifier.predict_proba(features))


def test_a_file_of_features_becomes_a_run(tmp_path: Path) -> None:
    given = arrays() | {"weight": np.eye(3, 6), "bias": np.zeros(3)}
    given["classes"] = np.array(["nv", "mel", "df"])
    np.savez(tmp_path / "f.npz", **given)
    run = calibrate_run(tmp_path / "f.npz", out=tmp_path / "run", quiet=True)
    record = run.record
    assert record.status == "finished"
    assert record.data.counts == {part: list(counts) for part, counts in PARTS.items()}
    keys = [row.key for row in record.candidates]
    assert keys[:3] == ["existing", "plain", "existing_adjusted"]
    (shipped,) = [row for row in record.candidates if row.chosen]
    by_key = {row.key: row for row in record.candidates}
    assert shipped.test is not None
    assert shipped.test.value == pytest.approx(record.metrics["test"]["balanced_accuracy"].value)
    values = [by_key[key].held_out for key in (shipped.key, "existing")]
    better, worse = (found.value for found in values if found is not None)
    assert better is not None
    assert worse is not None
    assert better > worse
    # predictions are those of the shipped file
    test = given["split"] == "test"
    classifier = lmd.load_classifier(run.path)
    saved = run.read_predictions().parts["test"].probabilities
    np.testing.assert_allclose(classifier.predict_proba(given["features"][test]), saved, atol=1e-6)
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert "Before and after" in page
    assert shipped.title in page
    again = rescore(run.path, resamples=50)
    assert again.candidates == record.candidates
    with pytest.raises(LmdError, match="classifier of features"):
        lmd.load(run.path)
    with pytest.raises(LmdError, match="classifier of features"):
        export_onnx(run.path, tmp_path / "m.onnx")
    before = {p: p.read_bytes() for p in run.path.glob("*.*")}
    with pytest.raises(LmdError, match="--overwrite"):
        calibrate_run(tmp_path / "f.npz", out=run.path, quiet=True)
    assert {p: p.read_bytes() for p in run.path.glob("*.*")} == before
    calibrate_run(tmp_path / "f.npz", out=run.path, overwrite=True, quiet=True)


def test_the_choice_does_not_see_the_test_part() -> None:
    given = arrays()
    other = {k: v.copy() for k, v in given.items()}
    test = given["split"] == "test"
    other["features"][test] = 0
    one, two = (lmd.calibrate(**each) for each in (given, other))
    np.testing.assert_array_equal(one.weight, two.weight)
    assert one.temperature == two.temperature
    assert one.candidates != two.candidates


def test_logits_of_an_existing_classifier_are_the_first_row() -> None:
    given = arrays()
    logits = np.zeros((len(given["labels"]), 3))
    found = lmd.calibrate(**given, logits=logits, classes=["nv", "mel", "df"])
    assert found.candidates[0].key == "existing"
    assert found.candidates[0].held_out is not None
    assert found.candidates[0].held_out.value == pytest.approx(1 / 3)
    assert found.candidates[2].key == "means"


def test_without_validation_groups_stay_together_and_small_classes_are_named(
    tmp_path: Path,
) -> None:
    given = arrays({"train": (40, 20, 1)})
    np.savez(tmp_path / "f.npz", **given, groups=np.arange(61) // 2)
    run = calibrate_run(tmp_path / "f.npz", out=tmp_path / "run", quiet=True)
    record = run.record
    notes = " ".join(record.notes)
    assert "Only one training image of df" in notes
    assert "cross-validation" in notes
    assert "no test part" in notes
    assert run.read_predictions().parts["validation"].labels.min() == 1
    assert (
        "which was fitted on images held out of training" in (run.path / "report.html").read_text()
    )
    assert record.data.grouped
    done = CliRunner().invoke(app, ["evaluate", str(run.path), "--resamples", "20"])
    assert done.exit_code == 0, done.exception
    assert "validation part" in done.output
    assert rescore(run.path, resamples=20).notes == record.notes


def test_a_run_gets_a_new_classifier(tmp_path: Path, images: Path) -> None:
    old = lmd.train(images, method="ce", settings=QUICK, out=tmp_path / "old", quiet=True)
    run = calibrate_run(old.path, out=tmp_path / "new", quiet=True)
    record = run.record
    assert record.data.fingerprint == old.record.data.fingerprint
    before, saved = old.read_predictions().parts["test"], run.read_predictions().parts["test"]
    np.testing.assert_array_equal(saved.ids, before.ids)
    existing = record.candidates[0].test
    assert existing is not None
    expected = old.record.metrics["test"]["balanced_accuracy"].value
    assert existing.value == pytest.approx(expected)
    paths = [images / name for name in saved.ids]
    found = lmd.load(run.path).predict(paths)
    np.testing.assert_allclose(found.probabilities, saved.probabilities, atol=1e-4)
    prior = lmd.load(run.path).engine.spec.prior
    assert prior is not None
    assert prior.kind == "uniform"
    assert "minus old" in compare_runs(run.path, old.path, resamples=20)
    # The encoder and the images are the same, so the flag is there, too.
    flagged, again = (lmd.load(path).predict(paths).unlike_training for path in (old.path, run))
    assert record.novelty is not None
    np.testing.assert_array_equal(flagged, again)
    for encoding in (
        Encoding(settings={"image_size": 64}),
        Encoding(columns=Columns(group_column="x")),
    ):
        with pytest.raises(LmdError, match=r"takes no .*(--set|--group-column).*: a run keeps"):
            calibrate_run(old.path, encoding, out=tmp_path / "asked", quiet=True)
    with pytest.raises(LmdError, match="is the run itself"):
        calibrate_run(old.path, out=old.path, overwrite=True, quiet=True)
    for image in images.glob("df/*"):
        moved = image
    kept = moved.read_bytes()
    moved.unlink()
    try:
        with pytest.raises(LmdError, match="is not what old was trained on"):
            calibrate_run(old.path, out=tmp_path / "other", quiet=True)
    finally:
        moved.write_bytes(kept)
    assert not (tmp_path / "other").exists()


def test_a_backbone_with_images(tmp_path: Path, images: Path) -> None:
    settings = {"image_size": 16, "split": [0.5, 0.25, 0.25]}
    encoding = Encoding(data=str(images), weights="none", settings=settings)
    run = calibrate_run("resnet8", encoding, out=tmp_path / "run", quiet=True)
    record = run.record
    assert record.model.backbone == "resnet8"
    assert "--data" in record.command
    saved = run.read_predictions().parts["test"]
    found = lmd.load(run.path).predict([images / name for name in saved.ids])
    np.testing.assert_allclose(found.probabilities, saved.probabilities, atol=1e-4)
    # Its record says how the images are read, so they can be read again.
    flipped = evaluate_tta(run.path, resamples=10, quiet=True).read_predictions().parts["test"]
    found = lmd.load(run.path).predict([images / name for name in flipped.ids], tta=True)
    np.testing.assert_allclose(found.probabilities, flipped.probabilities, atol=1e-4)
    weights = tmp_path / "w.pth"
    model = lmd.predict.predictor.load(run.path).engine.model  # type: ignore[attr-defined]
    torch.save(model.encoder.state_dict(), weights)
    encoding = Encoding(data=str(images), backbone="resnet8", settings=settings)
    again = calibrate_run(weights, encoding, out=tmp_path / "again", quiet=True)
    other = again.read_predictions().parts["test"].probabilities
    np.testing.assert_allclose(other, saved.probabilities, atol=1e-4)


def test_an_onnx_encoder(tmp_path: Path, images: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("ReduceMean", ["images"], ["maps"], axes=[2, 3], keepdims=1),
        helper.make_node("Flatten", ["maps"], ["colours"]),
    ]
    graph = helper.make_graph(
        nodes, "encoder",
        [helper.make_tensor_value_info("images", kind, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("colours", kind, ["n", 3]),
         helper.make_tensor_value_info("maps", kind, ["n", 3, 1, 1])],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 13)]
    path = tmp_path / "encoder.onnx"
    path.write_bytes(
        helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
    )
    encoding = Encoding(data=str(images), output="colours", settings={"split": [0.5, 0.25, 0.25]})
    run = calibrate_run(path, encoding, out=tmp_path / "run", quiet=True)
    protocol = Protocol(image_size=16, split=(0.5, 0.25, 0.25))
    pixels = plan_data(Source(images), protocol).decode(Display(quiet=True)).part("test")[:]
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    colours = (pixels.mean((1, 2)) / 255 - mean) / std
    saved = run.read_predictions().parts["test"].probabilities
    found = lmd.load_classifier(run.path).predict_proba(colours)
    np.testing.assert_allclose(found, saved, atol=1e-4)
    for encoding, message in (
        (Encoding(data=str(images)), "colours, maps"),
        (Encoding(data=str(images), output="maps"), r"must be \(N, C\)"),
        (Encoding(), "with --data"),
    ):
        with pytest.raises(LmdError, match=message):
            calibrate_run(path, encoding, out=tmp_path / "no", quiet=True)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("source", "encoding", "message"),
    [
        ("nothing", Encoding(), "does not exist"),
        ("nothing.npz", Encoding(), "does not exist"),
        ("f.npz", Encoding(data="x"), "data is for encoders"),
        ("resnet18", Encoding(), "give its images with --data"),
        ("w.pth", Encoding(backbone="resnet18", data="x"), r"weight file w\.pth does not exist"),
        ("resnet18", Encoding(backbone="resnet18", data="x"), "backbone names"),
        (
            "resnet8",
            Encoding(data="x", settings={"weights": "none"}),
            "weights would change nothing",
        ),
        (
            "resnet8",
            Encoding(data="x", settings={"backbone": "resnet18"}),
            "backbone would change no",
        ),
        (
            "e.onnx",
            Encoding(data="x", settings={"backbone": "resnet18"}),
            "backbone would change no",
        ),
        (".", Encoding(), "not a run folder"),
    ],
)
def test_a_source_that_cannot_be_used_leaves_nothing_behind(
    source: str, encoding: Encoding, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LmdError, match=message):
        calibrate_run(source, encoding, out=tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_features_of_another_width_are_refused() -> None:
    found = lmd.calibrate(**arrays())
    with pytest.raises(LmdError, match="C = 6"):
        found.predict_proba(np.zeros((2, 5)))
    with pytest.raises(LmdError, match="finite"):
        found.predict_proba(np.full((2, 6), np.nan))


def test_a_damaged_classifier_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "classifier.npz"
    lmd.calibrate(**arrays()).save(path)
    whole = dict(np.load(path))
    np.savez(path, **whole | {"bias": np.zeros(2)})
    with pytest.raises(LmdError, match="do not fit"):
        lmd.load_classifier(path)
    path.write_bytes(b"PK")
    with pytest.raises(LmdError, match="not a classifier file"):
        lmd.load_classifier(tmp_path)
    with pytest.raises(LmdError, match="cannot be read"):
        lmd.load_classifier(tmp_path / "absent.npz")


def test_labels_of_a_data_frame_are_python_strings() -> None:
    given = arrays()
    names = np.array(["nevus", "melanoma", "wart", "x", "y", "z"], dtype=object)
    labels = names[np.unique(given["labels"], return_inverse=True)[1]]
    assert labels.dtype == object
    found = lmd.calibrate(**given | {"labels": labels})
    assert set(found.classes) <= set(names)


def test_what_a_classifier_is_chosen_on_must_not_be_seen(tmp_path: Path, images: Path) -> None:
    settings = QUICK | {"split": (0.7, 0, 0.3), "tiers": "thirds"}
    run = lmd.train(images, method="ce", settings=settings, out=tmp_path / "run", quiet=True)
    with pytest.raises(LmdError, match="its encoder has seen all training images"):
        calibrate_run(run.path, out=tmp_path / "new", quiet=True)
    # An existing classifier that knows the rows of every fold is not among the candidates.
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 80)), rng.integers(3, size=60)
    weight = 100 * np.linalg.lstsq(features, np.eye(3)[labels], rcond=None)[0].T
    found = lmd.calibrate(features, labels, weight=weight, bias=np.zeros(3))
    chosen = next(row for row in found.candidates if row.chosen)
    assert chosen.held_out is not None
    assert chosen.held_out.value is not None
    assert chosen.held_out.value < 0.6
    assert not [row for row in found.candidates if row.key.startswith("existing_")]


@pytest.mark.parametrize("tested", [False, True])
def test_an_existing_classifier_gets_no_number_on_its_own_training_images(
    tmp_path: Path, tested: bool
) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(90, 80)), np.arange(90) % 3
    known = np.arange(90) < (60 if tested else 90)
    weight = np.linalg.lstsq(features[known], np.eye(3)[labels[known]], rcond=None)[0].T
    split = np.where(known, "train", "test")
    np.savez(tmp_path / "f.npz", features=features, labels=labels, weight=weight, split=split)
    command = ["calibrate", str(tmp_path / "f.npz"), "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert "has no cross-validated number" in done.output
    existing, *others = Run.open(tmp_path / "run").record.candidates
    assert existing.key == "existing"
    assert existing.held_out is None
    assert all(row.held_out is not None for row in others)
    if tested:
        assert existing.test is not None
        assert existing.worst_recall is not None
        assert existing.worst_recall < 0.9
    else:
        assert (existing.test, existing.worst_class, existing.worst_recall) == (None, None, None)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    row = page.split(f'<th scope="row">{existing.title}</th>')[1].split("</tr>")[0]
    assert row.startswith('<td class="number" data-value="-1">–</td>')
    assert "100.0" not in row


@pytest.mark.parametrize(
    ("key", "tau", "before", "mix"),
    [
        ("existing_adjusted", 0.0, "training", "training"),
        ("existing_adjusted", 1.0, "training", "uniform"),
        ("existing_adjusted", 0.0, "uniform", "uniform"),
        ("adjusted", 0.2, "uniform", "training"),
        ("balanced", None, "training", "uniform"),
    ],
)
def test_the_mix_of_a_classifier_that_is_hardly_changed(
    key: str, tau: float | None, before: Any, mix: str
) -> None:
    setting = {} if tau is None else {"tau": tau}
    nothing = Linear.of(torch.zeros(2, 2, dtype=torch.float64))
    assert mix_of(Chosen(key, setting, nothing, np.zeros((0, 2))), before) == mix


def test_the_tiers_of_a_run_stay(tmp_path: Path, images: Path) -> None:
    settings = QUICK | {"tiers": "head=nv;tail=mel,df"}
    run = lmd.train(images, method="ce", settings=settings, out=tmp_path / "run", quiet=True)
    new = calibrate_run(run.path, out=tmp_path / "new", quiet=True)
    assert new.record.tiers == run.record.tiers


def test_images_of_a_run_may_have_moved(tmp_path: Path, images: Path) -> None:
    first, now = tmp_path / "skin", tmp_path / "elsewhere"
    shutil.copytree(images, first)
    old = lmd.train(first, method="ce", settings=QUICK, out=tmp_path / "old", quiet=True)
    first.rename(now)
    with pytest.raises(LmdError, match="say where they are now with"):
        calibrate_run(old.path, out=tmp_path / "new", quiet=True)
    run = calibrate_run(old.path, Encoding(data=str(now)), out=tmp_path / "new", quiet=True)
    record = run.record
    assert record.data.fingerprint == old.record.data.fingerprint
    assert record.request.data == str(now)
    assert f"--data {now}" in record.command

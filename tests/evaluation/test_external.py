"""`lmd evaluate RUN --data OTHER`: images from another place, in a folder of its own."""

import csv
import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explained import LABELS, SETTINGS, endoscopy, skin, skin_run
from PIL import Image
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.decisions.decide import Decide
from lmd.evaluation.evaluate import rescore
from lmd.explain.command import index
from lmd.frozen.calibrate import calibrate_run
from lmd.runs.folder import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return skin_run(tmp_path_factory.mktemp("external"))


def arrays(counts: tuple[int, ...] = (24, 12, 6), **more: Any) -> dict[str, Any]:
    images = [skin(label, n, 500) for label, n in zip(LABELS, counts, strict=True) if n]
    return {"images": np.concatenate(images), "labels": np.repeat(np.arange(3), counts), **more}


def evaluated(run: Run, data: Path, out: Path, **options: Any) -> Run:
    return lmd.evaluate(run, data, out=out, resamples=50, quiet=True, **options)


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_numbers_are_those_of_the_shipped_model_and_the_run_stays(
    run: Run, tmp_path: Path
) -> None:
    given = arrays(groups=np.repeat(np.arange(21), 2))
    np.savez(tmp_path / "clinic.npz", **given)
    before = content(run.path)
    made = evaluated(run, tmp_path / "clinic.npz", tmp_path / "out")
    assert content(run.path) == before
    assert {p.name for p in made.path.iterdir()} == {
        "predictions.npz",
        "record.json",
        "report.html",
    }
    saved = made.read_predictions().parts["test"]
    found = lmd.load(run.path).predict(list(given["images"]))
    np.testing.assert_allclose(saved.probabilities, found.probabilities, atol=1e-6)
    np.testing.assert_array_equal(saved.labels, given["labels"])
    record, external = made.record, made.record.external
    assert external is not None
    assert record.data.counts["test"] == [24, 12, 6]
    assert record.data.counts["train"] == run.record.data.counts["train"]
    right = found.probabilities.argmax(1) == given["labels"]
    recalls = [right[given["labels"] == k].mean() for k in range(3)]
    assert record.metrics["test"]["balanced_accuracy"].value == pytest.approx(np.mean(recalls))
    home = run.record.metrics["test"]
    assert external.metrics["balanced_accuracy"].home.value == home["balanced_accuracy"].value
    assert [round(one.here, 3) for one in external.classes] == [0.571, 0.286, 0.143]
    assert external.mix_distance == pytest.approx(0.571 - 1 / 3, abs=1e-3)
    assert external.flagged.value == pytest.approx(found.unlike_training.mean())  # type: ignore[union-attr]
    assert external.confidence.here.value == pytest.approx(found.probabilities.max(1).mean())
    assert record.per_class["test"][0].units == 12  # groups count
    # Sets have the thresholds of the run, and their coverage here is counted here.
    assert record.sets is not None
    sets = lmd.load(run.path).predict(list(given["images"]), coverage=0.9).decided.sets
    assert sets is not None
    covered = sets[np.arange(42), given["labels"]].mean()
    assert record.sets.coverage.value == pytest.approx(covered)
    own = run.record.sets
    assert own is not None
    assert external.coverage == own.coverage


def test_images_of_another_kind_are_flagged_and_unknown_classes_follow_the_rule(
    run: Run, tmp_path: Path
) -> None:
    given = arrays((10, 10, 0))
    given["images"] = np.concatenate([given["images"], endoscopy(12)])
    given["labels"] = np.array([*given["labels"].astype(str), *["polyp"] * 12])
    np.savez(tmp_path / "mixed.npz", **given)
    with pytest.raises(LmdError, match=r"does not know 'polyp' \(12 images\).*--skip-unknown"):
        evaluated(run, tmp_path / "mixed.npz", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    made = evaluated(run, tmp_path / "mixed.npz", tmp_path / "out", skip_unknown=True)
    record = made.record
    assert record.external is not None
    (polyp,) = record.external.unknown
    assert (polyp.name, polyp.images) == ("polyp", 12)
    assert polyp.flagged is not None
    assert polyp.flagged > 0.9
    assert record.external.flagged is not None
    assert record.external.flagged.value is not None
    assert record.external.flagged.value < 0.3
    assert sum(record.data.counts["test"]) == 20
    assert record.per_class["test"][2].recall.value is None
    notes = " ".join(record.notes)
    assert "12 images of polyp, which the model does not know" in notes
    assert "No images of 2" in notes
    page = (made.path / "report.html").read_text(encoding="utf-8")
    assert "External validation." in page
    assert "What is different here" in page
    assert "No images of 2 are here" in page
    # Sets and flags are of all images, also of classes that only one place has; the rows say so.
    own, coverage = run.record.sets, record.external.coverage
    assert own is not None
    assert coverage == own.coverage
    assert coverage.value == pytest.approx(np.mean([one.coverage.value for one in own.per_class]))
    for title in ("Coverage of 90 % sets", "Unlike the training images"):
        assert f'<th scope="row">{title}, all images</th>' in page
    assert "12 images of polyp" in page
    np.savez(tmp_path / "tubes.npz", images=endoscopy(4), labels=np.array(["a", "b"] * 2))
    with pytest.raises(LmdError, match=r"no image of a class that the model knows.*0, 1, 2"):
        evaluated(run, tmp_path / "tubes.npz", tmp_path / "none", skip_unknown=True)


def test_images_with_the_names_of_the_runs_own_are_counted(tmp_path: Path) -> None:
    for place, start in (("home", 0), ("clinic", 50)):
        for k, label in enumerate(LABELS):
            (tmp_path / place / str(k)).mkdir(parents=True)
            for i, pixels in enumerate(skin(label, 8, start)):
                Image.fromarray(pixels).save(
                    tmp_path / place / str(k) / f"{k}-{i + start // 10}.png"
                )
    settings = SETTINGS | {"epochs": 1, "split": (0.5, 0.25, 0.25)}
    own = lmd.train(
        tmp_path / "home", method="ce", settings=settings, out=tmp_path / "run", quiet=True
    )
    made = evaluated(own, tmp_path / "clinic", tmp_path / "out")
    parts = own.read_predictions().parts.values()
    names = {Path(name).name for of in parts for name in of.ids}
    shared = [path.name for path in (tmp_path / "clinic").rglob("*.png") if path.name in names]
    assert shared
    (note,) = [note for note in made.record.notes if "the name of a validation or" in note]
    assert note.startswith(f"{len(shared)} image")


def test_a_misspelt_class_gets_a_hint(tmp_path: Path) -> None:
    from lmd.data.table import ArrayImages, Table
    from lmd.evaluation.external import known_rows

    labels = np.array([0, 0, 1])
    table = Table(np.array(["a", "b", "c"]), labels, ("Melanoma", "nevus"), ArrayImages(()), labels)
    with pytest.raises(LmdError, match=r"'Melanoma' \(2 images, perhaps 'melanoma'\)"):
        known_rows(table, ("melanoma", "nevus"), False)


def test_a_manifest_with_its_columns_and_one_part(run: Run, tmp_path: Path) -> None:
    rows = []
    for label in range(3):
        for i, pixels in enumerate(skin(LABELS[label], 4, 600)):
            name = f"{label}-{i}.png"
            Image.fromarray(pixels).save(tmp_path / name)
            rows.append({"file": name, "dx": label, "part": "test" if i else "train"})
    with (tmp_path / "clinic.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, ["file", "dx", "part"])
        writer.writeheader()
        writer.writerows(rows)
    words = ["evaluate", str(run.path), "--data", str(tmp_path / "clinic.csv"), "--part", "test"]
    words += ["--image-column", "file", "--label-column", "dx", "--split-column", "part"]
    words += ["--out", str(tmp_path / "out"), "--resamples", "20", "--coverage", "0.8"]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0
    assert "external images" in done.output
    assert "Class mix:" in done.output
    assert "Coverage of 80 % sets, all images" in done.output
    record = Run.open(tmp_path / "out").record
    assert record.data.counts["test"] == [3, 3, 3]
    assert "--label-column dx" in record.command
    assert "--part test" in record.command
    assert "--coverage 0.8" in record.command
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, LmdError)
    assert "overwrite" in str(refused.exception)
    assert "resume" not in str(refused.exception)  # there is nothing to continue
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "out")])
    assert "external images, values in %" in shown.output
    # The same command for another model, or the same, can be compared on the same images.
    words[words.index("--out") + 1] = str(tmp_path / "again")
    done = CliRunner().invoke(app, [*words, "--against", str(tmp_path / "out")])
    assert "again minus out" in done.output


def test_without_a_test_part_there_is_no_coverage_to_compare_with(tmp_path: Path) -> None:
    """The validation images gave the thresholds: their own coverage is right by construction."""
    np.savez(tmp_path / "home.npz", **arrays((40, 30, 20)))
    np.savez(tmp_path / "clinic.npz", **arrays((8, 8, 8)))
    settings = SETTINGS | {"epochs": 1, "fold": [0, 2]}
    home = lmd.train(
        tmp_path / "home.npz", method="ce", settings=settings, out=tmp_path / "final", quiet=True
    )
    assert home.record.part == "validation"
    record = evaluated(home, tmp_path / "clinic.npz", tmp_path / "out").record
    assert record.sets is not None
    assert record.external is not None
    assert record.external.home_part == "validation"
    assert record.external.coverage is None
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "% sets, all images" not in page


def test_a_calibrated_model_can_be_tested_elsewhere_too(run: Run, tmp_path: Path) -> None:
    new = calibrate_run(run.path, out=tmp_path / "new", quiet=True)
    np.savez(tmp_path / "clinic.npz", **arrays((6, 6, 6)))
    record = evaluated(new, tmp_path / "clinic.npz", tmp_path / "out").record
    assert record.external is not None
    assert record.external.run == "new"
    assert record.external.flagged is not None
    assert record.candidates == []
    saved = Run.open(tmp_path / "out").read_predictions().parts["test"].probabilities
    found = lmd.load(new.path).predict(list(arrays((6, 6, 6))["images"])).probabilities
    np.testing.assert_allclose(saved, found, atol=1e-6)
    values = json.loads(new.record_path.read_text(encoding="utf-8"))
    # Without a validation part, a calibration has predictions of training images in its place.
    values["data"]["counts"]["validation"] = [0, 0, 0]
    new.record_path.write_text(json.dumps(values), encoding="utf-8")
    crossed = evaluated(new, tmp_path / "clinic.npz", tmp_path / "crossed")
    assert rescore(crossed.path, resamples=10).external is not None
    values["request"]["protocol"] = {}  # as earlier calibrations had it
    new.record_path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(LmdError, match="does not say how its images are read"):
        index(new.path, quiet=True)
    np.savez(tmp_path / "f.npz", features=np.random.default_rng(0).normal(size=(40, 3)),
             labels=np.arange(40) % 2)  # fmt: skip
    only = calibrate_run(tmp_path / "f.npz", out=tmp_path / "features", quiet=True)
    with pytest.raises(LmdError, match="classifier of features, not of images"):
        evaluated(only, tmp_path / "clinic.npz", tmp_path / "none")
    assert "load_classifier" in (only.path / "model-card.md").read_text(encoding="utf-8")


def test_the_folder_can_be_scored_again(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "clinic.npz", **arrays())
    made = evaluated(run, tmp_path / "clinic.npz", tmp_path / "out")
    first = made.record
    again = rescore(made.path, resamples=50)
    assert again.metrics == first.metrics
    assert again.external == first.external
    other = rescore(made.path, resamples=50, decide=Decide(coverage=0.7))
    assert other.sets is not None
    assert other.sets.requested == 0.7
    assert other.external is not None
    assert other.external.coverage is None  # it was of other sets
    with pytest.raises(LmdError, match="is an external validation of run, not a run"):
        lmd.train(out=made.path, resume=True)
    with pytest.raises(LmdError, match="is an external validation of run: give the folder"):
        evaluated(made, tmp_path / "clinic.npz", tmp_path / "twice")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "skin.npz"}, r"run was trained on .*skin\.npz"),
        ({"data": "copy.npz"}, r"run was trained on .*copy\.npz"),
        ({"data": "absent.csv"}, "does not exist"),
        ({"data": "clinic.npz", "part": "test"}, "has no test part"),
        ({"data": "clinic.npz", "part": "tset"}, "part must be one of train, validation, test"),
        ({"data": "clinic.npz", "out": "run"}, "is the run itself"),
        ({"data": "clinic.npz", "out": "other", "overwrite": "yes"}, "holds a training"),
    ],
)
def test_mistakes_leave_nothing_behind(run: Run, options: dict[str, str], message: str) -> None:
    folder = run.path.parent
    (folder / "copy.npz").write_bytes((folder / "skin.npz").read_bytes())
    np.savez(folder / "clinic.npz", **arrays((4, 4, 4)))
    shutil.copytree(run.path, folder / "other", dirs_exist_ok=True)
    before = content(folder)
    words = {k: folder / v if k in ("data", "out") else v for k, v in options.items()}
    out = words.pop("out", folder / "out")
    with pytest.raises(LmdError, match=message):
        evaluated(run, words.pop("data"), out, **words)  # type: ignore[arg-type]
    assert content(folder) == before


def test_the_command_of_the_record_repeats_the_numbers(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "clinic.npz", **arrays((8, 8, 8)))
    (tmp_path / "costs.csv").write_text("class,cost\n0,1\n1,5\n2,20\n")
    mix = {"0": 0.7, "1": 0.2, "2": 0.1}
    decide = Decide(mix, tmp_path / "costs.csv", 0.8, 1)
    options: dict[str, Any] = {**vars(decide), "quiet": True}
    out = tmp_path / "out"
    first = lmd.evaluate(run, tmp_path / "clinic.npz", out=out, **options).record
    _, *words = shlex.split(first.command)
    done = CliRunner().invoke(app, [*words, "--overwrite"])
    assert done.exit_code == 0, done.exception
    again = Run.open(out).record
    assert again.command == first.command
    assert first.decisions is not None
    assert first.decisions.costs is not None
    assert again.decisions == first.decisions
    assert again.sets == first.sets


def test_options_for_other_images_need_them(run: Run) -> None:
    for words in (["--part", "test"], ["--skip-unknown"], ["--out", "x"], ["--root", "x"]):
        done = CliRunner().invoke(app, ["evaluate", str(run.path), *words])
        assert isinstance(done.exception, LmdError)
        assert str(done.exception) == f"{words[0]} needs --data as well"


def test_a_run_that_cannot_be_compared_is_refused_before_anything_is_computed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "clinic.npz", **arrays((6, 6, 6)))
    np.savez(tmp_path / "other.npz", **arrays((5, 7, 6)))  # other labels for the same names
    first = evaluated(run, tmp_path / "clinic.npz", tmp_path / "first")
    second = evaluated(run, tmp_path / "other.npz", tmp_path / "second")
    options: dict[str, Any] = {"out": tmp_path / "out", "resamples": 20, "quiet": True}
    before = content(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("lmd.evaluation.external.decode", None)
        for against, why in (
            (tmp_path / "absent", "does not exist"),
            (tmp_path, "not a run folder"),
            (run.path, "was scored on other images"),
            (second.path, "have different labels"),
        ):
            for skip_bad in (False, True):
                with pytest.raises(LmdError, match=why):
                    lmd.evaluate(
                        run, tmp_path / "clinic.npz", against=against, skip_bad=skip_bad, **options
                    )
        with pytest.raises(LmdError, match="no value for"):
            lmd.evaluate(run, tmp_path / "clinic.npz", prevalence="0=1", **options)
        options |= {"out": first.path, "overwrite": True}
        with pytest.raises(LmdError, match="is what --overwrite replaces"):
            lmd.evaluate(run, tmp_path / "clinic.npz", against=first.path, **options)
    assert content(tmp_path) == before


def test_images_that_cannot_be_read_are_in_neither_of_two_compared_runs(
    run: Run, tmp_path: Path
) -> None:
    for k, label in enumerate(LABELS):
        (tmp_path / "clinic" / str(k)).mkdir(parents=True)
        for i, pixels in enumerate(skin(label, 4, 600)):
            Image.fromarray(pixels).save(tmp_path / "clinic" / str(k) / f"{k}-{i}.png")
    broken = tmp_path / "clinic" / "0" / "broken.png"
    broken.write_bytes(b"no image")
    given: dict[str, Any] = {"skip_bad": True, "resamples": 20, "quiet": True}
    first = lmd.evaluate(run, tmp_path / "clinic", out=tmp_path / "first", **given)
    second = lmd.evaluate(
        run, tmp_path / "clinic", out=tmp_path / "second", against=first.path, **given
    )
    assert "first" in (second.path / "report.html").read_text(encoding="utf-8")
    # One more image can be read now: known when it has been read, and before a folder is made.
    shutil.copy(tmp_path / "clinic" / "0" / "0-0.png", broken)
    with pytest.raises(LmdError, match="was scored on other images"):
        lmd.evaluate(run, tmp_path / "clinic", out=tmp_path / "third", against=first.path, **given)
    assert not (tmp_path / "third").exists()

"""The commands as a person types them: real processes where exit codes matter, and every error."""

import csv
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs_on_disk import begun
from toys import write_npz

import lmd
from lmd.base.errors import LmdError
from lmd.evaluation.evaluate import rescore
from lmd.fit.train import train
from lmd.methods import METHODS
from lmd.runs.folder import Predictions, Run

QUICK = {
    "backbone": "resnet8",
    "weights": "none",
    "image_size": 16,
    "epochs": 1,
    "stage2_epochs": 1,
    "batch_size": 8,
    "workers": 0,
}


def run(
    *words: str, cwd: Path | None = None, columns: int = 200
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "lmd", *words],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        cwd=cwd,
        env=os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": str(columns)},
    )


def options() -> list[str]:
    return [word for k, v in QUICK.items() for word in ("--set", f"{k}={v}")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CE made by the command itself."""
    folder = tmp_path_factory.mktemp("trained")
    data = write_npz(folder / "toy.npz")
    done = run("train", str(data), "--method", "ce", "--out", str(folder / "run"), *options())
    assert done.returncode == 0, done.stderr
    assert "Balanced accuracy" in done.stdout
    assert "Mean over classes" not in done.stdout  # definitions are for `lmd show --definitions`
    assert "report.html" in done.stdout
    return folder / "run"


def make_folder(root: Path, counts: dict[str, int]) -> Path:
    rng = np.random.default_rng(0)
    for name, n in counts.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_a_run_folder_is_complete(trained: Path) -> None:
    names = {p.name for p in trained.iterdir()}
    assert names == {
        "record.json", "predictions.npz", "history.csv", "model.safetensors", "model.json",
        "checkpoint", "report.html", "novelty.safetensors", "examples.npz", "model-card.md",
        "model-card.html",
    }  # fmt: skip
    found = Run(trained)
    record = found.record
    assert record.status == "finished"
    assert record.command.startswith("lmd train")
    assert record.protocol["epochs"] == 1
    assert record.data.counts["train"] == [16, 8, 4]
    assert record.metrics["test"]["balanced_accuracy"].low is not None
    assert record.machine.threads >= 1
    data = (trained.parent / "toy.npz").read_bytes()
    assert record.data.file_sha256 == hashlib.sha256(data).hexdigest()
    assert len(record.data.fingerprint) == 64
    assert record.history == Run(trained).read_history()
    assert [stage.views for stage in record.stages] == [["weak"]]
    assert found.predictions is not None
    probabilities = found.predictions.parts["test"].probabilities
    assert probabilities.shape == (12, 3)
    assert np.allclose(probabilities.sum(1), 1, atol=1e-5)


def test_the_shipped_model_is_the_evaluated_one(trained: Path) -> None:
    """Row 21: the record is computed from the probabilities that predict gives."""
    with np.load(trained.parent / "toy.npz") as data:
        images = list(data["test_images"])
    found = lmd.load(trained).predict(images)
    with np.load(trained / "predictions.npz") as arrays:
        assert np.allclose(found.probabilities, arrays["test_probabilities"], atol=1e-5)


def test_evaluate_recomputes_from_predictions(trained: Path) -> None:
    before = json.loads((trained / "record.json").read_text())
    done = run("evaluate", str(trained), "--against", str(trained))
    assert done.returncode == 0, done.stderr
    assert "paired bootstrap" in done.stdout
    after = json.loads((trained / "record.json").read_text())
    assert after["metrics"] == before["metrics"]
    assert after["notes"] == before["notes"]


def test_the_intervals_know_which_images_are_of_one_patient(tmp_path: Path) -> None:
    make_folder(tmp_path, {"a": 40, "b": 40})
    rows = [f"{c}/{i}.png,{c},patient {c}{i // 4}" for c in "ab" for i in range(40)]
    data = tmp_path / "data.csv"
    data.write_text("\n".join(["image,label,group", *rows]))
    settings = QUICK | {"split": (0.5, 0.1, 0.4)}
    made = train(data, method="ce", settings=settings, out=tmp_path / "run", quiet=True)
    record, predictions = made.record, made.read_predictions()
    test = predictions.parts["test"]
    assert test.groups is not None
    assert np.issubdtype(test.groups.dtype, np.integer)
    assert len(np.unique(test.groups)) * 4 == len(test.labels)
    assert [row.units for row in record.per_class["test"]] == [4, 4]
    assert [row.support for row in record.per_class["test"]] == [16, 16]
    assert "groups (patients or lesions)" in record.definitions["interval"].definition
    assert any("of 4 patients or lesions" in note for note in record.notes)
    done = run("evaluate", str(made.path))
    assert "images (lesions, patients)" in done.stdout
    assert " 16 (4) " in done.stdout
    assert made.record == record
    # Without the groups the same predictions look surer than they are.
    parts = {**predictions.parts, "test": replace(test, groups=None)}
    made.write_predictions(Predictions(predictions.classes, parts))
    surer = rescore(made.path)
    for known, unknown in zip(record.per_class["test"], surer.per_class["test"], strict=True):
        assert known.recall.value == unknown.recall.value
        assert known.recall.high - known.recall.low > unknown.recall.high - unknown.recall.low


def test_predict_writes_a_csv(trained: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "new", {"x": 3})
    out = tmp_path / "out.csv"
    done = run("predict", str(trained), str(folder), "--out", str(out))
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 3
    assert rows[0]["predicted"] in {"0", "1", "2"}
    total = sum(float(v) for k, v in rows[0].items() if k.startswith("p:"))
    assert total == pytest.approx(1, abs=1e-4)
    again = run("predict", str(trained), str(folder), "--out", str(out))
    assert again.returncode == 1
    assert "--overwrite" in again.stderr


def test_predict_names_a_bad_image(trained: Path, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "new", {"x": 2})
    (folder / "x" / "0.png").write_bytes(b"not an image")
    out = tmp_path / "out.csv"
    done = run("predict", str(trained), str(folder), "--out", str(out))
    assert done.returncode == 1
    assert "0.png" in done.stderr
    assert "--skip-bad" in done.stderr
    assert not out.exists()
    done = run("predict", str(trained), str(folder), "--out", str(out), "--skip-bad")
    assert done.returncode == 0
    assert "1 images predicted, 1 skipped" in done.stdout


def test_help_needs_no_heavy_import() -> None:
    code = (
        "import sys; from lmd.cli.commands import app; app(['--help'], standalone_mode=False); "
        "print([name for name in ('torch', 'numpy', 'cv2') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "Train a method" in done.stdout


def test_methods_lists_settings_and_profiles() -> None:
    done = run("methods", columns=80)
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == list(METHODS)
    one = run("methods", "lmd").stdout
    assert "  lambda_1 = 10.0  (a number of at least 0)\n      With rrl: weight" in one
    assert "  warmup = 0.0\n" in one.split("profile paper\n")[1].split("profile official\n")[0]
    assert run("methods", "logit_adjust_posthoc").stdout.count("2.5]") == 1
    assert max(len(line) for line in one.splitlines()) <= 80
    for text in (done.stdout, one):
        assert "\x1b" not in text
        assert "…" not in text


def test_python_in_a_few_lines(tmp_path: Path) -> None:
    data = write_npz(tmp_path / "toy.npz")
    done = lmd.train(data, method="ce", settings=QUICK, out=tmp_path / "run", quiet=True)
    assert len(lmd.load(done.path).predict([np.zeros((9, 9, 3), np.uint8)]).labels) == 1


# Bad input: one clear message, no traceback, nothing lost.


def fails(match: str, *arguments: object, **keywords: object) -> None:
    keywords = {"settings": QUICK, "method": "ce", "quiet": True} | keywords
    with pytest.raises(LmdError, match=match):
        train(*arguments, **keywords)  # type: ignore[arg-type]


def test_an_error_is_one_message_without_traceback(tmp_path: Path) -> None:
    done = run("train", str(tmp_path / "nowhere"))
    assert done.returncode == 1
    assert "nowhere does not exist" in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_errors_exit_with_2() -> None:
    done = run("train", "--no-such-option")
    assert done.returncode == 2
    assert "no-such-option" in done.stderr


def test_missing_path(tmp_path: Path) -> None:
    fails("nowhere does not exist", tmp_path / "nowhere", out=tmp_path / "run")


def test_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    fails("there is no image in a class folder", tmp_path / "data", out=tmp_path / "run")


def test_truncated_image_is_named_and_can_be_skipped(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", {"a": 12, "b": 12})
    bad = data / "a" / "7.png"
    bad.write_bytes(bad.read_bytes()[:60])
    fails(r"7\.png(.|\n)*--skip-bad", data, out=tmp_path / "run")
    done = train(data, method="ce", settings=QUICK, out=tmp_path / "b", skip_bad=True, quiet=True)
    record = done.record
    assert len(record.data.skipped) == 1
    assert "7.png" in record.data.skipped[0]
    assert any("1 images could not be used" in note for note in record.notes)


def test_label_column_not_there(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("image,dx\na.png,mel\n")
    fails(r"label(.|\n)*dx", tmp_path / "m.csv", out=tmp_path / "run")


def test_class_too_small_for_the_split(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", {"common": 20, "rare": 2})
    fails(r"rare(.|\n)*2", data, out=tmp_path / "run")


def test_one_class_only(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "data", {"only": 12})
    fails("one class", data, out=tmp_path / "run")


def test_unknown_method_lists_the_valid_ones(tmp_path: Path) -> None:
    fails(r"unknown method 'nope'; choose one of ce", "synthetic", method="nope")


def test_unknown_setting_lists_the_valid_ones(tmp_path: Path) -> None:
    fails(r"unknown setting 'epoch'(.|\n)*epochs", "synthetic", settings={"epoch": 3})
    fails(
        r"unknown setting 'lambda1'(.|\n)*lambda_1", "synthetic", method="lmd",
        settings={"lambda1": 3},
    )  # fmt: skip


def test_a_wrong_value_is_named(tmp_path: Path) -> None:
    fails(r"'epochs'(.|\n)*-1", "synthetic", settings={"epochs": -1})


def test_unknown_protocol_and_profile(tmp_path: Path) -> None:
    fails(r"unknown protocol 'nope'(.|\n)*demo", "synthetic", protocol="nope")
    fails(r"unknown profile 'nope'", "synthetic", method="lmd", profile="nope", settings={})
    (tmp_path / "p.toml").write_text("epochs = ")
    fails("not valid TOML", "synthetic", protocol=tmp_path / "p.toml")


def test_an_existing_run_is_never_overwritten_unasked(tmp_path: Path, trained: Path) -> None:
    before = (trained / "record.json").read_bytes()
    fails(
        r"already holds a run(.|\n)*--resume(.|\n)*--overwrite",
        trained.parent / "toy.npz",
        out=trained,
    )
    assert (trained / "record.json").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    fails("not a run folder", trained.parent / "toy.npz", out=tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"


def test_a_run_killed_before_its_record_can_start_again(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    data = write_npz(tmp_path / "toy.npz")
    done = train(data, method="ce", settings=QUICK, out=tmp_path / "run", resume=True, quiet=True)
    assert done.record.status == "finished"


def test_resume_refuses_other_settings(trained: Path) -> None:
    fails(
        r"other settings(.|\n)*method: ce → rs", trained.parent / "toy.npz", method="rs",
        out=trained, resume=True,
    )  # fmt: skip


def test_resume_of_a_finished_run_changes_nothing(trained: Path) -> None:
    before = (trained / "model.safetensors").stat().st_mtime_ns
    assert train(out=trained, resume=True, quiet=True).path == trained
    assert (trained / "model.safetensors").stat().st_mtime_ns == before


def test_resume_of_nothing_needs_data(tmp_path: Path) -> None:
    fails("no run to resume", None, out=tmp_path / "run", resume=True)
    fails("give DATA", None, out=tmp_path / "run")


def test_a_model_that_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(LmdError, match=r"model\.json"):
        lmd.load(tmp_path)
    with pytest.raises(LmdError, match="nowhere"):
        lmd.load(tmp_path / "nowhere")


def test_unfinished_run_cannot_be_evaluated(tmp_path: Path) -> None:
    folder = Run.create(tmp_path / "run")
    folder.write_record(begun("run", ["a", "b"], [3, 2]))
    done = run("evaluate", str(folder.path))
    assert done.returncode == 1
    assert "--resume" in done.stderr


def test_full_disk_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    """A real refusal of the operating system: files may not grow beyond 1 MB."""
    data = write_npz(tmp_path / "toy.npz")
    out = tmp_path / "run"
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6));"
        "import sys; from lmd.cli import main; sys.argv = ['lmd', *sys.argv[1:]]; main()"
    )
    words = [sys.executable, "-c", code, "train", str(data), "--method", "ce", "--out", str(out)]
    done = subprocess.run(
        [*words, *options()], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "cannot write" in done.stderr
    assert "free some space" in done.stderr
    assert "Traceback" not in done.stderr
    again = run("train", "--resume", "--out", str(out))
    assert again.returncode == 0, again.stderr

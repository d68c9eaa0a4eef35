"""docs/decisions.md on a real run: its Python, its commands, and what they write."""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from documentation import blocks, page, run_python
from PIL import Image
from toys import toy_images
from typer.testing import CliRunner

import lmd
from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.decisions.decide import Decide
from lmd.decisions.policy import describe_guarantees
from lmd.evaluation.evaluate import rescore

PAGE = page("decisions.md")
RUN = "runs/skin-balanced_softmax-seed0"
QUICK = {"backbone": "resnet8", "weights": "none", "image_size": 16, "epochs": 2}
QUICK |= {"batch_size": 16, "workers": 0, "split": (0.5, 0.25, 0.25)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run, the images and the tables that the page speaks of."""
    folder = tmp_path_factory.mktemp("decisions")
    images = toy_images((60, 30, 10))
    for i, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        path = folder / "skin" / ("nv", "mel", "df")[label] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    (folder / "new").mkdir()
    for i, pixels in enumerate(toy_images((2, 2, 2), seed=5).pixels):
        Image.fromarray(pixels).save(folder / "new" / f"{i}.png")
    made = {"method": "balanced_softmax", "settings": QUICK, "quiet": True}
    lmd.train(folder / "skin", out=folder / RUN, **made)
    return folder


@pytest.fixture(autouse=True)
def _there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    for number, table in enumerate(blocks("decisions.md", "csv")):
        Path(("costs.csv", "table.csv")[number]).write_text(table)


def rows(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_python_of_the_page() -> None:
    names = run_python("decisions.md")
    plain, there = names["plain"].probabilities[0], names["there"].probabilities[0]
    order = names["model"].classes
    shares = np.array([names["clinic"][name] for name in order])
    np.testing.assert_allclose(there, plain * shares / (plain * shares).sum(), rtol=1e-5)
    found = names["found"]
    assert found.guarantees["nv"].level == "class"
    assert [len(names) for names in found.sets] == found.decided.sets.sum(1).tolist()


def test_the_commands_of_the_page() -> None:
    blocks = re.findall(r"```\n(lmd .*?)```", PAGE, flags=re.S)
    commands = [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]
    assert [words[0] for words in commands] == ["predict", "predict", "predict", "evaluate"]
    for words in commands:
        done = CliRunner().invoke(
            app, [*words, *(["--overwrite"] if words[0] == "predict" else [])]
        )
        assert done.exit_code == 0, (done.output, done.exception)
    assert (
        "Decisions by the least expected cost; prevalence: as in the training part" in done.output
    )
    assert "Mean cost of one image" in done.output
    assert "Prediction sets with a coverage of 80 %" in done.output
    found = rows("sets.csv")
    assert list(found[0])[:6] == ["image", "predicted", "probability", "set", "set_size", "refer"]
    for row in found:
        names = row["set"].split("|") if row["set"] else []
        assert len(names) == int(row["set_size"])
        assert row["refer"] == ("yes" if len(names) in (0, 3) else "no")
        assert float(row["probability"]) == float(row[f"p:{row['predicted']}"])
    assert "set" not in rows("clinic.csv")[0]
    report = (Path(RUN) / "report.html").read_text(encoding="utf-8")
    assert "What a decision is worth" in report
    rescore(Path(RUN))  # as it was


def test_a_dear_class_is_decided_more_often_and_referral_has_a_price() -> None:
    model, images = lmd.load(RUN), sorted(Path("skin").rglob("*.png"))
    plain = model.predict(images)
    dear = model.predict(images, costs="costs.csv")
    assert dear.labels.count("mel") > plain.labels.count("mel")
    assert (dear.probabilities == plain.probabilities).all()
    priced = model.predict(images, costs=Path("table.csv"))
    assert priced.policy.refers
    assert priced.labels == dear.labels
    expected = plain.probabilities.astype(float) @ priced.policy.costs.table  # type: ignore[union-attr]
    assert (priced.decided.refer == (expected.min(1) > 0.5)).all()


def test_a_folder_alone_and_an_onnx_file_can_do_it_too(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="the extra 'onnx' is not installed")
    pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")
    from lmd.export.export import export_onnx

    for name in ("model.json", "model.safetensors"):
        (tmp_path / name).write_bytes((Path(RUN) / name).read_bytes())
    images = sorted(Path("new").glob("*.png"))
    decide = {"prevalence": "training", "coverage": 0.8, "costs": "costs.csv"}
    expected = lmd.load(RUN).predict(images, **decide)
    for path in (tmp_path, export_onnx(tmp_path, tmp_path / "model.onnx")):
        found = lmd.load(path).predict(images, **decide)
        np.testing.assert_allclose(found.probabilities, expected.probabilities, atol=1e-4)
        assert found.guarantees == expected.guarantees
        assert found.labels == expected.labels


def test_the_sets_of_the_file_are_those_of_the_record() -> None:
    model = lmd.load(RUN)
    record = rescore(Path(RUN), resamples=10)
    found = model.predict([], coverage=0.9)
    assert record.sets is not None
    for one, name in zip(record.sets.per_class, model.classes, strict=True):
        assert np.float32(found.guarantees[name].threshold) == np.float32(one.threshold)
        assert found.guarantees[name].level == one.guarantee


def test_a_patient_counts_once_from_the_data_to_the_model_file(tmp_path: Path) -> None:
    lines = ["image,label,group"]
    for number, path in enumerate(sorted(Path("skin").rglob("*.png"))):
        lines.append(f"{path},{path.parent.name},patient {number // 4}")
    (tmp_path / "skin.csv").write_text("\n".join(lines))
    out, root = tmp_path / "run", {"root": str(Path.cwd())}
    made = {"method": "balanced_softmax", "settings": QUICK, "columns": root, "quiet": True}
    lmd.train(tmp_path / "skin.csv", out=out, **made)
    sets = rescore(out, decide=Decide(coverage=0.6)).sets
    assert sets is not None
    found = lmd.load(out).predict([], coverage=0.6).guarantees
    for one in sets.per_class:
        assert (found[one.name].images, found[one.name].groups) == (one.images, one.group_count)
    nv = found["nv"]
    assert nv.level == "class"
    assert nv.groups == pytest.approx(nv.images / 4, abs=1)
    lines = describe_guarantees([nv], ["nv"], 0.6)
    assert f"validation images of {nv.groups} patients or lesions: " in lines[1]


def test_mistakes_leave_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    record = (Path(RUN) / "record.json").read_bytes()
    for words, message in (
        (["--prevalence", "nv=1"], "no value for "),
        (["--coverage", "95"], "--coverage must be above 0 and below 1"),
        (["--refer-above", "2"], "--refer-above needs --coverage"),
        (["--costs", "nowhere.csv"], "nowhere.csv cannot be read"),
    ):
        for command in (["predict", RUN, "new", "--out", str(out)], ["evaluate", RUN]):
            done = CliRunner().invoke(app, [*command, *words])
            assert isinstance(done.exception, LmdError)
            assert message in str(done.exception)
    assert not out.exists()
    assert (Path(RUN) / "record.json").read_bytes() == record


def test_the_guarantees_in_words() -> None:
    found = lmd.load(RUN).predict([], coverage=0.9).guarantees
    lines = describe_guarantees(list(found.values()), list(found), 0.9)
    assert lines[0] == "Prediction sets with a coverage of 90 %, guaranteed for"
    assert any("images of the class (by 15 validation images: " in line for line in lines)
    assert len(lines) == 4

"""Several runs side by side: paired on the same images, refused on others."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pytest
from pages import page, report_of, shown
from runs_on_disk import SKIN, edited, edited_arrays, make_run
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.evaluation.evaluate import rescore


def test_compares_runs_on_the_same_images(tmp_path: Path) -> None:
    mine = make_run(tmp_path / "lmd", SKIN)
    theirs = make_run(tmp_path / "ce", SKIN, skill=1.0, tail_loss=0.5, title="CE")
    path = report_of(tmp_path / "lmd", compare=[tmp_path / "ce"])
    text = page(path).text
    assert "Side by side" in text
    for record in (mine, theirs):
        for found in record.metrics["test"].values():
            assert shown(found.value) in text or f"{found.value:.3f}" in text
        for row in record.per_class["test"]:
            assert shown(row.recall.value) in text
    first, second = (record.metrics["test"]["balanced_accuracy"].value for record in (mine, theirs))
    gap = 100 * (first - second)
    assert f"Balanced accuracy {gap:+.1f} " in " ".join(text.split())
    assert "corrected for the number of metrics of a pair (Holm)" in text


def test_comparison_does_not_depend_on_the_order_of_images_or_classes(tmp_path: Path) -> None:
    make_run(tmp_path / "lmd", SKIN)
    make_run(tmp_path / "ce", SKIN, skill=1.0, title="CE")
    before = report_of(tmp_path / "lmd", compare=[tmp_path / "ce"]).read_text(encoding="utf-8")
    classes = np.random.default_rng(2).permutation(len(SKIN))
    with edited_arrays(tmp_path / "ce") as arrays:
        order = np.random.default_rng(1).permutation(len(arrays["test_ids"]))
        arrays["classes"] = arrays["classes"][classes]
        arrays["test_ids"] = arrays["test_ids"][order]
        arrays["test_labels"] = np.argsort(classes)[arrays["test_labels"][order]]
        arrays["test_probabilities"] = arrays["test_probabilities"][order][:, classes]
    with edited(tmp_path / "ce") as record:
        record["data"]["classes"] = [SKIN[k] for k in classes]
    after = report_of(tmp_path / "lmd", compare=[tmp_path / "ce"]).read_text(encoding="utf-8")
    assert after == before


def test_refuses_to_compare_other_images(tmp_path: Path) -> None:
    make_run(tmp_path / "lmd", SKIN)
    make_run(tmp_path / "classes", ["a", "b"])
    with pytest.raises(LmdError, match="other classes"):
        report_of(tmp_path / "lmd", compare=[tmp_path / "classes"])
    make_run(tmp_path / "images", SKIN)
    with edited_arrays(tmp_path / "images") as arrays:
        arrays["test_ids"][0] = "test/other.jpg"
    with pytest.raises(LmdError, match="scored on other images"):
        report_of(tmp_path / "lmd", compare=[tmp_path / "images"])
    (tmp_path / "images" / "predictions.npz").unlink()
    with pytest.raises(LmdError, match="scored test part"):
        report_of(tmp_path / "lmd", compare=[tmp_path / "images"])
    assert not (tmp_path / "lmd" / "report.html").exists()


def test_patients_are_counted_and_drawn_together(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, run in enumerate(runs):
        make_run(run, ["common", "middle", "rare"], seed=seed)
    alone = unescape(report_of(runs[0], compare=runs[1:]).read_text())
    assert "drawn one by one" in alone
    assert "one patient or lesion" not in alone
    for run in runs:
        with edited_arrays(run) as arrays:
            for part in ("validation", "test"):
                arrays[f"{part}_groups"] = np.arange(len(arrays[f"{part}_labels"])) // 5
        record = rescore(run, resamples=100)
    together = unescape(report_of(runs[0], compare=runs[1:]).read_text())
    assert "drawn by patient or lesion" in together
    assert "Images of one patient or lesion count for less" in together
    assert record.definitions["interval"].definition in together
    for row in record.per_class["test"]:
        assert row.units is not None
        assert row.units < row.support
        assert f"({row.units})" in together
    # The paired difference knows the patients too.
    gaps = [
        re.findall(r'<table class="gaps sortable">.*?</table>', text, re.S)
        for text in (alone, together)
    ]
    assert len(gaps[0]) == 1
    assert gaps[0] != gaps[1]


def test_evaluate_against_writes_what_it_says_into_the_report(tmp_path: Path) -> None:
    make_run(tmp_path / "lmd", SKIN)
    make_run(tmp_path / "ce", SKIN, skill=1.8, title="CE", seed=1)
    words = ["evaluate", str(tmp_path / "lmd"), "--against", str(tmp_path / "ce")]
    done = CliRunner().invoke(app, [*words, "--resamples", "300"])
    assert done.exit_code == 0, done.exception
    said = done.stdout.partition("lmd minus ce")[2]
    text = page(tmp_path / "lmd" / "report.html").text
    assert "Side by side" in text
    rows = re.findall(r"^  (\S.*?)  +([+-][\d.]+)   95 % .*   p [=<] ([\d.]+)$", said, re.MULTILINE)
    assert len(rows) == 8
    for title, value, p in rows:
        shown_p = f"< {p}" if f"p < {p}" in said and p == "0.001" else p
        points = f"{float(value):+.1f}".replace("-", "−")
        assert re.search(rf"{re.escape(title)} {re.escape(points)} \S+ to \S+ {shown_p} ", text)
    assert text.count("the same as balanced accuracy") == said.count("the same as") == 1
    few = "too few images"
    assert text.count(f"none: {few} –") == said.count(f"no interval: {few}\n") == 3
    # A comparison that is refused changes nothing.
    before = (tmp_path / "lmd" / "report.html").read_bytes()
    make_run(tmp_path / "other", ["a", "b"])
    refused = CliRunner().invoke(app, [*words[:3], str(tmp_path / "other")])
    assert isinstance(refused.exception, LmdError)
    assert refused.stdout == ""
    assert (tmp_path / "lmd" / "report.html").read_bytes() == before

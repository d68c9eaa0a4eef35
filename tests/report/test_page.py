"""The report: complete, self-contained, true to the record, and safe with any class name."""

import csv
import json
import re
import subprocess
import sys
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.report import write_report
from lmd.report.calibration import reliability_bins
from lmd.report.charts import CountRow, DotRow, Point, count_bars, dots
from lmd.report.curves import nice_ticks
from lmd.runs.rescore import rescore
from lmd.scoring.definitions import definitions
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample
from lmd.scoring.scores import score
from lmd.scoring.tiers import assign_tiers

SKIN = [
    "melanocytic nevus",
    "melanoma",
    "benign keratosis",
    "basal cell carcinoma",
    "actinic keratosis and intraepithelial carcinoma (Bowen's disease)",
    "squamous cell carcinoma",
    "vascular lesion",
    "dermatofibroma",
]
VOID = {"meta", "br", "img", "hr", "link", "input"}


def make_run(
    folder: Path,
    classes: list[str],
    *,
    skill: float = 2.0,
    tail_loss: float = 2.0,
    absent: tuple[int, ...] = (),
    epochs: tuple[int, ...] = (30, 20),
    title: str = "LMD",
    seed: int = 0,
) -> dict[str, Any]:
    """A run folder as training leaves it; the test images depend on the classes alone."""
    size = len(classes)
    train = np.maximum(1000 * 100.0 ** -(np.arange(size) / max(size - 1, 1)), 1).astype(int)
    tiers = assign_tiers(train.tolist(), classes, "thirds")
    generator = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"classes": np.array(classes)}
    counts = {"train": train.tolist()}
    found: dict[str, Any] = {"metrics": {}, "per_class": {}, "confusion": {}}
    notes = []
    for part, share in (("validation", 10), ("test", 4)):
        support = np.maximum(train // share, 3)
        support[list(absent)] = 0
        labels = np.repeat(np.arange(size), support)
        logits = generator.normal(size=(len(labels), size)) + 0.6 * np.log(train / train.min() + 1)
        logits[np.arange(len(labels)), labels] += skill + tail_loss * labels / size
        probabilities = np.exp(1.4 * logits)
        probabilities /= probabilities.sum(1, keepdims=True)
        probabilities = probabilities.astype(np.float32)
        arrays[f"{part}_ids"] = np.array([f"{part}/{i:05}.jpg" for i in range(len(labels))])
        arrays[f"{part}_labels"] = labels
        arrays[f"{part}_probabilities"] = probabilities
        counts[part] = support.tolist()
        scores = score(labels, probabilities, classes, tiers, train, resamples=100, part=part)
        one = scores.model_dump()
        for key, parts in found.items():
            parts[part] = one[key]
        notes += one["notes"]
    record = {
        "format": 1,
        "status": "finished",
        "name": folder.name,
        "created": "2026-03-02T09:15:00+00:00",
        "finished": "2026-03-02T10:41:12+00:00",
        "lmd_version": "0.1.0",
        "commit": "55a4177c0ffe",
        "command": f"lmd train images/ --method lmd --out runs/{folder.name}",
        "method": {
            "key": "lmd",
            "title": title,
            "paper": "Long-tailed medical diagnosis, section 3",
            "note": "A reconstruction: the paper leaves the warm-up open.",
            "profile": "default",
            "settings": {"lambda_1": 10.0, "gram": "normalised", "rrl": True},
        },
        "protocol": {"image_size": 224, "epochs": 30, "split": [0.7, 0.1, 0.2], "head_size": None},
        "data": {
            "source": "images/",
            "kind": "folder",
            "synthetic": False,
            "fingerprint": "sha256:9d1f6c2ab4",
            "classes": classes,
            "counts": counts,
            "imbalance_factor": float(train.max() / train.min()),
            "grouped": True,
            "skipped": [],
        },
        "groups": {"rule": tiers.rule, "assignment": list(tiers.assignment)},
        "model": {
            "backbone": "resnet18",
            "weights": "imagenet",
            "head": "linear",
            "feature_dim": 512,
            "parameters": 11180616,
            "selected": "The model after the last epoch is reported.",
        },
        "stages": [{"name": "RRL", "epochs": epochs[0], "seconds": 3012.5}],
        **found,
        "definitions": definitions(100),
        "notes": notes,
        "timings": {"decode": 41.2, "train": 5071.0},
        "machine": {"python": "3.11.9", "torch": "2.6.0", "device": "cpu", "threads": 2},
    }
    folder.mkdir(parents=True)
    save(folder, record)
    np.savez_compressed(folder / "predictions.npz", **arrays)
    write_history(folder, epochs, generator)
    return record


def write_history(folder: Path, epochs: tuple[int, ...], generator: np.random.Generator) -> None:
    names, terms = ("RRL", "ICC"), ("loss", "ce", "relation", "fdc")
    with (folder / "history.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["stage", "stage_name", "epoch", "lr", "seconds", "val_bacc", *terms])
        for stage, count in enumerate(epochs):
            for epoch in range(1, count + 1):
                fall = 2 * np.exp(-epoch / 8) + 0.05 * generator.random()
                values = [f"{fall:.4f}", f"{0.8 * fall:.4f}"]
                values += ["", f"{-20 + 10 * fall:.4f}"] if stage else [f"{0.2 * fall:.4f}", ""]
                bacc = "" if epoch == 1 else f"{0.75 - 0.2 * fall / 2 + 0.03 * stage:.4f}"
                writer.writerow([stage + 1, names[stage], epoch, 0.01, 60.2, bacc, *values])


def save(folder: Path, record: dict[str, Any]) -> None:
    (folder / "record.json").write_text(json.dumps(record), encoding="utf-8")


class Page(HTMLParser):
    """Parses a page strictly: every element is closed, in order; ids are unique."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.stack, f"never closed: {self.stack}"
        assert len(self.ids) == len(set(self.ids)), "an id is used twice"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.stack.append(tag)
        self.ids += [value or "" for key, value in attrs if key == "id"]
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.stack and self.stack[-1] not in {"style", "script"}:
            self.words.append(data)


def page(path: Path) -> Page:
    return Page(path.read_text(encoding="utf-8"))


def shown(value: float) -> str:
    # ``Page.text`` has plain spaces only.
    return f"{100 * value:.1f} %"


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("report") / "lmd"
    record = make_run(folder, SKIN)
    write_report(folder)
    return folder, record


def test_makes_no_request(eight: tuple[Path, dict[str, Any]]) -> None:
    html = (eight[0] / "report.html").read_text(encoding="utf-8")
    assert "http://" not in html
    assert "https://" not in html
    assert "url(" not in html
    assert "@import" not in html
    for tag, key, value in page(eight[0] / "report.html").attributes:
        assert key not in {"src", "srcset", "data", "action"}, (tag, key, value)
        assert tag != "link"
        if "href" in key:
            assert value.startswith("#"), value
    # Only data go in, nothing that depends on when or how often the report is made.
    write_report(eight[0])
    assert (eight[0] / "report.html").read_text(encoding="utf-8") == html
    assert sorted(f.name for f in eight[0].iterdir()) == [
        "history.csv",
        "predictions.npz",
        "record.json",
        "report.html",
    ]


def test_links_of_the_page_lead_somewhere(eight: tuple[Path, dict[str, Any]]) -> None:
    found = page(eight[0] / "report.html")
    for _, key, value in found.attributes:
        if key == "href":
            assert value[1:] in found.ids
        if key == "aria-labelledby":
            assert set(value.split()) <= set(found.ids)


def test_shows_the_records_values(eight: tuple[Path, dict[str, Any]]) -> None:
    folder, record = eight
    text = page(folder / "report.html").text
    metrics = record["metrics"]["test"]
    for key in ("balanced_accuracy", "accuracy", "macro_f1", "bacc_head", "bacc_tail"):
        low, high = 100 * metrics[key]["low"], metrics[key]["high"]
        assert shown(metrics[key]["value"]) in text, key
        assert f"{low:.1f}–{shown(high)}" in text, key
    for key in ("auc", "kappa", "mcc", "ece"):
        assert f"{metrics[key]['value']:.3f}" in text, key
    for row in record["per_class"]["test"]:
        assert row["name"] in text
        for key in ("recall", "precision", "f1"):
            assert shown(row[key]["value"]) in text
            assert f"{100 * row[key]['low']:.1f}–{shown(row[key]['high'])}" in text
    for key in metrics:
        assert record["definitions"][key]["title"] in text
        assert record["definitions"][key]["definition"] in text
    for note in (record["method"]["note"], *record["notes"]):
        assert note in text[: text.index("How many images each class has")]
    for words in ("55a4177c0ffe", "sha256:9d1f6c2ab4", record["command"], record["groups"]["rule"]):
        assert words in text
    assert "1 h 24 min" in text
    assert "Synthetic data." not in text


def test_charts_carry_the_records_intervals(eight: tuple[Path, dict[str, Any]]) -> None:
    folder, record = eight
    text = page(folder / "report.html").text
    for group in ("head", "medium", "tail"):
        triple = record["metrics"]["test"][f"bacc_{group}"]
        ends = f"{shown(triple['low'])} to {shown(triple['high'])}"
        assert f"{group}: {shown(triple['value'])} (95 % interval {ends})" in text
    for row in record["per_class"]["test"]:
        triple = row["recall"]
        ends = f"{shown(triple['low'])} to {shown(triple['high'])}"
        words = f"{row['name']}: {shown(triple['value'])} (95 % interval {ends})"
        assert f"{words}, {row['support']} images" in text


def test_marks_lie_where_their_values_are() -> None:
    def drawn(value: float, low: float, high: float) -> tuple[float, float, float]:
        row = DotRow("a", [], [Point(value, low, high, "head", "circle", "")])
        found = Page(dots("x", "title", [row], 980.0))
        centre = next(
            float(v) for tag, key, v in found.attributes if (tag, key) == ("circle", "cx")
        )
        whisker = [i for i, a in enumerate(found.attributes) if a[1:] == ("class", "whisker head")]
        line = dict(a[1:] for a in found.attributes[whisker[0] - 4 : whisker[0]])
        return centre, float(line["x1"]), float(line["x2"])

    zero, one = drawn(0, 0, 0)[0], drawn(1, 1, 1)[0]
    assert one > zero + 300
    at = [zero + share * (one - zero) for share in (0.5, 0.25, 0.875)]
    assert drawn(0.5, 0.25, 0.875) == pytest.approx(at, abs=0.02)


def test_bars_are_logarithmic() -> None:
    counts = (1000, 100, 10, 1, 0)
    rows = [CountRow(f"class {n}", "head", n, None, 0) for n in counts]
    found = Page(count_bars("x", rows, 980.0))
    widths = [float(v) for tag, key, v in found.attributes if (tag, key) == ("rect", "width")]
    assert widths[1] == pytest.approx(widths[0] * 2 / 3, abs=0.02)
    assert widths[2] == pytest.approx(widths[0] / 3, abs=0.02)
    assert 0 < widths[3] < 5, "one image is still to be seen"
    assert widths[4] == 0


def test_confusion_matrix_is_sorted_and_complete(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["rare", "common"])
    record["data"]["counts"]["train"] = [10, 500]
    record["confusion"]["test"] = [[3, 4], [17, 233]]
    save(tmp_path / "run", record)
    text = page(write_report(tmp_path / "run")).text
    for words in (
        "true rare, predicted rare: 3 of 7 (42.9 %)",
        "true rare, predicted common: 4 of 7 (57.1 %)",
        "true common, predicted rare: 17 of 250 (6.8 %)",
        "true common, predicted common: 233 of 250 (93.2 %)",
    ):
        assert words in text
    assert text.index("true common, predicted common") < text.index("true rare, predicted rare")


def test_summary_names_the_weak_classes(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN)
    for row, recall in zip(
        record["per_class"]["test"], [0.9, 0.31, 0.8, 0.7, 0.12, 0.6, 0.5, 0.75], strict=True
    ):
        row["recall"] = {"value": recall, "low": recall - 0.1, "high": recall + 0.1}
    for row in record["confusion"]["test"]:
        row[6] = 0
    record["confusion"]["test"][4] = [3, 9, 2, 1, 2, 0, 0, 0]
    save(tmp_path / "run", record)
    text = page(write_report(tmp_path / "run")).text
    assert f"2 of 8 classes have recall below 50 %: {SKIN[4]} (12 %) and {SKIN[1]} (31 %)." in text


@pytest.mark.parametrize("size", [2, 3, 23])
def test_any_number_of_classes(tmp_path: Path, size: int) -> None:
    classes = [f"finding number {k} of the upper gastrointestinal tract" for k in range(size)]
    record = make_run(tmp_path / "run", classes)
    found = page(write_report(tmp_path / "run"))
    for row in record["per_class"]["test"]:
        assert row["name"] in found.text
    last = found.text.count(f"true {classes[-1]}, predicted ")
    assert last == 2 * size, "one tooltip for each cell, drawn for desk and phone"


def test_class_names_are_only_text(tmp_path: Path) -> None:
    evil = [
        "<script>alert(1)</script>",
        "\"><img src=x onerror='alert(2)'>",
        "a & b </title></svg></style>{{ 7 * 7 }}",
        "plain",
    ]
    record = make_run(tmp_path / "run", evil)
    record["notes"] = ["<b onclick=alert(3)>note</b>"]
    record["method"]["title"] = "<i>LMD</i>"
    record["data"]["source"] = "</p><script>x</script>"
    save(tmp_path / "run", record)
    make_run(tmp_path / "other", evil, title="<u>CE</u>")
    path = write_report(tmp_path / "run", compare=[tmp_path / "other"])
    found = page(path)
    assert all(not key.startswith("on") and key != "src" for _, key, _ in found.attributes)
    html = path.read_text(encoding="utf-8")
    assert html.count("<script>") == 1
    for words in ("<img", "<b onclick", "<i>LMD", "<u>CE"):
        assert words not in html
    for name in evil:
        assert " ".join(name.split()) in found.text
        assert name in unescape(html)


def test_groups_from_outside_cannot_leave_their_attribute(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["a", "b", "c"])
    for row in record["per_class"]["test"]:
        row["group"] = '"><script>alert(1)</script>'
    save(tmp_path / "run", record)
    assert write_report(tmp_path / "run").read_text(encoding="utf-8").count("<script>") == 1


def test_absent_classes_and_null_values(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN, absent=(3, 7))
    assert record["per_class"]["test"][3]["recall"]["value"] is None
    text = page(write_report(tmp_path / "run")).text
    assert f"Nothing is known about {SKIN[3]} and {SKIN[7]}: no image in this part." in text
    record["metrics"]["test"]["auc"] = None
    record["metrics"]["test"]["kappa"] = {"value": None, "low": None, "high": None}
    record["per_class"]["test"][0]["precision"] = None
    save(tmp_path / "run", record)
    write_report(tmp_path / "run")


def test_without_a_test_part_the_validation_part_is_shown_and_said_so(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN)
    for key in ("metrics", "per_class", "confusion"):
        del record[key]["test"]
    record["data"]["counts"].pop("test")
    save(tmp_path / "run", record)
    text = page(write_report(tmp_path / "run")).text
    assert "Validation, not test." in text
    assert shown(record["metrics"]["validation"]["balanced_accuracy"]["value"]) in text


def test_a_run_that_has_just_begun(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", SKIN)
    for key in ("metrics", "per_class", "confusion", "definitions", "notes", "finished", "timings"):
        record.pop(key)
    record["status"] = "running"
    save(tmp_path / "run", record)
    (tmp_path / "run" / "predictions.npz").unlink()
    (tmp_path / "run" / "history.csv").unlink()
    text = page(write_report(tmp_path / "run")).text
    assert "Not finished." in text
    assert "no result to show" in text
    assert "no history" in text


def test_patients_are_counted_and_drawn_together(tmp_path: Path) -> None:
    runs = [tmp_path / "a", tmp_path / "b"]
    for seed, run in enumerate(runs):
        record = make_run(run, ["common", "middle", "rare"], seed=seed)
        record["data"]["notes"] = []
        save(run, record)
    alone = unescape(write_report(runs[0], compare=runs[1:]).read_text())
    assert "drawn one by one" in alone
    assert "one patient or lesion" not in alone
    for run in runs:
        arrays = dict(np.load(run / "predictions.npz"))
        for part in ("validation", "test"):
            arrays[f"{part}_groups"] = np.arange(len(arrays[f"{part}_labels"])) // 5
        np.savez(run / "predictions.npz", **arrays)
        record = rescore(run, resamples=100)
    page = unescape(write_report(runs[0], compare=runs[1:]).read_text())
    assert "drawn by patient or lesion" in page
    assert "Images of one patient or lesion count for less" in page
    assert record["definitions"]["interval"]["definition"] in page
    for row in record["per_class"]["test"]:
        assert row["units"] < row["support"]
        assert f"({row['units']})" in page
    # The paired difference knows the patients too.
    gaps = [
        re.findall(r"95 % interval .*? \(paired bootstrap\)", text)[0] for text in (alone, page)
    ]
    assert gaps[0] != gaps[1]


def test_synthetic_data_are_announced(tmp_path: Path) -> None:
    record = make_run(tmp_path / "run", ["a", "b"])
    record["data"]["synthetic"] = True
    save(tmp_path / "run", record)
    assert "Synthetic data." in page(write_report(tmp_path / "run")).text


@pytest.mark.parametrize(("epochs", "lines"), [((1,), 0), ((2,), 3), ((3, 2), 7)])
def test_learning_curves_draw_every_term(
    tmp_path: Path, epochs: tuple[int, ...], lines: int
) -> None:
    make_run(tmp_path / "run", ["a", "b"], epochs=epochs)
    found = page(write_report(tmp_path / "run"))
    drawn = [v for tag, key, v in found.attributes if tag == "polyline" and key == "points"]
    # Each term is one line in each stage that has it; a single epoch is only a dot. Balanced
    # accuracy lacks the first epoch of a stage.
    assert len(drawn) == lines
    boundaries = [v for tag, key, v in found.attributes if key == "class" and v == "boundary"]
    assert bool(boundaries) == (len(epochs) > 1)
    assert ("fdc" in found.text) == (len(epochs) > 1)


def test_compares_runs_on_the_same_images(tmp_path: Path) -> None:
    mine = make_run(tmp_path / "lmd", SKIN)
    theirs = make_run(tmp_path / "ce", SKIN, skill=1.0, tail_loss=0.5, title="CE")
    path = write_report(tmp_path / "lmd", compare=[tmp_path / "ce"])
    text = page(path).text
    assert "Side by side" in text
    for record in (mine, theirs):
        for triple in record["metrics"]["test"].values():
            value = triple["value"]
            assert shown(value) in text or f"{value:.3f}" in text
        for row in record["per_class"]["test"]:
            assert shown(row["recall"]["value"]) in text
    gap = 100 * (
        mine["metrics"]["test"]["balanced_accuracy"]["value"]
        - theirs["metrics"]["test"]["balanced_accuracy"]["value"]
    )
    assert f"Balanced accuracy: {gap:+.1f} points" in text
    assert "not corrected for the number of comparisons" in text


def test_comparison_does_not_depend_on_the_order_of_images_or_classes(tmp_path: Path) -> None:
    make_run(tmp_path / "lmd", SKIN)
    theirs = make_run(tmp_path / "ce", SKIN, skill=1.0, title="CE")
    before = write_report(tmp_path / "lmd", compare=[tmp_path / "ce"]).read_text(encoding="utf-8")
    with np.load(tmp_path / "ce" / "predictions.npz") as file:
        arrays = dict(file)
    order = np.random.default_rng(1).permutation(len(arrays["test_ids"]))
    classes = np.random.default_rng(2).permutation(len(SKIN))
    arrays["classes"] = arrays["classes"][classes]
    arrays["test_ids"] = arrays["test_ids"][order]
    arrays["test_labels"] = np.argsort(classes)[arrays["test_labels"][order]]
    arrays["test_probabilities"] = arrays["test_probabilities"][order][:, classes]
    np.savez(tmp_path / "ce" / "predictions.npz", **arrays)
    theirs["data"]["classes"] = [SKIN[k] for k in classes]
    save(tmp_path / "ce", theirs)
    after = write_report(tmp_path / "lmd", compare=[tmp_path / "ce"]).read_text(encoding="utf-8")
    assert after == before


def test_refuses_to_compare_other_images(tmp_path: Path) -> None:
    make_run(tmp_path / "lmd", SKIN)
    make_run(tmp_path / "classes", ["a", "b"])
    with pytest.raises(LmdError, match="other classes"):
        write_report(tmp_path / "lmd", compare=[tmp_path / "classes"])
    make_run(tmp_path / "images", SKIN)
    with np.load(tmp_path / "images" / "predictions.npz") as file:
        arrays = dict(file)
    arrays["test_ids"][0] = "test/other.jpg"
    np.savez(tmp_path / "images" / "predictions.npz", **arrays)
    with pytest.raises(LmdError, match="tested on other images"):
        write_report(tmp_path / "lmd", compare=[tmp_path / "images"])
    (tmp_path / "images" / "predictions.npz").unlink()
    with pytest.raises(LmdError, match="test part was scored"):
        write_report(tmp_path / "lmd", compare=[tmp_path / "images"])
    assert not (tmp_path / "lmd" / "report.html").exists()


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(LmdError, match=r"no record\.json"):
        write_report(tmp_path)
    (tmp_path / "record.json").write_text("{", encoding="utf-8")
    with pytest.raises(LmdError, match="not valid JSON"):
        write_report(tmp_path)
    save(tmp_path, {"format": 2})
    with pytest.raises(LmdError, match="format must be 1, it is 2"):
        write_report(tmp_path)
    save(tmp_path, {"format": 1})
    (tmp_path / "predictions.npz").write_bytes(b"not a zip file")
    with pytest.raises(LmdError, match=r"predictions\.npz cannot be read"):
        write_report(tmp_path)


def test_bins_drawn_are_those_of_the_calibration_error() -> None:
    generator = np.random.default_rng(3)
    probabilities = generator.dirichlet([0.4] * 5, size=400).astype(np.float32)
    probabilities[0] = [0, 0, 1, 0, 0]
    labels = generator.integers(5, size=400)
    sample = Sample(labels, probabilities)
    bins = reliability_bins(sample)
    assert sum(each.count for each in bins) == 400
    error = sum(each.count * abs(each.accuracy - each.confidence) for each in bins) / 400
    assert error == pytest.approx(METRICS["ece"].value(sample), abs=1e-9)
    for each in bins:
        if each.count:
            assert each.left <= each.confidence <= each.right
            assert each.low <= each.accuracy <= each.high


@pytest.mark.parametrize(
    ("low", "high"), [(0.0, 1.0), (-19.3, -2.2), (5.0, 5.0), (0.0, 0.0), (1e-7, 3e-7), (1, 1e6)]
)
def test_ticks_enclose_the_values(low: float, high: float) -> None:
    ticks = nice_ticks(low, high)
    assert ticks[0] <= low <= high <= ticks[-1]
    assert 2 <= len(ticks) <= 7
    assert ticks == sorted(set(ticks))


def test_imports_stay_light() -> None:
    code = (
        "import sys, lmd.report; "
        "heavy = {'torch', 'lmd.methods', 'lmd.training', 'matplotlib'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""Figures from run folders and records: files, numbers, rows and errors."""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from runs_on_disk import SKIN, edited, make_run
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.benchmark.figures.comparison import cost_figure
from lmd.benchmark.figures.critical import critical_figure
from lmd.benchmark.figures.series import Request, read_study
from lmd.benchmark.figures.style import drawing, inches, need, save
from lmd.benchmark.figures.sweep import recall_figure, sweep_figure
from lmd.cli.commands import app
from lmd.runs.folder import read_record

CLASSES = SKIN[:3]


def run_of(folder: Path, key: str, *, seed: int = 0, skill: float = 2.0, **settings: Any) -> Path:
    """A finished run of a method with these settings."""
    make_run(folder, CLASSES, skill=skill, epochs=(2,), seed=seed, title=key.upper())
    with edited(folder) as record:
        record["method"]["key"] = key
        record["method"]["settings"] |= settings
        record["protocol"]["seed"] = seed
        record["stages"][0]["seconds"] = 600.0 * skill
    return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three methods, the third an ablation of the second, with two seeds."""
    folder = tmp_path_factory.mktemp("study")
    for seed in (0, 1):
        for key, skill in (("ce", 0.5), ("lmd", 3.0), ("lmd_wo_rrl", 1.5)):
            run_of(folder / f"{key}-seed{seed}", key, seed=seed, skill=skill)
    return folder


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def draw(words: Sequence[str]) -> str:
    done = CliRunner().invoke(app, ["figure", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
def test_recall_has_the_numbers_of_the_record(study: Path, tmp_path: Path, suffix: str) -> None:
    run, out = study / "lmd-seed0", tmp_path / f"recall.{suffix}"
    draw(["recall", str(run), "--out", str(out), "--width", "88mm"])
    rows = rows_of(tmp_path / "recall.csv")
    scores = read_record(run / "record.json").per_class["test"]
    assert [float(row["recall"]) for row in rows] == [s.recall.value for s in scores]
    assert [int(row["training_images"]) for row in rows] == [s.train for s in scores]
    data = out.read_bytes()
    if suffix == "svg":
        assert b'width="249.448819pt"' in data
        assert b"<text" not in data  # glyphs are outlines: no font is missing anywhere
    if suffix == "pdf":
        assert b"/Type0" in data  # TrueType, not the bitmaps of Type 3
        assert b"/Type3" not in data
    assert {p.name for p in tmp_path.iterdir()} == {f"recall.{suffix}", "recall.csv"}


def test_the_same_figure_has_the_same_bytes(study: Path, tmp_path: Path) -> None:
    for name in ("a.pdf", "b.pdf"):
        with drawing():
            drawn = recall_figure(Request(read_study([str(study)])))
            save(drawn, tmp_path / "new" / name)  # a folder that does not exist yet
    a, b = (tmp_path / "new" / name for name in ("a.pdf", "b.pdf"))
    assert a.read_bytes() == b.read_bytes()


def test_ablation_takes_the_rows_of_the_family(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "ablation.svg"
    said = draw(["ablation", str(study), "--out", str(out), "--metrics", "balanced_accuracy"])
    rows = rows_of(tmp_path / "ablation.csv")
    assert [row["method"] for row in rows] == ["lmd", "lmd_wo_rrl"]
    assert all(float(row["low"]) < float(row["value"]) < float(row["high"]) for row in rows)
    assert "mean over seeds" in said


def test_only_ablations_of_a_method_are_its_ablations(study: Path, tmp_path: Path) -> None:
    strong = run_of(tmp_path / "ce_strong", "ce_strong")  # a method with a similar name
    found = read_study([str(study / "ce-seed0"), str(strong)])
    assert found.reference is None
    assert found.own == frozenset()
    found = read_study([str(study), str(strong)])
    assert found.reference == "lmd"
    assert found.own == {"lmd", "lmd_wo_rrl"}
    with pytest.raises(LmdError, match="no ablations among these runs"):
        draw(["ablation", str(study), str(strong), "--reference", "ce", "--out", "x.svg"])


def test_differences_are_paired_and_ablations_are_below(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "difference.svg"
    words = ["difference", str(study), "--out", str(out)]
    assert "mean over common seeds on 1000 paired resamples" in " ".join(draw(words).split())
    rows = rows_of(tmp_path / "difference.csv")
    assert [(row["method"], row["reference"]) for row in rows] == [
        ("ce", "lmd"),
        ("lmd_wo_rrl", "lmd"),
    ]
    series = {one.key: one for one in Request(read_study([str(study)])).series()}
    mean = {key: one.mean("balanced_accuracy") or 0 for key, one in series.items()}
    for row in rows:
        assert float(row["difference"]) == pytest.approx(mean[row["method"]] - mean["lmd"])
        assert float(row["low"]) < float(row["difference"]) < float(row["high"]) < 0
        assert row["seeds"] == "2"
    words = [*words, "--reference", "ce", "--methods", "lmd", "--metric"]
    without = "A mark without a line has no interval"
    assert without not in " ".join(draw([*words, "kappa"]).split())
    (only,) = rows_of(tmp_path / "difference.csv")
    assert (only["method"], only["metric"]) == ("lmd", "kappa")
    assert float(only["low"]) > 0
    # The rarest class has three images.
    assert without in " ".join(draw([*words, "auc"]).split())
    (only,) = rows_of(tmp_path / "difference.csv")
    assert float(only["difference"]) > 0
    assert only["low"] == only["high"] == only["p"] == ""
    with pytest.raises(LmdError, match="no finished run; there are ce, lmd"):
        draw([*words, "auc", "--reference", "rs"])


def test_records_alone_give_intervals_over_seeds(study: Path, tmp_path: Path) -> None:
    for run in study.iterdir():
        (tmp_path / f"{run.name}.json").write_bytes((run / "record.json").read_bytes())
    series = {one.key: one for one in Request(read_study([str(tmp_path)])).series()}
    found, kind = series["lmd"].estimate("balanced_accuracy")
    assert found is not None
    assert found.sd is not None
    assert found.high is not None
    assert kind == "seeds (Student's t)"
    # The 97.5 % quantile of Student's t with one degree of freedom is 12.706.
    assert found.high - found.mean == pytest.approx(12.706 * found.sd / 2**0.5, rel=1e-4)


def test_cost_counts_minutes_of_all_threads(study: Path) -> None:
    with drawing():
        drawn = cost_figure(Request(read_study([str(study)])))
    minutes = {row["method"]: row["minutes"] for row in drawn.rows}
    assert minutes == {"ce": 10.0, "lmd": 60.0, "lmd_wo_rrl": 30.0}  # two threads each
    assert {row["method"] for row in drawn.rows if row["front"]} == {"ce", "lmd", "lmd_wo_rrl"}


def test_cost_is_processor_time_where_it_was_measured(study: Path, tmp_path: Path) -> None:
    for run in study.iterdir():
        record = json.loads((run / "record.json").read_text())
        record["timings"]["stage 1 processor time"] = 60.0
        (tmp_path / f"{run.name}.json").write_text(json.dumps(record))
    assert {one.minutes() for one in Request(read_study([str(tmp_path)])).series()} == {1.0}


def test_ranks_over_seeds(study: Path) -> None:
    with drawing():
        drawn = critical_figure(Request(read_study([str(study)])))
    ranks = {row["method"]: row["mean_rank"] for row in drawn.rows}
    assert ranks == {"ce": 3.0, "lmd": 1.0, "lmd_wo_rrl": 2.0}
    assert any("not independent" in note for note in drawn.notes)


def test_ranks_without_ablations(study: Path, tmp_path: Path) -> None:
    draw(["cd", str(study), "--no-ablations", "--out", str(tmp_path / "cd.svg")])
    ranks = {row["method"]: row["mean_rank"] for row in rows_of(tmp_path / "cd.csv")}
    assert ranks == {"ce": "2.0", "lmd": "1.0"}


def test_recall_of_many_rows_leaves_ablations_out(study: Path, tmp_path: Path) -> None:
    runs = [study / f"{key}-seed0" for key in ("ce", "lmd", "lmd_wo_rrl")]
    for i in range(6):
        runs.append(run_of(tmp_path / f"m{i}", f"m{i}", skill=1.0 + 0.1 * i))
    with drawing():
        drawn = recall_figure(Request(read_study([str(run) for run in runs])))
    shown = list(dict.fromkeys(row["method"] for row in drawn.rows))
    assert shown == ["lmd", "m2", "m3", "m4", "m5"]
    assert "5 of 9 rows" in drawn.notes[0]


def test_published_runs_have_the_rows_of_their_grid(study: Path, tmp_path: Path) -> None:
    grid = tmp_path / "grid.toml"
    lines = ['data = "synthetic"', 'methods = ["ce", "lmd", "balanced_softmax"]', "seeds = [0, 1]"]
    grid.write_text("\n".join([*lines, 'protocol = "demo"', 'reference = "lmd"']), encoding="utf-8")
    for run in study.glob("*-seed0"):
        shutil.copytree(run, tmp_path / "runs" / run.name)
    for extra in ("balanced_softmax", "balanced_softmax_a", "balanced_softmax_b"):
        run_of(tmp_path / "runs" / f"{extra}-seed0", extra)
    found = read_study([str(grid)], tmp_path / "runs")
    assert found.reference == "lmd"
    assert found.order == ("ce", "balanced_softmax", "lmd")
    assert {run.record.method.key for run in found.runs} == set(found.order)
    assert "lmd-seed1" in found.missing
    # A folder in which no run has a name of the grid is read as it is.
    shutil.copytree(study / "ce-seed0", tmp_path / "others" / "mine")
    assert len(read_study([str(grid)], tmp_path / "others").runs) == 1


def test_a_sweep_finds_its_setting(study: Path, tmp_path: Path) -> None:
    for value in (1, 5, 100):
        run_of(tmp_path / f"lmd-{value}", "lmd", skill=1 + value / 100, lambda_1=float(value))
    words = [str(path) for path in sorted(tmp_path.iterdir())] + [str(study / "ce-seed0")]
    with drawing():
        drawn = sweep_figure(Request(read_study(words), metrics=["auc"]))
    swept = [row for row in drawn.rows if row["setting"]]
    assert [(row["setting"], row["value"]) for row in swept] == [
        ("lambda_1", 1.0),
        ("lambda_1", 5.0),
        ("lambda_1", 100.0),
    ]
    assert [row["method"] for row in drawn.rows if not row["setting"]] == ["ce"]


def test_a_sweep_of_classes_has_the_recalls_of_the_records(study: Path, tmp_path: Path) -> None:
    runs = {
        v: run_of(tmp_path / f"r{v}", "lmd", skill=1 + v / 1e5, virtual=v) for v in (500, 90_000)
    }
    words = [str(path) for path in runs.values()] + [str(study / "ce-seed0")]
    out = tmp_path / "classes.svg"
    said = draw(["classes", *words, "--out", str(out)])
    assert "Level lines: CE" in said
    rows = rows_of(tmp_path / "classes.csv")
    for value, run in runs.items():
        scores = {s.name: s.recall for s in read_record(run / "record.json").per_class["test"]}
        found = [row for row in rows if row["value"] == str(value)]
        assert {row["setting"] for row in found} == {"virtual"}
        assert {row["class"]: float(row["recall"]) for row in found} == {
            name: recall.value for name, recall in scores.items()
        }
    assert len([row for row in rows if row["method"] == "ce" and not row["setting"]]) == 3
    run_of(tmp_path / "ce500", "ce", virtual=500)
    run_of(tmp_path / "ce900", "ce", virtual=90_000)
    both = [*words[:2], str(tmp_path / "ce500"), str(tmp_path / "ce900")]
    with pytest.raises(LmdError, match="lmd, ce are swept: choose one with --methods"):
        draw(["classes", *both, "--out", str(out)])


def test_errors_say_what_to_do(study: Path, tmp_path: Path) -> None:
    def fails(words: Sequence[str], match: str) -> None:
        with pytest.raises(LmdError, match=match):
            draw([*words, "--out", str(tmp_path / "x.svg")])
        assert list(tmp_path.iterdir()) == []

    one = str(study / "ce-seed0")
    fails(["recall", str(tmp_path / "none")], "does not exist")
    fails(["recall", str(study), "--methods", "gcl"], "no finished run; there are ce, lmd")
    fails(["recall", one, "--width", "3"], "--width is '3'")
    fails(["ablation", one], "no ablations")
    fails(["ablation", str(study), "--metrics", "bac"], "--metrics: unknown metric .bac.")
    fails(["cd", one], "at least two methods")
    fails(["cd", str(study), "--test", "t"], "nemenyi or wilcoxon")
    fails(["sweep", str(study)], "no setting differs")
    fails(["classes", str(study)], "no setting differs")
    fails(["cost", one], "at least two rows")
    fails(["tsne", *[one] * 4], "one to three runs; got 4")
    fails(["tsne", one], "has no finished model")
    with pytest.raises(LmdError, match=r"must end in \.svg"):
        draw(["recall", one, "--out", "x.jpg"])


def test_runs_of_different_data_are_refused(study: Path, tmp_path: Path) -> None:
    other = run_of(tmp_path / "other", "ce")
    with edited(other) as record:
        record["data"]["fingerprint"] = "another"
    with pytest.raises(LmdError, match="same data"):
        draw(["recall", str(study / "lmd-seed0"), str(other), "--out", str(tmp_path / "x.svg")])


def test_names_in_other_scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl
    from matplotlib.font_manager import fontManager

    own = [font for font in fontManager.ttflist if font.fname.startswith(mpl.get_data_path())]
    monkeypatch.setattr(fontManager, "ttflist", own)
    # The first is in a font that comes with matplotlib, though not in the usual one.
    make_run(tmp_path / "run", ["\u1d81erm", "\U00012000", "wart"], epochs=(2,))
    said = draw(["recall", str(tmp_path / "run"), "--out", str(tmp_path / "recall.pdf")])
    assert "has the characters \U00012000, which are drawn as boxes" in " ".join(said.split())
    assert b"STIX" in (tmp_path / "recall.pdf").read_bytes()


def test_a_missing_package_is_named() -> None:
    with pytest.raises(LmdError, match=r"pip install 'lmd\[figures\]'"):
        need("no_such_package")


@pytest.mark.parametrize("words", ["3", "in", "0.1in", "50cm50", "-3in", "9999mm"])
def test_lengths_that_are_none(words: str) -> None:
    with pytest.raises(LmdError, match="width"):
        inches("--width", words)

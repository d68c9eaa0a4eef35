"""Which method to use: candidates on pseudo-tails of one's own data."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from runs_on_disk import as_planned, begun, write_run
from toys import toy_probabilities
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.benchmark.choose import ChoiceGrid, compare, write_study
from lmd.benchmark.plan import Plan
from lmd.benchmark.planning import plan_grid
from lmd.benchmark.results import read_results
from lmd.cli.commands import app
from lmd.data.source import Columns, Source
from lmd.runs.folder import PartPredictions, Predictions

CLASSES = ("a", "b", "c", "d")
SUPPORT = (60, 50, 40, 30)
SKILL = {"ce": 0.5, "rs": 1.5, "focal": 1.45}
PROTOCOL = """
backbone = "resnet8"
weights = "none"
image_size = 16
epochs = 1
stage2_epochs = 1
batch_size = 16
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("plan")
    for j in (1, 2, 3):
        (folder / f"task-{j}.csv").write_text("image,label\n")
    tasks = "".join(f'"task {j}" = "task-{j}.csv"\n' for j in (1, 2, 3))
    (folder / "g.toml").write_text(
        f'methods = ["ce", "rs", "focal"]\nseeds = [0, 1]\nreference = "ce"\n[sweep.data]\n{tasks}'
    )
    return plan_grid(folder / "g.toml")


def write_runs(
    plan: Plan, folder: Path, leave_out: tuple[str, ...] = (), *, alike: bool = False
) -> None:
    """Runs of known skill; each task and seed has predictions of its own, unless all are alike."""
    labels = np.repeat(np.arange(len(CLASSES)), SUPPORT)
    ids = np.array([f"image{i:03d}" for i in range(len(labels))])
    for n, run in enumerate(plan.runs):
        if run.name in leave_out:
            continue
        skill, seed = (1.0, 0) if alike else (SKILL[run.method], n)
        given = toy_probabilities(labels, len(CLASSES), skill, seed).astype(np.float32)
        test = PartPredictions(ids, labels, given)
        record = begun(run.name, CLASSES, [100, 50, 20, 10], key=run.method, title=run.method)
        write_run(folder / run.name, record, Predictions(CLASSES, {"test": test}))
    as_planned(plan, folder)


def test_the_better_method_wins_and_equals_are_not_told_apart(plan: Plan, tmp_path: Path) -> None:
    write_runs(plan, tmp_path)
    found, blocks = compare(read_results(plan, tmp_path, resamples=500))
    assert len(blocks) == 6
    by_key = {one.key: one for one in found}
    assert {found[0].key, found[1].key} == {"rs", "focal"}
    assert found[0].behind == 0
    assert by_key["ce"].high < 0
    assert by_key["ce"].best < 0.01
    assert sum(one.best for one in found) == pytest.approx(1)
    assert found[1].low < found[1].behind <= found[1].high
    # The mean is that of the records.
    values = [
        run.recorded("balanced_accuracy").value
        for run in read_results(plan, tmp_path, resamples=10).runs
        if run.record.method.key == "ce"
    ]
    assert by_key["ce"].mean == pytest.approx(np.mean(values))


def test_equal_methods_share_the_resamples(plan: Plan, tmp_path: Path) -> None:
    write_runs(plan, tmp_path, alike=True)
    found, _ = compare(read_results(plan, tmp_path, resamples=50))
    assert [one.best for one in found] == pytest.approx([1 / 3] * 3)


def test_only_blocks_that_every_method_finished_count(plan: Plan, tmp_path: Path) -> None:
    one = next(run.name for run in plan.runs if run.method == "rs" and run.point == 1)
    write_runs(plan, tmp_path, leave_out=(one,))
    _, blocks = compare(read_results(plan, tmp_path, resamples=50))
    assert len(blocks) == 5
    everything = tuple(run.name for run in plan.runs if run.method == "rs")
    write_runs(plan, tmp_path / "none", leave_out=everything)
    with pytest.raises(LmdError, match="larger --budget"):
        compare(read_results(plan, tmp_path / "none", resamples=50))


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A skewed folder of coloured noise."""
    root = tmp_path_factory.mktemp("data") / "skin"
    rng = np.random.default_rng(0)
    for k, (name, n) in enumerate({"a": 150, "b": 110, "c": 90, "d": 20}.items()):
        (root / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.normal(60 + 40 * k, 30, (16, 16, 3)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


@pytest.mark.slow
def test_the_command_names_a_method_and_continues(images: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROTOCOL)
    words = ["choose", str(images), "--methods", "ce,rs", "--tasks", "2", "--seeds", "1"]
    words += ["--protocol", str(tmp_path / "p.toml"), "--out", str(tmp_path / "study")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "over 2 of 2 blocks" in done.output
    kept = json.loads((tmp_path / "study" / "choice.json").read_text())
    assert f"Use {kept['use']} " in done.output
    assert (kept["blocks"], kept["planned"]) == (2, 2)
    assert kept["classes_left_out"] == ["d"]
    assert "too few images: d." in done.output
    assert {one["key"] for one in kept["candidates"]} == {"ce", "rs"}
    assert kept["candidates"][0]["mean"] >= kept["candidates"][1]["mean"]
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("study/*/record.json")}
    assert len(before) == 4
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, again.output
    assert before == {p: p.stat().st_mtime_ns for p in before}
    # Other candidates, tasks and seeds: what is finished is not trained again.
    fewer = CliRunner().invoke(app, [*words, "--methods", "rs", "--tasks", "1"])
    assert fewer.exit_code == 0, fewer.output
    assert "So far rs is ahead, on one task." in fewer.output
    assert json.loads((tmp_path / "study" / "choice.json").read_text())["tasks"] == 1
    assert not (tmp_path / "study" / "tasks" / "task-2.csv").exists()
    more = CliRunner().invoke(app, [*words, "--methods", "ce,rs,focal"])
    assert "over 2 of 2 blocks" in more.output
    assert before == {p: p.stat().st_mtime_ns for p in before}
    (tmp_path / "p.toml").write_text(PROTOCOL.replace("\nepochs = 1", "\nepochs = 2"))
    other = CliRunner().invoke(app, words)
    assert "epochs: 1 → 2" in str(other.exception)


def test_a_study_is_of_its_own_data(images: Path, tmp_path: Path) -> None:
    names = sorted(p.relative_to(images).as_posix() for p in images.rglob("*.png"))
    rows = [f"{name},{name.split('/')[0]},{i % 4}" for i, name in enumerate(names)]
    text = "\n".join(["image,dx,other", *rows]) + "\n"
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(text)

    def study(data: str, label: str) -> ChoiceGrid:
        return write_study(
            Source(tmp_path / data, Columns(label_column=label, root=images)), tmp_path / "study",
            methods=["ce"], tasks=1, seeds=1, protocol="small",
        )  # fmt: skip

    made = study("a.csv", "dx")
    assert study("b.csv", "dx") == made  # the same images and labels
    assert study("../" + tmp_path.name + "/b.csv", "dx") == made  # by another path
    with pytest.raises(LmdError, match="a study of other data"):
        study("a.csv", "other")
    with pytest.raises(LmdError, match="does not exist"):
        study("c.csv", "dx")
    (tmp_path / "a.csv").write_text(text.replace(f"{rows[-1]}\n", ""))
    with pytest.raises(LmdError, match="a study of other data"):
        study("a.csv", "dx")


def test_a_study_is_of_its_own_patients(images: Path, tmp_path: Path) -> None:
    names = sorted(p.relative_to(images).as_posix() for p in images.rglob("*.png"))
    parts = ("train", "train", "validation")

    def study(group: int) -> None:
        rows = [f"{n},{n[0]},{i // group},{parts[i // 4 % 3]}" for i, n in enumerate(names)]
        (tmp_path / "a.csv").write_text("\n".join(["image,label,group,split", *rows]) + "\n")
        write_study(
            Source(tmp_path / "a.csv", Columns(root=images)), tmp_path / "study", methods=["ce"],
            tasks=1, seeds=1, protocol="small", held_out=20,
        )  # fmt: skip

    study(2)
    study(2)
    with pytest.raises(LmdError, match="a study of other data"):
        study(4)


def test_tiers_may_name_a_class_that_takes_no_part(images: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROTOCOL + 'tiers = "head=a,b;medium=c;tail=d"\n')
    study = write_study(
        Source(images), tmp_path / "study", methods=["ce"], tasks=1, seeds=1,
        protocol=str(tmp_path / "p.toml"),
    )  # fmt: skip
    assert study.left_out == ("d",)
    (run,) = plan_grid(study.grid).runs
    assert run.request["protocol"]["tiers"] == "thirds"
    assert run.request["protocol"]["backbone"] == "resnet8"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "ce,ce"], "must differ from one another"),
        (["--protocol", "p.toml"], "remove imbalance"),
        (["--out", "skin/study"], "lies inside the data"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    images: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(images.parent)
    Path("p.toml").write_text(PROTOCOL + "imbalance = 20\n")
    done = CliRunner().invoke(app, ["choose", "skin", "--out", "study", *words])
    assert said in str(done.exception)
    assert not Path("study").exists()
    assert not Path("skin/study").exists()


def test_the_folder_of_a_study_in_the_current_one(
    images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images)
    done = CliRunner().invoke(app, ["choose", "."])
    assert "runs/skin-choose lies inside the data" in str(done.exception)


def test_an_unknown_method_is_refused_before_anything_is_written(
    images: Path, tmp_path: Path
) -> None:
    words = ["choose", str(images), "--out", str(tmp_path / "study"), "--methods", "ce,lmdd"]
    done = CliRunner().invoke(app, words)
    assert "lmdd" in str(done.exception)
    assert not (tmp_path / "study").exists()


def test_failures_are_told(images: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROTOCOL + "lr = 1e30\n")
    words = ["choose", str(images), "--methods", "ce", "--tasks", "1", "--seeds", "1"]
    words += ["--protocol", str(tmp_path / "p.toml"), "--out", str(tmp_path / "study")]
    done = CliRunner().invoke(app, words)
    assert "failed: ce" in done.output
    assert done.exit_code == 1


def test_without_a_budget_nothing_is_trained(images: Path, tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(PROTOCOL)
    words = ["choose", str(images), "--methods", "ce,rs", "--tasks", "1", "--budget", "0"]
    words += ["--protocol", str(tmp_path / "p.toml"), "--out", str(tmp_path / "study")]
    done = CliRunner().invoke(app, words)
    assert isinstance(done.exception, LmdError)
    assert "larger --budget" in str(done.exception)
    assert not list(tmp_path.glob("study/*/record.json"))


def test_the_test_part_is_left_out(images: Path, tmp_path: Path) -> None:
    from lmd.data.sources import open_table
    from lmd.data.splits import split

    write_study(Source(images), tmp_path, methods=["ce"], tasks=2, seeds=1, protocol="small")
    table = split(open_table(images))
    assert table.parts is not None
    tested = set(table.ids[table.parts == "test"])
    for j in (1, 2):
        task = open_table(tmp_path / "tasks" / f"task-{j}.csv", root=images)
        assert not tested & set(task.ids)


def test_a_failed_start_leaves_nothing_behind(tmp_path: Path) -> None:
    words = ["choose", str(tmp_path / "nope"), "--out", str(tmp_path / "study")]
    done = CliRunner().invoke(app, words)
    assert "does not exist" in str(done.exception)
    assert not (tmp_path / "study").exists()

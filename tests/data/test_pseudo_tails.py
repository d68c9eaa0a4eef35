"""Tasks in which frequent classes play the rare ones."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.cli.commands import app
from lmd.data.pseudo_tails import PseudoTail, pseudo_tails, write_tasks
from lmd.data.sources import open_table
from lmd.data.table import PARTS, Table

TRAIN = (400, 150, 60, 25, 10)
VALIDATION = (60, 50, 40, 36, 6)
CLASSES = ("a", "b", "c", "d", "e")


class NoImages:
    def read(self, row: int) -> np.ndarray:
        raise AssertionError("no pixel is needed to draw tasks")


def long_tail(*, images_a_group: int = 2) -> Table:
    """A split table; the test part is as large as the training part."""
    labels, parts = [], []
    for part, counts in zip(PARTS, (TRAIN, VALIDATION, TRAIN), strict=True):
        for k, n in enumerate(counts):
            labels += [k] * n
            parts += [part] * n
    n = len(labels)
    groups = [f"{parts[i]}-{labels[i]}-{i // images_a_group}" for i in range(n)]
    return Table(
        ids=np.array([f"i{i}" for i in range(n)]),
        labels=np.array(labels, dtype=np.int64),
        classes=CLASSES,
        images=NoImages(),
        rows=np.arange(n),
        groups=np.array(groups),
        parts=np.array(parts),
    )


@pytest.fixture(scope="module")
def tasks() -> list[PseudoTail]:
    return pseudo_tails(long_tail(), 3)


def test_frequent_classes_play_the_tail(tasks: list[PseudoTail]) -> None:
    assert [task.rarest for task in tasks] == [("b", "c"), ("c", "d"), ("d", "b")]
    for task in tasks:
        # Class e has too few images to play the rarest with 40 held out.
        assert task.table.classes == ("a", "b", "c", "d")
        train = dict(zip(task.table.classes, task.table.part("train").counts(), strict=True))
        assert min(train, key=train.__getitem__) == task.rarest[0]
        assert max(train, key=train.__getitem__) == "a"
        assert abs(train[task.rarest[0]] - min(TRAIN)) <= 1
        assert task.table.part("test").counts().min() >= 38


def test_test_images_are_never_used_and_groups_stay_whole(tasks: list[PseudoTail]) -> None:
    source = long_tail()
    assert source.parts is not None
    tested = set(source.ids[source.parts == "test"])
    for task in tasks:
        table = task.table
        assert table.groups is not None
        assert table.parts is not None
        assert not tested & set(table.ids)
        assert len(set(table.ids)) == len(table)
        for group in set(table.groups):
            assert len(set(table.parts[table.groups == group])) == 1
        # Labels still mean the same classes.
        names = dict(zip(source.ids, np.array(source.classes)[source.labels], strict=True))
        found = np.array(table.classes)[table.labels]
        assert all(names[i] == name for i, name in zip(table.ids, found, strict=True))


def test_the_seed_decides_which_images_are_drawn() -> None:
    first, again, other = (pseudo_tails(long_tail(), 1, seed=s)[0].table for s in (0, 0, 1))
    assert first.ids[first.parts == "train"].tolist() == again.ids[again.parts == "train"].tolist()
    assert set(first.ids[first.parts == "train"]) != set(other.ids[other.parts == "train"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"tasks": 0}, "tasks is 0"),
        ({"tasks": 4}, "only 3 classes can play the rarest"),
        ({"tasks": 1, "held_out": 500}, "three classes with at least 516"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(LmdError, match=said):
        pseudo_tails(long_tail(), **arguments)


def test_tasks_are_not_replaced_unasked(tasks: list[PseudoTail], tmp_path: Path) -> None:
    write_tasks(tasks, tmp_path / "out")
    with pytest.raises(LmdError, match="overwrite=True"):
        write_tasks(tasks, tmp_path / "out")
    write_tasks(tasks, tmp_path / "out", overwrite=True)


def test_the_command_writes_manifests_that_training_opens(tmp_path: Path) -> None:
    root = tmp_path / "images"
    root.mkdir()
    table = long_tail(images_a_group=3)
    assert table.parts is not None
    assert table.groups is not None
    with (tmp_path / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "group", "split"])
        for i, name in enumerate(table.ids):
            (root / f"{name}.png").write_bytes(b"not read")
            label = CLASSES[table.labels[i]]
            writer.writerow([f"{name}.png", label, table.groups[i], table.parts[i]])
    words = ["data", "pseudo-tails", str(tmp_path / "data.csv"), "--root", str(root)]
    done = CliRunner().invoke(app, [*words, "--tasks", "2", "--out", str(tmp_path / "tasks")])
    assert done.exit_code == 0, done.output
    assert "b and c play the rarest classes" in done.output
    opened = open_table(tmp_path / "tasks" / "task-1.csv", root=root)
    assert opened.parts is not None
    assert opened.groups is not None
    assert opened.part("train").counts().min() <= min(TRAIN) + 2


def test_arrays_are_refused(tasks: list[PseudoTail], tmp_path: Path) -> None:
    arrays = [replace(task, table=replace(task.table, kind="arrays")) for task in tasks]
    with pytest.raises(LmdError, match="need image files"):
        write_tasks(arrays, tmp_path / "out")
    assert not (tmp_path / "out").exists()

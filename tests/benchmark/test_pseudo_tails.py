"""Tasks in which frequent classes play the rare ones."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lmd.base.errors import LmdError
from lmd.benchmark.choose import PseudoTail, pseudo_tails, write_tasks
from lmd.cli.commands import app
from lmd.data.sources import open_table
from lmd.data.splits import check_no_leak, split
from lmd.data.table import PARTS, ArrayImages, FileImages, Table

TRAIN = (400, 150, 60, 25, 10)
VALIDATION = (60, 50, 40, 36, 6)
CLASSES = ("a", "b", "c", "d", "e")
ROOT = Path("nowhere")


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
        images=FileImages(tuple(Path(f"nowhere/i{i}") for i in range(n))),  # no pixel is needed
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
        ({"tasks": 4}, "only 3 classes can play the rarest: use --tasks 3"),
        ({"tasks": 1, "held_out": 500}, "three classes with at least 516"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(LmdError, match=said):
        pseudo_tails(long_tail(), **arguments)


def test_without_a_number_there_are_as_many_tasks_as_the_classes_allow() -> None:
    assert len(pseudo_tails(long_tail())) == 3
    assert len(pseudo_tails(long_tail(), held_out=70)) == 2  # three classes are large enough
    two = long_tail().take(long_tail().labels < 2)
    with pytest.raises(LmdError, match="three classes or more; the data has 2"):
        pseudo_tails(replace(two, classes=("a", "b")))


def test_large_groups_are_told() -> None:
    assert [task.warnings for task in pseudo_tails(long_tail(), 1)] == [()]
    table = long_tail()
    assert table.parts is not None
    own = [int((table.labels[:i] == k).sum()) // 40 for i, k in enumerate(table.labels)]
    groups = np.array([f"{k}-{n}" for k, n in zip(table.labels, own, strict=True)])
    pool = replace(table, groups=groups).take(table.parts != "test")
    (task,) = pseudo_tails(pool, 1, held_out=20)  # class b has five patients with 40 images
    assert "class 'b' has 40 images to train on, where 10 would be" in task.warnings[0]


def test_tasks_are_not_replaced_unasked(tasks: list[PseudoTail], tmp_path: Path) -> None:
    write_tasks(tasks, tmp_path / "out", ROOT)
    with pytest.raises(LmdError, match="--overwrite"):
        write_tasks(tasks, tmp_path / "out", ROOT)
    write_tasks(tasks[:2], tmp_path / "out", ROOT, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "task-1.csv",
        "task-2.csv",
    ]


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
    pixels = ArrayImages((np.zeros((0, 4, 4, 3), np.uint8),))
    arrays = [replace(task, table=replace(task.table, images=pixels)) for task in tasks]
    with pytest.raises(LmdError, match="need image files"):
        write_tasks(arrays, tmp_path / "out", ROOT)
    assert not (tmp_path / "out").exists()


def with_patients(seed: int, *, each: int, classes: tuple[int, ...] = (0, 1, 2, 3, 4)) -> Table:
    """Patients with images of several classes, split without a leak."""
    rng = np.random.default_rng(seed)
    counts = (500, 200, 150, 120, 30)
    labels = np.repeat(classes, [counts[k] for k in classes])
    n = len(labels)
    groups = np.array([f"p{i}" for i in rng.integers(n // each, size=n)])
    return split(
        Table(
            ids=np.array([f"i{i}" for i in range(n)]),
            labels=labels.astype(np.int64),
            classes=CLASSES,
            images=FileImages(tuple(Path(f"nowhere/i{i}") for i in range(n))),
            rows=np.arange(n),
            groups=groups,
        )
    )


@pytest.mark.parametrize("each", [2, 5, 12])
def test_patients_with_several_classes_stay_in_one_part(each: int) -> None:
    source = with_patients(each, each=each)
    smallest = source.part("train").counts().min()
    for task in pseudo_tails(source, 3):
        check_no_leak(task.table)
        train, test = (task.table.part(part).counts() for part in ("train", "test"))
        rarest = task.table.classes.index(task.rarest[0])
        assert train[rarest] == train.min()
        assert abs(int(train[rarest]) - int(smallest)) <= each
        assert train.max() > 3 * train.min()
        assert test.min() >= 20


def test_groups_too_large_to_leave_anything_to_test_on() -> None:
    labels = np.repeat([0, 1, 2, 3], [300, 60, 60, 6])
    groups = np.array([f"{k}-{i // (30 if 0 < k < 3 else 1)}" for i, k in enumerate(labels)])
    table = replace(
        with_patients(0, each=2),
        ids=np.array([f"i{i}" for i in range(len(labels))]),
        labels=labels.astype(np.int64),
        rows=np.arange(len(labels)),
        classes=CLASSES[:4],
        groups=groups,
        parts=np.array(["train", "train", "train", "validation", "train", "train"] * 71),
    )
    task = pseudo_tails(table, 1, held_out=30)[0]
    # Nothing is left for validation: each of the two groups of class b has 30 images.
    b = task.table.classes.index("b")
    assert [task.table.part(part).counts()[b] for part in PARTS] == [30, 0, 30]
    one = replace(table, groups=np.array([f"{k}-{k and i // 60}" for i, k in enumerate(labels)]))
    with pytest.raises(LmdError, match="with whole groups, class"):
        pseudo_tails(one, 1)


def test_tasks_name_images_that_lie_beside_the_manifest(tmp_path: Path) -> None:
    place = tmp_path / "my data"
    (place / "images" / "a").mkdir(parents=True)
    table = long_tail()
    lines = ["image,label,group,split"]
    assert table.parts is not None
    for i, label in enumerate(table.label_names()):
        (place / "images" / "a" / f"{i}.png").write_bytes(b"not read")
        lines.append(f"a/{i}.png,{label},g{i},{table.parts[i]}")
    (place / "m.csv").write_text("\n".join(lines))
    words = ["data", "pseudo-tails", str(place / "m.csv"), "--out", str(tmp_path / "tasks")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert f"--root '{place}'" in done.output.replace("\n", "")
    assert len(open_table(tmp_path / "tasks" / "task-1.csv", root=place)) > 0


def test_an_out_that_is_a_file_is_one_line(tasks: list[PseudoTail], tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(LmdError, match="is not a folder"):
        write_tasks(tasks, tmp_path / "out", ROOT)

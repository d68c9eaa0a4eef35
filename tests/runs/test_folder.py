"""The run folder: what is written is read, and damaged files give one line."""

import contextlib
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from runs_on_disk import begun, edited, edited_arrays, fake_history, make_run

from lmd.base.errors import LmdError
from lmd.runs.folder import PartPredictions, Predictions, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    make_run(tmp_path / "run", ["a", "b", "c"])
    return Run(tmp_path / "run")


def part(**changes: Any) -> PartPredictions:
    arrays = {
        "ids": np.array(["x", "y"]),
        "labels": np.array([0, 1]),
        "probabilities": np.array([[0.9, 0.1], [0.4, 0.6]], dtype=np.float32),
    }
    return PartPredictions(**(arrays | changes))


def test_predictions_are_read_as_written(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    given = Predictions(
        ("nevus", "wart"), {"validation": part(), "test": part(groups=np.array([7, 7]))}
    )
    run.write_predictions(given)
    found = run.read_predictions()
    assert found.classes == given.classes
    assert found.parts["validation"].groups is None
    for name, of in given.parts.items():
        for key, array in of.arrays().items():
            again = getattr(found.parts[name], key)
            assert again.dtype == array.dtype
            assert np.array_equal(again, array)
    with np.load(run.predictions_path) as file:
        assert file.files == [
            "classes", "validation_ids", "validation_labels", "validation_probabilities",
            "test_ids", "test_labels", "test_probabilities", "test_groups",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"ids": np.array(["x"])}, r"test_ids must have the shape \(2,\)"),
        ({"labels": np.array([0, 2])}, "test_labels must be below 2"),
        ({"labels": np.array([-1, 0])}, "test_labels must be below 2"),
        ({"labels": np.array([0.0, 1.0])}, "whole numbers"),
        ({"labels": np.array(0)}, "must have the shape"),
        ({"probabilities": np.zeros((2, 3))}, r"shape \(2, 2\)"),
        ({"probabilities": np.zeros((2, 2), dtype=int)}, "floats"),
        ({"groups": np.zeros(3)}, "test_groups"),
        ({"ids": np.array(["x", None], dtype=object)}, "object"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LmdError, match=words):
        Predictions(("a", "b"), {"test": part(**changes)})


@pytest.mark.parametrize("names", [(), ("a", "a")])
def test_class_names_must_differ(names: tuple[str, ...]) -> None:
    with pytest.raises(LmdError, match="class names"):
        Predictions(names, {})


def test_truncated_predictions_are_one_line(run: Run) -> None:
    whole = run.predictions_path.read_bytes()
    for size in (0, 1, 10, 100, len(whole) // 2, len(whole) - 30, len(whole) - 1):
        run.predictions_path.write_bytes(whole[:size])
        _one_line(run)


def test_predictions_with_changed_bytes_are_one_line_or_still_whole(run: Run) -> None:
    whole = run.predictions_path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(len(whole), size=300):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(generator.integers(8))
        run.predictions_path.write_bytes(broken)
        with contextlib.suppress(LmdError):  # any other error fails
            run.read_predictions()


def test_foreign_files_are_one_line(run: Run) -> None:
    run.predictions_path.write_bytes(b"not a zip file")
    _one_line(run)
    np.savez(run.predictions_path, x=np.arange(3))
    _one_line(run, "no array 'classes'")
    with run.predictions_path.open("wb") as file:
        np.save(file, np.arange(3))
    _one_line(run, "not an .npz archive")
    run.predictions_path.unlink()
    _one_line(run, "No such file")


def test_a_missing_array_is_named(run: Run) -> None:
    with edited_arrays(run.path) as arrays:
        del arrays["test_probabilities"]
    _one_line(run, "no array 'test_probabilities'")


def test_predictions_of_another_run_are_refused(run: Run) -> None:
    with edited(run.path) as record:
        record["data"]["classes"] = ["a", "b", "d"]
    with pytest.raises(LmdError, match="other classes"):
        _ = run.predictions


def test_predictions_of_fewer_images_are_refused(run: Run) -> None:
    with edited_arrays(run.path) as arrays:
        for key in [key for key in arrays if key.startswith("validation")]:
            del arrays[key]
    with pytest.raises(LmdError, match="another number of validation images"):
        _ = run.predictions


def test_declared_sizes_are_checked_before_memory_is_taken(run: Run) -> None:
    for shape in ("(10000000000000,)", "(3, 3000000000000)", "(-1,)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
        header = header.ljust(117) + "\n"
        npy = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
        with zipfile.ZipFile(run.predictions_path, "w") as archive:
            archive.writestr("classes.npy", npy + bytes(40))
        _one_line(run, r"array 'classes\.npy' declares")


def test_zip_files_of_other_things_are_one_line(run: Run) -> None:
    with zipfile.ZipFile(run.predictions_path, "w") as archive:
        archive.writestr("classes.txt", "nevus")
    _one_line(run, r"its entry 'classes\.txt' is no array")
    np.savez(run.predictions_path, classes=np.array(["a"]))
    encrypted = bytearray(run.predictions_path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(mark) + place] |= 1
    run.predictions_path.write_bytes(encrypted)
    _one_line(run, "it is encrypted")


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([["0.5"] * 3] * 4), "must be floats"),
        (np.full((4, 3), np.nan), "must be from 0 to 1"),
        (np.full((4, 3), 7.0), "must be from 0 to 1"),
        (np.full((4, 3), 0.3), "must sum to 1 in every row"),
    ],
)
def test_probabilities_that_are_none_are_one_line(run: Run, array: np.ndarray, words: str) -> None:
    with edited_arrays(run.path) as arrays:
        n = len(arrays["test_labels"])
        arrays["test_probabilities"] = np.resize(array, (n, 3))
    _one_line(run, words)


def test_history_is_read_as_written(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.read_history() == []
    rows = fake_history((2, 1), np.random.default_rng(0))
    run.write_history(rows)
    everything = dict.fromkeys(key for row in rows for key in row)
    assert run.read_history() == [{key: row.get(key) for key in everything} for row in rows]
    assert run.history_path.read_text().splitlines()[0] == ",".join(everything)


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xfe",
        b"x,y\n1,2\n",
        b'stage,epoch\n"1',
        bytes(range(256)),
        b"stage,epoch\none,1\n",
        b"stage,epoch\n1,\n",
        b"stage,epoch\n1,-3\n",
    ],
)
def test_a_damaged_history_is_one_line(tmp_path: Path, content: bytes) -> None:
    run = Run(tmp_path)
    run.history_path.write_bytes(content)
    with pytest.raises(LmdError, match=r"history\.csv") as caught:
        run.read_history()
    assert "\n" not in str(caught.value)


def test_the_whole_run(run: Run) -> None:
    found = run
    assert found.predictions is not None
    assert list(found.predictions.classes) == found.record.data.classes
    assert found.history == found.record.history
    assert len(found.history) == 50


def test_a_run_that_has_just_begun_has_no_predictions(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run")
    run.write_record(begun("run", ["a", "b"], [3, 2]))
    found = Run(run.path)
    assert found.predictions is None
    assert found.history == []


def _one_line(run: Run, words: str = "cannot be read") -> None:
    with pytest.raises(LmdError, match=words) as caught:
        run.read_predictions()
    assert "\n" not in str(caught.value)
    assert str(run.predictions_path) in str(caught.value)


def test_what_an_interruption_leaves_can_be_written_over(tmp_path: Path) -> None:
    # A training that was killed while it replaced another one still has the other's record.
    make_run(tmp_path / "run", ["a", "b"])
    order: list[str] = []
    unlink = Path.unlink

    def remembered(path: Path, missing_ok: bool = False) -> None:
        order.append(path.name)
        unlink(path, missing_ok=missing_ok)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", remembered)
        Run.create(tmp_path / "run", overwrite=True)
    assert [name for name in order if not name.startswith(".")][-1] == "record.json"
    # An evaluation that was killed between its two files.
    left = tmp_path / "left"
    Run.create(left).write_predictions(Predictions(("a", "b"), {"test": part()}))
    Run.check_free(left)
    (left / "notes.txt").write_text("mine")
    with pytest.raises(LmdError, match="is not a run folder"):
        Run.check_free(left)

"""Read and write a run folder: record, predictions and history."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from lmd.base.arrays import read_npz
from lmd.base.errors import LmdError
from lmd.base.files import LOCK, atomic_write, clear_leftovers, is_leftover
from lmd.base.text import csv_text
from lmd.runs.record import FORMAT, HistoryRow, Part, Record, check_numbers
from lmd.scoring.estimates import Estimate

PARTS: tuple[Part, ...] = get_args(Part)
UNIT = 64_000  # published probabilities are whole numbers of this part of one
FINAL = "final"  # the run on all images, in the folder of a cross-validation
# What every finished training has; the others depend on what was asked for.
REQUIRED = (
    "record.json",
    "predictions.npz",
    "history.csv",
    "model.safetensors",
    "model.json",
    "report.html",
    "model-card.md",
    "model-card.html",
)
RUN_FILES = (
    *REQUIRED,
    "checkpoint/state.safetensors",
    "average.json",
    "folds.json",
    "novelty.safetensors",
    "neighbours.npz",
    "examples.npz",
    "classifier.npz",
)
# Of these, what follows from the record and the predictions.
WRITTEN_AGAIN = frozenset({"history.csv", "report.html", "model-card.md", "model-card.html"})
_ARRAYS = ("ids", "labels", "probabilities", "groups")


@dataclass(frozen=True)
class PartPredictions:
    """``ids (N,)``, ``labels (N,)``, ``probabilities (N, K)`` and, if known, ``groups (N,)``.

    Images with the same number in ``groups`` are of one patient or lesion.
    """

    ids: NDArray[Any]
    labels: NDArray[Any]
    probabilities: NDArray[Any]
    groups: NDArray[Any] | None = None

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays by name, without ``groups`` if it is unknown."""
        return {key: a for key in _ARRAYS if (a := getattr(self, key)) is not None}


@dataclass(frozen=True)
class Predictions:
    """The names of the K classes, and the predictions of each part."""

    classes: tuple[str, ...]
    parts: Mapping[Part, PartPredictions]

    def __post_init__(self) -> None:
        if not self.classes or len(set(self.classes)) < len(self.classes):
            raise LmdError(f"predictions: class names must be unique; they are {self.classes}")
        for part, rows in self.parts.items():
            _check(part, rows, len(self.classes))

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        arrays: dict[str, Any] = {
            f"{part}_{key}": array
            for part, rows in self.parts.items()
            for key, array in rows.arrays().items()
        }
        buffer = BytesIO()
        np.savez_compressed(buffer, classes=np.array(self.classes), **arrays)
        return buffer.getvalue()


def _check(part: str, rows: PartPredictions, classes: int) -> None:
    images = len(rows.labels) if rows.labels.ndim else 0
    for key, array in rows.arrays().items():
        shape = (images, classes) if key == "probabilities" else (images,)
        if array.shape != shape or array.dtype.hasobject:
            raise LmdError(
                f"predictions: {part}_{key} must have the shape {shape}; "
                f"it is {array.dtype} {array.shape}"
            )
    if not np.issubdtype(rows.labels.dtype, np.integer):
        raise LmdError(f"predictions: {part}_labels must be whole numbers, not {rows.labels.dtype}")
    if not np.issubdtype(rows.probabilities.dtype, np.floating):
        raise LmdError(f"predictions: {part}_probabilities must be floats")
    if not np.all((rows.probabilities >= 0) & (rows.probabilities <= 1.001)):  # NaN fails too
        raise LmdError(f"predictions: {part}_probabilities must be from 0 to 1")
    if np.any(np.abs(rows.probabilities.sum(axis=1, dtype=np.float64) - 1) > 0.01):
        raise LmdError(f"predictions: {part}_probabilities must sum to 1 in every row")
    if images and not (rows.labels.min() >= 0 and rows.labels.max() < classes):
        raise LmdError(f"predictions: {part}_labels must be below {classes}, the number of classes")


def read_record(path: Path) -> Record:
    """Read a record; the error for a damaged file says what is wrong and what to do."""
    remedy = "restore the file, or remove the run folder and train the run again"
    try:
        values = json.loads(path.read_bytes())
        nested = _nested(values, 50)  # levels; a real record has six
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else f"not valid JSON ({error})"
        raise LmdError(f"{path} cannot be read: {why}; {remedy}") from None
    if not isinstance(values, dict) or nested:
        why = "nested too deeply" if nested else f"a JSON {type(values).__name__}, not an object"
        raise LmdError(f"{path} is not a record: it is {why}; {remedy}")
    if values.get("format") != FORMAT:
        raise LmdError(
            f"{path}: field 'format' must be {FORMAT}, it is {values.get('format')!r}; "
            "read it with the version of lmd that made the run"
        )
    try:
        return Record.model_validate(values)
    except ValidationError as error:
        problem = error.errors()[0]
        field = ".".join(map(str, problem["loc"]))
        where = f"field {field!r}: " if field else ""
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise LmdError(f"{path}: {where}{problem['msg']}{more}; {remedy}") from None


def _nested(value: Any, levels: int) -> bool:
    """Return whether lists and objects are nested deeper than ``levels``."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_nested(entry, levels - 1) for entry in inner)


class Run:
    """The folder of a run, by default below ``runs/``; each file is read when it is first needed.

    ``record`` and ``predictions`` stand for the files.
    """

    def __init__(
        self, path: Path, record: Record | None = None, predictions: Predictions | None = None
    ) -> None:
        self.path = path
        self._record, self._predictions = record, predictions
        self.record_path = path / "record.json"
        self.predictions_path = path / "predictions.npz"
        self.history_path = path / "history.csv"

    def __fspath__(self) -> str:
        """Return the path, so that a run can stand wherever a folder is expected."""
        return str(self.path)

    def __repr__(self) -> str:
        """Return method, data, state and the main numbers."""
        try:
            record, metrics = self.record, self.metrics
        except LmdError:
            return f"<run {self.path}: it has no readable record>"
        head = f"<run {self.path}: {record.method.title} on {record.data.source}, {record.status}"
        keys = [key for key in ("balanced_accuracy", "auc") if key in metrics]
        return f"{head}{''.join(f', {key} {metrics[key].text()}' for key in keys)}>"

    @property
    def record(self) -> Record:
        """The content of ``record.json``."""
        if self._record is None:
            self._record = read_record(self.record_path)
        return self._record

    @property
    def predictions(self) -> Predictions | None:
        """The content of ``predictions.npz``; ``None`` until the run is finished."""
        if self._predictions is None and self.predictions_path.exists():
            predictions = self.read_predictions()
            self._check_same_run(predictions)
            self._predictions = predictions
        return self._predictions

    @property
    def history(self) -> Sequence[HistoryRow]:
        """One row per epoch, from the record or, until the run is finished, ``history.csv``."""
        return self.record.history or self.read_history()

    @property
    def metrics(self) -> dict[str, Estimate]:
        """Value and 95 % interval of each metric in the test part; empty until it is finished.

        ``run.metrics["balanced_accuracy"].value``; ``lmd.scoring.metrics.METRICS`` has the keys.
        """
        return dict(self.record.metrics.get(self.record.part or "test", {}))

    @staticmethod
    def check_free(path: Path, *, overwrite: bool = False, resumable: bool = True) -> None:
        """Raise an ``LmdError`` unless a run may be created here; nothing is changed."""
        if path.exists() and not path.is_dir():
            raise LmdError(f"{path} is a file: choose another folder with --out")
        if not path.exists() or unborn(path):
            return
        if not (path / "record.json").exists():
            raise LmdError(f"{path} exists and is not a run folder: choose another one with --out")
        if not overwrite:
            remedy = "continue it with --resume, " if resumable else ""
            raise LmdError(
                f"{path} already holds a run: {remedy}choose another folder with --out, or "
                "replace it with --overwrite"
            )

    @classmethod
    def create(cls, path: Path, *, overwrite: bool = False) -> "Run":
        """Create a new run folder; a folder with a run is refused unless ``overwrite``."""
        cls.check_free(path, overwrite=overwrite)
        try:
            # The record last: without it, this would not be known as the folder of a run.
            for file in reversed(RUN_FILES):
                (path / file).unlink(missing_ok=True)
            clear_leftovers(path, path / "checkpoint")
            (path / "checkpoint").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LmdError(f"cannot create the run folder {path}: {error.strerror}") from error
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "Run":
        """Open an existing run folder."""
        if not path.exists():
            raise LmdError(f"run folder {path} does not exist")
        if not (path / "record.json").exists():
            raise LmdError(f"{path} is not a run folder: it has no record.json")
        return cls(path)

    def require_finished(self) -> "Run":
        """Return the run itself; one that is not finished is refused."""
        if self.record.status != "finished":
            remedy = f"run `lmd train --resume --out {self.path}`"
            raise LmdError(f"{self.path} is not finished: {remedy}")
        return self

    def make_checkpoint_folder(self) -> None:
        """Make the folder of the checkpoint again if someone has removed it."""
        try:
            (self.path / "checkpoint").mkdir(exist_ok=True)
        except OSError as error:
            raise LmdError(f"cannot write to {self.path}: {error.strerror}") from error

    def is_finished(self) -> bool:
        """Return whether there is the record of a finished run."""
        return self.record_path.exists() and self.record.status == "finished"

    def missing_files(self) -> set[str]:
        """Return the files of this finished run that are not there; it needs no checkpoint."""
        names = {*REQUIRED}
        if self.record.novelty is not None:
            names.add("novelty.safetensors")
        if self.record.request.keep_features:
            names.add("neighbours.npz")
        return {name for name in names if not (self.path / name).exists()}

    def _check_same_run(self, predictions: Predictions) -> None:
        record = self.record
        other = "other classes" if list(predictions.classes) != record.data.classes else ""
        for part in PARTS:
            images = sum(record.data.counts.get(part, []))
            rows = predictions.parts.get(part)
            calibrated = bool(record.candidates) or record.external is not None
            if part == "validation" and not images and calibrated:
                continue  # of training images, by cross-validation
            if not other and images != (0 if rows is None else len(rows.labels)):
                other = f"another number of {part} images ({images} in the record)"
        if other:
            raise LmdError(
                f"{self.predictions_path} has {other} than {self.record_path}: they belong "
                "to different runs; restore the files, or train the run again"
            )

    def write_record(self, record: Record) -> None:
        """Replace ``record.json`` atomically."""
        values = record.model_dump(mode="json")
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(self.record_path, (text + "\n").encode())
        self._record = record

    def write_predictions(self, predictions: Predictions) -> None:
        """Replace ``predictions.npz`` atomically."""
        atomic_write(self.predictions_path, predictions.to_bytes())
        self._predictions = predictions

    def read_predictions(self) -> Predictions:
        """Read ``predictions.npz``, which must exist and be whole."""
        parts: dict[Part, PartPredictions] = {}
        try:
            arrays = read_npz(self.predictions_path)
            for part in PARTS:
                if f"{part}_labels" in arrays:
                    ids, labels, probabilities = (arrays[f"{part}_{key}"] for key in _ARRAYS[:3])
                    if probabilities.dtype == np.uint16:
                        probabilities = probabilities / np.float32(UNIT)
                    groups = arrays.get(f"{part}_groups")
                    parts[part] = PartPredictions(ids, labels, probabilities, groups)
            return Predictions(tuple(str(name) for name in arrays["classes"]), parts)
        except KeyError as error:
            why = f"it has no array {error}"
        except (LmdError, ValueError, TypeError) as error:
            why = str(error)
        raise LmdError(
            f"{self.predictions_path} cannot be read: {why}; restore the file, or train the run "
            "again"
        )

    def write_history(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Replace ``history.csv``, one row per epoch; terms that a stage lacks are empty."""
        columns = list(dict.fromkeys(key for row in rows for key in row))
        atomic_write(self.history_path, csv_text(columns, rows).encode())

    def read_history(self) -> list[HistoryRow]:
        """Read the rows of ``history.csv`` with their numbers; none if there is no file."""
        if not self.history_path.exists():
            return []
        try:
            text = self.history_path.read_text(encoding="utf-8")
            table = csv.DictReader(StringIO(text, newline=""), strict=True)
            rows = [{k: _cell(v) for k, v in row.items() if k is not None} for row in table]
            check_numbers(rows)
        except (OSError, ValueError, csv.Error) as error:
            raise LmdError(
                f"{self.history_path} cannot be read: {error}; remove the file: the record has the "
                "history of a finished run"
            ) from None
        return rows


def unborn(path: Path) -> bool:
    """Return whether a folder is empty, or left by a run that ended before it had a record."""
    inside = {p.name for p in path.iterdir() if p.name != LOCK and not is_leftover(p)}
    if "checkpoint" in inside and not all(map(is_leftover, (path / "checkpoint").iterdir())):
        return False
    # An evaluation writes its predictions just before its record.
    return inside <= {"checkpoint", "predictions.npz"}


def _cell(text: str | None) -> int | float | str | None:
    """Return a cell of the history as a number, as text, or as ``None``.

    >>> [_cell(text) for text in ("3", "0.5", "RRL", "", "nan")]
    [3, 0.5, 'RRL', None, None]
    """
    if not text:
        return None
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        return value if math.isfinite(value) else None
    return text


def of_one_model(path: Path) -> Run:
    """Return the run that trained the model in a folder; an average of several is refused."""
    run = Run.open(path)
    if run.record.folds is None:
        return run
    if run.record.folds.final != "refit":
        raise LmdError(several_models(run.record))
    return Run.open(path / FINAL)


def trainings_of(run: Run) -> list[Record]:
    """Return the records of the runs that trained what a folder ships, if they are still there."""
    folds = run.record.folds
    if folds is None:
        return [run.record]
    names = [FINAL] if folds.final == "refit" else [fold.name for fold in folds.runs]
    trained = [Run(run.path / name) for name in names]
    return [training.record for training in trained if training.record_path.exists()]


def several_models(record: Record) -> str:
    """Return the message for what cannot be done with all folds of a cross-validation."""
    assert record.folds is not None
    names = [fold.name for fold in record.folds.runs[:1]]
    names += [FINAL] if record.folds.final == "refit" else []
    return (
        f"{record.name} is a cross-validation, and this is about one of its models: give its "
        f"folder, {' or '.join(f'{record.name}/{name}' for name in names)}"
    )


def paired(run: Run, other: Run, part: Part = "test") -> tuple[PartPredictions, NDArray[Any]]:
    """Return a part of a run, and the probabilities ``(N, K)`` of another run in the same order.

    Runs with other images, classes or labels are refused.
    """
    mine, theirs = scored_part(run, part), scored_part(other, part)
    rows, columns = matched(run.path, run.record.data.classes, mine.ids, mine.labels, other, part)
    return mine, theirs.probabilities[np.ix_(rows, columns)]


def matched(
    folder: Path,
    classes: Sequence[str],
    ids: NDArray[Any],
    labels: NDArray[Any],
    other: Run,
    part: Part = "test",
) -> tuple[list[int], list[int]]:
    """Return the rows ``(N,)`` and columns ``(K,)`` of another run for the images of ``folder``.

    An ``LmdError`` unless it has the same images, classes and labels.
    """
    theirs, names = scored_part(other, part), other.record.data.classes
    if set(classes) != set(names):
        raise LmdError(f"{other.path} has other classes than {folder}: they cannot be paired")
    index = {name: i for i, name in enumerate(theirs.ids.tolist())}
    rows = [index[name] for name in ids.tolist() if name in index]
    if not len(rows) == len(ids) == len(theirs.ids):
        raise LmdError(
            f"{other.path} was scored on other images than {folder} ({len(rows)} of {len(ids)} "
            "in common): they cannot be paired; give runs on the same split"
        )
    columns = [names.index(name) for name in classes]
    if not np.array_equal(labels, np.argsort(columns)[theirs.labels[rows]]):
        raise LmdError(f"{folder} and {other.path} have different labels for the same images")
    return rows, columns


def scored_part(run: Run, part: Part = "test") -> PartPredictions:
    """Return the predictions of a part with scores; an ``LmdError`` if there are none."""
    rows = run.predictions.parts.get(part) if run.predictions else None
    if not run.record.metrics.get(part) or rows is None:
        raise LmdError(
            f"{run.path} has no {part} metrics in record.json or no {part} predictions in "
            f"predictions.npz: only runs with a scored {part} part can be compared"
        )
    return rows

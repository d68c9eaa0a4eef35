"""Pairing of two runs on the same images."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.runfolder.folder import RunFiles
from lmd.runfolder.predictions import PartPredictions
from lmd.runfolder.record import Part


def paired(
    run: RunFiles, other: RunFiles, part: Part = "test"
) -> tuple[PartPredictions, NDArray[Any]]:
    """A part of a run, and the probabilities ``(N, K)`` of another run in the same order.

    Runs with other images, classes or labels are refused.
    """
    mine, theirs = scored_part(run, part), scored_part(other, part)
    rows, columns = matched(run.folder, run.record.data.classes, mine.ids, mine.labels, other, part)
    return mine, theirs.probabilities[np.ix_(rows, columns)]


def matched(
    folder: Path,
    classes: Sequence[str],
    ids: NDArray[Any],
    labels: NDArray[Any],
    other: RunFiles,
    part: Part = "test",
) -> tuple[list[int], list[int]]:
    """The rows ``(N,)`` and columns ``(K,)`` of another run for the images of ``folder``.

    An ``LmdError`` unless it has the same images, classes and labels.
    """
    theirs, names = scored_part(other, part), other.record.data.classes
    if set(classes) != set(names):
        raise LmdError(f"{other.folder} has other classes than {folder}: they cannot be paired")
    places = {name: i for i, name in enumerate(theirs.ids.tolist())}
    rows = [places[name] for name in ids.tolist() if name in places]
    if not len(rows) == len(ids) == len(theirs.ids):
        raise LmdError(
            f"{other.folder} was scored on other images than {folder} ({len(rows)} of {len(ids)} "
            "in common): they cannot be paired; give runs on the same split"
        )
    columns = [names.index(name) for name in classes]
    if not np.array_equal(labels, np.argsort(columns)[theirs.labels[rows]]):
        raise LmdError(f"{folder} and {other.folder} have different labels for the same images")
    return rows, columns


def scored_part(run: RunFiles, part: Part = "test") -> PartPredictions:
    """The predictions of a part with scores; an ``LmdError`` if there are none."""
    found = run.predictions.parts.get(part) if run.predictions else None
    if not run.record.metrics.get(part) or found is None:
        raise LmdError(
            f"{run.folder} has no {part} metrics in record.json or no {part} predictions in "
            f"predictions.npz: only runs with a scored {part} part can be compared"
        )
    return found

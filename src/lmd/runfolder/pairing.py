"""Pairing of two runs on the same images."""

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
    mine, theirs = _scored(run, part), _scored(other, part)
    classes, names = run.record.data.classes, other.record.data.classes
    if set(classes) != set(names):
        raise LmdError(f"{other.folder} has other classes than {run.folder}: they cannot be paired")
    places = {name: i for i, name in enumerate(theirs.ids.tolist())}
    rows = [places[name] for name in mine.ids.tolist() if name in places]
    if not len(rows) == len(mine.ids) == len(theirs.ids):
        raise LmdError(
            f"{other.folder} was scored on other images than {run.folder} ({len(rows)} of "
            f"{len(mine.ids)} in common): they cannot be paired; give runs on the same split"
        )
    columns = [names.index(name) for name in classes]
    if not np.array_equal(mine.labels, np.argsort(columns)[theirs.labels[rows]]):
        raise LmdError(f"{run.folder} and {other.folder} have different labels for the same images")
    return mine, theirs.probabilities[np.ix_(rows, columns)]


def _scored(run: RunFiles, part: Part) -> PartPredictions:
    found = run.predictions.parts.get(part) if run.predictions else None
    if not run.record.metrics.get(part) or found is None:
        raise LmdError(
            f"{run.folder} has no {part} metrics in record.json or no {part} predictions in "
            f"predictions.npz: only runs with a scored {part} part can be compared"
        )
    return found

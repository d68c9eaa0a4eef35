"""Two or more runs side by side, on the same test images."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.report import charts, figures, view
from lmd.runfolder.folder import RunFiles
from lmd.runfolder.predictions import PartPredictions
from lmd.scoring.intervals import paired_differences
from lmd.scoring.sample import Sample

# Few on purpose: the p-values are not corrected for their number, and the page says so.
TESTED = ("balanced_accuracy", "bacc_tail")


def check_same_test(run: RunFiles, other: RunFiles) -> None:
    """Raise unless both runs were scored on the same images with the same true classes."""
    if set(run.record.data.classes) != set(other.record.data.classes):
        raise LmdError(
            f"compare: {other.folder} has other classes than {run.folder}; "
            "runs can be compared only on the same test images"
        )
    truths = []
    for each in (run, other):
        found = _tested(each)
        names = np.asarray(each.record.data.classes)[found.labels]
        truths.append(dict(zip(found.ids.tolist(), names, strict=True)))
    if truths[0] != truths[1]:
        shared = len(truths[0].items() & truths[1].items())
        raise LmdError(
            f"compare: {other.folder} was tested on other images than {run.folder} "
            f"({shared} of {len(truths[0])} in common); give runs on the same split"
        )


def _tested(run: RunFiles) -> PartPredictions:
    found = run.predictions.parts.get("test") if run.predictions else None
    if run.record.part != "test" or found is None:
        raise LmdError(
            f"compare: {run.folder} has no test metrics in record.json or no test predictions in "
            "predictions.npz; only runs whose test part was scored can be compared"
        )
    return found


def comparison(
    run: RunFiles, others: Sequence[RunFiles], classes: Sequence[view.Row]
) -> dict[str, Any]:
    """What the page shows of several runs: metrics, recalls, and paired differences."""
    runs = [run, *others]
    by_run = [{row["key"]: row for row in view.metric_rows(each.record)} for each in runs]
    tables = [view.class_rows(other.record) for other in others]
    recalls = [{row["name"]: row for row in table} for table in (classes, *tables)]
    return {
        "runs": [
            {
                "title": each.record.method.title,
                "name": each.record.name,
                "mark": figures.legend_mark(charts.RUN_SHAPES[i % 4], f"run{i % 4}"),
            }
            for i, each in enumerate(runs)
        ],
        "metrics": [
            {"title": row["title"], "cells": [metrics.get(key) for metrics in by_run]}
            for key, row in by_run[0].items()
        ],
        "recalls": [
            {"name": row["name"], "cells": [table[row["name"]] for table in recalls]}
            for row in classes
        ],
        "figure": figures.comparison_figure(classes, tables),
        "pairs": [_pair(run, other) for other in others],
    }


def _pair(run: RunFiles, other: RunFiles) -> dict[str, Any]:
    """Differences of two runs, and on how many test images only one of them is right."""
    found, tiers = _tested(run), run.record.tiers.assignment
    labels, mine, theirs = found.labels, found.probabilities, _aligned(run, other)
    right, right_too = mine.argmax(1) == labels, theirs.argmax(1) == labels
    metrics = {row["key"]: row["title"] for row in view.metric_rows(run.record)}
    a, b = (Sample(labels, each, tiers, found.groups) for each in (mine, theirs))
    gaps = paired_differences(a, b, [key for key in TESTED if key in metrics])
    differences = [
        {"title": metrics[key], **asdict(gap)}
        for key, gap in gaps.items()
        if np.isfinite([gap.value, gap.low, gap.high]).all()
    ]
    return {
        "title": other.record.method.title,
        "name": other.record.name,
        "only_mine": int((right & ~right_too).sum()),
        "only_theirs": int((right_too & ~right).sum()),
        "images": len(labels),
        "differences": differences,
    }


def _aligned(run: RunFiles, other: RunFiles) -> NDArray[Any]:
    """The other run's probabilities ``(N, K)`` in this run's order of images and classes."""
    found, names = _tested(other), other.record.data.classes
    row = {name: i for i, name in enumerate(found.ids.tolist())}
    rows = [row[name] for name in _tested(run).ids.tolist()]
    columns = [names.index(name) for name in run.record.data.classes]
    return found.probabilities[np.ix_(rows, columns)]

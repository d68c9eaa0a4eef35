"""Several runs side by side, on the same test images."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lmd.report import charts, figures, view
from lmd.runfolder.folder import RunFiles
from lmd.runfolder.pairing import paired
from lmd.scoring.comparing import compare, p_text
from lmd.scoring.metrics import METRICS
from lmd.scoring.sample import Sample


def comparison(
    run: RunFiles, others: Sequence[RunFiles], classes: Sequence[view.Row], resamples: int = 1000
) -> dict[str, Any]:
    """The metrics, recalls and paired differences of several runs, as the page shows them."""
    runs, pairs = [run, *others], [_pair(run, other, resamples) for other in others]
    by_run = [{row["key"]: row for row in view.metric_rows(each.record)} for each in runs]
    recalls = [{row["name"]: row for row in view.class_rows(each.record)} for each in runs]
    return {
        "runs": [
            {
                "title": each.record.method.title,
                "name": each.record.name,
                "mark": figures.legend_mark(charts.RUN_SHAPES[i % 4], f"run{i % charts.MOST_RUNS}"),
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
        "figure": figures.comparison_figure(classes, recalls, [each.record.name for each in runs]),
        "pairs": pairs,
        "alike": len({each.record.method.title for each in runs}) < len(runs),
    }


def _pair(run: RunFiles, other: RunFiles, resamples: int) -> dict[str, Any]:
    """Differences between two runs, and the number of images on which only one of them is right."""
    found, theirs = paired(run, other)
    labels, mine, tiers = found.labels, found.probabilities, run.record.tiers.assignment
    right, right_too = mine.argmax(1) == labels, theirs.argmax(1) == labels
    a, b = (Sample(labels, each, tiers, found.groups) for each in (mine, theirs))
    differences = [
        {
            "title": METRICS[key].title,
            "key": key,
            "same_as": METRICS[one.same_as].title.lower() if one.same_as else "",
            "p": "–" if one.corrected is None else p_text(one.corrected).removeprefix("= "),
            "why": one.why,
            **asdict(one.difference),
        }
        for key, one in compare(a, b, resamples=resamples).items()
        if one.known
    ]
    return {
        "title": other.record.method.title,
        "name": other.record.name,
        "only_mine": int((right & ~right_too).sum()),
        "only_theirs": int((right_too & ~right).sum()),
        "images": len(labels),
        "differences": differences,
    }

"""Show several runs side by side, on the same test images."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from markupsafe import Markup

from lmd.report import bars as charts
from lmd.report import figures, view
from lmd.report.curves import Bin, reliability
from lmd.report.svg import savable
from lmd.runs.folder import Run, paired
from lmd.scoring.comparing import compare, p_text
from lmd.scoring.metrics import METRICS
from lmd.scoring.proportions import effective, wilson
from lmd.scoring.sample import ECE_BINS, Sample


def reliability_figure(name: str, sample: Sample) -> tuple[Markup, list[Bin]]:
    """The diagram with its data, and its bins."""
    bins = reliability_bins(sample)
    return savable(name, reliability(name, bins), [asdict(each) for each in bins]), bins


def reliability_bins(sample: Sample) -> list[Bin]:
    """The bins of the expected calibration error, each with its accuracy.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", equations 2 and 3. Images of one
    patient or lesion count as in the intervals of recall.
    """
    result = []
    for i in range(ECE_BINS):
        inside = sample.bins == i
        count, hits = int(inside.sum()), int(sample.right[inside].sum())
        low, high = wilson(*effective(sample.right[inside], sample.groups_in(inside)))
        mean = float(sample.confidence[inside].mean()) if count else (i + 0.5) / ECE_BINS
        share = hits / count if count else 0.0
        result.append(Bin(i / ECE_BINS, (i + 1) / ECE_BINS, count, mean, share, low, high))
    return result


def comparison(
    run: Run, others: Sequence[Run], classes: Sequence[view.Row], resamples: int = 1000
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


def _pair(run: Run, other: Run, resamples: int) -> dict[str, Any]:
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

"""Runs as a figure shows them: the seeds of one method with the same settings on the same data."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import unknown
from lmd.benchmark.figures.sources import Found, Study
from lmd.benchmark.tables.results import Entry, Estimate, RunResult
from lmd.runs.folder import Run
from lmd.runs.record import Record, training_minutes
from lmd.scoring.intervals import Difference
from lmd.scoring.metrics import METRICS

RESAMPLES = 1000
NOT_COMPARED = {"seed", "workers", "methods"}  # do not distinguish two rows of one method


@dataclass(frozen=True)
class ClassPoint:
    """The recall of a class, averaged over seeds, with the mean limits of its intervals."""

    name: str
    tier: str
    train: int
    support: int
    recall: float
    low: float
    high: float


@dataclass(frozen=True)
class Series:
    """The runs of one row, by seed; ``values`` are the settings that other rows do not share."""

    key: str
    title: str
    values: dict[str, Any]
    runs: tuple[Found, ...]

    @property
    def record(self) -> Record:
        """The record of the first seed."""
        return self.runs[0].record

    @property
    def data(self) -> str:
        """Which images these are."""
        return self.record.data.fingerprint

    @cached_property
    def _entry(self) -> Entry | None:
        """The test predictions of every seed, or ``None`` where only records are kept."""
        folders = [run.folder for run in self.runs if run.folder is not None]
        places = [Run(folder) for folder in folders]
        if len(places) < len(self.runs) or not all(p.predictions_path.exists() for p in places):
            return None
        found = [
            RunResult(place, run.seed, RESAMPLES)
            for place, run in zip(places, self.runs, strict=True)
        ]
        for one in found[1:]:
            if not one.same_images(found[0]):
                raise LmdError(f"{one.folder} and {found[0].folder} have different test images")
        if any(one.groups is None for one in found):
            for one in found:
                one.groups = None
        return Entry(found)

    def value(self, run: Found, metric: str) -> float | None:
        """The value of a metric in one run."""
        part = run.record.part
        found = run.record.metrics[part].get(metric) if part else None
        return found.value if found else None

    def mean(self, metric: str) -> float | None:
        """The mean over the seeds, without an interval; ``None`` if a run lacks the metric."""
        values = [self.value(run, metric) for run in self.runs]
        known = [value for value in values if value is not None]
        return fmean(known) if known and len(known) == len(values) else None

    def estimate(self, metric: str) -> tuple[Estimate | None, str]:
        """Mean over the seeds with its 95 % interval, and what the interval reflects."""
        values = [v for run in self.runs if (v := self.value(run, metric)) is not None]
        if not values or len(values) < len(self.runs):
            return None, ""
        if len(values) == 1:
            part = self.record.part
            assert part is not None
            found = self.record.metrics[part][metric]
            return Estimate(values[0], found.low, found.high, None), "test images"
        if self._entry is not None:
            return self._entry.estimate(metric), "test images, mean over seeds"
        from scipy import stats

        mean, sd = fmean(values), stdev(values)
        half = float(stats.t.ppf(0.975, len(values) - 1)) * sd / math.sqrt(len(values))
        return Estimate(mean, mean - half, mean + half, sd), "seeds (Student's t)"

    def difference(self, other: "Series", metric: str) -> Difference | None:
        """This row minus the other on the same test images; ``None`` where that is not known."""
        mine, theirs = self._entry, other._entry
        if mine is None or theirs is None:
            return None
        # Groups of images are drawn for both or for none.
        if (mine.runs[0].groups is None) != (theirs.runs[0].groups is None):
            return None
        return mine.difference(theirs, metric)

    def classes(self) -> list[ClassPoint]:
        """Recall of each class that has images in the reported part, most training images first."""
        found = []
        parts = [run.record.per_class[run.record.part or "test"] for run in self.runs]
        for rows in zip(*parts, strict=True):
            recalls = [row.recall for row in rows]
            values = [each.value for each in recalls if each.value is not None]
            lows = [each.low for each in recalls if each.low is not None]
            highs = [each.high for each in recalls if each.high is not None]
            if len(values) == len(lows) == len(highs) == len(rows):
                limits = fmean(values), fmean(lows), fmean(highs)
                about = rows[0]
                found.append(
                    ClassPoint(about.name, about.tier, about.train, about.support, *limits)
                )
        return sorted(found, key=lambda point: -point.train)

    def class_rows(self) -> list[dict[str, Any]]:
        """The recall of each class as rows of a CSV file."""
        return [
            {
                "method": self.key,
                "title": self.title,
                "class": point.name,
                "tier": point.tier,
                "training_images": point.train,
                "images": point.support,
                "recall": point.recall,
                "low": point.low,
                "high": point.high,
                "seeds": len(self.runs),
            }
            for point in self.classes()
        ]

    def minutes(self) -> float:
        """Minutes of one processor that training took, averaged over the seeds."""
        return fmean(training_minutes(run.record) for run in self.runs)


def group(study: Study, wanted: Sequence[str] | None = None) -> list[Series]:
    """The rows of a study in its order; ``wanted`` are keys of methods."""
    keys = list(dict.fromkeys(run.record.method.key for run in study.runs))
    for key in wanted or ():
        if key not in keys:
            there_are = "no finished run; there are"
            raise LmdError(f"--methods: {unknown('method', key, keys, there_are=there_are)}")
    order = list(wanted or [*(k for k in study.order if k in keys), *keys])
    result = []
    for key in dict.fromkeys(order):
        result += _of_method(key, [r for r in study.runs if r.record.method.key == key])
    return result


def check_metrics(names: Sequence[str]) -> list[str]:
    """The keys of metrics, checked."""
    for name in names:
        if name not in METRICS:
            raise LmdError(f"--metrics: {unknown('metric', name, METRICS)}")
    return list(names)


def axis_title(metric: str, *, short: bool = False) -> str:
    """The title of an axis with a hundred times the metric.

    >>> axis_title("balanced_accuracy"), axis_title("mcc"), axis_title("auc", short=True)
    ('balanced accuracy, %', 'MCC × 100', 'AUC × 100')
    """
    about = METRICS[metric]
    title = about.short if short else about.title
    if not short and not title.isupper():
        title = title[0].lower() + title[1:]
    return f"{title}, %" if about.rate else f"{title} × 100"


def same_data(series: Sequence[Series], figure: str) -> None:
    """Refuse rows that were tested on different images."""
    first = series[0]
    for one in series[1:]:
        if one.data != first.data:
            raise LmdError(
                f"the {figure} figure needs runs on the same data, but {one.runs[0].where} and "
                f"{first.runs[0].where} have different images or parts: draw a figure of each"
            )


def one_device(series: Sequence[Series]) -> str:
    """``CPU`` or ``GPU``; times of both cannot be in one figure."""
    kinds = {"CPU" if r.record.machine.device == "cpu" else "GPU" for s in series for r in s.runs}
    if len(kinds) > 1:
        raise LmdError(
            "these runs were trained on CPUs and on GPUs, so their times cannot be compared: "
            "choose rows of one kind with --methods"
        )
    return kinds.pop()


def settings_of(record: Record) -> dict[str, Any]:
    """All settings of method and protocol that can distinguish two rows."""
    both = record.method.settings | record.protocol
    return {k: v for k, v in both.items() if k not in NOT_COMPARED}


def reference_of(series: Sequence[Series], study: Study) -> str | None:
    """The plan's reference; without a plan, the method with the most ablations, if any has one."""
    if study.reference is not None:
        return study.reference
    sizes = {one.key: len(family(one, series)) for one in series}
    best = max(sizes, key=lambda key: sizes[key])
    return best if sizes[best] > 1 else None


def reference_row(series: Sequence[Series], study: Study, wanted: str | None) -> Series | None:
    """The row of ``--reference``, or of the reference if none is ``wanted``, if there is one."""
    key = wanted or reference_of(series, study)
    found = next((one for one in series if one.key == key), None)
    if found is None and wanted is not None:
        known = dict.fromkeys(one.key for one in series)
        there_are = "no finished run; there are"
        raise LmdError(f"--reference: {unknown('method', wanted, known, there_are=there_are)}")
    return found


def without_ablations(series: Sequence[Series], study: Study) -> list[Series]:
    """All rows but the ablations of the reference."""
    reference = reference_of(series, study)
    main = [one for one in series if one.key == reference]
    own = {each.key for one in main for each in family(one, series)} - {reference}
    return [one for one in series if one.key not in own]


def family(reference: Series, series: Sequence[Series]) -> list[Series]:
    """A row and those whose key extends its key and that have the same settings."""
    names = set(settings_of(reference.record))
    return [
        one
        for one in series
        if one is reference
        or (one.key.startswith(f"{reference.key}_") and set(settings_of(one.record)) == names)
    ]


def _of_method(key: str, runs: Sequence[Found]) -> list[Series]:
    """The rows of one method: on each data set, one for each combination of settings."""
    result = []
    for data in dict.fromkeys(run.record.data.fingerprint for run in runs):
        here = [run for run in runs if run.record.data.fingerprint == data]
        found: dict[str, list[Found]] = {}
        for run in here:
            about = json.dumps(settings_of(run.record), sort_keys=True, default=str)
            found.setdefault(about, []).append(run)
        every = [settings_of(of[0].record) for of in found.values()]
        names = dict.fromkeys(name for one in every for name in one)
        differ = [n for n in names if len({json.dumps(e.get(n), default=str) for e in every}) > 1]
        for of, settings in zip(found.values(), every, strict=True):
            result.append(_row_of(key, of, {name: settings.get(name) for name in differ}))
    return result


def _row_of(key: str, runs: Sequence[Found], values: dict[str, Any]) -> Series:
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in pairwise(ordered):
        if one.seed == other.seed:
            raise LmdError(
                f"two runs of {one.record.method.title} have the same seed, settings and data "
                f"({one.where}, {other.where}): give only one of them"
            )
    said = ", ".join(f"{name} = {value}" for name, value in values.items())
    title = runs[0].record.method.title + (f" ({said})" if said else "")
    return Series(key, title, values, tuple(ordered))

"""What the sections of a report are made from, and the sections about the scores of a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from markupsafe import Markup

from lmd.report import charts
from lmd.report.curves import Bin, reliability
from lmd.report.svg import savable
from lmd.report.wording import fitted_on
from lmd.runs.folder import Run
from lmd.runs.record import Record
from lmd.scoring.estimates import Definition, Estimate
from lmd.scoring.metrics import ECE_BINS, METRICS, Sample
from lmd.scoring.proportions import effective, wilson, without_temperature
from lmd.scoring.tiers import TIERS

UNKNOWN = Estimate(value=None)
PARTS = ("train", "validation", "test")
Values = dict[str, Any]  # what the template of a section is filled with


@dataclass(frozen=True)
class ClassRow:
    """A class with its images and its scores in the reported part; ``index`` is its label.

    ``counts`` has its images by part, ``None`` where a cross-validation has no such part.
    """

    index: int
    name: str
    tier: str
    counts: dict[str, int | None]
    support: int = 0
    units: int | None = None
    recall: Estimate = UNKNOWN
    precision: Estimate = UNKNOWN
    f1: Estimate = UNKNOWN

    @property
    def train(self) -> int:
        """The number of training images."""
        return self.counts["train"] or 0

    def point(self, estimate: Estimate, images: int | None = None) -> charts.Point:
        """Return a point in the colour and shape of the tier."""
        return charts.Point.make(self.name, estimate, self.tier, images=images)

    def cells(self, title: str, estimate: Estimate) -> dict[str, Any]:
        """Return the cells of a figure's data: the class, its tier and the estimate."""
        numbers = {title: estimate.value, "low": estimate.low, "high": estimate.high}
        return {"class": self.name, "tier": self.tier, **numbers}


@dataclass(frozen=True)
class Report:
    """A run, the ``others`` beside it, and what to show of them.

    ``resamples`` is for the paired differences, ``images`` says whether to show pictures.
    """

    run: Run
    others: Sequence[Run] = ()
    resamples: int = 1000
    images: bool = True

    @property
    def record(self) -> Record:
        """The record of the run."""
        return self.run.record

    @cached_property
    def metrics(self) -> dict[str, Estimate]:
        """The metrics of the reported part."""
        return self.run.metrics if self.record.part else {}

    @cached_property
    def classes(self) -> list[ClassRow]:
        """The classes, most training images first."""
        return class_rows(self.record)

    @property
    def headline(self) -> Estimate | None:
        """Balanced accuracy, if it was recorded."""
        return self.metrics.get("balanced_accuracy")

    @property
    def grouped(self) -> bool:
        """Whether the patients or lesions of each class are known."""
        return any(row.units is not None for row in self.classes)

    @property
    def legend(self) -> list[tuple[str, Markup]]:
        """The mark of each tier that has a class."""
        return charts.tier_legend([t for t in TIERS if any(row.tier == t for row in self.classes)])

    def sample(self) -> Sample | None:
        """Return the predictions for the reported part, if there are any."""
        part, predictions = self.record.part, self.run.predictions
        rows = predictions.parts.get(part) if predictions and part else None
        if rows is None or not len(rows.labels):
            return None
        return Sample(rows.labels, rows.probabilities, groups=rows.groups)

    def define(self, key: str) -> Definition:
        """Return title and definition of a number."""
        title = key.replace("_", " ").capitalize()
        return self.record.definitions.get(key, Definition(title=title, definition=""))


def class_rows(record: Record) -> list[ClassRow]:
    """Return a row for each class, most training images first."""
    scores = {row.name: row for row in record.per_class.get(record.part, [])} if record.part else {}
    # All folds of a cross-validation together have no validation part.
    counts = {
        part: images
        for part, images in record.data.counts.items()
        if record.folds is None or any(images)
    }
    rows = []
    for k, name in enumerate(record.data.classes):
        images = {part: counts[part][k] if part in counts else None for part in PARTS}
        if name in scores:
            score = scores[name]
            numbers = score.recall, score.precision, score.f1
            row = ClassRow(k, name, score.tier, images, score.support, score.units, *numbers)
        else:
            row = ClassRow(k, name, record.tiers.assignment[k], images)
        rows.append(row)
    return sorted(rows, key=lambda row: -row.train)


def counts_view(report: Report) -> Values:
    """Bars of the images of each class."""
    rows = [(row.name, row.tier, list(row.counts.values())) for row in report.classes]
    data = [{"class": row.name, "tier": row.tier, **row.counts} for row in report.classes]
    return {"figure": savable("counts", charts.count_bars("counts", rows), data) if rows else ""}


def recall_view(report: Report) -> Values | None:
    """Recall of each class and tier, and recall against training images."""
    if report.record.part is None:
        return None
    rows = [
        charts.DotRow(
            row.name,
            f"{row.recall.value_text('.1%')} · n = {row.support}",
            [row.point(row.recall, row.support)],
        )
        for row in report.classes
    ]
    reference = report.headline.value if report.headline else None
    data = [_recall_cells(row) for row in report.classes]
    return {
        "figure": charts.dots_figure("recall", "Recall of each class", rows, data, reference),
        "by_count": _by_count_figure(report.classes),
        "tiers": _tiers_figure(report),
    }


def _recall_cells(row: ClassRow) -> dict[str, Any]:
    images = {"training_images": row.counts["train"], "images": row.support}
    return row.cells("recall", row.recall) | images


def _by_count_figure(classes: Sequence[ClassRow]) -> Markup | None:
    """Return recall against training images, unless fewer than two classes have both."""
    rows = [row for row in classes if row.train and row.recall.value is not None]
    if len(rows) < 2:
        return None
    points = [(row.train, row.point(row.recall, row.support)) for row in rows]
    drawing = charts.against_counts("by-count", points)
    return savable("recall by training images", drawing, [_recall_cells(row) for row in rows])


def _tiers_figure(report: Report) -> Markup | None:
    """Return balanced accuracy of the tiers that have classes."""
    sizes = Counter(row.tier for row in report.classes)
    rows, data = [], []
    for tier in TIERS:
        estimate = report.metrics.get(f"bacc_{tier}")
        if not sizes[tier] or estimate is None:
            continue
        label = f"{tier} ({sizes[tier]} class{'es' if sizes[tier] != 1 else ''})"
        note = " · ".join(estimate.cells(".1%"))
        rows.append(charts.DotRow(label, note, [charts.Point.make(tier, estimate, tier)]))
        limits = {"low": estimate.low, "high": estimate.high}
        values = {"tier": tier, "classes": sizes[tier], "balanced_accuracy": estimate.value}
        data.append(values | limits)
    title = "Balanced accuracy of head, medium and tail"
    return charts.dots_figure("tiers", title, rows, data) if rows else None


def confusion_view(report: Report) -> Values | None:
    """The confusion matrix, most frequent class first."""
    record = report.record
    matrix = record.confusion.get(record.part) if record.part else None
    if not matrix:
        return None
    names = [row.name for row in report.classes]
    order = [row.index for row in report.classes]
    ordered = [[matrix[i][j] for j in order] for i in order]
    data = [
        {"true": names[i], "predicted": names[j], "images": images}
        for i, row in enumerate(ordered)
        for j, images in enumerate(row)
    ]
    return {"figure": savable("confusion", charts.confusion("confusion", names, ordered), data)}


def calibration_view(report: Report) -> Values | None:
    """The reliability diagram, with the temperature and without it."""
    sample = report.sample()
    if sample is None:
        return None
    record = report.record
    figure, bins = _reliability_figure("reliability", sample)
    total = sum(one.count for one in bins)
    before, temperature = None, record.model.temperature
    # A mean over mirror images has no logits that could be multiplied by it.
    if temperature != 1 and record.tta is None:
        raw = without_temperature(sample.probabilities, temperature)
        before, _ = _reliability_figure(
            "reliability-before", Sample(sample.labels, raw, groups=sample.groups)
        )
    return {
        "figure": figure,
        "before": before,
        "error": report.metrics.get("ece") or Estimate(value=METRICS["ece"].value(sample)),
        "bins": len(bins),
        "gap": sum(one.count * (one.confidence - one.accuracy) for one in bins) / total,
        "errors": record.calibration.get(record.part) if record.part else None,
        "fitted_on": fitted_on(record),
    }


def _reliability_figure(name: str, sample: Sample) -> tuple[Markup, list[Bin]]:
    bins = reliability_bins(sample)
    return savable(name, reliability(name, bins), [asdict(one) for one in bins]), bins


def reliability_bins(sample: Sample) -> list[Bin]:
    """Return the bins of the expected calibration error, each with its accuracy.

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

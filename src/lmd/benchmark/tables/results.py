"""What a benchmark left on disk, by method and point: values, intervals, paired differences."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.benchmark.plan import Plan
from lmd.runfolder.folder import RunFiles, RunFolder
from lmd.scoring import estimates
from lmd.scoring.intervals import Difference, difference, interval
from lmd.scoring.resampling import Draws, bootstrap
from lmd.scoring.sample import Sample


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, its 95 % interval over test images, and the deviation over seeds."""

    mean: float
    low: float | None
    high: float | None
    sd: float | None


class RunResult:
    """One finished run; its test images are kept in the order of their ids."""

    def __init__(self, files: RunFiles, seed: int, resamples: int) -> None:
        self.folder, self.record = files.folder, files.record
        self.seed, self.resamples = seed, resamples
        found = files.predictions.parts.get("test") if files.predictions else None
        if self.record.part != "test" or found is None:
            raise LmdError(f"{files.folder} has no test predictions: it cannot be in a table")
        # Same order, same seed: the resamples of two runs draw the same images.
        order = np.argsort(found.ids)
        self.ids: NDArray[Any] = found.ids[order]
        self.labels: NDArray[Any] = found.labels[order]
        self._probabilities: NDArray[Any] = found.probabilities[order]
        # Which images are of one patient or lesion, where that is known.
        self.groups = None if found.groups is None else found.groups[order]

    def recorded(self, metric: str) -> estimates.Estimate:
        """The record's value and interval."""
        return self.record.metrics["test"].get(metric, estimates.Estimate(value=None))

    def value(self, metric: str) -> float | None:
        """The record's value."""
        return self.recorded(metric).value

    @cached_property
    def draws(self) -> Draws:
        """Every metric on the resamples."""
        tiers = self.record.tiers.assignment
        sample = Sample(self.labels, self._probabilities, tiers, self.groups)
        return bootstrap(sample, resamples=self.resamples)

    def same_images(self, other: "RunResult") -> bool:
        """Whether both were tested on the same images with the same classes."""
        return (
            self.record.data.classes == other.record.data.classes
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.labels, other.labels)
        )


@dataclass(frozen=True)
class Entry:
    """The finished runs of one method at one point, by seed."""

    runs: Sequence[RunResult]

    def estimate(self, metric: str) -> Estimate | None:
        """``None`` where the metric cannot be computed.

        With one seed the interval is the record's. With more, every resample of the test images
        gives the mean over seeds, and the interval is that of these means.
        """
        values = [v for run in self.runs if (v := run.value(metric)) is not None]
        if not values or len(values) < len(self.runs):
            return None
        if len(values) == 1:
            found = self.runs[0].recorded(metric)
            return Estimate(values[0], found.low, found.high, None)
        mean = fmean(values)
        low, high = interval(_mean_draws(self.runs, metric), mean)
        if low == high:
            # Every class all right or all wrong: the records have limits that know better.
            entries = [run.recorded(metric) for run in self.runs]
            low = fmean(mean if e.low is None else e.low for e in entries)
            high = fmean(mean if e.high is None else e.high for e in entries)
        known = math.isfinite(low) and math.isfinite(high)
        return Estimate(mean, low if known else None, high if known else None, stdev(values))

    def difference(self, other: "Entry", metric: str) -> Difference | None:
        """Mean over the common seeds, this minus the other, with paired resamples.

        ``None`` where there is no common seed or they were not tested on the same images.
        """
        mine = {run.seed: run for run in self.runs}
        theirs = {run.seed: run for run in other.runs}
        seeds = [seed for seed in mine if seed in theirs]
        if not seeds or not self.runs[0].same_images(other.runs[0]):
            return None
        gaps = [_gap(mine[s].value(metric), theirs[s].value(metric)) for s in seeds]
        known = [gap for gap in gaps if gap is not None]
        if len(known) < len(gaps):
            return None
        value = fmean(known)
        draws = _mean_draws([mine[s] for s in seeds], metric) - _mean_draws(
            [theirs[s] for s in seeds], metric
        )
        if np.isnan(draws).any():
            return None
        return difference(value, draws)


@dataclass(frozen=True)
class Results:
    """A plan and what of it is finished; ``missing`` names the rest."""

    plan: Plan
    resamples: int
    entries: dict[tuple[str, int], Entry]
    missing: list[str]

    def entry(self, method: str, point: int) -> Entry | None:
        """The runs of a method at a point; a method that is not swept is the same at each."""
        where = point if self.swept(method) else 0
        return self.entries.get((method, where))

    def swept(self, method: str) -> bool:
        """Whether the plan has a run of this method at more points than the first."""
        return any(run.method == method and run.point > 0 for run in self.plan.runs)

    @property
    def grouped(self) -> bool:
        """Whether all runs know which test images are of one patient or lesion."""
        return all(run.groups is not None for run in self.runs)

    @property
    def runs(self) -> list[RunResult]:
        """All finished runs."""
        return [run for entry in self.entries.values() for run in entry.runs]


def enough_resamples(plan: Plan) -> int:
    """A thousand; ten times as many where Holm's correction for many rows would blur p-values."""
    return 1000 if len(plan.rows) <= 3 else 10_000


def read_results(plan: Plan, folder: Path, *, resamples: int | None = None) -> Results:
    """Read every finished run; those of one point must have been tested on the same images."""
    resamples = enough_resamples(plan) if resamples is None else resamples
    found: dict[tuple[str, int], list[RunResult]] = {}
    missing = []
    for run in plan.runs:
        place = RunFolder(folder / run.name)
        if not place.record_path.exists() or place.read_record().status != "finished":
            missing.append(run.name)
            continue
        result = RunResult(place.read(), run.seed, resamples)
        found.setdefault((run.method, run.point), []).append(result)
    for point in range(len(plan.points)):
        _check_same_images([run for key, runs in found.items() if key[1] == point for run in runs])
    results = Results(plan, resamples, {key: Entry(runs) for key, runs in found.items()}, missing)
    if not results.grouped:
        # Some are older than their groups: the resamples of all must draw the same images.
        for one in results.runs:
            one.groups = None
    return results


def _check_same_images(runs: list[RunResult]) -> None:
    for run in runs[1:]:
        if not run.same_images(runs[0]):
            raise LmdError(
                f"{run.folder} and {runs[0].folder} were not tested on the same "
                "images: they cannot stand in one table"
            )


def _mean_draws(runs: Sequence[RunResult], metric: str) -> NDArray[np.float64]:
    total = np.zeros(runs[0].resamples)
    for run in runs:
        total += run.draws[metric]
    return total / len(runs)


def _gap(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b

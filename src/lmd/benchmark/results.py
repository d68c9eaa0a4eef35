"""The results of a benchmark by method and point: values, intervals, paired differences."""

import atexit
import lzma
import math
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.benchmark.plan import Plan, changes_since
from lmd.benchmark.trials import Choices, read_choices, settled
from lmd.runs.folder import Run
from lmd.scoring import estimates
from lmd.scoring.differences import Difference, difference, paired_limits
from lmd.scoring.metrics import METRICS, Sample
from lmd.scoring.proportions import Floats, interval
from lmd.scoring.scores import Draws, bootstrap, bootstrap_all, too_small
from lmd.scoring.tiers import TIERS


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds, its 95 % interval over test images, and standard deviation over seeds."""

    mean: float
    low: float | None
    high: float | None
    sd: float | None


class RunResult:
    """One finished run, with its test images sorted by id."""

    def __init__(self, files: Run, seed: int, resamples: int) -> None:
        self.folder, self.record = files.path, files.record
        self.seed, self.resamples = seed, resamples
        part = files.predictions.parts.get("test") if files.predictions else None
        if self.record.part != "test" or part is None:
            raise LmdError(
                f"{files.path} has no test predictions, which a table needs: train the run again"
            )
        # With the same order and seed, the resamples of two runs draw the same images.
        order = np.argsort(part.ids)
        self.ids: NDArray[Any] = part.ids[order]
        self.labels: NDArray[Any] = part.labels[order]
        self._probabilities: NDArray[Any] = part.probabilities[order]
        # Which images show the same patient or lesion, if known.
        self.groups = None if part.groups is None else part.groups[order]
        self.resampled: Draws = {}  # by metric

    def recorded(self, metric: str) -> estimates.Estimate:
        """The record's value and interval."""
        return self.record.metrics["test"].get(metric, estimates.Estimate(value=None))

    def draws(self, metric: str) -> Floats:
        """A metric on the resamples, ``(R,)``."""
        if metric not in self.resampled:
            self.resampled |= bootstrap(self.sample, [metric], resamples=self.resamples)
        return self.resampled[metric]

    @property
    def sample(self) -> Sample:
        """The test images."""
        tiers = self.record.tiers.assignment
        return Sample(self.labels, self._probabilities, tiers, self.groups)

    def combines(self, metric: str) -> bool:
        """Return whether a metric's interval, if any, is combined from its classes' intervals."""
        return too_small(self.sample, METRICS[metric])

    def same_images(self, other: "RunResult") -> bool:
        """Whether both runs were tested on the same images and classes."""
        return (
            self.record.data.classes == other.record.data.classes
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.labels, other.labels)
        )

    @property
    def sentence(self) -> str:
        """Tiers, and how much one image of the smallest class counts, as a table says it."""
        classes, tiers = self.record.data.classes, self.record.tiers
        members = {
            tier: [k for k, t in zip(classes, tiers.assignment, strict=True) if t == tier]
            for tier in TIERS
        }
        named = "; ".join(f"{tier}: {', '.join(k) or 'none'}" for tier, k in members.items())
        counts = np.bincount(self.labels, minlength=len(classes))
        present = np.flatnonzero(counts)
        least = int(present[np.argmin(counts[present])])
        points = 100 / (len(present) * int(counts[least]))
        absent = [name for name, n in zip(classes, counts, strict=True) if n == 0]
        without = f" No test images of {', '.join(absent)}." if absent else ""
        factor = self.record.data.imbalance_factor
        ratio = f"; imbalance factor of the training part {factor:.0f}" if factor else ""
        return (
            f"Tiers: {tiers.rule} ({named}). {int(counts.sum())} test images; {classes[least]} has "
            f"the fewest ({int(counts[least])}), so that one image changes balanced accuracy by up "
            f"to {points:.2f} points{ratio}.{without}"
        )


def mean_draws(runs: Sequence[RunResult], metric: str) -> Floats:
    """Return the mean of a metric over runs on each resample, ``(R,)``."""
    mean: Floats = np.stack([run.draws(metric) for run in runs]).mean(axis=0)
    return mean


@dataclass(frozen=True)
class Entry:
    """The finished runs of one method at one point, by seed."""

    runs: Sequence[RunResult]

    def estimate(self, metric: str) -> Estimate | None:
        """Return the mean over the seeds, with the record's interval if there is only one seed."""
        records = [run.recorded(metric) for run in self.runs]
        values = [e.value for e in records if e.value is not None]
        if not values or len(values) < len(records):
            return None
        if len(values) == 1:
            return Estimate(values[0], records[0].low, records[0].high, None)
        mean = fmean(values)
        low, high = interval(mean_draws(self.runs, metric), mean)
        if low == high or self.runs[0].combines(metric):
            # A bootstrap of small classes is too narrow: the records have combined limits.
            # A record without limits knows none: all resamples agree, or it is that of AUC.
            low = fmean(math.nan if e.low is None else e.low for e in records)
            high = fmean(math.nan if e.high is None else e.high for e in records)
        finite = math.isfinite(low + high)
        return Estimate(mean, low if finite else None, high if finite else None, stdev(values))

    def difference(self, other: "Entry", metric: str) -> Difference | None:
        """Return this entry minus the other, if they have a common seed and the same images."""
        others = {run.seed: run for run in other.runs}
        pairs = [(run, others[run.seed]) for run in self.runs if run.seed in others]
        if not pairs or not self.runs[0].same_images(other.runs[0]):
            return None
        values = [(a.recorded(metric).value, b.recorded(metric).value) for a, b in pairs]
        gaps = [a - b for a, b in values if a is not None and b is not None]
        first, second = zip(*pairs, strict=True)
        draws = mean_draws(first, metric) - mean_draws(second, metric)
        if len(gaps) < len(pairs) or np.isnan(draws).any():
            return None
        a, b = ([run.sample for run in runs] for runs in (first, second))
        return paired_limits(a, b, METRICS[metric], difference(fmean(gaps), draws))


@dataclass(frozen=True)
class Results:
    """The finished runs of a plan, with the chosen values; ``missing`` names the others."""

    plan: Plan
    resamples: int
    entries: dict[tuple[str, int], Entry]
    missing: list[str]
    choices: Choices = field(default_factory=dict)

    def tuning(self, method: str) -> str:
        """What was chosen for a row on the validation part; empty if the grid has no trials."""
        trial = next((t for t in self.plan.trials if method in t.rows), None)
        if trial is None:
            return "not tuned" if self.plan.trials else ""
        if trial.method not in self.choices:
            return f"{trial.setting} {trial.default} (default; trials not finished)"
        return self.choices[trial.method].sentence

    def entry(self, method: str, point: int) -> Entry:
        """The runs of a method at a point; a method that is not swept has the same at all."""
        return self.entries.get((method, point if self.swept(method) else 0), Entry(()))

    def swept(self, method: str) -> bool:
        """Whether the plan has runs of this method at several points."""
        return any(run.method == method and run.point > 0 for run in self.plan.runs)

    @property
    def grouped(self) -> bool:
        """Whether all runs have the patient or lesion of each test image."""
        return all(run.groups is not None for run in self.runs)

    @property
    def runs(self) -> list[RunResult]:
        """All finished runs."""
        return [run for entry in self.entries.values() for run in entry.runs]

    def resample(
        self, metrics: Collection[str], tick: Callable[[int], object] = lambda done: None
    ) -> None:
        """Compute metrics on the resamples of all runs; those of the same images are drawn once.

        ``tick`` is called with the number of resamples that have been added to one run.
        """
        alike: dict[tuple[bytes, bytes], list[RunResult]] = {}
        for run in self.runs:
            groups = b"" if run.groups is None else run.groups.tobytes()
            alike.setdefault((run.labels.tobytes(), groups), []).append(run)
        for runs in alike.values():
            samples = [run.sample for run in runs]
            drawn = bootstrap_all(samples, metrics, resamples=self.resamples, tick=tick)
            for run, draws in zip(runs, drawn, strict=True):
                run.resampled |= draws


def unpacked(runs: Path) -> Path:
    """Return a folder of runs; a published archive is unpacked until the process ends."""
    if not runs.name.endswith(".tar.xz"):
        return runs
    folder = Path(tempfile.mkdtemp(prefix="lmd-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with tarfile.open(runs, "r:xz") as archive:
            archive.extractall(folder, filter="data")
    except (OSError, EOFError, lzma.LZMAError, tarfile.TarError) as error:
        raise LmdError(f"{runs} cannot be unpacked: {error}; restore the file") from None
    return folder


def read_results(plan: Plan, folder: Path, *, resamples: int | None = None) -> Results:
    """Read every finished run; the runs of a point must have the same test images."""
    # Holm's correction for many rows needs small p-values, which need many resamples.
    resamples = resamples or (1000 if len(plan.rows) <= 3 else 10_000)
    choices = read_choices(plan, folder)
    plan = settled(plan, choices)
    finished: dict[tuple[str, int], list[RunResult]] = {}
    missing = []
    for planned in plan.runs:
        files = Run(folder / planned.name)
        if not files.is_finished():
            missing.append(planned.name)
            continue
        if changes := changes_since(files.record, planned):
            raise LmdError(
                f"{files.path} does not belong to this grid (run → grid): "
                f"{'; '.join(changes)}; give the folder of this grid with --runs, or undo the "
                "change of the grid"
            )
        result = RunResult(files, planned.seed, resamples)
        finished.setdefault((planned.method, planned.point), []).append(result)
    for point in range(len(plan.points)):
        here = [run for key, runs in finished.items() if key[1] == point for run in runs]
        for run in here[1:]:
            tested = run.same_images(here[0])
            if not tested or not run.record.data.same_as(here[0].record.data):
                what = "trained" if tested else "tested"
                raise LmdError(
                    f"{run.folder} and {here[0].folder} were not {what} on the same images, so one "
                    "table cannot show both: delete one of them and train it again on the same data"
                )
    entries = {key: Entry(runs) for key, runs in finished.items()}
    results = Results(plan, resamples, entries, missing, choices)
    if not results.grouped:
        # Older runs lack the groups, but the resamples of all runs must draw the same images.
        for run in results.runs:
            run.groups = None
    return results

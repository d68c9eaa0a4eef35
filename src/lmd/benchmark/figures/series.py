"""What figures are drawn from: finished runs, and the rows that they form; no torch."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import shorten, unknown
from lmd.benchmark.plan import Plan, load_grid, read_plan
from lmd.benchmark.tables.forms import HEADLINE
from lmd.benchmark.tables.results import Entry, Estimate, RunResult, unpacked
from lmd.benchmark.trials import choices_path, read_choices, settled
from lmd.runs.folder import Run, read_record
from lmd.runs.record import Record, training_minutes
from lmd.scoring.differences import Difference
from lmd.scoring.metrics import METRICS

RESAMPLES = 1000
NOT_COMPARED = {"seed", "workers", "methods"}  # do not distinguish two rows of one method


@dataclass(frozen=True)
class FinishedRun:
    """The record of a finished run; ``folder`` is its run folder, if it is there."""

    record: Record
    folder: Path | None

    @property
    def where(self) -> str:
        """The run as messages name it."""
        return str(self.folder or self.record.name)

    @property
    def seed(self) -> int:
        """The seed of training."""
        return int(self.record.protocol.get("seed", 0))

    def value(self, metric: str) -> float | None:
        """Return a metric in the reported part."""
        part = self.record.part
        estimate = self.record.metrics[part].get(metric) if part else None
        return estimate.value if estimate else None


@dataclass(frozen=True)
class Study:
    """Finished runs; ``order`` and ``missing`` are those of a plan, if there is one.

    ``own`` has the keys of the reference and its ablations. Without a plan, the reference is the
    method with the most ablations, if any has one.
    """

    runs: list[FinishedRun]
    title: str = ""
    order: tuple[str, ...] = ()
    reference: str | None = None
    own: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()


def read_study(sources: Sequence[str], runs: Path | None = None) -> Study:
    """Read the runs that the sources name; ``runs`` replaces the folder of a grid."""
    if runs is not None and len(sources) != 1:
        raise LmdError("--runs needs exactly one grid: give one, or the folders themselves")
    studies = [_read(source, runs) for source in sources]
    finished = [run for study in studies for run in study.runs]
    missing = tuple(name for study in studies for name in study.missing)
    if not finished:
        lacking = f" ({shorten(missing)} missing)" if missing else ""
        raise LmdError(f"no run of {shorten(list(sources))} is finished{lacking}: train some first")
    order = tuple(dict.fromkeys(key for study in studies for key in study.order))
    own = frozenset[str]().union(*(study.own for study in studies))
    reference = studies[0].reference
    if reference is None:
        reference, own = _largest_family({run.record.method.key for run in finished})
    return Study(finished, studies[0].title, order, reference, own, missing)


def family_of(reference: str, keys: Iterable[str]) -> frozenset[str]:
    """Return the reference and those of the keys that are ablations of it."""
    from lmd.methods import METHODS, related

    if reference not in METHODS:
        return frozenset({reference})
    return frozenset(
        key for key in {reference, *keys} if key in METHODS and related(key, reference)
    )


def _largest_family(keys: set[str]) -> tuple[str | None, frozenset[str]]:
    """The method with the most ablations among the keys, and this family."""
    from lmd.methods import METHODS

    families = {
        key: family_of(key, keys)
        for key in sorted(keys)
        if key in METHODS and not METHODS[key].ablation
    }
    reference = max(families, key=lambda key: len(families[key]), default=None)
    if reference is None or len(families[reference]) == 1:
        return None, frozenset()
    return reference, families[reference]


def _read(source: str, runs: Path | None) -> Study:
    if runs is not None:
        return _read_grid(source, unpacked(runs))
    path = unpacked(Path(source))
    if path.suffix == ".json" and path.is_file():
        return Study(_finished([(path, None)], source))
    if (path / "record.json").exists():
        return Study(_finished([(path / "record.json", path)], source))
    if path.is_dir():
        return _read_folder(path)
    if path.suffix != ".toml" and path.parent != Path():
        raise LmdError(
            f"{source} does not exist: give a run folder, a benchmark's folder or a grid"
        )
    folder = Path("runs") / load_grid(source).name
    if not folder.is_dir():
        raise LmdError(
            f"no benchmark in {folder.resolve()}: run `lmd benchmark {source}` or use --runs"
        )
    return _read_grid(source, folder)


def _read_grid(grid: str, folder: Path) -> Study:
    """The runs of a grid in a folder; published runs have no plan beside them, so it is made."""
    plan = read_plan(folder)
    if plan is None:
        from lmd.benchmark.planning import plan_grid

        plan = plan_grid(grid)
    study = _read_plan(plan, folder)
    return study if study.runs else _read_folder(folder)  # runs with names of their own


def _read_plan(plan: Plan, folder: Path) -> Study:
    plan = settled(plan, read_choices(plan, folder))
    finished, missing = [], []
    for run in plan.runs:
        place = Run(folder / run.name)
        record = place.record if place.record_path.exists() else None
        if record is None or record.status != "finished":
            missing.append(run.name)
        else:
            finished.append(FinishedRun(record, place.path))
    own = frozenset(row.key for row in plan.rows if row.own)
    order = tuple(row.key for row in plan.rows)
    return Study(finished, plan.title, order, plan.reference, own, tuple(missing))


def _read_folder(folder: Path) -> Study:
    """A benchmark's folder with its plan, or a folder of runs or of record files."""
    plan = read_plan(folder)
    if plan is not None:
        return _read_plan(plan, folder)
    dropped = _not_chosen(folder)
    records: list[tuple[Path, Path | None]] = [
        (path, path.parent)
        for path in sorted(folder.glob("*/record.json"))
        if path.parent.name not in dropped
    ]
    if not records:
        place = folder / "records" if (folder / "records").is_dir() else folder
        aside = {"choices", "plan", *dropped}
        records = [(path, None) for path in sorted(place.glob("*.json")) if path.stem not in aside]
    if not records:
        raise LmdError(
            f"{folder} has no run: give a run folder, a folder of runs or of records (.json), "
            "or the name of a grid"
        )
    return Study(_finished(records, str(folder)))


def _not_chosen(folder: Path) -> set[str]:
    """Names of trial runs whose value was not chosen, from the choices beside the records."""
    path = next((p for p in map(choices_path, (folder, folder.parent)) if p.exists()), None)
    if path is None:
        return set()
    try:
        choices = json.loads(path.read_text(encoding="utf-8"))["choices"]
        return {t["run"] for c in choices for t in c["trials"] if t["label"] != c["chosen"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmdError(f"{path} cannot be read: {error}; restore or remove it") from None


def _finished(records: Sequence[tuple[Path, Path | None]], source: str) -> list[FinishedRun]:
    """All finished runs; one that was named by itself must be finished."""
    finished = []
    for path, folder in records:
        record = read_record(path)
        if record.status == "finished" and record.part is not None:
            finished.append(FinishedRun(record, folder))
        elif len(records) == 1:
            raise LmdError(f"{source} is not finished: run `lmd train --resume --out {source}`")
    return finished


@dataclass(frozen=True)
class Request:
    """What a figure of a study shows, and its size in inches; ``None`` stands for the default."""

    study: Study
    methods: Sequence[str] | None = None
    metrics: Sequence[str] | None = None
    metric: str = HEADLINE
    reference: str | None = None
    width: float = 3.5
    height: float | None = None


@dataclass(frozen=True)
class ClassRecall:
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
    """A row: the seeds of a method with the same settings on the same data.

    ``values`` are the settings that other rows of the method do not share.
    """

    key: str
    title: str
    values: dict[str, Any]
    runs: tuple[FinishedRun, ...]

    @property
    def record(self) -> Record:
        """The record of the first seed."""
        return self.runs[0].record

    @property
    def fingerprint(self) -> str:
        """Which images these are."""
        return self.record.data.fingerprint

    @cached_property
    def _entry(self) -> Entry | None:
        """The test predictions of every seed, or ``None`` where only records are kept."""
        folders = [Run(run.folder) for run in self.runs if run.folder is not None]
        if len(folders) < len(self.runs) or not all(f.predictions_path.exists() for f in folders):
            return None
        results = [
            RunResult(folder, run.seed, RESAMPLES)
            for folder, run in zip(folders, self.runs, strict=True)
        ]
        for one in results[1:]:
            if not one.same_images(results[0]):
                raise LmdError(f"{one.folder} and {results[0].folder} have different test images")
        if any(one.groups is None for one in results):
            for one in results:
                one.groups = None
        return Entry(results)

    def mean(self, metric: str) -> float | None:
        """Return the mean over the seeds; ``None`` if a run lacks the metric."""
        values = [value for run in self.runs if (value := run.value(metric)) is not None]
        return fmean(values) if len(values) == len(self.runs) else None

    def estimate(self, metric: str) -> tuple[Estimate | None, str]:
        """Return the mean over the seeds with its 95 % interval, and what the interval reflects."""
        mean = self.mean(metric)
        if mean is None:
            return None, ""
        if len(self.runs) == 1:
            recorded = self.record.metrics[self.record.part or "test"][metric]
            return Estimate(mean, recorded.low, recorded.high, None), "test images"
        if self._entry is not None:
            return self._entry.estimate(metric), "test images, mean over seeds"
        from scipy import stats

        values = [value for run in self.runs if (value := run.value(metric)) is not None]
        sd = stdev(values)
        half = float(stats.t.ppf(0.975, len(values) - 1)) * sd / math.sqrt(len(values))
        return Estimate(mean, mean - half, mean + half, sd), "seeds (Student's t)"

    def difference(self, other: "Series", metric: str) -> Difference | None:
        """Return this row minus the other on the same test images; ``None`` if not known."""
        mine, theirs = self._entry, other._entry
        if mine is None or theirs is None:
            return None
        # Groups of images are drawn for both or for none.
        if (mine.runs[0].groups is None) != (theirs.runs[0].groups is None):
            return None
        return mine.difference(theirs, metric)

    def classes(self) -> list[ClassRecall]:
        """Return the recall of each class that has images, most training images first."""
        recalls = []
        parts = [run.record.per_class[run.record.part or "test"] for run in self.runs]
        for scores in zip(*parts, strict=True):
            limits = [(s.recall.value, s.recall.low, s.recall.high) for s in scores]
            if any(None in triple for triple in limits):
                continue
            means = [fmean(numbers) for numbers in zip(*limits, strict=True)]
            first = scores[0]
            recalls.append(ClassRecall(first.name, first.tier, first.train, first.support, *means))
        return sorted(recalls, key=lambda one: -one.train)

    def class_rows(self) -> list[dict[str, Any]]:
        """Return the recall of each class as rows of a CSV file."""
        return [
            {
                "method": self.key,
                "title": self.title,
                "class": one.name,
                "tier": one.tier,
                "training_images": one.train,
                "images": one.support,
                "recall": one.recall,
                "low": one.low,
                "high": one.high,
                "seeds": len(self.runs),
            }
            for one in self.classes()
        ]

    def minutes(self) -> float:
        """Return minutes of one processor that training took, averaged over the seeds."""
        return fmean(training_minutes(run.record) for run in self.runs)


def make_series(study: Study, methods: Sequence[str] | None = None) -> list[Series]:
    """Group the runs of a study into rows, in its order; ``methods`` are the keys to show."""
    keys = list(dict.fromkeys(run.record.method.key for run in study.runs))
    for key in methods or ():
        _check_finished("--methods", key, keys)
    order = methods or [*(key for key in study.order if key in keys), *keys]
    series = []
    for key in dict.fromkeys(order):
        series += _of_method(key, [run for run in study.runs if run.record.method.key == key])
    return series


def _check_finished(option: str, key: str, keys: Iterable[str]) -> None:
    if key not in keys:
        there_are = "no finished run; there are"
        raise LmdError(f"{option}: {unknown('method', key, keys, there_are=there_are)}")


def _of_method(key: str, runs: Sequence[FinishedRun]) -> list[Series]:
    """The rows of one method: on each data set, one for each combination of settings."""
    series = []
    for fingerprint in dict.fromkeys(run.record.data.fingerprint for run in runs):
        rows: dict[str, list[FinishedRun]] = {}
        for run in runs:
            if run.record.data.fingerprint == fingerprint:
                rows.setdefault(_as_text(_settings(run)), []).append(run)
        every = [_settings(row[0]) for row in rows.values()]
        names = dict.fromkeys(name for settings in every for name in settings)
        differ = [n for n in names if len({_as_text(settings.get(n)) for settings in every}) > 1]
        for row, settings in zip(rows.values(), every, strict=True):
            series.append(_row(key, row, {name: settings.get(name) for name in differ}))
    return series


def _settings(run: FinishedRun) -> dict[str, Any]:
    """All settings of method and protocol that can distinguish two rows."""
    both = run.record.method.settings | run.record.protocol
    return {name: value for name, value in both.items() if name not in NOT_COMPARED}


def _as_text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _row(key: str, runs: Sequence[FinishedRun], values: dict[str, Any]) -> Series:
    ordered = sorted(runs, key=lambda run: run.seed)
    for one, other in pairwise(ordered):
        if one.seed == other.seed:
            raise LmdError(
                f"two runs of {one.record.method.title} have the same seed, settings and data "
                f"({one.where}, {other.where}): give only one of them"
            )
    listed = ", ".join(f"{name} = {value}" for name, value in values.items())
    title = runs[0].record.method.title + (f" ({listed})" if listed else "")
    return Series(key, title, values, tuple(ordered))


def check_metrics(names: Sequence[str]) -> list[str]:
    """Return the keys of metrics, checked."""
    for name in names:
        if name not in METRICS:
            raise LmdError(f"--metrics: {unknown('metric', name, METRICS)}")
    return list(names)


def check_same_data(series: Sequence[Series], figure: str) -> None:
    """Refuse rows that were tested on different images."""
    first = series[0]
    for one in series[1:]:
        if one.fingerprint != first.fingerprint:
            raise LmdError(
                f"the {figure} figure needs runs on the same data, but {one.runs[0].where} and "
                f"{first.runs[0].where} have different images or parts: draw a figure of each"
            )


def common_device(series: Sequence[Series]) -> str:
    """Return ``CPU`` or ``GPU``; times of both cannot be in one figure."""
    devices = {"CPU" if r.record.machine.device == "cpu" else "GPU" for s in series for r in s.runs}
    if len(devices) > 1:
        raise LmdError(
            "these runs were trained on CPUs and on GPUs, so their times cannot be compared: "
            "choose rows of one kind with --methods"
        )
    return devices.pop()


def reference_row(series: Sequence[Series], request: Request) -> Series | None:
    """Return the row of ``--reference``, or of the study's reference, if there is one."""
    if request.reference is not None:
        _check_finished("--reference", request.reference, dict.fromkeys(one.key for one in series))
    key = request.reference or request.study.reference
    return next((one for one in series if one.key == key), None)


def without_ablations(series: Sequence[Series], study: Study) -> list[Series]:
    """Return all rows but the ablations of the reference."""
    ablations = study.own - {study.reference}
    return [one for one in series if one.key not in ablations]

"""What figures are drawn from: finished runs, and the rows that they form; no torch."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.text import shorten, unknown
from lmd.benchmark.plan import Plan, load_grid, read_plan
from lmd.benchmark.results import Entry, Estimate, RunResult, unpacked
from lmd.benchmark.trials import CHOICES, HEADLINE, read_choices, settled
from lmd.runs.folder import Run, read_record
from lmd.runs.record import Record, training_minutes
from lmd.scoring.differences import Difference
from lmd.scoring.metrics import METRICS

RESAMPLES = 1000
NOT_COMPARED = {"seed", "workers", "methods"}  # do not distinguish two rows of one method


@dataclass(frozen=True)
class Study:
    """Finished runs; ``order`` and ``missing`` come from a plan, if there is one.

    ``own`` has the keys of the reference and its ablations. Without a plan, the reference is the
    method with the most ablations, if any has one. The path of a run is its folder, or the file of
    its record if there is no more of it.
    """

    runs: list[Run]
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
        from lmd.methods import METHODS

        keys = sorted({run.record.method.key for run in finished} & METHODS.keys())
        families = {key: family_of(key, keys) for key in keys if not METHODS[key].ablation}
        largest = max(families, key=lambda key: len(families[key]), default=None)
        own = frozenset() if largest is None else families[largest]
        reference, own = (largest, own) if len(own) > 1 else (None, frozenset())
    return Study(finished, order, reference, own, missing)


def family_of(reference: str, keys: Iterable[str]) -> frozenset[str]:
    """Return the reference and the keys of its ablations."""
    from lmd.methods import METHODS, related

    methods = METHODS.keys() & keys if reference in METHODS else ()
    return frozenset({reference, *(key for key in methods if related(key, reference))})


def _read(source: str, runs: Path | None) -> Study:
    if runs is None:
        path = unpacked(Path(source))
        if path.suffix == ".json" and path.is_file():
            return Study(_finished([Run(path, read_record(path))]))
        if (path / "record.json").exists():
            return Study(_finished([Run(path)]))
        if path.is_dir():
            return _read_folder(path)
        if path.suffix != ".toml" and path.parent != Path():
            raise LmdError(
                f"{source} does not exist: give a run folder, a benchmark's folder or a grid"
            )
        runs = Path("runs") / load_grid(source).name
        if not runs.is_dir():
            raise LmdError(
                f"no benchmark in {runs.resolve()}: run `lmd benchmark {source}` or use --runs"
            )
    runs = unpacked(runs)
    plan = read_plan(runs)
    if plan is None:  # published runs have no plan beside them
        from lmd.benchmark.planning import plan_grid

        plan = plan_grid(source)
    study = _read_plan(plan, runs)
    return study if study.runs else _read_folder(runs)  # runs with names of their own


def _read_plan(plan: Plan, folder: Path) -> Study:
    plan = settled(plan, read_choices(plan, folder))
    runs = {run.name: Run(folder / run.name) for run in plan.runs}
    finished = {name: run for name, run in runs.items() if run.is_finished()}
    return Study(
        list(finished.values()),
        tuple(row.key for row in plan.rows),
        plan.reference,
        frozenset(row.key for row in plan.rows if row.own),
        tuple(name for name in runs if name not in finished),
    )


def _read_folder(folder: Path) -> Study:
    """Read a benchmark's folder with its plan, or a folder of runs or of record files."""
    plan = read_plan(folder)
    if plan is not None:
        return _read_plan(plan, folder)
    dropped = _not_chosen(folder)
    paths = [path.parent for path in sorted(folder.glob("*/record.json"))]
    runs = [Run(path) for path in paths if path.name not in dropped]
    if not runs:
        place = folder / "records" if (folder / "records").is_dir() else folder
        dropped |= {"choices", "plan"}
        paths = [path for path in sorted(place.glob("*.json")) if path.stem not in dropped]
        runs = [Run(path, read_record(path)) for path in paths]
    if not runs:
        raise LmdError(
            f"{folder} has no run: give a run folder, a folder of runs or of records (.json), "
            "or the name of a grid"
        )
    return Study(_finished(runs))


def _not_chosen(folder: Path) -> set[str]:
    """Return names of trial runs whose value was not chosen, from choices beside the records."""
    path = folder / CHOICES
    if not path.exists():
        path = folder.parent / CHOICES
    if not path.exists():
        return set()
    try:
        choices = json.loads(path.read_text(encoding="utf-8"))["choices"]
        return {t["run"] for c in choices for t in c["trials"] if t["label"] != c["chosen"]}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise LmdError(f"{path} cannot be read: {error}; restore or remove it") from None


def _finished(runs: Sequence[Run]) -> list[Run]:
    """Return all finished runs; a single one must be finished."""
    finished = [r for r in runs if r.record.status == "finished" and r.record.part is not None]
    if len(runs) == 1 and not finished:
        path = runs[0].path
        raise LmdError(f"{path} is not finished: run `lmd train --resume --out {path}`")
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

    def __post_init__(self) -> None:
        for name in (*(self.metrics or ()), self.metric):
            if name not in METRICS:
                raise LmdError(f"--metrics: {unknown('metric', name, METRICS)}")

    def series(self, same_data: str = "", *, every: bool = False) -> "list[Series]":
        """Group runs into rows, of one data set for the figure ``same_data``; ``every`` method."""
        by_key: dict[str, list[Run]] = {}
        for run in self.study.runs:
            by_key.setdefault(run.record.method.key, []).append(run)
        methods = () if every else self.methods or ()
        for key in methods:
            _check_finished("--methods", key, by_key)
        order = methods or [*(key for key in self.study.order if key in by_key), *by_key]
        series = [row for key in dict.fromkeys(order) for row in _rows(key, by_key[key])]
        for row in series[1:] if same_data else ():
            if row.record.data.fingerprint != series[0].record.data.fingerprint:
                raise LmdError(
                    f"the {same_data} figure needs runs on the same data, but {row.runs[0].path} "
                    f"and {series[0].runs[0].path} have different images or parts: draw a figure "
                    "of each"
                )
        return series

    def reference_row(self, series: "Sequence[Series]") -> "Series | None":
        """Return the row of ``--reference``, or of the study's reference, if there is one."""
        if self.reference is not None:
            _check_finished("--reference", self.reference, dict.fromkeys(s.key for s in series))
        key = self.reference or self.study.reference
        return next((row for row in series if row.key == key), None)

    def without_ablations(self, series: "Sequence[Series]") -> "list[Series]":
        """Return all rows but the ablations of the study's reference."""
        ablations = self.study.own - {self.study.reference}
        return [row for row in series if row.key not in ablations]


def _check_finished(option: str, key: str, keys: Iterable[str]) -> None:
    if key not in keys:
        there_are = "no finished run; there are"
        raise LmdError(f"{option}: {unknown('method', key, keys, there_are=there_are)}")


@dataclass(frozen=True)
class Series:
    """A row: the seeds of a method with the same settings on the same data.

    ``values`` are the settings that other rows of the method do not share.
    """

    key: str
    title: str
    values: dict[str, Any]
    runs: tuple[Run, ...]

    @property
    def record(self) -> Record:
        """The record of the first seed."""
        return self.runs[0].record

    @property
    def seeds(self) -> list[int]:
        """The seed of each run."""
        return [_seed(run) for run in self.runs]

    @cached_property
    def _entry(self) -> Entry | None:
        """The test predictions of every seed, or ``None`` where only records are kept."""
        if not all(run.predictions_path.exists() for run in self.runs):
            return None
        results = [RunResult(run, _seed(run), RESAMPLES) for run in self.runs]
        if any(result.groups is None for result in results):
            for result in results:
                result.groups = None
        return Entry(results)

    def row(self, **cells: Any) -> dict[str, Any]:
        """Return a row of a CSV file, which begins with the method."""
        return {"method": self.key, "title": self.title, **cells}

    def mean(self, metric: str) -> float | None:
        """Return the mean over the seeds; ``None`` if a run lacks the metric."""
        values = self._values(metric)
        return fmean(values) if values else None

    def _values(self, metric: str) -> list[float]:
        estimates = (run.metrics.get(metric) for run in self.runs)
        values = [e.value for e in estimates if e is not None and e.value is not None]
        return values if len(values) == len(self.runs) else []

    def estimate(self, metric: str) -> tuple[Estimate | None, str]:
        """Return the mean over the seeds with its 95 % interval, and what the interval reflects."""
        mean = self.mean(metric)
        if mean is None:
            return None, ""
        if len(self.runs) == 1:
            recorded = self.runs[0].metrics[metric]
            return Estimate(mean, recorded.low, recorded.high, None), "test images"
        if self._entry is not None:
            return self._entry.estimate(metric), "test images, mean over seeds"
        from scipy import stats

        values = self._values(metric)
        sd = stdev(values)
        half = float(stats.t.ppf(0.975, len(values) - 1)) * sd / math.sqrt(len(values))
        return Estimate(mean, mean - half, mean + half, sd), "seeds (Student's t)"

    def metric_row(self, metric: str, column: str, **cells: Any) -> dict[str, Any] | None:
        """Return a row of a CSV file with the mean in ``column``, if the runs have the metric."""
        estimate, interval = self.estimate(metric)
        if estimate is None:
            return None
        cells |= {"metric": metric, column: estimate.mean, "low": estimate.low}
        cells |= {"high": estimate.high, "sd_over_seeds": estimate.sd}
        return self.row(**cells, seeds=len(self.runs), interval=interval)

    def difference(self, other: "Series", metric: str) -> Difference | None:
        """Return this row minus the other on the same test images; ``None`` if not known."""
        mine, theirs = self._entry, other._entry
        if mine is None or theirs is None:
            return None
        # Groups of images are drawn for both or for none.
        if (mine.runs[0].groups is None) != (theirs.runs[0].groups is None):
            return None
        return mine.difference(theirs, metric)

    def class_rows(self, **cells: Any) -> list[dict[str, Any]]:
        """Return mean recall and limits of each class with images, the most frequent first."""
        rows = []
        parts = [run.record.per_class[run.record.part or "test"] for run in self.runs]
        for scores in zip(*parts, strict=True):
            limits = [(s.recall.value, s.recall.low, s.recall.high) for s in scores]
            if any(None in triple for triple in limits):
                continue
            s, means = scores[0], [fmean(numbers) for numbers in zip(*limits, strict=True)]
            row = cells | {"class": s.name, "tier": s.tier, "training_images": s.train}
            row |= {"images": s.support, **dict(zip(("recall", "low", "high"), means, strict=True))}
            rows.append(self.row(**row, seeds=len(self.runs)))
        return sorted(rows, key=lambda row: -row["training_images"])

    def minutes(self) -> float:
        """Return minutes of one processor that training took, averaged over the seeds."""
        return fmean(training_minutes(run.record) for run in self.runs)


def _seed(run: Run) -> int:
    return int(run.record.protocol.get("seed", 0))


def _rows(key: str, runs: Sequence[Run]) -> Iterator[Series]:
    """Yield the rows of a method: on each data set, one for each combination of settings."""
    by_data: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        rows = by_data.setdefault(run.record.data.fingerprint, {})
        rows.setdefault(json.dumps(_settings(run), sort_keys=True), []).append(run)
    for rows in by_data.values():
        every = [_settings(row[0]) for row in rows.values()]
        names = dict.fromkeys(name for settings in every for name in settings)
        differ = [
            n for n in names if len({json.dumps(s.get(n), sort_keys=True) for s in every}) > 1
        ]
        for row, settings in zip(rows.values(), every, strict=True):
            title, ordered = row[0].record.method.title, sorted(row, key=_seed)
            for run, other in pairwise(ordered):
                if _seed(run) == _seed(other):
                    raise LmdError(
                        f"two runs of {title} have the same seed, settings and data "
                        f"({run.path}, {other.path}): give only one of them"
                    )
            values = {name: settings.get(name) for name in differ}
            listed = ", ".join(f"{name} = {value}" for name, value in values.items())
            yield Series(key, title + (f" ({listed})" if listed else ""), values, tuple(ordered))


def _settings(run: Run) -> dict[str, Any]:
    """Return all settings of method and protocol that can distinguish two rows."""
    both = run.record.method.settings | run.record.protocol
    return {name: value for name, value in both.items() if name not in NOT_COMPARED}


def common_device(series: Sequence[Series]) -> str:
    """Return ``CPU`` or ``GPU``; times of both cannot be in one figure."""
    devices = {"CPU" if r.record.machine.device == "cpu" else "GPU" for s in series for r in s.runs}
    if len(devices) > 1:
        raise LmdError(
            "these runs were trained on CPUs and on GPUs, so their times cannot be compared: "
            "choose rows of one kind with --methods"
        )
    return devices.pop()

"""From a grid to its plan: every run with complete settings, checked before training starts."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.base.files import MISSING, what_is
from lmd.base.text import unknown
from lmd.benchmark.grid import Grid, load_grid, sweep_values
from lmd.benchmark.plan import Plan, PlannedRun, Point, Row, Trial, grid_hash
from lmd.data.source import Columns, Source
from lmd.fit.spec import Spec, resolve
from lmd.methods import DEFAULT, METHODS, PAPER, find_method, in_paper_order, related
from lmd.methods.method import Method
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol


def plan_grid(name: str | Path) -> Plan:
    """Plan all runs of a grid, seed by seed, so that tables fill early."""
    grid = load_grid(name)
    named = {"paper": PAPER, "all": METHODS}
    keys = named[grid.methods] if isinstance(grid.methods, str) else grid.methods
    methods = in_paper_order(keys)
    if grid.methods == "all":
        methods = [method for method in methods if not _repeats(grid, method)]
    reference = find_method(grid.reference or DEFAULT)
    if grid.reference is not None and reference not in methods:
        raise LmdError(
            f"grid {name}: the reference {grid.reference!r} is not one of its methods; they are: "
            f"{', '.join(method.key for method in methods)}"
        )
    _check_settings(grid, methods)
    points = _points(grid, reference if reference in methods else methods[-1])
    trials = _trials(grid, methods)
    runs: dict[str, PlannedRun] = {}
    for run in _runs(grid, methods, points, trials):
        if runs.setdefault(run.name, run).request != run.request:
            raise LmdError(
                f"two runs of grid {name} would share the folder {run.name}: give the "
                "swept values labels that differ in letters or digits"
            )
    return Plan(
        name=grid.name,
        title=grid.title or grid.name,
        reference=reference.key,
        form=grid.form,
        seeds=grid.seeds,
        rows=[Row(m.key, m.title, m.note, related(m.key, reference.key)) for m in methods],
        points=points,
        runs=list(runs.values()),
        source=grid_hash(name),
        trials=trials,
    )


def _runs(
    grid: Grid, methods: Sequence[Method], points: Sequence[Point], trials: Sequence[Trial]
) -> Iterator[PlannedRun]:
    """Every run of the grid; a tuned row has one for each candidate."""
    by_row = {key: trial for trial in trials for key in trial.rows}
    # One method with each first stage comes before the others, which need not wait for it.
    leaders = {method.stages[0]: method.key for method in reversed(methods)}
    ordered = sorted(methods, key=lambda method: method.key not in leaders.values())
    for seed in dict.fromkeys([*(trial.seed for trial in trials), *grid.seeds]):
        for index, point in enumerate(points):
            for method in ordered:
                trial = by_row.get(method.key)
                if seed not in grid.seeds and (trial is None or trial.method != method.key):
                    continue  # a seed for trials only
                swept = {
                    key: (point.labels[key], value)
                    for key, value in point.values.items()
                    if _applies(key, method)
                }
                # A method without a swept setting has the same run at every point.
                if not swept and index > 0:
                    continue
                if trial is None:
                    yield _run(grid, method, index, seed, swept)
                    continue
                for label, value in trial.values.items():
                    # The default has the name and the settings of a run without trials.
                    tuned = {} if label == trial.default else {trial.setting: (label, value)}
                    run = _run(grid, method, index, seed, swept | tuned)
                    yield replace(run, tuned=label)


def _trials(grid: Grid, methods: Sequence[Method]) -> list[Trial]:
    """The candidates of each tuned row, checked, and the rows that take its choice over."""
    if grid.trials is None:
        return []
    entries = {
        key: (setting, dict(sweep_values(values)))
        for key, entry in grid.trials.settings.items()
        for setting, values in entry.items()
    }
    keys = [method.key for method in methods]
    for key in entries:
        if key not in keys:
            raise LmdError(f"[trials] {unknown('method', key, keys)}")
    seed = grid.seeds[0] if grid.trials.seed is None else grid.trials.seed
    trials = []
    for main in methods:
        if main.key not in entries:
            continue
        setting, values = entries[main.key]
        usual = _usual(grid, main)
        if setting not in usual:
            raise LmdError(f"[trials] {main.key}: {unknown('setting', setting, sorted(usual))}")
        default = next((label for label, v in values.items() if v == usual[setting]), None)
        if default is None:
            raise LmdError(
                f"[trials] {main.key}: the values of {setting} must contain the one that is used "
                f"without trials, {usual[setting]}; they are {', '.join(values)}"
            )
        # A variant defined by this setting keeps its own value.
        heirs = [
            row.key
            for row in methods
            if row.family == main.key
            and row.key not in entries
            and _usual(grid, row).get(setting) == usual[setting]
        ]
        trials.append(Trial(main.key, setting, values, default, seed, [main.key, *heirs]))
    return trials


def _settings(method: Method) -> set[str]:
    return {*Protocol.model_fields, *method.defaults()}


def _applies(key: str, method: Method) -> bool:
    """Whether a setting of the grid is one that may change in the runs of a method.

    What distinguishes a row from its family stays: an ablation must not become the method.
    """
    if key == "profile":
        return bool(method.profiles)
    return key == "data" or key in _settings(method) - set(method.preset)


def _check_settings(grid: Grid, methods: Sequence[Method]) -> None:
    profiles = {"default"}.union(*(m.profiles for m in methods))
    for _, profile in [("", grid.profile), *sweep_values(grid.sweep.get("profile", []))]:
        if profile not in profiles:
            raise LmdError(unknown("profile", str(profile), sorted(profiles)))
    valid = set[str]().union(*map(_settings, methods))
    for part, keys in (("settings", grid.settings), ("sweep", grid.sweep)):
        for key in keys:
            if key not in valid and (part, key) not in (("sweep", "data"), ("sweep", "profile")):
                raise LmdError(f"[{part}] {unknown('setting', key, sorted(valid))}")


def _points(grid: Grid, method: Method) -> list[Point]:
    """The product of all swept values; ``usual`` are those that ``method`` has without a sweep."""
    usual = _usual(grid, method) | {"profile": "default"}
    points = []
    for pairs in itertools.product(*map(sweep_values, grid.sweep.values())):
        labels = {key: label for key, (label, _) in zip(grid.sweep, pairs, strict=True)}
        values = {key: value for key, (_, value) in zip(grid.sweep, pairs, strict=True)}
        same = bool(values) and all(usual.get(k) == v for k, v in values.items())
        points.append(Point(labels, values, same))
    return points


def _usual(grid: Grid, method: Method) -> dict[str, Any]:
    """Every setting of a method's runs without a sweep and without trials."""
    spec = resolve(method, *_given(grid, method, {}), _profile(grid.profile, method))
    return spec.request.protocol | spec.values


def _repeats(grid: Grid, method: Method) -> bool:
    """Whether an ablation leaves out what its method does not have under the grid's profile."""
    return method.ablation and _usual(grid, method) == _usual(grid, METHODS[method.family])


def _profile(name: str, method: Method) -> str:
    # Profiles belong to one family of methods; the other rows keep their defaults.
    return name if name in method.profiles else "default"


def _given(
    grid: Grid, method: Method, extra: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The name of the protocol, and every setting that this method gets on top of it."""
    settings = {k: v for k, v in grid.settings.items() if _applies(k, method)} | dict(extra)
    if isinstance(grid.protocol, dict):
        inline = {k: v for k, v in grid.protocol.items() if k != "base"}
        return grid.protocol.get("base"), inline | settings
    return grid.protocol, settings


def _run(
    grid: Grid, method: Method, index: int, seed: int, changes: Mapping[str, tuple[str, Any]]
) -> PlannedRun:
    """One run of a point; ``changes`` are labels and values of what differs from the grid."""
    values: dict[str, Any] = {key: value for key, (_, value) in changes.items()}
    data = str(values.pop("data", grid.data))
    profile = _profile(values.pop("profile", grid.profile), method)
    base, given = _given(grid, method, values | {"seed": seed})
    source = Source(data, Columns.of(grid.columns), grid.skip_bad)
    spec = resolve(method, base, given, profile, source)
    named = [] if profile == "default" or "profile" in changes else [profile]
    marks = [f"{key}={label}" for key, (label, _) in changes.items()]
    name = "-".join([method.key, *named, *marks, f"seed{seed}"])
    return PlannedRun(
        name=re.sub(r"[^A-Za-z0-9_.=+-]+", "_", name),
        method=method.key,
        point=index,
        seed=seed,
        epochs=stage_epochs(spec),
        request=spec.request.model_dump(mode="json"),
        command=spec.command(),
    )


def stage_epochs(spec: Spec) -> list[int]:
    """Return the epochs of each stage of a run."""
    last = spec.method.last_epochs(spec.values) or spec.protocol.stage2_epochs
    # A stage between the first and the last is a single pass.
    stages = len(spec.method.stages)
    return [spec.protocol.epochs, *[1] * (stages - 2), last][:stages]


def identify(plan: Plan, folder: Path | None = None) -> Plan:
    """Return the plan with the fingerprint of each run's data, where it can be read here.

    Reads lists of images, not their pixels. With ``folder``, raise an ``LmdError`` if the data of a
    run that is not finished there cannot be read, or has no validation part for trials.
    """
    fingerprints: dict[str, str | LmdError] = {}
    runs = []
    for run in plan.runs:
        protocol = run.request["protocol"]
        key = f"{run.pixels} {protocol.get('fold')} {protocol['allow_leak']}"
        if key not in fingerprints:
            fingerprints[key] = _fingerprint(plan, run.request)
        fingerprint = fingerprints[key]
        if isinstance(fingerprint, LmdError):
            if folder is not None and not Run(folder / run.name).is_finished():
                raise fingerprint
            fingerprint = ""
        runs.append(replace(run, fingerprint=fingerprint))
    return replace(plan, runs=runs)


def _fingerprint(plan: Plan, request: Mapping[str, Any]) -> str | LmdError:
    """The fingerprint of the data of a run, or why it cannot be trained on."""
    from lmd.data.dataset import plan_data

    for key, place in (("data", request["data"]), ("root", request["columns"].get("root"))):
        if place not in (None, "synthetic") and what_is(Path(place)) == MISSING:
            return LmdError(
                f"grid {plan.name}: {key} {place} does not exist; paths are relative to the grid "
                "file, or to the current folder for a grid of lmd"
            )
    source = Source(request["data"], Columns.of(request["columns"]), request["skip_bad"])
    try:
        data = plan_data(source, Protocol.model_validate(request["protocol"]))
    except LmdError as error:
        return error
    if plan.trials and len(data.table.part("validation")) == 0:
        return LmdError(
            f"grid {plan.name}: [trials] choose on the validation part, which is empty in "
            f"{request['data']}: give the data one, or remove [trials] from the grid"
        )
    return data.fingerprint()

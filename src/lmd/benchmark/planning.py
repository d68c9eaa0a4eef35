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
from lmd.benchmark.plan import (
    Grid,
    Plan,
    PlannedRun,
    Point,
    Row,
    Trial,
    grid_hash,
    load_grid,
    sweep_values,
)
from lmd.data.source import Columns, Source
from lmd.fit.spec import Spec, resolve
from lmd.methods import DEFAULT, METHODS, PAPER, find_method, in_paper_order, related
from lmd.methods.method import Method
from lmd.runs.folder import Run
from lmd.runs.protocol import Protocol


def plan_grid(name: str | Path) -> Plan:
    """Plan all runs of a grid, seed by seed, so that tables fill early."""
    grid = load_grid(name)
    sets = {"paper": PAPER, "all": METHODS}
    methods = in_paper_order(sets[grid.methods] if isinstance(grid.methods, str) else grid.methods)
    if grid.methods == "all":
        # An ablation may leave out what its method does not have under the grid's profile.
        usual = {method.key: _usual(grid, method) for method in methods}
        methods = [m for m in methods if not m.ablation or usual[m.key] != usual[m.family]]
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


def plan_run(name: str, spec: Spec, point: int) -> PlannedRun:
    """Plan a run with complete settings."""
    last = spec.method.outline(spec.values)[-1].epochs or spec.protocol.stage2_epochs
    # A stage between the first and the last is a single pass.
    stages = len(spec.method.stages)
    return PlannedRun(
        name=name,
        method=spec.method.key,
        point=point,
        seed=spec.protocol.seed,
        epochs=[spec.protocol.epochs, *[1] * (stages - 2), last][:stages],
        request=spec.request.model_dump(mode="json"),
        command=spec.command(),
    )


def _check_settings(grid: Grid, methods: Sequence[Method]) -> None:
    profiles = {"default"}.union(*(m.profiles for m in methods))
    for _, profile in [("", grid.profile), *sweep_values(grid.sweep.get("profile", []))]:
        if profile not in profiles:
            raise LmdError(unknown("profile", str(profile), sorted(profiles)))
    valid = set(Protocol.model_fields).union(*(method.settings() for method in methods))
    for part, keys in (("settings", grid.settings), ("sweep", grid.sweep)):
        for key in keys:
            if key not in valid and (part, key) not in (("sweep", "data"), ("sweep", "profile")):
                raise LmdError(f"[{part}] {unknown('setting', key, sorted(valid))}")


def _points(grid: Grid, method: Method) -> list[Point]:
    """Return the product of all swept values; usual ones ``method`` has without a sweep."""
    usual = _usual(grid, method) | {"profile": "default"}
    points = []
    for pairs in itertools.product(*map(sweep_values, grid.sweep.values())):
        labels = {key: label for key, (label, _) in zip(grid.sweep, pairs, strict=True)}
        values = {key: value for key, (_, value) in zip(grid.sweep, pairs, strict=True)}
        same = bool(values) and all(usual.get(k) == v for k, v in values.items())
        points.append(Point(labels, values, same))
    return points


def _trials(grid: Grid, methods: Sequence[Method]) -> list[Trial]:
    """Return the candidates of each tuned row, checked, and the rows that use its choice."""
    if grid.trials is None:
        return []
    entries = grid.trials.settings
    keys = [method.key for method in methods]
    for key in entries:
        if key not in keys:
            raise LmdError(f"[trials] {unknown('method', key, keys)}")
    seed = grid.seeds[0] if grid.trials.seed is None else grid.trials.seed
    trials = []
    for main in (method for method in methods if method.key in entries):
        [(setting, candidates)] = entries[main.key].items()
        values, usual = dict(sweep_values(candidates)), _usual(grid, main)
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


def _runs(
    grid: Grid, methods: Sequence[Method], points: Sequence[Point], trials: Sequence[Trial]
) -> Iterator[PlannedRun]:
    """Yield every run of the grid; a tuned row has one for each candidate."""
    by_row = {key: trial for trial in trials for key in trial.rows}
    # One method with each first stage comes before the others, which need not wait for it.
    leaders = {method.stages[0]: method.key for method in reversed(methods)}
    ordered = sorted(methods, key=lambda method: method.key not in leaders.values())
    seeds = dict.fromkeys([*(trial.seed for trial in trials), *grid.seeds])
    for seed, (index, point), method in itertools.product(seeds, enumerate(points), ordered):
        trial = by_row.get(method.key)
        if seed not in grid.seeds and (trial is None or trial.method != method.key):
            continue  # a seed for trials only
        pairs = {key: (point.labels[key], value) for key, value in point.values.items()}
        swept = {key: pair for key, pair in pairs.items() if _applies(key, method)}
        # A method without a swept setting has the same run at every point.
        if not swept and index > 0:
            continue
        if trial is None:
            yield _run(grid, method, index, seed, swept)
            continue
        for label, value in trial.values.items():
            # The default has the name and the settings of a run without trials.
            tuned = {} if label == trial.default else {trial.setting: (label, value)}
            yield replace(_run(grid, method, index, seed, swept | tuned), tuned=label)


def _run(
    grid: Grid, method: Method, index: int, seed: int, changes: Mapping[str, tuple[str, Any]]
) -> PlannedRun:
    """Plan one run of a point; ``changes`` are labels and values of what differs from the grid."""
    spec = _spec(grid, method, {key: value for key, (_, value) in changes.items()} | {"seed": seed})
    profiles = [] if spec.profile == "default" or "profile" in changes else [spec.profile]
    marks = [f"{key}={label}" for key, (label, _) in changes.items()]
    name = "-".join([method.key, *profiles, *marks, f"seed{seed}"])
    return plan_run(re.sub(r"[^A-Za-z0-9_.=+-]+", "_", name), spec, index)


def _spec(grid: Grid, method: Method, changes: Mapping[str, Any]) -> Spec:
    """Complete the settings of one run, with the values that differ from the grid."""
    values = {k: v for k, v in grid.settings.items() if _applies(k, method)} | dict(changes)
    data, profile = (values.pop(key, getattr(grid, key)) for key in ("data", "profile"))
    # Profiles belong to one family of methods; the other rows keep their defaults.
    profile = profile if profile in method.profiles else "default"
    protocol = grid.protocol
    if isinstance(protocol, dict):
        values = {k: v for k, v in protocol.items() if k != "base"} | values
        protocol = protocol.get("base")
    source = Source(str(data), Columns.of(grid.columns), grid.skip_bad)
    return resolve(method, protocol, values, profile, source)


def _usual(grid: Grid, method: Method) -> dict[str, Any]:
    """Return every setting of a method's runs without a sweep and without trials."""
    spec = _spec(grid, method, {})
    return spec.request.protocol | spec.values


def _applies(key: str, method: Method) -> bool:
    """Whether a setting may change in the runs of a method: its preset, which defines it, stays."""
    if key in ("data", "profile"):
        return key == "data" or bool(method.profiles)
    return key in {*Protocol.model_fields, *method.settings()} - set(method.preset)


def identify(plan: Plan, folder: Path | None = None) -> Plan:
    """Return the plan with the fingerprint of each run's data, read without the images' pixels.

    With ``folder``, the data of each run that is not finished there must be readable.
    """
    fingerprints: dict[str, str | LmdError] = {}
    runs = []
    for run in plan.runs:
        protocol = run.request["protocol"]
        key = f"{run.pixels} {protocol.get('fold')} {protocol['allow_leak']}"
        if key not in fingerprints:
            try:
                fingerprints[key] = _fingerprint(plan, run.request)
            except LmdError as error:
                fingerprints[key] = error
        result = fingerprints[key]
        if isinstance(result, str):
            runs.append(replace(run, fingerprint=result))
        elif folder is None or Run(folder / run.name).is_finished():
            runs.append(replace(run, fingerprint=""))
        else:
            raise result
    return replace(plan, runs=runs)


def _fingerprint(plan: Plan, request: Mapping[str, Any]) -> str:
    from lmd.data.dataset import plan_data

    for key, place in (("data", request["data"]), ("root", request["columns"].get("root"))):
        if place not in (None, "synthetic") and what_is(Path(place)) == MISSING:
            raise LmdError(
                f"grid {plan.name}: {key} {place} does not exist; paths are relative to the grid "
                "file, or to the current folder for a grid of lmd"
            )
    source = Source(request["data"], Columns.of(request["columns"]), request["skip_bad"])
    data = plan_data(source, Protocol.model_validate(request["protocol"]))
    if plan.trials and len(data.table.part("validation")) == 0:
        raise LmdError(
            f"grid {plan.name}: [trials] choose on the validation part, which is empty in "
            f"{request['data']}: give the data one, or remove [trials] from the grid"
        )
    return data.fingerprint()

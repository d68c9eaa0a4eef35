"""From a grid to its plan: every run with its complete settings, checked before anything runs."""

import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError
from lmd.benchmark.grid import Grid, load_grid, sweep_values
from lmd.benchmark.plan import Plan, PlannedRun, Point, Row, grid_hash
from lmd.contract.method import Method
from lmd.methods import DEFAULT, METHODS, PAPER, find_method, in_paper_order, related
from lmd.protocol import Protocol
from lmd.runfolder.record import Request
from lmd.runs.request import Resolved, resolve, train_command


def plan_grid(name: str | Path) -> Plan:
    """All runs of a grid: every method of the first seed first, so that tables fill early."""
    grid = load_grid(name)
    methods = _methods(grid)
    reference = find_method(grid.reference or DEFAULT)
    _check_settings(grid, methods)
    combinations = _combinations(grid)
    points = _points(grid, methods, reference, combinations)
    runs: dict[str, PlannedRun] = {}
    for seed in grid.seeds:
        for index, combination in enumerate(combinations):
            for method in methods:
                known = _known(method, combination)
                # A method without a swept setting has the same run at every point.
                if known or index == 0:
                    run = _run(grid, method, known, index, seed)
                    if runs.setdefault(run.name, run).request != run.request:
                        raise LmdError(
                            f"two runs of grid {name} would have the folder {run.name}: give the "
                            "swept values labels that differ in letters and digits"
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
    )


def _methods(grid: Grid) -> list[Method]:
    named = {"paper": PAPER, "all": METHODS}
    keys = named[grid.methods] if isinstance(grid.methods, str) else grid.methods
    return in_paper_order(keys)


def _combinations(grid: Grid) -> list[dict[str, tuple[str, Any]]]:
    """The product of all swept settings: label and value by setting."""
    axes = [[(key, pair) for pair in sweep_values(v)] for key, v in grid.sweep.items()]
    return [dict(chosen) for chosen in itertools.product(*axes)]


def _known(
    method: Method, combination: Mapping[str, tuple[str, Any]]
) -> dict[str, tuple[str, Any]]:
    valid = {*Protocol.model_fields, *method.defaults(), "data"}
    return {key: pair for key, pair in combination.items() if key in valid}


def _check_settings(grid: Grid, methods: list[Method]) -> None:
    profiles = {"default"}.union(*(m.profiles for m in methods))
    if grid.profile not in profiles:
        raise LmdError(
            f"'profile' {grid.profile!r} is of no method of this grid; there are: "
            f"{', '.join(sorted(profiles))}"
        )
    valid = set(Protocol.model_fields).union(*(m.defaults() for m in methods))
    for part, keys in (("settings", grid.settings), ("sweep", grid.sweep)):
        for key in keys:
            if key not in valid and not (part == "sweep" and key == "data"):
                raise LmdError(
                    f"[{part}] {key!r} is a setting neither of the protocol nor of any method of "
                    f"this grid; there are: {', '.join(sorted(valid))}"
                )


def _points(
    grid: Grid,
    methods: list[Method],
    reference: Method,
    combinations: list[dict[str, tuple[str, Any]]],
) -> list[Point]:
    """The points, and which of them has the values that would hold without the sweep."""
    found = _resolved(grid, reference if reference in methods else methods[-1], {})
    usual = found.protocol.model_dump(mode="json") | found.settings
    return [
        Point(
            {key: label for key, (label, _) in chosen.items()},
            {key: value for key, (_, value) in chosen.items()},
            bool(chosen) and all(usual.get(k) == v for k, (_, v) in chosen.items()),
        )
        for chosen in combinations
    ]


def _resolved(grid: Grid, method: Method, extra: Mapping[str, Any]) -> Resolved:
    base, given = _given(grid, method, extra)
    return resolve(method, base, given, _profile(grid, method))


def _profile(grid: Grid, method: Method) -> str:
    # A profile is of one family; the other rows of a comparison have none of that name.
    return grid.profile if grid.profile in method.profiles else "default"


def _given(
    grid: Grid, method: Method, extra: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """The protocol's name and all that is set beyond it, for this method."""
    valid = {*Protocol.model_fields, *method.defaults()}
    own = {k: v for k, v in grid.settings.items() if k in valid}
    if isinstance(grid.protocol, dict):
        inline = {k: v for k, v in grid.protocol.items() if k != "base"}
        return grid.protocol.get("base"), inline | own | dict(extra)
    return grid.protocol, own | dict(extra)


def _run(
    grid: Grid, method: Method, known: Mapping[str, tuple[str, Any]], point: int, seed: int
) -> PlannedRun:
    extra = {key: value for key, (_, value) in known.items() if key != "data"}
    data = known["data"][1] if "data" in known else grid.data
    asked = _resolved(grid, method, extra | {"seed": seed})
    profile = _profile(grid, method)
    request = Request(
        data=str(data),
        method=method.key,
        profile=profile,
        protocol=asked.protocol.model_dump(mode="json"),
        settings=asked.settings,
        columns=dict(grid.columns),
        skip_bad=grid.skip_bad,
    )
    marks = [f"{key}={label}" for key, (label, _) in known.items()]
    words = [method.key, *([profile] if profile != "default" else []), *marks, f"seed{seed}"]
    return PlannedRun(
        name=re.sub(r"[^A-Za-z0-9_.=+-]+", "_", "-".join(words)),
        method=method.key,
        point=point,
        seed=seed,
        stages=len(method.stages),
        request=request.model_dump(mode="json"),
        command=train_command(request, *_given(grid, method, extra | {"seed": seed})),
        first=_first(method, asked.settings),
    )


def _first(method: Method, settings: Mapping[str, Any]) -> str:
    shaping = settings if method.first_settings is None else method.first_settings
    return json.dumps([method.stages[0], {key: settings[key] for key in shaping}])

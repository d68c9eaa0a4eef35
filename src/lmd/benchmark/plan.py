"""Grid files, the runs they plan, and whether the runs on disk belong to a plan; no torch."""

import hashlib
import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, whole
from lmd.base.text import complaints, unknown
from lmd.runs.folder import Run
from lmd.runs.record import Record

GRIDS = resources.files("lmd") / "benchmark" / "grids"
FORMAT = 2


class Trials(BaseModel):
    """Equal tuning: for each row one setting and its candidate values.

    The rows of a family without an entry use the value of the family's main row. ``seed`` is that
    of the trial runs (default: the first of ``seeds``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int | None = None
    settings: dict[str, dict[str, list[Any]]] = Field(min_length=1)


class Grid(BaseModel):
    """The keys of a grid file.

    ``sweep`` maps a setting, ``data`` or ``profile`` to a list of values or a table from labels to
    values. ``protocol`` is a name, a file, or a table of settings whose ``base`` names the
    protocol to start from.
    """

    model_config = ConfigDict(extra="forbid")

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        json_schema_extra={"rule": "letters, digits, '_', '.' and '-', a letter or digit first"},
    )
    title: str = ""
    data: str | None = None
    columns: dict[str, Any] = {}
    skip_bad: bool = False
    protocol: str | dict[str, Any] | None = None
    profile: str = "default"
    methods: Literal["paper", "all"] | list[str] = "paper"
    seeds: list[int] = Field(default=[0], min_length=1)
    settings: dict[str, Any] = {}
    sweep: dict[str, list[Any] | dict[str, Any]] = {}
    trials: Trials | None = None
    reference: str | None = None
    form: Literal["metrics", "tiers", "factors", "sweep"] = "metrics"


def load_grid(name: str | Path) -> Grid:
    """Load a grid from a TOML file, or a shipped grid by name, with absolute paths."""
    text, base = _read_grid(name)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LmdError(f"grid file {name} is not valid TOML: {error}") from None
    plain = re.sub(r"[^\w.-]", "_", Path(name).name.removesuffix(".toml"), flags=re.ASCII)
    values.setdefault("name", plain.lstrip("_.-") or "grid")
    try:
        grid = Grid.model_validate(values)
        problems = [*_problems(grid), *_trial_problems(grid)]
    except ValidationError as error:
        problems = complaints(error, Grid, values, what="key")
    if problems:
        raise LmdError(f"grid {name}: {'; '.join(problems)}")
    _resolve_paths(grid, base)
    return grid


def grid_hash(name: str | Path) -> str:
    """Hash a grid's text and the folder that its paths are relative to."""
    text, base = _read_grid(name)
    return hashlib.sha256(f"{base}\n{text}".encode()).hexdigest()


def _read_grid(name: str | Path) -> tuple[str, Path]:
    """Read the text of a grid; return it and the folder that its paths are relative to."""
    if not str(name).endswith(".toml"):
        if str(name) not in shipped_grids():
            there_are = "give a .toml file or one of"
            raise LmdError(unknown("grid", str(name), shipped_grids(), there_are=there_are))
        return (GRIDS / f"{name}.toml").read_text(encoding="utf-8"), Path.cwd()
    path = Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8"), path.resolve().parent
    except FileNotFoundError:
        raise LmdError(f"grid file {path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise LmdError(f"grid file {path} cannot be read: {error}") from None


def shipped_grids() -> list[str]:
    """Return the names of the grids that ship with the package.

    >>> "synthetic" in shipped_grids()
    True
    """
    names = (file.name for file in GRIDS.iterdir())
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def sweep_values(values: list[Any] | dict[str, Any]) -> list[tuple[str, Any]]:
    """Return labels and values of one swept setting, in the order of the file.

    >>> sweep_values([0.1, "raw"]), sweep_values({"r = 100": "a.csv"})
    ([('0.1', 0.1), ('raw', 'raw')], [('r = 100', 'a.csv')])
    """
    if isinstance(values, dict):
        return list(values.items())
    formats = {bool: lambda value: str(value).lower(), float: "{:g}".format}
    return [(formats.get(type(value), str)(value), value) for value in values]


def _problems(grid: Grid) -> Iterator[str]:
    """Yield what is wrong with a grid whose keys have valid types."""
    if grid.data is None and "data" not in grid.sweep:
        yield "'data' is missing: a path, or 'synthetic'"
    for key in ("data", "profile"):
        if key in grid.model_fields_set and key in grid.sweep:
            yield f"{key!r} is given twice: at the top and in [sweep]"
    for key, listed in (("seeds", grid.seeds), ("methods", grid.methods)):
        if isinstance(listed, list) and len(set(listed)) < len(listed):
            yield f"{key!r} must differ from one another; they are {listed}"
    if grid.methods == []:
        yield '\'methods\' is empty: list some, or use "paper" or "all"'
    for key in ("seed", "workers"):
        if key in grid.settings or key in grid.sweep:
            yield f"{key!r} cannot be set in a grid: use 'seeds' and --workers"
    for key, values in grid.sweep.items():
        labels = [label for label, _ in sweep_values(values)]
        if not labels or len(set(labels)) < len(labels):
            yield f"[sweep] {key} needs values that differ from one another; got {labels}"
        if key in grid.settings:
            yield f"{key!r} is in [settings] and in [sweep]: choose one"


def _trial_problems(grid: Grid) -> Iterator[str]:
    if grid.trials is None:
        return
    if grid.sweep:
        yield "[trials] and [sweep] cannot be in one grid: write a grid for each"
    counts = {}
    for key, entry in grid.trials.settings.items():
        if len(entry) != 1:
            yield f"[trials] {key} needs exactly one setting; it has {list(entry)}"
        for setting, candidates in entry.items():
            counts[key] = len(candidates)
            labels = [label for label, _ in sweep_values(candidates)]
            if len(labels) < 2 or len(set(labels)) < len(labels):
                yield (
                    f"[trials] {key}: {setting} needs at least two values that differ from one "
                    f"another; got {labels}"
                )
            if setting in ("seed", "workers"):
                yield f"[trials] {key}: {setting!r} cannot be tuned"
    if len(set(counts.values())) > 1:
        texts = (f"{key} has {n}" for key, n in counts.items())
        yield f"[trials] every row needs the same number of values; {', '.join(texts)}"


def _resolve_paths(grid: Grid, base: Path) -> None:
    """Make the paths of a grid absolute."""

    def absolute(path: Any) -> str:
        # Links stay: images lie beside the link of a manifest, not beside what it points to.
        return path if path == "synthetic" else str(whole(base / Path(str(path)).expanduser()))

    def weights(value: Any) -> Any:
        # Only file names have a dot: "imagenet", "none" and the shipped protocols have none.
        return absolute(value) if isinstance(value, str) and "." in value else value

    if grid.data is not None:
        grid.data = absolute(grid.data)
    if (data := grid.sweep.get("data")) is not None:
        paths: dict[str, str] = {}
        for text, path in sweep_values(data):
            label = Path(text).stem if isinstance(data, list) else text
            if label in paths:
                raise LmdError(
                    f"[sweep] data: more than one is called {label!r}: give each a label, as in "
                    '`[sweep.data]`, `"r = 100" = "a/data.csv"`'
                )
            paths[label] = absolute(path)
        grid.sweep["data"] = paths
    if "root" in grid.columns:
        grid.columns["root"] = absolute(grid.columns["root"])
    inline = grid.protocol if isinstance(grid.protocol, dict) else {}
    if isinstance(grid.protocol, str) and grid.protocol.endswith(".toml"):
        grid.protocol = absolute(grid.protocol)
    for values, key in ((grid.settings, "weights"), (inline, "weights"), (inline, "base")):
        if key in values:
            values[key] = weights(values[key])
    if swept := grid.sweep.get("weights"):
        grid.sweep["weights"] = {label: weights(value) for label, value in sweep_values(swept)}
    for entry in () if grid.trials is None else grid.trials.settings.values():
        if "weights" in entry:
            entry["weights"] = [weights(value) for value in entry["weights"]]


@dataclass(frozen=True)
class Row:
    """A method as a table shows it; ``own`` marks the reference and its ablations."""

    key: str
    title: str
    note: str
    own: bool = False


@dataclass(frozen=True)
class Point:
    """One combination of swept values; ``usual`` if it equals the values without a sweep."""

    labels: dict[str, str] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    usual: bool = False

    @property
    def title(self) -> str:
        """All labels, with the setting's name unless the label contains one.

        >>> Point({"lambda_1": "0.1", "data": "r = 100"}).title
        'lambda_1 = 0.1, r = 100'
        """
        parts = self.labels.items()
        return ", ".join(v if k == "data" or "=" in v else f"{k} = {v}" for k, v in parts)


@dataclass(frozen=True)
class PlannedRun:
    """One run: its folder's name, what is trained, and the complete request of its record.

    ``fingerprint`` identifies images, labels and parts; empty if the data is not on this machine.
    """

    name: str
    method: str
    point: int
    seed: int
    epochs: list[int]  # of each stage
    request: dict[str, Any]
    command: list[str]
    tuned: str = ""  # the label of the tuned value; empty if the row is not tuned
    fingerprint: str = ""

    @property
    def pixels(self) -> str:
        """Everything that determines which images are decoded, as text."""
        keys = ("image_size", "imbalance", "shape", "head_size", "split", "split_seed")
        values = (self.request["protocol"][key] for key in keys)
        return json.dumps([self.request["data"], self.request["columns"], *values])


@dataclass(frozen=True)
class Trial:
    """The candidates of one setting of a row, by label; all ``rows`` use the chosen one."""

    method: str
    setting: str
    values: dict[str, Any]
    default: str
    seed: int
    rows: list[str]


@dataclass(frozen=True)
class Plan:
    """All runs of a grid; ``points`` has one empty point if nothing is swept.

    A method without any of the swept settings is run once, at point 0. With ``trials``, ``runs``
    has every candidate of a tuned row, and a choice selects among them (``lmd.benchmark.trials``).
    """

    name: str
    title: str
    reference: str
    form: str
    seeds: list[int]
    rows: list[Row]
    points: list[Point]
    runs: list[PlannedRun]
    source: str = ""
    trials: list[Trial] = field(default_factory=list)


def write_plan(plan: Plan, folder: Path) -> None:
    """Write ``plan.json``, from which tables are made without planning again."""
    text = json.dumps({"format": FORMAT, **asdict(plan)}, indent=1, ensure_ascii=False)
    atomic_write(folder / "plan.json", (text + "\n").encode())


def read_plan(folder: Path) -> Plan | None:
    """Read the plan in a benchmark's folder; ``None`` without one of this format."""
    path = folder / "plan.json"
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return TypeAdapter(Plan).validate_python(values) if values["format"] == FORMAT else None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise LmdError(
            f"{path} cannot be read: {error}; delete it, and it will be written again"
        ) from None


def inspect(plan: Plan, folder: Path) -> dict[str, float | None]:
    """Return the seconds of each run on disk, ``None`` until finished; all must match the plan."""
    seconds: dict[str, float | None] = {}
    others = []
    for planned in plan.runs:
        run = Run(folder / planned.name)
        if not run.record_path.exists():
            continue
        if changes := changes_since(run.record, planned):
            others.append(f"  {run.path}: " + "; ".join(changes))
        took = sum(stage.seconds for stage in run.record.stages)
        seconds[planned.name] = took if run.is_finished() else None
    if others:
        raise LmdError(
            "these runs do not belong to this grid (run → grid):\n"
            + "\n".join(others)
            + "\nChoose another folder with --out, undo the change, or delete these runs to train "
            "them again."
        )
    return seconds


def changes_since(record: Record, run: PlannedRun) -> list[str]:
    """Return what differs between a run on disk and its plan, as ``key: before → now``.

    A finished run may come from another machine, where the data had another place, and from an
    older version, which lacked a setting. One that has begun must go on as it began.
    """
    before, now = record.request.model_dump(mode="json"), run.request
    if record.status != "finished":
        return differences(before, now)
    old, new = (
        {**request, "data": "", "columns": {**request["columns"], "root": None}}
        for request in (before, now)
    )
    changes = differences(old, new, common=True)
    # Which images cannot be read, and are left out, is known only after they were decoded.
    if run.fingerprint and not record.data.skipped:
        if record.data.fingerprint != run.fingerprint:
            places = f"{before['data']} → {now['data']}"
            changes.append(f"data: {places} (other images, labels or parts)")
    elif (name := Path(before["data"]).name) != (new_name := Path(now["data"]).name):
        changes.append(f"data: {name} → {new_name}")
    return changes


def differences(before: dict[str, Any], now: dict[str, Any], *, common: bool = False) -> list[str]:
    """Return what differs between two requests, as ``key: before → now``, except loader workers.

    With ``common``, only keys that both have, and columns: an older run lacks settings that came
    later. A protocol's values for methods are then compared as the settings that they became.

    >>> differences({"protocol": {"lr": 1, "workers": 0}}, {"protocol": {"lr": 2, "workers": 1}})
    ['lr: 1 → 2']
    """

    def flat(request: dict[str, Any]) -> dict[tuple[str, str], Any]:
        inner = ("protocol", "settings", "columns")
        nested = {key: value if key in inner else {"": value} for key, value in request.items()}
        return {(key, name): v for key, values in nested.items() for name, v in values.items()}

    old, new = flat(before), flat(now)
    changes = []
    for key in {**old, **new}:
        # Only user-set columns are stored, so a missing column means a different request.
        both = (key in old and key in new and key != ("protocol", "methods")) or key[0] == "columns"
        counts = key != ("protocol", "workers") and (both or not common)
        if counts and old.get(key) != new.get(key):
            changes.append(f"{key[1] or key[0]}: {old.get(key)} → {new.get(key)}")
    return changes

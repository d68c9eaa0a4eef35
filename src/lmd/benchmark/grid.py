"""Grid files: the data, methods, seeds and swept settings of a benchmark; no torch."""

import re
import tomllib
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lmd.base.errors import LmdError
from lmd.base.files import whole
from lmd.base.text import complaints, unknown


class Trials(BaseModel):
    """Equal tuning: for each row one setting and its candidate values.

    The rows of a family without an entry use the value of the family's main row. ``seed`` is that
    of the trial runs (default: the first of ``seeds``).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int | None = None
    settings: Annotated[dict[str, dict[str, list[Any]]], Field(min_length=1)]


class Grid(BaseModel):
    """The keys of a grid file.

    ``sweep`` maps a setting, ``data`` or ``profile`` to a list of values or a table from labels to
    values. ``protocol`` is a name, a file, or a table of settings whose ``base`` names the
    protocol to start from.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
            json_schema_extra={
                "rule": "letters, digits, '_', '.' and '-', a letter or digit first"
            },
        ),
    ]
    title: str = ""
    data: str | None = None
    columns: dict[str, Any] = Field(default_factory=dict)
    skip_bad: bool = False
    protocol: str | dict[str, Any] | None = None
    profile: str = "default"
    methods: Literal["paper", "all"] | list[str] = "paper"
    seeds: Annotated[list[int], Field(min_length=1)] = [0]
    settings: dict[str, Any] = Field(default_factory=dict)
    sweep: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    trials: Trials | None = None
    reference: str | None = None
    form: Literal["metrics", "tiers", "factors", "sweep"] = "metrics"


def load_grid(name: str | Path) -> Grid:
    """Load a grid from a TOML file, or a shipped grid by name.

    Paths are relative to the file, or to the current folder for a shipped grid.
    """
    text, base = read_grid(name)
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LmdError(f"grid file {name} is not valid TOML: {error}") from None
    plain = re.sub(r"[^\w.-]", "_", Path(name).name.removesuffix(".toml"), flags=re.ASCII)
    values.setdefault("name", plain.lstrip("_.-") or "grid")
    try:
        grid = Grid.model_validate(values)
    except ValidationError as error:
        problems = complaints(error, Grid, values, what="key")
        raise LmdError(f"grid {name}: {'; '.join(problems)}") from None
    problems = [*_problems(grid), *_trial_problems(grid)]
    if problems:
        raise LmdError(f"grid {name}: {'; '.join(problems)}")
    return _with_paths(grid, base)


def read_grid(name: str | Path) -> tuple[str, Path]:
    """Read the text of a grid; return it and the folder that its paths are relative to."""
    if not str(name).endswith(".toml"):
        if str(name) not in shipped_grids():
            there_are = "give a .toml file or one of"
            raise LmdError(unknown("grid", str(name), shipped_grids(), there_are=there_are))
        file = resources.files("lmd") / "benchmark" / "grids" / f"{name}.toml"
        return file.read_text(encoding="utf-8"), Path.cwd()
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
    folder = resources.files("lmd") / "benchmark" / "grids"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name[-5:] == ".toml")


def sweep_values(values: list[Any] | dict[str, Any]) -> list[tuple[str, Any]]:
    """Return labels and values of one swept setting, in the order of the file.

    >>> sweep_values([0.1, "raw"]), sweep_values({"r = 100": "a.csv"})
    ([('0.1', 0.1), ('raw', 'raw')], [('r = 100', 'a.csv')])
    """
    if isinstance(values, dict):
        return list(values.items())
    return [(_label(value), value) for value in values]


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _problems(grid: Grid) -> Iterator[str]:
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
        for setting, values in entry.items():
            counts[key] = len(values)
            labels = [label for label, _ in sweep_values(values)]
            if len(labels) < 2 or len(set(labels)) < len(labels):
                yield (
                    f"[trials] {key}: {setting} needs at least two values that differ from one "
                    f"another; got {labels}"
                )
            if setting in ("seed", "workers"):
                yield f"[trials] {key}: {setting!r} cannot be tuned"
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{key} has {n}" for key, n in counts.items())
        yield f"[trials] every row needs the same number of values; {listed}"


def _with_paths(grid: Grid, base: Path) -> Grid:
    """The same grid with absolute paths."""

    def absolute(path: Any) -> str:
        # Links stay: images lie beside the link of a manifest, not beside what it points to.
        if path == "synthetic":
            return "synthetic"
        return str(whole(base / Path(str(path)).expanduser()))

    def weights(value: Any) -> Any:
        # Only file names have a dot: "imagenet", "none" and the shipped protocols have none.
        return absolute(value) if isinstance(value, str) and "." in value else value

    grid = grid.model_copy(deep=True)
    changes = {} if grid.data is None else {"data": absolute(grid.data)}
    if "data" in grid.sweep:
        listed = isinstance(grid.sweep["data"], list)
        places = [(Path(k).stem if listed else k, v) for k, v in sweep_values(grid.sweep["data"])]
        stems = [stem for stem, _ in places]
        if twice := next((stem for stem in stems if stems.count(stem) > 1), None):
            raise LmdError(
                f"[sweep] data: more than one is called {twice!r}: give each a label, as in "
                '`[sweep.data]`, `"r = 100" = "a/data.csv"`'
            )
        grid.sweep["data"] = {label: absolute(path) for label, path in places}
    if "root" in grid.columns:
        grid.columns["root"] = absolute(grid.columns["root"])
    if isinstance(grid.protocol, str) and grid.protocol.endswith(".toml"):
        changes["protocol"] = absolute(grid.protocol)
    inline = grid.protocol if isinstance(grid.protocol, dict) else {}
    for part, key in ((grid.settings, "weights"), (inline, "weights"), (inline, "base")):
        if key in part:
            part[key] = weights(part[key])
    if "weights" in grid.sweep:
        swept = sweep_values(grid.sweep["weights"])
        grid.sweep["weights"] = {label: weights(value) for label, value in swept}
    for entry in () if grid.trials is None else grid.trials.settings.values():
        if "weights" in entry:
            entry["weights"] = [weights(value) for value in entry["weights"]]
    return grid.model_copy(update=changes)

"""What a figure is drawn from: run folders, record files and folders of benchmarks; no torch."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lmd.base.errors import LmdError
from lmd.base.text import shorten
from lmd.benchmark.grid import load_grid
from lmd.benchmark.plan import Plan, read_plan
from lmd.benchmark.trials import choices_path, read_choices, settled
from lmd.runs.folder import Run, read_record
from lmd.runs.record import Record


@dataclass(frozen=True)
class Found:
    """The record of one finished run; ``folder`` is its run folder, if it is there."""

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


@dataclass(frozen=True)
class Study:
    """Finished runs; ``order``, ``reference`` and ``own`` (its ablations) are a plan's, if any."""

    runs: list[Found]
    title: str = ""
    order: tuple[str, ...] = ()
    reference: str | None = None
    own: frozenset[str] = frozenset()
    missing: tuple[str, ...] = ()


def read_study(words: Sequence[str], runs: Path | None = None) -> Study:
    """The runs that the words name; ``runs`` replaces the folder of a grid."""
    if runs is not None and len(words) != 1:
        raise LmdError("--runs needs exactly one grid: give one, or the folders themselves")
    studies = [_read(word, runs) for word in words]
    found = [run for study in studies for run in study.runs]
    if not found:
        missing = [name for study in studies for name in study.missing]
        said = f" ({shorten(missing)} missing)" if missing else ""
        raise LmdError(f"no run of {shorten(list(words))} is finished{said}: train some first")
    first = studies[0]
    return Study(
        found,
        first.title,
        tuple(dict.fromkeys(key for study in studies for key in study.order)),
        first.reference,
        frozenset[str]().union(*(study.own for study in studies)),
        tuple(name for study in studies for name in study.missing),
    )


def _read(word: str, runs: Path | None) -> Study:
    path = Path(word)
    if runs is not None:
        return _grid(word, runs)
    if path.suffix == ".json" and path.is_file():
        return Study(_finished([(path, None)], word))
    if (path / "record.json").exists():
        return Study(_finished([(path / "record.json", path)], word))
    if path.is_dir():
        return _folder(path)
    if path.suffix != ".toml" and path.parent != Path():
        raise LmdError(f"{word} does not exist: give a run folder, a benchmark's folder or a grid")
    grid = load_grid(word)
    folder = Path("runs") / grid.name
    if not folder.is_dir():
        raise LmdError(
            f"no benchmark in {folder.resolve()}: run `lmd benchmark {word}` or use --runs"
        )
    return _grid(word, folder)


def _grid(word: str, folder: Path) -> Study:
    """The runs of a grid in a folder; published runs have no plan beside them, so it is made."""
    plan = read_plan(folder)
    if plan is None:
        from lmd.benchmark.planning import plan_grid

        plan = plan_grid(word)
    found = _planned(plan, folder)
    return found if found.runs else _folder(folder)  # runs with names of their own


def _folder(folder: Path) -> Study:
    """A benchmark's folder with its plan, or a folder of runs or of record files."""
    plan = read_plan(folder)
    if plan is not None:
        return _planned(plan, folder)
    places: list[tuple[Path, Path | None]] = [
        (path, path.parent) for path in sorted(folder.glob("*/record.json"))
    ]
    if not places:
        kept = folder / "records" if (folder / "records").is_dir() else folder
        aside = {"choices.json", "plan.json"}
        places = [(path, None) for path in sorted(kept.glob("*.json")) if path.name not in aside]
    if not places:
        raise LmdError(
            f"{folder} has no run: give a run folder, a folder of runs or of records (.json), "
            "or the name of a grid"
        )
    dropped = _not_chosen(folder)
    kept_places = [(r, f) for r, f in places if (f.name if f else r.stem) not in dropped]
    return Study(_finished(kept_places, str(folder)))


def _planned(plan: Plan, folder: Path) -> Study:
    plan = settled(plan, read_choices(plan, folder))
    found, missing = [], []
    for run in plan.runs:
        place = Run(folder / run.name)
        record = place.record if place.record_path.exists() else None
        if record is None or record.status != "finished":
            missing.append(run.name)
        else:
            found.append(Found(record, place.path))
    own = frozenset(row.key for row in plan.rows if row.own)
    order = tuple(row.key for row in plan.rows)
    return Study(found, plan.title, order, plan.reference, own, tuple(missing))


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


def _finished(places: Iterable[tuple[Path, Path | None]], word: str) -> list[Found]:
    """All finished runs; one that was named by itself must be finished."""
    places = list(places)
    found = []
    for path, folder in places:
        record = read_record(path)
        if record.status == "finished" and record.part is not None:
            found.append(Found(record, folder))
        elif len(places) == 1:
            raise LmdError(f"{word} is not finished: run `lmd train --resume --out {word}`")
    return found

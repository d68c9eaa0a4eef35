"""`lmd show`, `lmd runs` and `lmd report`: the numbers of runs, in the terminal and as a page."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from lmd.base.errors import LmdError
from lmd.base.text import text_table

# A run writes a checkpoint after every epoch; so long a silence means that it was stopped.
SILENT_EPOCHS, SILENT_SECONDS = 5, 900.0


Runs = Annotated[Sequence[Path], typer.Argument(metavar="RUN...")]


def show(runs: Runs, *, definitions: bool = False) -> None:
    """Print the numbers of runs: metrics and the recall of each class, with intervals and bars.

    Args:
        runs: Run folders.
        definitions: Explain every number and its interval too.
    """
    from lmd.report.text import format_definitions, format_summary
    from lmd.runs.folder import Run

    # All of them before the first is printed: an error must not follow a long output.
    records = [Run.open(path).record for path in runs]
    for i, record in enumerate(records):
        typer.echo(("\n" if i else "") + format_summary(record))
        if definitions:
            typer.echo(f"\n{format_definitions(record.definitions)}")


def runs(folder: Path = Path("runs")) -> None:
    """List the runs below a folder: method, data, state, balanced accuracy and age.

    Args:
        folder: A folder with run folders in it.
    """
    if not folder.is_dir():
        raise LmdError(f"folder {folder} does not exist: give the folder that has the runs")
    places = sorted(path.parent for path in folder.rglob("record.json"))
    if not places:
        typer.echo(f"No runs in {folder}. `lmd train DATA` makes one.")
        return
    heads = ("run", "method", "data", "state", "BACC %", "age")
    rows = [heads, None, *(_listed(path, folder) for path in places)]
    # Names are cut to 80 columns for a reader, and whole for a program.
    limits = (26, 16, 10) if sys.stdout.isatty() else ()
    typer.echo(text_table(rows, "llllrr", limits=limits))


def report(
    runs: Runs,
    *,
    out: Path | None = None,
    images: bool = True,
    data: str | None = None,
    device: str = "auto",
) -> None:
    """Write the report of a run, with other runs on the same test images side by side.

    Args:
        runs: One to eight finished run folders.
        out: The page to write; an existing one is replaced. By default report.html in the first
            run.
        data: Where the images of the first run are: make its pictures of mistakes again, for runs
            that have none.
    """
    from lmd.base.files import check_output
    from lmd.report.page import write_report
    from lmd.runs.folder import Run

    if out is not None:
        check_output(out, "--out", ".html")
    finished = [Run.open(path).require_finished() for path in runs]
    if data is not None and images:
        from lmd.base.distributed import choose_device
        from lmd.explain.examples import add_examples

        add_examples(runs[0], data, device=choose_device(device))
    path = write_report(finished[0], compare=finished[1:], out=out, images=images)
    typer.secho(f"The report: {path}", bold=True)


def state_of(status: str, folder: Path, now: float) -> str:
    """Return ``finished``, ``running`` if the run has written lately, else ``interrupted``."""
    from lmd.runs.folder import Run

    if status == "finished":
        return status
    newest = 0.0
    for path in (folder, *folder.glob("*"), *folder.glob("*/*")):
        with suppress(OSError):  # it has just been removed
            newest = max(newest, path.stat().st_mtime)
    history = Run(folder).read_history()
    epoch = history[-1].get("seconds") if history else None
    epoch = epoch if isinstance(epoch, int | float) else 0.0
    silent = now - newest > max(SILENT_SECONDS, SILENT_EPOCHS * epoch)
    return "interrupted" if silent else "running"


def age(seconds: float) -> str:
    """Return how long ago that was, in the largest unit.

    >>> age(50), age(7300), age(3e5)
    ('50 s', '2 h', '3 d')
    """
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


def _listed(path: Path, root: Path) -> tuple[str, ...]:
    from lmd.runs.folder import Run

    name = "." if path == root else str(path.relative_to(root))
    try:
        record = Run(path).record
    except LmdError:
        return name, "–", "–", "damaged", "–", "–"
    now = time.time()
    accuracy = record.metrics[record.part].get("balanced_accuracy") if record.part else None
    value = "–" if accuracy is None else accuracy.value_text(".1p")
    when = datetime.fromisoformat(record.finished or record.created)
    since = now - when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    source = record.data.source if record.external is not None else record.request.data
    data = Path(source).name or record.data.source
    return (name, record.method.key, data, state_of(record.status, path, now), value, age(since))

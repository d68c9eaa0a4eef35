"""`lmd show`, `lmd runs` and `lmd report`: the numbers of runs, in the terminal and as a page."""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.errors import LmdError

if TYPE_CHECKING:
    from lmd.runs.record import Record
    from lmd.scoring.estimates import Estimate

WIDTH = 80
HEADLINES = ("balanced_accuracy", "bacc_head", "bacc_medium", "bacc_tail", "macro_f1", "auc", "ece")
# A run writes a checkpoint after every epoch; so long a silence means that it was stopped.
SILENT_EPOCHS, SILENT_SECONDS = 5, 900.0


Runs = Annotated[Sequence[Path], typer.Argument(metavar="RUN...")]


def show(runs: Runs, *, definitions: bool = False) -> None:
    """Print the numbers of runs: metrics and the recall of each class, with intervals and bars.

    Args:
        runs: Run folders.
        definitions: Explain every number and its interval too.
    """
    from lmd.runs.folder import Run
    from lmd.scoring.definitions import format_definitions

    # All of them before the first is printed: an error must not follow a long output.
    records = [Run.open(path).record for path in runs]
    for i, record in enumerate(records):
        typer.echo(("\n" if i else "") + "\n".join(run_lines(record)))
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
    rows = [heads, *(_listed(path, folder) for path in places)]
    # Names are cut to 80 columns for a reader, and whole for a program.
    limits = (26, 16, 10) if sys.stdout.isatty() else ()
    for line in aligned(rows, right=(4, 5), limits=limits):
        typer.echo(line)


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
    found = [Run.open(path) for path in runs]
    for one in found:
        if one.record.status != "finished":
            raise LmdError(f"{one.path} is not finished: run `lmd train --resume --out {one.path}`")
    if data is not None and images:
        from lmd.base.device import choose_device
        from lmd.explain.examples import add_examples

        add_examples(runs[0], data, device=choose_device(device))
    path = write_report(found[0], compare=found[1:], out=out, images=images)
    typer.secho(f"The report: {path}", bold=True)


def run_lines(record: "Record") -> list[str]:
    """The text of one run, at most 80 columns wide."""
    head = f"{record.method.title} on {_short(record.data.source, 40)} ({record.name})"
    part = record.part
    if part is None:
        return [head, f"{record.status}: no numbers yet"]
    lines = [_short(head, WIDTH), f"{record.part_title}, values in %, intervals 95 %", ""]
    found = record.metrics[part]
    rows = [("metric", "value", "interval", "")]
    for key in (key for key in HEADLINES if key in found):
        title = record.definitions[key].title if key in record.definitions else key
        rows.append((title, *_numbers(found[key]), bar(found[key].value)))
    lines += aligned(rows, right=(1, 2), limits=(30, 6, 14, 24))
    lines.append("")
    table = [("class", "tier", "train", "images", "recall", "interval", "")]
    for row in sorted(record.per_class[part], key=lambda row: -row.train):
        counts = (row.name, row.tier, str(row.train), str(row.support))
        table.append((*counts, *_numbers(row.recall), bar(row.recall.value, 12)))
    lines += aligned(table, right=(2, 3, 4, 5), limits=(18, 6, 6, 6, 6, 14, 12))
    return lines


def bar(share: float | None, width: int = 24) -> str:
    """A bar for a share of 1, in eighths of a character.

    >>> bar(0.5, 4), bar(0.03, 4), bar(None)
    ('██', '▏', '')
    """
    if share is None:
        return ""
    eighths = round(8 * width * min(max(share, 0.0), 1.0))
    if not eighths and share > 0:
        eighths = 1
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def aligned(
    rows: Sequence[tuple[str, ...]], right: Sequence[int], limits: Sequence[int] = ()
) -> list[str]:
    """Columns of text below a heading; long cells are cut to the limit of their column."""
    cut = [
        tuple(_short(cell, limits[i]) if i < len(limits) else cell for i, cell in enumerate(row))
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    lines = []
    for row in cut:
        cells = [
            cell.rjust(widths[i]) if i in right else cell.ljust(widths[i])
            for i, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "-" * min(max(map(len, lines)), WIDTH), *lines[1:]]


def state_of(status: str, folder: Path, now: float) -> str:
    """``finished``, ``running`` if the run has written something lately, else ``interrupted``."""
    from lmd.runs.folder import Run

    if status == "finished":
        return status
    newest = max(map(_touched, (folder, *folder.glob("*"), *folder.glob("*/*"))))
    history = Run(folder).read_history()
    last = history[-1].get("seconds") if history else None
    epoch = float(last) if isinstance(last, int | float) else 0.0
    silent = now - newest > max(SILENT_SECONDS, SILENT_EPOCHS * epoch)
    return "interrupted" if silent else "running"


def _touched(path: Path) -> float:
    """When a file was last written; 0 if it has just been removed."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def age(seconds: float) -> str:
    """How long ago, in the largest unit.

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
    found = record.metrics[record.part].get("balanced_accuracy") if record.part else None
    value = "–" if found is None or found.value is None else f"{100 * found.value:.1f}"
    when = datetime.fromisoformat(record.finished or record.created)
    since = now - when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    source = record.data.source if record.external is not None else record.request.data
    data = Path(source).name or record.data.source
    return (name, record.method.key, data, state_of(record.status, path, now), value, age(since))


def _numbers(found: "Estimate") -> tuple[str, str]:
    value = "–" if found.value is None else f"{100 * found.value:.1f}"
    if found.low is None or found.high is None:
        return value, "–"
    return value, f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def _short(words: str, most: int) -> str:
    """Text cut in the middle, because names often differ at the end.

    >>> _short("synthetic-lmd-seed0", 12)
    'synthe…seed0'
    """
    if len(words) <= most:
        return words
    end = (most - 1) // 2
    return words[: most - 1 - end] + "…" + words[len(words) - end :]

"""`lmd data doctor`: what is wrong with a data set, before training on it."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.errors import LmdError
from lmd.cli.options import (
    SOURCES,
    AllowOutside,
    GroupColumn,
    ImageColumn,
    LabelColumn,
    Quiet,
    Root,
    SplitColumn,
)

if TYPE_CHECKING:
    from lmd.data.doctor import Cleaned, Examination

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def doctor_command(
    data: Annotated[
        str,
        typer.Argument(help=SOURCES),
    ],
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    group_column: GroupColumn = None,
    split_column: SplitColumn = None,
    root: Root = None,
    allow_outside: AllowOutside = False,
    split: Annotated[
        str, typer.Option(help="Planned ratios; parts of the data set itself are kept.")
    ] = "7:1:2",
    html: Annotated[
        Path | None, typer.Option(help="Write a page with pictures of what was found.")
    ] = None,
    fix: Annotated[
        Path | None, typer.Option(help="Write a cleaned manifest (.csv) that `lmd train` takes.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write all findings as JSON.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Examine a data set: files, labels, copies, leaks between parts. Nothing is changed.

    Exit code 0: nothing, or notes only. 3: warnings. 4: errors. (As everywhere, 1 means that the
    command failed and 2 that it was used wrongly.)
    """
    from lmd.base.files import atomic_write
    from lmd.base.progress import Display
    from lmd.data.doctor import Columns, as_json, examine, exit_code

    ratios = parse_ratios(split)
    _check_fix(fix, data)
    columns = Columns(
        image_column, label_column, group_column, split_column, root, allow_outside=allow_outside
    )
    with Display(quiet=quiet) as display:
        display.start("examining images", 1)
        found = examine(data, columns=columns, ratios=ratios, tick=display.advance)
        display.stop()
    _print(found)
    cleaned = None
    if fix is not None:
        cleaned = found.clean()
        _write_fix(cleaned, fix, ratios)
    if html is not None:
        from lmd.report.doctor_page import write_doctor_page

        write_doctor_page(found, html, cleaned)
        typer.echo(f"The page: {html}")
    if json_file is not None:
        text = json.dumps(as_json(found, cleaned), indent=1, ensure_ascii=False)
        atomic_write(json_file, f"{text}\n".encode())
        typer.echo(f"All findings: {json_file}")
    raise typer.Exit(exit_code(found))


def parse_ratios(words: str) -> tuple[float, float, float]:
    """Ratios of train, validation and test, in any unit.

    >>> parse_ratios("7:1:2"), parse_ratios("0.8,0.1,0.1")
    ((0.7, 0.1, 0.2), (0.8, 0.1, 0.1))
    """
    try:
        values = [float(word) for word in words.replace(",", ":").split(":")]
    except ValueError:
        values = []
    if len(values) != 3 or min(values) < 0 or values[0] == 0:
        raise LmdError(
            f"--split is {words!r}; expected three ratios for train, validation and test, none "
            "below 0 and the first above 0, such as 7:1:2"
        )
    train, validation, test = (round(value / sum(values), 9) for value in values)
    return train, validation, test


def _check_fix(fix: Path | None, data: str) -> None:
    """Before a long examination: the cleaned manifest must not replace what it cleans."""
    if fix is None:
        return
    if fix.suffix.lower() != ".csv":
        raise LmdError(f"--fix is {fix}; it writes a manifest, whose name must end in .csv")
    if fix.exists() and fix.samefile(Path(data).expanduser()):
        raise LmdError(f"--fix is {fix}, which is the data set itself: choose another name")


def _print(found: "Examination") -> None:
    from lmd.data.doctor import SEVERITIES, finding_lines, summary

    for severity in SEVERITIES:
        for each in found.findings:
            if each.severity == severity:
                first, *rest = finding_lines(found, each)
                typer.secho(f"{severity}: ", fg=COLOURS[severity], bold=True, nl=False)
                typer.secho(first, bold=True)
                typer.echo("\n".join(rest) + "\n")
    typer.secho(summary(found), bold=True)


def _write_fix(cleaned: "Cleaned", fix: Path, ratios: tuple[float, ...]) -> None:
    from lmd.data.doctor import cleaned_lines
    from lmd.data.sources import open_table
    from lmd.data.splits import split

    cleaned.write(fix)
    typer.echo("\n" + "\n".join(cleaned_lines(cleaned)))
    try:
        split(open_table(fix, root=cleaned.root), ratios)
    except LmdError as error:
        raise LmdError(f"{fix} was written, but training still refuses it: {error}") from error
    typer.echo(f"\nThe cleaned manifest: {fix}. Train with it:\n  {cleaned.command(fix)}")

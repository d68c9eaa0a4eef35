"""`lmd data doctor`: find what is wrong with a data set before training on it."""

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lmd.base.errors import LmdError
from lmd.data.source import Columns

if TYPE_CHECKING:
    from lmd.doctor import Cleaned, Examination

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}


def doctor(
    data: str,
    *,
    columns: Columns = Columns(),
    split: str = "7:1:2",
    html: Path | None = None,
    fix: Path | None = None,
    json_file: Annotated[Path | None, typer.Option("--json")] = None,
    quiet: bool = False,
) -> None:
    """Check a data set: files, labels, copies, leaks between parts. It is not changed.

    Exit code 0: no findings, or only notes. 3: warnings. 4: errors. (As for all commands, 1: the
    command failed, 2: wrong usage.)

    Args:
        split: Planned ratios of train, validation and test; existing parts are kept.
        html: Write an HTML page with thumbnails here.
        fix: Write a cleaned manifest (.csv) for `lmd train` here.
        json_file: Write all findings as JSON here.
    """
    from lmd.base.files import atomic_write, check_output
    from lmd.base.progress import Display
    from lmd.doctor import as_json, examine, exit_code
    from lmd.runs.protocol import parse_ratios

    try:
        ratios = parse_ratios(split)
    except ValueError as error:
        raise LmdError(f"--split {error}") from None
    outputs = {"--html": (html, ".html"), "--fix": (fix, ".csv"), "--json": (json_file, ".json")}
    for option, (path, kind) in outputs.items():
        if path is not None:
            check_output(path, option, kind)
    _check_fix(fix, data)
    with Display(quiet=quiet) as display:
        display.start("examining images", 1)
        found = examine(data, columns=columns, ratios=ratios, tick=display.step)
        display.stop()
    _print(found)
    cleaned, doubt = None, None
    if fix is not None and columns.group_column is None:
        hints = (f for f in found.findings if f.kind == "group_hint" and f.severity == "warning")
        doubt = next(hints, None)
    if fix is not None and doubt is None:
        cleaned = found.clean()
        _write_fix(cleaned, fix, ratios)
    if html is not None:
        from lmd.doctor.page import write_doctor_page

        write_doctor_page(found, html, cleaned)
        typer.echo(f"The page: {html}")
    if json_file is not None:
        text = json.dumps(as_json(found, cleaned), indent=1, ensure_ascii=False)
        atomic_write(json_file, f"{text}\n".encode(), parents=True)
        typer.echo(f"All findings: {json_file}")
    if doubt is not None:
        (column,) = doubt.names
        raise LmdError(
            f"{fix} was not written, because it would hide that images of one patient or lesion "
            f"belong together: repeat the command with --group-column {shlex.quote(column)}, or "
            'with --group-column "" if the column means something else'
        )
    raise typer.Exit(exit_code(found))


def _check_fix(fix: Path | None, data: str) -> None:
    """Refuse, before the long examination, to write the manifest over the data set."""
    source = Path(data).expanduser()
    if fix is not None and fix.exists() and source.exists() and fix.samefile(source):
        raise LmdError(f"--fix is {fix}, the data set itself: choose another name")


def _print(found: "Examination") -> None:
    from lmd.doctor import finding_lines, summary

    for each in found.findings:
        first, *rest = finding_lines(found, each)
        typer.secho(f"{each.severity}: ", fg=COLOURS[each.severity], bold=True, nl=False)
        typer.secho(first, bold=True)
        typer.echo("\n".join(rest) + "\n")
    typer.secho(summary(found), bold=True)


def _write_fix(cleaned: "Cleaned", fix: Path, ratios: tuple[float, ...]) -> None:
    from lmd.data.sources import open_table
    from lmd.data.splits import split
    from lmd.doctor import cleaned_lines

    cleaned.write(fix)
    typer.echo("\n" + "\n".join(cleaned_lines(cleaned)))
    try:
        parts = split(open_table(fix, root=cleaned.root), ratios).parts
        if parts is not None and "test" not in parts:
            raise LmdError("the test part is empty: name its images 'test' in the column 'split'")
    except LmdError as error:
        raise LmdError(f"{fix} was written, but training still refuses it: {error}") from error
    typer.echo(f"\nThe cleaned manifest: {fix}. Train on it:\n  {cleaned.command(fix)}")

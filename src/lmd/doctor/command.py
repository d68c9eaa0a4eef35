"""`lmd data doctor`: find what is wrong with a data set before training on it."""

import json
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.base.text import shorten
from lmd.data.source import Columns

if TYPE_CHECKING:
    from lmd.data.scan import Finding
    from lmd.doctor.clean import Cleaned
    from lmd.doctor.examine import Examination

COLOURS = {"error": "red", "warning": "yellow", "note": "cyan"}
# Exit codes 1 (failed) and 2 (wrong usage) belong to the command line itself.
EXIT_CODES = {"error": 4, "warning": 3, "note": 0}
SHOWN = 5  # names in the terminal
PICTURES = 24  # for one finding on the page
SETS = 8
SIDE = 112
LISTED = 200


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
    from lmd.base.progress import Display
    from lmd.doctor.examine import examine
    from lmd.runs.protocol import parse_ratios

    try:
        ratios = parse_ratios(split)
    except ValueError as error:
        raise LmdError(f"--split {error}") from None
    outputs = (("--html", html, ".html"), ("--fix", fix, ".csv"), ("--json", json_file, ".json"))
    for option, path, suffix in outputs:
        if path is not None:
            check_output(path, option, suffix)
    source = Path(data).expanduser()
    if fix is not None and fix.exists() and source.exists() and fix.samefile(source):
        raise LmdError(f"--fix is {fix}, the data set itself: choose another name")
    with Display(quiet=quiet) as display:
        display.start("examining images", 1)
        examination = examine(data, columns=columns, ratios=ratios, tick=display.step)
        display.stop()
    _print(examination)
    cleaned, doubts = None, []
    if fix is not None and columns.group_column is None:
        hint = ("group_hint", "warning")
        doubts = [item for item in examination.findings if (item.kind, item.severity) == hint]
    if fix is not None and not doubts:
        cleaned = examination.clean()
        _write_fix(cleaned, fix, ratios)
    if html is not None:
        write_page(examination, html, cleaned)
        typer.echo(f"The page: {html}")
    if json_file is not None:
        text = json.dumps(as_json(examination, cleaned), indent=1, ensure_ascii=False)
        atomic_write(json_file, f"{text}\n".encode(), parents=True)
        typer.echo(f"All findings: {json_file}")
    if doubts:
        (column,) = doubts[0].names
        raise LmdError(
            f"{fix} was not written, because it would hide that images of one patient or lesion "
            f"belong together: repeat the command with --group-column {shlex.quote(column)}, or "
            'with --group-column "" if the column means something else'
        )
    raise typer.Exit(exit_code(examination))


def _print(examination: "Examination") -> None:
    """Print each finding with its images and its remedy, and count the findings."""
    from lmd.data.scan import KINDS, LISTS

    for finding in examination.findings:
        lines = [f"  {finding.text}"]
        between = " + " if finding.kind.startswith("group") else " = "
        for same in finding.sets[:SHOWN]:
            names = [examination.describe(i) for i in same[:4]]
            lines.append(f"    {between.join([*names, *['…'] * (len(same) > 4)])}")
        if len(finding.sets) > SHOWN:
            lines.append(f"    and {len(finding.sets) - SHOWN} more")
        names = [examination.describe(i) for i in finding.cases]
        names = names or [*finding.names] * (finding.kind in LISTS)
        if names and not finding.sets:
            lines.append(f"    {shorten(names, SHOWN)}")
        if finding.remedy and finding.severity != "note":
            lines.append(f"  → {finding.remedy}")
        typer.secho(f"{finding.severity}: ", fg=COLOURS[finding.severity], bold=True, nl=False)
        typer.secho(f"{KINDS[finding.kind][1]} [{finding.kind}]", bold=True)
        typer.echo("\n".join(lines) + "\n")
    counts = examination.severities()
    listed = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())
    typer.secho(f"{len(examination.looks)} images examined: {listed}.", bold=True)


def exit_code(examination: "Examination") -> int:
    """Return 0 if there is nothing but notes, 3 for warnings, 4 for errors."""
    return max((EXIT_CODES[finding.severity] for finding in examination.findings), default=0)


def as_json(examination: "Examination", cleaned: "Cleaned | None" = None) -> dict[str, Any]:
    """Return all findings with the names of all images concerned, for JSON."""
    from lmd.data.scan import KINDS
    from lmd.data.splits import imbalance_factor

    sizes = {name: sum(parts.values()) for name, parts in examination.counts.items()}
    result: dict[str, Any] = {
        "format": 1,
        "source": examination.scan.source,
        "kind": examination.scan.kind,
        "images": len(examination.looks),
        "usable": len(examination.scan.usable()),
        "classes": [
            {"name": name, "images": sizes[name]} | {part: n for part, n in parts.items() if part}
            for name, parts in examination.counts.items()
        ],
        "imbalance_factor": imbalance_factor(list(sizes.values())) if sizes else None,
        "severities": examination.severities(),
        "exit_code": exit_code(examination),
        "findings": [
            {
                "kind": finding.kind,
                "severity": finding.severity,
                "title": KINDS[finding.kind][1],
                "text": finding.text,
                "remedy": finding.remedy,
                "images": [examination.describe(i) for i in finding.cases],
                "sets": [[examination.describe(i) for i in same] for same in finding.sets],
                "names": list(finding.names),
            }
            for finding in examination.findings
        ],
    }
    if cleaned is not None:
        result["fix"] = {
            "kept": len(cleaned.cases),
            "removed": [change._asdict() for change in cleaned.removed],
            "changed": [change._asdict() for change in cleaned.changed],
            "root": str(cleaned.root),
        }
    return result


def _write_fix(cleaned: "Cleaned", fix: Path, ratios: tuple[float, ...]) -> None:
    from lmd.data.sources import open_table
    from lmd.data.splits import split

    cleaned.write(fix)
    end = ":" if cleaned.removed else "."
    typer.echo(f"\n{len(cleaned.cases)} images kept, {len(cleaned.removed)} removed{end}")
    for change in cleaned.removed:
        typer.echo(f"  {change.name}: {change.why}")
    if cleaned.changed:
        typer.echo(f"{len(cleaned.changed)} changed:")
    for change in cleaned.changed:
        typer.echo(f"  {change.name}: {change.what} ({change.why})")
    try:
        parts = split(open_table(fix, root=cleaned.root), ratios).parts
        if parts is not None and "test" not in parts:
            raise LmdError("the test part is empty: name its images 'test' in the column 'split'")
    except LmdError as error:
        raise LmdError(f"{fix} was written, but training still refuses it: {error}") from error
    typer.echo(f"\nThe cleaned manifest: {fix}. Train on it:\n  {cleaned.command(fix)}")


def write_page(examination: "Examination", path: Path, cleaned: "Cleaned | None" = None) -> None:
    """Write an examination as one self-contained HTML file, with thumbnails of the images."""
    from lmd import __version__
    from lmd.data.table import PARTS
    from lmd.report.charts import data_uri
    from lmd.report.page import environment

    @cache
    def picture(i: int) -> dict[str, str]:
        case, look, pixels = examination.scan.cases[i], examination.looks[i], examination.pixels(i)
        size = f"{look.size[0]} × {look.size[1]}" if look.size[0] else ""
        return {
            "uri": "" if pixels is None else data_uri(pixels, SIDE),
            "name": PurePosixPath(case.name).name,
            "path": case.name,
            "caption": " · ".join(filter(None, (case.label, case.part, size))),
            "reason": look.reason or "cannot be shown",
        }

    page = as_json(examination)
    page |= {
        "findings": [
            listed | _pictures(examination, finding, picture)
            for finding, listed in zip(examination.findings, page["findings"], strict=True)
            if finding.kind != "counts"
        ],
        "parts": PARTS if examination.scan.split else (),
        "classes": sorted(page["classes"], key=lambda row: -row["images"]),
        "cleaned": cleaned,
        "version": __version__,
    }
    html = environment().get_template("doctor.html").render(page)
    atomic_write(path, html.encode(), parents=True)


def _pictures(
    examination: "Examination", finding: "Finding", picture: Callable[[int], dict[str, str]]
) -> dict[str, Any]:
    """Return what the page shows of a finding besides its words: pictures and names."""
    from lmd.data.scan import LISTS

    same = [cases[: PICTURES // SETS + 1] for cases in finding.sets[:SETS]]
    shown = same or [finding.cases[:PICTURES]]
    sets = [[picture(i) for i in cases] for cases in shown]
    visible = any(drawn["uri"] for cases in sets for drawn in cases)
    names = finding.names if finding.kind in LISTS else ()
    listed = [examination.describe(i) for i in finding.cases] or names
    return {
        "together": bool(finding.sets),
        "sets": sets if visible else [],
        "more": len(finding.sets) - SETS if finding.sets else len(finding.cases) - PICTURES,
        "concerned": len(finding.sets) or len(finding.cases),
        "open": not visible and len(listed) <= PICTURES,
        "listed": listed[:LISTED],
        "unlisted": max(len(listed) - LISTED, 0),
    }

"""What the doctor says: on a terminal, and as JSON for scripts."""

from typing import Any

from lmd.base.text import shorten
from lmd.data.doctor.classes import totals
from lmd.data.doctor.examine import Examination
from lmd.data.doctor.findings import LISTS, SEVERITIES, Finding
from lmd.data.doctor.mend import Mended
from lmd.data.imbalance import imbalance_factor

# Exit codes 1 (lmd could not do it) and 2 (wrong use) are taken by the command line itself.
EXIT_CODES = {"error": 4, "warning": 3, "note": 0}
SHOWN = 5


def exit_code(examination: Examination) -> int:
    """For scripts: 0 nothing or notes, 3 warnings, 4 errors."""
    worst = (EXIT_CODES[each.severity] for each in examination.findings)
    return max(worst, default=0)


def finding_lines(examination: Examination, found: Finding) -> list[str]:
    """One finding in lines of text: the sentence, what is concerned, the remedy."""
    lines = [f"{found.title} [{found.kind}]", f"  {found.text}"]
    if found.sets:
        between = " + " if found.kind.startswith("group") else " = "
        told = [
            between.join([*(examination.told(i) for i in each[:4]), *["…"] * (len(each) > 4)])
            for each in found.sets
        ]
        lines += [f"    {each}" for each in told[:SHOWN]]
        if len(told) > SHOWN:
            lines.append(f"    and {len(told) - SHOWN} more")
    elif found.cases:
        lines.append(f"    {shorten([examination.told(i) for i in found.cases], SHOWN)}")
    elif found.names and found.kind in LISTS:
        lines.append(f"    {shorten(list(found.names), SHOWN)}")
    if found.remedy and found.severity != "note":
        lines.append(f"  → {found.remedy}")
    return lines


def summary(examination: Examination) -> str:
    """The verdict in one line."""
    counts = examination.severities()
    told = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())
    return f"{examination.images} images examined: {told}."


def as_json(examination: Examination, mended: Mended | None = None) -> dict[str, Any]:
    """All findings, with the names of all images concerned."""
    sizes = totals(examination.counts)
    result: dict[str, Any] = {
        "format": 1,
        "source": examination.scan.source,
        "kind": examination.scan.kind,
        "images": examination.images,
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
                "kind": found.kind,
                "severity": found.severity,
                "title": found.title,
                "text": found.text,
                "remedy": found.remedy,
                "images": [examination.told(i) for i in found.cases],
                "sets": [[examination.told(i) for i in each] for each in found.sets],
                "names": list(found.names),
            }
            for severity in SEVERITIES
            for found in examination.findings
            if found.severity == severity
        ],
    }
    if mended is not None:
        result["fix"] = {
            "kept": len(mended.cases),
            "removed": [vars(change) for change in mended.removed],
            "changed": [vars(change) for change in mended.changed],
            "root": str(mended.root),
        }
    return result


def mended_lines(mended: Mended) -> list[str]:
    """What a cleaned manifest leaves out and changes, reason by reason."""
    lines = [f"{len(mended.cases)} images stay, {len(mended.removed)} were taken out:"]
    lines += [f"  {change.name}: {change.why}" for change in mended.removed]
    if mended.changed:
        lines.append(f"{len(mended.changed)} changes:")
        lines += [f"  {each.name}: {each.what} ({each.why})" for each in mended.changed]
    return lines

"""An examination as text for terminals and as JSON for scripts."""

from typing import Any

from lmd.base.text import shorten
from lmd.data.imbalance import imbalance_factor
from lmd.data.scan import KINDS, LISTS, Finding
from lmd.doctor.classes import totals
from lmd.doctor.clean import Cleaned
from lmd.doctor.examine import Examination

# Exit codes 1 (failed) and 2 (wrong usage) belong to the command line itself.
EXIT_CODES = {"error": 4, "warning": 3, "note": 0}
SHOWN = 5


def exit_code(examination: Examination) -> int:
    """0 if there is nothing but notes, 3 for warnings, 4 for errors."""
    return max((EXIT_CODES[each.severity] for each in examination.findings), default=0)


def finding_lines(examination: Examination, found: Finding) -> list[str]:
    """The lines of one finding: title, sentence, images concerned, remedy."""
    lines = [f"{KINDS[found.kind][1]} [{found.kind}]", f"  {found.text}"]
    if found.sets:
        between = " + " if found.kind.startswith("group") else " = "
        for each in found.sets[:SHOWN]:
            names = [examination.describe(i) for i in each[:4]]
            lines.append(f"    {between.join([*names, *['…'] * (len(each) > 4)])}")
        if len(found.sets) > SHOWN:
            lines.append(f"    and {len(found.sets) - SHOWN} more")
    elif found.cases:
        lines.append(f"    {shorten([examination.describe(i) for i in found.cases], SHOWN)}")
    elif found.names and found.kind in LISTS:
        lines.append(f"    {shorten(list(found.names), SHOWN)}")
    if found.remedy and found.severity != "note":
        lines.append(f"  → {found.remedy}")
    return lines


def summary(examination: Examination) -> str:
    """The number of findings of each severity, in one line."""
    counts = examination.severities()
    listed = ", ".join(f"{n} {word}{'' if n == 1 else 's'}" for word, n in counts.items())
    return f"{examination.images} images examined: {listed}."


def as_json(examination: Examination, cleaned: Cleaned | None = None) -> dict[str, Any]:
    """All findings with the names of all images concerned."""
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
                "title": KINDS[found.kind][1],
                "text": found.text,
                "remedy": found.remedy,
                "images": [examination.describe(i) for i in found.cases],
                "sets": [[examination.describe(i) for i in each] for each in found.sets],
                "names": list(found.names),
            }
            for found in examination.findings
        ],
    }
    if cleaned is not None:
        result["fix"] = {
            "kept": len(cleaned.cases),
            "removed": [vars(change) for change in cleaned.removed],
            "changed": [vars(change) for change in cleaned.changed],
            "root": str(cleaned.root),
        }
    return result


def cleaned_lines(cleaned: Cleaned) -> list[str]:
    """What was removed and changed, and why."""
    end = ":" if cleaned.removed else "."
    lines = [f"{len(cleaned.cases)} images kept, {len(cleaned.removed)} removed{end}"]
    lines += [f"  {change.name}: {change.why}" for change in cleaned.removed]
    if cleaned.changed:
        lines.append(f"{len(cleaned.changed)} changed:")
        lines += [f"  {each.name}: {each.what} ({each.why})" for each in cleaned.changed]
    return lines

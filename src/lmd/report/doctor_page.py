"""The page of an examination: every finding with small pictures of what it concerns."""

import base64
import io
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd import __version__
from lmd.base.files import atomic_write
from lmd.data.doctor import SEVERITIES, Cleaned, Examination, Finding
from lmd.data.findings import LISTS
from lmd.data.imbalance import imbalance_factor
from lmd.data.table import PARTS
from lmd.report.page import environment

PICTURES = 24  # for one finding
SETS = 8
SIDE = 112
LISTED = 200


def write_doctor_page(found: Examination, path: Path, cleaned: Cleaned | None = None) -> Path:
    """Write an examination as one HTML file that holds all that it needs and makes no request."""
    html = environment().get_template("doctor.html").render(_page(found, cleaned))
    atomic_write(path, html.encode())
    return path


def _page(found: Examination, cleaned: Cleaned | None) -> dict[str, Any]:
    shown: dict[int, str] = {}
    findings = [
        _finding(found, each, shown)
        for severity in SEVERITIES
        for each in found.findings
        if each.severity == severity and each.kind != "counts"
    ]
    return {
        "source": found.scan.source,
        "kind": found.scan.kind,
        "images": found.images,
        "usable": len(found.scan.usable()),
        "severities": found.severities(),
        "verdict": _verdict(found),
        "findings": findings,
        "parts": PARTS if found.scan.split else (),
        "classes": _classes(found),
        "factor": _factor(found),
        "cleaned": cleaned,
        "version": __version__,
    }


def _verdict(found: Examination) -> str:
    counts = found.severities()
    if counts["error"]:
        return "Fix the errors first"
    return "Usable, with warnings" if counts["warning"] else "No problems found"


def _classes(found: Examination) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"name": name, "images": sum(parts.values()), "parts": parts}
        for name, parts in found.counts.items()
    ]
    most = max((row["images"] for row in rows), default=1)
    for row in rows:
        row["share"] = f"{100 * row['images'] / most:.2f}"
    return sorted(rows, key=lambda row: -row["images"])


def _factor(found: Examination) -> str:
    sizes = [sum(parts.values()) for parts in found.counts.values()]
    return f"{imbalance_factor(sizes):.4g}" if sizes else "–"


def _finding(found: Examination, each: Finding, shown: dict[int, str]) -> dict[str, Any]:
    if each.sets:
        sets = [
            [_picture(found, i, shown) for i in same[: PICTURES // SETS + 1]]
            for same in each.sets[:SETS]
        ]
    else:
        sets = [[_picture(found, i, shown) for i in each.cases[:PICTURES]]]
    visible = any(picture["uri"] for same in sets for picture in same)
    listed = [found.describe(i) for i in each.cases] or [
        name for name in each.names if each.kind in LISTS
    ]
    return {
        "kind": each.kind,
        "severity": each.severity,
        "title": each.title,
        "text": each.text,
        "remedy": each.remedy,
        "together": bool(each.sets),
        "sets": sets if visible else [],
        "more": len(each.sets) - SETS if each.sets else len(each.cases) - PICTURES,
        "concerned": len(each.sets) or len(each.cases),
        "open": not visible and len(listed) <= PICTURES,
        "listed": listed[:LISTED],
        "unlisted": max(len(listed) - LISTED, 0),
    }


def _picture(found: Examination, i: int, shown: dict[int, str]) -> dict[str, str]:
    case = found.scan.cases[i]
    if i not in shown:
        pixels = found.pixels(i)
        shown[i] = "" if pixels is None else data_uri(pixels)
    look = found.looks[i]
    size = "" if look is None or not look.size[0] else f"{look.size[0]} × {look.size[1]}"
    caption = [part for part in (case.label, case.part, size) if part]
    reason = "not found" if look is None else look.reason or "cannot be shown"
    name = PurePosixPath(case.name).name
    return {
        "uri": shown[i],
        "name": name,
        "path": case.name,
        "caption": " · ".join(caption),
        "reason": reason,
    }


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """A small JPEG of an image ``(H, W, 3)`` that can stand in a page."""
    image = Image.fromarray(pixels)
    image.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=72)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()

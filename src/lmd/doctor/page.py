"""The page of an examination: every finding with thumbnails of the images concerned."""

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from lmd import __version__
from lmd.base.files import atomic_write
from lmd.data.scan import LISTS
from lmd.data.table import PARTS
from lmd.doctor import Cleaned, Examination, Finding, as_json
from lmd.report.page import environment
from lmd.report.svg import data_uri

PICTURES = 24  # for one finding
SETS = 8
SIDE = 112
LISTED = 200


def write_doctor_page(found: Examination, path: Path, cleaned: Cleaned | None = None) -> Path:
    """Write an examination as one self-contained HTML file."""
    html = environment().get_template("doctor.html").render(_page(found, cleaned))
    atomic_write(path, html.encode(), parents=True)
    return path


def _page(found: Examination, cleaned: Cleaned | None) -> dict[str, Any]:
    shown: dict[int, str] = {}
    page = as_json(found)
    factor = page["imbalance_factor"]
    return page | {
        "verdict": _verdict(page["severities"]),
        "findings": [
            listed | _pictures(found, each, shown)
            for each, listed in zip(found.findings, page["findings"], strict=True)
            if each.kind != "counts"
        ],
        "parts": PARTS if found.scan.split else (),
        "classes": sorted(page["classes"], key=lambda row: -row["images"]),
        "factor": "–" if factor is None else f"{factor:.4g}",
        "cleaned": cleaned,
        "version": __version__,
    }


def _verdict(severities: Mapping[str, int]) -> str:
    if severities["error"]:
        return "Fix the errors first"
    return "Usable, with warnings" if severities["warning"] else "No problems found"


def _pictures(found: Examination, each: Finding, shown: dict[int, str]) -> dict[str, Any]:
    """What the page shows of a finding besides its words: pictures and names."""
    chosen = [same[: PICTURES // SETS + 1] for same in each.sets[:SETS]] or [each.cases[:PICTURES]]
    sets = [[_picture(found, i, shown) for i in same] for same in chosen]
    visible = any(picture["uri"] for same in sets for picture in same)
    names = each.names if each.kind in LISTS else ()
    listed = [found.describe(i) for i in each.cases] or names
    return {
        "together": bool(each.sets),
        "sets": sets if visible else [],
        "more": len(each.sets) - SETS if each.sets else len(each.cases) - PICTURES,
        "concerned": len(each.sets) or len(each.cases),
        "open": not visible and len(listed) <= PICTURES,
        "listed": listed[:LISTED],
        "unlisted": max(len(listed) - LISTED, 0),
    }


def _picture(found: Examination, i: int, shown: dict[int, str]) -> dict[str, str]:
    case, look = found.scan.cases[i], found.looks[i]
    if i not in shown:
        pixels = found.pixels(i)
        shown[i] = "" if pixels is None else data_uri(pixels, SIDE)
    size = f"{look.size[0]} × {look.size[1]}" if look.size[0] else ""
    return {
        "uri": shown[i],
        "name": PurePosixPath(case.name).name,
        "path": case.name,
        "caption": " · ".join(filter(None, (case.label, case.part, size))),
        "reason": look.reason or "cannot be shown",
    }

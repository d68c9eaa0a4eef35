"""Small downloads in the layout of known data sets, and what was made of them."""

import csv
import hashlib
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image

CATEGORY = {
    "bbps-2-3": ("lower", "quality-of-mucosal-views"),
    "cecum": ("lower", "anatomical-landmarks"),
    "pylorus": ("upper", "anatomical-landmarks"),
    "barretts": ("upper", "pathological-findings"),
}

TINY = {"bbps-2-3": 30, "cecum": 20, "pylorus": 12, "barretts": 6}
PARTS = ("train", "validation", "test")


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (180, 120, 100)).save(file, "JPEG")
    return file.getvalue()


PICTURE = _picture()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_images(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.jpg").write_bytes(PICTURE)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def table_of(rows: Iterable[Mapping[str, str]]) -> dict[str, tuple[int, ...]]:
    found = Counter((row["label"], row["split"]) for row in rows)
    return {c: tuple(found[c, part] for part in PARTS) for c in sorted({k[0] for k in found})}


def leaks(rows: Iterable[Mapping[str, str]], column: str = "group") -> list[str]:
    places = defaultdict(set)
    for row in rows:
        places[row[column]].add(row["split"])
    places.pop("", None)
    assert places, "no group at all: the test would check nothing"
    return [group for group, parts in places.items() if len(parts) > 1]


def kvasir(root: Path, counts: Mapping[str, int], *, labels: bool = True) -> Path:
    """The layout of the archive of labelled images; the names are as random as real ones."""
    rows = []
    for finding, n in counts.items():
        tract, category = CATEGORY.get(finding, ("lower", "pathological-findings"))
        folder = root / "labeled-images" / f"{tract}-gi-tract" / category / finding
        folder.mkdir(parents=True)
        for i in range(n):
            name = hashlib.md5(f"{finding} {i}".encode()).hexdigest()
            (folder / f"{name}.jpg").write_bytes(PICTURE)
            rows.append((name, f"{tract.title()} GI", finding, category))
    if labels:
        header = ("Video file", "Organ", "Finding", "Classification")
        write_csv(root / "labeled-images" / "image-labels.csv", header, rows)
    return root

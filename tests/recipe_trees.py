"""Trees in the layout of the real downloads, for the tests of the recipes."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from PIL import Image


def jpeg(colour: tuple[int, int, int] = (180, 120, 100)) -> bytes:
    """A small picture; its bytes are written again and again."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), colour).save(file, "JPEG")
    return file.getvalue()


PICTURE = jpeg()


def write_csv(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def write_images(folder: Path, names: Iterable[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / f"{name}.jpg").write_bytes(PICTURE)


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def counts(rows: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], int]:
    """Images of each class in each part."""
    found: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["label"], row["split"])
        found[key] = found.get(key, 0) + 1
    return found


def parts_of(rows: Iterable[Mapping[str, str]], column: str) -> dict[str, set[str]]:
    """The parts that each group is in."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row[column]:
            found.setdefault(row[column], set()).add(row["split"])
    return found

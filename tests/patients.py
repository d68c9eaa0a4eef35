"""A small real data set, ready to be damaged."""

import csv
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import toys
from PIL import Image

SHARED = toys.SHARED / "data" / "ham10000"
NAMES = {
    "nv": "nevus",
    "mel": "melanoma",
    "bkl": "keratosis",
    "bcc": "carcinoma",
    "akiec": "actinic",
}
PER_CLASS = 14
PARTS = ("train",) * 10 + ("validation",) * 2 + ("test",) * 2


@dataclass
class Patient:
    """A data set to be broken: a manifest beside ``images/``, written by ``save``."""

    root: Path
    rows: list[dict[str, str]] = field(default_factory=list)
    columns: list[str] = field(default_factory=lambda: ["image", "label", "group", "split"])
    encoding: str = "utf-8"

    @property
    def manifest(self) -> Path:
        return self.root / "manifest.csv"

    def path(self, i: int) -> Path:
        return self.root / self.rows[i]["image"]

    def pixels(self, i: int) -> Image.Image:
        with Image.open(self.path(i)) as image:
            return image.convert("RGB")

    def store(self, i: int, image: Image.Image, suffix: str = ".jpg", **options: object) -> str:
        """Put another image in the place of one; returns its name."""
        self.path(i).unlink(missing_ok=True)
        self.rows[i]["image"] = f"{self.rows[i]['image'].rpartition('.')[0]}{suffix}"
        image.save(self.path(i), **options)
        return self.rows[i]["image"]

    def add(self, i: int, name: str, **cells: str) -> str:
        """A further line like another, for an image of another name."""
        self.rows.append(
            {**self.rows[i], "image": f"images/{name}", "group": f"new {name}", **cells}
        )
        return f"images/{name}"

    def save(self) -> Path:
        with self.manifest.open("w", encoding=self.encoding, newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            for row in self.rows:
                writer.writerow(list(row.values()))
        return self.manifest


def make_patient(root: Path) -> Patient:
    """70 images of 5 classes, each of another lesion: HAM10000's, or noise where that is absent."""
    (root / "images").mkdir(parents=True)
    patient = Patient(root)
    for label, names in _pick().items():
        for name, part in zip(names, PARTS, strict=True):
            target = root / "images" / f"{name}.jpg"
            if SHARED.exists():
                shutil.copy(SHARED / "images" / target.name, target)
            else:
                _noise(len(patient.rows)).save(target, quality=95)
            row = {"image": f"images/{target.name}", "label": label, "group": f"lesion {name}"}
            patient.rows.append(row | {"split": part})
    patient.save()
    return patient


def make_folders(root: Path, parts: bool = False) -> Path:
    """The same images as class folders, below folders of parts if so wished."""
    patient = make_patient(root / "source")
    place = root / "data"
    for i, row in enumerate(patient.rows):
        folder = place / row["split"] / row["label"] if parts else place / row["label"]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(patient.path(i), folder)
    return place


def _pick() -> dict[str, list[str]]:
    if not SHARED.exists():
        return {label: [f"{label}{i:04d}x" for i in range(PER_CLASS)] for label in NAMES.values()}
    found: dict[str, list[str]] = {label: [] for label in NAMES.values()}
    seen = set()
    with (SHARED / "HAM10000_metadata.csv").open() as file:
        for row in csv.DictReader(file):
            chosen = found.get(NAMES.get(row["dx"], ""))
            if chosen is not None and len(chosen) < PER_CLASS and row["lesion_id"] not in seen:
                chosen.append(row["image_id"])
            seen.add(row["lesion_id"])
    return found


def _noise(seed: int) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (6, 8, 3)).astype(np.uint8)
    fine = rng.normal(0, 6, (150, 200, 3))
    smooth = cv2.resize(coarse, (200, 150), interpolation=cv2.INTER_CUBIC)
    return Image.fromarray(np.clip(smooth + fine, 0, 255).astype(np.uint8))

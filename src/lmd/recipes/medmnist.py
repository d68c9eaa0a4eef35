"""MedMNIST's single-label 2-D datasets, with class names and optional long-tail subsampling."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.imbalance import subsample
from lmd.data.sources.arrays import MEDMNIST, scan_arrays
from lmd.data.splits import require_training
from lmd.data.table import PARTS, ArrayImages, Table
from lmd.recipes.recipe import Made, Recipe

SOURCE = "https://medmnist.com"
ORGANS = (
    "bladder",
    "femur-left",
    "femur-right",
    "heart",
    "kidney-left",
    "kidney-right",
    "liver",
    "lung-left",
    "lung-right",
    "pancreas",
    "spleen",
)


@dataclass(frozen=True)
class Known:
    """A set: its class names, a remark, and the images in train, validation and test.

    There are several ``counts`` if versions of the file differ.
    """

    classes: tuple[str, ...]
    counts: tuple[tuple[int, int, int], ...]
    remark: str = ""


KNOWN = {
    "pathmnist": Known(
        (
            "adipose",
            "background",
            "debris",
            "lymphocytes",
            "mucus",
            "smooth muscle",
            "normal colon mucosa",
            "cancer-associated stroma",
            "colorectal adenocarcinoma epithelium",
        ),
        ((89996, 10004, 7180),),
    ),
    "dermamnist": Known(
        (
            "actinic keratoses and intraepithelial carcinoma",
            "basal cell carcinoma",
            "benign keratosis-like lesions",
            "dermatofibroma",
            "melanoma",
            "melanocytic nevi",
            "vascular lesions",
        ),
        ((7007, 1003, 2005),),
        "DermaMNIST is HAM10000 split by image: images of one lesion are in training and in test, "
        "so scores are too high; the recipe ham10000 splits by lesion",
    ),
    "octmnist": Known(
        ("choroidal neovascularization", "diabetic macular edema", "drusen", "normal"),
        ((97477, 10832, 1000),),
    ),
    "pneumoniamnist": Known(("normal", "pneumonia"), ((4708, 524, 624),)),
    "retinamnist": Known(
        ("grade 0", "grade 1", "grade 2", "grade 3", "grade 4"),
        ((1080, 120, 400),),
        "the classes of RetinaMNIST are grades with an order, which is not used",
    ),
    "breastmnist": Known(("malignant", "normal or benign"), ((546, 78, 156),)),
    "bloodmnist": Known(
        (
            "basophil",
            "eosinophil",
            "erythroblast",
            "immature granulocytes",
            "lymphocyte",
            "monocyte",
            "neutrophil",
            "platelet",
        ),
        ((11959, 1712, 3421),),
    ),
    "tissuemnist": Known(
        (
            "collecting duct, connecting tubule",
            "distal convoluted tubule",
            "glomerular endothelial cells",
            "interstitial endothelial cells",
            "leukocytes",
            "podocytes",
            "proximal tubule segments",
            "thick ascending limb",
        ),
        ((165466, 23640, 47280),),
    ),
    "organamnist": Known(ORGANS, ((34561, 6491, 17778), (34581, 6491, 17778))),
    "organcmnist": Known(ORGANS, ((12975, 2392, 8216), (13000, 2392, 8268))),
    "organsmnist": Known(ORGANS, ((13932, 2452, 8827), (13940, 2452, 8829))),
}


def medmnist(
    root: Path,
    *,
    dataset: str | None = None,
    factor: float | None = None,
    head_size: int | None = None,
    seed: int = 0,
) -> Made:
    """The set with class names and its own parts; ``factor`` thins the training part.

    ``root`` is the ``.npz`` file or its folder. The largest class keeps ``head_size`` training
    images (all, if ``None``).
    """
    if head_size is not None and factor is None:
        raise LmdError(f"head_size is {head_size}, but nothing is thinned without a factor")
    path = _find(root, dataset)
    name = dataset or _stem(path)
    if name not in KNOWN:
        raise _unknown(name, f"root {path}")
    known = KNOWN[name]
    table = _named(scan_arrays(path).table(), known, path)
    notes = _check(table, known, name)
    if factor is not None:
        table = subsample(table, factor, head_size=head_size, seed=seed)
        notes.append("only training is thinned; validation and test are those of MedMNIST")
    return Made(table, tuple(notes), lambda _: _arrays(table))


def _find(root: Path, dataset: str | None) -> Path:
    if dataset is not None and dataset not in KNOWN:
        raise _unknown(dataset, f"dataset {dataset!r}")
    if root.is_file():
        return root
    if not root.is_dir():
        raise LmdError(f"root {root} does not exist: give a MedMNIST .npz or its folder ({SOURCE})")
    files = sorted(root.glob("*.npz"))
    named = [path for path in files if dataset is None or _stem(path) == dataset]
    if len(named) != 1:
        what = f"{dataset}.npz" if dataset else ".npz file"
        listed = ", ".join(path.name for path in files) or "none"
        raise LmdError(
            f"root {root}: expected one {what}, it has {listed}: give the file itself as root"
        )
    return named[0]


def _stem(path: Path) -> str:
    return re.sub("_(64|128|224)$", "", path.stem)


def _unknown(name: str, what: str) -> LmdError:
    if name == "chestmnist":
        return LmdError(
            f"{what}: images of ChestMNIST have up to 14 labels, but exactly one is supported: "
            "choose another set"
        )
    if name.endswith("3d"):
        return LmdError(f"{what}: {name} contains volumes; only MedMNIST's 2-D sets are supported")
    return LmdError(
        f"{what} is not a known set: expected {', '.join(KNOWN)} (also with _64, _128 or "
        "_224); name the set with --dataset if the file was renamed"
    )


def _named(table: Table, known: Known, path: Path) -> Table:
    """The table with class names in the order of MedMNIST's numbers."""
    if table.parts is None or set(table.parts.tolist()) != set(PARTS):
        raise LmdError(
            f"{path} lacks some of MedMNIST's train, val and test images: download it again"
        )
    if not all(word.isdecimal() and int(word) < len(known.classes) for word in table.classes):
        raise LmdError(
            f"{path} has the labels {', '.join(table.classes)}; expected 0 to "
            f"{len(known.classes) - 1}: name the right set with --dataset"
        )
    numbers = np.array([int(word) for word in table.classes], dtype=np.int64)
    return replace(table, labels=numbers[table.labels], classes=known.classes)


def _check(table: Table, known: Known, name: str) -> list[str]:
    counts = tuple(len(table.part(part)) for part in PARTS)
    words = " / ".join(map(str, counts))
    note = f"{name} has its published {words} images in train, validation and test"
    if counts not in known.counts:
        published = " or ".join(" / ".join(map(str, numbers)) for numbers in known.counts)
        note = f"{name} has {words} images in train, validation and test, published {published}"
    require_training(table)
    return [note, known.remark] if known.remark else [note]


def _arrays(table: Table) -> Callable[[BinaryIO], None]:
    """A writer of MedMNIST's six arrays and ``classes``; compressed bytes could vary."""
    images = table.images
    assert isinstance(images, ArrayImages)
    starts = np.cumsum([0, *(len(block) for block in images.blocks)])
    arrays: dict[str, NDArray[Any]] = {"classes": np.array(table.classes, dtype=np.str_)}
    for i, (word, part) in enumerate(MEDMNIST.items()):
        kept = table.part(part)
        arrays[f"{word}_images"] = images.blocks[i][kept.rows - starts[i]]
        arrays[f"{word}_labels"] = kept.labels[:, None].astype(np.uint8)

    def write(file: BinaryIO) -> None:
        # As numpy.savez, but with the same mark of the operating system everywhere.
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                info = zipfile.ZipInfo(f"{name}.npy")
                info.create_system = 3
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, version=(1, 0), allow_pickle=False)

    return write


RECIPE = Recipe(
    key="medmnist",
    title="MedMNIST, 2-D",
    what="11 sets of small images with their own parts; optional Pareto tail in training",
    source=SOURCE,
    licence="CC BY 4.0 (DermaMNIST: CC BY-NC 4.0)",
    size="780 to 236 386 images of 28, 64, 128 or 224 pixels",
    function=medmnist,
    suffix=".npz",
)

"""Explanations of images with a shipped model, written as pictures, a page and numbers."""

import json
import re
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write
from lmd.explain.heat_map import Explanation, check_explainable, nearest_index
from lmd.explain.page import Answer, Case, Panel, draw, explain_page
from lmd.predict.engines import OnnxEngine
from lmd.predict.predictor import find_images, load

PAGE, NUMBERS = "index.html", "explanations.json"
_ODD = r"[^\w.-]+"  # in names of files


@dataclass(frozen=True)
class Explained:
    """The numbers of each explained image, as in ``explanations.json``, and what was skipped.

    ``passed_over`` are the files in given folders that are not images.
    """

    images: list[dict[str, Any]]
    skipped: list[str]
    passed_over: list[Path] = field(default_factory=list)


def explain_images(
    model: Path,
    images: Sequence[Path],
    out: Path,
    *,
    neighbours: int | None = None,
    skip_bad: bool = False,
    overwrite: bool = False,
    device: torch.device | str = "cpu",
    tick: Callable[[int, int], None] | None = None,
) -> Explained:
    """Write one PNG for each image, ``index.html`` and ``explanations.json`` to the folder ``out``.

    They are moved there when all images have been explained: a failure leaves nothing behind.
    """
    if model.suffix.lower() == ".onnx":
        raise LmdError(OnnxEngine.no_heat_maps)
    _check_out(out, overwrite=overwrite)
    predictor = load(model, device)
    engine = check_explainable(predictor)
    indexed = nearest_index(predictor, neighbours) is not None
    others: list[Path] = []
    paths = find_images(images, others)
    found, panels = Explained([], [], others), list[Panel]()
    with _staged(out) as name:
        folder = Path(name)
        for number, path in enumerate(paths, 1):
            try:
                if isinstance(path, LmdError):
                    raise path
                one = predictor.explain(path, neighbours=neighbours)
            except LmdError as error:
                if not skip_bad:
                    raise LmdError(f"{error}\nUse --skip-bad to leave out such images.") from error
                found.skipped.append(str(error))
                continue
            file = f"{number:04}-{re.sub(_ODD, '_', path.stem)[:80]}.png"
            panel, png = _drawn(one, file)
            atomic_write(folder / file, png)
            panels.append(panel)
            found.images.append(_numbers(one, file))
            if tick is not None:
                tick(number, len(paths))
        about = {"model": str(model), "classes": engine.classes, "images": found.images}
        text = json.dumps(about | {"skipped": found.skipped}, indent=1, ensure_ascii=False)
        atomic_write(folder / NUMBERS, (text + "\n").encode())
        page = explain_page(model.name, engine.spec.method, panels, indexed)
        atomic_write(folder / PAGE, page)
        _move(folder, out)
    return found


def _drawn(one: Explanation, file: str) -> tuple[Panel, bytes]:
    answers = [
        Answer(name, float(p), heat)
        for name, p, heat in zip(one.classes, one.probabilities, one.heat, strict=True)
    ]
    nearest = [Case(near.label, near.distance, near.row, near.name) for near in one.neighbours]
    return draw(one.name, file, one.picture, answers, nearest, one.unlike_training)


def _numbers(one: Explanation, file: str) -> dict[str, Any]:
    """The numbers of an explanation as plain JSON."""
    answers = [
        {
            "class": name,
            "probability": round(float(one.probabilities[i]), 6),
            "peak": [round(place, 4) for place in one.peak(i)],
            "evidence": [[round(float(x), 6) for x in row] for row in one.evidence[i]],
        }
        for i, name in enumerate(one.classes)
    ]
    nearest = [
        {key: value for key, value in asdict(near).items() if value is not None}
        for near in one.neighbours
    ]
    found: dict[str, Any] = {
        "image": one.name,
        "file": file,
        "classes": answers,
        "nearest": nearest,
    }
    if one.unlike_training is not None:
        found["unlike_training"] = one.unlike_training
    return found


def _check_out(out: Path, *, overwrite: bool) -> None:
    if out.exists() and not out.is_dir():
        raise LmdError(f"--out: {out} is a file; give a folder")
    if out.is_dir() and any(out.iterdir()) and not overwrite:
        raise LmdError(f"--out: {out} is not empty: choose another folder, or use --overwrite")
    if overwrite and out.is_dir() and any(out.iterdir()) and not (out / NUMBERS).exists():
        raise LmdError(
            f"--overwrite: {out} was not written by `lmd explain`; choose another folder"
        )


def _staged(out: Path) -> "tempfile.TemporaryDirectory[str]":
    """A folder for unfinished files, in the nearest folder above ``out`` that exists."""
    above = next(path for path in out.absolute().parents if path.is_dir())
    try:
        return tempfile.TemporaryDirectory(dir=above, prefix=f".{out.name[:100]}.")
    except OSError as error:
        raise LmdError(f"--out: cannot write to {above}: {error.strerror}") from error


def _move(folder: Path, out: Path) -> None:
    """Replace earlier explanations in ``out`` by the files in ``folder``."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob("[0-9]*-*.png"):
            old.unlink()
        for file in sorted(folder.iterdir(), key=lambda file: file.name == PAGE):
            file.replace(out / file.name)
    except OSError as error:
        raise LmdError(f"--out: cannot write to {out}: {error.strerror}") from error

"""The images that a prediction is made for: what was given, and its pixels."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image as PillowImage

from lmd.base.errors import LmdError
from lmd.base.files import FOLDER, MISSING, what_is
from lmd.base.text import printable, shorten
from lmd.data.images import Decoded, open_image, read_image, resize, rgb_pixels, unreadable
from lmd.data.walk import images_of, tree_below

Image = str | Path | PillowImage | NDArray[np.uint8] | NDArray[np.uint16]
Given = Image | LmdError  # an error stands for what cannot be read


def find_images(
    paths: Iterable[str | Path], others: list[Path] | None = None
) -> list[Path | LmdError]:
    """The given files, and the images in the given folders, which are those that training sees.

    Folders that cannot be listed, pipes, sockets, devices and names that are not UTF-8 are in the
    list as errors, which are raised by the prediction or counted as skipped. Files that are not
    images are added to ``others``.
    """
    found: list[Path | LmdError] = []
    for path in map(Path, paths):
        kind = what_is(path)
        if kind == FOLDER:
            tree = tree_below(path)
            refused = [unreadable(at, why) for at, why in (tree.unlisted | tree.special).items()]
            images = images_of(tree.files, path)
            rest = sorted({*tree.files} - {*images})
            if not images and not refused:
                seen = f": {shorten([one.name for one in rest])} are not images" if rest else ""
                raise LmdError(f"there are no images in the folder {path}{seen}")
            found += [*map(_named, images), *refused]
            if others is not None:
                others += rest
        elif kind == MISSING:
            raise LmdError(f"image {path} does not exist")
        else:
            found.append(_named(path))
    return found


def _named(path: Path) -> Path | LmdError:
    """The path, or an error if its name cannot be written to a file."""
    if printable(str(path)) == str(path):
        return path
    return LmdError(f"the name of the file {printable(str(path))} is not UTF-8: rename it")


def listed(images: Given | Sequence[Given], others: list[Path] | None = None) -> list[Given]:
    """Single images; folders and arrays ``(N, H, W, C)`` are replaced by what they contain.

    Files in folders that are not images are added to ``others``.
    """
    several = isinstance(images, Iterable) and not isinstance(images, str | bytes | PillowImage)
    if isinstance(images, np.ndarray):
        several = images.ndim == 4
    given: Iterable[Given] = images if several else [images]  # type: ignore[assignment, list-item]
    found: list[Given] = []
    for image in given:
        if isinstance(image, str | Path) and what_is(Path(image)) == FOLDER:
            found += find_images([image], others)
        else:
            named = _named(Path(image)) if isinstance(image, str | Path) else image
            found.append(named if isinstance(named, LmdError) else image)
    return found


def mirrored(pixels: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
    """The images ``(B, S, S, 3)`` mirrored left to right, top to bottom, and both."""
    views = (pixels[:, :, ::-1], pixels[:, ::-1], pixels[:, ::-1, ::-1])
    return [np.ascontiguousarray(view) for view in views]


def as_pixels(image: Image, name: str) -> NDArray[np.uint8]:
    """RGB ``(H, W, 3)`` of a file, a Pillow image or an array."""
    return read_image(image) if isinstance(image, str | Path) else rgb_pixels(image, name)


def fitted(image: Image, name: str, size: int) -> Decoded:
    """Return pixels ``(size, size, 3)`` as in training, and the number of frames."""
    if not isinstance(image, str | Path):
        return Decoded(resize(rgb_pixels(image, name), size))
    with open_image(image) as full:
        return Decoded(resize(full.pixels, size), full.frames)

"""One image: whether it can be read, what is unusual about it, and what it looks like."""

import hashlib
import io
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import cpu_count
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.doctor.metadata import metadata_problem
from lmd.data.doctor.similar import comparable, perceptual_hash, thumbnail
from lmd.data.reading import MAX_PIXELS, is_dicom, read_image
from lmd.data.sources.scan import Scan

Tick = Callable[[int, int], None]

SUFFIXES_OF = {
    "JPEG": {".jpg", ".jpeg", ".jfif"},
    "MPO": {".jpg", ".jpeg", ".jfif"},
    "PNG": {".png"},
    "BMP": {".bmp"},
    "GIF": {".gif"},
    "TIFF": {".tif", ".tiff"},
    "WEBP": {".webp"},
    "JPEG2000": {".jp2"},
    "PPM": {".ppm", ".pgm"},
}
# Not to be opened, or seen as another line already.
UNSEEN = frozenset({"outside_root", "repeated_row"})
CUT = ("truncated", "end of file", "unexpected end", "too short", "not enough")
# An image whose channels all vary by less than this (of 255) is blank.
FLAT = 3


@dataclass(frozen=True)
class Look:
    """One image: ``fault`` bars its use, ``oddities`` are pairs of a kind and a remark.

    ``content`` is the hash of the file, ``pixels`` that of the decoded image; ``miniature`` is
    ``(32, 32)``, or ``None`` where nothing was decoded or the image is blank.
    """

    fault: str = ""
    reason: str = ""
    size: tuple[int, int] = (0, 0)
    oddities: tuple[tuple[str, str], ...] = ()
    content: str = ""
    pixels: str = ""
    hash: int = 0
    miniature: NDArray[np.uint8] | None = None


def look_at_all(scan: Scan, tick: Tick | None = None) -> list[Look | None]:
    """A look at the image of each case; ``None`` where there is none to look at."""

    def one(i: int) -> Look | None:
        case = scan.cases[i]
        if case.fault in UNSEEN:
            return None
        if case.path is not None:
            return look_at_file(case.path)
        pixels = scan.read(i)
        return None if pixels is None else look_at_pixels(pixels)

    found = []
    total = len(scan.cases)
    # Warning filters belong to the process, so they are set once around all threads.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        warnings.simplefilter("ignore")
        for i, each in enumerate(pool.map(one, range(total))):
            found.append(each)
            if tick is not None:
                tick(i + 1, total)
    return found


def look_at_file(path: Path) -> Look:
    """Read a file for its hash and header, and decode it as training would."""
    content = ""
    try:
        data = _bytes(path)
        content = hashlib.sha256(data).hexdigest()
        oddities = {} if is_dicom(path) else _header(path, data)
        return look_at_pixels(_decoded(path), content, oddities)
    except _Fault as fault:
        return Look(fault.kind, fault.reason, content=content)


def look_at_pixels(
    rgb: NDArray[np.uint8], content: str = "", oddities: dict[str, str] | None = None
) -> Look:
    """What the pixels ``(H, W, 3)`` alone show."""
    odd = dict(oddities or {})
    height, width = rgb.shape[:2]
    grey = thumbnail(rgb)
    shows = comparable(grey)
    # The exact test is slow, and needed only where the miniature is almost blank.
    if not shows and np.ptp(rgb.reshape(-1, 3), axis=0).max() < FLAT:
        odd["one_colour"] = "about #{:02x}{:02x}{:02x}".format(*rgb[0, 0].tolist())
    elif np.array_equal(rgb[..., 0], rgb[..., 1]) and np.array_equal(rgb[..., 1], rgb[..., 2]):
        odd["greyscale"] = "grey"
    digest = hashlib.sha256(f"{height} {width} ".encode())
    digest.update(np.ascontiguousarray(rgb).data)
    return Look(
        size=(width, height),
        oddities=tuple(odd.items()),
        content=content,
        pixels=digest.hexdigest(),
        hash=perceptual_hash(grey) if shows else 0,
        miniature=grey if shows else None,
    )


class _Fault(Exception):
    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind, self.reason = kind, reason


def _bytes(path: Path) -> bytes:
    if not path.exists():
        raise _Fault("missing_file", "broken link")
    if not path.is_file():  # reading a pipe would never end
        raise _Fault("unreadable", "not a file")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _Fault("unreadable", error.strerror or str(error)) from error
    if not data:
        raise _Fault("empty_file", "0 bytes")
    return data


def _decoded(path: Path) -> NDArray[np.uint8]:
    try:
        return read_image(path)
    except MemoryError as error:
        raise _Fault("huge", "not enough memory") from error
    except LmdError as error:
        reason = str(error.__cause__ or error)
        raise _Fault(_fault_kind(reason), reason) from error


def _fault_kind(reason: str) -> str:
    if f"more than {MAX_PIXELS} pixels" in reason:  # DICOM, whose header is read by its decoder
        return "huge"
    return "truncated" if any(word in reason.lower() for word in CUT) else "unreadable"


def _header(path: Path, data: bytes) -> dict[str, str]:
    """What the header of a file says."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _Fault("huge", f"{image.width} × {image.height} pixels")
            return _oddities(path, data, image)
    except _Fault:
        raise
    except Image.DecompressionBombError as error:
        raise _Fault("huge", f"more than {MAX_PIXELS} pixels") from error
    except Exception as error:  # Pillow's plugins raise errors of a dozen kinds on a broken header.
        raise _Fault(_fault_kind(str(error)), _short(error)) from error


def _oddities(path: Path, data: bytes, image: Image.Image) -> dict[str, str]:
    odd: dict[str, str] = {}
    form = image.format or ""
    if path.suffix.lower() not in SUFFIXES_OF.get(form, {path.suffix.lower()}):
        odd["wrong_suffix"] = f"{form} inside"
    frames = int(getattr(image, "n_frames", 1))
    if frames > 1 and form != "MPO":  # cameras put a preview beside the photograph
        odd["frames"] = f"{frames} frames"
    if image.mode == "CMYK":
        odd["cmyk"] = "CMYK"
    if image.mode == "P":
        odd["palette"] = "palette"
    if image.mode.startswith("I") or image.mode == "F":
        odd["deep"] = f"mode {image.mode}"
    if form == "PNG" and data[24:25] == b"\x10":  # colour too, which Pillow opens with 8 bits
        odd["deep"] = "16 bits"
    problem = metadata_problem(image.info)
    if problem:
        odd["metadata"] = problem
    else:
        turn = image.getexif().get(0x0112, 1)
        if turn in range(2, 9):
            odd["exif_rotated"] = f"orientation {turn}"
    # After the last start of a scan there must be an end; EXIF may hold a whole JPEG before it.
    if form in {"JPEG", "MPO"} and data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        odd["end_missing"] = "no end marker"
    if image.has_transparency_data and _see_through(image):
        odd["alpha"] = "transparent"
    return odd


def _see_through(image: Image.Image) -> bool:
    return bool(np.asarray(image.convert("RGBA").getchannel("A")).min() < 255)


def _short(error: Exception) -> str:
    text = str(error)
    return "unknown image format" if "cannot identify" in text else text

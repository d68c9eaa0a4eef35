"""Look at one image: can it be read, and what is unusual about it?"""

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lmd.base.errors import LmdError
from lmd.base.files import FILE, MISSING, what_is
from lmd.data.images import MAX_PIXELS, is_dicom, open_image, strips
from lmd.data.scan import Scan
from lmd.doctor.similar import MIN_SPREAD, perceptual_hash, thumbnail

# Bytes of one value of each TIFF type; entry 0 does not exist.
TYPE_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)


def metadata_problem(info: Mapping[Any, Any]) -> str:
    """What is wrong with the EXIF block or colour profile of an opened image; empty if nothing."""
    exif, profile = info.get("exif"), info.get("icc_profile")
    problem = exif_problem(exif) if isinstance(exif, bytes) else ""
    return problem or (profile_problem(profile) if isinstance(profile, bytes) else "")


def exif_problem(block: bytes) -> str:
    """What is wrong with an EXIF block: its first directory and all values must lie inside it."""
    block = block.removeprefix(b"Exif\0\0")
    order: Any = {b"II*\0": "little", b"MM\0*": "big"}.get(block[:4])
    if order is None:
        return "the EXIF block has no TIFF header"
    start = int.from_bytes(block[4:8], order)
    if start + 2 > len(block):
        return "the EXIF directory lies outside its block"
    entries = int.from_bytes(block[start : start + 2], order)
    if start + 2 + 12 * entries > len(block):
        return f"the EXIF directory of {entries} entries is cut off"
    for i in range(entries):
        entry = block[start + 2 + 12 * i : start + 14 + 12 * i]
        kind, count = int.from_bytes(entry[2:4], order), int.from_bytes(entry[4:8], order)
        if not 0 < kind < len(TYPE_SIZES):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} has an unknown type"
        size = TYPE_SIZES[kind] * count
        if size > 4 and int.from_bytes(entry[8:12], order) + size > len(block):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} lies outside its block"
    return ""


def profile_problem(profile: bytes) -> str:
    """What is wrong with the length or signature of a colour profile (ICC.1:2022, 7.2)."""
    if len(profile) < 128 or profile[36:40] != b"acsp":
        return "the colour profile has no valid header"
    if int.from_bytes(profile[:4], "big") > len(profile):
        return "the colour profile is cut off"
    return ""


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
# Faults of cases that are not opened: forbidden, or the same as another line.
UNSEEN = frozenset({"outside_root", "repeated_row"})
CUT = ("truncated", "end of file", "unexpected end", "too short", "not enough")
# An image whose channels all vary by less than this (of 255) is blank.
FLAT = 3


@dataclass(frozen=True)
class Look:
    """What one image looks like; ``fault`` is the kind of finding that prevents its use.

    ``oddities`` map kinds of findings to remarks; ``content`` is the hash of the file, ``pixels``
    that of the decoded image, empty if nothing was decoded; ``miniature`` is ``(32, 32)``, or
    ``None`` if nothing was decoded or the image is blank.
    """

    fault: str = ""
    reason: str = ""
    size: tuple[int, int] = (0, 0)
    oddities: Mapping[str, str] = field(default_factory=dict)
    content: str = ""
    pixels: str = ""
    hash: int = 0
    miniature: NDArray[np.uint8] | None = None


def look_at_all(scan: Scan, tick: Tick | None = None) -> list[Look]:
    """A look at the image of each case, in the order of ``scan.cases``."""

    def one(i: int) -> Look:
        case = scan.cases[i]
        if case.path is not None and case.fault not in UNSEEN:
            return look_at_file(case.path)
        pixels = None if case.fault in UNSEEN else scan.read(i)
        return Look(reason="not found") if pixels is None else look_at_pixels(pixels)

    found = []
    total = len(scan.cases)
    # Warning filters are global to the process, so they are set once around all threads.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        warnings.simplefilter("ignore")
        for i, each in enumerate(pool.map(one, range(total))):
            found.append(each)
            if tick is not None:
                tick(i + 1, total)
    return found


def look_at_file(path: Path) -> Look:
    """Hash a file, read its header, and decode it as training would."""
    content = ""
    try:
        data = _bytes(path)
        content = hashlib.sha256(data).hexdigest()
        odd = {} if is_dicom(path) else _header(path, data)
        with open_image(path) as image:
            if image.frames > 1:
                odd["frames"] = f"{image.frames} frames"
            return look_at_pixels(image.pixels, content, odd)
    except _Fault as fault:
        return Look(fault.kind, fault.reason, content=content)
    except MemoryError:
        return Look("huge", "not enough memory", content=content)
    except LmdError as error:
        reason = str(error.__cause__ or error)
        return Look(_fault_kind(reason), reason, content=content)


def look_at_pixels(
    rgb: NDArray[np.uint8], content: str = "", oddities: Mapping[str, str] | None = None
) -> Look:
    """What the pixels ``(H, W, 3)`` show, in addition to the ``oddities`` of the file."""
    odd = dict(oddities or {})
    height, width = rgb.shape[:2]
    grey = thumbnail(rgb)
    shows = float(grey.std()) >= MIN_SPREAD
    # The exact test is slow, and needed only if the miniature is almost blank.
    if not shows and np.ptp(rgb.reshape(-1, 3), axis=0).max() < FLAT:
        odd["one_colour"] = "about #{:02x}{:02x}{:02x}".format(*rgb[0, 0].tolist())
    elif np.array_equal(rgb[..., 0], rgb[..., 1]) and np.array_equal(rgb[..., 1], rgb[..., 2]):
        odd["greyscale"] = "grey"
    digest = hashlib.sha256(f"{height} {width} ".encode())
    digest.update(np.ascontiguousarray(rgb).data)
    return Look(
        size=(width, height),
        oddities=odd,
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
    kind = what_is(path)
    if kind == MISSING:
        raise _Fault("missing_file", "broken link")
    if kind != FILE:  # reading a pipe would never end
        raise _Fault("unreadable", kind)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise _Fault("unreadable", error.strerror or str(error)) from error
    if not data:
        raise _Fault("empty_file", "0 bytes")
    return data


def _fault_kind(reason: str) -> str:
    if f"more than {MAX_PIXELS} pixels" in reason:  # DICOM: the decoder reads the header
        return "huge"
    return "truncated" if any(word in reason.lower() for word in CUT) else "unreadable"


def _header(path: Path, data: bytes) -> dict[str, str]:
    """What is unusual about the header of a file, by kind of finding."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise _Fault("huge", f"{image.width} × {image.height} pixels")
            return _oddities(path, data, image)
    except _Fault:
        raise
    except Image.DecompressionBombError as error:
        raise _Fault("huge", f"more than {MAX_PIXELS} pixels") from error
    except Exception as error:  # Pillow's plugins raise many kinds of errors on broken headers.
        reason = str(error)
        shown = "unknown image format" if "cannot identify" in reason else reason
        raise _Fault(_fault_kind(reason), shown) from error


def _oddities(path: Path, data: bytes, image: Image.Image) -> dict[str, str]:
    odd: dict[str, str] = {}
    form = image.format or ""
    if path.suffix.lower() not in SUFFIXES_OF.get(form, {path.suffix.lower()}):
        odd["wrong_suffix"] = f"{form} inside"
    if image.mode == "CMYK":
        odd["cmyk"] = "CMYK"
    if image.mode == "P":
        odd["palette"] = "palette"
    if image.mode.startswith("I") or image.mode == "F":
        odd["deep"] = f"mode {image.mode}"
    if form == "PNG" and data[24:25] == b"\x10":  # Pillow opens 16-bit colour with 8 bits
        odd["deep"] = "16 bits"
    problem = metadata_problem(image.info)
    if problem:
        odd["metadata"] = problem
    else:
        turn = image.getexif().get(0x0112, 1)
        if turn in range(2, 9):
            odd["exif_rotated"] = f"orientation {turn}"
    # The end marker must follow the last scan; an EXIF preview may have one of its own before.
    if form in {"JPEG", "MPO"} and data.rfind(b"\xff\xd9") < data.rfind(b"\xff\xda"):
        odd["end_missing"] = "no end marker"
    if image.has_transparency_data and any(
        strip.getchannel("A").getextrema()[0] != 255 for _, strip in strips(image)
    ):
        odd["alpha"] = "transparent"
    return odd

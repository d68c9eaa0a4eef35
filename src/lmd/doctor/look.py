"""Look at one image: can it be read, what is unusual about it, and what does it look like?"""

import hashlib
import io
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from os import cpu_count
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from PIL import Image

from lmd.base.errors import LmdError
from lmd.base.files import FILE, MISSING, what_is
from lmd.data.images import MAX_PIXELS, ORIENTATION, Pixels, is_dicom, open_image, strips
from lmd.data.scan import Scan

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
SIDE = 32  # of a miniature
# An image whose channels all vary by less than this (of 255) is blank.
FLAT = 3
# An image with a smaller standard deviation of grey values (0 to 255) is not compared.
MIN_SPREAD = 4.0
# Bytes of one value of each TIFF type; entry 0 does not exist.
TYPE_SIZES = (0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8)


@dataclass(frozen=True)
class Look:
    """What one image looks like; ``fault`` is the kind of finding that prevents its use.

    ``oddities`` map kinds of findings to remarks; ``content`` is the hash of the file, ``pixels``
    the hash of the decoded image, empty if nothing was decoded; ``miniature`` is ``(32, 32)``, or
    ``None`` if nothing was decoded or the image is blank.
    """

    fault: str = ""
    reason: str = ""
    size: tuple[int, int] = (0, 0)
    oddities: Mapping[str, str] = field(default_factory=dict)
    content: str = ""
    pixels: str = ""
    hash: int = 0
    miniature: Pixels | None = None


def look_at_all(scan: Scan, tick: Tick | None = None) -> list[Look]:
    """Look at the image of each case, in the order of ``scan.cases``."""

    def look_at(i: int) -> Look:
        case = scan.cases[i]
        if case.path is not None and case.fault not in UNSEEN:
            return _look_at_file(case.path)
        pixels = None if case.fault in UNSEEN else scan.read(i)
        return Look(reason="not found") if pixels is None else _look_at_pixels(pixels, "", {})

    looks: list[Look] = []
    # Warning filters are global to the process, so they are set once around all threads.
    with warnings.catch_warnings(), ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        warnings.simplefilter("ignore")
        for look in pool.map(look_at, range(len(scan.cases))):
            looks.append(look)
            if tick is not None:
                tick(len(looks), len(scan.cases))
    return looks


def _look_at_file(path: Path) -> Look:
    """Hash a file, read its header, and decode it as training would."""
    state, content = what_is(path), ""
    try:
        if state == MISSING:
            raise _Fault("missing_file", "broken link")
        if state != FILE:  # reading a pipe would never end
            raise _Fault("unreadable", state)
        data = path.read_bytes()
        if not data:
            raise _Fault("empty_file", "0 bytes")
        content = hashlib.sha256(data).hexdigest()
        odd = {} if is_dicom(path) else _header(path, data)
        with open_image(path) as image:
            if image.frames > 1:
                odd["frames"] = f"{image.frames} frames"
            return _look_at_pixels(image.pixels, content, odd)
    except _Fault as fault:
        kind, reason = fault.args
        return Look(kind, reason, content=content)
    except OSError as error:
        return Look("unreadable", error.strerror or str(error))
    except MemoryError:
        return Look("huge", "not enough memory", content=content)
    except LmdError as error:
        reason = str(error.__cause__ or error)
        return Look(_fault_kind(reason), reason, content=content)


def _look_at_pixels(rgb: Pixels, content: str, odd: dict[str, str]) -> Look:
    """Add what the pixels ``(H, W, 3)`` show to the oddities of the file."""
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


def thumbnail(rgb: Pixels) -> Pixels:
    """Return a grey miniature ``(32, 32)`` of an image ``(H, W, 3)`` of any proportions."""
    small = cv2.resize(rgb, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    return np.asarray(cv2.cvtColor(small, cv2.COLOR_RGB2GRAY), dtype=np.uint8)


def perceptual_hash(grey: Pixels) -> int:
    """Return 64 bits of a miniature: which low frequencies of its DCT exceed their median."""
    low = cv2.dct(grey.astype(np.float32))[:8, :8].ravel()[1:]  # without the brightness
    bits = np.append(low > np.median(low), False)
    return int.from_bytes(np.packbits(bits).tobytes(), "big")


class _Fault(Exception):
    """The kind of finding that prevents the use of an image, and the reason."""


def _fault_kind(reason: str) -> str:
    if f"more than {MAX_PIXELS} pixels" in reason:  # DICOM: the decoder reads the header
        return "huge"
    return "truncated" if any(word in reason.lower() for word in CUT) else "unreadable"


def _header(path: Path, data: bytes) -> dict[str, str]:
    """Return what is unusual about the header of a file, by kind of finding."""
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
    odd |= {"CMYK": {"cmyk": "CMYK"}, "P": {"palette": "palette"}}.get(image.mode, {})
    if image.mode.startswith("I") or image.mode == "F":
        odd["deep"] = f"mode {image.mode}"
    if form == "PNG" and data[24:25] == b"\x10":  # Pillow opens 16-bit colour with 8 bits
        odd["deep"] = "16 bits"
    exif, profile = image.info.get("exif"), image.info.get("icc_profile")
    problem = exif_problem(exif) if isinstance(exif, bytes) else ""
    if not problem and isinstance(profile, bytes):
        problem = profile_problem(profile)
    if problem:
        odd["metadata"] = problem
    else:
        turn = image.getexif().get(ORIENTATION, 1)
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


def exif_problem(block: bytes) -> str:
    """Return what is wrong with an EXIF block: all of its first directory must lie inside it."""
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
        code, count = int.from_bytes(entry[2:4], order), int.from_bytes(entry[4:8], order)
        if not 0 < code < len(TYPE_SIZES):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} has an unknown type"
        size = TYPE_SIZES[code] * count
        if size > 4 and int.from_bytes(entry[8:12], order) + size > len(block):
            return f"EXIF entry {int.from_bytes(entry[:2], order)} lies outside its block"
    return ""


def profile_problem(profile: bytes) -> str:
    """Return what is wrong with the length or signature of a profile (ICC.1:2022, 7.2)."""
    if len(profile) < 128 or profile[36:40] != b"acsp":
        return "the colour profile has no valid header"
    if int.from_bytes(profile[:4], "big") > len(profile):
        return "the colour profile is cut off"
    return ""

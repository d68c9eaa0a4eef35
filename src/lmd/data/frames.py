"""Files with several frames or pages, of which only the first is read."""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from lmd.base.paths import FILE, what_is
from lmd.base.text import counted, shorten
from lmd.data.pixels import quiet_decoders
from lmd.data.reading import is_dicom

# Formats that have one image; cameras store a preview with a JPEG, which does not count.
SINGLE = frozenset({".jpg", ".jpeg", ".jfif", ".bmp", ".jp2", ".ppm", ".pgm"})


def frames_of(path: Path) -> int:
    """The number of frames or pages by the header of a file; 1 if it cannot be read."""
    if path.suffix.lower() in SINGLE or what_is(path) != FILE:
        return 1
    try:
        if is_dicom(path):
            import pydicom

            wanted = ["NumberOfFrames"]
            header = pydicom.dcmread(path, stop_before_pixels=True, specific_tags=wanted)
            return int(header.get("NumberOfFrames") or 1)
        with quiet_decoders(), Image.open(path) as image:
            return 1 if image.format == "MPO" else int(getattr(image, "n_frames", 1))
    except Exception:  # Broken files raise many kinds of errors; reading the pixels names them.
        return 1


def frames_note(frames: Mapping[str, int]) -> str:
    """One line about files by name, with the number of their frames.

    >>> frames_note({"a.tif": 3})
    '1 file has several frames or pages, and the first was taken: a.tif (3)'
    """
    text = "{n} [file has|files have] several frames or pages, and the first was taken: "
    return counted(len(frames), text) + shorten([f"{name} ({n})" for name, n in frames.items()])

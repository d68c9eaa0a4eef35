"""Checks of a DICOM header that come before its pixels are decoded."""

import io
from typing import Any

from PIL import Image

from lmd.serve.limits import Limits
from lmd.serve.problems import Problem

# Its data set is one zlib stream, which can unpack to any size before a header can be read.
_DEFLATED = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.4.95", b"1.2.840.10008.1.2.8.1")
_RLE = "1.2.840.10008.1.2.5"
_MOST_READS = 200_000


class _Counted(io.BytesIO):
    """A file that ends reading a header with millions of elements."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise ValueError("too many elements")
        return super().read(size)


def check_dicom(data: bytes, limits: Limits) -> tuple[int, int, int]:
    """Height, width and frames of a DICOM file that can be decoded safely."""
    try:
        import pydicom
    except ImportError:
        raise Problem("wrong-type", "This server cannot read DICOM files.") from None
    if any(syntax in data for syntax in _DEFLATED):
        raise Problem("wrong-type", "Deflated DICOM files are not accepted: store it as it is.")
    header: Any = pydicom.dcmread(_Counted(data))
    high, wide = int(header.Rows), int(header.Columns)
    frames = int(header.get("NumberOfFrames") or 1)
    samples, bits = int(header.SamplesPerPixel), int(header.BitsAllocated)
    if samples not in (1, 3) or bits not in (1, 8, 16, 32) or frames < 1:
        raise ValueError("not an image that can be shown")
    syntax = header.file_meta.TransferSyntaxUID
    small = high * wide <= limits.pixels and frames <= limits.frames
    if small and syntax.is_compressed:
        _check_frame(header, syntax, (wide, high), samples * bits // 8)
    return high, wide, frames


def _check_frame(header: Any, syntax: Any, size: tuple[int, int], depth: int) -> None:
    """The compressed picture must have the size that the header promises."""
    from pydicom.encaps import get_frame

    frame = get_frame(header.PixelData, 0, number_of_frames=1)
    if syntax == _RLE:  # at worst one byte more for every 128
        if len(frame) > size[0] * size[1] * depth * 1.02 + 1024:
            raise ValueError("more data than pixels")
        return
    with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as picture:
        if picture.size != size:
            raise ValueError("the picture has another size than the header says")

"""From the body of a request to pixels: what is no JPEG, PNG, TIFF or DICOM image is refused.

Headers are checked before anything is decoded. Nothing is written to disk.
"""

import io
import sys
import unicodedata
import warnings
from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from lmd.base.errors import LmdError
from lmd.data.images import has_dicom_mark, read_image, resize
from lmd.explain.explanation import shown
from lmd.serve.limits import MB, Limits
from lmd.serve.schemas import Options, Problem, busy

_MARKS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG\r\n\x1a\n": "PNG"} | dict.fromkeys(
    (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"), "TIFF"
)
_MOST_CHUNKS = 65_536
_MOST_NAME = 255
_MOST_OPTIONS = 65_536  # bytes
BAD = "The image is damaged, cut short or of an unsupported kind: check that a viewer opens it."
# Its data set is one zlib stream, which can unpack to any size before a header can be read.
_DEFLATED = (b"1.2.840.10008.1.2.1.99", b"1.2.840.10008.1.2.4.95", b"1.2.840.10008.1.2.8.1")
_RLE = "1.2.840.10008.1.2.5"
_MOST_READS = 200_000
LONGEST_SIDE = 32_768  # pixels


class Upload(NamedTuple):
    """One file: its name, checked, and its contents."""

    name: str
    data: bytes


class Form(NamedTuple):
    """What a request sent."""

    images: list[Upload]
    options: Options


class _Parser(MultiPartParser):
    """Starlette's parser, which here keeps files in memory and notices the end of the form."""

    spool_max_size = sys.maxsize  # the guard bounds the body
    complete = False

    def on_end(self) -> None:
        self.complete = True


async def read_form(request: Request, limits: Limits, *, field: str, most: int) -> Form:
    """Return between one and ``most`` files in ``field``, and the JSON in ``options``."""
    header = request.headers.get("content-type", "")
    if header.partition(";")[0].strip().lower() != "multipart/form-data":
        raise Problem("wrong-type", f"Send multipart/form-data with a file in the field {field}.")

    async def stream() -> AsyncGenerator[bytes]:
        async for chunk in request.stream():
            yield chunk
        if not parser.complete:
            raise MultiPartException("it is cut short.")

    parser = _Parser(request.headers, stream(), max_part_size=_MOST_OPTIONS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise Problem("bad-request", f"The form is not valid: {error.message}") from None
    except ClientDisconnect:
        raise Problem("bad-request", "The connection was closed.") from None
    uploads: list[Upload] = []
    options: Options | None = None
    try:
        for name, value in form.multi_items():
            if name == field and isinstance(value, UploadFile):
                if len(uploads) == most:
                    raise Problem("too-large", f"A request may have at most {most} files.")
                uploads.append(await _upload(value, limits))
            elif name == "options" and isinstance(value, str) and options is None:
                try:
                    options = Options.model_validate_json(value)
                except ValidationError as error:
                    first = error.errors(include_url=False, include_input=False)[0]
                    place = "".join(map(str, first["loc"][:1])) or "options"
                    raise Problem("bad-options", f"{place}: {first['msg']}") from None
            else:
                raise Problem("bad-request", f"The fields are {field} (a file) and options (JSON).")
    finally:
        await form.close()
    if not uploads:
        raise Problem("bad-request", f"There is no file in the field {field}.")
    return Form(uploads, options or Options())


async def _upload(file: UploadFile, limits: Limits) -> Upload:
    declared = (file.content_type or "application/octet-stream").partition(";")[0].strip().lower()
    images = declared.startswith("image/") and "svg" not in declared
    if not images and declared not in ("application/octet-stream", "application/dicom"):
        raise Problem("wrong-type", "The declared type of the file is not that of an image.")
    name = check_name(file.filename or "image")
    if (file.size or 0) > limits.max_image_mb * MB:
        raise Problem("too-large", f"A file may have at most {limits.max_image_mb:g} MB.")
    return Upload(name, await file.read())


def check_name(name: str) -> str:
    """Return a file name that can be shown; it is never used as a path."""
    odd = any(unicodedata.category(letter) in {"Cc", "Cf", "Cs", "Co", "Cn"} for letter in name)
    if odd or not name.strip(" .") or len(name.encode(errors="replace")) > _MOST_NAME:
        raise Problem("bad-name", "A file name must be printable text of at most 255 bytes.")
    if set(name) & set("/\\"):
        raise Problem("bad-name", "A file name must not contain a path.")
    return name


class Decoded(NamedTuple):
    """An image ``pixels (S, S, 3)`` as the model takes it, and ``picture (H, W, 3)`` to show."""

    pixels: NDArray[np.uint8]
    picture: NDArray[np.uint8] | None


def decode(data: bytes, size: int, limits: Limits, *, picture: bool) -> Decoded:
    """Return the pixels of an upload for a model with images of ``size``.

    The full image is not kept: it may be large, and many requests wait at the same time.
    """
    kind = check(data, limits)
    try:
        full = read_image(data, kinds=None if kind == "DICOM" else (kind,))
        return Decoded(resize(full, size), shown(full) if picture else None)
    except LmdError as error:
        if "pip install" in str(error):
            raise Problem("wrong-type", "This server cannot read DICOM files.") from None
        raise Problem("bad-image", BAD) from None
    except MemoryError:
        raise busy("There is not enough memory for the image", 5) from None


def check(data: bytes, limits: Limits) -> str:
    """Return the kind of an upload: JPEG, PNG, TIFF or DICOM; raise a ``Problem`` for all else.

    Names and declared types do not count.
    """
    if not data:
        raise Problem("bad-image", "The file is empty.")
    marked = (kind for mark, kind in _MARKS.items() if data.startswith(mark))
    kind = "DICOM" if has_dicom_mark(data) else next(marked, None)
    if kind is None:
        raise Problem("wrong-type", "Send a JPEG, PNG, TIFF or DICOM image.")
    measure = _dicom if kind == "DICOM" else partial(_raster, kind)
    try:
        with warnings.catch_warnings(action="ignore"):
            high, wide, frames = measure(data, limits)
    except Problem:
        raise
    except Image.DecompressionBombError:
        high, wide, frames = LONGEST_SIDE, LONGEST_SIDE + 1, 1
    except Exception:  # Pillow and pydicom raise many kinds of errors on a broken header.
        raise Problem("bad-image", BAD) from None
    if frames > limits.max_frames:
        raise Problem(
            "too-many-frames",
            f"An image may have at most {limits.max_frames} frames or pages: send one of them.",
        )
    if high < 1 or wide < 1:
        raise Problem("bad-image", BAD)
    if high * wide > limits.max_megapixels * MB or max(high, wide) > LONGEST_SIDE:
        raise Problem(
            "too-many-pixels",
            f"An image may have at most {limits.max_megapixels:g} million pixels and "
            f"{LONGEST_SIDE} on a side: make it smaller.",
        )
    return kind


def _raster(kind: str, data: bytes, limits: Limits) -> tuple[int, int, int]:
    """Return height, width and frames by the header; further pictures in a JPEG are previews."""
    place, chunks = 8, 0
    while kind == "PNG" and place + 12 <= len(data):
        place, chunks = place + 12 + int.from_bytes(data[place : place + 4]), chunks + 1
        if chunks == _MOST_CHUNKS:  # reading each takes time
            raise ValueError("more chunks than an image needs")
    with Image.open(io.BytesIO(data), formats=(kind,)) as image:
        wide, high = image.size
        if kind == "PNG":
            return high, wide, int(getattr(image, "n_frames", 1))
        if kind == "TIFF":  # counting all pages could take long
            with suppress(EOFError):
                image.seek(limits.max_frames)
                return high, wide, limits.max_frames + 1
        return high, wide, 1


class _Counted(io.BytesIO):
    """A file that ends reading a header with millions of elements."""

    reads = 0

    def read(self, size: int | None = -1, /) -> bytes:
        self.reads += 1
        if self.reads > _MOST_READS:
            raise ValueError("too many elements")
        return super().read(size)


def _dicom(data: bytes, limits: Limits) -> tuple[int, int, int]:
    """Return height, width and frames of a DICOM file that can be decoded safely."""
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
    small = high * wide <= limits.max_megapixels * MB and frames <= limits.max_frames
    if small and syntax.is_compressed:
        _check_frame(header, syntax, (wide, high), samples * bits // 8)
    return high, wide, frames


def _check_frame(header: Any, syntax: Any, size: tuple[int, int], depth: int) -> None:
    """Check that the compressed picture has the size that the header promises."""
    from pydicom.encaps import get_frame

    frame = get_frame(header.PixelData, 0, number_of_frames=1)
    if syntax == _RLE:  # at worst one byte more for every 128
        if len(frame) > size[0] * size[1] * depth * 1.02 + 1024:
            raise ValueError("more data than pixels")
        return
    with Image.open(io.BytesIO(frame), formats=("JPEG", "JPEG2000")) as picture:
        if picture.size != size:
            raise ValueError("the picture has another size than the header says")

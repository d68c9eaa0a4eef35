"""Uploads that a server must refuse, by name: (contents, file name, declared type)."""

import io
import struct
import zipfile
import zlib
from typing import Any

import numpy as np
from dicoms import write_dicom
from PIL import Image
from served import encoded, photo

Upload = tuple[bytes, str, str]


def chunk(kind: bytes, data: bytes) -> bytes:
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def png(wide: int, high: int, *between: bytes, pixels: bytes = bytes(999)) -> bytes:
    """A PNG file that promises a size."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", wide, high, 8, 2, 0, 0, 0))
    data = chunk(b"IDAT", zlib.compress(pixels))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(between) + data + chunk(b"IEND", b"")


def archive() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as found:
        found.writestr("a.txt", "hidden")
    return file.getvalue()


def jpeg_size(data: bytes, wide: int, high: int) -> bytes:
    """A JPEG file whose header promises another size."""
    place = data.index(b"\xff\xc0")
    return data[: place + 5] + struct.pack(">HH", high, wide) + data[place + 9 :]


def tiff_size(data: bytes, side: int) -> bytes:
    """A TIFF file whose tags promise another width and height."""
    found = bytearray(data)
    place = struct.unpack_from("<I", data, 4)[0]
    for i in range(struct.unpack_from("<H", data, place)[0]):
        entry = place + 2 + 12 * i
        if struct.unpack_from("<H", data, entry)[0] in (256, 257):
            struct.pack_into("<HII", found, entry + 2, 4, 1, side)
    return bytes(found)


def dicom(pixels: Any = None, **tags: Any) -> bytes:
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8) if pixels is None else pixels
    file = io.BytesIO()
    write_dicom(file, pixels, **tags)
    return file.getvalue()


def dicoms() -> dict[str, bytes]:
    good = dicom()
    words = b"\x08\x00\x05\x00CS" + struct.pack("<H", 2) + b"a "
    plain = good.replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.5\0")
    return {
        "dicom that is only a mark": bytes(128) + b"DICM",
        "dicom followed by noise": bytes(128) + b"DICM" + np.random.default_rng(0).bytes(3000),
        "dicom cut short": good[: len(good) // 2],
        "dicom without its last pixels": good[:-30],
        "dicom of many frames": dicom(np.zeros((9, 8, 8), np.uint8)),
        "dicom with negative frames": dicom(NumberOfFrames=-5),
        "dicom with huge sides": dicom(Rows=65535, Columns=65535),
        "dicom without rows": dicom(Rows=0),
        "dicom with seven samples": dicom(SamplesPerPixel=7),
        "dicom with 64 bits": dicom(BitsAllocated=64),
        "dicom of an unknown colour space": dicom(PhotometricInterpretation="XYZ"),
        "dicom with words for a window": dicom(WindowCenter=99, WindowWidth=256).replace(
            b"256.0", b"wide "
        ),
        "dicom with millions of elements": good + words * 300_000,
        "dicom that claims to be run-length coded": plain,
        "dicom that is deflated": good.replace(b"2.1\0", b"2.1.99", 1),
    }


def files() -> dict[str, bytes]:
    jpeg, whole, tiff = (encoded(photo(), kind) for kind in ("JPEG", "PNG", "TIFF"))
    pages = [photo(i) for i in range(3)]
    noise = np.random.default_rng(0).bytes(3000)
    return {
        "nothing": b"",
        "one byte": b"\xff",
        "noise": noise,
        "text": b"hello",
        "web page": b"<html><script>alert(1)</script></html>",
        "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>',
        "pdf": b"%PDF-1.7 " + noise,
        "zip": archive(),
        "program": b"\x7fELF" + noise,
        "pickle": b"\x80\x04\x95" + noise,
        "gif": encoded(photo().convert("P"), "GIF"),
        "bmp": encoded(photo(), "BMP"),
        "webp": b"RIFF\0\0\0\0WEBPVP8 " + noise,
        "postscript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
        "jpeg mark and noise": b"\xff\xd8\xff\xe0" + noise,
        "jpeg cut short": jpeg[: len(jpeg) // 2],
        "jpeg of huge size": jpeg_size(jpeg, 65535, 65535),
        "jpeg without height": jpeg_size(jpeg, 60, 0),
        "png bomb": png(60_000, 60_000),
        "png that is long and thin": png(40_000, 1, pixels=bytes(120_001)),
        "png without pixels": png(0, 0),
        "png cut short": whole[: len(whole) // 2],
        "png with a wrong checksum": whole.replace(b"IDAT", b"IDAT\x01", 1),
        "png with a text bomb": png(
            9, 9, chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(9_000_000)))
        ),
        "png of very many chunks": png(9, 9, *[chunk(b"teSt", b"")] * 70_000, pixels=bytes(9 * 28)),
        "png that moves": encoded(pages[0], "PNG", save_all=True, append_images=pages[1:]),
        "tiff mark and noise": b"II*\0" + noise,
        "tiff of huge size": tiff_size(tiff, 1_000_000),
        "tiff cut short": tiff[: len(tiff) // 2],
        "tiff of many pages": encoded(pages[0], "TIFF", save_all=True, append_images=pages[1:]),
        "tiff whose directory is itself": b"II*\0\x08\0\0\0\0\0\x08\0\0\0",
        "image above the limit": jpeg + bytes(3_300_000),
        **dicoms(),
    }


def uploads() -> dict[str, Upload]:
    """All of them; files have a harmless name, and the names go with a harmless file."""
    good = encoded(photo())
    names = {
        "name with a path": "../../etc/passwd.png",
        "name that turns its direction": "a\u202egnp.exe",
        "name of dots": "...",
        "name of great length": "a" * 5000 + ".png",
    }
    kinds = {
        "declared as a web page": "text/html",
        "declared as svg": "image/svg+xml",
        "declared as a form": "application/json",
    }
    return {
        **{key: (data, "a.png", "image/png") for key, data in files().items()},
        **{key: (good, name, "image/png") for key, name in names.items()},
        **{key: (good, "a.png", kind) for key, kind in kinds.items()},
    }


def picture(data: bytes) -> Image.Image:
    """A data URI's picture."""
    return Image.open(io.BytesIO(data))

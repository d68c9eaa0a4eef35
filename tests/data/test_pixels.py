"""One image has the same pixels in every format and depth."""

import struct
from pathlib import Path

import numpy as np
import pytest
from dicoms import write_dicom
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.images import read_image, rgb_pixels

# All values of 12 bits, and the 16 bits that a converter makes of them: v * 65535 / 4095, rounded.
TWELVE = np.arange(4096, dtype=np.uint16).reshape(64, 64)
SIXTEEN = np.rint(TWELVE * (65535 / 4095)).astype(np.uint16)
EXPECTED = np.rint(TWELVE * (255 / 4095)).astype(np.uint8)  # no value lies between two others


def twelve_bit_tiff(path: Path, values: np.ndarray) -> Path:
    """A grey TIFF with two values in three bytes, which Pillow cannot write."""
    height, width = values.shape
    pairs = values.reshape(-1, 2).astype(np.uint32)
    packed = pairs[:, 0] << 12 | pairs[:, 1]
    data = np.stack([packed >> 16, packed >> 8 & 255, packed & 255], axis=1).astype(np.uint8)
    tags = {256: width, 257: height, 258: 12, 259: 1, 262: 1, 277: 1, 278: height}
    tags |= {273: 8, 279: data.size}  # where the strip is, and its length
    entries = b"".join(struct.pack("<HHII", t, 4, 1, v) for t, v in sorted(tags.items()))
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)
    path.write_bytes(struct.pack("<2sHI", b"II", 42, 8 + data.size) + data.tobytes() + directory)
    return path


def test_grey_of_12_and_16_bits(tmp_path):
    Image.fromarray(SIXTEEN).save(tmp_path / "16.png")
    Image.fromarray(SIXTEEN).save(tmp_path / "16.tif")
    full = {"WindowCenter": 2048, "WindowWidth": 4096}
    stored = {"BitsStored": 12, "HighBit": 11}
    files = [
        twelve_bit_tiff(tmp_path / "12.tif", TWELVE),
        tmp_path / "16.png",
        tmp_path / "16.tif",
        write_dicom(tmp_path / "12.dcm", TWELVE, **stored),
        write_dicom(tmp_path / "16.dcm", SIXTEEN),
        write_dicom(tmp_path / "window.dcm", TWELVE, **stored, **full),
    ]
    found = {path.name: read_image(path) for path in files}
    found["array"] = rgb_pixels(SIXTEEN, "a")
    found["channel"] = rgb_pixels(SIXTEEN[:, :, None], "a")
    with Image.open(files[0]) as image:
        found["opened 12.tif"] = rgb_pixels(image, "a")
    found["pillow"] = rgb_pixels(Image.fromarray(SIXTEEN), "a")
    for name, pixels in found.items():
        np.testing.assert_array_equal(pixels, np.stack([EXPECTED] * 3, -1), err_msg=name)


def test_a_part_of_the_range_is_not_stretched_in_any_format(tmp_path):
    values = np.array([[1000, 2000]], np.uint16)
    Image.fromarray(values).save(tmp_path / "a.png")
    expected = read_image(tmp_path / "a.png")
    assert expected[0, :, 0].tolist() == [4, 8]
    path = write_dicom(tmp_path / "a.dcm", values)
    np.testing.assert_array_equal(read_image(path), expected)
    unit = write_dicom(tmp_path / "ct.dcm", values, RescaleSlope=1, RescaleIntercept=-1024)
    assert read_image(unit)[0, :, 0].tolist() == [0, 255]


@pytest.mark.parametrize("channels", [3, 4])
def test_colour_of_16_bits(tmp_path, channels):
    cv2 = pytest.importorskip("cv2")
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 65536, (20, 30, channels), dtype=np.uint16)
    order = [2, 1, 0, 3][:channels]
    cv2.imwrite(str(tmp_path / "a.png"), wide[:, :, order])
    cv2.imwrite(str(tmp_path / "a.tif"), wide[:, :, order])
    expected = np.rint(wide * (255 / 65535)).astype(np.uint8)
    if channels == 4:
        black = Image.new("RGBA", (30, 20), "black")
        shown = Image.alpha_composite(black, Image.fromarray(expected))
        expected = np.asarray(shown.convert("RGB"))
    files = {"png": tmp_path / "a.png", "tif": tmp_path / "a.tif"}
    if channels == 3:
        files["dicom"] = write_dicom(tmp_path / "a.dcm", wide)
    found = {name: read_image(path) for name, path in files.items()}
    found["array"] = rgb_pixels(wide, "a")
    for name, pixels in found.items():
        np.testing.assert_array_equal(pixels, expected, err_msg=name)


def test_colour_of_16_bits_is_turned_upright(tmp_path):
    wide = np.zeros((2, 3, 3), np.uint16)
    wide[0, 0] = 65535, 32896, 0
    Image.new("RGB", (3, 2)).save(tmp_path / "8.png", exif=_turned())
    exif = _chunk((tmp_path / "8.png").read_bytes(), b"eXIf")
    cv2 = pytest.importorskip("cv2")
    data = cv2.imencode(".png", wide[:, :, ::-1])[1].tobytes()
    (tmp_path / "16.png").write_bytes(data[:33] + exif + data[33:])  # after the header
    read = read_image(tmp_path / "16.png")
    assert read.shape == (3, 2, 3)
    assert read[0, 1].tolist() == [255, 128, 0]


def _turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6  # show it turned clockwise by 90 degrees
    return exif


def _chunk(data: bytes, kind: bytes) -> bytes:
    start = data.index(kind) - 4
    return data[start : start + 12 + int.from_bytes(data[start : start + 4], "big")]


def test_a_broken_pillow_image_is_named(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(data[: len(data) // 2])
    with (
        Image.open(tmp_path / "a.png") as image,
        pytest.raises(LmdError, match=r"^image 3 cannot be read \("),
    ):
        rgb_pixels(image, "image 3")

"""Image files of every kind, sound and broken."""

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from dicoms import write_dicom
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.dicom import window
from lmd.data.images import MAX_PIXELS, is_image, read_image

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3


def save(path: Path, pixels: np.ndarray | Image.Image, **options) -> Path:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)
    return path


@pytest.mark.parametrize("suffix", ["png", "bmp", "tif", "ppm"])
def test_lossless_rgb_comes_back_as_it_was(tmp_path, suffix):
    pixels = read_image(save(tmp_path / f"a.{suffix}", RGB))
    assert pixels.dtype == np.uint8
    assert pixels.flags.writeable
    np.testing.assert_array_equal(pixels, RGB)


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_lossy_rgb_comes_back_nearly(tmp_path, suffix):
    flat = np.full((16, 16, 3), (200, 100, 50), np.uint8)
    pixels = read_image(save(tmp_path / f"a.{suffix}", flat, quality=95))
    assert np.abs(pixels.astype(int) - flat).max() < 8


def test_grey_palette_and_bilevel(tmp_path):
    grey = RGB[:, :, 0]
    read = read_image(save(tmp_path / "grey.png", grey))
    np.testing.assert_array_equal(read, np.stack([grey] * 3, -1))
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 150, 100])
    palette.putpixel((1, 0), 1)
    read = read_image(save(tmp_path / "p.png", palette))
    np.testing.assert_array_equal(read, [[[10, 20, 30], [200, 150, 100]]])
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    read = read_image(save(tmp_path / "bits.png", bits))
    np.testing.assert_array_equal(read[0, :, 0], [0, 255])


def test_transparency_shows_black(tmp_path):
    rgba = np.array([[[200, 100, 50, 255], [200, 100, 50, 0], [200, 100, 50, 128]]], np.uint8)
    read = read_image(save(tmp_path / "a.png", rgba)).astype(int)
    np.testing.assert_array_equal(read[0, 0], [200, 100, 50])
    np.testing.assert_array_equal(read[0, 1], [0, 0, 0])
    assert np.abs(read[0, 2] - [100, 50, 25]).max() <= 1
    palette = Image.new("P", (2, 1))
    palette.putpalette([10, 20, 30, 200, 150, 100])
    palette.putpixel((1, 0), 1)
    read = read_image(save(tmp_path / "p.png", palette, transparency=1))
    np.testing.assert_array_equal(read, [[[10, 20, 30], [0, 0, 0]]])


def test_cmyk_is_converted(tmp_path):
    ink = np.zeros((16, 16, 4), np.uint8)
    ink[:, :, 0] = 255  # cyan alone leaves green and blue
    image = Image.frombytes("CMYK", (16, 16), ink.tobytes())
    read = read_image(save(tmp_path / "a.jpg", image, quality=95)).astype(int)
    assert read.shape == (16, 16, 3)
    assert np.abs(read - [0, 255, 255]).max() < 8


def test_sixteen_bits_are_scaled_not_clipped(tmp_path):
    wide = np.array([[0, 257, 128 * 257, 65535]], np.uint16)
    for suffix in ("png", "tif"):
        read = read_image(save(tmp_path / f"a.{suffix}", wide))
        np.testing.assert_array_equal(read[0, :, 0], [0, 1, 128, 255])
        np.testing.assert_array_equal(read[0, :, 0], read[0, :, 2])


def test_sixteen_bit_tiff_where_zero_is_white(tmp_path):
    wide = np.array([[0, 257, 65535]], np.uint16)
    path = save(tmp_path / "a.tif", wide, tiffinfo={262: 0})
    np.testing.assert_array_equal(read_image(path)[0, :, 0], [255, 254, 0])


def test_wide_pgm_and_sixteen_bit_rgb(tmp_path):
    path = tmp_path / "a.pgm"
    path.write_bytes(b"P5 3 1 65535\n" + np.array([0, 32896, 65535], ">u2").tobytes())
    np.testing.assert_array_equal(read_image(path)[0, :, 0], [0, 128, 255])
    samples = np.array([0, 32896, 65535], ">u2").tobytes()
    path = tmp_path / "rgb16.png"
    path.write_bytes(png(1, 1, samples, depth=16))
    np.testing.assert_array_equal(read_image(path), [[[0, 128, 255]]])


def test_floats_and_long_integers(tmp_path):
    unit = np.array([[0.0, 0.25, 0.5]], np.float32)
    read = read_image(save(tmp_path / "unit.tif", unit))
    np.testing.assert_array_equal(read[0, :, 0], [0, 64, 128])
    hounsfield = np.array([[-1000.0, 0.0, 1000.0]], np.float32)
    read = read_image(save(tmp_path / "ct.tif", hounsfield))
    np.testing.assert_array_equal(read[0, :, 0], [0, 128, 255])
    read = read_image(save(tmp_path / "int.tif", np.array([[-5, 95, 195]], np.int32)))
    np.testing.assert_array_equal(read[0, :, 0], [0, 128, 255])
    read = read_image(save(tmp_path / "flat.tif", np.full((2, 2), 7.0, np.float32)))
    assert read.max() == 0
    path = save(tmp_path / "nan.tif", np.array([[np.nan, 1.0]], np.float32))
    with pytest.raises(LmdError, match=r"nan\.tif cannot be read \(it has values that are not"):
        read_image(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "tif"])
def test_exif_orientation_is_applied(tmp_path, suffix):
    pixels = np.zeros((16, 32, 3), np.uint8)
    pixels[:, :16] = 255  # left half white
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it turned clockwise by 90 degrees
    read = read_image(save(tmp_path / f"a.{suffix}", pixels, exif=exif))
    assert read.shape == (32, 16, 3)
    assert read[:12].min() > 200  # what was left is now on top
    assert read[20:].max() < 50


def test_first_page_is_read(tmp_path):
    pages = [Image.fromarray(RGB), Image.fromarray(255 - RGB)]
    path = save(tmp_path / "a.tif", pages[0], save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(read_image(path), RGB)


def test_broken_files_are_named(tmp_path):
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for suffix in ("jpg", "png", "tif", "webp", "bmp"):
        path = save(tmp_path / f"whole.{suffix}", noise)
        broken = tmp_path / f"broken.{suffix}"
        broken.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(LmdError, match=rf"broken\.{suffix} cannot be read \(.+--skip-bad"):
            read_image(broken)
    text = tmp_path / "text.png"
    text.write_text("no image")
    with pytest.raises(LmdError, match=r"text\.png cannot be read \(cannot identify"):
        read_image(text)
    (tmp_path / "empty.jpg").touch()
    with pytest.raises(LmdError, match=r"empty\.jpg cannot be read"):
        read_image(tmp_path / "empty.jpg")
    with pytest.raises(LmdError, match=r"gone\.png does not exist or is not a file"):
        read_image(tmp_path / "gone.png")


def png(width: int, height: int, samples: bytes, depth: int) -> bytes:
    """An RGB PNG of one row of samples, whatever size its header claims."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    header = struct.pack(">IIBBBBB", width, height, depth, 2, 0, 0, 0)
    data = zlib.compress(b"\0" + samples)
    magic = b"\x89PNG\r\n\x1a\n"
    return magic + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def test_decompression_bomb_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "bomb.png"
    path.write_bytes(png(60000, 60000, b"\0" * 30, depth=8))
    with pytest.raises(LmdError, match=f"bomb.png has more than {MAX_PIXELS} pixels"):
        read_image(path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)  # our own limit stays
    with pytest.raises(LmdError, match=f"bomb.png has more than {MAX_PIXELS} pixels"):
        read_image(path)


# DICOM


def test_dicom_window_with_rescale(tmp_path):
    stored = np.array([[0, 1024, 1064, 1104, 4000]], np.uint16)  # −1024, 0, 40, 80, 2976 HU
    tags = {"RescaleSlope": 1, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 81}
    read = read_image(write_dicom(tmp_path / "ct.dcm", stored, **tags))
    # (x − 39.5) / 80 + 0.5 on the five values
    expected = np.floor(np.clip([-1, 0.00625, 0.50625, 1.00625, 9], 0, 1) * 255 + 0.5)
    np.testing.assert_array_equal(read[0, :, 0], expected)
    assert read.shape == (1, 5, 3)
    several = tags | {"WindowCenter": [40, 400], "WindowWidth": [81, 2000]}
    again = read_image(write_dicom(tmp_path / "two.dcm", stored, **several))
    np.testing.assert_array_equal(again, read)


def test_dicom_slope_matters(tmp_path):
    stored = np.array([[0, 50, 100]], np.uint16)
    tags = {"RescaleSlope": 2, "RescaleIntercept": 0, "WindowCenter": 100.5, "WindowWidth": 201}
    read = read_image(write_dicom(tmp_path / "a.dcm", stored, **tags))
    np.testing.assert_array_equal(read[0, :, 0], [0, 128, 255])


def test_dicom_window_functions():
    values = np.array([-1e6, 0.0, 50.0, 100.0, 1e6])
    np.testing.assert_allclose(window(values, 50, 100, "LINEAR_EXACT"), [0, 0, 0.5, 1, 1])
    np.testing.assert_allclose(window(values, 50, 101, "LINEAR"), [0, 0.005, 0.505, 1, 1])
    expected = [0, 1 / (1 + np.exp(2)), 0.5, 1 / (1 + np.exp(-2)), 1]
    np.testing.assert_allclose(window(values, 50, 100, "SIGMOID"), expected)
    np.testing.assert_array_equal(window(values, 50, 1, "LINEAR"), [0, 0, 1, 1, 1])


def test_dicom_monochrome1_is_inverted_and_unwindowed_is_stretched(tmp_path):
    stored = np.array([[100, 200, 300]], np.int16)
    read = read_image(write_dicom(tmp_path / "a.dcm", stored))
    np.testing.assert_array_equal(read[0, :, 0], [0, 128, 255])
    tags = {"PhotometricInterpretation": "MONOCHROME1"}
    read = read_image(write_dicom(tmp_path / "b.dcm", stored, **tags))
    np.testing.assert_array_equal(read[0, :, 0], [255, 127, 0])


def test_dicom_voi_lut(tmp_path):
    pydicom = pytest.importorskip("pydicom")
    table = pydicom.Dataset()
    table.add_new("LUTDescriptor", "US", [4, 0, 16])
    table.add_new("LUTData", "US", [0, 65535, 257 * 10, 257 * 200])
    stored = np.array([[0, 1, 2, 3]], np.uint16)
    tags = {"VOILUTSequence": pydicom.Sequence([table]), "WindowCenter": 1, "WindowWidth": 2}
    read = read_image(write_dicom(tmp_path / "a.dcm", stored, **tags))
    np.testing.assert_array_equal(read[0, :, 0], [0, 255, 10, 200])


def test_dicom_colour_frames_and_no_suffix(tmp_path):
    path = write_dicom(tmp_path / "rgb.dcm", RGB)
    np.testing.assert_array_equal(read_image(path), RGB)
    ybr = np.array([[[76, 85, 255], [150, 44, 21]]], np.uint8)  # red and green
    tags = {"PhotometricInterpretation": "YBR_FULL"}
    read = read_image(write_dicom(tmp_path / "ybr.dcm", ybr, **tags)).astype(int)
    assert np.abs(read - [[[255, 0, 0], [0, 255, 0]]]).max() <= 2
    frames = np.stack([RGB[:, :, 0], 255 - RGB[:, :, 0]])
    tags = {"WindowCenter": 127.5, "WindowWidth": 255, "VOILUTFunction": "LINEAR_EXACT"}
    path = write_dicom(tmp_path / "IM0001", frames, **tags)
    assert is_image(path)
    np.testing.assert_array_equal(read_image(path)[:, :, 0], RGB[:, :, 0])
    plain = tmp_path / "LICENSE"
    plain.write_text("x" * 200)
    assert not is_image(plain)


def test_dicom_broken_and_missing_extra(tmp_path, monkeypatch):
    path = tmp_path / "broken.dcm"
    path.write_bytes(b"not dicom")
    with pytest.raises(LmdError, match=r"broken\.dcm cannot be read"):
        read_image(path)
    whole = write_dicom(tmp_path / "short.dcm", np.zeros((64, 64), np.uint16))
    whole.write_bytes(whole.read_bytes()[:-4000])
    with pytest.raises(LmdError, match=r"short\.dcm cannot be read"):
        read_image(whole)
    huge = write_dicom(tmp_path / "huge.dcm", RGB, Rows=60000, Columns=60000)
    with pytest.raises(LmdError, match=r"huge\.dcm has more than"):
        read_image(huge)
    monkeypatch.setitem(sys.modules, "pydicom", None)
    with pytest.raises(LmdError, match=r"broken\.dcm is DICOM, which needs pydicom.*lmd\[dicom\]"):
        read_image(path)

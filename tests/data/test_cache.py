from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.cache import decode
from lmd.data.resizing import resize
from lmd.data.sources import open_table
from lmd.data.table import Table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


class Counting:
    """The images of a table, counting how often one is read."""

    def __init__(self, table: Table) -> None:
        self.images, self.reads = table.images, 0

    def read(self, row: int) -> "np.ndarray":
        self.reads += 1
        return self.images.read(row)


def counted(folder: Path) -> tuple[Table, Counting]:
    from dataclasses import replace

    table = open_table(folder)
    counting = Counting(table)
    return replace(table, images=counting), counting


def test_an_image_is_decoded_once(folder: Path, tmp_path: Path) -> None:
    table, counting = counted(folder)
    _, first, _ = decode(table, 16, folder=tmp_path / "cache")
    assert first.shape == (6, 16, 16, 3)
    assert counting.reads == 6
    table, counting = counted(folder)
    _, second, _ = decode(table, 16, folder=tmp_path / "cache")
    assert counting.reads == 0
    assert np.array_equal(first, second)


def test_a_changed_file_is_decoded_anew(folder: Path, tmp_path: Path) -> None:
    decode(open_table(folder), 16, folder=tmp_path / "cache")
    Image.new("RGB", (31, 20), "red").save(folder / "a" / "0.png")
    _, pixels, _ = decode(open_table(folder), 16, folder=tmp_path / "cache")
    assert (pixels[0, :, :, 0] == 255).all()


def test_a_truncated_image_is_named(folder: Path, tmp_path: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(
        LmdError, match=r"1 of 6 images cannot be read(.|\n)*1\.png(.|\n)*--skip-bad"
    ):
        decode(open_table(folder), 16, folder=tmp_path / "cache")


def test_bad_images_are_skipped_when_asked(folder: Path, tmp_path: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    for _ in range(2):  # decoded, then from the cache
        table, pixels, skipped = decode(
            open_table(folder), 16, folder=tmp_path / "cache", skip_bad=True
        )
        assert len(table) == len(pixels) == 5
        assert len(skipped) == 1
        assert "1.png" in skipped[0]


def test_a_cache_that_cannot_be_written_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LmdError, match="LMD_CACHE"):
        decode(open_table(folder), 16, folder=tmp_path / "file" / "cache")


def test_files_are_decoded_at_full_size_and_resized_by_the_rule(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pixels = rng.integers(0, 256, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / name / "0.jpg")
    _, found, _ = decode(open_table(tmp_path / "data"), 16, folder=tmp_path / "cache")
    for pixels, name in zip(found, ("a", "b"), strict=True):
        with Image.open(tmp_path / "data" / name / "0.jpg") as image:
            np.testing.assert_array_equal(pixels, resize(np.asarray(image), 16))


def test_pixels_of_another_rule_are_not_used(folder: Path, tmp_path: Path, monkeypatch) -> None:
    decode(open_table(folder), 16, folder=tmp_path / "cache")
    monkeypatch.setattr("lmd.data.cache.RULE", "v3")
    table, counting = counted(folder)
    decode(table, 16, folder=tmp_path / "cache")
    assert counting.reads == 6

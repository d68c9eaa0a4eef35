import errno
import fcntl
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lmd.base.errors import LmdError
from lmd.data.cache import decode
from lmd.data.resizing import resize
from lmd.data.sources import open_table
from lmd.data.table import Table


def decoded(*given: Any, **options: Any) -> tuple[Table, np.ndarray, tuple[str, ...]]:
    table, images, problems = decode(*given, **options)
    return table, images[:], problems


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
    table = open_table(folder)
    counting = Counting(table)
    return replace(table, images=counting), counting


def test_an_image_is_decoded_once(folder: Path, tmp_path: Path) -> None:
    table, counting = counted(folder)
    _, first, _ = decoded(table, 16, folder=tmp_path / "cache")
    assert first.shape == (6, 16, 16, 3)
    assert counting.reads == 6
    table, counting = counted(folder)
    _, second, _ = decoded(table, 16, folder=tmp_path / "cache")
    assert counting.reads == 0
    assert np.array_equal(first, second)


def test_a_changed_file_is_decoded_anew(folder: Path, tmp_path: Path) -> None:
    decoded(open_table(folder), 16, folder=tmp_path / "cache")
    Image.new("RGB", (31, 20), "red").save(folder / "a" / "0.png")
    _, pixels, _ = decoded(open_table(folder), 16, folder=tmp_path / "cache")
    assert (pixels[0, :, :, 0] == 255).all()


def test_a_truncated_image_is_named(folder: Path, tmp_path: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(
        LmdError, match=r"1 of 6 images cannot be read(.|\n)*1\.png(.|\n)*--skip-bad"
    ):
        decoded(open_table(folder), 16, folder=tmp_path / "cache")


def test_bad_images_are_skipped_when_asked(folder: Path, tmp_path: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    for _ in range(2):  # decoded, then from the cache
        table, pixels, skipped = decoded(
            open_table(folder), 16, folder=tmp_path / "cache", skip_bad=True
        )
        assert len(table) == len(pixels) == 5
        assert len(skipped) == 1
        assert "1.png" in skipped[0]


def test_a_cache_that_cannot_be_written_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LmdError, match="LMD_CACHE"):
        decoded(open_table(folder), 16, folder=tmp_path / "file" / "cache")


def test_files_are_decoded_at_full_size_and_resized_by_the_rule(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pixels = rng.integers(0, 256, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / name / "0.jpg")
    _, found, _ = decoded(open_table(tmp_path / "data"), 16, folder=tmp_path / "cache")
    for pixels, name in zip(found, ("a", "b"), strict=True):
        with Image.open(tmp_path / "data" / name / "0.jpg") as image:
            np.testing.assert_array_equal(pixels, resize(np.asarray(image), 16))


def test_pixels_of_another_rule_are_not_used(folder: Path, tmp_path: Path, monkeypatch) -> None:
    decoded(open_table(folder), 16, folder=tmp_path / "cache")
    monkeypatch.setattr("lmd.data.cache.RULE", "v3")
    table, counting = counted(folder)
    decoded(table, 16, folder=tmp_path / "cache")
    assert counting.reads == 6


def cached(folder: Path, tmp_path: Path) -> tuple[Path, np.ndarray]:
    """The cache file of a data set, and the right pixels."""
    _, pixels, _ = decoded(open_table(folder), 16, folder=tmp_path / "cache")
    (file,) = (tmp_path / "cache").iterdir()
    return file, np.array(pixels)


def broken(data: bytes, how: str) -> bytes:
    flipped = bytearray(data)
    flipped[1000] ^= 1
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "zeroed": bytes(len(data)),
        "half zeroed": bytes(3000) + data[3000:],
        "one image short": data[16 * 16 * 3 :],
        "other shape": data + data,
        "flipped": bytes(flipped),
        "other checksums": data[:-20] + bytes(20),
    }[how]


@pytest.mark.parametrize(
    "how",
    ["cut", "empty", "zeroed", "half zeroed", "one image short", "other shape", "flipped",
     "other checksums"],
)  # fmt: skip
def test_a_damaged_cache_is_said_and_decoded_again(folder: Path, tmp_path: Path, how: str) -> None:
    file, right = cached(folder, tmp_path)
    file.write_bytes(broken(file.read_bytes(), how))
    said: list[str] = []
    for _ in range(2):
        _, pixels, _ = decoded(open_table(folder), 16, folder=tmp_path / "cache", say=said.append)
        np.testing.assert_array_equal(pixels, right)
    assert len(said) == 1  # the second time it is whole
    assert f"{file} is damaged" in said[0]


def test_only_damaged_images_are_decoded_again(folder: Path, tmp_path: Path) -> None:
    file, right = cached(folder, tmp_path)
    file.write_bytes(broken(file.read_bytes(), "flipped"))
    table, counting = counted(folder)
    _, pixels, _ = decoded(table, 16, folder=tmp_path / "cache")
    np.testing.assert_array_equal(pixels, right)
    assert counting.reads == 1


def test_a_failure_is_not_remembered(folder: Path, tmp_path: Path) -> None:
    class Failing:
        fails = True

        def __init__(self, table: Table) -> None:
            self.images = table.images

        def read(self, row: int) -> np.ndarray:
            if row == 2 and self.fails:
                raise LmdError("permission denied")
            return self.images.read(row)

    table = open_table(folder)
    table = replace(table, images=Failing(table))
    with pytest.raises(LmdError, match="permission denied"):
        decoded(table, 16, folder=tmp_path / "cache")
    first, _, skipped = decoded(table, 16, folder=tmp_path / "cache", skip_bad=True)
    assert (len(first), skipped) == (5, ("permission denied",))
    Failing.fails = False
    whole, pixels, skipped = decoded(table, 16, folder=tmp_path / "cache")
    assert (len(whole), skipped) == (6, ())
    np.testing.assert_array_equal(pixels[2], resize(table.read(2), 16))


def test_leftovers_of_killed_runs_are_removed_and_those_of_others_kept(
    folder: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "dead.part").write_bytes(b"x")
    with (cache / "alive.part").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        decoded(open_table(folder), 16, folder=cache)
    assert sorted(path.suffix for path in cache.iterdir()) == [".part", ".pixels"]
    assert (cache / "alive.part").exists()


FULL = """
import pathlib, resource, sys
from lmd.base.errors import LmdError
from lmd.data.cache import decode
from lmd.data.sources import open_table
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
try:
    decode(open_table(sys.argv[1]), 16, folder=pathlib.Path(sys.argv[2]))
except LmdError as error:
    print(error)
"""


def test_no_room_for_the_cache_is_one_line(folder: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(folder), str(tmp_path / "cache")],
        capture_output=True,
        text=True,
        check=True,  # not ended by a signal
    )
    assert "LMD_CACHE" in done.stdout
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert list((tmp_path / "cache").iterdir()) == []


def test_space_is_reserved_before_an_image_is_decoded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _offset: int, length: int) -> None:
        assert length > 6 * 16 * 16 * 3
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    table, counting = counted(folder)
    with pytest.raises(LmdError, match="No space left on device"):
        decoded(table, 16, folder=tmp_path / "cache")
    assert counting.reads == 0

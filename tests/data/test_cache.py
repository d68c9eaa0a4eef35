"""Images are decoded once, and whatever happens to the cache, the pixels are right."""

import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toys import Listening

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data import cache
from lmd.data.cache import decode
from lmd.data.images import open_image, resize
from lmd.data.loaders import evaluation_batches, training_batches
from lmd.data.sources import open_table
from lmd.data.table import Part, Table

RECORD = 16 * 16 * 3 + 20  # bytes


def make_images(folder: Path, names: tuple[str, ...] = ("a", "b"), count: int = 3) -> Path:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for i in range(count):
            pixels = rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_images(tmp_path / "data")


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that are decoded."""
    opened: list[Path] = []

    def listed(path: Path):
        opened.append(path)
        return open_image(path)

    monkeypatch.setattr(cache, "open_image", listed)
    return opened


def pixels_of(source: Path | Table, display: Display | None = None, size: int = 16) -> np.ndarray:
    """The pixels of a data set, with a cache beside it."""
    table = source if isinstance(source, Table) else open_table(source)
    display = display or Display(quiet=True)
    return decode(table, size, display, folder=cache_of(table))[1][:]


def cache_of(table: Table) -> Path:
    return Path(table.source).parent / "cache"


def cache_file(folder: Path) -> Path:
    (file,) = (folder.parent / "cache").glob("*.pixels")
    return file


def expected(folder: Path) -> np.ndarray:
    table = open_table(folder)
    return np.stack([resize(table.read(i), 16) for i in range(len(table))])


def test_an_image_is_decoded_once(folder: Path, reads: list[Path]) -> None:
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert len(reads) == 6
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert len(reads) == 6


def test_only_added_and_changed_images_are_decoded(folder: Path, reads: list[Path]) -> None:
    pixels_of(folder)
    reads.clear()
    Image.new("RGB", (31, 20), "red").save(folder / "a" / "0.png")
    Image.new("RGB", (31, 20), "blue").save(folder / "b" / "new.png")
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert sorted(path.name for path in reads) == ["0.png", "new.png"]


def test_subsets_and_manifests_of_a_folder_share_its_pixels(
    folder: Path, reads: list[Path]
) -> None:
    table = open_table(folder)
    pixels_of(table.take(np.array([4, 1])))
    assert len(reads) == 2
    manifest = folder.parent / "task.csv"
    manifest.write_text("image,label\na/1.png,x\nb/1.png,y\nb/2.png,y\n")
    found = pixels_of(open_table(manifest, root=folder))
    np.testing.assert_array_equal(found, expected(folder)[[1, 4, 5]])
    assert len(reads) == 3
    cache_file(folder)  # there is one


def test_images_outside_the_root_share_the_folder_that_has_them_all(
    folder: Path, reads: list[Path]
) -> None:
    for name in ("one", "two"):  # as the estimator writes its manifests
        place = folder.parent / name
        place.mkdir()
        rows = "".join(f"{folder}/{c}/{i}.png,{c}\n" for c in "ab" for i in range(3))
        (place / "images.csv").write_text(f"image,label\n{rows}")
        table = open_table(place / "images.csv", allow_outside=True)
        decode(table, 16, Display(quiet=True), folder=folder.parent / "cache")
    assert len(reads) == 6
    cache_file(folder)


def test_an_interrupted_decode_continues(
    folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = cache.open_image

    def interrupted(path: Path):
        if len(reads) == 4:
            raise KeyboardInterrupt
        return counting(path)

    with monkeypatch.context() as patch:
        patch.setattr(cache, "open_image", interrupted)
        with pytest.raises(KeyboardInterrupt):
            pixels_of(folder)
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert len(reads) == 6


def test_a_record_that_was_written_half_is_replaced(folder: Path, reads: list[Path]) -> None:
    pixels_of(folder)
    file = cache_file(folder)
    file.write_bytes(file.read_bytes()[: int(3.5 * RECORD)])
    reads.clear()
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert len(reads) == 3
    assert file.stat().st_size == 6 * RECORD


DECODE = """
import sys
from pathlib import Path
from lmd.base.progress import Display
from lmd.data.cache import decode
from lmd.data.sources import open_table
images = decode(open_table(sys.argv[1]), 16, Display(quiet=True), folder=Path(sys.argv[2]))[1]
print(images.checksums.tolist())
"""


def test_images_are_decoded_where_files_cannot_be_locked(folder: Path, tmp_path: Path) -> None:
    # An import of fcntl fails, and a file has no positioned reads.
    windows = "import os, sys\nsys.modules['fcntl'] = None\ndel os.pread\n"
    words = [sys.executable, "-c", windows + DECODE, str(folder), str(tmp_path / "cache")]
    first, second = (
        subprocess.run(words, check=False, capture_output=True, text=True) for _ in range(2)
    )
    assert first.stderr == second.stderr == ""
    assert first.stdout == second.stdout
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))


def test_several_processes_decode_an_image_once(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "data", count=40)
    words = [sys.executable, "-c", DECODE, str(folder), str(tmp_path / "cache")]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = {process.communicate()[0] for process in running}
    assert len(said) == 1
    assert [process.returncode for process in running] == [0, 0, 0]
    assert cache_file(folder).stat().st_size == 80 * RECORD


def test_it_says_that_it_waits_for_another_process(folder: Path) -> None:
    pixels_of(open_table(folder).take(np.arange(2)))
    file, display = cache.PixelFile(cache_file(folder), 16), Listening()
    with file, file.adding(Display(quiet=True)):
        waiting = threading.Thread(target=pixels_of, args=(folder, display))
        waiting.start()
        while not display.said:
            time.sleep(0.01)
    waiting.join()
    assert display.said == ["  another process decodes images of this data: waiting for it"]
    assert cache_file(folder).stat().st_size == 6 * RECORD


def test_a_truncated_image_is_named(folder: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    with pytest.raises(
        LmdError, match=r"1 of 6 images cannot be read(.|\n)*1\.png(.|\n)*--skip-bad"
    ):
        pixels_of(folder)


def test_bad_images_are_skipped_when_asked(folder: Path, tmp_path: Path) -> None:
    bad = folder / "b" / "1.png"
    bad.write_bytes(bad.read_bytes()[:100])
    for _ in range(2):  # decoded, then from the cache
        table, images, skipped = decode(
            open_table(folder), 16, Display(quiet=True), folder=tmp_path / "cache", skip_bad=True
        )
        assert len(table) == len(images) == 5
        np.testing.assert_array_equal(images.labels, table.labels)
        np.testing.assert_array_equal(images[:][4], resize(table.read(4), 16))
        assert len(skipped) == 1
        assert "1.png" in skipped[0]


def test_a_failure_is_not_remembered(folder: Path, tmp_path: Path, monkeypatch) -> None:
    def failing(path: Path):
        if path.name == "2.png":
            raise LmdError(f"{path.parent.name}: permission denied")
        return open_image(path)

    options = {"folder": tmp_path / "cache"}
    with monkeypatch.context() as patch:
        patch.setattr(cache, "open_image", failing)
        with pytest.raises(LmdError, match="a: permission denied\n  b: permission denied"):
            decode(open_table(folder), 16, Display(quiet=True), **options)
        table, _, skipped = decode(
            open_table(folder), 16, Display(quiet=True), **options, skip_bad=True
        )
        assert (len(table), len(skipped)) == (4, 2)
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))


def test_a_cache_that_cannot_be_written_says_so(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LmdError, match="LMD_CACHE"):
        decode(open_table(folder), 16, Display(quiet=True), folder=tmp_path / "file" / "cache")


def test_files_are_decoded_at_full_size_and_resized_by_the_rule(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        pixels = rng.integers(0, 256, (120, 160, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "data" / name / "0.jpg")
    for pixels, name in zip(pixels_of(tmp_path / "data"), ("a", "b"), strict=True):
        with Image.open(tmp_path / "data" / name / "0.jpg") as image:
            np.testing.assert_array_equal(pixels, resize(np.asarray(image), 16))


def test_pixels_of_another_rule_or_size_are_not_used(
    folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels_of(folder)
    pixels_of(folder, size=12)
    assert len(reads) == 12
    monkeypatch.setattr(cache, "RULE", "v3")
    pixels_of(folder)
    assert len(reads) == 18


def damaged(data: bytes, how: str) -> bytes:
    flipped = bytearray(data)
    flipped[1000] ^= 1
    return {
        "cut": data[: len(data) // 2],
        "empty": b"",
        "zeroed": bytes(len(data)),
        "half zeroed": bytes(3000) + data[3000:],
        "shifted": data[16 * 16 * 3 :],
        "doubled": data + data,
        "flipped": bytes(flipped),
        "other checksum": data[:-4] + bytes(4),
        "other key": data[:-20] + bytes(16) + data[-4:],
    }[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [("cut", 0), ("empty", 0), ("zeroed", 0), ("half zeroed", 1), ("shifted", 0), ("doubled", 0),
     ("flipped", 1), ("other checksum", 1), ("other key", 0)],
)  # fmt: skip
def test_a_damaged_cache_never_gives_other_pixels(folder: Path, how: str, said: int) -> None:
    pixels_of(folder)
    file, display = cache_file(folder), Listening()
    file.write_bytes(damaged(file.read_bytes(), how))
    for _ in range(2):
        np.testing.assert_array_equal(pixels_of(folder, display), expected(folder))
    assert len(display.said) == said  # the second time it is whole
    assert all(f"{file} is damaged (the checksums of 1 image differ)" in d for d in display.said)


def test_only_damaged_images_are_decoded_again(folder: Path, reads: list[Path]) -> None:
    pixels_of(folder)
    file = cache_file(folder)
    file.write_bytes(damaged(file.read_bytes(), "flipped"))
    reads.clear()
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))
    assert len(reads) == 1


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))" + DECODE.replace(
    "images = ", "from lmd.base.errors import LmdError\ntry:\n    images = "
).replace("print(", "except LmdError as error:\n    print(error)\nelse:\n    print(")


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
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))  # what is there is kept


def test_a_full_disk_is_noticed_before_an_image_is_decoded(
    folder: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(folder)._replace(free=6 * RECORD - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(LmdError, match="No space left on device"):
        pixels_of(folder)
    assert reads == []


def test_files_used_least_recently_are_evicted_but_none_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def used(name: str, time: int) -> tuple[Path, Part]:
        before = {*(tmp_path / "cache").glob("*.pixels")}
        folder = make_images(tmp_path / name)
        _, images, _ = decode(
            open_table(folder), 16, Display(quiet=True), folder=tmp_path / "cache"
        )
        (file,) = {*(tmp_path / "cache").glob("*.pixels")} - before
        os.utime(file, (time, time))
        return file, images

    monkeypatch.setenv("LMD_CACHE_SIZE", str(2.5 * 6 * RECORD / 1e9))
    mapped, images = used("mapped", 1)
    oldest = used("oldest", 2)[0]
    newest = used("newest", 3)[0]
    assert [file.exists() for file in (mapped, oldest, newest)] == [True, False, True]
    np.testing.assert_array_equal(images[:], expected(tmp_path / "mapped"))
    del images
    last = used("last", 4)[0]
    assert [file.exists() for file in (mapped, newest, last)] == [False, True, True]
    assert len([*(tmp_path / "cache").glob("*.lock")]) == 2
    monkeypatch.setenv("LMD_CACHE_SIZE", "much")
    with pytest.raises(LmdError, match="LMD_CACHE_SIZE is 'much'; expected a number of gigabytes"):
        used("another", 5)


def test_a_complete_cache_may_be_read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels_of(folder)
    opened = cache.FileIO

    def read_only(path: str, mode: str):
        if mode != "r":
            raise PermissionError
        return opened(path, mode)

    monkeypatch.setattr(cache, "FileIO", read_only)
    np.testing.assert_array_equal(pixels_of(folder), expected(folder))


def test_a_part_is_sent_to_another_process_as_a_name(folder: Path) -> None:
    table = open_table(folder)
    _, images, _ = decode(table, 16, Display(quiet=True), folder=cache_of(table))
    sent = pickle.dumps(images.take(np.array([4, 2])))
    assert len(sent) < 2 * 16 * 16 * 3
    received = pickle.loads(sent)
    np.testing.assert_array_equal(received[:], expected(folder)[[4, 2]])
    assert isinstance(received.pixels, np.memmap)
    array = Part(expected(folder), np.arange(len(table)), table.labels)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array))[:], array[:])


def test_no_copy_of_the_pixels_is_made(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "data", count=100)
    table, size = open_table(folder), 96
    decode(table, size, Display(quiet=True), folder=tmp_path / "cache")
    tracemalloc.start()
    _, images, _ = decode(table, size, Display(quiet=True), folder=tmp_path / "cache")
    part = images.take(np.arange(0, 200, 2))
    for _ in evaluation_batches(part, 8):
        pass
    loader = training_batches(part, [None], views=("weak",), batch_size=8, seed=0, workers=0)
    for _ in loader:
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    decoded = len(part) * size * size * 3
    assert peak < decoded / 2

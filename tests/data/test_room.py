"""Huge images wait for one another; small ones never wait; and no copy is larger than needed."""

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lmd.data import images
from lmd.data.images import ROOM, SMALL, Room, open_image, read_image


def test_at_most_so_many_pixels_are_decoded_at_once() -> None:
    room, most, now, lock = Room(2 * SMALL), 0, 0, threading.Lock()

    def decode(size: int) -> None:
        nonlocal most, now
        with room.hold(size):
            with lock:
                now += size
                most = max(most, now)
            time.sleep(0.005)
            with lock:
                now -= size

    threads = [threading.Thread(target=decode, args=(SMALL,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 2 * SMALL
    assert room.taken == 0


def test_an_image_larger_than_the_room_has_it_alone_and_small_ones_pass() -> None:
    room = Room(SMALL)
    with room.hold(100 * SMALL), room.hold(SMALL - 1):  # the second does not wait
        assert room.taken == SMALL


def test_a_large_image_holds_the_room_as_long_as_it_is_used(tmp_path: Path) -> None:
    Image.new("L", (2048, 2048)).save(tmp_path / "large.png")
    Image.new("L", (30, 20)).save(tmp_path / "small.png")
    with open_image(tmp_path / "large.png") as image:
        assert image.pixels.shape == (2048, 2048, 3)
        assert ROOM.taken == SMALL
        with open_image(tmp_path / "small.png"):
            assert ROOM.taken == SMALL
    assert ROOM.taken == 0


@pytest.mark.parametrize("kind", ["rgba", "palette", "grey 16", "float", "colour 16"])
def test_pixels_do_not_depend_on_the_size_of_the_blocks(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, path = np.random.default_rng(0), tmp_path / "a.png"
    if kind == "rgba":
        Image.fromarray(rng.integers(0, 256, (37, 23, 4), np.uint8)).save(path)
    elif kind == "palette":
        image = Image.fromarray(rng.integers(0, 256, (37, 23), np.uint8), "P")
        image.putpalette(rng.integers(0, 256, 768, np.uint8).tolist())
        image.save(path, transparency=7)
    elif kind == "grey 16":
        Image.fromarray(rng.integers(0, 65536, (37, 23), np.uint16)).save(path)
    elif kind == "float":
        path = tmp_path / "a.tif"
        Image.fromarray(rng.normal(0, 50, (37, 23)).astype(np.float32)).save(path)
    else:
        import cv2

        cv2.imwrite(str(path), rng.integers(0, 65536, (37, 23, 3), np.uint16))
    whole = read_image(path)
    monkeypatch.setattr(images, "BLOCK", 50)
    np.testing.assert_array_equal(read_image(path), whole)


PEAK = """
import resource, sys
from lmd.data.images import read_image, resize
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
resize(read_image(sys.argv[1]), 16)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["I;16", "RGBA"])
def test_the_memory_for_a_large_image_is_a_few_times_its_pixels(tmp_path: Path, kind: str) -> None:
    side = 3000
    if kind == "RGBA":
        Image.new("RGBA", (side, side), (9, 9, 9, 99)).save(tmp_path / "a.png", compress_level=1)
    else:
        Image.fromarray(np.full((side, side), 999, np.uint16)).save(tmp_path / "a.png")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "a.png")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) * 1024 < 12 * side * side + 40e6

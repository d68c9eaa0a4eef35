"""One rule of resizing: exact integers, area means when shrinking, linear when enlarging."""

import tracemalloc

import cv2
import numpy as np
import pytest

from lmd.data import images
from lmd.data.images import BITS, resize, weights


def noise(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(size: int) -> np.ndarray:
    return cv2.resize(noise(5, 5), (size, size), interpolation=cv2.INTER_LINEAR).astype(np.uint8)


def full_weights(length: int, size: int) -> np.ndarray:
    return weights(length, size, (0, size), (0, length))


def by_definition(image: np.ndarray, size: int) -> np.ndarray:
    """Both sums in integers, and one rounding."""
    down, across = (full_weights(length, size) for length in image.shape[:2])
    sums = np.einsum("yh,xw,hwc->yxc", down, across, image.astype(np.int64), optimize=True)
    return (sums + (1 << (2 * BITS - 1)) >> 2 * BITS).astype(np.uint8)


SHAPES = [(45, 60, 16), (60, 45, 7), (16, 16, 15), (3, 2, 9), (1, 1, 4), (5, 200, 12), (200, 5, 12)]


@pytest.mark.parametrize(("height", "width", "size"), SHAPES)
def test_floating_point_gives_the_integers_of_the_definition(height, width, size):
    image = noise(height, width)
    np.testing.assert_array_equal(resize(image, size), by_definition(image, size))
    white = np.full_like(image, 255)  # the largest sums
    np.testing.assert_array_equal(resize(white, size), np.full((size, size, 3), 255))


def test_large_images_are_computed_in_single_rows_with_the_same_result(monkeypatch):
    image = noise(90, 50)
    expected = resize(image, 11)
    monkeypatch.setattr(images, "LONG", 40)
    monkeypatch.setattr(images, "PRODUCT", 40)
    np.testing.assert_array_equal(resize(image, 11), expected)


@pytest.mark.parametrize(("length", "size"), [(600, 64), (10, 64), (64, 64), (200_003, 3), (1, 5)])
def test_weights_are_the_overlap_of_window_and_pixel(length, size):
    found = full_weights(length, size) / 2**BITS
    assert (found >= 0).all()
    np.testing.assert_array_equal(found.sum(1), 1)
    wide = max(length / size, 1)
    middle = (np.arange(size) + 0.5) * length / size
    pixels = np.arange(length)
    over = np.minimum(pixels + 1, middle[:, None] + wide / 2)
    overlap = np.clip(over - np.maximum(pixels, middle[:, None] - wide / 2), 0, None) / wide
    overlap[:, 0] += np.clip(wide / 2 - middle, 0, None) / wide  # beyond the edge
    overlap[:, -1] += np.clip(middle + wide / 2 - length, 0, None) / wide
    np.testing.assert_allclose(found, overlap, atol=1.01 / 2**BITS)


def test_shrinking_is_the_mean_over_areas():
    board = np.zeros((64, 64, 3), np.uint8)
    board[::2, ::2] = board[1::2, 1::2] = 200
    assert set(resize(board, 16).ravel().tolist()) == {100}
    image = noise(450, 600)
    area = cv2.resize(image, (64, 64), interpolation=cv2.INTER_AREA).astype(int)
    assert np.abs(resize(image, 64) - area).max() <= 1  # OpenCV rounds differently


def test_enlarging_is_linear():
    ramp = np.repeat(np.array([[[0], [100]], [[0], [100]]], np.uint8), 3, axis=2)
    np.testing.assert_array_equal(resize(ramp, 4)[0, :, 0], [0, 25, 75, 100])
    image = smooth(32)
    linear = cv2.resize(image, (128, 128), interpolation=cv2.INTER_LINEAR).astype(int)
    assert np.abs(resize(image, 128) - linear).max() <= 1


def test_the_aspect_ratio_is_lost_and_the_right_size_is_kept():
    image = smooth(150)
    wide = cv2.resize(image, (200, 150), interpolation=cv2.INTER_LINEAR)
    small = resize(wide, 32)
    assert small.shape == (32, 32, 3)
    assert small.dtype == np.uint8
    assert np.abs(small - resize(image, 32).astype(int)).mean() < 2
    np.testing.assert_array_equal(resize(image, 150), image)


@pytest.mark.parametrize("shape", [(2000, 3000), (2, 3_000_000), (3_000_000, 2)])
def test_a_large_image_needs_less_memory_than_it_has_itself(shape):
    image = np.zeros((*shape, 3), np.uint8)
    tracemalloc.start()
    resize(image, 16)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.9 * image.nbytes

import cv2
import numpy as np
import pytest

from lmd.data.synthetic import LOOKS, render, synthetic_table


@pytest.fixture(scope="module")
def table():
    return synthetic_table()


@pytest.fixture(scope="module")
def pixels():
    """Twenty images of each class ``(8, 20, 32, 32, 3)``."""
    return np.stack([[render(0, c, i, 32) for i in range(20)] for c in range(8)])


def test_training_counts_follow_the_exponential_tail(table):
    assert table.part("train").counts().tolist() == [500, 259, 134, 69, 36, 19, 10, 5]
    assert table.part("validation").counts().tolist() == [20] * 8
    assert table.part("test").counts().tolist() == [60] * 8
    assert len(table) == 1032 + 160 + 480


def test_the_table_says_that_it_is_synthetic(table):
    assert table.synthetic
    assert table.kind == "synthetic"
    assert len(set(table.classes)) == 8
    assert all(name.startswith("syn-") for name in table.classes)
    assert table.ids[0] == "synthetic-0000-00000"
    assert "synthetic-0003-00017" in table.ids
    assert len(set(table.ids.tolist())) == len(table)


def test_images_are_square_rgb_of_the_size_asked_for():
    for size in (16, 32, 65):
        image = render(0, 0, 3, size)
        assert image.shape == (size, size, 3)
        assert image.dtype == np.uint8
        assert image.flags.c_contiguous


def test_an_image_depends_on_seed_class_and_index_alone(table):
    forwards = [table.read(i) for i in (5, 700, 1600)]
    backwards = [table.read(i) for i in (1600, 700, 5)][::-1]
    for a, b in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(table.read(5), render(0, 0, 5, 32))
    last = len(table) - 1
    index = int(table.ids[last].split("-")[-1])
    np.testing.assert_array_equal(table.read(last), render(0, 7, index, 32))


def test_seeds_give_different_images(table):
    assert not np.array_equal(table.read(0), render(1, 0, 0, 32))


def test_the_source_is_what_it_was(table):
    assert table.source == "synthetic(seed=0,size=32,head_size=500,factor=100)"


def test_no_two_images_are_identical(pixels):
    assert len({image.tobytes() for image in pixels.reshape(-1, 32, 32, 3)}) == 8 * 20


def test_two_sizes_show_the_same_lesion():
    for label in range(8):
        small, large = render(0, label, 4, 32), render(0, label, 4, 96)
        shrunk = cv2.resize(large, (32, 32), interpolation=cv2.INTER_AREA)
        assert np.abs(small.astype(float) - shrunk).mean() < 8


def test_the_mean_colours_of_the_classes_are_what_they_were(pixels):
    """Not byte for byte: other versions of the libraries may round otherwise."""
    expected = [
        [180.2, 139.7, 120.2],
        [179.4, 139.1, 119.5],
        [187.6, 137.9, 121.6],
        [181.8, 141.4, 122.5],
        [179.2, 141.2, 125.4],
        [187.7, 142.1, 127.9],
        [167.6, 134.3, 117.5],
        [178.3, 146.9, 134.0],
    ]
    np.testing.assert_allclose(pixels.mean(axis=(1, 2, 3)), expected, atol=0.5)
    assert pixels.std() == pytest.approx(39.5, abs=0.3)


def test_pixels_are_skin_like_and_well_exposed(pixels):
    corners = pixels[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].reshape(-1, 3).mean(axis=0)
    assert corners[0] > corners[1] > corners[2] > 80  # red over green over blue
    assert 110 < pixels.mean() < 190
    assert np.mean(pixels == 255) < 0.02
    assert np.mean(pixels == 0) < 0.01


def test_lesions_are_darker_than_the_skin_around_them(pixels):
    grey = pixels.mean(axis=-1)
    centre = grey[:, :, 13:19, 13:19].mean(axis=(2, 3))
    edge = np.concatenate([grey[:, :, :2].mean(axis=3), grey[:, :, -2:].mean(axis=3)], axis=2)
    assert np.mean(centre < edge.mean(axis=2)) > 0.9


def test_classes_differ_in_colour_on_average_and_overlap_in_single_images(pixels):
    centre = pixels[:, :, 11:21, 11:21].astype(float).mean(axis=(2, 3))
    redness = centre[..., 0] - centre[..., 1]
    blueness = centre[..., 2] - centre[..., 1]
    names = [look.name for look in LOOKS]
    red, blue = names.index("syn-round-red"), names.index("syn-irregular-blue")
    brown, dark = names.index("syn-round-brown"), names.index("syn-round-dark")
    assert redness.mean(axis=1).argmax() in (red, names.index("syn-lobed-red"))
    assert blueness.mean(axis=1).argmax() == blue
    assert centre[dark].mean() < centre[brown].mean() - 10
    assert centre[dark].mean(axis=1).max() > centre[brown].mean(axis=1).min()


def test_classes_differ_in_texture_on_average(pixels):
    """Local contrast: spotted lobed-brown exceeds homogeneous round-red."""
    grey = pixels[:, :, 10:22, 10:22].astype(float).mean(axis=-1)
    local = np.abs(np.diff(grey, axis=-1)).mean(axis=(2, 3))
    names = [look.name for look in LOOKS]
    spotted, plain = names.index("syn-lobed-brown"), names.index("syn-round-red")
    assert np.median(local[spotted]) > 1.5 * np.median(local[plain])

import cv2
import numpy as np
import pytest
from toys import SHARED

from lmd.data import loaders as views
from lmd.data.images import resize
from lmd.data.loaders import VIEWS

HAM = SHARED / "data" / "ham10000" / "images"


def smooth_image(size, seed=0):
    """Smooth colours between 40 and 215, so that no small shift of values clips."""
    coarse = np.random.default_rng(seed).uniform(40, 215, (6, 6, 3)).astype(np.float32)
    return cv2.resize(coarse, (size, size), interpolation=cv2.INTER_LINEAR).astype(np.uint8)


def noise_image(size, seed=0):
    return np.random.default_rng(seed).integers(1, 256, (size, size, 3), dtype=np.uint8)


def distance(a, b):
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize("size", [16, 17, 32, 64, 224, 512])
@pytest.mark.parametrize("name", sorted(VIEWS))
def test_a_view_keeps_shape_and_type_and_leaves_its_input_alone(name, size):
    image = noise_image(size)
    before = image.copy()
    image.flags.writeable = False  # what a memory map gives
    for seed in range(20):
        view = VIEWS[name](image, np.random.default_rng(seed))
        assert view.shape == (size, size, 3)
        assert view.dtype == np.uint8
        assert view.flags.c_contiguous
    np.testing.assert_array_equal(image, before)


def test_a_view_of_a_strided_image_is_contiguous():
    image = noise_image(32)[:, ::-1]
    for name, view in VIEWS.items():
        assert view(image, np.random.default_rng(0)).flags.c_contiguous, name


@pytest.mark.parametrize("name", ["weak", "strong"])
def test_the_generator_decides_everything(name):
    image = smooth_image(48)
    one = [VIEWS[name](image, np.random.default_rng(seed)) for seed in range(30)]
    two = [VIEWS[name](image, np.random.default_rng(seed)) for seed in range(30)]
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)
    distinct = len({view.tobytes() for view in one})
    assert distinct == 4 if name == "weak" else distinct >= 28


def test_the_evaluation_view_is_the_image_and_draws_nothing():
    image, rng = noise_image(40), np.random.default_rng(3)
    np.testing.assert_array_equal(VIEWS["eval"](image, rng), image)
    assert rng.random() == np.random.default_rng(3).random()


def test_weak_views_are_the_four_flips_each_a_quarter_of_the_time():
    image = noise_image(16)
    flips = [image, image[:, ::-1], image[::-1], image[::-1, ::-1]]
    rng = np.random.default_rng(0)
    seen = np.zeros(4)
    for _ in range(2000):
        view = VIEWS["weak"](image, rng)
        same = [np.array_equal(view, flipped) for flipped in flips]
        assert sum(same) == 1
        seen += same
    assert np.all(np.abs(seen / 2000 - 0.25) < 0.04)


ELEMENTS = {
    "flip": 0.75,
    "motion_blur": 0.5 / 3,
    "medianBlur": 0.5 / 3,
    "blur": 0.5 / 3,
    "shift_scale_rotate": 0.5,
    "grid_distortion": 0.7 / 3,
    "elastic_distortion": 0.7 / 3,
    "optical_distortion": 0.7 / 3,
    "rgb_shift": 0.5,
    "brightness_contrast": 0.5,
    "grid_dropout": 0.2,
}


def test_strong_views_apply_each_element_as_often_as_the_specification_says(monkeypatch):
    fired = dict.fromkeys(ELEMENTS, 0)

    def counted(name, transform):
        def call(image, *arguments):
            result = transform(image, *arguments)
            fired[name] += not np.array_equal(result, image)
            return result

        return call

    for name in ELEMENTS:
        module = views if hasattr(views, name) else cv2
        monkeypatch.setattr(module, name, counted(name, getattr(module, name)))
    image, rng, draws = noise_image(32), np.random.default_rng(1), 3000
    for _ in range(draws):
        views.strong(image, rng)
    for name, expected in ELEMENTS.items():
        spread = 4 * np.sqrt(expected * (1 - expected) / draws)
        assert abs(fired[name] / draws - expected) < spread, name


def test_blurs_keep_the_mean_and_lower_the_contrast():
    image = noise_image(64)
    for blurred in (
        views.motion_blur(image, 5, 0.7),
        cv2.medianBlur(image, 5),
        cv2.blur(image, (5, 5)),
    ):
        assert abs(blurred.mean() - image.mean()) < 3
        assert blurred.std() < 0.6 * image.std()


def test_motion_blur_averages_along_its_line_only():
    image = np.zeros((21, 21, 3), np.uint8)
    image[10, 10] = 210
    level = views.motion_blur(image, 7, 0.0)
    assert level[10, 7:14, 0].tolist() == [30] * 7
    assert level.sum() == 3 * 210
    upright = views.motion_blur(image, 7, np.pi / 2)
    np.testing.assert_array_equal(upright, level.transpose(1, 0, 2))


@pytest.mark.parametrize("size", [16, 32, 64, 224])
def test_random_blur_never_wipes_the_image_out(size):
    image, rng = smooth_image(size), np.random.default_rng(0)
    blurred = [views.random_blur(image, rng) for _ in range(50)]
    assert all(distance(image, view) < 6 for view in blurred)
    noise = noise_image(size)
    assert all(views.random_blur(noise, rng).std() < noise.std() for _ in range(50))


def test_rotation_shift_and_scale_do_what_they_say():
    image = noise_image(33)
    np.testing.assert_array_equal(views.shift_scale_rotate(image, (0, 0), 1, 0), image)
    turned = views.shift_scale_rotate(image, (0, 0), 1, 90)
    np.testing.assert_array_equal(turned, np.rot90(image))
    moved = views.shift_scale_rotate(image, (2 / 33, 1 / 33), 1, 0)
    np.testing.assert_array_equal(moved[1:, 2:], image[:-1, :-2])
    disc = np.zeros((65, 65, 3), np.uint8)
    cv2.circle(disc, (32, 32), 16, (255, 255, 255), -1)
    grown = views.shift_scale_rotate(disc, (0, 0), 1.1, 0)
    assert grown.mean() / disc.mean() == pytest.approx(1.21, abs=0.04)


def test_strong_rotation_stays_within_45_degrees_and_scale_within_a_tenth(monkeypatch):
    seen = []
    monkeypatch.setattr(
        views, "shift_scale_rotate", lambda image, *given: seen.append(given) or image
    )
    image, rng = noise_image(16), np.random.default_rng(0)
    for _ in range(1000):
        views.strong(image, rng)
    angles = np.array([angle for _, _, angle in seen])
    scales = np.array([scale for _, scale, _ in seen])
    shifts = np.array([shift for shift, _, _ in seen])
    assert 43 < np.abs(angles).max() <= 45
    assert 0.9 <= scales.min() < 0.91
    assert 1.09 < scales.max() <= 1.1
    assert 0.06 < np.abs(shifts).max() <= 0.0625


def test_distortions_without_strength_are_the_image():
    image = noise_image(40)
    even = np.ones(5, np.float32)
    np.testing.assert_array_equal(views.grid_distortion(image, even, even), image)
    still = np.zeros((6, 6, 2), np.float32)
    np.testing.assert_array_equal(views.elastic_distortion(image, still), image)
    np.testing.assert_array_equal(views.optical_distortion(image, 0.0, (0.0, 0.0)), image)


def test_grid_distortion_moves_what_lies_between_and_keeps_the_ends():
    ramp = np.repeat(np.arange(0, 201, 2, dtype=np.uint8)[None, :, None], 101, axis=0)
    image = np.ascontiguousarray(np.repeat(ramp, 3, axis=2))
    stretch = np.array([1.3, 1.0, 1.0, 1.0, 0.7], np.float32)
    view = views.grid_distortion(image, stretch, np.ones(5, np.float32))
    assert view[0, 0, 0] == 0
    assert view[0, -1, 0] == 200
    # One fifth of the way across, 1.3 of 5 parts have been read.
    assert view[50, 20, 0] == pytest.approx(200 * 1.3 / 5, abs=1)
    assert np.all(np.diff(view[0, :, 0].astype(int)) >= 0)


def test_optical_distortion_leaves_the_centre_and_shrinks_or_grows_the_rest():
    disc = np.zeros((101, 101, 3), np.uint8)
    cv2.circle(disc, (50, 50), 35, (255, 255, 255), -1)
    barrel = views.optical_distortion(disc, 0.3, (0.0, 0.0))
    pincushion = views.optical_distortion(disc, -0.3, (0.0, 0.0))
    assert barrel[50, 50, 0] == pincushion[50, 50, 0] == 255
    assert barrel.mean() < 0.97 * disc.mean()
    assert pincushion.mean() > 1.03 * disc.mean()


def test_distortions_are_alike_at_32_and_224_pixels():
    large, small = smooth_image(224), resize(smooth_image(224), 32)
    moved, differ = [], []
    for seed in range(20):
        one = views.random_distortion(large, np.random.default_rng(seed))
        two = views.random_distortion(small, np.random.default_rng(seed))
        moved.append(distance(large, one))
        differ.append(distance(resize(one, 32), two))
    assert np.mean(moved) > 2
    assert max(differ) < 0.5 * np.mean(moved)


def test_rgb_shift_is_exact_and_clips():
    image = smooth_image(32)
    shifted = views.rgb_shift(image, (15, -15, 4))
    np.testing.assert_array_equal(shifted.astype(int) - image, np.full(image.shape, (15, -15, 4)))
    assert views.rgb_shift(np.full((16, 16, 3), 250, np.uint8), (15, 15, 15)).min() == 255
    assert views.rgb_shift(np.full((16, 16, 3), 5, np.uint8), (-15, -15, -15)).max() == 0


def test_brightness_and_contrast_follow_their_formula_and_clip():
    image = noise_image(32)
    expected = np.clip(np.rint(1.2 * image.astype(np.float32) - 0.1 * 255), 0, 255)
    assert np.abs(views.brightness_contrast(image, -0.1, 0.2) - expected).max() <= 1
    np.testing.assert_array_equal(views.brightness_contrast(image, 0.0, 0.0), image)
    assert views.brightness_contrast(image, 0.2, 0.2).max() == 255
    middle = views.brightness_contrast(np.full((16, 16, 3), 100, np.uint8), 0.2, -0.2)
    assert set(middle.ravel().tolist()) == {131}


@pytest.mark.parametrize("size", [16, 32, 64, 224])
def test_grid_dropout_blackens_about_a_quarter_and_nothing_else(size):
    image = noise_image(size)
    for offset in [(0.0, 0.0), (0.5, 0.9)]:
        view = views.grid_dropout(image, offset)
        black = (view == 0).all(axis=2)
        assert 0.2 < black.mean() < 0.3
        np.testing.assert_array_equal(view[~black], image[~black])
    assert not np.array_equal(
        views.grid_dropout(image, (0.0, 0.0)), views.grid_dropout(image, (0.5, 0.9))
    )


@pytest.mark.skipif(not HAM.is_dir(), reason="the HAM10000 images are not on this machine")
def test_strong_views_of_real_lesions_stay_recognisable():
    """A strong view resembles its own image more than the views of others, on average."""
    paths = sorted(HAM.glob("*.jpg"))[::800][:12]
    images = [resize(cv2.imread(str(path))[..., ::-1], 64) for path in paths]
    rng = np.random.default_rng(0)

    def thumbnail(view):
        return np.sort(cv2.resize(view, (16, 16), interpolation=cv2.INTER_AREA).mean(axis=2), None)

    own, other = [], []
    for i, image in enumerate(images):
        for _ in range(10):
            view = thumbnail(VIEWS["strong"](image, rng))
            own.append(np.corrcoef(view, thumbnail(image))[0, 1])
            other.append(np.corrcoef(view, thumbnail(images[i - 1]))[0, 1])
            assert view.std() > 3  # neither black nor washed out
    assert np.mean(own) > np.mean(other)

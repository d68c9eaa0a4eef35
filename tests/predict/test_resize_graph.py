"""The ONNX graph resizes as prediction does, to the last bit."""

import numpy as np
import pytest

from lmd.data.images import resize

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

from lmd.export.export import resize_model  # noqa: E402


@pytest.mark.parametrize("size", [1, 7, 16, 64])
def test_the_pixels_are_the_same_to_the_last_bit(size):
    model = resize_model(size, ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    rng = np.random.default_rng(size)
    shapes = [(size, size), (size, size + 1), (45, 60), (150, 200), (1, 1), (3, 2), (1, 900)]
    for height, width in shapes:
        images = rng.integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        images[1] |= 0xF0  # near the largest sums
        (found,) = session.run(None, {"images": images})
        np.testing.assert_array_equal(found, [resize(image, size) for image in images])

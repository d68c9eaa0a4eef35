"""A model of a run folder that onnxruntime computes: the same answers, in less time on a CPU."""

import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lmd.base.errors import LmdError
from lmd.deploy.engines import TorchEngine
from lmd.deploy.export import Deployed, trace

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
CLOSE = 1e-4  # largest difference of a probability between both ways
Compute = Callable[[NDArray[np.uint8]], tuple[NDArray[np.float32], NDArray[np.float32]]]


class WithFeatures(Deployed):
    """From pixels ``(B, S, S, 3)`` of uint8 to probabilities ``(B, K)`` and features ``(B, C)``."""

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Probabilities and features."""
        features = self.model.features(self.normalised(images))
        logits: Tensor = self.model.classifier(features)
        return (logits / self.temperature).softmax(1), features


def onnx_is_there() -> bool:
    """Whether the packages of the extra ``onnx`` are installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


def cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def exported(engine: TorchEngine, threads: int = 0) -> Compute:
    """A function from ``pixels (B, S, S, 3)`` to probabilities and features, by onnxruntime.

    ``threads`` are those of one batch; 0 is one for each core. An ``LmdError`` if the model cannot
    be exported or answers differently. Nothing stays on disk.
    """
    if not onnx_is_there():
        raise LmdError("onnxruntime is not installed: run pip install 'lmd[onnx]'")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or cores()
    # Threads that wait would take the time of those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    outputs = ["probabilities", "features"]
    size = engine.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (3, size, size, 3), dtype=np.uint8)
    features = engine.features(pixels)
    wanted = engine.classified(features), features
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            trace(WithFeatures(engine.model, engine.spec).eval(), size, path, "images", outputs)
            session = onnxruntime.InferenceSession(
                path.read_bytes(), options, providers=["CPUExecutionProvider"]
            )
        found = session.run(outputs, {"images": pixels})
    except Exception as error:  # the exporter and onnxruntime raise many kinds
        raise LmdError(f"the model cannot be exported ({type(error).__name__})") from error
    scale = max(float(np.abs(wanted[1]).max()), 1.0)
    gaps = [float(np.abs(mine - theirs).max()) for mine, theirs in zip(wanted, found, strict=True)]
    if not (gaps[0] <= CLOSE and gaps[1] <= 1e-3 * scale):
        raise LmdError(f"the exported model answers differently (by {gaps[0]:.2g})")

    def compute(images: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        probabilities, values = session.run(outputs, {"images": images})
        return probabilities, values

    return compute

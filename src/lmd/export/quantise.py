"""Static quantisation of an exported model to int8, with images that show its ranges.

Weights are int8 for each output channel, activations uint8. Normalisation, the classifier and the
softmax stay float32: they are a small part of the work, and probabilities need their precision.
"""

import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError

BATCH = 16
# What surrounds convolutions; between these, values stay 8 bits wide.
KINDS = ("Conv", "Relu", "Clip", "Add", "MaxPool", "AveragePool", "GlobalAveragePool")


class _Images:
    """The calibration images, in batches, as onnxruntime asks for them."""

    def __init__(self, name: str, pixels: NDArray[np.uint8]) -> None:
        starts = range(0, len(pixels), BATCH)
        self._batches: Iterator[dict[str, NDArray[np.uint8]]] = iter(
            [{name: np.ascontiguousarray(pixels[i : i + BATCH])} for i in starts]
        )

    def get_next(self) -> dict[str, NDArray[np.uint8]] | None:
        """The next batch, or ``None``."""
        return next(self._batches, None)


def quantised(core: Any, pixels: NDArray[np.uint8]) -> Any:
    """The int8 form of a graph that takes resized images; ``pixels (N, S, S, 3)`` calibrate it."""
    try:
        from onnxruntime.quantization import (
            CalibrationDataReader,
            QuantFormat,
            QuantType,
            quantize_static,
        )
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise LmdError(
            "--quantise needs onnxruntime, which is not installed: run pip install 'lmd[onnx]'"
        ) from error
    import onnx

    CalibrationDataReader.register(_Images)
    with tempfile.TemporaryDirectory() as name, _quietly():
        folder = Path(name)
        onnx.save(core, folder / "float.onnx")
        # Folds BatchNorm into the convolutions, so that each has one range.
        quant_pre_process(folder / "float.onnx", folder / "ready.onnx", skip_symbolic_shape=True)
        ready = onnx.load(folder / "ready.onnx")
        quantize_static(
            folder / "ready.onnx",
            folder / "int8.onnx",
            _Images(core.graph.input[0].name, pixels),
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=list(KINDS),
            nodes_to_exclude=_after_features(ready),
            per_channel=True,
            # Seven bits: processors without VNNI would overflow with eight.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
        )
        return onnx.load(folder / "int8.onnx")


def _after_features(model: Any) -> list[str]:
    """Names of the nodes after the last convolutions and what directly follows these.

    They pool, classify, and make probabilities.
    """
    nodes = list(model.graph.node)
    maker = {name: i for i, node in enumerate(nodes) for name in node.output}
    sources = [{maker[name] for name in node.input if name in maker} for node in nodes]
    convolutions = {i for i, node in enumerate(nodes) if node.op_type == "Conv"}
    kept, waiting = set[int](), list(convolutions)
    while waiting:
        i = waiting.pop()
        if i not in kept:
            kept.add(i)
            waiting += sources[i]
    kept |= {
        i for i, of in enumerate(sources) if of & convolutions
    }  # activations, sums of branches
    return [node.name for i, node in enumerate(nodes) if i not in kept]


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress advice about options that are set already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)

"""Features of images through the encoder in an ONNX file."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.base.progress import Display
from lmd.data.features import FeatureTable
from lmd.data.loaders import evaluation_batches
from lmd.protocol import load_protocol
from lmd.runs.encode import BATCH, Asked, Source, prepared, reading

# Mean and standard deviation of ImageNet's images, with which nearly all encoders are trained.
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def open_onnx(path: Path, asked: Asked, display: Display) -> Source:
    """The output ``asked.output`` ``(N, C)``, or the only one, of images ``(N, 3, S, S)``.

    Images are RGB in 0..1, minus the mean and divided by the deviation of ImageNet's images.
    """
    session = _session(path)
    outputs = [output.name for output in session.get_outputs()]
    name = asked.output or outputs[0]
    if name not in outputs or (asked.output is None and len(outputs) > 1):
        raise LmdError(f"--output: {path} has the outputs {', '.join(outputs)}; choose one of them")
    (given, *more) = session.get_inputs()
    if more or len(given.shape) != 4 or given.type not in ("tensor(float)", "tensor(float16)"):
        raise LmdError(
            f"{path} must have one input of floats (N, 3, S, S); its first is {given.name}, "
            f"{given.type} {given.shape}"
        )
    settings = dict(asked.settings)
    if isinstance(given.shape[2], int):
        settings.setdefault("image_size", given.shape[2])
    protocol = load_protocol(asked.protocol, settings)
    data = prepared(asked, protocol, display)
    kind = np.float16 if given.type == "tensor(float16)" else np.float32
    batch = given.shape[0] if isinstance(given.shape[0], int) else BATCH
    found: list[NDArray[np.float32]] = []
    display.start("encoding images", len(data.pixels))
    for rows, images in evaluation_batches(data.pixels, batch):
        found.append(_encoded(session, given.name, name, images.numpy(), kind, path, batch))
        display.step(rows.stop, len(data.pixels))
    features = np.concatenate(found)
    if not np.isfinite(features).all():
        raise LmdError(f"{path} gives NaN or infinite features")
    note = (
        f"Features are the output {name} of {path.name}, of RGB images with ImageNet's mean and "
        "deviation."
    )
    table = FeatureTable(data.table, features)
    origin, how = str(asked.data), reading(asked, protocol)
    return Source(
        table,
        origin,
        path.name,
        "in the file",
        data.skipped,
        [note],
        request=how,
        tiers=data.tiers,
    )


def _session(path: Path) -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise LmdError(
            f"{path} needs onnxruntime, which is not installed: run pip install 'lmd[onnx]'"
        ) from error
    if not path.is_file():
        raise LmdError(f"{path} does not exist")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise LmdError(f"{path} is not a valid ONNX file ({error})") from error


def _encoded(
    session: Any,
    given: str,
    name: str,
    pixels: NDArray[np.uint8],
    kind: Any,
    path: Path,
    batch: int,
) -> NDArray[np.float32]:
    """Features of one batch ``(B, S, S, 3)``; a last batch is filled up to a fixed size."""
    images = (pixels.astype(np.float32) / 255 - MEAN) / STD
    images = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(kind)
    missing = max(batch - len(images), 0)
    if missing:
        images = np.concatenate([images, np.zeros((missing, *images.shape[1:]), kind)])
    try:
        found: NDArray[Any] = session.run([name], {given: images})[0]
    except Exception as error:  # onnxruntime's exceptions have no common base class
        size = images.shape[2]
        raise LmdError(f"{path} cannot encode images of {size} pixels ({error})") from error
    found = found[: len(pixels)]
    if found.ndim != 2:
        raise LmdError(f"--output: {name} must be (N, C); it is {found.shape}")
    return found.astype(np.float32)

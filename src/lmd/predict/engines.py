"""What computes a shipped model: torch or onnxruntime."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError, not_installed
from lmd.data.loaders import Normalise
from lmd.model import Model, channels_last
from lmd.model.files import ModelSpec, read_spec

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float32]
_EXPORT = "make it with `lmd export RUN --onnx FILE`"


class Engine:
    """What computes the model that ``spec`` describes.

    ``no_heat_maps`` says why an engine has none.
    """

    no_heat_maps = ""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.classes, self.image_size = spec.classes, spec.preprocessing.image_size

    def answer(self, pixels: Pixels) -> tuple[Floats, Floats | None]:
        """Return probabilities ``(B, K)`` and features ``(B, C)`` of resized ``(B, S, S, 3)``.

        Some engines have no features.
        """
        features = self.features(pixels)
        return self.classify(features), features

    def features(self, pixels: Pixels) -> Floats:
        """Return the features ``(B, C)`` of images already resized ``(B, S, S, 3)``."""
        raise NotImplementedError

    def classify(self, features: Floats) -> Floats:
        """Return the probabilities ``(B, K)`` of ``features (B, C)``."""
        raise NotImplementedError

    def probabilities(self, pixels: Pixels) -> Floats:
        """Return the probabilities ``(B, K)`` of images already resized ``(B, S, S, 3)``."""
        return self.answer(pixels)[0]


class TorchEngine(Engine):
    """The shipped model of a run folder, run by torch."""

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        super().__init__(spec)
        self.device = torch.device(device)
        self.model = channels_last(model.to(self.device)).eval()
        pre = spec.preprocessing
        self._normalise = Normalise.of(pre.mean, pre.std, self.device)

    def features(self, pixels: Pixels) -> Floats:
        """Return the features ``(B, C)`` of images already resized ``(B, S, S, 3)``."""
        with torch.inference_mode():
            features = self.model.features(self.normalised(pixels))
        array: Floats = features.float().cpu().numpy()
        return array

    def classify(self, features: Floats) -> Floats:
        """Return the probabilities ``(B, K)`` of ``features (B, C)``."""
        with torch.inference_mode():
            logits = self.model.classifier(torch.from_numpy(features).to(self.device))
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        array: Floats = probabilities.cpu().numpy()
        return array

    def normalised(self, pixels: Pixels) -> torch.Tensor:
        """Return the model's input ``(B, 3, S, S)``, on its device."""
        return self._normalise(torch.from_numpy(pixels))


def open_session(path: Path, threads: int = 0) -> Any:
    """Open an ONNX file on the CPU; with ``threads=0``, onnxruntime chooses their number."""
    try:
        import onnxruntime
    except ImportError as error:
        raise not_installed(str(path), "onnxruntime", "onnx") from error
    if not path.is_file():
        raise LmdError(f"model file {path} does not exist")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise LmdError(f"model file {path} is not a valid ONNX file ({error})") from error


class OnnxEngine(Engine):
    """A file of ``lmd.export.export.export_onnx``, run by onnxruntime; it has no features."""

    no_heat_maps = (
        "heat maps need the run folder, and this is an ONNX file: give the folder it was exported "
        "from"
    )

    def __init__(self, path: Path, threads: int = 0) -> None:
        self.path, self._session = path, open_session(path, threads)
        super().__init__(self._checked_spec(path))

    def answer(self, pixels: Pixels) -> tuple[Floats, Floats | None]:
        """Return probabilities ``(B, K)`` of images already resized, and no features."""
        try:
            probabilities: Floats = self._session.run(["probabilities"], {"images": pixels})[0]
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise LmdError(f"model file {self.path} cannot be run ({error}): {_EXPORT}") from error
        if probabilities.shape != (len(pixels), len(self.classes)):
            raise LmdError(
                f"model file {self.path} gives probabilities of shape {probabilities.shape} for "
                f"{len(pixels)} images and {len(self.classes)} classes: {_EXPORT}"
            )
        return probabilities, None

    def _checked_spec(self, path: Path) -> ModelSpec:
        """The description in the file's metadata; inputs and outputs must be those of lmd."""
        about = self._session.get_modelmeta().custom_metadata_map
        inputs = {i.name: i for i in self._session.get_inputs()}
        outputs = {o.name: o for o in self._session.get_outputs()}
        why = ""
        if not {"classes", "spec"} <= about.keys():
            why = "it has no classes in its metadata"
        elif list(inputs) != ["images"] or list(outputs) != ["probabilities"]:
            names = f"{', '.join(inputs) or 'nothing'} to {', '.join(outputs) or 'nothing'}"
            why = f"it goes from {names}, not from images to probabilities"
        elif inputs["images"].type != "tensor(uint8)" or len(inputs["images"].shape) != 4:
            why = f"its input is {inputs['images'].type} {inputs['images'].shape}"
        elif outputs["probabilities"].type != "tensor(float)":
            why = f"its output is {outputs['probabilities'].type}"
        if why:
            raise LmdError(f"model file {path} was not written by lmd ({why}): {_EXPORT}")
        where = f"the metadata of model file {path}"
        try:
            content = json.loads(about["spec"])
        except (ValueError, RecursionError) as error:
            raise LmdError(f"{where} is not valid JSON ({error}): {_EXPORT}") from None
        return read_spec(content, where)

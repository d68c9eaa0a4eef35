"""What computes a shipped model: torch or onnxruntime."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from lmd.base.errors import LmdError
from lmd.data.loaders import Normalise
from lmd.model import Model, ModelSpec, channels_last, read_spec

_EXPORT = "make it with `lmd export RUN --onnx FILE`"


class TorchEngine:
    """The shipped model of a run folder, run by torch."""

    def __init__(self, model: Model, spec: ModelSpec, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        self.model = channels_last(model.to(self.device)).eval()
        self.spec = spec
        pre = spec.preprocessing
        self.classes, self.image_size, self.rule = spec.classes, pre.image_size, pre.resize
        self._normalise = Normalise.of(pre.mean, pre.std, self.device)

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        return self.classified(self.features(pixels))

    def features(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, C)``."""
        with torch.inference_mode():
            features = self.model.features(self.normalised(pixels))
        found: NDArray[np.float32] = features.float().cpu().numpy()
        return found

    def classified(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities ``(B, K)`` of ``features (B, C)``."""
        with torch.inference_mode():
            logits = self.model.classifier(torch.from_numpy(features).to(self.device))
            probabilities = (logits.float() / self.spec.temperature).softmax(1)
        found: NDArray[np.float32] = probabilities.cpu().numpy()
        return found

    def normalised(self, pixels: NDArray[np.uint8]) -> torch.Tensor:
        """The model's input ``(B, 3, S, S)``, on its device."""
        return self._normalise(torch.from_numpy(pixels))


class OnnxEngine:
    """A file of ``lmd.predict.exported.export_onnx``, run by onnxruntime on the CPU.

    With ``threads=0``, onnxruntime chooses the number of threads.
    """

    def __init__(self, path: Path, threads: int = 0) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise LmdError(
                f"{path} needs onnxruntime, which is not installed: run pip install 'lmd[onnx]'"
            ) from error
        if not path.is_file():
            raise LmdError(f"model file {path} does not exist")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        providers = ["CPUExecutionProvider"]
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise LmdError(f"model file {path} is not a valid ONNX file ({error})") from error
        self.path, self.spec = path, self._checked_spec(path)
        self.classes, self.image_size = self.spec.classes, self.spec.preprocessing.image_size
        self.rule: str = self.spec.preprocessing.resize

    def probabilities(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Of images already resized ``(B, S, S, 3)``: ``(B, K)``."""
        try:
            found: NDArray[np.float32] = self._session.run(["probabilities"], {"images": pixels})[0]
        except Exception as error:  # onnxruntime's exceptions have no common base class
            raise LmdError(f"model file {self.path} cannot be run ({error}): {_EXPORT}") from error
        if found.shape != (len(pixels), len(self.classes)):
            raise LmdError(
                f"model file {self.path} gives probabilities of shape {found.shape} for "
                f"{len(pixels)} images and {len(self.classes)} classes: {_EXPORT}"
            )
        return found

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

"""Compute a model in an ONNX file by onnxruntime."""

import json
from pathlib import Path
from typing import Any

from lmd.base.errors import LmdError, not_installed
from lmd.model.files import ModelSpec, read_spec
from lmd.predict.engines import Engine, Floats, Pixels

_EXPORT = "make it with `lmd export RUN --onnx FILE`"


def open_session(path: Path) -> Any:
    """Open an ONNX file on the CPU; onnxruntime chooses the number of threads."""
    try:
        import onnxruntime
    except ImportError as error:
        raise not_installed(str(path), "onnxruntime", "onnx") from error
    if not path.is_file():
        raise LmdError(f"model file {path} does not exist")
    try:
        return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise LmdError(f"model file {path} is not a valid ONNX file ({error})") from error


class OnnxEngine(Engine):
    """A file of ``lmd.export.export.export_onnx``; it has no features."""

    no_heat_maps = (
        "heat maps need the run folder, and this is an ONNX file: give the folder it was exported "
        "from"
    )

    def __init__(self, path: Path) -> None:
        self.path, self._session = path, open_session(path)
        super().__init__(self._checked_spec())

    def answer(self, pixels: Pixels) -> tuple[Floats, None]:
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

    def _checked_spec(self) -> ModelSpec:
        """Return the description in the metadata of the file, whose graph must be one of lmd."""
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
            raise LmdError(f"model file {self.path} was not written by lmd ({why}): {_EXPORT}")
        where = f"the metadata of model file {self.path}"
        try:
            content = json.loads(about["spec"])
        except (ValueError, RecursionError) as error:
            raise LmdError(f"{where} is not valid JSON ({error}): {_EXPORT}") from None
        return read_spec(content, where)

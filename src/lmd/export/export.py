"""Export a run as one ONNX file, with exact resizing and its model card."""

import dataclasses
import json
import logging
import os
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.data.images import BITS
from lmd.model import Model
from lmd.model.files import ModelSpec, load_model
from lmd.predict.engines import Engine, TorchEngine
from lmd.report.card import write_card
from lmd.runs.folder import Run

OUTPUTS = ["probabilities", "features"]
OPSET = 18  # all recent versions of onnxruntime support it
PACKAGES = ("onnx", "onnxruntime", "onnxscript")
CLOSE = 1e-4  # largest difference of a probability between both ways


def onnx_is_there() -> bool:
    """Return whether the packages of the extra ``onnx`` are installed."""
    return all(find_spec(name) is not None for name in PACKAGES)


def require_onnx(purpose: str) -> None:
    """Raise an ``LmdError`` unless the packages of the extra ``onnx`` are installed."""
    if not onnx_is_there():
        raise LmdError(
            f"{purpose} needs {', '.join(PACKAGES)}, and not all of them are installed: run "
            "pip install 'lmd[onnx]'"
        )


def export_onnx(run: str | Path, onnx: str | Path, *, overwrite: bool = False) -> Path:
    """Write the shipped model of a run as ONNX (``.onnx``), for batches of any size.

    Its model card is written beside it if the run has a record.
    """
    run, path = Path(run), Path(onnx)
    check_output(path, "--onnx", ".onnx")
    if path.exists() and not overwrite:
        raise LmdError(f"{path} exists: choose another file, or replace it with --overwrite")
    require_onnx("exporting")
    from onnx import checker, compose, helper, load_from_string

    model, spec = load_model(run)
    core = load_from_string(traced(model, spec))
    core.graph.output.pop()  # the features
    before = resize_model(spec.preprocessing.image_size, core.ir_version)
    # A name may occur in both; the prefix does not reach into the branches of the first.
    core = compose.add_prefix(core, "model_", rename_outputs=False)
    graph = compose.merge_models(before, core, io_map=[("pixels", "model_images")])
    del graph.metadata_props[:]
    about = json.dumps(dataclasses.asdict(spec), ensure_ascii=False)
    classes = json.dumps(spec.classes, ensure_ascii=False)
    helper.set_model_props(graph, {"classes": classes, "spec": about})
    graph.producer_name, graph.producer_version = "lmd", spec.lmd_version
    checker.check_model(graph)
    atomic_write(path, graph.SerializeToString(), parents=True)
    folder = run if run.is_dir() else run.parent
    if (folder / "record.json").exists():
        write_card(Run.open(folder).record, path.parent, exported=path)
    return path


class Deployed(nn.Module):
    """From images ``(B, S, S, 3)`` of uint8 to probabilities ``(B, K)`` and features ``(B, C)``."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        super().__init__()
        self.model, self.temperature = model, spec.temperature
        for name in ("mean", "std"):
            value = torch.tensor(getattr(spec.preprocessing, name)).mul(255).view(1, 3, 1, 1)
            self.register_buffer(name, value)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return probabilities and features."""
        features = self.model.features((images.permute(0, 3, 1, 2).float() - self.mean) / self.std)
        logits: Tensor = self.model.classifier(features)
        return (logits / self.temperature).softmax(1), features


def traced(model: Model, spec: ModelSpec) -> bytes:
    """Return the ONNX file of a model for images that are already resized."""
    size = spec.preprocessing.image_size
    # Two images, because the exporter would treat a batch of one as a constant.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns about its internals and about optional packages
    try:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            path = Path(folder) / "model.onnx"
            torch.onnx.export(
                Deployed(model, spec).eval(),
                (example,),
                path,
                input_names=["images"],
                output_names=OUTPUTS,
                dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
            return path.read_bytes()
    finally:
        logger.setLevel(level)


class TracedEngine(Engine):
    """The model of a ``TorchEngine``, computed by onnxruntime; nothing stays on disk.

    An ``LmdError`` if the model cannot be exported or answers differently.
    """

    def __init__(self, engine: TorchEngine) -> None:
        require_onnx("onnxruntime as engine")
        super().__init__(engine.spec)
        pixels = np.random.default_rng(0).integers(
            0, 256, (3, self.image_size, self.image_size, 3), dtype=np.uint8
        )
        expected = engine.answer(pixels)
        try:
            self._session = _session(traced(engine.model, engine.spec))
            answer = self.answer(pixels)
        except Exception as error:  # the exporter and onnxruntime raise many kinds
            raise LmdError(f"the model cannot be exported ({type(error).__name__})") from error
        scale = max(float(np.abs(expected[1]).max()), 1.0)
        gaps = [float(np.abs(a - b).max()) for a, b in zip(expected, answer, strict=True)]
        if not (gaps[0] <= CLOSE and gaps[1] <= 1e-3 * scale):
            raise LmdError(f"the exported model answers differently (by {gaps[0]:.2g})")

    def answer(self, pixels: NDArray[np.uint8]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return probabilities ``(B, K)`` and features ``(B, C)``."""
        probabilities, features = self._session.run(OUTPUTS, {"images": pixels})
        return probabilities, features


def _session(file: bytes) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # All cores that this process may use; onnxruntime itself would take all of the machine's.
    cores = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    options.intra_op_num_threads = len(cores)
    # Threads that wait would take the time of those that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


def resize_model(size: int, ir_version: int) -> Any:
    """Return a graph from ``images (B, H, W, 3)`` to ``pixels (B, S, S, 3)``, both uint8."""
    from onnx import parser

    text = _GRAPH.format(
        ir_version=ir_version,
        opset=OPSET,
        size=size,
        double_size=2 * size,
        double_unit=2 << BITS,
        scale=f"{2.0 ** (-2 * BITS):.40f}",
        weights=_WEIGHTS.format(side="down") + _WEIGHTS.format(side="across"),
    )
    return parser.parse_model(text)


_WEIGHTS = """
  {side}_longer = Max({side}, size)
  {side}_wide = Mul(two, {side}_longer)
  {side}_middle = Mul(odd, {side})
  {side}_start = Sub({side}_middle, {side}_longer)
  {side}_inner = Range(one, {side}, one)
  {side}_edges = Mul({side}_inner, double_size)
  {side}_distance = Sub({side}_edges, {side}_start)
  {side}_capped = Min({side}_distance, {side}_wide)
  {side}_before = Max({side}_capped, zero)
  {side}_scaled = Mul({side}_before, double_unit)
  {side}_raised = Add({side}_scaled, {side}_wide)
  {side}_double = Mul(two, {side}_wide)
  {side}_rounded = Div({side}_raised, {side}_double)
  {side}_ends = Concat <axis = 1> ({side}_rounded, all)
  {side}_starts = Concat <axis = 1> (none, {side}_rounded)
  {side}_weights = Sub({side}_ends, {side}_starts)
"""

_GRAPH = """
<ir_version: {ir_version}, opset_import: ["" : {opset}]>
resize (uint8[batch, height, width, 3] images) => (uint8[batch, {size}, {size}, 3] pixels)
<int64 size = {{{size}}}, int64 double_size = {{{double_size}}}, int64 zero = {{0}},
 int64 one = {{1}}, int64 two = {{2}}, int64 double_unit = {{{double_unit}}},
 int64[1] rest = {{-1}}, int64[1] three = {{3}}, int64[1] size_1 = {{{size}}},
 int64[3] flat = {{0, 0, -1}}, double scale = {{{scale}}}, double half = {{0.5}}>
{{
  height = Shape <start = 1, end = 2> (images)
  width = Shape <start = 2, end = 3> (images)
  right_height = Equal(height, size_1)
  right_width = Equal(width, size_1)
  right = And(right_height, right_width)
  pixels = If (right) <
    then_branch = same () => (uint8[batch, {size}, {size}, 3] kept) {{
      kept = Identity(images)
    }},
    else_branch = other () => (uint8[batch, {size}, {size}, 3] resized) {{
      down = Squeeze(height)
      across = Squeeze(width)
      places = Range(zero, size, one)
      twice = Mul(places, two)
      row_of_odd = Add(twice, one)
      odd = Unsqueeze(row_of_odd, one)
      none = Mul(odd, zero)
      unit = Div(double_unit, two)
      all = Add(none, unit)
{weights}
      floats = Cast <to = 1> (images)
      flat_rows = Reshape(floats, flat)
      float_weights = Cast <to = 1> (down_weights)
      rows = MatMul(float_weights, flat_rows)
      rows_shape = Concat <axis = 0> (rest, size_1, width, three)
      shaped = Reshape(rows, rows_shape)
      turned = Transpose <perm = [0, 1, 3, 2]> (shaped)
      doubles = Cast <to = 11> (turned)
      double_weights = Cast <to = 11> (across_weights)
      columns = Transpose <perm = [1, 0]> (double_weights)
      sums = MatMul(doubles, columns)
      means = Mul(sums, scale)
      shifted = Add(means, half)
      whole = Floor(shifted)
      bytes = Cast <to = 2> (whole)
      resized = Transpose <perm = [0, 1, 3, 2]> (bytes)
    }}
  >
}}
"""

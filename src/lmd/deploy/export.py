"""Export of a shipped model as one ONNX file that needs neither lmd nor torch.

The graph takes RGB ``images (B, H, W, 3)`` of uint8, of any size, and returns ``probabilities (B,
K)`` of float32; resizing, normalisation, temperature and softmax are inside. (A model with the old
rule of resizing takes images that have its size already.) The metadata has ``classes``, a JSON list
in the order of the columns, and ``spec``, the model's description.
"""

import dataclasses
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lmd.base.errors import LmdError
from lmd.base.files import atomic_write, check_output
from lmd.deploy.resize_graph import with_resize
from lmd.model import Model, ModelSpec, load_model

OPSET = 18  # all recent versions of onnxruntime support it


class Deployed(nn.Module):
    """From pixels ``(B, S, S, 3)`` of uint8 to probabilities ``(B, K)``."""

    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, spec: ModelSpec) -> None:
        super().__init__()
        self.model, self.temperature = model, spec.temperature
        for name in ("mean", "std"):
            value = torch.tensor(getattr(spec.preprocessing, name)).mul(255).view(1, 3, 1, 1)
            self.register_buffer(name, value)

    def forward(self, images: Tensor) -> Tensor:
        """Probabilities ``(B, K)``."""
        logits: Tensor = self.model(self.normalised(images))
        return (logits / self.temperature).softmax(1)

    def normalised(self, images: Tensor) -> Tensor:
        """The model's input ``(B, 3, S, S)``."""
        return (images.permute(0, 3, 1, 2).float() - self.mean) / self.std


def export_onnx(run_folder: str | Path, path: str | Path, *, overwrite: bool = False) -> Path:
    """Write the shipped model of a run to ``path`` (``.onnx``), for batches of any size."""
    path = checked_target(path, overwrite=overwrite)
    model, spec = load_model(Path(run_folder))
    write_graph(complete(core_graph(model, spec), spec), path)
    return path


def checked_target(path: str | Path, *, overwrite: bool) -> Path:
    """The file to write; an ``LmdError`` if it may not be written."""
    path = Path(path)
    check_output(path, "--onnx", ".onnx")
    if path.exists() and not overwrite:
        raise LmdError(f"{path} exists: choose another file, or replace it with --overwrite")
    return path


def core_graph(model: Model, spec: ModelSpec) -> Any:
    """The graph from resized images ``(B, S, S, 3)`` to probabilities."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise LmdError(
            "export to ONNX needs packages that are not installed: run pip install 'lmd[onnx]'"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "model.onnx"
        # Without the resizing part, the model itself takes the images.
        name = "images" if spec.preprocessing.resize == "v1" else "pixels"
        size = spec.preprocessing.image_size
        trace(Deployed(model, spec).eval(), size, raw, name, ["probabilities"])
        return onnx.load(raw)


def complete(core: Any, spec: ModelSpec) -> Any:
    """The graph with resizing before it and the description of the model in its metadata."""
    import onnx

    graph = core
    if spec.preprocessing.resize == "v2":
        graph = with_resize(core, spec.preprocessing.image_size, OPSET)
    del graph.metadata_props[:]
    about = json.dumps(dataclasses.asdict(spec), ensure_ascii=False)
    classes = json.dumps(spec.classes, ensure_ascii=False)
    onnx.helper.set_model_props(graph, {"classes": classes, "spec": about})
    graph.producer_name, graph.producer_version = "lmd", spec.lmd_version
    onnx.checker.check_model(graph)
    return graph


def write_graph(graph: Any, path: Path) -> None:
    """Write a graph, and the folders above it."""
    atomic_write(path, graph.SerializeToString(), parents=True)


def trace(deployed: Deployed, size: int, path: Path, name: str, outputs: Sequence[str]) -> None:
    """Write the graph of a module for square images of ``size``; ``name`` is that of its input."""
    # Two images, because the exporter would treat a batch of one as a constant.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    with _quietly():
        torch.onnx.export(
            deployed,
            (example,),
            path,
            input_names=[name],
            output_names=list(outputs),
            dynamic_shapes={"images": {0: torch.export.Dim("batch", min=1)}},
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the exporter's output about its internals and about optional packages."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)

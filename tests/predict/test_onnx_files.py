"""ONNX files with other inputs, outputs or metadata get a message, never a traceback."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lmd.base.errors import LmdError
from lmd.model import Preprocessing
from lmd.model.files import ModelSpec
from lmd.predict.predictor import load

onnx = pytest.importorskip("onnx", reason="the extra 'onnx' is not installed")
pytest.importorskip("onnxruntime", reason="the extra 'onnx' is not installed")

SPEC = ModelSpec(
    ("a", "b"),
    "resnet8",
    "linear",
    128,
    Preprocessing(16, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "v2"),
    "CE",
    (5, 3),
)


def write(
    path: Path,
    given: str = "uint8[B, H, W, 3] images",
    result: str = "float[B, 2] probabilities",
    spec: Any = None,
    classes: int = 2,
) -> Path:
    """A small graph that gives every image the same probabilities."""
    name, out = given.rsplit(" ", 1)[1], result.rsplit(" ", 1)[1]
    text = f"""
    <ir_version: 8, opset_import: ["" : 18]>
    graph ({given}) => ({result}) {{
        n = Shape <start = 0, end = 1> ({name})
        k = Constant <value_ints = [{classes}]> ()
        shape = Concat <axis = 0> (n, k)
        half = Constant <value_float = 0.5> ()
        {out} = Expand(half, shape)
    }}"""
    model = onnx.parser.parse_model(text)
    about = json.dumps(dataclasses.asdict(SPEC)) if spec is None else spec
    onnx.helper.set_model_props(model, {"classes": "[]", "spec": about})
    onnx.save(model, path)
    return path


def test_the_right_names_are_accepted(tmp_path: Path) -> None:
    found = load(write(tmp_path / "m.onnx")).predict(np.zeros((9, 9, 3), np.uint8))
    np.testing.assert_allclose(found.probabilities, [[0.5, 0.5]])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"given": "uint8[B, H, W, 3] pixels"}, "from pixels to probabilities, not from images"),
        ({"result": "float[B, 2] logits"}, "from images to logits"),
        ({"given": "float[B, H, W, 3] images"}, r"its input is tensor\(float\)"),
        ({"given": "uint8[B, H] images"}, r"its input is tensor\(uint8\)"),
        ({"spec": "{"}, "not valid JSON"),
        ({"spec": "[" * 100_000}, "not valid JSON"),
        ({"spec": "[]"}, "is not valid"),
        ({"spec": "{}"}, "'classes': Field required"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    with pytest.raises(LmdError, match=words) as caught:
        load(write(tmp_path / "m.onnx", **changes))
    assert str(tmp_path / "m.onnx") in str(caught.value)


def test_answers_of_another_shape_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", result="float[B, K] probabilities", classes=3)
    with pytest.raises(LmdError, match=r"gives probabilities of shape \(1, 3\) for 1 images and 2"):
        load(path).predict(np.zeros((9, 9, 3), np.uint8))


def test_a_graph_that_fails_is_one_message(tmp_path: Path) -> None:
    path = write(tmp_path / "m.onnx", given="uint8[B, 7, 7, 3] images")
    with pytest.raises(LmdError, match="cannot be run"):
        load(path).predict(np.zeros((9, 9, 3), np.uint8))

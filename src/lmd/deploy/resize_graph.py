"""The rule of ``lmd.data.resizing`` as an ONNX graph of standard operators.

The weights are made from the shape of the images with the same integers, and all sums are exact, so
the pixels are the same to the last bit. Images that have the model's size pass unchanged.
"""

from typing import Any

from lmd.data.resizing import BITS

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


def resize_model(size: int, opset: int, ir_version: int) -> Any:
    """A model from ``images (B, H, W, 3)`` of any size to ``pixels (B, S, S, 3)``, both uint8."""
    from onnx import parser

    text = _GRAPH.format(
        ir_version=ir_version,
        opset=opset,
        size=size,
        double_size=2 * size,
        double_unit=2 << BITS,
        scale=f"{2.0 ** (-2 * BITS):.40f}",
        weights=_WEIGHTS.format(side="down") + _WEIGHTS.format(side="across"),
    )
    return parser.parse_model(text)


def with_resize(core: Any, size: int, opset: int) -> Any:
    """A model that takes ``pixels``, preceded by ``resize_model``."""
    from onnx import compose

    before = resize_model(size, opset, core.ir_version)
    # A name may occur in both; the prefix does not reach into the branches of the first.
    core = compose.add_prefix(core, "model_", rename_inputs=False, rename_outputs=False)
    return compose.merge_models(before, core, io_map=[("pixels", "pixels")])

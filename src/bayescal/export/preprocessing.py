"""From decoded pixels of any size to those the image tower wants, as ONNX operations.

What Pillow's `resize` does (`data.transforms.cropped`), number by number: two products with matrices of weights, along
the rows first, then along the columns, rounded to 8 bits after each. Weights are whole numbers, 22 bits behind the
point, in two halves: a float32 holds every sum of 8-bit pixels times one of them exactly. Where images are already
`side` × `side` both matrices are the identity and nothing changes. ONNX's own Resize, with `antialias` and Pillow's
coefficient, differs by one of 255 in three images of four.

One difference is left: Pillow 13 begins with the columns where an image is more than twice as high as wide (where both
sides are squashed to one length, also in others that are higher than wide), which moves single numbers: in smooth
pictures by 2 of 255, in noise by up to 18.
"""

from typing import Any

import onnx
from onnx import inliner
from onnxscript import FLOAT, UINT8, opset18
from onnxscript import script as onnx_script
from onnxscript.values import Opset

from bayescal.data.preprocess import Preprocess

# A script is read as text and never run: for a type checker its operations have no types.
op: Any = opset18
script: Any = onnx_script

OPSET = 18  # of all graphs: the first with every operation that is used; onnxruntime has had it since 1.14
IR_VERSION = 9
FLOAT32, FLOAT64 = int(onnx.TensorProto.FLOAT), int(onnx.TensorProto.DOUBLE)
HALF, WHOLE = 2048.0, 4194304.0  # 2¹¹ and 2²²
_OWN = Opset("bayescal", 1)


@script(_OWN, default_opset=op)
def bicubic(t):
    near = (1.5 * t - 2.5) * t * t + 1.0
    far = ((-0.5 * t + 2.5) * t - 4.0) * t + 2.0
    return op.Where(t < 1.0, near, op.Where(t < 2.0, far, t * 0.0))


@script(_OWN, default_opset=op)
def bilinear(t):
    return op.Where(t < 1.0, 1.0 - t, t * 0.0)


@script(_OWN, default_opset=op)
def high(weights):
    return op.Cast(op.Floor(weights / HALF), to=FLOAT32)


@script(_OWN, default_opset=op)
def low(weights):
    return op.Cast(weights - op.Floor(weights / HALF) * HALF, to=FLOAT32)


@script(_OWN, default_opset=op)
def as_bytes(high_sum, low_sum):
    """The sum of both halves, rounded to whole numbers from 0 to 255."""
    total = op.Cast(high_sum, to=FLOAT64) * HALF + op.Cast(low_sum, to=FLOAT64)
    return op.Cast(
        op.Clip(op.Floor(total / WHOLE + 0.5), op.CastLike(0.0, total), op.CastLike(255.0, total)), to=FLOAT32
    )


def preprocessing(how: Preprocess) -> onnx.ModelProto:
    """`images` (N, H, W, 3) uint8 → `pixels` (N, 3, side, side) float32, as the image tower wants them."""
    side = how.size
    curve, reach = (bilinear, 1.0) if how.interpolation == "bilinear" else (bicubic, 2.0)
    mean, deviation = _per_colour(how.mean), _per_colour(how.std)

    @script(_OWN, default_opset=op)
    def squashed(size, short):
        return op.Constant(value_ints=[side])

    @script(_OWN, default_opset=op)
    def in_proportion(size, short):
        return size * side / short

    resized = squashed if how.resize_mode == "squash" else in_proportion

    @script(_OWN, default_opset=op)
    def weights(size, new):
        """Of each pixel of a line of `size` in each of those that the centre crop keeps of `new`: (side, size)."""
        before, after = op.Cast(size, to=FLOAT64), op.Cast(new, to=FLOAT64)
        zero, one = op.CastLike(0.0, before), op.CastLike(1.0, before)
        kept = op.CastLike(op.Constant(value_int=side), before)
        first = op.Round((after - kept) / 2.0)
        scale = before / after
        spread = op.Max(scale, one)
        centre = op.Unsqueeze((op.Range(zero, kept, one) + first + 0.5) * scale, op.Constant(value_ints=[1]))
        x = op.Range(zero, op.Squeeze(before), one)
        start, end = op.Floor(centre - reach * spread + 0.5), op.Floor(centre + reach * spread + 0.5)
        raw = op.Where(op.And(x >= start, x < end), curve(op.Abs((x - centre + 0.5) / spread)), zero)
        share = raw / op.ReduceSum(raw, op.Constant(value_ints=[1]), keepdims=1)
        return op.Round(share * WHOLE)

    @script(default_opset=op)
    def preprocess(images):
        height, width = op.Shape(images, start=1, end=2), op.Shape(images, start=2, end=3)
        short = op.Min(height, width)
        rows, columns = weights(height, resized(height, short)), weights(width, resized(width, short))
        numbers = op.Cast(op.Transpose(images, perm=[0, 3, 1, 2]), to=FLOAT32)
        across = op.Transpose(columns, perm=[1, 0])
        narrow = as_bytes(op.MatMul(numbers, high(across)), op.MatMul(numbers, low(across)))
        square = as_bytes(op.MatMul(high(rows), narrow), op.MatMul(low(rows), narrow))
        pixels = (square / 255.0 - op.Constant(value=mean)) / op.Constant(value=deviation)
        return pixels

    shapes = {"input_types": [UINT8["N", "H", "W", 3]], "output_types": [FLOAT["N", 3, side, side]]}
    return _plain(preprocess.to_model_proto(**shapes))


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """Without functions of our own, which not every program reads."""
    model = inliner.inline_local_functions(model)
    own = [entry for entry in model.opset_import if entry.domain == _OWN.domain]
    for entry in own:
        model.opset_import.remove(entry)
    model.ir_version = IR_VERSION
    return model


def _per_colour(values: tuple[float, float, float]) -> Any:
    return onnx.helper.make_tensor("values", FLOAT32, [3, 1, 1], values)

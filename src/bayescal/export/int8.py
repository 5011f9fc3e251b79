"""An image tower that multiplies in 8 bits where that changes little.

A product x W of activations with weights becomes  s_x s_W (x̂ Ŵ): x̂ has 8 bits and a scale s_x of the numbers at
hand, Ŵ 7 bits (with 8, processors without VNNI overflow) and a scale per column. Before that the columns of x are
divided, and the rows of W multiplied, by (max|x_j|)^½ / (max|W_j|)^½, which brings large columns of x down
(Xiao et al., SmoothQuant, ICML 2023); max|x_j| is measured on images. A product whose result that changes by more than
`WORST` of its length stays as it is: in a vision transformer, most of those that read an activation function.
"""

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bayescal.errors import BayescalError

SMALLEST = 65536  # weights of a product that is worth it
WORST = 7e-4  # of the squared length of a product's result
TOP = 63.0  # of a weight of 7 bits
BATCH = 8
NOTHING = (
    "int8: the image tower has no product that 8 bits would do for; only transformers gain by it. "
    "Use --precision float16 for a smaller file"
)


@dataclass(frozen=True)
class Product:
    """A node that multiplies activations with weights (K, M)."""

    name: str
    reads: str
    weights: np.ndarray
    gives: str
    bias: str | None


def quantised(graph: onnx.ModelProto, images: np.ndarray) -> onnx.ModelProto:
    """The same graph with products in 8 bits; images (n, H, W, 3) uint8 are what it is meant for."""
    found = products(graph)
    if not found:
        raise BayescalError(NOTHING)
    largest, examples = _measured(graph, found, images)
    smooth = {p.name: _smoothing(largest[p.reads], p.weights) for p in found}
    kept = [p for p in found if _error(examples[p.reads], p.weights, smooth[p.name]) <= WORST]
    if not kept:
        raise BayescalError(NOTHING)
    chosen = {p.name: p for p in kept}
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        if node.name in chosen:
            made, tensors = _in_8_bits(chosen[node.name], smooth[node.name])
            nodes += made
            graph.graph.initializer.extend(tensors)
        else:
            nodes.append(node)
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    _drop_unused(graph)
    return graph


def products(graph: onnx.ModelProto) -> list[Product]:
    """The products with constant weights that are large enough."""
    tensors = {t.name: t for t in graph.graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) == 2}
    found = []
    for node in graph.graph.node:
        if node.op_type not in ("MatMul", "Gemm") or node.input[1] not in tensors:
            continue
        how = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
        if how.get("transA") or how.get("alpha", 1.0) != 1.0 or (bias and how.get("beta", 1.0) != 1.0):
            continue
        weights = numpy_helper.to_array(tensors[node.input[1]])
        weights = weights.T if how.get("transB") else weights
        if weights.size >= SMALLEST:
            found.append(Product(node.name, node.input[0], weights, node.output[0], bias))
    return found


def _measured(
    graph: onnx.ModelProto, found: list[Product], images: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Of what each product reads: the largest size of each column (K,), and the rows of the first batch (m, K)."""
    from onnxruntime import InferenceSession

    names = sorted({p.reads for p in found})
    shown = onnx.ModelProto()
    shown.CopyFrom(graph)
    given = {output.name for output in graph.graph.output}
    added = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names if name not in given]
    shown.graph.output.extend(added)
    session = InferenceSession(shown.SerializeToString(), providers=["CPUExecutionProvider"])
    largest: dict[str, np.ndarray] = {}
    examples: dict[str, np.ndarray] = {}
    for at in range(0, len(images), BATCH):
        values = session.run(names, {graph.graph.input[0].name: images[at : at + BATCH]})
        for name, value in zip(names, values, strict=True):
            rows = np.asarray(value).reshape(-1, np.asarray(value).shape[-1])
            largest[name] = np.maximum(largest.get(name, 0.0), np.abs(rows).max(0))
            examples.setdefault(name, rows)
    return largest, examples


def _smoothing(largest: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """What each column of x is divided by: (K,), around 1."""
    sizes = np.sqrt(np.maximum(largest, 1e-5) / np.maximum(np.abs(weights).max(1), 1e-5))
    return (sizes / np.exp(np.log(sizes).mean())).astype(np.float32)


def _error(x: np.ndarray, weights: np.ndarray, smooth: np.ndarray) -> float:
    """The share of the squared length of x W (x: (m, K)) by which it changes."""
    true = x @ weights
    x = x / smooth
    low, high = min(float(x.min()), 0.0), max(float(x.max()), 0.0)
    step = max(high - low, 1e-12) / 255
    rounded, scale = _rounded(weights * smooth[:, None])
    found = (np.rint((x - low) / step) * step + low) @ (rounded * scale)
    return float(np.square(found - true).sum() / max(float(np.square(true).sum()), 1e-30))


def _rounded(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers (K, M) of 7 bits, and the scale of each column (M,)."""
    scale = (np.maximum(np.abs(weights).max(0), 1e-12) / TOP).astype(np.float32)
    return np.rint(weights / scale).astype(np.int8), scale


def _in_8_bits(product: Product, smooth: np.ndarray) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """The nodes that take a product's place, as onnxruntime recognises them, and their constants."""
    at = f"{product.name}/int8"
    rounded, scale = _rounded(product.weights * smooth[:, None])
    constants = {"divided": 1 / smooth, "weights": rounded, "scale": scale}
    tensors = [numpy_helper.from_array(np.ascontiguousarray(v), f"{at}/{name}") for name, v in constants.items()]
    result = f"{at}/result" if product.bias else product.gives
    nodes = [
        helper.make_node("Mul", [product.reads, f"{at}/divided"], [f"{at}/even"]),
        helper.make_node("DynamicQuantizeLinear", [f"{at}/even"], [f"{at}/x", f"{at}/step", f"{at}/zero"]),
        helper.make_node("MatMulInteger", [f"{at}/x", f"{at}/weights", f"{at}/zero"], [f"{at}/sum"]),
        helper.make_node("Cast", [f"{at}/sum"], [f"{at}/float"], to=TensorProto.FLOAT),
        helper.make_node("Mul", [f"{at}/step", f"{at}/scale"], [f"{at}/factor"]),
        helper.make_node("Mul", [f"{at}/float", f"{at}/factor"], [result]),
    ]
    if product.bias:
        nodes.append(helper.make_node("Add", [result, product.bias], [product.gives]))
    for node in nodes:
        node.name = node.output[0]
    return nodes, tensors


def _drop_unused(graph: onnx.ModelProto) -> None:
    used = {name for node in graph.graph.node for name in node.input}
    kept = [tensor for tensor in graph.graph.initializer if tensor.name in used]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(kept)

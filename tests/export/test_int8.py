"""Products in 8 bits: close where they are, left alone where they would not be."""

import numpy as np
import onnx
import pytest
from exporting import drawn, stacked
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from bayescal.errors import BayescalError
from bayescal.export.check import Sample
from bayescal.export.int8 import quantised
from bayescal.export.writing import export_model

WIDTH = 256


def product_graph(columns: np.ndarray) -> onnx.ModelProto:
    """images (N, 4, 22, 3) → 256 numbers of each, times `columns`, through a MatMul and a Gemm with a bias."""
    random = np.random.default_rng(0)
    constants = {
        "flat": np.array([-1, 264], dtype=np.int64),
        "spread": (random.normal(size=(264, WIDTH)) / 264 * columns).astype(np.float32),
        "w1": random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16,
        "w2": random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16,
        "bias": random.normal(size=WIDTH).astype(np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["numbers", "flat"], ["rows"]),
        helper.make_node("MatMul", ["rows", "spread"], ["x"], name="spread"),
        helper.make_node("MatMul", ["x", "w1"], ["y"], name="first"),
        helper.make_node("Gemm", ["x", "w2", "bias"], ["z"], name="second", transB=1),
        helper.make_node("Add", ["y", "z"], ["features"]),
    ]
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", 4, 22, 3])],
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def run(graph: onnx.ModelProto, images: np.ndarray) -> np.ndarray:
    session = InferenceSession(graph.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": images})[0])


def changed(graph: onnx.ModelProto) -> float:
    """The share of the result's length by which 8 bits change it, on other images than those that set the scales."""
    images = drawn(16, 4, 22, seed=9)
    true = run(graph, images)
    found = run(quantised(graph, drawn(32, 4, 22)), images)
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def operations(graph: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in graph.graph.node]


def test_products_with_weights_are_in_8_bits_and_close():
    graph = product_graph(np.ones(WIDTH))
    assert changed(graph) < 0.03
    assert operations(graph).count("MatMulInteger") >= 2
    assert "Gemm" not in operations(graph)
    assert not {"w1", "w2"} & {tensor.name for tensor in graph.graph.initializer}
    onnx.checker.check_model(graph)


def test_columns_that_are_a_hundred_times_as_large_are_brought_down():
    columns = np.ones(WIDTH)
    columns[:4] = 100.0
    graph = product_graph(columns)
    assert changed(graph) < 0.03
    assert operations(graph).count("MatMulInteger") >= 2


def test_a_tower_that_gains_nothing_is_refused(tmp_path):
    with pytest.raises(BayescalError, match="only transformers gain by it"):
        export_model(stacked(), tmp_path / "out", "int8", sample=Sample(drawn(8), np.zeros(8, int)))
    assert not (tmp_path / "out").exists()


def test_int8_needs_images(tmp_path):
    with pytest.raises(BayescalError, match="needs --check FOLDER"):
        export_model(stacked(), tmp_path / "out", "int8")

"""Weights in 16 bits: half the file, and the arithmetic of float32.

Each large tensor is stored as float16 and turned into float32 by an operation of the graph, which onnxruntime does
once, when it loads the file. So answers are as fast as in float32, on every processor: few of them compute in float16.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WORTH = 1024  # numbers of a tensor from which on storing it smaller pays
LARGEST = float(np.finfo(np.float16).max)


def half_weights(graph: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its float32 tensors in float16, but for those that float16 cannot hold."""
    casts = []
    for tensor in graph.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < WORTH or not np.abs(values).max() <= LARGEST:
            continue
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), f"{name}/half"))
        casts.append(helper.make_node("Cast", [f"{name}/half"], [name], name=f"{name}/cast", to=TensorProto.FLOAT))
    nodes = list(graph.graph.node)
    del graph.graph.node[:]
    graph.graph.node.extend([*casts, *nodes])
    return graph

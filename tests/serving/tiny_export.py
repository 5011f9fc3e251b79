"""A folder as `bayescal export` writes it, made without a model."""

import hashlib
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from bayescal.export.folder import FORMAT, FORMAT_VERSION, MODEL, write_folder


def tiny_export(folder: Path) -> Path:
    """A folder as `bayescal export` writes it, whose graph answers with the mean colour."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "axes"], ["colour"], keepdims=0),
        helper.make_node("Softmax", ["colour"], ["probabilities"], axis=1),
        helper.make_node("ReduceMax", ["colour", "last"], ["entropy"], keepdims=0),
        *(
            helper.make_node("Identity", ["entropy"], [n])
            for n in ("mutual_information", "disagreement", "familiarity")
        ),
        helper.make_node("ArgMin", ["colour"], ["environment"], axis=1, keepdims=0),
    ]
    one = ("entropy", "mutual_information", "disagreement", "familiarity")
    graph = helper.make_graph(
        nodes,
        "colours",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", "H", "W", 3])],
        [
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["N", 3]),
            *(helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in one),
            helper.make_tensor_value_info("environment", TensorProto.INT64, ["N"]),
        ],
        [
            onnx.numpy_helper.from_array(np.array([1, 2]), "axes"),
            onnx.numpy_helper.from_array(np.array([1]), "last"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file = model.SerializeToString()
    how = {"size": 4, "mean": [0, 0, 0], "std": [1, 1, 1], "interpolation": "bicubic", "resize_mode": "shortest"}
    about = {
        "format": FORMAT, "format_version": FORMAT_VERSION, "classes": ["red", "green", "blue"],
        "class_words": ["red", "green", "blue"], "environments": ["a", "b", "c"], "threshold": 0.5,
        "unfamiliar_below": None, "temperature": 1.0, "expected": None, "method": "colours", "preprocessing": how,
        "backbone": "none", "fingerprint": "0" * 20, "precision": "float32", "version": "0",
        "files": {MODEL: {"bytes": len(file), "sha256": hashlib.sha256(file).hexdigest()}},
    }  # fmt: skip
    write_folder(folder, {MODEL: file}, about)
    return folder
